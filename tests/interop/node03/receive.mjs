// Push notifications for the JavaScript SDK of protocol 0.3, whose own code for events updates a task by them:
// node receive.mjs URL EVENTS
//
// The second server sends events instead of tasks.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
import { InMemoryTaskStore, ResultManager } from '@a2a-js/sdk/server';
import { SDK, check, chunks, end } from './harness.mjs';
import { notifications } from './receiver.mjs';

const [URL, EVENTS] = process.argv.slice(2);

/** Checks the task that the SDK makes of the notifications. */
async function checkTask(server, kinds) {
  const card = await new DefaultAgentCardResolver().resolve(server);
  const client = await new ClientFactory({ transports: [new JsonRpcTransportFactory()] }).createFromAgentCard(card);
  let task;
  const received = await notifications(async (url) => {
    const parts = [{ kind: 'text', text: '/stream 3 50' }];
    const message = { kind: 'message', messageId: randomUUID(), role: 'user', parts };
    const pushNotificationConfig = { url, token: 'a token' };
    task = await client.sendMessage({ message, configuration: { blocking: true, pushNotificationConfig } });
  });
  const results = new ResultManager(new InMemoryTaskStore());
  for (const { headers, body } of received) {
    assert.equal(headers['x-a2a-notification-token'], 'a token');
    assert.ok(kinds.includes(body.kind), body.kind);
    await results.processEvent(body);
  }
  const { id, status, artifacts } = results.getCurrentTask();
  const text = artifacts.flatMap((it) => it.parts).map((it) => it.text).join('');
  assert.deepEqual([id, status.state, artifacts.length, text], [task.id, 'completed', 1, chunks(3).join('')]);
}

await check(`${SDK} receives`, {
  tasks: () => checkTask(URL, ['task']),
  events: () => checkTask(EVENTS, ['task', 'status-update', 'artifact-update']),
});
end();
