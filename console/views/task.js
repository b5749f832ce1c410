// One task: its facts, and the tabs timeline, result, wire and push.

import { useEffect, useMemo, useState } from '../vendor/hooks.js';
import { signal } from '../vendor/signals.js';
import { sleep } from '../api.js';
import { askOf, duration, errorIdOf, grouped, isInterrupted, isTerminal, shortId, size, stateOf, summary, TaskLog, timelineRows, timeOf, timeOfId, turnsOf } from '../model.js';
import { Button, Clock, CopyButton, ErrorBox, html, Id, Link, Loading, Menu, options, Section, State, Table, Tabs, typed, useRun, useValue } from '../ui.js';
import { answerTo, api, go, isOperator, now, operatorApi, requestOf, route, send, TaskFeed, watch } from '../store.js';
import { curl, grpcurl, python, a2a } from '../copy.js';
import { FeedState, Question, TaskActions } from './chat.js';
import { Artifact, ErrorId, Message, Part } from './parts.js';
import { Deliveries, NO_RECEIVER, TaskPush } from './push.js';
import { Wire } from './wire.js';

export function CopyCall({ request, label }) {
  const forms = { curl, grpcurl, python, 'a2a command': a2a };
  return html`<${Menu} label=${label}>${Object.entries(forms).map(([name, write]) => html`<${CopyButton} key=${name} text=${() => write(request())} label=${name} />`)}<//>`;
}

/** The send that created a task, as a call. */
function sendRequest(task) {
  const first = askOf(task);
  const { taskId, contextId, ...message } = first ?? { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [] };
  return requestOf('SendMessage', { path: 'message:send', method: 'POST', body: { message } });
}

/** Reads a task from the operator API, of the owner that the address names. */
function readOperator(id, path, params, signal) {
  const { query } = route.peek();
  const all = new URLSearchParams(params);
  for (const [name, from] of [['owner', 'owner'], ['tenant', 'tenant'], ['agent', 'of']]) if (query.get(from)) all.set(name, query.get(from));
  return operatorApi.json(`operator/tasks/${encodeURIComponent(id)}${path}?${all}`, { signal });
}

/** Facts that only the operator API knows: owner, turns with attempts, caller. `version` changes when they are read again. */
function useOperatorTask(id, version) {
  const isFull = useValue(isOperator);
  const [result, setResult] = useState([null, null]);
  useRun(async (stop) => {
    if (!isFull) return;
    try {
      await sleep(150, stop);
      setResult([await readOperator(id, '', {}, stop), null]);
    } catch (error) {
      if (!stop.aborted) setResult(([facts]) => [facts, error]);
    }
  }, [id, isFull, version]);
  return result;
}

/** Log of a task of any owner, from the operator API, with the time of each event. Read again when `version` changes. */
function useOperatorLog(id, version) {
  const [source] = useState(() => ({ id, log: new TaskLog(), version: signal(0), pages: (params, stop) => readOperator(id, '/events', params, stop) }));
  useValue(source.version);
  useRun(async (stop) => {
    const { log } = source;
    for (let after = log.lastSeq; after !== null;) {
      const page = await source.pages({ after, limit: 500 }, stop).catch(() => ({ events: [], next: null }));
      for (const { seq, fence, time, hidden, bytes, wire } of page.events) log.add(`${id}.${fence}.${seq}`, wire, bytes, { at: time ? Date.parse(time) : null, isHidden: hidden });
      after = page.next;
      source.version.value += 1;
    }
  }, [id, version]);
  return source;
}

const Title = ({ id, state }) => html`<h1><${State} name=${state} /> <span class="state">task ${shortId(id)}</span></h1>`;

const Fact = ({ name, children }) => html`<dt>${name}</dt><dd>${children}</dd>`;

function Facts({ task, facts, log, who }) {
  const created = timeOfId(task.id);
  const updated = Date.parse(task.status?.timestamp);
  const end = isTerminal(task) || isInterrupted(task) ? updated : useValue(now);
  const errorId = errorIdOf(task);
  const turn = facts?.turns?.at(-1);
  return html`<dl class="facts">
    <${Fact} name="task"><${Id} id=${task.id} /><//>
    <${Fact} name="conversation">${who && facts.task.owner ? html`<${Id} id=${task.contextId} name="conversation" />` : html`<${Link} to=${['chat', task.contextId]}>${shortId(task.contextId)}<//>`}<//>
    ${created !== null && html`<${Fact} name="time"><${Clock} at=${created} /> for ${duration(end - created)}<//>`}
    <${Fact} name="events">${grouped(log.events.length)}<//>
    ${errorId && html`<${Fact} name="error id"><${ErrorId} id=${errorId} message=${task.status.message} /><//>`}
    ${facts?.task && html`<${Fact} name="owner">${facts.task.owner || '—'}${facts.task.tenant ? ` · tenant ${facts.task.tenant}` : ''}<//>`}
    ${turn && html`<${Fact} name="last turn">${[turn.caller && `caller ${turn.caller}`, turn.binding && `${turn.binding} ${turn.version ?? ''}`, `attempt ${turn.attempt ?? 1}`, turn.reason && turn.reason !== 'none' && `reason ${turn.reason}`, turn.tokens?.input && `${turn.tokens.input} + ${turn.tokens.output} tokens`, turn.trace && `trace ${turn.trace}`].filter(Boolean).join(' · ')}<//>`}
  </dl>`;
}

/** Turns from the operator API with exact times, otherwise from the statuses of the log. */
function spansOf(log, facts, current) {
  if (facts?.turns?.length > 0) {
    return facts.turns.map((turn, index) => {
      const begun = timeOf(turn.begun) ?? timeOf(turn.queued);
      const ended = timeOf(turn.ended) ?? current;
      const before = timeOf(facts.turns[index - 1]?.ended);
      const segments = [
        { name: 'queued', from: timeOf(turn.queued) ?? begun, to: begun },
        { name: turn.attempt > 1 ? `ran (attempt ${turn.attempt})` : 'ran', from: begun, to: ended },
      ];
      return { segments: segments.filter(({ from, to }) => to >= from && from !== null), from: segments[0].from, to: ended, waited: before === null ? 0 : Math.max(0, segments[0].from - before), end: turn.outcome && `TASK_STATE_${turn.outcome.toUpperCase()}`, errorId: turn.error_id };
    });
  }
  return turnsOf(log.events, current);
}

function Turns({ log, facts }) {
  const current = useValue(now);
  const turns = spansOf(log, facts, current);
  if (turns.length === 0) return null;
  const longest = Math.max(1, ...turns.map(({ from, to }) => to - from));
  const word = ({ state, name, from, to }) => `${name ?? stateOf(state).word} ${duration(to - from)}`;
  return html`<section class="stack" aria-label="Turns"><h2>Turns</h2><div class="bars">${turns.map((turn, index) => html`
    ${turn.waited > 0 && html`<p class="muted">waited ${duration(turn.waited)} for the client</p>`}
    <div class="bar-row" key=${index}><span>turn ${index + 1}</span>
      <div class="bar" aria-hidden="true">
        ${turn.segments.map((segment) => html`<span class=${segment.name === 'queued' || segment.state === 'TASK_STATE_SUBMITTED' ? 'queued' : ''} title=${word(segment)} style=${{ width: `${(100 * (segment.to - segment.from)) / longest}%` }}></span>`)}
      </div><span class="number">${duration(turn.to - turn.from)}</span></div>
    <p class="muted row"><span>${turn.segments.map(word).join(' → ')}</span>${turn.end ? html`<${State} name=${turn.end} />` : html`<span class="busy">running</span>`}${turn.errorId && html`<code>${turn.errorId}</code>`}</p>`)}
  </div></section>`;
}

const KINDS = { '': 'all kinds', task: 'created', statusUpdate: 'status', artifactUpdate: 'artifact', message: 'message' };

function What({ row }) {
  const text = summary(row.message?.parts, 160);
  if (row.kind === 'artifactUpdate') {
    const name = row.name || shortId(row.artifactId);
    return html`${row.count > 1 ? html`<strong>${grouped(row.count)} chunks</strong>` : 'chunk'} of artifact “${name}”${row.isLast ? html` <span class="muted">last</span>` : ''}`;
  }
  if (row.kind === 'message') return html`message ${row.isHidden ? html`<span class="muted">(from the client, on no stream)</span>` : ''} ${text}`;
  return html`<${State} name=${row.state} /> ${text && html`<span>${text}</span>`}`;
}

const PAGE = 500;

function Timeline({ log, task, facts }) {
  const [kind, setKind] = useState('');
  const [find, setFind] = useState('');
  const [opened, setOpened] = useState(null);
  const [limit, setLimit] = useState(PAGE);
  const rows = timelineRows(log.events, task.history);
  let last = null;
  const timed = rows.map((row) => {
    const delta = row.at !== null && last !== null ? row.at - last : null;
    last = row.at ?? last;
    return { ...row, delta };
  });
  const text = find.trim().toLowerCase();
  const shown = timed.filter((row) => (!kind || row.kind === kind) && (!text || JSON.stringify(row.events.map(({ response }) => response)).toLowerCase().includes(text)));
  return html`<div class="stack">
    ${log.hasGap && html`<p class="box ask">This log begins with a snapshot: earlier events are kept for a time after the end of a task (retention.logs).</p>`}
    <${Turns} log=${log} facts=${facts} />
    <section class="stack"><div class="row"><h2 class="grow">Events</h2>
      <select class="small" aria-label="Kind of event" value=${kind} onChange=${typed(setKind)}>${options(KINDS)}</select>
      <input id="find" class="small" type="search" aria-label="Find in events" placeholder="find" value=${find} onInput=${typed(setFind)} /></div>
      <${Table} label="Events" class="events" head="##|At|#+Δ|What|#Bytes">
        ${shown.slice(0, limit).map((row) => html`<tr key=${row.from}><td class="number">${row.events.length > 0
          ? html`<${Button} class="small plain" aria-expanded=${opened === row.from} onClick=${() => setOpened(opened === row.from ? null : row.from)}>${opened === row.from ? '▾' : '▸'} ${row.from}${row.to > row.from ? `…${grouped(row.to)}` : ''}<//>` : row.from}</td>
          <td class="mono"><${Clock} at=${row.at} /></td><td class="number mono">${row.delta === null ? '' : `+${duration(row.delta)}`}</td>
          <td><${What} row=${row} />${opened === row.from && html`<pre tabindex="0" role="region" aria-label="Event">${row.events.slice(0, 5).map(({ response }) => JSON.stringify(response, null, 2).slice(0, 20_000)).join('\n')}${row.events.length > 5 ? `\n… ${row.events.length - 5} more, see Wire` : ''}</pre>`}</td>
          <td class="number">${size(row.size)}</td></tr>`)}
      <//>
      ${shown.length > limit && html`<${Button} class="" onClick=${() => setLimit(limit + PAGE)}>Show more of ${grouped(shown.length)} rows<//>`}
      ${shown.length === 0 && html`<p class="muted">No event.</p>`}
    </section></div>`;
}

function Result({ task, who }) {
  const { artifacts = [], history = [], status, metadata } = task;
  return html`<div class="stack">
    ${status?.message && html`<${Section} title="Status message"><${Message} message=${{ ...status.message, metadata: null }} /><//>`}
    <${Section} title="Artifacts">${artifacts.length === 0 ? html`<p class="muted">None.</p>` : artifacts.map((artifact) => html`<${Artifact} key=${artifact.artifactId} artifact=${artifact} />`)}<//>
    <${Section} title="History">${history.map((message) => html`<${Message} key=${message.messageId} message=${message} who=${who} />`)}<//>
    ${metadata && Object.keys(metadata).length > 0 && html`<${Section} title="Metadata"><${Part} part=${{ data: metadata }} /><//>`}
  </div>`;
}

const TABS = { timeline: 'Timeline', result: 'Result', wire: 'Wire', push: 'Push' };

/** Facts and tabs of a task. `feed` has its log; `query` is that of its address; `push` is the content of the tab Push. */
function Details({ task, facts, feed, query, who, push, children }) {
  const { args: [id, tab = 'timeline'] } = route.peek();
  const { log } = feed;
  return html`<${Facts} task=${task} facts=${facts} log=${log} who=${who} />${children}
    <${Tabs} items=${TABS} to=${['task', id]} query=${query} current=${tab} label="Views of the task" />
    ${tab === 'result' ? html`<${Result} task=${task} who=${who} />` : tab === 'wire' ? html`<${Wire} feed=${feed} />` : tab === 'push' ? push : html`<${Timeline} log=${log} task=${task} facts=${facts} />`}`;
}

/** Task of any owner, only from the operator API. */
function OperatorTask({ id, query }) {
  const version = Math.floor(useValue(now) / 4000);
  const [facts, error] = useOperatorTask(id, version);
  const feed = useOperatorLog(id, version);
  if (!facts) return html`<div class="view"><h1>Task ${shortId(id)}</h1><${Loading} error=${error} title="The task can't be shown." /></div>`;
  const { state, context, updated, message, owner } = facts.task;
  const task = facts.snapshot ?? feed.log.task ?? { id, contextId: context, status: { state, timestamp: updated } };
  return html`<div class="view"><div class="row"><${Title} id=${id} state=${state} /><span class="grow"></span>${owner === '' && html`<${Link} to=${['task', id]} class="button small">Open as own task<//>`}</div>
    <${Details} task=${task} facts=${facts} feed=${feed} query=${Object.fromEntries(query)} who="Client"
      push=${facts.push.length > 0 ? html`<${Deliveries} deliveries=${facts.push} />` : NO_RECEIVER}>${message && html`<p class=${stateOf(state).tone === 'fail' ? 'box fail' : 'box'}>${message}</p>`}<//></div>`;
}

export function Task() {
  const { args: [id = ''], query } = useValue(route);
  const isFull = useValue(isOperator);
  return isFull && query.has('of') ? html`<${OperatorTask} key=${`${id}?${query}`} id=${id} query=${query} />` : html`<${OwnTask} />`;
}

function OwnTask() {
  const { args: [id = ''] } = useValue(route);
  const client = useValue(api);
  const feed = useMemo(() => new TaskFeed(id, client), [id, client]);
  useEffect(() => {
    void feed.load();
    return watch(feed);
  }, [feed]);
  useValue(feed.version);
  const state = feed.task?.status?.timestamp;
  const [facts] = useOperatorTask(id, state);
  const error = useValue(feed.error);
  const { task } = feed;
  if (!task) return html`<div class="view"><h1>Task ${shortId(id)}</h1><${Loading} error=${error} title="The task can't be shown." onRetry=${() => feed.load()} /></div>`;
  const answer = (parts) => send(answerTo(task, parts));
  return html`<div class="view">
    <div class="row"><${Title} id=${id} state=${task.status?.state} /><${FeedState} feed=${feed} /><span class="grow"></span>
      <${TaskActions} task=${task} onRetried=${(newId) => newId && go(['task', newId])} />
      <${CopyCall} label="Copy the call" request=${() => sendRequest(task)} />
      <${Link} to=${['chat', task.contextId]} class="button small">Open chat<//></div>
    <${Details} task=${task} facts=${facts} feed=${feed} push=${html`<${TaskPush} task=${task} deliveries=${facts?.push} />`}>
    ${task.status?.message && !isInterrupted(task) && stateOf(task.status.state).tone === 'fail' && html`<div class="box fail">${summary(task.status.message.parts, 2000)}</div>`}
    ${isInterrupted(task) && html`<div class="stack"><${Message} message=${task.status.message ?? { parts: [] }} />
      <${Question} key=${state} task=${task} onAnswer=${answer} /><div class="row"><${Link} to=${['chat', task.contextId]} class="button">Answer in the chat<//></div></div>`}
    ${error && feed.state.peek() === 'ended' && html`<${ErrorBox} error=${error} title="The log can't be read." />`}<//>
  </div>`;
}
