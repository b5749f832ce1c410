// Wire: the events of a task in the form of each binding, read from the server as a client receives them.

import { useState } from '../vendor/hooks.js';
import { ApiError, GrpcDecoder, grpcFrame, readBytes, readSse, rpcBody, stringField } from '../api.js';
import { grouped, isTerminal, parseCursor, size } from '../model.js';
import { Button, Code, CopyButton, ErrorBox, html, useRun, useValue, VirtualList } from '../ui.js';
import { requestOf } from '../store.js';
import { toText } from '../wire.js';
import { bytesOf } from './parts.js';
import { CopyCall } from './task.js';

const MAX_EVENTS = 20_000;
const SUBSCRIBE_ID = 2;

const subscribePath = (prefix, id, cursor) => `${prefix}tasks/${encodeURIComponent(id)}:subscribe?lastEventId=${encodeURIComponent(cursor)}`;

/** Each form: the call that returns it, for a cursor, and the name that it has in the operator API. */
const FORMS = {
  json: { label: '1.0 JSON', operator: '1.0', open: (id, cursor) => ({ path: subscribePath('', id, cursor), version: '1.0' }) },
  rpc: { label: '1.0 JSON-RPC', open: (id, cursor) => ({ path: 'rpc', version: '1.0', body: rpcBody('SubscribeToTask', { id }), cursor }) },
  json03: { label: '0.3 JSON', operator: '0.3' },
  rpc03: { label: '0.3 JSON-RPC', open: (id, cursor) => ({ path: 'rpc', version: '0.3', body: rpcBody('tasks/resubscribe', { id }), cursor }) },
  rest03: { label: '0.3 REST', open: (id, cursor) => ({ path: subscribePath('v1/', id, cursor), version: '0.3' }) },
  grpc: { label: 'gRPC text', operator: 'proto', isGrpc: true, open: (id, cursor) => ({ path: 'lf.a2a.v1.A2AService/SubscribeToTask', cursor }) },
};

const jsonEvent = (seq, raw) => ({ seq, bytes: new TextEncoder().encode(raw).length, raw, text: () => pretty(raw) });
const grpcEvent = (seq, bytes) => ({ seq, bytes: bytes.length, text: () => toText(bytes) });

/** Reads the log of a task of any owner, in a form of the operator API. */
async function readPages(form, { pages }, onEvents, signal) {
  const events = [];
  for (let after = 0; after !== null && events.length < MAX_EVENTS;) {
    const page = await pages({ after, limit: 500, form: form.operator }, signal);
    for (const { seq, wire } of page.events) events.push(form.isGrpc ? grpcEvent(seq, bytesOf(wire)) : jsonEvent(seq, JSON.stringify(wire)));
    after = page.next;
  }
  onEvents(events, true);
}

/** Reads the log in a form, up to the last event that the page knows, and calls `onEvents` as it grows. */
async function readForm(form, feed, onEvents, signal) {
  const { client, id } = feed;
  const events = [];
  let cursor = `${id}.0.0`;
  const limit = feed.log.lastSeq;
  // Streams of 0.3 end with each turn, and go on with the next one when they are resumed.
  for (;;) {
    const { path, version, body, cursor: header } = form.open(id, cursor);
    const stop = new AbortController();
    const before = events.length;
    const isComplete = () => events.length >= MAX_EVENTS || events.at(-1)?.seq >= limit;
    try {
      const response = await client.fetch(path, {
        method: body || form.isGrpc ? 'POST' : 'GET',
        body: form.isGrpc ? grpcFrame(stringField(SUBSCRIBE_ID, id)) : body,
        signal: AbortSignal.any([signal, stop.signal]),
        headers: {
          ...(version && { 'a2a-version': version }),
          ...(header && { 'last-event-id': header }),
          ...(form.isGrpc ? { 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' } : { accept: 'text/event-stream', ...(body && { 'content-type': 'application/json' }) }),
        },
      });
      if (form.isGrpc) {
        const status = response.headers.get('grpc-status');
        if (status && status !== '0') throw new ApiError(decodeURIComponent(response.headers.get('grpc-message') ?? `gRPC status ${status}`), { status: 400 });
        // gRPC has no cursors on events: they have the numbers of the other forms, in the same order.
        const seqs = feed.log.events.map(({ seq }) => seq);
        const decoder = new GrpcDecoder((bytes) => {
          if (isComplete()) return;
          events.push(grpcEvent(seqs[events.length] ?? events.length + 1, bytes));
          if (isComplete()) stop.abort();
        });
        await readBytes(response, (bytes) => decoder.push(bytes));
      } else {
        await readSse(response, ({ id: eventId, data }) => {
          if (isComplete()) return;
          const at = parseCursor(eventId);
          if (at) cursor = eventId;
          events.push(jsonEvent(at?.seq ?? events.length + 1, data));
          if (isComplete()) stop.abort();
        });
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!stop.signal.aborted) throw error;
    } finally {
      stop.abort();
    }
    onEvents([...events], isComplete() || events.length === before);
    if (isComplete() || events.length === before || form.isGrpc) return;
  }
}

function pretty(data) {
  try {
    return JSON.stringify(JSON.parse(data), null, 2);
  } catch {
    return data;
  }
}

const NOTHING = { form: null, events: [], isComplete: false, error: null };

/** Reads a form again when the log of the task has grown. */
function useForm(form, feed) {
  const [result, setResult] = useState(NOTHING);
  useValue(feed.version);
  const limit = isTerminal(feed.task) ? feed.log.lastSeq : 0;
  const isReady = feed.log.lastSeq > 0;
  useRun((stop) => {
    if (isReady) (feed.pages ? readPages : readForm)(form, feed, (events, isComplete) => setResult({ form, events, isComplete, error: null }), stop)
      .catch((error) => stop.aborted || setResult({ ...NOTHING, form, isComplete: true, error }));
  }, [form, feed, isReady, limit]);
  // The events of another form are not shown as those of this one.
  return result.form === form ? result : NOTHING;
}

/** Events of a feed, or of `{id, log, version, pages}` if they are those of the operator API. */
export function Wire({ feed }) {
  const [name, setName] = useState('json');
  const [selected, setSelected] = useState(0);
  const form = FORMS[name];
  const { events, isComplete, error } = useForm(form, feed);
  const event = events[Math.min(selected, events.length - 1)];
  const request = () => {
    const { path, body, cursor, version } = form.open(feed.id, `${feed.id}.0.0`);
    const call = requestOf('SubscribeToTask', { path, method: body ? 'POST' : 'GET', body: body && JSON.parse(body), headers: { ...(version && { 'a2a-version': version }), ...(cursor && { 'last-event-id': cursor }) } });
    return form.isGrpc ? { ...call, method: 'POST', body: JSON.stringify({ id: feed.id }) } : call;
  };
  const text = event?.text() ?? '';
  const row = (index) => html`<div class="list-row" role="row" key=${index} data-index=${index} aria-rowindex=${index + 2} onClick=${() => setSelected(index)}>
    <span role="cell" class="number">${events[index].seq}</span>
    <span role="cell"><${Button} class="small plain row-focus" aria-pressed=${index === selected} onClick=${() => setSelected(index)}>${kindOf(events[index])}<//></span><span role="cell" class="number muted">${size(events[index].bytes)}</span></div>`;
  return html`<div class="stack">
    <div class="row" role="group" aria-label="Form">${Object.entries(FORMS).filter(([, { open, operator }]) => (feed.pages ? operator : open)).map(([key, { label }]) => html`<${Button} key=${key} aria-pressed=${key === name} onClick=${() => setName(key)}>${label}<//>`)}
      ${!feed.pages && html`<span class="grow"></span><${CopyCall} label="Copy the call" request=${request} />`}</div>
    <${ErrorBox} error=${error} title="This form can't be read." />
    <p class="muted" role="status">${grouped(events.length)} events · ${size(events.reduce((sum, { bytes }) => sum + bytes, 0))}${isComplete ? '' : ' · reading…'}</p>
    ${events.length > 0 && html`<div class="wire">
      <${VirtualList} count=${events.length} height=${36} label="Events" columns=${3} row=${row} />
      <div class="detail"><div class="row"><strong>event ${event.seq}</strong><span class="muted">${size(event.bytes)}</span><span class="grow"></span><${CopyButton} text=${event.raw ?? text} label="Copy event" /></div>
        <${Code} key=${`${name}/${event.seq}`} text=${text} label="Event" /></div>
    </div>`}
  </div>`;
}

function kindOf({ raw, text }) {
  const match = /"(task|statusUpdate|artifactUpdate|message)":/.exec(raw?.slice(0, 200) ?? '') ?? /"kind":\s*"([\w-]+)"/.exec(raw ?? '') ?? /^\s*(\w+)/.exec(raw ? '' : text());
  return match?.[1] ?? 'event';
}
