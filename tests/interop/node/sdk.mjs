// The JavaScript SDK against the demo agent, over each binding that the agent card names: node sdk.mjs http://HOST:PORT
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Role, TaskState } from '@a2a-js/sdk';
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';

const URL = process.argv[2];
const { dependencies } = JSON.parse(readFileSync(new globalThis.URL('package.json', import.meta.url)));
const { TASK_STATE_CANCELED, TASK_STATE_COMPLETED, TASK_STATE_INPUT_REQUIRED } = TaskState;

function request(text, { task, returnImmediately = false } = {}) {
  const part = { content: { $case: 'text', value: text }, filename: '', mediaType: '' };
  const message = {
    messageId: randomUUID(), contextId: task?.contextId ?? '', taskId: task?.id ?? '', role: Role.ROLE_USER,
    parts: [part], extensions: [], referenceTaskIds: [],
  };
  return { tenant: '', message, configuration: { acceptedOutputModes: [], returnImmediately } };
}

const text = (it) => it.parts.map((part) => part.content.value).join('');

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event.payload);
  return events;
}

const tests = {
  async send(client) {
    const task = await client.sendMessage(request('hello'));
    assert.equal(task.status.state, TASK_STATE_COMPLETED);
    assert.deepEqual(task.artifacts.map(text), ['hello']);
  },

  async stream(client) {
    const events = await all(client.sendMessageStream(request('/stream 5 10')));
    const chunks = events.filter((it) => it.$case === 'artifactUpdate').map((it) => it.value);
    assert.deepEqual(chunks.map((it) => text(it.artifact)), [1, 2, 3, 4, 5].map((n) => `chunk ${n} of 5\n`));
    assert.deepEqual(chunks.map((it) => it.append), [false, true, true, true, true]);
    assert.equal(events[0].$case, 'task');
    assert.equal(events.at(-1).value.status.state, TASK_STATE_COMPLETED);
  },

  async get(client) {
    const sent = await client.sendMessage(request('hello'));
    const task = await client.getTask({ tenant: '', id: sent.id });
    assert.equal(task.status.state, TASK_STATE_COMPLETED);
    assert.equal(text(task.history[0]), 'hello');
  },

  async list(client) {
    const sent = await client.sendMessage(request('hello'));
    const list = { tenant: '', contextId: sent.contextId, status: TASK_STATE_COMPLETED, pageToken: '' };
    const page = await client.listTasks(list);
    assert.deepEqual([page.totalSize, page.tasks[0].id], [1, sent.id]);
  },

  async cancel(client) {
    const task = await client.sendMessage(request('/slow 30', { returnImmediately: true }));
    const canceled = await client.cancelTask({ tenant: '', id: task.id });
    assert.equal(canceled.status.state, TASK_STATE_CANCELED);
  },

  async 'input required'(client) {
    const task = await client.sendMessage(request('/ask What?'));
    assert.equal(task.status.state, TASK_STATE_INPUT_REQUIRED);
    const done = await client.sendMessage(request('That.', { task }));
    assert.deepEqual([done.id, done.status.state, text(done.artifacts[0])], [task.id, TASK_STATE_COMPLETED, 'That.']);
  },

  async subscribe(client) {
    const task = await client.sendMessage(request('/stream 20 50', { returnImmediately: true }));
    const events = await all(client.resubscribeTask({ tenant: '', id: task.id }));
    assert.equal(events[0].value.id, task.id);
    assert.equal(events.at(-1).value.status.state, TASK_STATE_COMPLETED);
  },

  async 'message only'(client) {
    const message = await client.sendMessage(request('/message hi'));
    assert.deepEqual([message.role, text(message)], [Role.ROLE_AGENT, 'hi']);
  },

  async parts(client) {
    const [artifact] = (await client.sendMessage(request('/parts'))).artifacts;
    const [words, raw, url, data] = artifact.parts.map((it) => it.content);
    assert.deepEqual([words.value, Buffer.from(raw.value).toString()], ['A text part.', 'A raw part.\n']);
    assert.deepEqual([url.value, data.value.numbers], ['https://example.com/map.png', [1, 2.5]]);
  },

  async 'unknown task'(client) {
    const notFound = { name: /TaskNotFoundError/ };
    await assert.rejects(client.getTask({ tenant: '', id: 'nobody' }), notFound);
    await assert.rejects(all(client.resubscribeTask({ tenant: '', id: 'nobody' })), notFound);
  },
};

const late = (ms) => new Promise((_, reject) => setTimeout(reject, ms, new Error(`not done after ${ms} ms`)).unref());
let failures = 0;
for (const [binding, transport] of [
  ['JSONRPC', new JsonRpcTransportFactory()],
  ['HTTP+JSON', new RestTransportFactory()],
  ['GRPC', new GrpcTransportFactory()],
]) {
  const client = await new ClientFactory({ transports: [transport] }).createFromUrl(URL);
  for (const [test, run] of Object.entries(tests)) {
    const name = `@a2a-js/sdk ${dependencies['@a2a-js/sdk']} ${binding} ${test}`;
    try {
      await Promise.race([run(client), late(20_000)]);
      console.log(`ok ${name}`);
    } catch (error) {
      failures += 1;
      console.log(`FAILED ${name}\n${error.stack}`.replaceAll('\n', '\n    '));
    }
  }
}
process.exit(failures > 0 ? 1 : 0);
