// Push notifications for the JavaScript SDK of protocol 1.0 and standardwebhooks: node receive.mjs URL EVENTS
//
// The second server sends events instead of tasks to configurations of 0.3.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { Role, StreamResponse, TaskState } from '@a2a-js/sdk';
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
import { legacyPushNotificationToV1StreamResponse } from '@a2a-js/sdk/compat/v0_3';
import { Webhook, WebhookVerificationError } from 'standardwebhooks';
import { SDK, WEBHOOKS, check, chunks, end } from './harness.mjs';
import { notifications } from './receiver.mjs';

const [URL, EVENTS] = process.argv.slice(2);
const SECRET = 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD';
const TOKEN = 'a token without a prefix';

/** The notifications of a task that is sent in this version. */
async function received(server, version, token) {
  const card = await new DefaultAgentCardResolver().resolve(server);
  const supportedInterfaces = card.supportedInterfaces.filter((it) => it.protocolVersion === version);
  const transports = [new JsonRpcTransportFactory({ legacyCompat: { enabled: true } })];
  const client = await new ClientFactory({ transports }).createFromAgentCard({ ...card, supportedInterfaces });
  const part = { content: { $case: 'text', value: '/stream 3 50' }, metadata: undefined, filename: '', mediaType: '' };
  const message = {
    messageId: randomUUID(), contextId: '', taskId: '', role: Role.ROLE_USER, parts: [part], metadata: undefined,
    extensions: [], referenceTaskIds: [],
  };
  return notifications((url) => {
    const taskPushNotificationConfig = { tenant: '', id: '', taskId: '', url, token, authentication: undefined };
    const configuration = { acceptedOutputModes: [], returnImmediately: false, taskPushNotificationConfig };
    return client.sendMessage({ tenant: '', message, configuration, metadata: undefined });
  });
}

const text = (artifact) => artifact.parts.map((part) => part.content.value).join('');

/** Checks that events begin with the task and end with its state, and that the artifact is complete. */
function checkEvents(events) {
  const [first, last] = [events[0].payload, events.at(-1).payload];
  assert.deepEqual([first.$case, last.$case], ['task', 'statusUpdate']);
  assert.deepEqual([last.value.taskId, last.value.status.state], [first.value.id, TaskState.TASK_STATE_COMPLETED]);
  const updates = events.filter((it) => it.payload.$case === 'artifactUpdate');
  assert.equal(updates.map((it) => text(it.payload.value.artifact)).join(''), chunks(3).join(''));
}

await check(`${SDK} receives`, {
  async 'stream responses of 1.0'() {
    const all = await received(URL, '1.0', TOKEN);
    const events = all.map((it) => StreamResponse.fromJSON(it.body));
    assert.deepEqual(events.map((it) => StreamResponse.toJSON(it)), all.map((it) => it.body));
    checkEvents(events);
    for (const { headers } of all) {
      assert.equal(headers['x-a2a-notification-token'], TOKEN);
      assert.equal(headers['content-type'], 'application/a2a+json');
    }
  },

  async 'tasks of 0.3'() {
    const all = await received(URL, '0.3', TOKEN);
    const tasks = all.map((it) => legacyPushNotificationToV1StreamResponse(it.body).payload);
    assert.ok(tasks.every((it) => it.$case === 'task' && it.value.id === tasks[0].value.id));
    const { artifacts, status } = tasks.at(-1).value;
    assert.deepEqual([artifacts.map(text), status.state], [[chunks(3).join('')], TaskState.TASK_STATE_COMPLETED]);
  },

  async 'events of 0.3'() {
    const all = await received(EVENTS, '0.3', TOKEN);
    checkEvents(all.map((it) => legacyPushNotificationToV1StreamResponse(it.body)));
  },
});

/** Checks that signatures are accepted, and tampered, replayed and other notifications are not. */
async function verify(token, webhook, other) {
  for (const version of ['1.0', '0.3']) {
    for (const { data, headers, body } of await received(URL, version, token)) {
      assert.deepEqual(webhook.verify(data, headers), body);
      const early = new Date((headers['webhook-timestamp'] - 3600) * 1000);
      const replayed = { ...headers, 'webhook-timestamp': `${early.getTime() / 1000}` };
      const signature = webhook.sign(headers['webhook-id'], early, data);
      for (const [by, ...rejected] of [
        [webhook, `${data} `, headers],
        [other, data, headers],
        [webhook, data, { ...headers, 'webhook-id': 'other' }],
        [webhook, data, replayed],
        // A replay an hour later, by the clock of the receiver: its own signature would be right.
        [webhook, data, { ...replayed, 'webhook-signature': signature }],
      ]) {
        assert.throws(() => by.verify(...rejected), WebhookVerificationError);
      }
    }
  }
}

await check(`${WEBHOOKS} receives`, {
  'secret with prefix': () => verify(SECRET, new Webhook(SECRET), new Webhook('whsec_AAAA')),
  'other token': () => verify(TOKEN, new Webhook(TOKEN, { format: 'raw' }), new Webhook('x', { format: 'raw' })),
});
end();
