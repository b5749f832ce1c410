// Events of a task → the task, rows of a timeline and the durations of its turns. Pure functions over ProtoJSON of A2A 1.0.

/** Every task state: word, symbol and tone. The tone selects a color; the symbol and the word say the same without color. */
export const STATES = {
  TASK_STATE_SUBMITTED: { word: 'submitted', symbol: '◌', tone: 'busy' },
  TASK_STATE_WORKING: { word: 'working', symbol: '●', tone: 'busy' },
  TASK_STATE_INPUT_REQUIRED: { word: 'input required', symbol: '?', tone: 'ask', isInterrupted: true },
  TASK_STATE_AUTH_REQUIRED: { word: 'auth required', symbol: '!', tone: 'ask', isInterrupted: true },
  TASK_STATE_COMPLETED: { word: 'completed', symbol: '✓', tone: 'ok', isTerminal: true },
  TASK_STATE_FAILED: { word: 'failed', symbol: '✗', tone: 'fail', isTerminal: true },
  TASK_STATE_CANCELED: { word: 'canceled', symbol: '⊘', tone: 'muted', isTerminal: true },
  TASK_STATE_REJECTED: { word: 'rejected', symbol: '⊗', tone: 'fail', isTerminal: true },
};

const UNKNOWN_STATE = { word: 'unknown', symbol: '·', tone: 'muted' };

/** Returns the row of `STATES` for a state; an unknown one keeps its own name as the word. */
export function stateOf(name) {
  if (Object.hasOwn(STATES, name)) return STATES[name];
  return name ? { ...UNKNOWN_STATE, word: String(name).replace(/^TASK_STATE_/, '').toLowerCase() } : UNKNOWN_STATE;
}

export const isTerminal = (task) => stateOf(task?.status?.state).isTerminal === true;
export const isInterrupted = (task) => stateOf(task?.status?.state).isInterrupted === true;

export const PRESETS = {
  'in-flight': ['TASK_STATE_SUBMITTED', 'TASK_STATE_WORKING'],
  waits: ['TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED'],
  failed: ['TASK_STATE_FAILED', 'TASK_STATE_REJECTED'],
};

/** Splits a cursor `<task>.<fence>.<seq>`. Returns `null` for any other text. */
export function parseCursor(text) {
  const match = /^(.+)\.(\d+)\.(\d+)$/.exec(text ?? '');
  return match && { task: match[1], fence: Number(match[2]), seq: Number(match[3]) };
}

export function payloadOf(response) {
  for (const kind of ['task', 'statusUpdate', 'artifactUpdate', 'message']) {
    if (response?.[kind]) return { kind, value: response[kind] };
  }
  return { kind: 'unknown', value: response };
}

const isEmpty = (object) => !object || Object.keys(object).length === 0;

/** A part with nothing but text: adjacent ones are one part in a task. */
const isPlainText = (part) =>
  typeof part?.text === 'string' && isEmpty(part.metadata) && !part.filename && !part.mediaType;

function appendPart(parts, part) {
  const last = parts.at(-1);
  if (isPlainText(last) && isPlainText(part)) parts[parts.length - 1] = { ...last, text: last.text + part.text };
  else parts.push(part);
}

function joinedParts(parts) {
  const joined = [];
  for (const part of parts ?? []) appendPart(joined, part);
  return joined;
}

/** Copies the members of `more` over those of `object`. A member called `__proto__` stays a member. */
const merged = (object, more) => ({ ...object, ...more });

function extendArtifact(artifact, chunk) {
  for (const part of chunk.parts ?? []) appendPart(artifact.parts, part);
  if (chunk.name) artifact.name = chunk.name;
  if (chunk.description) artifact.description = chunk.description;
  if (!isEmpty(chunk.metadata)) artifact.metadata = merged(artifact.metadata, chunk.metadata);
  for (const extension of chunk.extensions ?? []) {
    artifact.extensions ??= [];
    if (!artifact.extensions.includes(extension)) artifact.extensions.push(extension);
  }
}

function archiveStatusMessage(task) {
  const message = task.status?.message;
  if (!message) return;
  (task.history ??= []).push(message);
  task.status = { ...task.status };
  delete task.status.message;
}

/**
 * Applies an event to a task, and returns the task: the same object, unless the event is a snapshot. The result equals `GetTask`
 * of the server after that event.
 */
export function applyEvent(task, response) {
  const { kind, value } = payloadOf(response);
  if (kind === 'task') {
    return { ...value, history: [...(value.history ?? [])], artifacts: (value.artifacts ?? []).map((artifact) => ({ ...artifact, parts: [...(artifact.parts ?? [])] })) };
  }
  task ??= { id: value?.taskId, contextId: value?.contextId, history: [], artifacts: [] };
  if (kind === 'message') {
    archiveStatusMessage(task);
    (task.history ??= []).push(value);
  } else if (kind === 'statusUpdate') {
    archiveStatusMessage(task);
    task.status = value.status;
    if (!isEmpty(value.metadata)) task.metadata = merged(task.metadata, value.metadata);
  } else if (kind === 'artifactUpdate' && value.artifact) {
    const artifacts = (task.artifacts ??= []);
    const chunk = value.artifact;
    const index = artifacts.findLastIndex((artifact) => artifact.artifactId === chunk.artifactId);
    if (index >= 0 && value.append) extendArtifact(artifacts[index], chunk);
    else artifacts[index < 0 ? artifacts.length : index] = { ...chunk, parts: joinedParts(chunk.parts) };
  }
  return task;
}

/** The log of a task as far as it was received: each event once, in the order of its number. */
export class TaskLog {
  constructor() {
    this.task = null;
    this.events = [];
    this.cursor = null;
    this.lastSeq = 0;
    /** True if the server no longer has the first events: the log begins with a snapshot. */
    this.hasGap = false;
  }

  /** Adds an event with its `id:`, and what the operator API knows in addition. Returns false if it was received before. */
  add(id, response, size, more = {}) {
    const cursor = parseCursor(id);
    const seq = cursor?.seq ?? this.lastSeq + 1;
    if (cursor && seq <= this.lastSeq) return false;
    // A snapshot in place of the events that the log lacks.
    if (payloadOf(response).kind === 'task' && seq > 1 && this.lastSeq + 1 !== seq) this.hasGap = true;
    this.task = applyEvent(this.task, response);
    this.events.push({ ...more, seq, id, response, size });
    this.lastSeq = seq;
    if (cursor) this.cursor = id;
    return true;
  }
}

/** Returns the time in a UUIDv7, in milliseconds, or `null` for any other id. */
export function timeOfId(id) {
  const match = /^([0-9a-f]{8})-([0-9a-f]{4})-7/i.exec(id ?? '');
  return match && Number.parseInt(match[1] + match[2], 16);
}

export const timeOf = (text) => {
  const time = Date.parse(text ?? '');
  return Number.isNaN(time) ? null : time;
};

/** Returns the texts of parts, with a word in place of each other part. */
export function summary(parts, limit = 200) {
  const texts = (parts ?? []).map((part) => {
    if (typeof part.text === 'string') return part.text.slice(0, limit);
    if (part.filename) return `[${part.filename}]`;
    if (part.data !== undefined) return (JSON.stringify(part.data) ?? '').slice(0, limit);
    return `[${part.mediaType || (part.url ? 'link' : 'file')}]`;
  });
  const text = texts.join(' ').replaceAll(/\s+/g, ' ');
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}

/**
 * Returns the rows of a timeline. Runs of chunks of one artifact are one row. Follow-up messages are on no stream: they are taken
 * from the history of the task, in its order, for the numbers that the log lacks.
 */
export function timelineRows(events, history = []) {
  const first = events.find(({ response }) => response.task)?.response.task;
  const known = new Set((first?.history ?? []).map((message) => message.messageId));
  const hidden = history.filter((message) => message.role === 'ROLE_USER' && !known.has(message.messageId));
  const rows = [];
  let expected = events[0]?.seq ?? 1;
  for (const event of events) {
    const { kind, value } = payloadOf(event.response);
    for (; expected < event.seq && hidden.length > 0; expected += 1) {
      const message = hidden.shift();
      rows.push({ kind: 'message', from: expected, to: expected, at: null, size: 0, message, isHidden: true, events: [] });
    }
    expected = event.seq + 1;
    const at = event.at ?? timeOf(value?.status?.timestamp);
    const last = rows.at(-1);
    const artifactId = kind === 'artifactUpdate' ? value.artifact?.artifactId : null;
    if (artifactId !== null && last?.artifactId === artifactId && value.append) {
      last.to = event.seq;
      last.count += 1;
      last.size += event.size ?? 0;
      last.isLast = value.lastChunk === true;
      last.events.push(event);
      continue;
    }
    rows.push({
      kind,
      from: event.seq,
      to: event.seq,
      at,
      size: event.size ?? 0,
      state: value?.status?.state,
      message: kind === 'message' ? value : value?.status?.message ?? (kind === 'task' ? value.history?.at(-1) : undefined),
      artifactId,
      name: value?.artifact?.name,
      count: 1,
      isLast: value?.lastChunk === true,
      isHidden: event.isHidden,
      events: [event],
    });
  }
  return rows;
}

/**
 * Returns the turns of a task, each with its segments `{state, from, to}` in milliseconds, the time of the wait before it, and the
 * state in which it ended. `to` of the last segment of a running turn is `now`.
 */
export function turnsOf(events, now) {
  const turns = [];
  let turn = null;
  for (const { response } of events) {
    const { kind, value } = payloadOf(response);
    if (kind !== 'task' && kind !== 'statusUpdate') continue;
    const at = timeOf(value.status?.timestamp);
    const name = value.status?.state;
    if (at === null) continue;
    if (turn === null) {
      turn = { segments: [], waited: turns.length > 0 ? at - turns.at(-1).to : 0, from: at, end: null };
      turns.push(turn);
    }
    const last = turn.segments.at(-1);
    if (last) last.to = at;
    const state = stateOf(name);
    if (state.isTerminal || state.isInterrupted) {
      turn.end = name;
      turn.to = at;
      turn = null;
    } else {
      turn.segments.push({ state: name, from: at, to: Math.max(now, at) });
    }
  }
  if (turn) turn.to = Math.max(now, turn.from);
  return turns;
}

/** Metadata of the question of a task that waits. */
const questionOf = (task) => (isInterrupted(task) ? task.status.message?.metadata : null);

/** Returns the tool call that a task asks to approve: `{name, arguments}`, or `null`. */
export function approvalOf(task) {
  const call = questionOf(task)?.toolCall;
  return call && typeof call === 'object' ? { name: String(call.name ?? ''), arguments: call.arguments } : null;
}

/** Returns the JSON Schema of the answer that a task asks for, or `null`. */
export function requestedSchema(task) {
  const schema = questionOf(task)?.requestedSchema;
  return schema && typeof schema === 'object' && !Array.isArray(schema) ? schema : null;
}

/** First message of the client. */
export const askOf = (task) => task.history?.find(({ role }) => role === 'ROLE_USER');

export function errorIdOf(task) {
  const id = task?.status?.message?.metadata?.errorId;
  return typeof id === 'string' ? id : null;
}

export function listRow(task) {
  const last = task.history?.at(-1);
  const updated = timeOf(task.status?.timestamp);
  return {
    id: String(task.id),
    context: String(task.contextId ?? ''),
    state: task.status?.state ?? '',
    created: timeOfId(task.id) ?? updated,
    updated,
    errorId: errorIdOf(task),
    asked: summary(askOf(task)?.parts, 80),
    message: summary((task.status?.message ?? last)?.parts),
  };
}

export function operatorRow(task) {
  const { state, error_id: errorId = null, events, bytes, attempt } = task;
  const [id, context, message, owner, tenant, agent] = ['id', 'context', 'message', 'owner', 'tenant', 'agent'].map((name) => String(task[name] ?? ''));
  return { id, context, state: state ?? '', created: timeOf(task.created), updated: timeOf(task.updated), errorId, asked: '', message, owner, tenant, agent, events, bytes, attempt };
}

/** Returns true if a row of the list passes the filter `{states, text, since, owner}`. */
export function matches(row, filter, now) {
  if (filter.states?.length && !filter.states.includes(row.state)) return false;
  if (filter.since && (row.updated ?? 0) < now - filter.since) return false;
  if (filter.owner && row.owner !== filter.owner) return false;
  const text = filter.text?.trim().toLowerCase();
  if (!text) return true;
  return [row.id, row.context, row.errorId, row.message, row.asked].some((field) => field?.toLowerCase().includes(text));
}

/** Groups rows by context: the newest first, each with the row that was changed last. */
export function contextsOf(rows) {
  const contexts = new Map();
  for (const row of rows) {
    const known = contexts.get(row.context);
    if (!known) contexts.set(row.context, { id: row.context, updated: row.updated, last: row, title: row.asked, titleCreated: row.created });
    else {
      if (row.updated > known.updated) Object.assign(known, { updated: row.updated, last: row });
      if (row.asked && (!known.title || row.created < known.titleCreated)) Object.assign(known, { title: row.asked, titleCreated: row.created });
    }
  }
  return [...contexts.values()].sort((a, b) => b.updated - a.updated);
}

/** Writes a duration in milliseconds: `13 ms`, `1.4 s`, `2:05 min`, `3:20 h`. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '–';
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const two = (number) => String(Math.floor(number)).padStart(2, '0');
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)}:${two((ms % 60_000) / 1000)} min`;
  return `${Math.floor(ms / 3_600_000)}:${two((ms % 3_600_000) / 60_000)} h`;
}

const AGES = [[86_400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

/** Writes the age of a time: `now`, `5 s`, `3 min`, `2 h`, `4 d`. */
export function age(time, now) {
  const seconds = Math.round((now - time) / 1000);
  const [length, unit] = AGES.find(([length]) => seconds >= length) ?? [];
  return seconds < 2 ? 'now' : `${Math.floor(seconds / length)} ${unit}`;
}

/** Writes a size: `205 B`, `1.2 kB`, `3.4 MB`. */
export function size(bytes) {
  if ((bytes ?? null) === null) return '–';
  const unit = bytes < 1000 ? 0 : Math.min(3, Math.floor(Math.log10(bytes) / 3));
  return unit ? `${(bytes / 1000 ** unit).toFixed(1)} ${'kMG'[unit - 1]}B` : `${bytes} B`;
}

export const shortId = (id) => (id?.length > 14 ? `${id.slice(0, 4)}…${id.slice(-6)}` : (id ?? ''));

export const grouped = (number) => (number ?? null) === null ? '–' : number.toLocaleString('en');
