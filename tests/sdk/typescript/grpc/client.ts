// gRPC clients of protocol 1.0 and 0.3 on code that ts-proto generates from proto/: node dist/client.js URL

import assert from 'node:assert/strict';

import * as grpc from '@grpc/grpc-js';

import * as v03 from './generated/a2a/v1/a2a.js';
import { BadRequest, ErrorInfo } from './generated/google/rpc/error_details.js';
import { Status } from './generated/google/rpc/status.js';
import * as v1 from './generated/lf/a2a/v1/a2a.js';
import { run, type Tests } from './results.js';

const SERVER = process.argv[2] ?? 'http://127.0.0.1:8080';
// The server may join chunks, so an update may have several parts.
const CHUNKS = ['chunk 1 of 3\n', 'chunk 2 of 3\n', 'chunk 3 of 3\n'];
const DATA = { city: 'Lisbon', numbers: [1, 2.5], nothing: null };
const DATA_OF_DEMO = { a: 'data part', numbers: [1, 2.5], nothing: null };
const RAW = new Uint8Array([0, 1, 254, 255]);

type Call<Request, Response> = (
  request: Request,
  metadata: grpc.Metadata,
  options: grpc.CallOptions,
  callback: (error: grpc.ServiceError | null, response: Response) => void,
) => grpc.ClientUnaryCall;

/** Returns the response of a unary call as a promise. */
function unary<Request, Response>(client: grpc.Client, call: Call<Request, Response>, request: Request) {
  return new Promise<Response>((resolve, reject) => {
    const options = { deadline: Date.now() + 20_000 };
    call.call(client, request, new grpc.Metadata(), options, (error, response) => {
      if (error) reject(error);
      else resolve(response);
    });
  });
}

/** Returns the status code of a rejected call and its details. */
async function rejection(response: Promise<unknown>) {
  const error = await response.then(
    (value) => assert.fail(`not rejected: ${JSON.stringify(value)}`),
    (reason: grpc.ServiceError) => reason,
  );
  const bytes = error.metadata?.get('grpc-status-details-bin')[0];
  assert.ok(bytes instanceof Buffer, error);
  const status = Status.decode(bytes);
  assert.equal(status.code, error.code);
  const detail = (type: string) => {
    const found = status.details.find(({ typeUrl }) => typeUrl === `type.googleapis.com/google.rpc.${type}`);
    assert.ok(found, JSON.stringify(status));
    return found.value;
  };
  return {
    code: error.code,
    info: ErrorInfo.decode(detail('ErrorInfo')),
    badRequest: () => BadRequest.decode(detail('BadRequest')),
  };
}

async function agentCard(version: string): Promise<unknown> {
  const response = await fetch(`${SERVER}/.well-known/agent-card.json`, { headers: { 'A2A-Version': version } });
  assert.equal(response.status, 200);
  return response.json();
}

async function events<Event>(stream: AsyncIterable<Event>): Promise<Event[]> {
  const received: Event[] = [];
  for await (const event of stream) received.push(event);
  return received;
}

async function clientV1(): Promise<Tests> {
  const card = v1.AgentCard.fromJSON(await agentCard('1.0'));
  const address = card.supportedInterfaces.find(
    ({ protocolBinding, protocolVersion }) => protocolBinding === 'GRPC' && protocolVersion === '1.0',
  );
  assert.ok(address);
  const client = new v1.A2AServiceClient(address.url, grpc.credentials.createInsecure());

  const part = (content: v1.Part['content'], fields: Partial<v1.Part> = {}) =>
    v1.Part.fromPartial({ content, ...fields });
  const text = (value: string) => part({ $case: 'text', text: value });
  const request = (parts: v1.Part[], configuration: Partial<v1.SendMessageConfiguration> = {}) =>
    v1.SendMessageRequest.fromPartial({ message: { messageId: 'm', role: v1.Role.ROLE_USER, parts }, configuration });
  const sendRequest = async (sent: v1.SendMessageRequest): Promise<v1.Task> => {
    const { payload } = await unary(client, client.sendMessage, sent);
    assert.ok(payload?.$case === 'task');
    return payload.task;
  };
  const send = (...parts: v1.Part[]) => sendRequest(request(parts));
  const start = (command: string) => sendRequest(request([text(command)], { returnImmediately: true }));
  const cancel = (id: string) => unary(client, client.cancelTask, v1.CancelTaskRequest.fromPartial({ id }));

  return {
    async card() {
      assert.deepEqual([card.name, card.capabilities?.streaming], ['Demo', true]);
      assert.deepEqual(card.skills.map(({ id }) => id), ['echo', 'provoke']);
    },

    async extended_card_is_rejected() {
      const extendedCard = unary(client, client.getExtendedAgentCard, v1.GetExtendedAgentCardRequest.create());
      const { code, info } = await rejection(extendedCard);
      assert.deepEqual([code, info.reason], [grpc.status.FAILED_PRECONDITION, 'UNSUPPORTED_OPERATION']);
    },

    async send() {
      const task = await send(text('hello'));
      assert.equal(task.status?.state, v1.TaskState.TASK_STATE_COMPLETED);
      assert.deepEqual(task.artifacts[0]?.parts[0]?.content, { $case: 'text', text: 'hello' });
    },

    async send_with_message_as_reply() {
      const { payload } = await unary(client, client.sendMessage, request([text('/message hi')]));
      assert.ok(payload?.$case === 'message');
      assert.equal(payload.message.role, v1.Role.ROLE_AGENT);
      assert.deepEqual(payload.message.parts, [text('hi')]);
    },

    async stream() {
      const payloads = (await events(client.sendStreamingMessage(request([text('/stream 3 1')])))).map(
        ({ payload }) => payload,
      );
      assert.equal(payloads[0]?.$case, 'task');
      const updates = payloads.flatMap((payload) =>
        payload?.$case === 'artifactUpdate' ? [payload.artifactUpdate] : [],
      );
      assert.deepEqual(updates.flatMap(({ artifact }) => artifact?.parts), CHUNKS.map(text));
      assert.equal(updates.findIndex(({ lastChunk }) => lastChunk), updates.length - 1);
      const last = payloads.at(-1);
      assert.ok(last?.$case === 'statusUpdate');
      assert.equal(last.statusUpdate.status?.state, v1.TaskState.TASK_STATE_COMPLETED);
    },

    async get() {
      const sent = await send(text('hello'));
      const get = (historyLength: number) =>
        unary(client, client.getTask, v1.GetTaskRequest.fromPartial({ id: sent.id, historyLength }));
      const task = await get(1);
      assert.deepEqual([task.id, task.contextId, task.status], [sent.id, sent.contextId, sent.status]);
      assert.ok(task.status?.timestamp instanceof Date);
      assert.deepEqual(task.history.map(({ parts }) => parts), [[text('hello')]]);
      assert.deepEqual((await get(0)).history, []);
    },

    async list() {
      const first = await send(text('first'));
      const second = request([text('second')]);
      assert.ok(second.message);
      second.message.contextId = first.contextId;
      const { id } = await sendRequest(second);
      const page = v1.ListTasksRequest.fromPartial({
        contextId: first.contextId,
        pageSize: 1,
        status: v1.TaskState.TASK_STATE_COMPLETED,
      });
      const ids: string[] = [];
      for (let pages = 0; pages < 2; pages += 1) {
        const response = await unary(client, client.listTasks, page);
        assert.deepEqual([response.pageSize, response.totalSize], [1, 2]);
        ids.push(...response.tasks.map((task) => task.id));
        page.pageToken = response.nextPageToken;
      }
      assert.equal(page.pageToken, '');
      assert.deepEqual(ids, [id, first.id]);
    },

    async cancel() {
      const task = await start('/slow 60');
      assert.ok(task.status);
      assert.ok([v1.TaskState.TASK_STATE_SUBMITTED, v1.TaskState.TASK_STATE_WORKING].includes(task.status.state));
      const canceled = await cancel(task.id);
      assert.deepEqual([canceled.id, canceled.status?.state], [task.id, v1.TaskState.TASK_STATE_CANCELED]);
    },

    async subscribe() {
      const { id } = await start('/slow 60');
      const payloads: v1.StreamResponse['payload'][] = [];
      for await (const { payload } of client.subscribeToTask(v1.SubscribeToTaskRequest.fromPartial({ id }))) {
        if (payloads.push(payload) === 1) await cancel(id);
      }
      const [first, last] = [payloads[0], payloads.at(-1)];
      assert.ok(first?.$case === 'task' && last?.$case === 'statusUpdate');
      assert.equal(first.task.id, id);
      assert.equal(last.statusUpdate.status?.state, v1.TaskState.TASK_STATE_CANCELED);
    },

    async error() {
      const task = unary(client, client.getTask, v1.GetTaskRequest.fromPartial({ id: 'unknown' }));
      const { code, info } = await rejection(task);
      assert.equal(code, grpc.status.NOT_FOUND);
      assert.deepEqual([info.reason, info.domain], ['TASK_NOT_FOUND', 'a2a-protocol.org']);
    },

    async error_with_field() {
      const { code, badRequest } = await rejection(unary(client, client.sendMessage, v1.SendMessageRequest.create()));
      assert.equal(code, grpc.status.INVALID_ARGUMENT);
      assert.deepEqual(badRequest().fieldViolations.map(({ field }) => field), ['message']);
    },

    async file_part() {
      const file = { filename: 'four.bin', mediaType: 'application/octet-stream' };
      const task = await send(text('hello'), part({ $case: 'raw', raw: RAW }, file));
      const received = task.history[0]?.parts[1];
      assert.ok(received?.content?.$case === 'raw');
      assert.deepEqual([...received.content.raw], [...RAW]);
      assert.deepEqual([received.filename, received.mediaType], [file.filename, file.mediaType]);
      const [, raw, url] = (await send(text('/parts'))).artifacts[0]?.parts ?? [];
      assert.ok(raw?.content?.$case === 'raw');
      assert.equal(Buffer.from(raw.content.raw).toString(), 'A raw part.\n');
      assert.deepEqual([raw.filename, raw.mediaType], ['raw.txt', 'text/plain']);
      assert.deepEqual(url?.content, { $case: 'url', url: 'https://example.com/map.png' });
    },

    async data_part() {
      const task = await send(text('hello'), part({ $case: 'data', data: DATA }));
      assert.deepEqual(task.history[0]?.parts[1]?.content, { $case: 'data', data: DATA });
      const received = (await send(text('/parts'))).artifacts[0]?.parts[3];
      assert.deepEqual(received?.content, { $case: 'data', data: DATA_OF_DEMO });
    },
  };
}

/** Tests of 0.3, which has no method that lists tasks. */
async function clientV03(): Promise<Tests> {
  const card = v03.AgentCard.fromJSON(await agentCard('0.3'));
  const address = card.additionalInterfaces.find(({ transport }) => transport === 'GRPC');
  assert.ok(address);
  const client = new v03.A2AServiceClient(address.url, grpc.credentials.createInsecure());

  const part = (content: v03.Part['part']) => v03.Part.fromPartial({ part: content });
  const text = (value: string) => part({ $case: 'text', text: value });
  const request = (content: v03.Part[], blocking = true) =>
    v03.SendMessageRequest.fromPartial({
      request: { messageId: 'm', role: v03.Role.ROLE_USER, content },
      configuration: { blocking },
    });
  const sendRequest = async (sent: v03.SendMessageRequest): Promise<v03.Task> => {
    const { payload } = await unary(client, client.sendMessage, sent);
    assert.ok(payload?.$case === 'task');
    return payload.task;
  };
  const send = (...parts: v03.Part[]) => sendRequest(request(parts));
  const start = (command: string) => sendRequest(request([text(command)], false));
  const cancel = (id: string) =>
    unary(client, client.cancelTask, v03.CancelTaskRequest.fromPartial({ name: `tasks/${id}` }));

  return {
    async card() {
      assert.deepEqual([card.name, card.protocolVersion], ['Demo', '0.3.0']);
      assert.deepEqual(card.skills.map(({ id }) => id), ['echo', 'provoke']);
    },

    async public_card_is_returned() {
      const card = await unary(client, client.getAgentCard, v03.GetAgentCardRequest.create());
      assert.deepEqual([card.name, card.protocolVersion], ['Demo', '0.3.0']);
      assert.equal(card.supportsAuthenticatedExtendedCard, false);
    },

    async send() {
      const task = await send(text('hello'));
      assert.equal(task.status?.state, v03.TaskState.TASK_STATE_COMPLETED);
      assert.deepEqual(task.artifacts[0]?.parts[0]?.part, { $case: 'text', text: 'hello' });
    },

    async send_with_message_as_reply() {
      const { payload } = await unary(client, client.sendMessage, request([text('/message hi')]));
      assert.ok(payload?.$case === 'msg');
      assert.equal(payload.msg.role, v03.Role.ROLE_AGENT);
      assert.deepEqual(payload.msg.content, [text('hi')]);
    },

    async stream() {
      const payloads = (await events(client.sendStreamingMessage(request([text('/stream 3 1')])))).map(
        ({ payload }) => payload,
      );
      assert.equal(payloads[0]?.$case, 'task');
      const updates = payloads.flatMap((payload) =>
        payload?.$case === 'artifactUpdate' ? [payload.artifactUpdate] : [],
      );
      assert.deepEqual(updates.flatMap(({ artifact }) => artifact?.parts), CHUNKS.map(text));
      assert.equal(updates.findIndex(({ lastChunk }) => lastChunk), updates.length - 1);
      const last = payloads.at(-1);
      assert.ok(last?.$case === 'statusUpdate');
      assert.equal(last.statusUpdate.final, true);
      assert.equal(last.statusUpdate.status?.state, v03.TaskState.TASK_STATE_COMPLETED);
    },

    async get() {
      const sent = await send(text('hello'));
      const request = v03.GetTaskRequest.fromPartial({ name: `tasks/${sent.id}`, historyLength: 1 });
      const task = await unary(client, client.getTask, request);
      assert.deepEqual([task.id, task.contextId, task.status], [sent.id, sent.contextId, sent.status]);
      assert.deepEqual(task.history.map(({ content }) => content), [[text('hello')]]);
    },

    async cancel() {
      const task = await start('/slow 60');
      assert.ok(task.status);
      assert.ok([v03.TaskState.TASK_STATE_SUBMITTED, v03.TaskState.TASK_STATE_WORKING].includes(task.status.state));
      const canceled = await cancel(task.id);
      assert.deepEqual([canceled.id, canceled.status?.state], [task.id, v03.TaskState.TASK_STATE_CANCELLED]);
    },

    async subscribe() {
      const { id } = await start('/slow 60');
      const request = v03.TaskSubscriptionRequest.fromPartial({ name: `tasks/${id}` });
      const payloads: v03.StreamResponse['payload'][] = [];
      for await (const { payload } of client.taskSubscription(request)) {
        if (payloads.push(payload) === 1) await cancel(id);
      }
      const [first, last] = [payloads[0], payloads.at(-1)];
      assert.ok(first?.$case === 'task' && last?.$case === 'statusUpdate');
      assert.equal(first.task.id, id);
      assert.equal(last.statusUpdate.status?.state, v03.TaskState.TASK_STATE_CANCELLED);
    },

    async error() {
      const task = unary(client, client.getTask, v03.GetTaskRequest.fromPartial({ name: 'tasks/unknown' }));
      const { code, info } = await rejection(task);
      assert.equal(code, grpc.status.NOT_FOUND);
      assert.deepEqual([info.reason, info.domain], ['TASK_NOT_FOUND', 'a2a-protocol.org']);
    },

    async file_part() {
      const file = { mimeType: 'application/octet-stream', name: 'four.bin' };
      const content = { $case: 'fileWithBytes', fileWithBytes: RAW } as const;
      const task = await send(text('hello'), part({ $case: 'file', file: { ...file, file: content } }));
      const received = task.history[0]?.content[1]?.part;
      assert.ok(received?.$case === 'file' && received.file.file?.$case === 'fileWithBytes');
      assert.deepEqual([...received.file.file.fileWithBytes], [...RAW]);
      assert.deepEqual([received.file.mimeType, received.file.name], [file.mimeType, file.name]);
      const [, raw, url] = ((await send(text('/parts'))).artifacts[0]?.parts ?? []).map((part) => part.part);
      assert.ok(raw?.$case === 'file' && raw.file.file?.$case === 'fileWithBytes');
      assert.equal(Buffer.from(raw.file.file.fileWithBytes).toString(), 'A raw part.\n');
      assert.ok(url?.$case === 'file');
      assert.deepEqual(url.file.file, { $case: 'fileWithUri', fileWithUri: 'https://example.com/map.png' });
    },

    async data_part() {
      const task = await send(text('hello'), part({ $case: 'data', data: { data: DATA } }));
      assert.deepEqual(task.history[0]?.content[1]?.part, { $case: 'data', data: { data: DATA } });
      const received = (await send(text('/parts'))).artifacts[0]?.parts[3];
      assert.deepEqual(received?.part, { $case: 'data', data: { data: DATA_OF_DEMO } });
    },
  };
}

await run({ 'gRPC 1.0': clientV1, 'gRPC 0.3': clientV03 });
