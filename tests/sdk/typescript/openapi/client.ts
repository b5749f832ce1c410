// HTTP+JSON clients of protocol 1.0 and 0.3 on types that openapi-typescript generates: node dist/client.js URL

import assert from 'node:assert/strict';

import createClient from 'openapi-fetch';

import type { components as ComponentsV03, paths as PathsV03 } from './generated/a2a-v0.3.js';
import type { components as ComponentsV1, paths as PathsV1 } from './generated/a2a-v1.js';
import { run, type Tests } from './results.js';

type V1 = ComponentsV1['schemas'];
type V03 = ComponentsV03['schemas'];

const SERVER = process.argv[2] ?? 'http://127.0.0.1:8080';
// The server may join chunks, so an update may have several parts.
const CHUNKS = ['chunk 1 of 3\n', 'chunk 2 of 3\n', 'chunk 3 of 3\n'];
const DATA = { city: 'Lisbon', numbers: [1, 2.5], nothing: null };
const DATA_OF_DEMO = { a: 'data part', numbers: [1, 2.5], nothing: null };
const RAW = Buffer.from([0, 1, 254, 255]).toString('base64');
const RAW_OF_DEMO = Buffer.from('A raw part.\n').toString('base64');

/** Result of a call: the data of a successful response, or the error. */
type Result<Data, Error> = { data?: Data; error?: Error; response: Response };

/** Returns the data of a successful response. */
async function success<Data>(call: Promise<Result<Data, unknown>>): Promise<Data> {
  const { data, error, response } = await call;
  assert.ok(data !== undefined, `${response.status} ${JSON.stringify(error)}`);
  return data;
}

/** Returns the body of an error after checking its status. */
async function rejection<Error>(call: Promise<Result<unknown, Error>>, status: number): Promise<Error> {
  const { error, response } = await call;
  assert.equal(response.status, status);
  assert.ok(error);
  return error;
}

function checkInfo(details: (V1 | V03)['ErrorStatus']['details'], reason: string) {
  const info = details[0];
  assert.ok(info?.['@type'] === 'type.googleapis.com/google.rpc.ErrorInfo');
  assert.deepEqual([info.reason, info.domain], [reason, 'a2a-protocol.org']);
}

/** Yields the events of a stream. The generator types them, and leaves it to the client to read them. */
async function* events<Event>(
  call: Promise<Result<ReadableStream<Uint8Array> | null, unknown>>,
): AsyncGenerator<Event> {
  const body = await success(call);
  assert.ok(body);
  const decoder = new TextDecoder();
  let text = '';
  for await (const bytes of body) {
    const lines = (text + decoder.decode(bytes, { stream: true })).split('\n');
    text = lines.pop() ?? '';
    for (const line of lines) {
      if (line.startsWith('data:')) yield JSON.parse(line.slice('data:'.length)) as Event;
    }
  }
}

async function all<Event>(stream: AsyncGenerator<Event>): Promise<Event[]> {
  const received: Event[] = [];
  for await (const event of stream) received.push(event);
  return received;
}

async function clientV1(): Promise<Tests> {
  const client = createClient<PathsV1>({ baseUrl: SERVER, headers: { 'A2A-Version': '1.0' } });
  const request = (parts: V1['Part'][], configuration: V1['SendMessageConfiguration'] = {}) => ({
    body: { message: { messageId: 'm', role: 'ROLE_USER' as const, parts }, configuration },
  });
  const sendRequest = async (sent: { body: V1['SendMessageRequest'] }) => {
    const response = await success(client.POST('/message:send', sent));
    assert.ok('task' in response);
    return response.task;
  };
  const send = (...parts: V1['Part'][]) => sendRequest(request(parts));
  const start = (text: string) => sendRequest(request([{ text }], { returnImmediately: true }));
  const cancel = (id: string) => success(client.POST('/tasks/{id}:cancel', { params: { path: { id } }, body: {} }));
  const getTask = (id: string, historyLength: number) =>
    success(client.GET('/tasks/{id}', { params: { path: { id }, query: { historyLength } } }));

  return {
    async card() {
      const card = await success(client.GET('/.well-known/agent-card.json'));
      assert.deepEqual([card.name, card.capabilities.streaming], ['Demo', true]);
      assert.deepEqual(card.skills.map(({ id }) => id), ['echo', 'provoke']);
      const expected = { url: SERVER, protocolBinding: 'HTTP+JSON', protocolVersion: '1.0' };
      const found = card.supportedInterfaces.find((i) => i.url === SERVER && i.protocolVersion === '1.0');
      assert.deepEqual(found, expected);
    },

    async extended_card_is_rejected() {
      const { error } = await rejection(client.GET('/extendedAgentCard'), 400);
      checkInfo(error.details, 'UNSUPPORTED_OPERATION');
    },

    async send() {
      const task = await send({ text: 'hello' });
      assert.equal(task.status.state, 'TASK_STATE_COMPLETED');
      assert.deepEqual(task.artifacts?.[0]?.parts, [{ text: 'hello' }]);
    },

    async send_with_message_as_reply() {
      const response = await success(client.POST('/message:send', request([{ text: '/message hi' }])));
      assert.ok('message' in response);
      assert.deepEqual([response.message.role, response.message.parts], ['ROLE_AGENT', [{ text: 'hi' }]]);
    },

    async stream() {
      const call = client.POST('/message:stream', { ...request([{ text: '/stream 3 1' }]), parseAs: 'stream' });
      const received = await all(events<V1['StreamResponse']>(call));
      assert.ok(received[0] && 'task' in received[0]);
      const updates = received.flatMap((event) => ('artifactUpdate' in event ? [event.artifactUpdate] : []));
      assert.deepEqual(updates.flatMap(({ artifact }) => artifact.parts), CHUNKS.map((text) => ({ text })));
      assert.equal(updates.findIndex(({ lastChunk }) => lastChunk), updates.length - 1);
      const last = received.at(-1);
      assert.ok(last && 'statusUpdate' in last);
      assert.equal(last.statusUpdate.status.state, 'TASK_STATE_COMPLETED');
    },

    async get() {
      const sent = await send({ text: 'hello' });
      const task = await getTask(sent.id, 1);
      assert.deepEqual([task.id, task.contextId, task.status], [sent.id, sent.contextId, sent.status]);
      assert.ok(Date.parse(task.status.timestamp ?? '') > 0);
      assert.deepEqual(task.history?.map(({ parts }) => parts), [[{ text: 'hello' }]]);
      assert.equal((await getTask(sent.id, 0)).history?.length ?? 0, 0);
    },

    async list() {
      const first = await send({ text: 'first' });
      const { message } = request([{ text: 'second' }]).body;
      const { id } = await sendRequest({ body: { message: { ...message, contextId: first.contextId } } });
      const ids: string[] = [];
      let pageToken = '';
      for (let pages = 0; pages < 2; pages += 1) {
        const query = { contextId: first.contextId, pageSize: 1, pageToken, status: 'TASK_STATE_COMPLETED' } as const;
        const response = await success(client.GET('/tasks', { params: { query } }));
        assert.deepEqual([response.pageSize, response.totalSize], [1, 2]);
        ids.push(...response.tasks.map((task) => task.id));
        pageToken = response.nextPageToken;
      }
      assert.equal(pageToken, '');
      assert.deepEqual(ids, [id, first.id]);
    },

    async cancel() {
      const task = await start('/slow 60');
      assert.ok(['TASK_STATE_SUBMITTED', 'TASK_STATE_WORKING'].includes(task.status.state));
      const canceled = await cancel(task.id);
      assert.deepEqual([canceled.id, canceled.status.state], [task.id, 'TASK_STATE_CANCELED']);
    },

    async subscribe() {
      const { id } = await start('/slow 60');
      const call = client.POST('/tasks/{id}:subscribe', { params: { path: { id } }, parseAs: 'stream' });
      const received: V1['StreamResponse'][] = [];
      for await (const event of events<V1['StreamResponse']>(call)) {
        if (received.push(event) === 1) await cancel(id);
      }
      const [first, last] = [received[0], received.at(-1)];
      assert.ok(first && 'task' in first && last && 'statusUpdate' in last);
      assert.deepEqual([first.task.id, last.statusUpdate.status.state], [id, 'TASK_STATE_CANCELED']);
    },

    async error() {
      const { error } = await rejection(client.GET('/tasks/{id}', { params: { path: { id: 'unknown' } } }), 404);
      assert.deepEqual([error.code, error.status], [404, 'NOT_FOUND']);
      checkInfo(error.details, 'TASK_NOT_FOUND');
    },

    async error_with_field() {
      const { error } = await rejection(client.POST('/message:send', request([])), 400);
      checkInfo(error.details, 'INVALID_PARAMS');
      const fields = error.details.flatMap((detail) => ('fieldViolations' in detail ? detail.fieldViolations : []));
      assert.deepEqual(fields.map(({ field }) => field), ['message.parts']);
    },

    async file_part() {
      const sent = { raw: RAW, filename: 'four.bin', mediaType: 'application/octet-stream' };
      assert.deepEqual((await send({ text: 'hello' }, sent)).history?.[0]?.parts[1], sent);
      const parts = (await send({ text: '/parts' })).artifacts?.[0]?.parts;
      assert.deepEqual(parts?.[1], { raw: RAW_OF_DEMO, filename: 'raw.txt', mediaType: 'text/plain' });
      const url = parts?.[2];
      assert.ok(url && 'url' in url);
      assert.deepEqual([url.url, url.mediaType], ['https://example.com/map.png', 'image/png']);
    },

    async data_part() {
      assert.deepEqual((await send({ text: 'hello' }, { data: DATA })).history?.[0]?.parts[1], { data: DATA });
      assert.deepEqual((await send({ text: '/parts' })).artifacts?.[0]?.parts[3], { data: DATA_OF_DEMO });
    },
  };
}

async function clientV03(): Promise<Tests> {
  const client = createClient<PathsV03>({ baseUrl: SERVER, headers: { 'A2A-Version': '0.3' } });
  const request = (content: V03['Part'][], blocking = true) => ({
    body: { message: { messageId: 'm', role: 'ROLE_USER' as const, content }, configuration: { blocking } },
  });
  const sendRequest = async (sent: { body: V03['SendMessageRequest'] }) => {
    const response = await success(client.POST('/v1/message:send', sent));
    assert.ok('task' in response);
    return response.task;
  };
  const send = (...content: V03['Part'][]) => sendRequest(request(content));
  const start = (text: string) => sendRequest(request([{ text }], false));
  const path = (taskId: string) => ({ params: { path: { taskId } } });
  const cancel = (id: string) => success(client.POST('/v1/tasks/{taskId}:cancel', path(id)));

  return {
    async card() {
      const card = await success(client.GET('/.well-known/agent-card.json'));
      assert.deepEqual([card.name, card.protocolVersion, card.capabilities.streaming], ['Demo', '0.3.0', true]);
      assert.deepEqual(card.skills.map(({ id }) => id), ['echo', 'provoke']);
    },

    async extended_card_is_rejected() {
      const { error } = await rejection(client.GET('/v1/card'), 404);
      checkInfo(error.details, 'EXTENDED_AGENT_CARD_NOT_CONFIGURED');
    },

    async send() {
      const task = await send({ text: 'hello' });
      assert.equal(task.status?.state, 'TASK_STATE_COMPLETED');
      assert.deepEqual(task.artifacts?.[0]?.parts, [{ text: 'hello' }]);
    },

    async send_with_message_as_reply() {
      const response = await success(client.POST('/v1/message:send', request([{ text: '/message hi' }])));
      assert.ok('message' in response);
      assert.deepEqual([response.message.role, response.message.content], ['ROLE_AGENT', [{ text: 'hi' }]]);
    },

    async stream() {
      const call = client.POST('/v1/message:stream', { ...request([{ text: '/stream 3 1' }]), parseAs: 'stream' });
      const received = await all(events<V03['StreamResponse']>(call));
      assert.ok(received[0] && 'task' in received[0]);
      const updates = received.flatMap((event) => ('artifactUpdate' in event ? [event.artifactUpdate] : []));
      assert.deepEqual(updates.flatMap(({ artifact }) => artifact?.parts), CHUNKS.map((text) => ({ text })));
      assert.equal(updates.findIndex(({ lastChunk }) => lastChunk), updates.length - 1);
      const last = received.at(-1);
      assert.ok(last && 'statusUpdate' in last);
      assert.deepEqual([last.statusUpdate.status?.state, last.statusUpdate.final], ['TASK_STATE_COMPLETED', true]);
    },

    async get() {
      const sent = await send({ text: 'hello' });
      assert.ok(sent.id);
      const query = { historyLength: 1 };
      const task = await success(client.GET('/v1/tasks/{taskId}', { params: { path: { taskId: sent.id }, query } }));
      assert.deepEqual([task.id, task.contextId, task.status], [sent.id, sent.contextId, sent.status]);
      assert.deepEqual(task.history?.map(({ content }) => content), [[{ text: 'hello' }]]);
    },

    async cancel() {
      const { id, status } = await start('/slow 60');
      assert.ok(id && status?.state && ['TASK_STATE_SUBMITTED', 'TASK_STATE_WORKING'].includes(status.state));
      const canceled = await cancel(id);
      assert.deepEqual([canceled.id, canceled.status?.state], [id, 'TASK_STATE_CANCELLED']);
    },

    async subscribe() {
      const { id } = await start('/slow 60');
      assert.ok(id);
      const call = client.POST('/v1/tasks/{taskId}:subscribe', { ...path(id), parseAs: 'stream' });
      const received: V03['StreamResponse'][] = [];
      for await (const event of events<V03['StreamResponse']>(call)) {
        if (received.push(event) === 1) await cancel(id);
      }
      const [first, last] = [received[0], received.at(-1)];
      assert.ok(first && 'task' in first && last && 'statusUpdate' in last);
      assert.deepEqual([first.task.id, last.statusUpdate.status?.state], [id, 'TASK_STATE_CANCELLED']);
    },

    async error() {
      const body = await rejection(client.GET('/v1/tasks/{taskId}', path('unknown')), 404);
      checkInfo(body.error.details, 'TASK_NOT_FOUND');
      assert.deepEqual([body.type, body.code], ['TaskNotFoundError', -32001]);
    },

    async file_part() {
      const sent = { file: { fileWithBytes: RAW, name: 'four.bin', mimeType: 'application/octet-stream' } };
      assert.deepEqual((await send({ text: 'hello' }, sent)).history?.[0]?.content[1], sent);
      const parts = (await send({ text: '/parts' })).artifacts?.[0]?.parts;
      const file = { fileWithBytes: RAW_OF_DEMO, name: 'raw.txt', mimeType: 'text/plain' };
      assert.deepEqual(parts?.[1], { file });
      const url = parts?.[2];
      assert.ok(url && 'file' in url && 'fileWithUri' in url.file);
      assert.deepEqual([url.file.fileWithUri, url.file.mimeType], ['https://example.com/map.png', 'image/png']);
    },

    async data_part() {
      const sent = { data: { data: DATA } };
      assert.deepEqual((await send({ text: 'hello' }, sent)).history?.[0]?.content[1], sent);
      assert.deepEqual((await send({ text: '/parts' })).artifacts?.[0]?.parts?.[3], { data: { data: DATA_OF_DEMO } });
    },
  };
}

await run({ 'HTTP+JSON 1.0': clientV1, 'HTTP+JSON 0.3': clientV03 });
