// Calls of the server: paths, credentials, errors, streams with resumption, and gRPC-Web frames.

/** Base URL of the server: the folder above that of this file, so that a path prefix of a proxy is kept. */
export const base = new URL('../', import.meta.url);

/** Longest time without a byte on a stream before it counts as broken. The server sends a comment at least every 15 s. */
const WATCHDOG_MS = 45_000;

const MAX_BACKOFF_MS = 15_000;

/** A response with an error status, or a response that did not arrive (`status` 0): nothing is known about the effect of the request. */
export class ApiError extends Error {
  constructor(message, { status = 0, reason = null, fields = [], retryAfter = null, challenge = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { status, reason, fields, retryAfter, challenge, requestId });
  }
}

/** True if the caller lacks the credentials for a call. */
export const isRefused = (error) => [401, 403].includes(error?.status);

/** Returns the value of `Retry-After` in milliseconds, or `null`. */
export function retryAfterMs(value, now = Date.now()) {
  if (!value) return null;
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - now;
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}

/** Details of an error: a list in HTTP+JSON and in JSON-RPC. */
const detailsOf = (error) => [error?.details, error?.data].find(Array.isArray) ?? [];
export const reasonOf = (error) => detailsOf(error).find((detail) => detail?.reason)?.reason;

/** Converts an error of HTTP+JSON, JSON-RPC or plain text. */
export function errorOf(status, headers, text) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // The text is the message.
  }
  const error = body?.error ?? body;
  const fields = detailsOf(error).flatMap((detail) => detail?.fieldViolations ?? []);
  const message = typeof error?.message === 'string' ? error.message : text.slice(0, 500) || `status ${status}`;
  return new ApiError(message, {
    status,
    reason: reasonOf(error) ?? error?.status ?? null,
    fields,
    retryAfter: retryAfterMs(headers.get('retry-after')),
    challenge: headers.get('www-authenticate'),
    requestId: headers.get('x-request-id'),
  });
}

/**
 * Calls of one agent, or of the operator API. `credentials()` returns headers; `onUnauthorized` is told of each 401, and
 * `onReach(isReached)` of each response, or that none arrived.
 */
export class Api {
  constructor({ path = './', credentials = () => ({}), onUnauthorized = () => {}, onReach = () => {} } = {}) {
    this.root = new URL(path, base);
    this.credentials = credentials;
    this.onUnauthorized = onUnauthorized;
    this.onReach = onReach;
  }

  /** Returns the URL of a path below the agent. A path such as `message:send` would be a URL of its own without the `./`. */
  url(path) {
    return new URL(`./${path}`, this.root);
  }

  /** Sends a request. Returns the response if its status is 2xx, and throws `ApiError` otherwise. */
  async fetch(path, { method = 'GET', headers = {}, body, signal } = {}) {
    const extra = this.credentials();
    let response;
    try {
      response = await fetch(this.url(path), { method, body, signal, cache: 'no-store', credentials: 'omit', redirect: 'error', headers: { ...extra, ...headers } });
    } catch (error) {
      if (signal?.aborted) throw error;
      this.onReach(false);
      throw new ApiError('no response from the server');
    }
    this.onReach(true);
    if (response.ok) return response;
    const error = errorOf(response.status, response.headers, await response.text().catch(() => ''));
    if (error.status === 401) this.onUnauthorized(error);
    throw error;
  }

  /** Sends a request with a JSON body, if any, and returns the JSON of the response. */
  async json(path, { body, headers, ...options } = {}) {
    const isJson = body !== undefined && typeof body !== 'string';
    const response = await this.fetch(path, {
      ...options,
      method: options.method ?? (body === undefined ? 'GET' : 'POST'),
      body: isJson ? JSON.stringify(body) : body,
      headers: { 'a2a-version': '1.0', ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
    });
    try {
      const text = await response.text();
      return text ? JSON.parse(text) : {};
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new ApiError('the response was interrupted or is not JSON', { status: 0 });
    }
  }
}

/** Decodes server-sent events from text that arrives in pieces. */
export class SseDecoder {
  constructor(onEvent) {
    this.onEvent = onEvent;
    /** Pieces of a line without its end: joined once, since a line of many megabytes arrives in many pieces. */
    this.pieces = [];
    this.event = { id: null, name: '', data: [] };
  }

  push(text) {
    this.pieces.push(text);
    if (!/[\r\n]/.test(text) && !this.pieces.at(-2)?.endsWith('\r')) return;
    // A line feed after a carriage return may be in the next piece.
    const lines = this.pieces.join('').split(/\r\n|\n|\r(?!$)/);
    this.pieces = [lines.pop()];
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === '') {
      const { id, name, data } = this.event;
      this.event = { id, name: '', data: [] };
      if (data.length > 0) this.onEvent({ id, name: name || 'message', data: data.join('\n') });
      return;
    }
    if (line.startsWith(':')) return;
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') this.event.data.push(value);
    else if (field === 'event') this.event.name = value;
    else if (field === 'id' && !value.includes('\0')) this.event.id = value;
  }
}

/** Reads the server-sent events of a response until its end. Rejects if nothing arrives for `timeout` milliseconds. */
export async function readSse(response, onEvent, { timeout = WATCHDOG_MS, onActivity = () => {} } = {}) {
  const decoder = new SseDecoder(onEvent);
  const utf8 = new TextDecoder('utf-8');
  await readBytes(response, (bytes) => {
    onActivity();
    decoder.push(utf8.decode(bytes, { stream: true }));
  }, timeout);
  decoder.push(utf8.decode());
}

/** Reads the body of a response in pieces. Rejects if nothing arrives for `timeout` milliseconds. */
export async function readBytes(response, onBytes, timeout = WATCHDOG_MS) {
  const reader = response.body.getReader();
  let timer;
  try {
    for (;;) {
      const silence = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new ApiError(`nothing received for ${timeout / 1000} s`)), timeout);
      });
      const { done, value } = await Promise.race([reader.read(), silence]);
      clearTimeout(timer);
      if (done) return;
      onBytes(value);
    }
  } finally {
    clearTimeout(timer);
    reader.cancel().catch(() => {});
  }
}

/** Request of JSON-RPC. */
export const rpcBody = (method, params) => JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });

export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/** Returns the wait before an attempt: what the server asks for, or exponential backoff with jitter. */
export function backoffMs(attempt, retryAfter, random = Math.random) {
  const backoff = Math.min(MAX_BACKOFF_MS, 250 * 2 ** attempt) * (0.75 + random() / 2);
  return Math.max(retryAfter ?? 0, backoff);
}

/** True for an error after which the same request can succeed later. */
const isTransient = (error) => !error.status || [408, 429].includes(error.status) || error.status >= 500;

/**
 * Follows a stream over interruptions. `open(signal)` returns a response; `onEvent` gets each event; `isEnd()` tells whether the
 * end of the response is the end of the stream; `onState` gets `live`, `reconnecting` (with the error) and `ended`. Rejects with
 * an error that does not go away, such as 404.
 */
export async function follow({ open, onEvent, isEnd, onState = () => {}, signal, timeout = WATCHDOG_MS }) {
  for (let attempt = 0; ; attempt += 1) {
    const stop = new AbortController();
    let failure = null;
    try {
      const response = await open(AbortSignal.any([stop.signal, ...(signal ? [signal] : [])]));
      onState('live');
      await readSse(response, (event) => {
        attempt = 0;
        onEvent(event);
      }, { timeout });
    } catch (error) {
      if (signal?.aborted) throw error;
      failure = error;
    } finally {
      stop.abort();
    }
    if (failure && !isTransient(failure)) throw failure;
    if (isEnd()) {
      onState('ended');
      return;
    }
    onState('reconnecting', failure);
    await sleep(backoffMs(attempt, failure?.retryAfter), signal);
  }
}

export function grpcFrame(message) {
  const frame = new Uint8Array(5 + message.length);
  new DataView(frame.buffer).setUint32(1, message.length);
  frame.set(message, 5);
  return frame;
}

/** Splits the messages of gRPC-Web from bytes that arrive in pieces. Trailers are skipped. */
export class GrpcDecoder {
  constructor(onMessage) {
    this.onMessage = onMessage;
    this.pieces = [];
    this.length = 0;
    this.needed = 5;
  }

  push(bytes) {
    this.pieces.push(bytes);
    this.length += bytes.length;
    if (this.length < this.needed) return;
    let input = this.pieces.length === 1 ? bytes : concat(this.pieces, this.length);
    for (;;) {
      if (input.length < 5) {
        this.needed = 5;
        break;
      }
      const end = 5 + new DataView(input.buffer, input.byteOffset).getUint32(1);
      if (input.length < end) {
        this.needed = end;
        break;
      }
      if (input[0] === 0) this.onMessage(input.slice(5, end));
      input = input.subarray(end);
    }
    this.pieces = [input];
    this.length = input.length;
  }
}

function concat(pieces, length) {
  const all = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** Encodes a protobuf message of one string field. */
export function stringField(number, text) {
  const bytes = new TextEncoder().encode(text);
  const head = [(number << 3) | 2];
  for (let length = bytes.length; ; length >>>= 7) {
    if (length < 0x80) {
      head.push(length);
      break;
    }
    head.push((length & 0x7f) | 0x80);
  }
  return Uint8Array.from([...head, ...bytes]);
}
