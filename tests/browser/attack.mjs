// Attacks a server from web pages in headless Chromium: node attack.mjs URL PERMISSIVE-URL CHROMIUM
//
// The first server has default settings: no page may send anything to its agent, or read a response that is not public. The
// second server allows pages of http://app.test and any host, which shows that the attacks work where the server permits
// them. A third server, in this program, records requests, which shows that the attacks leave the browser.
// Prints a line for each test, which scripts/browser counts.

import assert from 'node:assert/strict';
import http from 'node:http';

import { chromium } from 'playwright-core';

const [server, permissive, executablePath] = process.argv.slice(2);

let failures = 0;

async function test(name, run) {
  try {
    console.log(`ok ${name}${(await run()) ?? ''}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED ${name}\n${error.stack}`.replaceAll('\n', '\n    '));
  }
}

const listen = (handler) =>
  new Promise((resolve) => {
    const listener = http.createServer(handler).on('upgrade', handler);
    listener.listen(0, '127.0.0.1', () => resolve(listener.address().port));
  });

/** Requests that the recording server has received. */
const recorded = [];
const recorder = await listen((request, response) => {
  const { method, url, headers } = request;
  recorded.push({ method, url, type: headers['content-type'], upgrade: headers.upgrade, mode: headers['sec-fetch-mode'] });
  if (headers.upgrade) response.destroy();
  else response.writeHead(204).end();
});

/** Server that http://rebound.test has been rebound to. */
let rebound = server;

/** Serves the pages of all origins. Other requests to rebound.test go to the server that its name has been rebound to. */
const pages = await listen((request, response) => {
  if (request.url === '/page') {
    response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>page</title>');
  } else if (request.headers.host !== 'rebound.test' || request.headers.upgrade) {
    // A socket, if this is an upgrade.
    if (request.headers.upgrade) response.destroy();
    else response.writeHead(404).end();
  } else {
    // Host and Origin are those of the browser, as if it had connected to the server.
    const { method, url: path, headers } = request;
    const { hostname, port } = new URL(rebound);
    const forwarded = http.request({ hostname, port, method, path, headers, setHost: false }, (received) => {
      response.writeHead(received.statusCode, received.rawHeaders);
      received.pipe(response);
    });
    forwarded.on('error', () => response.destroy());
    request.pipe(forwarded);
  }
});

const part = { text: 'attack' };
const message = { messageId: 'attack', role: 'ROLE_USER', parts: [part] };
const rpc = (method, params) => JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });

/** A send by each route: its path and its JSON body. */
const SENDS = [
  ['/message:send', JSON.stringify({ message })],
  ['/message:stream', JSON.stringify({ message })],
  ['/acme/message:send', JSON.stringify({ message })],
  ['/rpc', rpc('SendMessage', { message })],
  ['/', rpc('SendMessage', { message })],
  ['/rpc', rpc('message/send', { message: { kind: 'message', messageId: 'a', role: 'user', parts: [{ kind: 'text', ...part }] } })],
  ['/v1/message:send', JSON.stringify({ message: { messageId: 'a', role: 'ROLE_USER', content: [part] } })],
];

/** Encodes a protobuf field with a length below 128. */
const field = (number, content) => [(number << 3) | 2, content.length, ...content];
const bytes = (text) => [...Buffer.from(text)];
const request = field(2, [...field(1, bytes('attack')), 4 << 3, 1, ...field(5, field(1, bytes('attack')))]);
const GRPC = ['/lf.a2a.v1.A2AService/SendMessage', [0, 0, 0, 0, request.length, ...request]];

/**
 * Attacks a server within a page, in all ways that a page has to send a request. Returns what the page could read, by the name
 * of the attack. Runs in the browser, so everything that it uses is inside.
 */
async function attack({ target, taskId, sends, grpc }) {
  const read = {};
  const within = (promise) => Promise.race([promise, new Promise((resolve) => setTimeout(resolve, 5000))]);
  const attempt = async (name, run) => {
    try {
      const found = await within(run());
      if (found) read[name] = found;
    } catch {
      // The browser has blocked it.
    }
  };
  const text = async (response) => ((await response).type === 'opaque' ? '' : `${(await response).status} ${await (await response).text()}`);
  const all = [];
  const add = (name, run) => all.push(attempt(name, run));

  const gets = ['/tasks', `/tasks/${taskId}`, '/extendedAgentCard', '/metrics', '/v1/tasks', `/tasks/${taskId}:subscribe`];
  const [grpcPath, grpcBody] = grpc;
  const binary = Uint8Array.from(grpcBody);
  const base64 = btoa(String.fromCharCode(...grpcBody));
  const cancels = [`/tasks/${taskId}:cancel`, `/v1/tasks/${taskId}:cancel`];

  for (const mode of ['no-cors', 'cors']) {
    for (const credentials of ['omit', 'include']) {
      const post = (path, type, body, headers) => {
        const options = { method: 'POST', mode, credentials, keepalive: credentials === 'include', headers };
        options.body = body === undefined ? undefined : new Blob([body], { type });
        const declared = headers ? 'declared ' : '';
        add(`${mode} ${credentials} ${declared}${type} ${path}`, () => text(fetch(target + path, options)));
      };
      for (const [path, body] of sends) {
        for (const type of ['', 'text/plain', 'application/json', 'application/x-www-form-urlencoded']) post(path, type, body);
        post(path, 'text/plain; application/json', body);
        post(path, 'text/plain', body, { accept: 'application/json', 'content-type': 'application/json' });
      }
      post(grpcPath, 'application/grpc-web+proto', binary);
      post(grpcPath, 'application/grpc-web-text', base64);
      post(grpcPath, 'application/grpc', binary);
      post(grpcPath, 'text/plain', binary);
      // Requests without a body need no content type.
      for (const path of cancels) post(path, 'none');
      for (const path of gets) add(`${mode} ${credentials} GET ${path}`, () => text(fetch(target + path, { mode, credentials })));
      const remove = { method: 'DELETE', mode, credentials };
      add(`${mode} ${credentials} DELETE`, () => text(fetch(`${target}/tasks/${taskId}/pushNotificationConfigs/p`, remove)));
    }
  }

  for (const [path, body] of [...sends, [cancels[0], '']]) {
    for (const type of ['', 'text/plain', 'application/json']) {
      // Fails where the browser does not send it.
      add(`beacon ${type} ${path}`, async () => void navigator.sendBeacon(target + path, new Blob([body], { type })));
    }
    add(`beacon form ${path}`, async () => void navigator.sendBeacon(target + path, new URLSearchParams({ [body]: '' })));
  }

  const loaded = (element) =>
    new Promise((resolve) => {
      element.onload = () => resolve('loaded');
      element.onerror = () => resolve();
      document.body.append(element);
    });
  const frame = (name) => Object.assign(document.createElement('iframe'), { name });
  const documentOf = (frame) => {
    try {
      // An error page of the browser has a document of its own, which is not readable either.
      return frame.contentDocument?.body?.innerText;
    } catch {
      return undefined;
    }
  };

  // A name and a value that are JSON, with the equals sign between them.
  const names = sends.map(([path, body]) => [path, `${body.slice(0, -1)},"x":"`, '"}']);
  for (const [path, name, value] of [...names, [cancels[0], 'a', 'b']]) {
    for (const type of ['text/plain', 'multipart/form-data', 'application/x-www-form-urlencoded']) {
      add(`form ${type} ${path}`, async () => {
        const into = frame(`form ${type} ${path} ${Math.random()}`);
        document.body.append(into);
        const form = document.createElement('form');
        Object.assign(form, { method: 'post', action: target + path, enctype: type, target: into.name });
        form.append(Object.assign(document.createElement('textarea'), { name, value }));
        document.body.append(form);
        const load = new Promise((resolve) => (into.onload = resolve));
        form.submit();
        await within(load);
        return documentOf(into);
      });
    }
  }

  for (const path of ['/.well-known/agent-card.json', '/', '/docs/', ...gets]) {
    const src = target + path;
    add(`img ${path}`, () => loaded(Object.assign(new Image(), { src })));
    add(`script ${path}`, async () => {
      // Frames are numbered properties.
      const names = () => Object.getOwnPropertyNames(window).filter((name) => !/^\d+$/.test(name));
      const known = new Set(names());
      await loaded(Object.assign(document.createElement('script'), { src }));
      return names().filter((name) => !known.has(name)).join();
    });
    add(`style ${path}`, async () => {
      const before = document.styleSheets.length;
      await loaded(Object.assign(document.createElement('link'), { rel: 'stylesheet', href: src }));
      return document.styleSheets.length > before ? [...document.styleSheets].map((sheet) => sheet.cssRules.length).join() : '';
    });
    add(`iframe ${path}`, async () => {
      const into = Object.assign(frame('attack iframe'), { src });
      await within(loaded(into));
      return documentOf(into);
    });
  }

  for (const path of [`/tasks/${taskId}:subscribe`, `/v1/tasks/${taskId}:subscribe`, '/tasks']) {
    for (const withCredentials of [false, true]) {
      add(`EventSource ${path}`, () =>
        new Promise((resolve) => {
          const source = new EventSource(target + path, { withCredentials });
          source.onmessage = ({ data }) => resolve(data, source.close());
          source.onerror = () => resolve(source.close());
          setTimeout(() => source.close(), 5000);
        }));
    }
  }
  for (const path of ['/', '/rpc', '/message:stream']) {
    add(`WebSocket ${path}`, () =>
      new Promise((resolve) => {
        const socket = new WebSocket(target.replace('http', 'ws') + path);
        socket.onopen = () => resolve('open', socket.close());
        socket.onerror = () => resolve();
      }));
  }

  await Promise.all(all);
  // Beacons and forms report no end.
  await new Promise((resolve) => setTimeout(resolve, 500));
  return { read, count: all.length };
}

async function post(url, path, body) {
  const headers = { 'content-type': 'application/json' };
  return (await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })).json();
}

/** Adds a task that is complete and one that waits for input, and returns the second one. */
async function addTasks(url) {
  const send = (text) => post(url, '/message:send', { message: { ...message, messageId: text, parts: [{ text }] } });
  await send('secret');
  return (await send('/ask Which city?')).task;
}

/** Returns all tasks of a server, as a client that is not a browser reads them. */
async function tasks(url) {
  const list = async (path) => (await fetch(url + path)).json();
  const query = '/tasks?pageSize=100&includeArtifacts=true';
  return { own: await list(query), acme: await list(`/acme${query}`) };
}

const browser = await chromium.launch({
  executablePath,
  // The names of the pages are on this machine, and no other host has an address. The check of access from public to local
  // addresses, by which newer browsers may refuse an attack, is off: the server must not depend on it.
  args: [
    `--host-resolver-rules=MAP *.test 127.0.0.1:${pages}, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1`,
    '--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessRespectPreflightResults,HttpsUpgrades',
    '--disable-quic',
  ],
});

/** Opens the page of an origin, and runs a function in it. */
async function inPage(origin, run, argument) {
  const page = await browser.newPage();
  try {
    await page.goto(`${origin}/page`);
    assert.equal(await page.evaluate(() => location.origin), origin);
    const result = await page.evaluate(run, argument);
    const frames = page.frames().slice(1).map((frame) => frame.url());
    return { ...result, frames };
  } finally {
    await page.close();
  }
}

/** Runs the attacks on a server from an origin. */
const attacked = (origin, target, taskId) => inPage(origin, attack, { target, taskId, sends: SENDS, grpc: GRPC });

const open = await addTasks(server);
const openPermissive = await addTasks(permissive);

// Of another site, and of the same site: ports are not part of a site.
for (const origin of ['http://evil.test', `http://127.0.0.1:${pages}`]) {
  await test(`a page of ${origin.replace(/\d+$/, 'another port')} reaches no agent and reads nothing`, async () => {
    const before = await tasks(server);
    const { read, count, frames } = await attacked(origin, server, open.id);
    assert.deepEqual(await tasks(server), before);
    assert.deepEqual(read, {});
    const shown = frames.filter((url) => url.startsWith(server));
    assert.deepEqual(shown, [], 'frames that display a response');
    assert.ok(frames.length > 0);
    return `: ${count} attacks`;
  });
}

await test('a page without an origin reaches no agent and reads nothing', async () => {
  const before = await tasks(server);
  // The documents of sandboxed frames have the origin `null`.
  const sandboxed = async ({ target, body }) => {
    const script = `
      const send = (mode, type) => fetch('${target}/message:send', { method: 'POST', mode, body: new Blob(['${body}'], { type }) })
        .then((response) => response.text()).catch(() => '');
      Promise.all([send('cors', 'application/json'), send('cors', 'text/plain'), send('no-cors', 'text/plain'),
        fetch('${target}/tasks').then((response) => response.text()).catch(() => '')])
        .then((texts) => parent.postMessage(origin + ':' + texts.join(''), '*'));`;
    const frame = Object.assign(document.createElement('iframe'), { srcdoc: `<script>${script}</script>` });
    frame.sandbox.add('allow-scripts');
    const received = new Promise((resolve) => addEventListener('message', ({ data }) => resolve(data)));
    document.body.append(frame);
    return { received: await received };
  };
  const { received } = await inPage('http://evil.test', sandboxed, { target: server, body: SENDS[0][1] });
  assert.equal(received, 'null:');
  assert.deepEqual(await tasks(server), before);
});

await test('a page whose name was rebound to the server reaches no agent and reads no task', async () => {
  const before = await tasks(server);
  rebound = server;
  const { read } = await attacked('http://rebound.test', 'http://rebound.test', open.id);
  assert.deepEqual(await tasks(server), before);
  const readable = Object.entries(read).filter(([name]) => name.includes('cors '));
  assert.ok(readable.length > 50, 'the page reads the errors of its own origin');
  for (const [name, text] of readable) assert.match(text, /^(421 |200 $)/, name);
  for (const [name, text] of Object.entries(read)) assert.ok(!text.includes(open.id) && !text.includes('city'), name);
});

await test('all attacks leave the browser', async () => {
  await attacked('http://evil.test', `http://127.0.0.1:${recorder}`, 'id');
  const has = (expected) =>
    recorded.some((request) => Object.entries(expected).every(([name, value]) => (request[name] ?? '').startsWith(value)));
  for (const expected of [
    { method: 'POST', url: '/message:send', type: 'text/plain', mode: 'no-cors' },
    { method: 'POST', url: '/message:send', type: 'text/plain', mode: 'cors' },
    { method: 'POST', url: '/message:send', type: 'text/plain', mode: 'navigate' },
    { method: 'POST', url: '/message:send', type: 'multipart/form-data', mode: 'navigate' },
    { method: 'POST', url: '/message:send', type: 'application/x-www-form-urlencoded', mode: 'navigate' },
    { method: 'POST', url: '/message:send', type: 'application/x-www-form-urlencoded', mode: 'no-cors' },
    { method: 'POST', url: '/tasks/id:cancel', mode: 'no-cors' },
    { method: 'OPTIONS', url: '/message:send' },
    { method: 'OPTIONS', url: '/lf.a2a.v1.A2AService/SendMessage' },
    { method: 'GET', url: '/tasks/id:subscribe', mode: 'cors' },
    { method: 'GET', url: '/tasks', mode: 'no-cors' },
    { method: 'GET', url: '/tasks', mode: 'navigate' },
    { method: 'GET', url: '/rpc', upgrade: 'websocket' },
  ]) {
    assert.ok(has(expected), JSON.stringify(expected));
  }
  return `: ${recorded.length} requests`;
});

await test('the same attacks from an allowed origin reach the agent and are readable', async () => {
  const before = await tasks(permissive);
  const { read } = await attacked('http://app.test', permissive, openPermissive.id);
  const after = await tasks(permissive);
  const added = after.own.totalSize - before.own.totalSize;
  assert.ok(added >= SENDS.length, `${added} tasks`);
  assert.match(read['cors omit application/json /message:send'], /^200 .*TASK_STATE_COMPLETED/);
  assert.match(read['cors omit application/json /message:stream'], /^200 [^]*data: [^]*TASK_STATE_COMPLETED/);
  assert.match(read['cors omit application/grpc-web+proto /lf.a2a.v1.A2AService/SendMessage'], /^200 [^]*grpc-status: ?0/);
  assert.match(read['cors omit GET /tasks'], /^200 .*city/);
  // Neither the credentials of the browser nor bodies without a JSON content type.
  const unreadable = Object.keys(read).filter((name) => name.startsWith('cors include'));
  assert.deepEqual(unreadable, []);
  assert.ok(!read['cors omit text/plain /message:send'].startsWith('200'));
  return `: ${added} tasks`;
});

await test('the page of an allowed origin reads exposed headers and errors', async () => {
  const { task } = await post(permissive, '/message:send', { message: { ...message, parts: [{ text: '/ask Which city?' }] } });
  const run = async ({ target, body, taskId }) => {
    const headers = { 'content-type': 'application/json', 'a2a-version': '1.0', 'x-request-id': 'page-1' };
    const send = (body) => fetch(`${target}/message:stream`, { method: 'POST', headers, body });
    const found = [];
    const response = await send(body);
    found.push(response.status, response.headers.get('x-request-id'));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    found.push((await reader.read()).value.includes('data: '));
    const invalid = await send('{}');
    found.push(invalid.status, (await invalid.json()).error.status);
    const frame = Uint8Array.of(0, 0, 0, 0, 0);
    const grpc = { method: 'POST', headers: { 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' }, body: frame };
    found.push((await fetch(`${target}/lf.a2a.v1.A2AService/GetTask`, grpc)).headers.get('grpc-status'));
    const source = new EventSource(`${target}/tasks/${taskId}:subscribe`);
    const { data } = await new Promise((resolve, reject) => Object.assign(source, { onmessage: resolve, onerror: reject }));
    source.close();
    found.push(JSON.parse(data).task.id);
    return { found };
  };
  const { found } = await inPage('http://app.test', run, { target: permissive, body: SENDS[0][1], taskId: task.id });
  assert.deepEqual(found, [200, 'page-1', true, 400, 'INVALID_ARGUMENT', '3', task.id]);
});

await test('a page that is not of an allowed origin reaches no agent', async () => {
  const before = await tasks(permissive);
  const { read } = await attacked('http://evil.test', permissive, openPermissive.id);
  assert.deepEqual([await tasks(permissive), read], [before, {}]);
});

await test('a rebound page reads the tasks of a server that accepts any host', async () => {
  rebound = permissive;
  const before = await tasks(permissive);
  const { read } = await attacked('http://rebound.test', 'http://rebound.test', openPermissive.id);
  assert.match(read['cors omit GET /tasks'], /^200 .*city/);
  assert.ok((await tasks(permissive)).own.totalSize > before.own.totalSize);
});

await browser.close();
process.exit(failures > 0 ? 1 : 0);
