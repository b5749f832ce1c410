// Tests with a page of the console in headless Chromium, for console.mjs and views.mjs: PROGRAM CHROMIUM DIRECTORY [FILTER]
// A test runs at `/` and, if the path of the page matters, behind a proxy that removes the prefix /pre/fix. A violation of the policy
// of the page, an error, a dialog, or a request to another origin fails the test in which it happens. Prints a line for each test,
// which scripts/browser counts, and writes screenshots to the directory.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { chromium } from 'playwright-core';

import { endServers, Proxy, Recorder, sleep, until } from './harness.mjs';

export const [program, executablePath, directory, filter = ''] = process.argv.slice(2);
export const here = path.dirname(new URL(import.meta.url).pathname);
export const work = mkdtempSync(path.join(tmpdir(), 'a2a-console-'));
let failures = 0;

const browser = await chromium.launch({
  executablePath,
  args: ['--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--disable-quic', '--js-flags=--expose-gc'],
});

/** A page of the console with what it needs for a test. */
class Session {
  constructor(server, proxy, context, page, recorder, cdp) {
    Object.assign(this, { server, proxy, context, page, recorder, cdp });
  }

  async goto(hash) {
    await this.page.goto('about:blank');
    await this.page.goto(`${this.proxy.page}${hash}`);
    await this.page.locator('header.top').waitFor();
  }

  /** Sends a message from the composer. */
  async send(text) {
    await this.page.locator('#composer-text').fill(text);
    await this.page.locator('#composer-text').press('Control+Enter');
  }

  /** Sends a message in a new conversation, and returns the id of its task. */
  async sendNew(text) {
    await this.goto('#/chat');
    await this.send(text);
    return this.lastTask();
  }

  get turn() {
    return this.page.locator('article.turn').last();
  }

  async lastTask() {
    const link = this.turn.getByRole('link', { name: 'Open' });
    await link.waitFor();
    const hash = await link.getAttribute('href');
    return decodeURIComponent(hash.split('/')[2].split('?')[0]);
  }

  /** Waits until the last task of the conversation shows a state. */
  state = (word) => this.turn.locator('header .state', { hasText: word }).waitFor();

  /** Waits until the server has a task in a state. */
  reached = (id, state, timeout) =>
    until(`${id} is ${state}`, async () => {
      const task = await this.server.task(id);
      return task.status.state === `TASK_STATE_${state}` && task;
    }, timeout);

  /** Makes a picture of the whole page, also of what its main part scrolls. */
  async screenshot(name) {
    const { width, height } = this.page.viewportSize();
    const whole = await this.page.evaluate(() => {
      const main = document.querySelector('main');
      return innerHeight + (main ? main.scrollHeight - main.clientHeight : 0);
    });
    await this.page.setViewportSize({ width, height: Math.min(whole, 3000) });
    await this.page.screenshot({ path: path.join(directory, `${name}.png`), fullPage: true });
    await this.page.setViewportSize({ width, height });
  }
}

/** Opens the console of a server. */
async function open(server, prefix, contextOptions) {
  const proxy = await new Proxy(server, prefix).start();
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...contextOptions });
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: proxy.origin });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const recorder = new Recorder();
  const cdp = await recorder.attach(page, proxy.origin);
  return new Session(server, proxy, context, page, recorder, cdp);
}

/** Runs a test with a console of a server. `expects`: problems that the test causes. `prefixes`: of the paths of the page. */
export async function test(name, server, { expects, prefixes = ['', '/pre/fix'], ...options }, body) {
  for (const prefix of prefixes) {
    const title = `console${prefix}: ${name}`;
    if (!title.includes(filter)) continue;
    let session;
    try {
      session = await open(server, prefix, options);
      const result = await body(session);
      await sleep(50);
      assert.deepEqual(session.recorder.take(expects), [], 'problems');
      assert.ok(session.recorder.requests > 0, 'no request was recorded');
      console.log(`ok ${title}${typeof result === 'string' ? `: ${result}` : ''}`);
    } catch (error) {
      failures += 1;
      const problems = session?.recorder.take().join('\n') ?? '';
      await session?.screenshot(`failed-${title.replaceAll(/\W+/g, '-')}`).catch(() => {});
      console.log(`FAILED ${title}\n${error.stack}\n${problems}`.replaceAll('\n', '\n    '));
    } finally {
      session?.proxy.close();
      await session?.context.close();
    }
  }
}

/**
 * Bounds of what a user waits for are those of an idle machine. A check fails above the double, since other programs may run at
 * the same time; the output has the figures.
 */
const SLACK = 2;

/** Checks a time in milliseconds against its bound, and returns both for the output. */
export function within(bound, what, ms) {
  const text = `${what} ${Math.round(ms)} ms (bound ${bound} ms)`;
  assert.ok(ms <= bound * SLACK, text);
  return text;
}

/** Receiver of push notifications: refuses or accepts at fixed paths, and has a settable status at others. */
export const receiver = { status: 503, events: 0 };
const listener = http.createServer((request, response) => {
  request.resume().on('end', () => {
    if (receiver.status === 200) receiver.events += 1;
    response.writeHead({ '/delivered': 200, '/refused': 400 }[request.url] ?? receiver.status).end();
  });
});
listener.listen(0, '127.0.0.1');
await once(listener, 'listening');
receiver.url = `http://127.0.0.1:${listener.address().port}`;

/** Returns the operator token of a server with a database. */
export const operatorToken = (name) => JSON.parse(readFileSync(`${work}/${name}.db.operator`, 'utf8')).token;

export async function end() {
  await browser.close();
  listener.close();
  endServers();
  process.exit(failures > 0 ? 1 : 0);
}
