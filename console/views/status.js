// Status of the server, for operators: readiness, limits in use, store, dependencies, tasks by state, push, latencies.

import { useEffect, useState } from '../vendor/hooks.js';
import { duration, shortId, size, stateOf } from '../model.js';
import { visible } from '../text.js';
import { Age, CopyButton, ErrorBox, html, Link, PageLink, State, useValue } from '../ui.js';
import { isVisible, now, operator, operatorApi } from '../store.js';
import server from '../server.js';

const POLL_MS = 3000;
const METRICS_MS = 15_000;
const BYTES = /bytes|max_size|memory/;

const Tile = ({ name, children }) => html`<div class="tile"><span class="muted">${name}</span><b>${children}</b></div>`;

function Meter({ limit }) {
  const { key, name = key, used, max } = limit;
  const show = BYTES.test(name) ? size : (number) => number?.toLocaleString('en') ?? '–';
  const share = max > 0 ? Math.min(1, used / max) : 0;
  return html`<div class="meter"><span>${visible(name)}${limit.agent && limit.agent !== 'default' ? html` <span class="muted">${visible(limit.agent)}</span>` : ''}</span>
    <div class="track" role="meter" aria-label=${visible(name)} aria-valuemin="0" aria-valuemax=${max} aria-valuenow=${used}><span class=${share > 0.8 ? 'high' : ''} style=${{ width: `${share * 100}%` }}></span></div>
    <span class="number">${show(used)} / ${max ? show(max) : 'no limit'}</span></div>`;
}

const TONES = { up: 'ok', down: 'fail', unknown: 'muted', open: 'fail', closed: 'ok', half_open: 'ask' };

function Dependencies({ agents }) {
  const list = (agents ?? []).flatMap((agent) => (agent.dependencies ?? []).map((dependency) => ({ ...dependency, agent: agent.name })));
  if (list.length === 0) return html`<p class="muted">No agent depends on another service.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Dependencies"><table><thead><tr><th>Agent</th><th>Dependency</th><th>State</th><th>Since</th><th>Last success</th><th>Failures</th><th>Last error</th><th>Latency</th><th>Breaker</th></tr></thead><tbody>
    ${list.map((item) => html`<tr><td>${visible(item.agent)}</td><td>${visible(item.peer ?? item.name ?? '')}</td><td><span class=${`state ${TONES[item.state] ?? 'muted'}`}>${visible(item.state ?? 'unknown')}</span></td>
      <td>${item.since ? html`<${Age} at=${Date.parse(item.since)} />` : '–'}</td><td>${item.last_success ? html`<${Age} at=${Date.parse(item.last_success)} />` : '–'}</td><td>${item.failures ?? 0}</td>
      <td>${visible(item.last_error?.class ?? item.last_error ?? '–')}</td><td>${item.latency_ms === undefined || item.latency_ms === null ? '–' : duration(item.latency_ms)}</td>
      <td>${item.breaker ? html`<span class=${TONES[item.breaker.state ?? item.breaker] ?? 'muted'}>${visible(item.breaker.state ?? item.breaker)}</span>` : '–'}</td></tr>`)}</tbody></table></div>`;
}

function Agent({ agent }) {
  const states = Object.entries(agent.states ?? {});
  const store = agent.store && typeof agent.store === 'object' ? agent.store : { kind: agent.store, bytes: agent.file_bytes, wal: agent.wal_bytes, free: agent.free_bytes };
  const error = agent.last_error;
  return html`<div class="box stack"><div class="row"><strong>${visible(agent.name ?? 'agent')}</strong><span class="muted">${visible(agent.kind ?? '')}</span></div>
    <dl class="facts">${agent.turns !== undefined && html`<dt>turns</dt><dd>${agent.turns} running, ${agent.queued ?? 0} queued</dd>`}
      ${store.kind && html`<dt>store</dt><dd>${visible(store.kind)}</dd>`}${store.bytes ? html`<dt>file</dt><dd>${size(store.bytes)}, write-ahead log ${size(store.wal ?? 0)}, free ${size(store.free ?? 0)}</dd>` : ''}
      ${error && html`<dt>last error</dt><dd>${visible(error.class ?? error.reason ?? '')} ${error.error_id && html`<code>${visible(shortId(error.error_id))}</code> <${CopyButton} text=${error.error_id} label="Copy error id" />`}</dd>`}</dl>
    ${states.length > 0 && html`<div class="row">${states.map(([name, count]) => html`<${Link} to=${['tasks']} query=${{ state: name, all: '1' }} class="button small"><${State} name=${name} /> ${count.toLocaleString('en')}</${Link}>`)}</div>`}
  </div>`;
}

/** Reads p50 and p95 per operation from the histograms of the metrics. */
export function latencies(text) {
  const operations = new Map();
  for (const line of text.split('\n')) {
    const match = /^([a-z_:]*(?:request|rpc|server|call)[a-z_:]*duration[a-z_]*)_bucket\{(.*)\} ([\d.e+]+)/i.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...match[2].matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    const name = labels.rpc_method ?? labels.method ?? labels.operation;
    if (!name || labels.le === undefined) continue;
    const buckets = operations.get(name) ?? new Map();
    const bound = labels.le === '+Inf' ? Infinity : Number(labels.le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + Number(match[3]));
    operations.set(name, buckets);
  }
  const quantile = (buckets, share) => {
    const bounds = [...buckets].sort(([a], [b]) => a - b);
    const total = bounds.at(-1)?.[1] ?? 0;
    return { total, bound: bounds.find(([, count]) => count >= total * share)?.[0] ?? 0 };
  };
  return [...operations].map(([name, buckets]) => ({ name, total: quantile(buckets, 1).total, p50: quantile(buckets, 0.5).bound, p95: quantile(buckets, 0.95).bound })).filter(({ total }) => total > 0).sort((a, b) => b.total - a.total);
}

const bound = (seconds) => (seconds === Infinity ? 'above the last bucket' : `≤ ${duration(seconds * 1000)}`);

function Latencies() {
  const shown = useValue(isVisible);
  const [rows, setRows] = useState(null);
  useEffect(() => {
    if (!shown) return undefined;
    const read = () => operatorApi.fetch('metrics').then((response) => response.text()).then((text) => setRows(latencies(text)), () => setRows(null));
    void read();
    const timer = setInterval(read, METRICS_MS);
    return () => clearInterval(timer);
  }, [shown]);
  if (!rows?.length) return html`<p class="muted">No latencies: the metrics are not readable here, or no call was made.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Latencies"><table><thead><tr><th>Operation</th><th class="number">Calls</th><th class="number">p50</th><th class="number">p95</th></tr></thead><tbody>
    ${rows.map((row) => html`<tr><td>${visible(row.name)}</td><td class="number">${row.total.toLocaleString('en')}</td><td class="number">${bound(row.p50)}</td><td class="number">${bound(row.p95)}</td></tr>`)}</tbody></table></div>`;
}

export function Status() {
  const status = useValue(operator);
  const shown = useValue(isVisible);
  const current = useValue(now);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!shown) return undefined;
    const read = () => operatorApi.json('operator/status').then((value) => {
      operator.value = value;
      setError(null);
    }, setError);
    const timer = setInterval(read, POLL_MS);
    return () => clearInterval(timer);
  }, [shown]);
  if (!status) return html`<div class="view"><${ErrorBox} error=${error} title="The status can't be read." /><p>This needs the scope <code>admin</code> or the operator token of the start: see <${Link} to=${['settings']}>Settings</${Link}>.</p></div>`;
  const { push, otlp, retention } = status;
  const started = status.started ? Date.parse(status.started) : status.uptime_seconds === undefined ? null : current - status.uptime_seconds * 1000;
  const states = {};
  for (const agent of status.agents ?? []) for (const [name, count] of Object.entries(agent.states ?? {})) states[name] = (states[name] ?? 0) + count;
  const total = Object.values(states).reduce((sum, count) => sum + count, 0);
  const running = Object.entries(states).filter(([name]) => !stateOf(name).isTerminal).reduce((sum, [, count]) => sum + count, 0);
  return html`<div class="view">
    <div class="row"><h1>Status</h1>${status.ready ? html`<span class="ok state">✓ ready</span>` : html`<span class="fail state">✗ not ready${status.reason ? `: ${visible(status.reason)}` : ''}</span>`}${status.draining && html`<span class="ask state">draining</span>`}<span class="grow"></span>
      <${PageLink} path="metrics">Metrics</${PageLink}>${server.docs && html`<${PageLink} path="docs/">API documents</${PageLink}>`}</div>
    <${ErrorBox} error=${error} title="The status is not up to date." />
    <div class="tiles"><${Tile} name="version">${visible(status.version ?? status.build?.version ?? '–')}</${Tile}>
      ${started !== null && html`<${Tile} name="uptime">${duration(current - started)}</${Tile}>`}
      <${Tile} name="tasks">${total.toLocaleString('en')}</${Tile}><${Tile} name="not ended">${running.toLocaleString('en')}</${Tile}>
      ${push && html`<${Tile} name="push waiting">${push.due ?? push.waiting ?? 0}</${Tile}><${Tile} name="push dead">${push.dead ?? 0}</${Tile}><${Tile} name="push lag">${duration((push.lag_seconds ?? push.lag ?? 0) * 1000)}</${Tile}>`}
      ${otlp && html`<${Tile} name="spans dropped">${otlp.dropped ?? 0}</${Tile}>`}</div>
    <section class="stack"><h2>Limits in use</h2>${(status.limits ?? []).map((limit) => html`<${Meter} key=${`${limit.agent}/${limit.key ?? limit.name}`} limit=${limit} />`)}</section>
    <section class="stack"><h2>Dependencies</h2><${Dependencies} agents=${status.agents} /></section>
    <section class="stack"><h2>Agents</h2><div class="stack">${(status.agents ?? []).map((agent) => html`<${Agent} key=${agent.name} agent=${agent} />`)}</div></section>
    <section class="stack"><h2>Latency per operation</h2><${Latencies} /></section>
    ${retention && html`<p class="muted">Logs are kept ${duration((retention.logs ?? 0) * 1000)} after the end of a task, tasks ${duration((retention.finished ?? 0) * 1000)}.</p>`}
  </div>`;
}
