// The JavaScript SDK of protocol 0.3 against the demo agent, over each transport: node sdk.mjs URL OTHER
//
// The other server takes no push configurations, and refuses media types that its card does not name.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import {
  ClientFactory, DefaultAgentCardResolver, JsonRpcTransport, JsonRpcTransportFactory, RestTransportFactory,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import { EVERY_SCRIPT, SDK, all, check, chunks, end, refused } from './harness.mjs';

const [URL, OTHER] = process.argv.slice(2);
const WEBHOOK = { id: 'p', url: 'https://hook.invalid/', token: 't' };

function params(said, { task, taskId = task?.id, contextId = task?.contextId, ...configuration } = {}) {
  const parts = [said].flat().map((it) => (typeof it === 'string' ? { kind: 'text', text: it } : it));
  const message = { kind: 'message', messageId: randomUUID(), role: 'user', parts, taskId, contextId };
  return { message, configuration };
}

const text = (it) => it.parts.map((part) => part.text).join('');
/** Over HTTP+JSON its ProtoJSON leaves out what is false, and a configuration without `blocking` does not wait. */
const slow = (client) => client.sendMessage(params('/slow 30', { blocking: false }));

const tests = {
  async card(client) {
    const card = await client.getAgentCard();
    assert.deepEqual([card.name, card.protocolVersion, card.preferredTransport], ['Demo', '0.3.0', 'JSONRPC']);
    assert.deepEqual([card.capabilities.streaming, card.capabilities.pushNotifications], [true, true]);
    assert.deepEqual(card.additionalInterfaces.map((it) => it.transport), ['JSONRPC', 'HTTP+JSON', 'GRPC']);
    assert.deepEqual(card.skills.map((it) => it.id), ['echo', 'provoke']);
  },

  async send(client) {
    const sent = params('hello');
    const task = await client.sendMessage(sent);
    assert.deepEqual([task.kind, task.status.state, task.artifacts.map(text)], ['task', 'completed', ['hello']]);
    const kept = task.history.map((it) => [it.messageId, it.role, it.taskId]);
    assert.deepEqual(kept, [[sent.message.messageId, 'user', task.id]]);
  },

  async 'send text of every script'(client) {
    assert.equal(text((await client.sendMessage(params(EVERY_SCRIPT))).artifacts[0]), EVERY_SCRIPT);
  },

  async 'send without waiting'(client) {
    const task = await slow(client);
    assert.ok(['submitted', 'working'].includes(task.status.state), task.status.state);
    assert.equal((await client.cancelTask({ id: task.id })).status.state, 'canceled');
  },

  async stream(client) {
    const [task, ...events] = await all(client.sendMessageStream(params('/stream 5 10')));
    assert.equal(task.kind, 'task');
    const updates = events.filter((it) => it.kind === 'artifact-update');
    assert.deepEqual(updates.map((it) => text(it.artifact)), chunks(5));
    // What it reads of the proto's messages it loses `append` of.
    const appends = client.transport instanceof JsonRpcTransport;
    assert.deepEqual(updates.map((it) => it.append ?? false), [false, ...Array(4).fill(appends)]);
    assert.deepEqual(updates.map((it) => it.lastChunk ?? false), [false, false, false, false, true]);
    const states = events.filter((it) => it.kind === 'status-update').map((it) => [it.status.state, it.final]);
    assert.deepEqual(states, [['working', false], ['completed', true]]);
    const whole = await client.getTask({ id: task.id });
    assert.deepEqual(whole.artifacts.map(text), [chunks(5).join('')]);
  },

  async 'message only'(client) {
    const message = await client.sendMessage(params('/message hi'));
    assert.deepEqual([message.kind, message.role, text(message)], ['message', 'agent', 'hi']);
    const [event, ...more] = await all(client.sendMessageStream(params('/message hi')));
    assert.deepEqual([event.kind, text(event), more], ['message', 'hi', []]);
  },

  async get(client) {
    const asked = await client.sendMessage(params('/ask What?'));
    const done = await client.sendMessage(params('That.', { task: asked }));
    const task = await client.getTask({ id: done.id });
    assert.deepEqual([task.id, task.contextId, task.status.state], [asked.id, asked.contextId, 'completed']);
    assert.deepEqual(task.history.map(text), ['/ask What?', 'What?', 'That.']);
    assert.deepEqual((await client.getTask({ id: done.id, historyLength: 1 })).history.map(text), ['That.']);
  },

  async cancel(client) {
    const task = await slow(client);
    assert.equal((await client.cancelTask({ id: task.id })).status.state, 'canceled');
    await refused('TaskNotCancelableError', client.cancelTask({ id: task.id }));
    const done = await client.sendMessage(params('hello'));
    await refused('TaskNotCancelableError', client.cancelTask({ id: done.id }));
  },

  async 'input required'(client) {
    const asked = await client.sendMessage(params('/ask What?'));
    assert.deepEqual([asked.status.state, text(asked.status.message)], ['input-required', 'What?']);
    const done = await client.sendMessage(params('That.', { task: asked }));
    assert.deepEqual([done.id, done.status.state, text(done.artifacts[0])], [asked.id, 'completed', 'That.']);
  },

  async 'follow-up without waiting'(client) {
    const asked = await client.sendMessage(params('/ask What?'));
    const sent = await client.sendMessage(params('That.', { task: asked, blocking: false }));
    const now = await client.getTask({ id: asked.id });
    for (const { status } of [sent, now]) assert.ok(['working', 'completed'].includes(status.state), status.state);
  },

  async 'first update right after the reply'(client) {
    const { id } = await slow(client);
    assert.equal((await client.getTask({ id })).status.state, 'working');
    await client.cancelTask({ id });
  },

  async 'input required in streams'(client) {
    const asked = (await all(client.sendMessageStream(params('/ask What?')))).at(-1);
    assert.deepEqual([asked.status.state, asked.final], ['input-required', true]);
    const answer = params('That.', { taskId: asked.taskId, contextId: asked.contextId });
    const events = await all(client.sendMessageStream(answer));
    const last = events.at(-1);
    assert.deepEqual([events[0].id, last.status.state, last.final], [asked.taskId, 'completed', true]);
  },

  async 'subscribe after a cut'(client) {
    let id;
    for await (const event of client.sendMessageStream(params('/stream 20 50'))) {
      id = event.id;
      break;
    }
    const [task, ...events] = await all(client.resubscribeTask({ id }));
    assert.equal(task.id, id);
    // What the task had when the subscription began, and what came then, are the whole.
    const updates = events.filter((it) => it.kind === 'artifact-update').map((it) => text(it.artifact));
    assert.equal([...(task.artifacts ?? []).map(text), ...updates].join(''), chunks(20).join(''));
    assert.deepEqual([events.at(-1).status.state, events.at(-1).final], ['completed', true]);
  },

  async 'subscribe to what has ended'(client) {
    const done = await client.sendMessage(params('hello'));
    const [task] = await all(client.resubscribeTask({ id: done.id }));
    assert.deepEqual([task.id, task.status.state], [done.id, 'completed']);
  },

  async 'push configurations'(client) {
    const { id } = await client.sendMessage(params('/ask What?'));
    const authentication = { schemes: ['Bearer'], credentials: 'secret' };
    const config = { taskId: id, pushNotificationConfig: { ...WEBHOOK, authentication } };
    // Secrets are not returned.
    const webhook = { id: 'p', url: WEBHOOK.url, authentication: { schemes: ['Bearer'] } };
    const saved = { taskId: id, pushNotificationConfig: webhook };
    // Over HTTP+JSON and gRPC, the client has empty texts for missing ones.
    const bare = (it) => JSON.parse(JSON.stringify(it, (_, value) => (value === '' ? undefined : value)));
    assert.deepEqual(bare(await client.setTaskPushNotificationConfig(config)), saved);
    const query = { id, pushNotificationConfigId: 'p' };
    assert.deepEqual(bare(await client.getTaskPushNotificationConfig(query)), saved);
    assert.deepEqual(bare(await client.listTaskPushNotificationConfig({ id })), [saved]);
    await client.deleteTaskPushNotificationConfig(query);
    assert.deepEqual(await client.listTaskPushNotificationConfig({ id }), []);
    await refused('TaskNotFoundError', client.getTaskPushNotificationConfig(query));
  },

  async 'push configuration of a send'(client) {
    const sent = params('/ask What?', { pushNotificationConfig: WEBHOOK, blocking: true });
    const { id } = await client.sendMessage(sent);
    const kept = await client.getTaskPushNotificationConfig({ id, pushNotificationConfigId: 'p' });
    const { url, token } = kept.pushNotificationConfig;
    assert.deepEqual([url, token || undefined], [WEBHOOK.url, undefined]);
  },

  async 'push not supported'(client, other) {
    // The client looks at the card first, and so its transport is asked.
    const config = { taskId: 't', pushNotificationConfig: WEBHOOK };
    await refused('PushNotificationNotSupportedError', other.transport.setTaskPushNotificationConfig(config));
    const query = { id: 't', pushNotificationConfigId: 'p' };
    await refused('PushNotificationNotSupportedError', other.transport.getTaskPushNotificationConfig(query));
    await refused('PushNotificationNotSupportedError', other.transport.listTaskPushNotificationConfig(query));
    await refused('PushNotificationNotSupportedError', other.transport.deleteTaskPushNotificationConfig(query));
  },

  async 'parts of the agent'(client) {
    const [words, raw, url, data] = (await client.sendMessage(params('/parts'))).artifacts[0].parts;
    assert.equal(words.text, 'A text part.');
    assert.equal(Buffer.from(raw.file.bytes, 'base64').toString(), 'A raw part.\n');
    assert.deepEqual([url.file.uri, url.file.mimeType], ['https://example.com/map.png', 'image/png']);
    // Over gRPC it makes a 0 of null, and can't send one.
    const nothing = client.transport.grpcClient ? 0 : null;
    assert.deepEqual(data.data, { a: 'data part', numbers: [1, 2.5], nothing });
  },

  async 'parts of the user'(client) {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n)).toString('base64');
    const parts = [
      { kind: 'text', text: 'hello' },
      { kind: 'file', file: { bytes, mimeType: 'application/octet-stream' } },
      { kind: 'file', file: { uri: 'https://example.com/x', mimeType: 'image/png' } },
      { kind: 'data', data: { a: [1, { b: client.transport.grpcClient ? true : null }], c: 'ä' } },
    ];
    const { id } = await client.sendMessage(params(parts));
    const [kept] = (await client.getTask({ id })).history;
    assert.deepEqual(kept.parts, parts);
  },

  async failure(client) {
    const task = await client.sendMessage(params('/fail no such city'));
    assert.deepEqual([task.status.state, text(task.status.message)], ['failed', 'no such city']);
    assert.equal((await client.sendMessage(params('/reject no'))).status.state, 'rejected');
  },

  async 'unknown task'(client) {
    await refused('TaskNotFoundError', client.getTask({ id: 'nobody' }));
    await refused('TaskNotFoundError', client.cancelTask({ id: 'nobody' }));
    await refused('TaskNotFoundError', client.sendMessage(params('hello', { taskId: 'nobody' })));
    await refused('TaskNotFoundError', all(client.sendMessageStream(params('hello', { taskId: 'nobody' }))));
    await refused('TaskNotFoundError', all(client.resubscribeTask({ id: 'nobody' })));
  },

  // This SDK has no class for these.
  async 'bad parameters'(client) {
    const bad = /-32602|INVALID_ARGUMENT|\b3 InvalidParamsError/;
    await assert.rejects(client.sendMessage(params([])), bad);
    await assert.rejects(all(client.sendMessageStream(params([]))), bad);
    const task = await client.sendMessage(params('hello'));
    await assert.rejects(client.sendMessage(params('again', { task })), bad);
    await assert.rejects(all(client.sendMessageStream(params('again', { task }))), bad);
    const asked = await client.sendMessage(params('/ask What?'));
    await assert.rejects(client.sendMessage(params('That.', { taskId: asked.id, contextId: 'another' })), bad);
  },

  async 'content type'(client, other) {
    const image = { kind: 'file', file: { uri: 'https://example.com/x.png', mimeType: 'image/png' } };
    const sent = other.sendMessage(params(['hello', image]));
    // Over gRPC it has no class for this.
    if (other.transport.grpcClient) await assert.rejects(sent, /\b3 ContentTypeNotSupportedError/);
    else await refused('ContentTypeNotSupportedError', sent);
  },

  async 'extended card'(client, other) {
    const asked = other.transport.getExtendedAgentCard();
    // GetAgentCard of gRPC is also the call for the public card.
    if (other.transport.grpcClient) assert.equal((await asked).name, 'Demo');
    else await refused('AuthenticatedExtendedCardNotConfiguredError', asked);
  },
};

for (const transport of [new JsonRpcTransportFactory(), new RestTransportFactory(), new GrpcTransportFactory()]) {
  const connect = async (url) => {
    const card = await new DefaultAgentCardResolver().resolve(url);
    return new ClientFactory({ transports: [transport] }).createFromAgentCard(card);
  };
  await check(`${SDK} ${transport.protocolName}`, tests, await connect(URL), await connect(OTHER));
}
end();
