// Uses the pages of a server in headless Chromium: node pages.mjs URL CHROMIUM DIRECTORY
// Prints a line for each test, which scripts/browser counts, and writes screenshots to the directory.

import assert from 'node:assert/strict';
import path from 'node:path';

import { chromium } from 'playwright-core';

const [server, executablePath, directory] = process.argv.slice(2);
const METHODS = ['get', 'put', 'post', 'delete', 'options', 'head', 'patch', 'trace'];

/** Requests of the page, as `METHOD URL`, except `data:` URLs. */
const requests = [];
/** Violations of the Content-Security-Policy, errors in the console, and uncaught exceptions. */
const problems = [];
let failures = 0;

async function test(name, run) {
  try {
    console.log(`ok ${name}${(await run()) ?? ''}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED ${name}\n${error.stack}`.replaceAll('\n', '\n    '));
  }
}

/** Records all requests and problems of a page by the Chrome DevTools protocol. */
async function record(page) {
  const session = await page.context().newCDPSession(page);
  const add = (method, url) => url.startsWith('data:') || requests.push(`${method} ${url}`);
  session.on('Network.requestWillBeSent', ({ request }) => add(request.method, request.url));
  session.on('Network.webSocketCreated', ({ url }) => add('WebSocket', url));
  session.on('Audits.issueAdded', ({ issue }) => {
    if (issue.code === 'ContentSecurityPolicyIssue') problems.push(JSON.stringify(issue.details));
  });
  session.on('Log.entryAdded', ({ entry }) => {
    // Without the operator API, its status is the question of the console whether the caller may use it.
    if (entry.level === 'error' && !/\/operator\//.test(entry.url ?? '')) problems.push(`${entry.source}: ${entry.text} ${entry.url ?? ''}`);
  });
  page.on('console', (message) => {
    const isNetwork = message.text().startsWith('Failed to load resource');
    if (message.type() === 'error' && !isNetwork) problems.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => problems.push(`exception: ${error.message}`));
  for (const domain of ['Network', 'Audits', 'Log']) await session.send(`${domain}.enable`);
}

const fetchJson = async (url) => (await fetch(new URL(url, server))).json();

/** Returns the operations of an OpenAPI document: id, method and path. */
const operations = (document) =>
  Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => [item[method].operationId, method.toUpperCase(), path]),
  );

/** Returns the operations that Swagger UI lists. */
const listedOperations = (page) =>
  page.locator('.opblock').evaluateAll((blocks) =>
    blocks.map((block) => [
      block.id.split('-').at(-1),
      block.querySelector('.opblock-summary-method').textContent,
      block.querySelector('.opblock-summary [data-path]').dataset.path,
    ]),
  );

/** Executes an operation with the example of its request, and returns the status and the body of the response. */
async function tryOut(page, operationId) {
  const block = page.locator(`.opblock[id$="-${operationId}"]`);
  await block.locator('.opblock-summary-control').click();
  await block.getByRole('button', { name: 'Try it out' }).click();
  await block.getByRole('button', { name: 'Execute' }).click();
  const response = block.locator('.live-responses-table .response').first();
  const status = await response.locator('.response-col_status').innerText();
  const body = await response.locator('.highlight-code pre').first().innerText();
  await response.scrollIntoViewIfNeeded();
  return { status, body: JSON.parse(body) };
}

/** Calls an RPC over gRPC-Web within the page: returns the headers, messages and trailers of the response. */
function callGrpcWeb(page, method, contentType, message) {
  // Runs in the browser, so everything that it uses is inside.
  const call = async ([method, contentType, message]) => {
    const isText = contentType.includes('-text');
    const frame = Uint8Array.from([0, 0, 0, 0, message.length, ...message]);
    const response = await fetch(`/lf.a2a.v1.A2AService/${method}`, {
      method: 'POST',
      headers: { 'content-type': contentType, 'x-grpc-web': '1', 'x-user-agent': 'a2a-browser/1' },
      body: isText ? btoa(String.fromCharCode(...frame)) : frame,
    });
    let bytes = new Uint8Array(await response.arrayBuffer());
    if (isText) {
      // Parts of the body may be encoded and padded one by one.
      const groups = new TextDecoder().decode(bytes).match(/.{4}/g) ?? [];
      bytes = Uint8Array.from(groups.map(atob).join(''), (char) => char.charCodeAt(0));
    }
    const result = { status: response.status, headers: Object.fromEntries(response.headers), messages: [] };
    while (bytes.length > 0) {
      const end = 5 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
      const content = bytes.subarray(5, end);
      if (bytes[0] === 0x80) result.trailers = new TextDecoder().decode(content);
      else result.messages.push([...content]);
      bytes = bytes.subarray(end);
    }
    return result;
  };
  return page.evaluate(call, [method, contentType, message]);
}

/** Encodes a protobuf field with a length below 128. */
const field = (number, content) => [(number << 3) | 2, content.length, ...content];
const bytes = (text) => [...Buffer.from(text)];

/** Encodes a `SendMessageRequest` with a text. */
function sendMessageRequest(text) {
  const role = [4 << 3, 1];
  return field(2, [...field(1, bytes('browser')), ...role, ...field(5, field(1, bytes(text)))]);
}

const browser = await chromium.launch({
  executablePath,
  // No other host has an address, so nothing is sent to others whatever a page requests.
  args: ['--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--disable-quic'],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 1000 } });
page.setDefaultTimeout(20_000);
await record(page);
const screenshot = (name) => page.screenshot({ path: path.join(directory, `${name}.png`) });

await test('the console names the agent, and links to the API documentation', async () => {
  const card = await fetchJson('/.well-known/agent-card.json');
  await page.goto(server);
  await page.locator('header', { hasText: card.name }).waitFor();
  await screenshot('home');
  await page.goto(`${server}/#/settings`);
  await page.getByRole('link', { name: 'API documents' }).click();
  await page.waitForURL(`${server}/docs/`);
});

const documents = { '1.0': '/docs/v1.0.json', '0.3': '/docs/v0.3.json' };
let taskId;
for (const [version, url] of Object.entries(documents)) {
  await test(`/docs/ lists each operation of ${version}`, async () => {
    const expected = operations(await fetchJson(url));
    await page.goto(`${server}/docs/?urls.primaryName=${version}`);
    await page.locator('.opblock').first().waitFor();
    assert.equal(await page.locator('.topbar select option:checked').innerText(), version);
    assert.deepEqual((await listedOperations(page)).sort(), expected.sort());
    assert.ok(expected.some(([id]) => id === 'SendMessage'));
    await screenshot(`docs-${version}`);
    return `: ${expected.length} operations`;
  });
  await test(`/docs/ sends a message in ${version}`, async () => {
    const { status, body } = await tryOut(page, 'SendMessage');
    await screenshot(`sent-${version}`);
    assert.equal(status, '200', JSON.stringify(body));
    const kind = Object.keys(body).join();
    assert.ok(['task', 'message'].includes(kind), JSON.stringify(body));
    taskId ??= body.task?.id;
    return `: response 200 with a ${kind}`;
  });
}

for (const contentType of ['application/grpc-web+proto', 'application/grpc-web-text']) {
  await test(`a page calls the service over ${contentType}`, async () => {
    const streamed = await callGrpcWeb(page, 'SendStreamingMessage', contentType, sendMessageRequest('hello'));
    assert.equal(streamed.status, 200);
    assert.ok(streamed.messages.length > 1, JSON.stringify(streamed));
    assert.match(streamed.trailers, /^grpc-status: ?0\r$/m);

    const found = await callGrpcWeb(page, 'GetTask', contentType, field(2, bytes(taskId)));
    const id = field(1, bytes(taskId));
    assert.deepEqual(found.messages.map((task) => task.slice(0, id.length)), [id]);

    const missing = await callGrpcWeb(page, 'GetTask', contentType, field(2, bytes('missing')));
    assert.equal(missing.headers['grpc-status'], '5', JSON.stringify(missing));
    assert.ok(missing.headers['grpc-status-details-bin']);
    return `: ${streamed.messages.length} events, a task and an error`;
  });
}

await test('no request leaves the origin', () => {
  for (const request of ['GET /', 'GET /docs/swagger-ui-bundle.js', 'GET /docs/v1.0.json', 'POST /message:send']) {
    assert.ok(requests.includes(request.replace(' ', ` ${server}`)), `${request} is not recorded`);
  }
  assert.deepEqual(requests.filter((request) => new URL(request.split(' ')[1]).origin !== server), []);
  return `: ${requests.length} requests`;
});

await test('no violation of the Content-Security-Policy and no error', () => assert.deepEqual(problems, []));

// Shows that the two tests before this one can fail.
await test('the Content-Security-Policy blocks requests to other origins', async () => {
  const isBlocked = (url) => fetch(url).then(() => false, () => true);
  assert.ok(await page.evaluate(isBlocked, 'http://127.0.0.1:9/'));
  assert.ok(problems.some((problem) => problem.includes('connect-src')), problems);
});

await browser.close();
process.exit(failures > 0 ? 1 : 0);
