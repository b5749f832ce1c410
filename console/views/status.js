// Status of the server, for operators: readiness, limits in use, store, dependencies, tasks by state, push, latencies.

import { useState } from '../vendor/hooks.js';
import { isRefused } from '../api.js';
import { duration, grouped, shortId, size } from '../model.js';
import { Age, CopyButton, ErrorBox, html, Link, NeedsOperator, PageLink, Section, State, Table, usePoll, useValue } from '../ui.js';
import { card, metricsApi, operator, operatorError, probeOperator, rejection, session } from '../store.js';
import server from '../server.js';

const POLL_MS = 3000;
const METRICS_MS = 15_000;
const BYTES = /bytes|max_size|memory/;

const Tile = ({ name, children }) => html`<div class="tile"><span class="muted">${name}</span><b>${children}</b></div>`;

function Meter({ limit }) {
  const { name, used, max } = limit;
  const show = BYTES.test(name) ? size : grouped;
  const share = max > 0 ? Math.min(1, used / max) : 0;
  return html`<div class="meter"><span>${name} <span class="muted">${limit.agent}</span></span>
    <div class="track" role="meter" aria-label=${name} aria-valuemin="0" aria-valuemax=${max} aria-valuenow=${used}><span class=${share > 0.8 ? 'high' : ''} style=${{ width: `${share * 100}%` }}></span></div>
    <span class="number">${show(used)} / ${max ? show(max) : 'no limit'}</span></div>`;
}

const TONES = { up: 'ok', down: 'fail', rate_limited: 'ask', open: 'fail', closed: 'ok', half_open: 'ask' };

function Dependencies({ agents }) {
  const list = agents.flatMap(({ name, dependencies }) => dependencies.map((dependency) => ({ ...dependency, agent: name })));
  if (list.length === 0) return html`<p class="muted">No agent depends on another service.</p>`;
  return html`<${Table} label="Dependencies" class="rows wide" head="Agent|Dependency|State|Since|Last success|Failures|Last error|Latency|Breaker">
    ${list.map((item) => html`<tr><td>${item.agent}</td><td>${item.peer}</td><td><span class=${`state ${TONES[item.state] ?? 'muted'}`}>${item.state}</span></td>
      <td><${Age} at=${item.since} /></td><td><${Age} at=${item.last_success} /></td><td>${item.failures}</td>
      <td>${item.last_error ?? '–'}</td><td>${duration(item.latency_ms)}</td>
      <td><span class=${TONES[item.breaker]}>${item.breaker}</span></td></tr>`)}<//>`;
}

function Agent({ agent: { name, kind, turns, queued, last_error: error } }) {
  return html`<tr><td>${name}</td><td>${kind}</td><td class="number">${turns}</td><td class="number">${queued}</td>
    <td>${error ? html`<div class="row">${error.class} <code>${shortId(error.error_id)}</code><${CopyButton} text=${error.error_id} label="Copy error id" /><span class="muted"><${Age} at=${error.time} /></span></div>` : '–'}</td></tr>`;
}

/** Reads p50 and p95 per operation from the histograms of the metrics. */
function latencies(text) {
  const operations = new Map();
  for (const line of text.split('\n')) {
    const match = /^a2a_call_duration_seconds_bucket\{(.*)\} (\S+)/.exec(line);
    if (!match) continue;
    const { operation: name, le } = Object.fromEntries([...match[1].matchAll(/(\w+)="([^"]*)"/g)].map(([, label, value]) => [label, value]));
    const buckets = operations.get(name) ?? new Map();
    const bound = le === '+Inf' ? Infinity : Number(le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + Number(match[2]));
    operations.set(name, buckets);
  }
  return [...operations].map(([name, buckets]) => {
    const bounds = [...buckets].sort(([a], [b]) => a - b);
    const total = bounds.at(-1)[1];
    const quantile = (share) => bounds.find(([, count]) => count >= total * share)[0];
    return { name, total, p50: quantile(0.5), p95: quantile(0.95) };
  }).filter(({ total }) => total > 0).sort((a, b) => b.total - a.total);
}

const bound = (seconds) => (seconds === Infinity ? 'above the last bucket' : `≤ ${duration(seconds * 1000)}`);

function Latencies() {
  const [rows, setRows] = useState(null);
  usePoll(() => {
    if (session.peek() || !card.peek()?.securitySchemes) metricsApi.fetch('metrics').then((response) => response.text()).then((text) => setRows(latencies(text)), () => setRows(null));
  }, METRICS_MS);
  if (!rows?.length) return html`<p class="muted">No latencies: the metrics are not readable here, or no call was made.</p>`;
  return html`<${Table} label="Latencies" head="Operation|#Calls|#p50|#p95">
    ${rows.map((row) => html`<tr><td>${row.name}</td><td class="number">${grouped(row.total)}</td><td class="number">${bound(row.p50)}</td><td class="number">${bound(row.p95)}</td></tr>`)}<//>`;
}

export function Status() {
  const status = useValue(operator);
  const error = useValue(operatorError);
  const dropped = useValue(rejection) && html`<p class="box fail" role="alert">The operator URL is of an earlier start of the server: open the one that its last start printed.</p>`;
  // A refused caller enters credentials first.
  const isPolled = Boolean(status) || !isRefused(error);
  usePoll(() => isPolled && probeOperator(), POLL_MS, [isPolled]);
  if (!status) return html`<div class="view">${dropped ?? html`<${ErrorBox} error=${error} title="The status can't be read." />`}<${NeedsOperator} /></div>`;
  const { access, agents, limits, otlp, push, store, totals = {} } = status;
  const states = Object.entries(totals.tasks ?? {});
  return html`<div class="view">
    <div class="row"><h1>Status</h1>${error ? '' : status.ready ? html`<span class="ok state">✓ ready</span>` : html`<span class="fail state">✗ not ready${status.reason ? `: ${status.reason}` : ''}</span>`}${status.draining && html`<span class="ask state">draining</span>`}<span class="grow"></span>
      <${PageLink} path="metrics">Metrics<//>${server.docs && html`<${PageLink} path="docs/">API documents<//>`}</div>
    ${dropped}<${ErrorBox} error=${error} title="The status is not up to date." />
    ${access === 'counts' && html`<div class="box">Without credentials, only counts are shown.<${NeedsOperator} /></div>`}
    <div class="tiles">${status.build && html`<${Tile} name="version">${status.build.version ?? '–'}<//>`}
      ${status.uptime_seconds !== undefined && html`<${Tile} name="uptime">${duration(status.uptime_seconds * 1000)}<//>`}
      <${Tile} name="running turns">${totals.turns ?? 0}<//><${Tile} name="queued turns">${totals.queued ?? 0}<//>
      ${totals.dependencies_down > 0 && html`<${Tile} name="dependencies down"><span class="fail">${totals.dependencies_down}</span><//>`}
      ${store && html`<${Tile} name="store">${size(store.bytes)}<//><${Tile} name="write-ahead log">${size(store.wal)}<//><${Tile} name="commit p99">${duration(store.commit_p99_ms)}<//>`}
      ${push && html`<${Tile} name="push due">${push.due ?? 0}<//><${Tile} name="push dead">${push.dead ?? 0}<//><${Tile} name="push lag">${duration((push.lag_seconds ?? 0) * 1000)}<//>`}
      ${otlp && html`<${Tile} name="spans dropped">${otlp.dropped ?? 0}<//>`}</div>
    ${states.length > 0 && html`<div class="row" role="group" aria-label="Tasks by state">${states.map(([state, count]) => html`<${Link} to=${['tasks']} query=${{ state, all: access === 'full' ? '1' : '' }} class="button small"><${State} name=${state} /> ${grouped(count)}<//>`)}</div>`}
    ${access !== 'counts' && html`
    ${limits?.length > 0 && html`<${Section} title="Limits in use">${limits.map((limit) => html`<${Meter} key=${`${limit.agent}/${limit.name}`} limit=${limit} />`)}<//>`}
    <${Section} title="Dependencies"><${Dependencies} agents=${agents} /><//>
    <${Section} title="Agents"><${Table} label="Agents" head="Agent|Kind|#Turns|#Queued|Last error">${agents.map((agent) => html`<${Agent} key=${agent.name} agent=${agent} />`)}<//><//>
    <${Section} title="Latency per operation"><${Latencies} /><//>`}
  </div>`;
}
