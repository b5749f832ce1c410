// Servers, a proxy that removes a path prefix and makes faults, and a page that records everything that must not happen.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { createInterface } from 'node:readline';

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until a function returns something, and returns that. */
export async function until(what, check, timeout = 15_000) {
  const end = Date.now() + timeout;
  let failure = '';
  for (;;) {
    try {
      const found = await check();
      if (found) return found;
      failure = '';
    } catch (error) {
      failure = `: ${error.message}`;
    }
    if (Date.now() > end) throw new Error(`not within ${timeout / 1000} s: ${what}${failure}`);
    await sleep(50);
  }
}

const servers = new Set();

/** A server of this repository. `kill` and `start` restart it at the same address. */
export class Server {
  constructor(program, { args = [], env = {}, store = 'memory' } = {}) {
    Object.assign(this, { program, args, env, store, port: 0 });
  }

  async start() {
    const args = ['serve', '--listen', `127.0.0.1:${this.port}`, '--log-filter', 'off', ...this.args];
    const env = { PATH: process.env.PATH, HOME: process.env.HOME, ...(process.env.CONSOLE_FOLDER && { CONSOLE_FOLDER: process.env.CONSOLE_FOLDER }), A2A_STORE: this.store, ...this.env };
    this.child = spawn(this.program, args, { env, stdio: ['ignore', 'pipe', 'inherit'] });
    servers.add(this.child);
    const lines = createInterface({ input: this.child.stdout });
    const [first] = await Promise.race([once(lines, 'line'), once(this.child, 'exit').then(() => ['the server ended'])]);
    const match = /^listening on http:\/\/127\.0\.0\.1:(\d+)/.exec(first);
    if (!match) throw new Error(`${args.join(' ')}: ${first}`);
    this.port = Number(match[1]);
    this.url = `http://127.0.0.1:${this.port}`;
    return this;
  }

  async kill() {
    const ended = once(this.child, 'exit');
    this.child.kill('SIGKILL');
    await ended;
    servers.delete(this.child);
  }

  /** Calls the API without the browser, and returns the JSON of the response. */
  async json(path, { body, headers, ...options } = {}) {
    const method = body === undefined ? 'GET' : 'POST';
    const response = await fetch(`${this.url}/${path}`, {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: { 'a2a-version': '1.0', ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
      ...options,
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${path}: ${response.status} ${text.slice(0, 300)}`);
    return text ? JSON.parse(text) : {};
  }

  task = (id, headers) => this.json(`tasks/${id}`, { headers });
  /** Sends a message without waiting for the end of its turn. */
  send = async (text, { headers, ...message } = {}) =>
    (await this.json('message:send', {
      body: { message: { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text }], ...message }, configuration: { returnImmediately: true } },
      headers,
    })).task;
}

export function endServers() {
  for (const child of servers) child.kill('SIGKILL');
}

/**
 * Proxy in front of a server that removes a prefix of the path. Members make faults: `stalls` forwards no further bytes,
 * `drops(request)` closes the connection in place of the response, and `respond(request)` may return `[status, headers]`. Only one
 * that `announces` its prefix to the server gets cards with it.
 */
export class Proxy {
  constructor(server, prefix) {
    Object.assign(this, { server, prefix, stalls: false, announces: false, drops: () => false, respond: () => null, requests: [], open: new Set() });
  }

  async start() {
    this.listener = http.createServer((request, response) => this.forward(request, response));
    this.listener.on('connection', (socket) => socket.setNoDelay(true));
    this.listener.listen(0, '127.0.0.1');
    await once(this.listener, 'listening');
    this.origin = `http://127.0.0.1:${this.listener.address().port}`;
    this.page = `${this.origin}${this.prefix}/`;
    return this;
  }

  async forward(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const seen = { method: request.method, url: request.url, headers: request.headers, body: body.toString(), at: Date.now() };
    this.requests.push(seen);
    const made = this.respond(seen);
    if (made) return response.writeHead(made[0], made[1]).end();
    if (!request.url.startsWith(`${this.prefix}/`)) return response.writeHead(404).end();
    const drops = this.drops(seen);
    const { port } = this.server;
    const upstream = http.request({ host: '127.0.0.1', port, method: request.method, path: request.url.slice(this.prefix.length), headers: { ...request.headers, ...(this.announces && this.prefix && { 'x-forwarded-prefix': this.prefix }) } }, (answer) => {
      if (drops) return answer.resume().on('end', () => response.destroy());
      this.open.add(seen);
      response.writeHead(answer.statusCode, answer.headers);
      response.flushHeaders();
      answer.on('data', (chunk) => this.stalls || response.write(chunk));
      answer.on('end', () => this.stalls || response.end());
      // A connection that broke must not look like the end of the response.
      answer.on('error', () => response.destroy());
      answer.on('aborted', () => response.destroy());
      response.on('close', () => {
        this.open.delete(seen);
        upstream.destroy();
      });
    });
    upstream.on('error', () => response.destroy());
    upstream.end(body);
  }

  close() {
    this.listener.closeAllConnections();
    this.listener.close();
  }
}

/** Records violations of the policy, errors, dialogs, and requests to other origins, of a page. */
export class Recorder {
  constructor() {
    this.problems = [];
    this.requests = 0;
  }

  async attach(page, origin) {
    const session = await page.context().newCDPSession(page);
    const add = (problem) => this.problems.push(problem);
    session.on('Network.requestWillBeSent', ({ request: { method, url } }) => {
      this.requests += 1;
      if (!/^(?:data|blob):/.test(url) && new URL(url).origin !== origin) add(`request to another origin: ${method} ${url}`);
    });
    session.on('Network.webSocketCreated', ({ url }) => add(`request to another origin: WebSocket ${url}`));
    session.on('Audits.issueAdded', ({ issue }) => {
      if (issue.code === 'ContentSecurityPolicyIssue') add(`policy: ${JSON.stringify(issue.details)}`);
    });
    session.on('Log.entryAdded', ({ entry }) => {
      // Without the operator API, its status is the question whether the caller may use it.
      if (entry.level === 'error' && !/\/operator\//.test(entry.url ?? '')) add(`${entry.source}: ${entry.text} ${entry.url ?? ''}`);
    });
    page.on('console', (message) => {
      const isNetwork = message.text().startsWith('Failed to load resource');
      if (message.type() === 'error' && !isNetwork) add(`console: ${message.text()}`);
    });
    page.on('pageerror', (error) => add(`exception: ${error.stack}`));
    page.on('dialog', (dialog) => {
      add(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on('frameattached', () => add('frame: a frame was added'));
    page.on('popup', (popup) => add(`popup: ${popup.url()}`));
    for (const domain of ['Network', 'Audits', 'Log']) await session.send(`${domain}.enable`);
    return session;
  }

  /** Returns the problems since the last call, except for those that a test expects. */
  take(expected) {
    const problems = this.problems.filter((problem) => !expected?.test(problem));
    this.problems = [];
    return problems;
  }
}
