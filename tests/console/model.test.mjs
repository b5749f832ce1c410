import assert from 'node:assert/strict';
import test from 'node:test';

import {
  applyEvent, approvalOf, contextsOf, duration, listRow, matches, parseCursor, requestedSchema, shortId, size, stateOf, TaskLog, timelineRows, timeOfId,
  turnsOf,
} from '../../console/model.js';

const ID = '01a21f1b-88a9-7000-967c-2410de77a01d';
const at = (seconds) => new Date(Date.UTC(2026, 10, 27, 22, 0, 0) + seconds * 1000).toISOString();
const message = (messageId, role, text) => ({ messageId, role, parts: [{ text }] });
const status = (state, seconds, said) => ({ statusUpdate: { taskId: ID, contextId: 'c', status: { state: `TASK_STATE_${state}`, timestamp: at(seconds), ...(said && { message: said }) } } });
const chunk = (text, append, more = {}) => ({ artifactUpdate: { taskId: ID, contextId: 'c', append, artifact: { artifactId: 'a', parts: [{ text }], ...more } } });
const created = { task: { id: ID, contextId: 'c', status: { state: 'TASK_STATE_SUBMITTED', timestamp: at(0) }, history: [message('m1', 'ROLE_USER', '/ask City?')] } };
const fold = (events) => events.reduce(applyEvent, null);

test('the messages of statuses move to the history', () => {
  const asked = message('m2', 'ROLE_AGENT', 'City?');
  const answered = message('m3', 'ROLE_USER', 'Lisbon');
  const task = fold([created, status('INPUT_REQUIRED', 1, asked), { message: answered }, status('WORKING', 2), status('COMPLETED', 3)]);
  assert.deepEqual(task.history, [created.task.history[0], asked, answered]);
  assert.deepEqual(task.status, { state: 'TASK_STATE_COMPLETED', timestamp: at(3) });
});

test('chunks extend an artifact, and adjacent texts are joined', () => {
  const task = fold([created, chunk('a', false, { name: 'n' }), chunk('b', true), chunk('c', true, { description: 'd', metadata: { x: 1 }, extensions: ['e'] }), chunk('!', true, { extensions: ['e'] })]);
  assert.deepEqual(task.artifacts, [{ artifactId: 'a', name: 'n', parts: [{ text: 'abc!' }], description: 'd', metadata: { x: 1 }, extensions: ['e'] }]);
});

test('texts with a file name, a media type or metadata stay separate', () => {
  const parts = [{ text: 'a' }, { text: 'b', filename: 'f' }, { text: 'c' }, { text: 'd', metadata: { x: 1 } }, { text: 'e', metadata: {} }];
  const task = fold([created, { artifactUpdate: { artifact: { artifactId: 'a', parts } } }]);
  assert.equal(task.artifacts[0].parts.length, 5);
});

test('a chunk without append replaces the artifact', () => {
  assert.deepEqual(fold([created, chunk('a', false), chunk('b', false)]).artifacts, [{ artifactId: 'a', parts: [{ text: 'b' }] }]);
});

test('an event does not change the events before it', () => {
  const first = structuredClone(created);
  const begin = chunk('a', false);
  fold([first, begin, chunk('b', true), status('INPUT_REQUIRED', 1, message('m2', 'ROLE_AGENT', '?')), status('WORKING', 2)]);
  assert.deepEqual(first, created);
  assert.deepEqual(begin, chunk('a', false));
});

test('metadata of statuses is merged, also a member called __proto__', () => {
  const update = JSON.parse('{"statusUpdate":{"status":{"state":"TASK_STATE_WORKING"},"metadata":{"__proto__":{"polluted":true},"b":2}}}');
  const task = fold([{ task: { ...created.task, metadata: { a: 1, b: 1 } } }, update]);
  assert.equal(task.metadata.a, 1);
  assert.equal(task.metadata.b, 2);
  assert.equal({}.polluted, undefined);
  assert.equal(task.metadata.polluted, undefined);
});

test('a log takes each event once, and knows a gap at its begin', () => {
  const log = new TaskLog();
  assert.ok(log.add(`${ID}.1.1`, created, 10));
  assert.ok(log.add(`${ID}.1.2`, chunk('a', false), 10));
  assert.ok(!log.add(`${ID}.1.2`, chunk('a', true), 10));
  assert.ok(log.add(`${ID}.1.3`, chunk('b', true), 10));
  assert.equal(log.task.artifacts[0].parts[0].text, 'ab');
  assert.equal(log.cursor, `${ID}.1.3`);
  assert.ok(!log.hasGap);
  const late = new TaskLog();
  late.add(`${ID}.1.7`, created, 10);
  assert.ok(late.hasGap);
});

test('cursors have a task, a fence and a number', () => {
  assert.deepEqual(parseCursor('a.b.3.14'), { task: 'a.b', fence: 3, seq: 14 });
  assert.equal(parseCursor('3.14'), null);
  assert.equal(parseCursor(null), null);
});

test('runs of chunks are one row, and missing numbers are follow-up messages', () => {
  const events = [
    { seq: 1, response: created, size: 10 },
    { seq: 2, response: status('INPUT_REQUIRED', 1, message('m2', 'ROLE_AGENT', '?')), size: 10 },
    { seq: 4, response: status('WORKING', 5), size: 10 },
    ...[5, 6, 7].map((seq) => ({ seq, response: chunk('x', seq > 5), size: 100 })),
    { seq: 8, response: status('COMPLETED', 6), size: 10 },
  ];
  const answer = message('m3', 'ROLE_USER', 'Lisbon');
  const rows = timelineRows(events, [...created.task.history, message('m2', 'ROLE_AGENT', '?'), answer]);
  assert.deepEqual(rows.map(({ kind, from, to }) => [kind, from, to]), [
    ['task', 1, 1], ['statusUpdate', 2, 2], ['message', 3, 3], ['statusUpdate', 4, 4], ['artifactUpdate', 5, 7], ['statusUpdate', 8, 8],
  ]);
  assert.equal(rows[2].message, answer);
  assert.ok(rows[2].isHidden);
  assert.deepEqual([rows[4].count, rows[4].size], [3, 300]);
});

test('turns have segments, and waits between them', () => {
  const events = [created, status('WORKING', 2), status('INPUT_REQUIRED', 3), status('WORKING', 33), chunk('x', false)].map((response, index) => ({ seq: index + 1, response }));
  const [first, second] = turnsOf(events, Date.parse(at(40)));
  assert.deepEqual(first.segments.map(({ state, from, to }) => [state, to - from]), [['TASK_STATE_SUBMITTED', 2000], ['TASK_STATE_WORKING', 1000]]);
  assert.equal(first.end, 'TASK_STATE_INPUT_REQUIRED');
  assert.equal(second.waited, 30_000);
  assert.deepEqual([second.to - second.from, second.end], [7000, null]);
});

test('approvals and schemas are those of a waiting task', () => {
  const waiting = { status: { state: 'TASK_STATE_INPUT_REQUIRED', message: { metadata: { toolCall: { name: 'write', arguments: { a: 1 } }, requestedSchema: { type: 'object' } } } } };
  assert.deepEqual(approvalOf(waiting), { name: 'write', arguments: { a: 1 } });
  assert.deepEqual(requestedSchema(waiting), { type: 'object' });
  waiting.status.state = 'TASK_STATE_COMPLETED';
  assert.equal(approvalOf(waiting), null);
  assert.equal(requestedSchema(waiting), null);
});

test('unknown states keep their name, also one of an object', () => {
  assert.equal(stateOf('constructor').word, 'constructor');
  assert.equal(stateOf(undefined).word, 'unknown');
});

test('rows of a list pass filters', () => {
  const row = listRow({ ...created.task, status: { state: 'TASK_STATE_FAILED', timestamp: at(5), message: { parts: [{ text: 'No such city' }], metadata: { errorId: 'E-77' } } } });
  const now = Date.parse(at(10));
  assert.equal(row.created, timeOfId(ID));
  for (const [filter, isPassed] of [
    [{}, true], [{ states: ['TASK_STATE_FAILED'] }, true], [{ states: ['TASK_STATE_WORKING'] }, false], [{ text: 'e-77' }, true], [{ text: ID.slice(0, 8) }, true],
    [{ text: 'such CITY' }, true], [{ text: 'zzz' }, false], [{ since: 6000 }, true], [{ since: 4000 }, false],
  ]) assert.equal(matches(row, filter, now), isPassed, JSON.stringify(filter));
});

test('contexts are ordered by their last change, and have the title of their first task', () => {
  const row = (id, context, updated, asked) => ({ id, context, updated, created: updated, asked, state: '' });
  const rows = [row('1', 'a', 5, 'first'), row('2', 'b', 7, 'other'), row('3', 'a', 9, 'second')];
  for (const order of [rows, rows.toReversed()]) {
    assert.deepEqual(contextsOf(order).map(({ id, title }) => [id, title]), [['a', 'first'], ['b', 'other']]);
  }
});

test('durations, sizes and ids are short', () => {
  assert.deepEqual([13, 1400, 125_000, 12_000_000, null].map(duration), ['13 ms', '1.4 s', '2:05 min', '3:20 h', '–']);
  assert.deepEqual([205, 1234, 3_400_000].map(size), ['205 B', '1.2 kB', '3.4 MB']);
  assert.equal(shortId(ID), '01a2…77a01d');
});
