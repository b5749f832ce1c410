// Copied calls are run by a shell, with functions in place of curl and the other programs that print their arguments.

import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { createServer } from 'node:http';
import { test } from 'node:test';

import { a2a, curl, grpcurl, python, pythonQuoted, shellQuoted } from '../../console/copy.js';

/** Texts that a shell, Python or a terminal could take for something else. */
const TEXTS = [
  'Hello',
  `it's "quoted"`,
  "'\"'\"'",
  'two\nlines\r\nand\ttabs',
  '$(touch /tmp/x) `id` ${HOME} $HOME !history',
  'back\\slash \\n \\" \\\\',
  '😀 ü \u202Ereversed\u2066',
  'a\u0000b\u001b[201~\u009b31m\u2028',
  '\ud800 lone',
  '@/etc/passwd',
  '-',
  '--token x',
  '{"a":[1]}',
  '',
  "%s %d; rm -rf . & | > < * ? [x] ~ # \\'",
];

const send = (text, more = {}) => ({
  operation: 'SendMessage',
  method: 'POST',
  url: 'http://127.0.0.1:8080/pre/fix/message:send',
  headers: { 'content-type': 'application/json', 'a2a-version': '1.0' },
  body: JSON.stringify({ message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text }] } }),
  isAuthenticated: false,
  ...more,
});

/** Runs a command in a shell in which a function prints the arguments of the program, each in hexadecimal. */
function argumentsOf(command, shell = 'bash') {
  const program = command.split(' ')[0];
  const script = `${program}() { for word in "$@"; do printf %s "$word" | od -An -v -tx1 | tr -d ' \\n'; echo; done; }\n${command}\n`;
  const output = execFileSync(shell, ['-c', script], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], env: { PATH: process.env.PATH, A2A_TOKEN: 'to ken' } });
  return output.split('\n').slice(0, -1).map((line) => Buffer.from(line, 'hex').toString());
}

/** Returns the value after a flag. */
const flag = (words, name) => words[words.indexOf(name) + 1];

for (const shell of ['bash', 'sh']) {
  test(`a word for ${shell} is the text`, () => {
    for (const text of TEXTS.filter((text) => !text.includes('\0') && text.isWellFormed())) {
      assert.deepEqual(argumentsOf(`program ${shellQuoted(text)}`, shell), [text]);
    }
  });

  test(`curl sends the body, in ${shell}`, () => {
    for (const text of TEXTS) {
      const call = send(text);
      const words = argumentsOf(curl(call), shell);
      assert.equal(words[0], call.url);
      assert.deepEqual(JSON.parse(flag(words, '--data-raw')), JSON.parse(call.body));
      assert.deepEqual(words.filter((word, index) => words[index - 1] === '-H'), ['content-type: application/json', 'a2a-version: 1.0']);
    }
  });

  test(`grpcurl sends the message, in ${shell}`, () => {
    for (const text of TEXTS) {
      const words = argumentsOf(grpcurl(send(text)), shell);
      assert.deepEqual(JSON.parse(flag(words, '-d')), JSON.parse(send(text).body));
      assert.deepEqual(words.slice(-2), ['127.0.0.1:8080', 'lf.a2a.v1.A2AService/SendMessage']);
      assert.ok(words.includes('-plaintext') && !words.includes('content-type: application/json'));
    }
  });

  test(`a2a sends the text or the message, in ${shell}`, () => {
    for (const text of TEXTS) {
      const words = argumentsOf(a2a(send(text)), shell);
      assert.deepEqual(words.slice(0, 2), ['send', 'http://127.0.0.1:8080/pre/fix']);
      if (words.includes('--json')) assert.deepEqual(JSON.parse(flag(words, '--json')), JSON.parse(send(text).body).message);
      else assert.equal(words[2], text);
    }
    const isText = (text) => !argumentsOf(a2a(send(text)), shell).includes('--json');
    assert.ok(isText('Hello') && isText("it's\nnot"));
    assert.ok(!isText('@/etc/passwd') && !isText('-') && !isText('\u001b[201~') && !isText('\u202E'));
  });
}

/** Records the request that a program sends. `command(url)` returns its words. */
async function recorded(command) {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const request = new Promise((resolve) => {
    server.once('request', async (request, response) => {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      response.end('done\n');
      resolve({ method: request.method, url: request.url, headers: request.headers, body: Buffer.concat(chunks).toString() });
    });
  });
  const [program, ...words] = command(`http://127.0.0.1:${server.address().port}`);
  const output = await new Promise((resolve, reject) => {
    execFile(program, words, { env: { PATH: process.env.PATH, A2A_TOKEN: 'seeded-token' } }, (error, stdout) => (error ? reject(error) : resolve(stdout)));
  });
  server.close();
  return { ...(await request), output };
}

test('the program in Python sends the request', async () => {
  for (const text of TEXTS) {
    const call = (base) => send(text, { url: `${base}/message:send?a=%27`, isAuthenticated: true });
    const { method, url, headers, body, output } = await recorded((base) => ['python3', '-c', python(call(base))]);
    assert.equal(`${method} ${url} ${headers.authorization} ${output}`, 'POST /message:send?a=%27 Bearer seeded-token done\n');
    assert.deepEqual(JSON.parse(body), JSON.parse(send(text).body));
    assert.equal(headers['a2a-version'], '1.0');
  }
});

test('a string of Python is the text', () => {
  for (const text of TEXTS.filter((text) => text.isWellFormed() && !text.includes('\0'))) {
    const output = execFileSync('python3', ['-c', `import sys; sys.stdout.buffer.write(${pythonQuoted(text)}.encode())`]);
    assert.equal(output.toString(), text);
  }
});

test('commands have the variable in place of the token', () => {
  for (const form of [curl, grpcurl, python, a2a]) {
    assert.ok(!form(send('Hello')).includes('A2A_TOKEN'));
    assert.ok(form(send('Hello', { isAuthenticated: true })).includes('A2A_TOKEN'), form.name);
  }
  const words = (form) => argumentsOf(form(send('Hello', { isAuthenticated: true })));
  assert.ok(words(curl).includes('authorization: Bearer to ken'));
  assert.ok(words(grpcurl).includes('authorization: Bearer to ken'));
  assert.equal(flag(words(a2a), '--token'), 'to ken');
});

test('no hidden character is copied', () => {
  for (const form of [curl, grpcurl, python, a2a]) {
    for (const text of TEXTS) assert.doesNotMatch(form(send(text)), /[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/u, form.name);
  }
});

const get = (operation, path, more = {}) => ({ operation, method: 'GET', url: `https://agent.example/geo/${path}`, headers: {}, body: null, isAuthenticated: false, ...more });

test('each operation has its message and its command', () => {
  const resubscribe = '{"jsonrpc":"2.0","id":1,"method":"tasks/resubscribe","params":{"id":"42"}}';
  const cases = [
    [get('SubscribeToTask', 'tasks/a%20b:subscribe'), { id: 'a b' }, "a2a subscribe https://agent.example/geo 'a b'"],
    [get('SubscribeToTask', 'tasks/42:subscribe?lastEventId=42.0.0'), { id: '42' }, 'a2a subscribe https://agent.example/geo 42 --resume 42.0.0'],
    [get('SubscribeToTask', 'rpc', { method: 'POST', headers: { 'a2a-version': '0.3', 'last-event-id': '42.0.0' }, body: resubscribe }), { id: '42' }, 'a2a subscribe https://agent.example/geo 42 --resume 42.0.0 --binding jsonrpc --protocol 0.3'],
    [get('SubscribeToTask', 'v1/tasks/42:subscribe', { headers: { 'a2a-version': '0.3' } }), { id: '42' }, 'a2a subscribe https://agent.example/geo 42 --protocol 0.3'],
  ];
  for (const [call, message, command] of cases) {
    const words = argumentsOf(grpcurl(call));
    assert.deepEqual(JSON.parse(flag(words, '-d')), message, command);
    assert.deepEqual(words.slice(-2), ['agent.example:443', `lf.a2a.v1.A2AService/${call.operation}`]);
    assert.ok(!words.includes('-plaintext'));
    assert.equal(a2a(call).replaceAll(' \\\n  ', ' '), command);
  }
  const words = argumentsOf(grpcurl(cases[1][0]));
  assert.ok(words.includes('a2a-version: 1.0') && words.includes('last-event-id: 42.0.0'));
  assert.equal(JSON.parse(flag(argumentsOf(grpcurl({ ...cases[0][0], agent: 'geo' })), '-d')).tenant, 'geo');
});

test('curl has the method, and no buffer for streams', () => {
  assert.equal(curl(get('SubscribeToTask', 'rpc', { method: 'POST' })), 'curl -N https://agent.example/geo/rpc \\\n  -X POST');
  assert.match(curl(get('SubscribeToTask', 'tasks/42:subscribe')), /^curl -N /);
});

test('curl calls JSON-RPC in place of gRPC-Web', () => {
  const call = get('SubscribeToTask', 'lf.a2a.v1.A2AService/SubscribeToTask', { method: 'POST', headers: { 'last-event-id': '42.0.0' }, body: '{"id":"42"}' });
  const words = argumentsOf(curl(call));
  assert.deepEqual(words.slice(0, 2), ['-N', 'https://agent.example/geo/rpc']);
  assert.deepEqual(JSON.parse(flag(words, '--data-raw')), { jsonrpc: '2.0', id: 1, method: 'SubscribeToTask', params: { id: '42' } });
  assert.match(a2a(call), /a2a subscribe https:\/\/agent\.example\/geo 42/);
});

test('a task of a conversation is continued', () => {
  const body = (message) => JSON.stringify({ message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'Lisbon' }], ...message } });
  const words = argumentsOf(a2a(send('', { body: body({ contextId: 'c', taskId: 't' }) })));
  assert.deepEqual(words.slice(2), ['Lisbon', '--context', 'c', '--task', 't']);
  const file = { raw: 'AA==', filename: 'a.bin' };
  assert.ok(argumentsOf(a2a(send('', { body: body({ parts: [{ text: 'x' }, file] }) }))).includes('--json'));
});
