// Folds the logs of logs.json, which a test of the library records, and compares the tasks with those of the server.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';

import { applyEvent, isTerminal, TaskLog, timelineRows, turnsOf } from '../../console/model.js';

const logs = JSON.parse(readFileSync(new URL('logs.json', import.meta.url), 'utf8'));

/** Returns a task as JSON, in which empty lists are left out. */
const plain = (task) => JSON.parse(JSON.stringify(task, (_, value) => (Array.isArray(value) && value.length === 0 ? undefined : value)));

for (const { name, events, tasks } of logs) {
  test(`the events of the log "${name}" are the task of the server after each turn`, () => {
    for (const { events: count, task } of tasks) {
      const folded = structuredClone(events.slice(0, count)).reduce((task, { wire }) => applyEvent(task, wire), null);
      assert.deepEqual(plain(folded), plain(task));
    }
  });

  test(`a stream of the log "${name}" is the task without follow-up messages`, () => {
    const { task } = tasks.at(-1);
    const log = new TaskLog();
    for (const { seq, hidden, wire } of structuredClone(events)) if (!hidden) assert.ok(log.add(`${task.id}.1.${seq}`, wire, 1));
    const hidden = events.filter((event) => event.hidden).map(({ seq, wire }) => [seq, wire.message.messageId]);
    const history = task.history.filter(({ messageId }) => !hidden.some(([, id]) => id === messageId));
    assert.deepEqual(plain(log.task), plain({ ...task, history }));
    const rows = timelineRows(log.events, task.history);
    assert.deepEqual(rows.filter(({ isHidden }) => isHidden).map(({ from, message }) => [from, message.messageId]), hidden);
    assert.equal(rows.at(-1).to, events.at(-1).seq);
    const turns = turnsOf(log.events, 0);
    assert.deepEqual(turns.map(({ end }) => end), tasks.map(({ task }) => task.status.state));
    assert.ok(isTerminal(log.task));
  });
}

test('the logs have every kind of event', () => {
  const text = JSON.stringify(logs);
  const kinds = ['"append":true', '"requestedSchema"', 'urn:a2a-service:secret:v1', '[redacted', '__proto__', 'CANCELED', 'REJECTED', '"errorId"', '"raw"', '"url"', '"data"'];
  assert.deepEqual(kinds.filter((kind) => !text.includes(kind)), []);
  assert.ok(logs.some(({ tasks }) => tasks.length > 2), 'a task with several turns');
});
