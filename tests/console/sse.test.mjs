import assert from 'node:assert/strict';
import test from 'node:test';

import { Api, ApiError, backoffMs, errorOf, follow, GrpcDecoder, grpcFrame, readSse, retryAfterMs, SseDecoder, stringField } from '../../console/api.js';

const STREAM = 'id: a.1.1\r\ndata: {"x":1}\r\n\r\n: comment\n\nid: a.1.2\nevent: error\ndata: one\ndata:two\n\ndata\n\rdata: carriage\r\rdata: unfinished';
const EVENTS = [
  { id: 'a.1.1', name: 'message', data: '{"x":1}' }, { id: 'a.1.2', name: 'error', data: 'one\ntwo' }, { id: 'a.1.2', name: 'message', data: '' },
  { id: 'a.1.2', name: 'message', data: 'carriage' },
];

test('events are the same wherever the text is split', () => {
  for (let split = 0; split <= STREAM.length; split += 1) {
    const events = [];
    const decoder = new SseDecoder((event) => events.push(event));
    decoder.push(STREAM.slice(0, split));
    decoder.push(STREAM.slice(split));
    assert.deepEqual(events, EVENTS, `split at ${split}`);
  }
  const events = [];
  const decoder = new SseDecoder((event) => events.push(event));
  for (const char of STREAM) decoder.push(char);
  assert.deepEqual(events, EVENTS);
});

test('a line of 10 MB in pieces is read in time', () => {
  const events = [];
  const decoder = new SseDecoder((event) => events.push(event.data.length));
  const started = performance.now();
  decoder.push('data: ');
  for (let piece = 0; piece < 640; piece += 1) decoder.push('x'.repeat(16_384));
  decoder.push('\n\n');
  assert.deepEqual(events, [640 * 16_384]);
  assert.ok(performance.now() - started < 3000, `${performance.now() - started} ms`);
});

const responseOf = (...pieces) => new Response(new ReadableStream({
  start(controller) {
    for (const piece of pieces) controller.enqueue(typeof piece === 'string' ? new TextEncoder().encode(piece) : piece);
    controller.close();
  },
}));

test('characters that are split between two pieces are decoded, without a mark at the begin', async () => {
  const bytes = new TextEncoder().encode('data: ä🙂\n\n');
  const events = [];
  await readSse(responseOf('\ufeff', bytes.slice(0, 7), bytes.slice(7, 10), bytes.slice(10)), ({ data }) => events.push(data));
  assert.deepEqual(events, ['ä🙂']);
});

test('a silent stream is broken', async () => {
  const silent = new Response(new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode('data: a\n\n')) }));
  const events = [];
  await assert.rejects(readSse(silent, ({ data }) => events.push(data), { timeout: 30 }), /nothing received/);
  assert.deepEqual(events, ['a']);
});

test('a stream is resumed until its end, with the cursor of the last event', async (context) => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const opened = [];
  const seen = [];
  const states = [];
  const answers = ['id: t.1.1\ndata: 1\n\nid: t.1.2\ndata: 2\n\n', new ApiError('busy', { status: 503, retryAfter: 3000 }), 'id: t.1.3\ndata: 3\n\n'];
  const done = follow({
    open: async () => {
      opened.push(seen.at(-1)?.id ?? 't.0.0');
      const answer = answers.shift();
      if (answer instanceof Error) throw answer;
      return responseOf(answer);
    },
    onEvent: (event) => seen.push(event),
    isEnd: () => seen.at(-1)?.data === '3',
    onState: (state) => states.push(state),
  });
  let waited = 0;
  for (; states.at(-1) !== 'ended' && waited < 20_000; waited += 50) {
    context.mock.timers.tick(50);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await done;
  assert.deepEqual(opened, ['t.0.0', 't.1.2', 't.1.2']);
  assert.deepEqual(seen.map(({ data }) => data), ['1', '2', '3']);
  assert.deepEqual(states, ['live', 'reconnecting', 'reconnecting', 'live', 'ended']);
  assert.ok(waited >= 3000, `${waited} ms`);
});

test('an error that stays is not retried', async () => {
  const gone = new ApiError('Task not found', { status: 404 });
  await assert.rejects(follow({ open: async () => { throw gone; }, onEvent: () => {}, isEnd: () => false }), gone);
});

test('backoff grows, has a bound, and respects the server', () => {
  assert.equal(backoffMs(0, null, () => 0.5), 250);
  assert.equal(backoffMs(3, null, () => 0.5), 2000);
  assert.ok(backoffMs(50, null) <= 19_000);
  assert.equal(backoffMs(0, 9000), 9000);
  assert.equal(retryAfterMs('3'), 3000);
  assert.equal(retryAfterMs('Thu, 01 Jan 1970 00:00:10 GMT', 4000), 6000);
  assert.equal(retryAfterMs('soon'), null);
});

test('errors of HTTP+JSON name fields, reason and request', () => {
  const body = { error: { code: 400, message: 'invalid', status: 'INVALID_ARGUMENT', details: [{ reason: 'BAD', '@type': 'x' }, { fieldViolations: [{ field: 'message.parts', description: 'is empty' }] }] } };
  const error = errorOf(400, new Headers({ 'x-request-id': 'r1', 'retry-after': '2', 'www-authenticate': 'Bearer' }), JSON.stringify(body));
  assert.deepEqual([error.message, error.reason, error.fields[0].field, error.requestId, error.retryAfter, error.challenge], ['invalid', 'BAD', 'message.parts', 'r1', 2000, 'Bearer']);
  assert.equal(errorOf(502, new Headers(), '<h1>Bad gateway</h1>').message, '<h1>Bad gateway</h1>');
  assert.equal(new ApiError('lost').status, 0);
});

test('paths are below the agent, also those with a colon', () => {
  const api = new Api({ path: './ada/' });
  assert.ok(api.url('message:send').href.endsWith('/ada/message:send'));
  assert.equal(api.url('message:send').protocol, api.root.protocol);
});

test('frames of gRPC-Web are the same wherever the bytes are split', () => {
  const trailer = new TextEncoder().encode('grpc-status: 0\r\ngrpc-message: ok\r\n');
  const end = grpcFrame(trailer);
  end[0] = 0x80;
  const messages = [Uint8Array.of(1, 2, 3), new Uint8Array(0), Uint8Array.of(9)];
  const all = [...messages.flatMap((message) => [...grpcFrame(message)]), ...end];
  for (let split = 0; split <= all.length; split += 1) {
    const seen = [];
    const decoder = new GrpcDecoder((bytes) => seen.push([...bytes]));
    decoder.push(Uint8Array.from(all.slice(0, split)));
    decoder.push(Uint8Array.from(all.slice(split)));
    assert.deepEqual(seen, [[1, 2, 3], [], [9]]);
  }
});

test('long strings have a length of several bytes', () => {
  assert.deepEqual([...stringField(2, 'ab')], [18, 2, 97, 98]);
  assert.deepEqual([...stringField(2, 'x'.repeat(300)).slice(0, 3)], [18, 0xac, 0x02]);
});
