// List of tasks: own ones, or those of all owners for operators. Filters are in the address.

import { useEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import { duration, grouped, matches, PRESETS, shortId, stateOf, STATES } from '../model.js';
import { Age, Button, Check, Empty, ErrorBox, html, Link, Menu, options, State, typed, useNarrow, useValue, VirtualList } from '../ui.js';
import { agents, allTasks, api, closeAllTasks, go, isOperator, now, ownTasks, replaceRoute, route } from '../store.js';

const PRESET_WORDS = { 'in-flight': 'In flight', waits: 'Waits for client', failed: 'Failed' };
const SINCE = { 900: '15 minutes', 3600: '1 hour', 86400: '1 day', 604800: '7 days' };

function filterOf(query) {
  const states = (query.get('state') ?? '').split(',').filter(Boolean).flatMap((name) => PRESETS[name] ?? [name]);
  return { states, text: query.get('find') ?? '', since: Number(query.get('since') ?? 0) * 1000, owner: query.get('owner') ?? '' };
}

function Filters({ query, isAll, count, list, children }) {
  const current = query.get('state') ?? '';
  const { states } = filterOf(query);
  const isPreset = (name) => states.length > 0 && states.every((state) => PRESETS[name].includes(state));
  const set = (change) => replaceRoute(['tasks'], { ...Object.fromEntries(query), ...change });
  const toggle = (name) => set({ state: states.includes(name) ? states.filter((other) => other !== name).join(',') : [...states, name].join(',') });
  const listState = useValue(list.state);
  const total = Math.max(list.total, list.rows.size);
  return html`<div class="stack">
    <div class="row"><h1>Tasks</h1><span class="muted" role="status">${count === total ? '' : `${grouped(count)} of `}${grouped(total)} tasks · ${listState === 'live' ? '● live' : listState === 'loading' ? `loading ${grouped(list.rows.size)}…` : `○ ${/^4/.test(list.error.peek()?.status) ? 'not readable' : 'offline'}`}</span>
      <span class="grow"></span>${children}
      ${useValue(isOperator) && html`<${Check} checked=${isAll} set=${(value) => set({ all: value ? '1' : '', owner: '' })}>all owners<//>`}</div>
    <div class="row">
      <input id="find" type="search" class="grow" aria-label="Find by id, context, error id or text" placeholder="id, error id or text" value=${query.get('find') ?? ''} onInput=${typed((value) => set({ find: value }))} />
      ${Object.entries(PRESET_WORDS).map(([name, word]) => html`<${Button} aria-pressed=${isPreset(name)} onClick=${() => set({ state: isPreset(name) ? '' : name })}>${word}<//>`)}
      <${Menu} label=${states.length > 0 && !PRESETS[current] ? `States (${states.length})` : 'States'}>${Object.entries(STATES).map(([name, { word }]) =>
        html`<${Check} checked=${states.includes(name)} onChange=${() => toggle(name)}>${word}<//>`)}<//>
      <select class="small" aria-label="Changed since" value=${query.get('since') ?? ''} onChange=${typed((value) => set({ since: value }))}><option value="">Any time</option>${options(SINCE)}</select>
      ${isAll && html`<input class="small" aria-label="Owner" placeholder="owner" value=${query.get('owner') ?? ''} onInput=${typed((value) => set({ owner: value }))} />`}
    </div>
  </div>`;
}

function Row({ row, index, isAll }) {
  const to = ['task', row.id];
  const query = isAll ? { owner: row.owner, tenant: row.tenant, of: row.agent } : {};
  const open = (event) => {
    if (!event.target.closest('a') && String(getSelection()) === '') go(to, query);
  };
  const { isTerminal, isInterrupted } = stateOf(row.state);
  const took = (isTerminal || isInterrupted) && row.created !== null ? duration(row.updated - row.created) : html`<${Running} since=${row.created} />`;
  const link = html`<${Link} to=${to} query=${query} class="row-focus mono">${shortId(row.id)}<//>`;
  const message = row.errorId ? `error ${shortId(row.errorId)} · ${row.message}` : row.message || row.asked;
  return html`<div class=${`list-row task ${isAll ? 'all' : 'own'}`} role="row" key=${row.id} data-index=${index} aria-rowindex=${index + 2} onClick=${open}>
    <span role="cell"><${State} name=${row.state} /></span>
    <span role="cell" title=${row.id}>${link}</span>
    ${isAll ? html`<span role="cell" title=${`${row.owner} ${row.tenant}`}>${row.owner || '—'}${agents.peek().length > 1 ? ` · ${row.agent}` : ''}</span>` : html`<span role="cell" class="mono muted" title=${row.context}>${shortId(row.context)}</span>`}
    <span role="cell"><${Age} at=${row.updated} /></span>
    <span role="cell" class="number">${took}</span>
    ${isAll && html`<span role="cell" class="number wide">${grouped(row.events)}</span><span role="cell" class="number wide">${row.attempt ?? '–'}</span>`}
    <span role="cell" class="muted" title=${message}>${message}</span>
  </div>`;
}

function Running({ since }) {
  return since === null ? '–' : duration(useValue(now) - since);
}

function Head({ isAll }) {
  const names = `State|Id|${isAll ? 'Owner' : 'Context'}|Updated|#Duration|${isAll ? '#Events|#Try|' : ''}Last message`.split('|');
  return html`<div class=${`list-row ${isAll ? 'all' : 'own'}`} role="row">${names.map((name) => html`<span role="columnheader" class=${name[0] === '#' ? 'number' : ''}>${name.replace('#', '')}</span>`)}</div>`;
}

/** Keeps the order of the rows while the reader is in the list: new rows wait until they are asked for. */
function useStableOrder(sorted, filterKey) {
  const shown = useRef({ keys: null, filterKey: null });
  const [isHeld, setIsHeld] = useState(false);
  const isSame = shown.current.filterKey === filterKey;
  if (!isHeld || !isSame || !shown.current.keys) shown.current = { keys: sorted.map((row) => row.key), filterKey };
  const byKey = new Map(sorted.map((row) => [row.key, row]));
  const order = isHeld ? shown.current.keys.map((key) => byKey.get(key)).filter(Boolean) : sorted;
  const waiting = isHeld ? sorted.length - order.length : 0;
  const release = () => { shown.current = { keys: null, filterKey: null }; setIsHeld(false); };
  return { order, waiting, setIsHeld, release };
}

export function Tasks() {
  const { query } = useValue(route);
  useValue(api);
  const isAll = useValue(isOperator) && query.get('all') === '1';
  const list = isAll ? allTasks() : ownTasks();
  useEffect(() => (isAll ? closeAllTasks : undefined), [isAll]);
  const version = useValue(list.version);
  const error = useValue(list.error);
  const isNarrow = useNarrow();
  const filter = filterOf(query);
  const filterKey = query.toString();
  const sorted = useMemo(() => [...list.rows.entries()].filter(([, row]) => matches(row, filter, Date.now())).map(([key, row]) => Object.assign(row, { key }))
    .sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0)), [list, version, filterKey]);
  const { order, waiting, setIsHeld, release } = useStableOrder(sorted, filterKey);
  const hold = (event) => setIsHeld(event.type === 'focusin' || event.currentTarget.contains(event.relatedTarget));
  return html`<div class="view full">
    <${Filters} query=${query} isAll=${isAll} count=${sorted.length} list=${list}>${waiting > 0 && html`<${Button} onClick=${release}>${waiting} new — show<//>`}<//>
    <${ErrorBox} error=${error} title="The list is not up to date." />
    ${order.length === 0
      ? !error && html`<${Empty}>${list.rows.size > 0 ? 'No task passes the filter.' : list.state.peek() === 'loading' ? 'Loading…' : html`<p>No tasks yet.</p><${Link} to=${['chat']} class="button">Send a message<//>`}<//>`
      : html`<div class="grow stack" onFocusIn=${hold} onFocusOut=${hold}><${VirtualList} key=${isNarrow} count=${order.length} height=${isNarrow ? 60 : 36} label="Tasks" columns=${isAll ? 8 : 6}
        head=${html`<${Head} isAll=${isAll} />`} row=${(index) => html`<${Row} key=${order[index].key} row=${order[index]} index=${index} isAll=${isAll} />`} /></div>`}
  </div>`;
}
