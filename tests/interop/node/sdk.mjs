// The JavaScript SDK of protocol 1.0 against the demo agent, over each binding at 1.0 and 0.3: node sdk.mjs URL OTHER
//
// The other server takes no push configurations, and refuses media types that its card does not name.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { Role, TaskState } from '@a2a-js/sdk';
import {
  ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory, ServiceParameters,
  withA2AVersion,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import { EVERY_SCRIPT, SDK, all, check, chunks, end, refused } from './harness.mjs';

const [URL, OTHER] = process.argv.slice(2);
const { TASK_STATE_CANCELED, TASK_STATE_COMPLETED, TASK_STATE_INPUT_REQUIRED, TASK_STATE_WORKING } = TaskState;
const WEBHOOK = {
  tenant: '', id: 'p', taskId: '', url: 'https://hook.invalid/', token: 't', authentication: undefined,
};

const part = ($case, value, mediaType = '') => ({
  content: { $case, value }, metadata: undefined, filename: '', mediaType,
});

/** A task that goes on. */
const started = (client, said) => client.sendMessage(request(said, { returnImmediately: true }));

function request(said, { task, taskId = task?.id ?? '', contextId = task?.contextId ?? '', ...configuration } = {}) {
  const parts = [said].flat().map((it) => (typeof it === 'string' ? part('text', it) : it));
  const message = {
    messageId: randomUUID(), contextId, taskId, role: Role.ROLE_USER, parts, metadata: undefined, extensions: [],
    referenceTaskIds: [],
  };
  configuration = { acceptedOutputModes: [], returnImmediately: false, ...configuration };
  return { tenant: '', message, configuration, metadata: undefined };
}

/** Options with the version, which a client adds to those of its transport. */
const versioned = (client) => ({
  serviceParameters: ServiceParameters.create(withA2AVersion(client.protocolVersion)),
});

const text = (it) => it.parts.map((part) => part.content.value).join('');
const get = (id, more) => ({ tenant: '', id, ...more });
const payloads = async (stream) => (await all(stream)).map((it) => it.payload);
const artifacts = (events) => events.filter((it) => it.$case === 'artifactUpdate').map((it) => it.value);

const tests = {
  async card(client) {
    const card = await client.getAgentCard();
    assert.deepEqual([card.name, card.skills.map((it) => it.id)], ['Demo', ['echo', 'provoke']]);
    assert.deepEqual([card.capabilities.streaming, card.capabilities.pushNotifications], [true, true]);
  },

  async send(client) {
    const task = await client.sendMessage(request('hello'));
    assert.equal(task.status.state, TASK_STATE_COMPLETED);
    assert.deepEqual([task.artifacts.map(text), task.history.map(text)], [['hello'], ['hello']]);
  },

  async 'send text of every script'(client) {
    assert.equal(text((await client.sendMessage(request(EVERY_SCRIPT))).artifacts[0]), EVERY_SCRIPT);
  },

  async stream(client) {
    const events = await payloads(client.sendMessageStream(request('/stream 5 10')));
    assert.deepEqual(artifacts(events).map((it) => text(it.artifact)), chunks(5));
    // What it reads of the messages of 0.3's proto it loses `append` of.
    const loses = client.protocolVersion === '0.3' && client.transport.protocolName !== 'JSONRPC';
    assert.deepEqual(artifacts(events).map((it) => it.append), [false, ...Array(4).fill(!loses)]);
    assert.deepEqual(artifacts(events).map((it) => it.lastChunk), [false, false, false, false, true]);
    assert.deepEqual([events[0].$case, events[1].value.status.state], ['task', TASK_STATE_WORKING]);
    assert.equal(events.at(-1).value.status.state, TASK_STATE_COMPLETED);
    const task = await client.getTask(get(events[0].value.id));
    assert.deepEqual(task.artifacts.map(text), [chunks(5).join('')]);
  },

  async 'message only'(client) {
    const message = await client.sendMessage(request('/message hi'));
    assert.deepEqual([message.role, text(message)], [Role.ROLE_AGENT, 'hi']);
    const [event, ...more] = await payloads(client.sendMessageStream(request('/message hi')));
    assert.deepEqual([event.$case, text(event.value), more], ['message', 'hi', []]);
  },

  async get(client) {
    const asked = await client.sendMessage(request('/ask What?'));
    await client.sendMessage(request('That.', { task: asked }));
    const task = await client.getTask(get(asked.id));
    assert.deepEqual([task.contextId, task.status.state], [asked.contextId, TASK_STATE_COMPLETED]);
    assert.deepEqual(task.history.map(text), ['/ask What?', 'What?', 'That.']);
    assert.deepEqual((await client.getTask(get(asked.id, { historyLength: 1 }))).history.map(text), ['That.']);
  },

  async cancel(client) {
    const task = await started(client, '/slow 30');
    const canceled = await client.cancelTask(get(task.id));
    assert.equal(canceled.status.state, TASK_STATE_CANCELED);
    const done = await client.sendMessage(request('hello'));
    await refused('TaskNotCancelableError', client.cancelTask(get(done.id)));
  },

  async 'input required'(client) {
    const asked = await client.sendMessage(request('/ask What?'));
    assert.deepEqual([asked.status.state, text(asked.status.message)], [TASK_STATE_INPUT_REQUIRED, 'What?']);
    const done = await client.sendMessage(request('That.', { task: asked }));
    assert.deepEqual([done.id, done.status.state, text(done.artifacts[0])], [asked.id, TASK_STATE_COMPLETED, 'That.']);
  },

  async 'input required in streams'(client) {
    const asked = (await payloads(client.sendMessageStream(request('/ask What?')))).at(-1).value;
    assert.equal(asked.status.state, TASK_STATE_INPUT_REQUIRED);
    const { taskId, contextId } = asked;
    const events = await payloads(client.sendMessageStream(request('That.', { taskId, contextId })));
    assert.deepEqual([events[0].value.id, events.at(-1).value.status.state], [taskId, TASK_STATE_COMPLETED]);
  },

  async 'subscribe after a cut'(client) {
    let id;
    for await (const { payload } of client.sendMessageStream(request('/stream 20 50'))) {
      id = payload.value.id;
      break;
    }
    const events = await payloads(client.resubscribeTask(get(id)));
    assert.deepEqual([events[0].$case, events[0].value.id], ['task', id]);
    // What the task had when the subscription began, and what came then, are the whole.
    const texts = [...events[0].value.artifacts.map(text), ...artifacts(events).map((it) => text(it.artifact))];
    assert.equal(texts.join(''), chunks(20).join(''));
    assert.equal(events.at(-1).value.status.state, TASK_STATE_COMPLETED);
  },

  async 'push configurations'(client) {
    const { id: taskId } = await client.sendMessage(request('/ask What?'));
    const config = { ...WEBHOOK, taskId, authentication: { scheme: 'Bearer', credentials: 'secret' } };
    // Secrets are not returned.
    const saved = { ...config, token: '', authentication: { scheme: 'Bearer', credentials: '' } };
    assert.deepEqual({ ...(await client.createTaskPushNotificationConfig(config)) }, saved);
    const one = { tenant: '', taskId, id: 'p' };
    const every = { tenant: '', taskId, pageSize: 0, pageToken: '' };
    assert.deepEqual({ ...(await client.getTaskPushNotificationConfig(one)) }, saved);
    assert.deepEqual((await client.listTaskPushNotificationConfig(every)).configs, [saved]);
    await client.deleteTaskPushNotificationConfig(one);
    assert.deepEqual((await client.listTaskPushNotificationConfig(every)).configs ?? [], []);
    await refused('TaskNotFoundError', client.getTaskPushNotificationConfig(one));
  },

  async 'push configuration of a send'(client) {
    const { id: taskId } = await client.sendMessage(request('/ask What?', { taskPushNotificationConfig: WEBHOOK }));
    const { url, token } = await client.getTaskPushNotificationConfig({ tenant: '', taskId, id: 'p' });
    assert.deepEqual([url, token], [WEBHOOK.url, '']);
  },

  async 'push not supported'(client, other) {
    // The client looks at the card first, and so its transport is asked.
    const config = { ...WEBHOOK, taskId: 't' };
    await refused('PushNotificationNotSupportedError', other.transport.createTaskPushNotificationConfig(config, versioned(other)));
    const one = { tenant: '', taskId: 't', id: 'p' };
    await refused('PushNotificationNotSupportedError', other.transport.getTaskPushNotificationConfig(one, versioned(other)));
    const every = { ...one, pageSize: 0, pageToken: '' };
    await refused('PushNotificationNotSupportedError', other.transport.listTaskPushNotificationConfig(every, versioned(other)));
    await refused('PushNotificationNotSupportedError', other.transport.deleteTaskPushNotificationConfig(one, versioned(other)));
  },

  async 'parts of the agent'(client) {
    const [words, raw, url, data] = (await client.sendMessage(request('/parts'))).artifacts[0].parts;
    assert.equal(words.content.value, 'A text part.');
    assert.equal(Buffer.from(raw.content.value).toString(), 'A raw part.\n');
    assert.deepEqual([url.content.value, url.mediaType], ['https://example.com/map.png', 'image/png']);
    assert.deepEqual(data.content.value, { a: 'data part', numbers: [1, 2.5], nothing: null });
  },

  async 'parts of the user'(client) {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
    const parts = [
      part('text', 'hello'),
      part('raw', bytes, 'application/octet-stream'),
      part('url', 'https://example.com/x', 'image/png'),
      part('data', { a: [1, { b: true }], c: 'ä' }),
    ];
    const { id } = await client.sendMessage(request(parts));
    const [kept] = (await client.getTask(get(id))).history;
    const said = ({ content: { $case, value }, mediaType }) => [$case, $case === 'raw' ? [...value] : value, mediaType];
    assert.deepEqual(kept.parts.map(said), parts.map(said));
  },

  async failure(client) {
    const task = await client.sendMessage(request('/fail no such city'));
    assert.deepEqual([task.status.state, text(task.status.message)], [TaskState.TASK_STATE_FAILED, 'no such city']);
    assert.equal((await client.sendMessage(request('/reject no'))).status.state, TaskState.TASK_STATE_REJECTED);
  },

  async 'follow-up without waiting'(client) {
    const task = await client.sendMessage(request('/ask What?'));
    const sent = await client.sendMessage(request('That.', { task, returnImmediately: true }));
    const now = await client.getTask(get(task.id));
    for (const { status } of [sent, now]) {
      assert.ok([TASK_STATE_WORKING, TASK_STATE_COMPLETED].includes(status.state), status.state);
    }
  },

  async 'first update right after the reply'(client) {
    const { id } = await started(client, '/slow 30');
    assert.equal((await client.getTask(get(id))).status.state, TASK_STATE_WORKING);
    await client.cancelTask(get(id));
  },

  async 'unknown task'(client) {
    await refused('TaskNotFoundError', client.getTask(get('nobody')));
    await refused('TaskNotFoundError', client.cancelTask(get('nobody')));
    await refused('TaskNotFoundError', client.sendMessage(request('hello', { taskId: 'nobody' })));
    await refused('TaskNotFoundError', all(client.sendMessageStream(request('hello', { taskId: 'nobody' }))));
    await refused('TaskNotFoundError', all(client.resubscribeTask(get('nobody'))));
  },

  async 'bad parameters'(client) {
    await refused('RequestMalformedError', client.sendMessage(request([])));
    const asked = await client.sendMessage(request('/ask What?'));
    const other = request('That.', { taskId: asked.id, contextId: 'another' });
    await refused('RequestMalformedError', client.sendMessage(other));
  },

  async 'content type'(client, other) {
    const image = part('url', 'https://example.com/x.png', 'image/png');
    await refused('ContentTypeNotSupportedError', other.sendMessage(request(['hello', image])));
  },
};

/** What is otherwise where the SDK is given an interface of this version. */
const only = {
  '1.0': {
    async list(client) {
      const sent = await client.sendMessage(request('hello'));
      const list = { tenant: '', contextId: sent.contextId, status: TASK_STATE_COMPLETED, pageToken: '' };
      const page = await client.listTasks(list);
      assert.deepEqual([page.totalSize, page.tasks[0].id], [1, sent.id]);
      await refused('RequestMalformedError', client.listTasks({ ...list, pageSize: 1000 }));
    },

    async 'what has ended'(client) {
      const task = await client.sendMessage(request('hello'));
      await refused('UnsupportedOperationError', client.sendMessage(request('again', { task })));
      await refused('UnsupportedOperationError', all(client.sendMessageStream(request('again', { task }))));
      await refused('UnsupportedOperationError', all(client.resubscribeTask(get(task.id))));
    },

    async 'typed error before a stream'(client) {
      const error = await all(client.resubscribeTask(get('nobody'))).catch((it) => it);
      assert.equal(error.name, 'TaskNotFoundError', error);
    },

    async version(client) {
      // The client would say its own, so its transport is asked.
      const serviceParameters = ServiceParameters.create(withA2AVersion('9.9'));
      await refused('VersionNotSupportedError', client.transport.getTask(get('t'), { serviceParameters }));
    },

    async 'extended card'(client, other) {
      const asked = other.transport.getExtendedAgentCard({ tenant: '' }, versioned(other));
      await refused('UnsupportedOperationError', asked);
    },
  },

  '0.3': {
    async 'what has ended'(client) {
      const task = await client.sendMessage(request('hello'));
      await refused('RequestMalformedError', client.sendMessage(request('again', { task })));
      await refused('RequestMalformedError', all(client.sendMessageStream(request('again', { task }))));
      const [first] = await payloads(client.resubscribeTask(get(task.id)));
      assert.deepEqual([first.value.id, first.value.status.state], [task.id, TASK_STATE_COMPLETED]);
    },

    async 'extended card'(client, other) {
      const asked = other.transport.getExtendedAgentCard({ tenant: '' }, versioned(other));
      // GetAgentCard of gRPC is also the call for the public card.
      if (other.transport.protocolName === 'GRPC') assert.equal((await asked).name, 'Demo');
      else await refused('ExtendedAgentCardNotConfiguredError', asked);
    },
  },
};

const options = { legacyCompat: { enabled: true } };
for (const version of ['1.0', '0.3']) {
  for (const [binding, transport] of [
    ['JSONRPC', new JsonRpcTransportFactory(options)],
    ['HTTP+JSON', new RestTransportFactory(options)],
    ['GRPC', new GrpcTransportFactory(options)],
  ]) {
    /** A client that finds this version alone on the card. */
    const connect = async (url) => {
      const card = await new DefaultAgentCardResolver().resolve(url);
      const supportedInterfaces = card.supportedInterfaces.filter((it) => it.protocolVersion === version);
      return new ClientFactory({ transports: [transport] }).createFromAgentCard({ ...card, supportedInterfaces });
    };
    const [client, other] = [await connect(URL), await connect(OTHER)];
    assert.equal(client.protocolVersion, version);
    await check(`${SDK} at ${version} ${binding}`, { ...tests, ...only[version] }, client, other);
  }
}
end();
