// Uses the console in headless Chromium: node console.mjs PROGRAM CHROMIUM DIRECTORY [FILTER]

import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';

import { Server, sleep, until } from './harness.mjs';
import { CORPUS } from './hostile_agent.mjs';
import { end, here, operatorToken, program, receiver, test, within, work } from './session.mjs';

const run = promisify(execFile);

/** Events of a task, in a form of the API: objects with `id` and `data`, until the stream ends or has `count` events. */
async function eventsOf(server, url, { count = Infinity, ...options } = {}) {
  const stop = new AbortController();
  const response = await fetch(`${server.url}/${url}`, { ...options, signal: stop.signal });
  const events = [];
  let rest = '';
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + chunk).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split('\n').map((line) => [line.split(':')[0], line.slice(line.indexOf(':') + 1).trim()]));
      if (fields.data) events.push(fields);
    }
    if (events.length >= count) break;
  }
  stop.abort();
  return events;
}

const textOf = (task) => (task.artifacts ?? []).flatMap(({ parts }) => parts).map(({ text = '' }) => text).join('');
const artifactText = (session) => session.turn.locator('.artifact .prose').allInnerTexts().then((texts) => texts.join(''));
/** Bodies of requests of the page to a path, as JSON. */
const bodies = (session, ending) => session.proxy.requests.filter(({ method, url }) => method === 'POST' && url.endsWith(ending)).map(({ body }) => JSON.parse(body));
const sends = (session) => [...bodies(session, 'message:stream'), ...bodies(session, 'message:send')];

const demo = await new Server(program, { args: ['--limits-body-bytes', '1MiB', '--limits-streams', '1000'] }).start();
/** Prefixes for tests of texts and times, on which the path of the page has no effect. */
const AT_ROOT = [''];

/** A task with a long log, which grows while the first tests run. */
const long = await demo.send('/stream 10200 1');

await test('a message is answered, and a stream grows', demo, {}, async (session) => {
  const echo = await session.sendNew('hello');
  await session.state('completed');
  assert.equal(await artifactText(session), 'hello');
  assert.equal(textOf(await demo.task(echo)), 'hello');
  const stream = await session.sendNew('/stream 10 150');
  const lengths = new Set();
  while (!(await session.turn.locator('header .state', { hasText: 'completed' }).count())) lengths.add((await artifactText(session)).length);
  await until('the text is complete', async () => (await artifactText(session)).trim() === textOf(await demo.task(stream)).trim());
  assert.ok(lengths.size > 3, `${[...lengths]}`);
  assert.equal((await demo.task(stream)).artifacts[0].parts[0].text.match(/chunk/g).length, 10);
});

await test('a question is answered in the same task', demo, {}, async (session) => {
  const id = await session.sendNew('/ask City?');
  await session.state('input required');
  await session.page.getByText(/^Answer to task/).waitFor();
  await session.send('Lisbon');
  await session.reached(id, 'COMPLETED');
  await session.state('completed');
  assert.equal(await session.lastTask(), id);
  assert.equal(sends(session).at(-1).message.taskId, id);
  assert.equal(textOf(await demo.task(id)), 'Lisbon');
});

await test('an answer of another client is shown', demo, {}, async (session) => {
  const taskId = await session.sendNew('/ask City?');
  await session.state('input required');
  const { contextId } = await demo.task(taskId);
  await demo.send('Lisbon', { taskId, contextId });
  await session.state('completed');
  await session.turn.getByText('Lisbon', { exact: true }).first().waitFor();
});

await test('credentials, rejections and failures are shown', demo, {}, async (session) => {
  const id = await session.sendNew('/auth');
  await session.state('auth required');
  await session.page.getByRole('button', { name: 'Continue' }).click();
  await session.reached(id, 'COMPLETED');
  await session.state('completed');
  await session.sendNew('/reject not for me');
  await session.state('rejected');
  await session.turn.getByText('not for me', { exact: true }).last().waitFor();
  await session.sendNew('/fail no such city');
  await session.state('failed');
  await session.turn.getByText('no such city', { exact: true }).last().waitFor();
  const panic = await session.sendNew('/panic');
  await session.state('failed');
  const { errorId } = (await demo.task(panic)).status.message.metadata;
  await session.turn.getByText('the operator finds the cause by it').waitFor();
  await session.turn.getByRole('button', { name: 'Copy error id' }).click();
  await until('the error id is copied', async () => (await session.page.evaluate(() => navigator.clipboard.readText())) === errorId);
});

await test('a tool call is approved or denied, also after a reload', demo, {}, async (session) => {
  for (const [button, approve, result] of [['Approve', true, 'write_file was called.'], ['Deny', false, 'write_file was not called.']]) {
    const id = await session.sendNew('/approve write_file');
    const approval = session.page.getByLabel('Approval of a tool call');
    await approval.waitFor();
    await session.page.reload();
    await approval.waitFor();
    const text = await approval.innerText();
    assert.ok(text.includes('write_file') && text.includes('"path": "notes/a.txt"'), text);
    await approval.getByRole('button', { name: button }).click();
    await session.reached(id, 'COMPLETED');
    await until('the result is shown', async () => (await artifactText(session)) === result);
    const { taskId, parts } = sends(session).at(-1).message;
    assert.deepEqual([taskId, parts.map(({ data }) => data)], [id, [{ approve }]]);
  }
});

await test('files are attached, pasted and dropped', demo, {}, async (session) => {
  const bytes = Buffer.from(Array.from({ length: 70_000 }, (_, index) => (index * 7) % 256));
  const file = { name: 'café "1".png', mimeType: 'image/png', buffer: bytes };
  const add = {
    attached: () => session.page.locator('input[type=file]').setInputFiles(file),
    pasted: () => transfer('paste', '#composer-text'),
    dropped: () => transfer('drop', 'section.composer'),
  };
  const transfer = (type, selector) => session.page.evaluate(([type, selector, base64, name, mimeType]) => {
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(atob(base64), (char) => char.charCodeAt(0))], name, { type: mimeType }));
    const event = type === 'paste' ? new ClipboardEvent(type, { clipboardData: data, bubbles: true, cancelable: true }) : new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector(selector).dispatchEvent(event);
  }, [type, selector, bytes.toString('base64'), file.name, file.mimeType]);
  for (const [way, attach] of Object.entries(add)) {
    await session.goto('#/chat');
    await attach();
    await session.page.locator('.chip').waitFor();
    await session.send(`a file that was ${way}`);
    const id = await session.lastTask();
    const [, part] = sends(session).at(-1).message.parts;
    assert.deepEqual([part.filename, part.mediaType], [file.name, file.mimeType], way);
    assert.ok(Buffer.from(part.raw, 'base64').equals(bytes), way);
    const stored = (await demo.task(id)).history[0].parts[1];
    assert.ok(Buffer.from(stored.raw, 'base64').equals(bytes), way);
  }
});

await test('a message that is too large is kept as a draft', demo, { expects: /status of 413/ }, async (session) => {
  await session.goto('#/chat');
  await session.page.locator('input[type=file]').setInputFiles({ name: 'large.bin', mimeType: 'application/octet-stream', buffer: Buffer.alloc(2 << 20) });
  await session.send('too large');
  await session.page.getByText('limits.body_bytes').waitFor();
  const draft = session.page.locator('#composer-text');
  await until('the draft is kept', async () => (await draft.inputValue()) === 'too large');
  assert.equal(await session.page.locator('.chip').count(), 1);
});

await test('a rejected message is a draft after a reload', demo, { expects: /status of 400/ }, async (session) => {
  const { page } = session;
  await session.goto('#/chat');
  session.proxy.respond = ({ url }) => (url.endsWith('message:stream') ? [400, {}] : null);
  await session.send('rejected');
  await page.getByText('Not sent.').waitFor();
  await page.reload();
  await until('the draft is kept', async () => (await page.locator('#composer-text').inputValue()) === 'rejected');
  assert.equal(await session.turn.count(), 0);
});

await test('an error names a violation once', demo, { expects: /status of 400/ }, async (session) => {
  await session.goto(`#/task/${'x'.repeat(300)}`);
  const error = session.page.getByRole('alert');
  await error.waitFor();
  assert.equal((await error.innerText()).match(/has 300 bytes/g).length, 1);
});

await test('data is checked, and a form returns the types of its schema', demo, {}, async (session) => {
  await session.goto('#/chat');
  await session.page.getByRole('button', { name: '+ Data' }).click();
  const button = session.page.getByRole('button', { name: 'Send', exact: true });
  const data = session.page.getByLabel('Data part (JSON)');
  await data.fill('{"a": }');
  assert.ok(await button.isDisabled());
  await data.fill('{"a": [1, 2.5, null]}');
  await button.click();
  await session.lastTask();
  assert.deepEqual(sends(session).at(-1).message.parts[0].data, { a: [1, 2.5, null] });

  const id = await session.sendNew('/form');
  const form = session.page.getByLabel('Form', { exact: true });
  await form.getByLabel('City').fill('São Paulo');
  await form.getByLabel('Arrival').fill('2030-02-28');
  await form.getByLabel('Guests').fill('3');
  await form.getByLabel('Room').selectOption({ label: 'suite' });
  await form.getByLabel('Breakfast').check();
  await form.getByRole('button', { name: 'Send answer' }).click();
  const task = await session.reached(id, 'COMPLETED');
  assert.deepEqual(task.artifacts[0].parts[0].data, { city: 'São Paulo', arrival: '2030-02-28', guests: 3, room: 'suite', breakfast: true });
});

await test('a task is canceled, and a second cancel shows the reason of the server', demo, { expects: /status of 4(?:00|09)/ }, async (session) => {
  const confirm = async () => {
    await session.turn.getByRole('button', { name: 'Cancel task' }).click();
    return session.page.getByRole('dialog').getByRole('button', { name: 'Cancel task' });
  };
  const id = await session.sendNew('/slow 60');
  await session.state('working');
  const button = await confirm();
  const started = Date.now();
  await button.click();
  await session.state('canceled');
  const took = within(1000, 'canceled after', Date.now() - started);
  await session.reached(id, 'CANCELED', 1000);

  const second = await session.sendNew('/slow 2');
  await session.state('working');
  const late = await confirm();
  await session.reached(second, 'COMPLETED');
  await late.click();
  const error = session.turn.getByRole('alert');
  await error.waitFor();
  const { message } = JSON.parse(await (await fetch(`${demo.url}/tasks/${second}:cancel`, { method: 'POST', headers: { 'a2a-version': '1.0', 'content-type': 'application/json' }, body: '{}' })).text()).error;
  assert.ok((await error.innerText()).includes(message), await error.innerText());
  return took;
});

await test('a stream goes on after a reload', demo, {}, async (session) => {
  const id = await session.sendNew('/stream 1000 5');
  await until('the text grows', async () => (await artifactText(session)).length > 200);
  await session.page.reload();
  await session.reached(id, 'COMPLETED', 30_000);
  await session.state('completed');
  const expected = textOf(await demo.task(id)).trim();
  await until('the text is complete', async () => (await artifactText(session)).trim() === expected);
  const logged = await eventsOf(demo, `tasks/${id}:subscribe?lastEventId=${id}.0.0`, { headers: { 'a2a-version': '1.0' } });
  await session.goto(`#/task/${id}`);
  await session.page.getByText('whole log', { exact: true }).waitFor();
  const facts = await session.page.locator('dl.facts').innerText();
  assert.ok(facts.includes(`events\n${logged.length.toLocaleString('en')}`), `${logged.length}: ${facts}`);
});

await test('a lost response is retried with the same key', demo, { expects: /ERR_EMPTY_RESPONSE|ERR_INCOMPLETE|ERR_CONNECTION/ }, async (session) => {
  await session.goto('#/chat');
  const { totalSize } = await demo.json('tasks?pageSize=1');
  const isSend = ({ url }) => /message:(?:send|stream)$/.test(url);
  // Browsers repeat a request once by themselves if the connection was used before.
  session.proxy.drops = isSend;
  await session.send('lost once');
  const retry = session.page.getByRole('button', { name: 'Retry with the same key' });
  await retry.waitFor();
  session.proxy.drops = () => false;
  await retry.click();
  await session.state('completed');
  const keys = session.proxy.requests.filter(isSend).map(({ headers }) => headers['idempotency-key']);
  assert.ok(keys.length >= 2 && keys[0] && keys.every((key) => key === keys[0]), `${keys}`);
  assert.equal((await demo.json('tasks?pageSize=1')).totalSize, totalSize + 1);
  // The draft of a message that has arrived is not sent again.
  const draft = session.page.locator('#composer-text');
  session.proxy.drops = isSend;
  await session.send('lost twice');
  await retry.waitFor();
  assert.equal(await draft.inputValue(), 'lost twice');
  session.proxy.drops = () => false;
  await retry.click();
  await until('the composer is empty', async () => (await draft.inputValue()) === '');
  await session.page.getByRole('link', { name: '+ New' }).click();
  await session.page.getByText('Send a message to begin a conversation.').waitFor();
  assert.equal(await draft.inputValue(), '');
  // To send the draft again is a retry too.
  session.proxy.drops = isSend;
  await session.send('lost thrice');
  await retry.waitFor();
  session.proxy.drops = () => false;
  await draft.press('Control+Enter');
  await session.state('completed');
  assert.equal((await demo.json('tasks?pageSize=1')).totalSize, totalSize + 3);
});

await test('the navigation returns to the conversation', demo, {}, async (session) => {
  const { page } = session;
  await session.goto('#/chat');
  const { description, securitySchemes } = await demo.json('.well-known/agent-card.json');
  await page.getByText(description, { exact: true }).waitFor();
  // The demo agent needs no credentials.
  assert.equal(securitySchemes, undefined);
  assert.equal(await page.getByRole('button', { name: 'Sign in' }).count(), 0);
  await page.getByRole('button', { name: '/help' }).click();
  await until('the command is in the composer', async () => (await page.locator('#composer-text').inputValue()) === '/help');
  await session.sendNew('hello');
  await session.state('completed');
  const address = page.url();
  assert.match(address, /#\/chat\/./);
  await page.getByRole('link', { name: 'Tasks', exact: true }).click();
  await page.getByText(/tasks · ● live/).waitFor();
  assert.match(await page.getByLabel('Changed since').innerText(), /^Any time/);
  await page.getByRole('link', { name: 'Chat', exact: true }).click();
  await session.state('completed');
  assert.equal(page.url(), address);
  await page.locator('body').press('Escape');
  await page.keyboard.press('3');
  await page.locator('h1').waitFor();
  await page.keyboard.press('1');
  await session.state('completed');
  assert.equal(page.url(), address);
});

await test('a busy server is asked again as late as it wants', demo, { expects: /status of 503/ }, async (session) => {
  const id = (await demo.send('/slow 30')).id;
  const times = [];
  session.proxy.respond = ({ url, at }) => {
    if (!url.includes(':subscribe')) return null;
    times.push(at);
    return times.length === 1 ? [503, { 'retry-after': '3' }] : null;
  };
  await session.goto(`#/task/${id}`);
  await until('the stream is opened again', () => times.length > 1);
  assert.ok(times[1] - times[0] >= 2990, `${times[1] - times[0]} ms`);
  await demo.json(`tasks/${id}:cancel`, { body: {} });
});

// These two wait for most of their time: the tests below run meanwhile.
const hidden = test('a stream is closed while the tab is hidden', demo, {}, async (session) => {
  const id = (await demo.send('/slow 60')).id;
  await session.goto(`#/task/${id}`);
  const streams = () => [...session.proxy.open].filter(({ url }) => url.includes(':subscribe')).length;
  await until('the stream is open', () => streams() === 1);
  const show = (state) => session.page.evaluate((state) => {
    Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, state);
  await show('hidden');
  await until('the stream is closed', () => streams() === 0, 30_000);
  await show('visible');
  await until('the stream is open again', () => streams() === 1);
  await demo.json(`tasks/${id}:cancel`, { body: {} });
  await session.page.locator('h1 .state', { hasText: 'canceled' }).waitFor();
});

const stalled = test('a proxy that forwards nothing is noticed', demo, { expects: /ERR_/ }, async (session) => {
  const id = (await demo.send('/slow 100')).id;
  await session.goto(`#/task/${id}`);
  const opened = () => session.proxy.requests.filter(({ url }) => url.includes(':subscribe')).length;
  await until('the stream is open', () => session.proxy.open.size > 0 && opened() === 1);
  session.proxy.stalls = true;
  const started = Date.now();
  await until('the stream is opened again', () => opened() > 1, 60_000);
  session.proxy.stalls = false;
  await demo.json(`tasks/${id}:cancel`, { body: {} });
  await session.page.locator('h1 .state', { hasText: 'canceled' }).waitFor();
  return `after ${Math.round((Date.now() - started) / 1000)} s`;
});

const durable = await new Server(program, { store: `sqlite:${work}/restart.db` }).start();

await test('a killed server loses nothing', durable, { expects: /ERR_|status of 5/ }, async (session) => {
  const waiting = (await durable.send('/ask City?')).id;
  const id = await session.sendNew('/stream 2000 5');
  await until('the text grows', async () => (await artifactText(session)).length > 500);
  await durable.kill();
  await session.turn.getByText(/Reconnecting/).waitFor();
  await durable.start();
  await session.reached(id, 'FAILED', 30_000);
  await session.state('failed');
  const task = await durable.task(id);
  await until('the text is that of the server', async () => (await artifactText(session)).trim() === textOf(task).trim());
  const logged = await eventsOf(durable, `tasks/${id}:subscribe?lastEventId=${id}.0.0`, { headers: { 'a2a-version': '1.0' } });
  assert.deepEqual(logged.map((event) => Number(event.id.split('.')[2])), logged.map((_, index) => index + 1));
  await session.goto(`#/task/${waiting}`);
  await session.page.getByRole('link', { name: 'Answer in the chat' }).click();
  await session.page.getByText(/^Answer to task/).waitFor();
  await session.send('Lisbon');
  await session.reached(waiting, 'COMPLETED');
  return `${logged.length} events`;
});

await test('a long log is one row', demo, { prefixes: AT_ROOT }, async (session) => {
  const { id } = long;
  await session.reached(id, 'COMPLETED', 120_000);
  const { length } = await eventsOf(demo, `tasks/${id}:subscribe?lastEventId=${id}.0.0`, { headers: { 'a2a-version': '1.0' } });
  await session.goto('#/settings');
  const started = Date.now();
  await session.goto(`#/task/${id}`);
  await session.page.getByText('whole log', { exact: true }).waitFor({ timeout: 30_000 });
  const replayed = within(3000, `replay of ${length} events`, Date.now() - started);
  assert.ok((await session.page.locator('table.events tbody tr').count()) < 10);
  await session.cdp.send('Performance.enable');
  await session.page.evaluate(() => globalThis.gc?.());
  const { metrics } = await session.cdp.send('Performance.getMetrics');
  const heap = metrics.find(({ name }) => name === 'JSHeapUsedSize').value;
  assert.ok(heap < 100e6, `${heap} bytes`);
  return `${replayed}, heap ${Math.round(heap / 1e6)} MB (bound 100 MB)`;
});

await test('a large artifact is shortened', demo, { prefixes: AT_ROOT }, async (session) => {
  const { id } = await demo.send('/stream 10 0 1000000');
  const task = await session.reached(id, 'COMPLETED', 60_000);
  const preview = session.page.getByRole('button', { name: 'Show all' });
  const begun = Date.now();
  await session.goto(`#/task/${id}/result`);
  await preview.waitFor({ timeout: 30_000 });
  const opened = Date.now() - begun;
  await session.page.getByText('whole log', { exact: true }).waitFor({ timeout: 30_000 });
  await session.page.getByRole('link', { name: 'Timeline' }).click();
  await preview.waitFor({ state: 'detached' });
  const started = Date.now();
  await session.page.getByRole('link', { name: 'Result' }).click();
  await preview.waitFor();
  const shown = within(500, 'preview', Date.now() - started);
  assert.ok((await session.page.locator('.prose').first().innerText()).length <= 66_000);
  const [download] = await Promise.all([session.page.waitForEvent('download'), session.page.getByRole('button', { name: 'Download text' }).click()]);
  const saved = readFileSync(await download.path());
  assert.ok(saved.length >= 10e6, `${saved.length} bytes`);
  assert.ok(saved.equals(Buffer.from(textOf(task))), `${saved.length} bytes`);
  return `${shown}, with the load of the page and the task ${opened} ms`;
});

const crowded = await new Server(program, { args: ['--limits-tasks', '20000'] }).start();
let made = 0;

/** Makes tasks in batches. Every fiftieth one fails. */
async function crowd(count) {
  const send = (index) => ({ jsonrpc: '2.0', id: index, method: 'SendMessage', params: { message: { messageId: `m${index}`, role: 'ROLE_USER', parts: [{ text: index % 50 === 7 ? '/fail on purpose' : `number ${index}` }] } } });
  for (const last = made + count; made < last; made += 50) await crowded.json('rpc', { body: Array.from({ length: 50 }, (_, index) => send(made + index)) });
}

await test('ten thousand tasks are a list', crowded, { prefixes: AT_ROOT }, async (session) => {
  await crowd(10_000);
  const total = made.toLocaleString('en');
  const isLoaded = () => session.page.getByText(`${total} tasks · ● live`).waitFor({ timeout: 60_000 });
  const started = Date.now();
  await session.goto('#/tasks');
  await isLoaded();
  const loaded = within(5000, `${total} tasks`, Date.now() - started);
  const rows = () => session.page.locator('.list-row[data-index]').count();
  assert.ok((await rows()) <= 60, `${await rows()} rows`);
  const scroll = () => session.page.evaluate(async () => {
    const list = document.querySelector('.list-body');
    const times = [];
    let before = performance.now();
    for (let step = 0; step < 60; step += 1) {
      list.scrollTop += 700;
      await new Promise(requestAnimationFrame);
      times.push(performance.now() - before);
      before = performance.now();
    }
    return times.sort((a, b) => a - b)[57];
  });
  // Other programs only make frames longer: the best of several runs is the time of the page.
  const runs = [];
  for (let run = 0; run < 5; run += 1) runs.push(await scroll());
  const frame = within(50, '95 % of frames', Math.min(...runs));

  const failed = `${made / 50} of ${total} tasks`;
  await session.goto('#/tasks?state=TASK_STATE_FAILED');
  await session.page.getByRole('button', { name: 'Failed', pressed: true }).waitFor();
  await session.goto('#/tasks');
  await session.page.getByRole('button', { name: 'Failed' }).click();
  await session.page.getByText(failed).waitFor();
  assert.match(session.page.url(), /#\/tasks\?state=failed/);
  await session.page.reload();
  await session.page.getByText(failed).waitFor({ timeout: 60_000 });

  await session.goto('#/tasks');
  await isLoaded();
  await session.page.locator('[data-index="3"] a').focus();
  const focused = () => session.page.evaluate(() => [document.activeElement.textContent, Math.round(document.activeElement.getBoundingClientRect().top)]);
  const before = await focused();
  await crowd(100);
  await session.page.getByRole('button', { name: /^100 new/ }).waitFor();
  const after = await focused();
  assert.deepEqual(after, before);
  return `${loaded}, ${frame}`;
});

writeFileSync(path.join(work, 'hostile.toml'), `
[exec]
command = ["${process.execPath}", "${here}/hostile_agent.mjs"]
format = "json_lines"
[card]
name = ${JSON.stringify(CORPUS[1])}
description = ${JSON.stringify(CORPUS[4])}
skills = [${CORPUS.map((text, index) => `{ id = "s${index}", name = ${toml(text)}, description = ${toml(text)}, tags = [${toml(text)}], examples = [${toml(text)}] }`).join(',\n  ')}]
`);
/** Quotes a text as TOML. */
function toml(text) {
  return JSON.stringify(text).replace(/[\u007f-\u009f]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
const hostile = await new Server(program, { args: ['--config', path.join(work, 'hostile.toml')], env: { NODE_NO_WARNINGS: '1' } }).start();

await test('hostile texts are shown as text', hostile, { prefixes: AT_ROOT }, async (session) => {
  const { page } = session;
  await session.goto('#/chat');
  const ids = [];
  for (const [index] of CORPUS.entries()) ids.push((await hostile.send(`${index}`)).id);
  const failed = (await hostile.send('1 fail')).id;
  const asked = (await hostile.send('1 ask')).id;
  for (const id of ids) await session.reached(id, 'COMPLETED', 60_000);
  await session.reached(asked, 'INPUT_REQUIRED', 60_000);
  const check = async (where) => {
    const found = await page.evaluate(() => ({
      attacked: window.attacked ?? null,
      elements: document.querySelectorAll('script:not([src$="console/app.js"]), iframe, object, embed, svg, base, meta[http-equiv], link:not([rel=icon], [href="console/app.css"]), form[action], style').length,
      images: [...document.images].filter((image) => !image.src.startsWith('blob:')).length,
      links: [...document.links].map((link) => link.protocol).filter((protocol) => !['http:', 'https:', 'mailto:'].includes(protocol)),
      handlers: [...document.querySelectorAll('*')].flatMap((element) => element.getAttributeNames()).filter((name) => name.startsWith('on')),
    }));
    assert.deepEqual(found, { attacked: null, elements: 0, images: 0, links: [], handlers: [] }, where);
    assert.match(await page.title(), /·/, where);
  };
  /** The form in which a text is shown: what is invisible as an escape. */
  const shown = (text) => text.replaceAll('\u202E', '\\u202E').replaceAll('\u0000', '\\0').replaceAll('\u001b', '\\x1b').replaceAll('\u0007', '\\u0007');
  for (const [index, id] of ids.entries()) {
    await session.goto(`#/task/${id}/result`);
    for (const [tab, content] of Object.entries({ result: '.artifact', timeline: 'table.events tbody tr', wire: '.wire .detail pre' })) {
      await page.getByRole('link', { name: new RegExp(`^${tab}$`, 'i') }).click();
      await page.locator(content).first().waitFor();
      if (tab === 'result') {
        await page.locator('h1 .state', { hasText: 'completed' }).waitFor();
        const text = await page.locator('.artifact .prose').first().textContent();
        assert.equal(text, shown(CORPUS[index]), `text ${index}`);
        assert.ok((await page.locator('.artifact .caption').first().textContent()).includes(shown(CORPUS[index])), `name ${index}`);
      }
      await check(`${tab} of ${JSON.stringify(CORPUS[index])}`);
    }
  }
  for (const hash of [`#/task/${failed}`, `#/task/${asked}`, '#/tasks', '#/chat', '#/card', '#/card?raw=1.0', '#/settings', `#/task/${encodeURIComponent(CORPUS[1])}`, `#/chat/${encodeURIComponent(CORPUS[1])}`]) {
    await session.goto(hash);
    await sleep(300);
    await check(hash);
  }
  const name = await page.locator('header.top').textContent();
  assert.ok(name.includes(CORPUS[1]), name);
  session.recorder.take(/status of 404/);

  // With Markdown, links are those with a scheme that is allowed.
  await page.evaluate(() => localStorage.setItem('a2a-preferences', '{"markdown":true}'));
  for (const index of [1, 6, 21, 22, 23, 24, 30]) {
    await session.goto(`#/task/${ids[index]}/result`);
    await page.locator('.artifact').first().waitFor();
    await check(`Markdown of ${CORPUS[index]}`);
  }
});

await test('files of HTML are downloaded, and URLs are not loaded', hostile, {}, async (session) => {
  const { page } = session;
  await page.addInitScript(() => {
    window.types = [];
    const create = URL.createObjectURL;
    URL.createObjectURL = (blob) => {
      window.types.push(blob.type);
      return create.call(URL, blob);
    };
  });
  for (const index of [0, 3]) {
    const { id } = await hostile.send(`${index}`);
    await session.reached(id, 'COMPLETED', 30_000);
    await session.goto(`#/task/${id}/result`);
    const before = page.url();
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download', exact: true }).first().click()]);
    assert.equal(readFileSync(await download.path(), 'utf8'), CORPUS[index]);
    assert.equal(page.url(), before);
    assert.deepEqual(await page.evaluate(() => [...new Set(window.types)]), ['application/octet-stream']);
    assert.equal(page.frames().length, 1);
  }
});

/** Returns what a button of the page copies. */
async function copied(page, click) {
  await page.evaluate(() => navigator.clipboard.writeText(''));
  await click();
  return until('the text is copied', () => page.evaluate(() => navigator.clipboard.readText()));
}

/** Returns the events that the Wire tab shows. */
async function shownEvents(page, form) {
  await page.getByRole('button', { name: form, exact: true }).click();
  const status = page.locator('.stack > p[role=status]').last();
  await until(`${form} is read`, async () => /^\d/.test(await status.innerText()) && !/reading|^0 /.test(await status.innerText()));
  const count = Number((await status.innerText()).split(' ')[0].replaceAll(',', ''));
  const events = [];
  for (let index = 0; index < count; index += 1) {
    await page.locator(`.wire .list-row[data-index="${index}"] button`).click();
    events.push(await page.locator('.wire .detail pre').innerText());
  }
  return events;
}

const protoc = ['protoc', path.join(here, 'protoc')].find((name) => {
  try {
    return execFileSync(name, ['--version']);
  } catch {
    return null;
  }
});

await test('the wire is what the API sends, in each form', demo, {}, async (session) => {
  const parts = [{ text: '/ask City?' }, { raw: Buffer.from([0, 255, 10, 34]).toString('base64'), filename: 'a.bin', mediaType: 'application/octet-stream' }, { url: 'https://example.com/a', mediaType: 'text/plain' }, { data: { number: 1.5, list: [true, null, 'text "quoted"\n'], nested: { deep: {} } } }];
  const { id, contextId } = await demo.send('', { parts });
  await session.reached(id, 'INPUT_REQUIRED');
  await demo.send('Lisbon', { taskId: id, contextId, parts: [{ text: 'Lisbon ü 😀' }] });
  await session.reached(id, 'COMPLETED');
  await session.goto(`#/task/${id}/wire`);
  const { page } = session;
  const cursor = { 'last-event-id': `${id}.0.0`, accept: 'text/event-stream' };
  const headers = (version) => ({ ...cursor, 'a2a-version': version });
  const rpc = (method, version) => ({ method: 'POST', headers: { ...headers(version), 'content-type': 'application/json' }, body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { id } }) });
  const forms = {
    '1.0 JSON': [`tasks/${id}:subscribe`, { headers: headers('1.0') }],
    '1.0 JSON-RPC': ['rpc', rpc('SubscribeToTask', '1.0')],
    '0.3 JSON-RPC': ['rpc', rpc('tasks/resubscribe', '0.3')],
    '0.3 REST': [`v1/tasks/${id}:subscribe`, { headers: headers('0.3') }],
  };
  for (const [form, [url, options]] of Object.entries(forms)) {
    const expected = [];
    // Streams of 0.3 end with each turn.
    for (;;) {
      const events = await eventsOf(demo, url, options);
      if (events.length === 0) break;
      expected.push(...events.map(({ data }) => JSON.parse(data)));
      options.headers['last-event-id'] = events.at(-1).id;
    }
    const found = (await shownEvents(page, form)).map((text) => JSON.parse(text));
    assert.ok(expected.length > 3, form);
    assert.deepEqual(found, expected, form);
  }

  const frame = Buffer.from([0, 0, 0, 0, id.length + 2, 18, id.length, ...Buffer.from(id)]);
  const response = await fetch(`${demo.url}/lf.a2a.v1.A2AService/SubscribeToTask`, { method: 'POST', headers: { ...cursor, 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' }, body: frame });
  const bytes = Buffer.from(await response.arrayBuffer());
  const messages = [];
  for (let at = 0; at < bytes.length;) {
    const end = at + 5 + bytes.readUInt32BE(at + 1);
    if (bytes[at] === 0) messages.push(bytes.subarray(at + 5, end));
    at = end;
  }
  const texts = await shownEvents(page, 'gRPC text');
  assert.equal(texts.length, messages.length);
  assert.ok(texts[0].startsWith('task {\n'), texts[0]);
  if (!protoc) return 'without protoc';
  for (const [index, text] of texts.entries()) {
    const encoded = execFileSync(protoc, ['--deterministic_output', '--encode=lf.a2a.v1.StreamResponse', '-I', process.env.PROTO, 'lf/a2a/v1/a2a.proto'], { input: text });
    assert.ok(encoded.equals(messages[index]), `event ${index}:\n${text}`);
  }
  return `${texts.length} events, encoded by protoc`;
});

const TOKEN = 'seeded-token-0123456789';
const guarded = await new Server(program, { args: ['--trusted-proxies', '127.0.0.1'], env: { A2A_TOKEN: TOKEN } }).start();
const authorization = { authorization: `Bearer ${TOKEN}` };

/** Signs in by the dialog. */
async function signIn(page, token, { isKept = false } = {}) {
  const dialog = page.getByRole('dialog');
  await dialog.waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.type), 'password');
  await dialog.locator('input[type=password]').fill(token);
  if (isKept) await dialog.getByRole('checkbox').check();
  await dialog.getByRole('button', { name: 'Sign in' }).click();
}

await test('a token is asked for, and is nowhere in the page', guarded, { expects: /status of 401/ }, async (session) => {
  const { page } = session;
  await session.goto('#/tasks');
  await signIn(page, 'a-wrong-token-0123456789');
  await page.getByText('The credentials were rejected').waitFor();
  await page.getByRole('dialog').getByText(/Bearer/).first().waitFor();
  await signIn(page, TOKEN, { isKept: true });
  await page.getByText(/tasks · ● live/).waitFor();
  await session.goto('#/chat');
  await session.send('hello');
  await session.state('completed');
  const id = await session.lastTask();
  for (const hash of ['#/tasks', `#/task/${id}`, `#/task/${id}/wire`, '#/card', '#/settings']) {
    await session.goto(hash);
    await sleep(200);
    const places = await page.evaluate(() => [location.href, JSON.stringify(localStorage), document.documentElement.outerHTML, ...[...document.querySelectorAll('input, textarea')].map(({ value }) => value)].join('\n'));
    assert.ok(!places.includes(TOKEN), hash);
  }
  assert.ok(session.proxy.requests.every(({ url }) => !url.includes(TOKEN)));
  assert.ok(session.proxy.requests.every(({ url, headers }) => !headers.authorization || !/\/console\/(?!review)/.test(url)));
  await page.getByRole('button', { name: 'Forget credentials' }).first().click();
  assert.equal(await page.evaluate(() => JSON.stringify(sessionStorage)), '{}');
  await session.goto(`#/task/${id}`);
  await page.getByRole('dialog').waitFor();
  assert.ok(!(await page.locator('body').innerText()).includes('hello'));
});

const TOOLS = process.env.TOOLS ?? '';
const hasGrpcurl = existsSync(path.join(TOOLS, 'grpcurl')) || process.env.PATH.split(':').some((folder) => existsSync(path.join(folder, 'grpcurl')));
const MESSAGES = [`it's "quoted" \\ and\nnew lines`, '$(touch /tmp/attacked) `id` $HOME !x', '😀 ü ‮ %s'];

await test('copied calls run in a shell', guarded, { expects: /status of 401/ }, async (session) => {
  const { page } = session;
  // The program asks the card for the URL of the agent.
  session.proxy.announces = true;
  await session.goto('#/tasks');
  await signIn(page, TOKEN, { isKept: true });
  await page.getByText(/tasks · ● live/).waitFor();
  const forms = ['curl', ...(hasGrpcurl ? ['grpcurl'] : []), 'python', 'a2a command'];
  for (const text of MESSAGES) {
    const { id } = await guarded.send(text, { headers: authorization });
    await session.goto(`#/task/${id}`);
    await page.locator('h1 .state', { hasText: 'completed' }).waitFor();
    for (const form of forms) {
      await page.getByText('Copy the call').first().click();
      const call = await copied(page, () => page.locator('.menu[open]').getByRole('button', { name: form, exact: true }).click());
      assert.ok(!call.includes(TOKEN) && call.includes('A2A_TOKEN'), call);
      const before = (await guarded.json('tasks?pageSize=1', { headers: authorization })).totalSize;
      // The same key would return the first task.
      // The proxy has no HTTP/2.
      const direct = form === 'grpcurl' ? call.replace(new URL(session.proxy.origin).host, new URL(guarded.url).host) : call;
      const fresh = direct.replace(/"messageId(\\*)":(\s*)(\\*)"[^"\\]+/, `"messageId$1":$2$3"${crypto.randomUUID()}`);
      const env = { PATH: `${path.dirname(program)}:${TOOLS}:${process.env.PATH}`, A2A_TOKEN: TOKEN, HOME: work };
      const [shell, ...words] = form === 'python' ? ['python3', '-c', fresh] : ['bash', '-c', fresh];
      await run(shell, words, { env });
      const { tasks, totalSize } = await guarded.json('tasks?pageSize=1&historyLength=1', { headers: authorization });
      assert.equal(totalSize, before + 1, `${form}: ${call}`);
      assert.equal(tasks[0].history[0].parts[0].text, text, `${form}: ${call}`);
      await page.keyboard.press('Escape');
    }
  }
  return forms.join(', ');
});

const tokens = path.join(work, 'tokens.json');
const newToken = (name, ...more) => execFileSync(program, ['token', '--file', tokens, 'new', name, ...more], { encoding: 'utf8', env: { PATH: process.env.PATH } }).match(/a2a_\S+/)[0];
const ada = newToken('ada');
const bob = newToken('bob');
writeFileSync(path.join(work, 'agents.toml'), `
[[agents]]
name = "root"
exec.command = "cat"
[[agents]]
name = "geo"
exec.command = "cat"
card.name = "Geo"
[[agents]]
name = "secret"
exec.command = "cat"
card.name = "Secret"
scopes = ["secret"]
`);
const shared = await new Server(program, { args: ['--config', path.join(work, 'agents.toml')], env: { A2A_AUTH_TOKENS: tokens } }).start();

await test('each caller and each agent has tasks of its own', shared, { expects: /status of 40[13]/ }, async (session) => {
  const { page } = session;
  await session.goto('#/tasks');
  await signIn(page, ada, { isKept: true });
  const picker = page.getByLabel('Agent', { exact: true });
  await picker.waitFor();
  const names = (await picker.locator('option').allInnerTexts()).map((name) => name.trim());
  assert.ok(names.includes('Geo') && !names.includes('Secret'), `${names}`);
  await picker.selectOption({ label: 'Geo' });
  await session.send('for Geo');
  await session.state('completed');
  assert.match(session.proxy.requests.findLast(({ url }) => /message:/.test(url)).url, /\/geo\/message:/);
  await page.getByRole('link', { name: 'Tasks' }).click();
  await page.getByText('for Geo').first().waitFor();
  await page.locator('.top .menu summary').click();
  await page.getByRole('button', { name: 'Forget credentials' }).first().click();
  await signIn(page, bob, { isKept: true });
  await page.getByText('0 tasks · ● live').waitFor();
  assert.ok(!(await page.locator('body').innerText()).includes('for Geo'));
});

writeFileSync(path.join(work, 'card.json'), JSON.stringify({ name: 'Geo', description: 'Maps.', version: '1', capabilities: {}, defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'], skills: [{ id: 'a', name: '', description: 'a', tags: [] }, { id: 'a', name: 'b', description: 'b', tags: [] }] }));
const incomplete = await new Server(program, { args: ['--card-file', path.join(work, 'card.json')] }).start();

await test('problems of the card are those of the program', incomplete, {}, async (session) => {
  const { stdout } = await run(program, ['card', 'validate', incomplete.url, '-o', 'json'], { env: { PATH: process.env.PATH } }).catch((error) => error);
  const { problems } = JSON.parse(stdout);
  await session.goto('#/card');
  const rows = session.page.getByLabel('Problems').locator('tbody tr');
  await rows.first().waitFor();
  const found = await rows.evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  for (const { path: at, problem, remedy, versions } of problems) {
    assert.ok(found.some((row) => JSON.stringify(row) === JSON.stringify([at, problem, remedy, versions.join(', ')])), `${at}: ${JSON.stringify(found)}`);
  }
  assert.ok(problems.length > 0);
});

await test('questions, approvals, cancels and lists need no pointer', demo, { expects: /status of 4/ }, async (session) => {
  const { page } = session;
  const hasVisibleFocus = () => page.evaluate(() => {
    const style = getComputedStyle(document.activeElement);
    return document.activeElement !== document.body && (style.outlineStyle !== 'none' || style.boxShadow !== 'none');
  });
  /** Presses Tab until the focus is on a button or a link with a name. */
  const tabTo = (name) => until(`the focus is on ${name}`, async () => {
    await page.keyboard.press('Tab');
    return name.test(await page.evaluate(() => document.activeElement.textContent.trim()));
  }, 20_000);
  await session.goto('#/card');
  await page.locator('h1').waitFor();
  await page.keyboard.press('n');
  await until('the composer has the focus', () => page.evaluate(() => document.activeElement.id === 'composer-text'));
  await page.keyboard.type('/ask City?');
  await page.keyboard.press('Control+Enter');
  await page.getByText(/^Answer to task/).waitFor();
  await page.locator('#composer-text').focus();
  await page.keyboard.type('Lisbon');
  await page.keyboard.press('Control+Enter');
  await session.state('completed');

  await page.keyboard.press('Escape');
  await page.keyboard.press('n');
  await until('the composer is empty', () => page.evaluate(() => document.activeElement.id === 'composer-text'));
  await page.keyboard.type('/approve write_file');
  await page.keyboard.press('Control+Enter');
  await page.getByLabel('Approval of a tool call').waitFor();
  await page.locator('body').press('Escape');
  await tabTo(/^Approve$/);
  assert.ok(await hasVisibleFocus(), 'the focus is visible');
  await page.keyboard.press('a');
  await session.state('completed');

  await page.keyboard.press('Escape');
  await page.keyboard.press('n');
  await sleep(200);
  await page.keyboard.type('/slow 60');
  await page.keyboard.press('Control+Enter');
  await session.state('working');
  await page.locator('body').press('Escape');
  await tabTo(/^Cancel task$/);
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await tabTo(/^Cancel task$/);
  await page.keyboard.press('Enter');
  await session.state('canceled');
  assert.equal(await page.getByRole('dialog').count(), 0);
  await until('the focus returns', () => page.evaluate(() => document.activeElement !== document.body));
  await page.locator('body').press('Escape');
  await tabTo(/^\?$/);
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await page.keyboard.press('Escape');
  await until('the focus returns to the button', () => page.evaluate(() => document.activeElement.textContent.trim() === '?'));

  await page.locator('body').press('Escape');
  await page.keyboard.press('2');
  await page.getByText(/tasks · ● live/).waitFor();
  await page.keyboard.press('j');
  await page.keyboard.press('j');
  await until('a row has the focus', () => page.evaluate(() => document.activeElement.classList.contains('row-focus')));
  assert.ok(await hasVisibleFocus(), 'the focus in the list is visible');
  await page.keyboard.press('Enter');
  await page.locator('dl.facts').waitFor();
});

const webhook = `${receiver.url}/hook?secret=query`;
const asAda = { authorization: `Bearer ${newToken('owner-of-webhooks', '--owner', 'ada', '--scope', 'all')}` };
const asHostile = { authorization: `Bearer ${newToken('hostile', '--owner', CORPUS[1], '--scope', 'all')}` };
const operated = await new Server(program, {
  store: `sqlite:${work}/operated.db`,
  args: ['--push-enabled', '--push-allow', receiver.url],
  env: { A2A_AUTH_TOKENS: tokens },
}).start();

await test('the token of the start opens the views of the operator', operated, { expects: /status of 40[13]/ }, async (session) => {
  const { page } = session;
  const task = await operated.send('/ask City?', { headers: asAda });
  const slow = [];
  for (let index = 0; index < 3; index += 1) slow.push((await operated.send('/slow 60', { headers: asAda })).id);
  await page.goto(`${session.proxy.page}#operator=${operatorToken('operated')}`);
  await page.getByRole('link', { name: 'Status' }).waitFor();
  assert.ok(!page.url().includes(operatorToken('operated')), page.url());
  await page.getByRole('link', { name: 'Status' }).click();
  assert.equal(await page.getByRole('dialog').count(), 0);
  const turns = page.getByRole('meter', { name: /turns/ }).first();
  await until('three turns are in use', async () => (await turns.getAttribute('aria-valuenow')) === '3');
  for (const id of slow) await operated.json(`tasks/${id}:cancel`, { body: {}, headers: asAda });
  await session.goto('#/tasks');
  await page.getByText('0 tasks · ○ not readable').waitFor();
  assert.equal(await page.getByText('No tasks yet.').count(), 0);
  await page.getByRole('link', { name: 'Tasks', exact: true }).click();
  const row = page.locator('.list-row[data-index]', { hasText: task.id.slice(-6) });
  assert.ok((await row.innerText()).includes('ada'));
  await row.getByRole('link').click();
  await page.locator('table.events tbody tr').first().waitFor();
  const text = await page.locator('main').innerText();
  assert.ok(text.includes('City?') && /waited|queued/.test(text), text);

  const foreign = await operated.send('hello', { headers: asHostile });
  await session.goto('#/tasks?all=1');
  const hostileRow = page.locator('.list-row[data-index]', { hasText: foreign.id.slice(-6) });
  assert.ok((await hostileRow.innerText()).includes(CORPUS[1]));
  await hostileRow.getByRole('link').click();
  await page.locator('dl.facts dd', { hasText: CORPUS[1] }).waitFor();
  assert.equal(await page.evaluate(() => window.attacked ?? document.images.length), 0);
});

await test('a delivery is retried while the server runs', operated, { expects: /status of 40[13]/ }, async (session) => {
  const { page } = session;
  receiver.status = 503;
  receiver.events = 0;
  const { task } = await operated.json('message:send', {
    headers: asAda,
    body: { message: { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text: 'for a webhook' }] }, configuration: { taskPushNotificationConfig: { url: webhook, token: 'secret-of-the-webhook' } } },
  });
  await page.goto(`${session.proxy.page}#operator=${operatorToken('operated')}`);
  await page.getByRole('link', { name: 'Push' }).waitFor();
  await session.goto('#/push');
  const row = page.locator('tbody tr', { hasText: task.id.slice(-6) });
  await until('the attempt has failed', async () => /^waiting\b.*\t[1-9]\d*\tthe receiver returned 503/s.test(await row.innerText()));
  const text = await page.locator('main').innerText();
  for (const secret of ['secret=query', 'secret-of-the-webhook']) assert.ok(!text.includes(secret), text);
  receiver.status = 200;
  const started = Date.now();
  await row.getByRole('button', { name: 'Retry' }).click();
  await until('the events arrive', () => receiver.events > 0);
  const took = within(2000, 'delivered after', Date.now() - started);
  await until('the delivery is done', async () => /^idle\b.*\t0\t/s.test(await row.innerText()));

  receiver.status = 400;
  receiver.events = 0;
  const refused = await operated.json('message:send', {
    headers: asAda,
    body: { message: { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text: 'refused' }] }, configuration: { taskPushNotificationConfig: { url: webhook } } },
  });
  await page.getByRole('button', { name: 'dead', exact: true }).click();
  const dead = page.locator('tbody tr', { hasText: refused.task.id.slice(-6) });
  await until('the delivery is given up', async () => /^dead\b/.test(await dead.innerText()));
  receiver.status = 200;
  const all = page.getByRole('button', { name: 'Retry all dead' });
  await all.click();
  await page.getByRole('dialog').getByRole('button', { name: 'Retry all' }).click();
  await until('the events arrive', () => receiver.events > 0);
  await page.getByText('No delivery is dead.').waitFor();
  assert.ok(await all.isDisabled());
  return took;
});

await test('the operator sees why a task of another owner failed', operated, { expects: /status of 40[13]/ }, async (session) => {
  const { page } = session;
  const { id } = await operated.send('/panic', { headers: asAda });
  const { errorId } = (await until('the task has failed', async () => {
    const { status } = await operated.task(id, asAda);
    return status.state === 'TASK_STATE_FAILED' && status;
  })).message.metadata;
  await page.goto(`${session.proxy.page}#operator=${operatorToken('operated')}`);
  await page.getByRole('link', { name: 'Push' }).waitFor();
  await session.goto('#/tasks?all=1&state=failed');
  await page.locator('.list-row[data-index]', { hasText: id.slice(-6) }).getByRole('link').click();
  await page.locator('h1 .state', { hasText: 'failed' }).waitFor();
  const facts = ['owner\nada', 'caller owner-of-webhooks', 'http 1.0', 'attempt 1', 'reason panic', errorId];
  await until('the facts are shown', async () => {
    const text = await page.locator('dl.facts').innerText();
    return facts.every((fact) => text.includes(fact));
  });
  const turns = page.getByLabel('Turns');
  await turns.getByText(/ran \d/).waitFor();
  await turns.locator('.state', { hasText: 'failed' }).waitFor();
  assert.ok((await turns.innerText()).includes(errorId));
  await page.getByText('operator', { exact: true }).waitFor();
  for (const tab of ['Result', 'Timeline']) {
    await page.getByRole('link', { name: tab, exact: true }).click();
    assert.equal(await page.getByRole('button', { name: 'Copy error id' }).count(), 1, tab);
  }
  assert.equal(await copied(page, () => page.getByRole('button', { name: 'Copy command' }).click()), `a2a admin error ${errorId}`);

  // The forms of the events are those of the operator API, also for a task that the caller does not own.
  await page.getByRole('link', { name: 'Wire', exact: true }).click();
  const headers = { authorization: `Bearer ${operatorToken('operated')}` };
  for (const [form, name] of [['1.0 JSON', '1.0'], ['0.3 JSON', '0.3']]) {
    const { events } = await operated.json(`operator/tasks/${id}/events?form=${name}`, { headers });
    assert.deepEqual((await shownEvents(page, form)).map((text) => JSON.parse(text)), events.map(({ wire }) => wire), form);
  }
  assert.match((await shownEvents(page, 'gRPC text'))[0], /^task \{\n/);
});

const restarted = await new Server(program, { store: `sqlite:${work}/restarted.db`, env: { A2A_AUTH_TOKENS: tokens } }).start();

await test('an operator token of an earlier start is dropped', restarted, { expects: /ERR_|status of 401/ }, async (session) => {
  const { page, proxy } = session;
  const kept = () => page.evaluate(() => sessionStorage.getItem('a2a-operator'));
  const open = async () => {
    await page.goto('about:blank');
    await page.goto(`${proxy.page}#operator=${operatorToken('restarted')}`);
    await page.getByRole('link', { name: 'Push' }).waitFor();
  };
  await open();
  const old = operatorToken('restarted');
  assert.equal(await kept(), JSON.stringify(old));
  await restarted.kill();
  await restarted.start();
  assert.notEqual(operatorToken('restarted'), old);
  await page.reload();
  await until('the token is dropped', async () => (await kept()) === null);
  const first = proxy.requests.length;
  await page.reload();
  await page.locator('header.top').waitFor();
  await until('the status is read again', () => proxy.requests.slice(first).some(({ url }) => url.endsWith('operator/status')));
  assert.equal(await page.getByRole('link', { name: 'Push' }).count(), 0);
  assert.ok(proxy.requests.slice(first).every(({ headers }) => !headers.authorization));
  await open();
});

await test('a dead server is shown as such, and its status is dropped', restarted, { expects: /ERR_|status of 401/ }, async (session) => {
  const { page, proxy } = session;
  await page.goto(`${proxy.page}#operator=${operatorToken('restarted')}`);
  const header = page.locator('header.top [role=status]');
  const ready = page.getByText('✓ ready');
  await page.getByRole('link', { name: 'Status' }).click();
  await ready.waitFor();
  await header.getByText('connected').waitFor();
  await page.getByText('Limits in use').waitFor();
  await restarted.kill();
  await header.getByText('offline').waitFor();
  await ready.waitFor({ state: 'detached' });
  await restarted.start();
  await header.getByText(/connected|sign in/).waitFor();
  await page.getByText('The operator URL is of an earlier start of the server').waitFor();
  assert.equal(await page.getByRole('alert').count(), 1);
  assert.equal(await page.getByText('Limits in use').count(), 0);
  const asked = () => proxy.requests.filter(({ url, headers }) => url.endsWith('operator/status') && headers.authorization).length;
  const before = asked();
  await sleep(3500);
  assert.equal(asked(), before, 'requests with the old token');
});

const renamed = new Server(program);
let name = 0;

await test('the card of a restarted server is read', renamed, { expects: /ERR_/ }, async (session) => {
  const { page } = session;
  const restart = async () => {
    renamed.args = ['--card-name', `agent ${name += 1}`];
    await renamed.start();
  };
  if (name === 0) await restart();
  await session.goto('#/card');
  const shown = [page.locator('h1'), page.locator('header.top')];
  for (const place of shown) await place.getByText(`agent ${name}`).waitFor();
  await renamed.kill();
  await page.locator('header.top').getByText('offline').waitFor();
  await restart();
  for (const place of shown) await place.getByText(`agent ${name}`).waitFor();
});

await test('screen readers hear of states, not of chunks', demo, {}, async (session) => {
  await session.goto('#/chat');
  await session.page.evaluate(() => {
    window.heard = [];
    const live = document.getElementById('announcements');
    new MutationObserver(() => window.heard.push(live.textContent)).observe(live, { childList: true, characterData: true, subtree: true });
  });
  await session.send('/stream 50 10');
  await session.state('completed');
  await sleep(100);
  const heard = await session.page.evaluate(() => window.heard);
  assert.ok(heard.some((text) => /completed/.test(text)), `${heard}`);
  assert.ok(heard.every((text) => !/chunk/.test(text)) && heard.length < 10, `${heard}`);
});

/** Shows that the recorder notices what it is for. */
await test('the policy blocks scripts, HTML and other hosts', demo, { expects: /./ }, async (session) => {
  await session.goto('#/chat');
  const outcome = await session.page.evaluate(async () => {
    const attempt = (body) => {
      try {
        body();
        return 'done';
      } catch (error) {
        return error.name;
      }
    };
    const script = document.createElement('script');
    return {
      html: attempt(() => { document.body.innerHTML = '<b>x</b>'; }),
      script: attempt(() => { script.textContent = 'window.attacked = 1'; }),
      fetched: await fetch('http://127.0.0.1:9/').then(() => 'done', () => 'blocked'),
    };
  });
  assert.deepEqual(outcome, { html: 'TypeError', script: 'TypeError', fetched: 'blocked' });
  await until('the violations are recorded', () => session.recorder.problems.filter((problem) => problem.startsWith('policy')).length >= 3);
});

await Promise.all([hidden, stalled]);
await end();
