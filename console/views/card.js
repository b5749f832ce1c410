// Agent card: its content, its problems with remedies, and probes of its interfaces.

import { useState } from '../vendor/hooks.js';
import { base, grpcFrame, stringField } from '../api.js';
import { duration } from '../model.js';
import { safeLink } from '../text.js';
import { Button, CopyButton, ExternalLink, html, Json, Link, Loading, Section, Table, useRun, useValue } from '../ui.js';
import { api, card as current, route, replaceRoute } from '../store.js';

const CARD = '.well-known/agent-card.json';
const CAPABILITIES = { streaming: 'streaming', pushNotifications: 'push notifications', extendedAgentCard: 'extended card' };
const RAW = { '1.0': 'Card 1.0', 0.3: 'Card 0.3', merged: 'Card for both', extended: 'Extended card' };

/** Returns problems that only a page can see: where the card says that the agent is, and where the page is. */
function pageChecks(card, root) {
  const problems = [];
  for (const [index, { url }] of (card.supportedInterfaces ?? []).entries()) {
    if (!/^https?:/.test(url ?? '')) continue;
    const target = new URL(url);
    const path = `supportedInterfaces[${index}].url`;
    if (target.origin !== root.origin) problems.push({ path, problem: `has the origin ${target.origin}, but this page is at ${root.origin}`, remedy: 'set public_url, or let the proxy send Forwarded headers and trust it (trusted_proxies)' });
    else if (!target.pathname.startsWith(root.pathname.replace(/\/$/, ''))) problems.push({ path, problem: `has the path ${target.pathname}, but this page is below ${root.pathname}`, remedy: 'set public_url with this path' });
  }
  return problems;
}

/** Calls an interface of this server, and returns what it answered. */
async function probe(client, { protocolBinding: binding, protocolVersion: version }) {
  const started = performance.now();
  const headers = { 'a2a-version': version };
  const isNew = version === '1.0';
  if (binding === 'HTTP+JSON') {
    // A server without an extended card answers 404.
    await client.fetch(isNew ? 'tasks?pageSize=1&historyLength=0' : 'v1/card', { headers }).catch((error) => { if (isNew || error.status === 0 || error.status >= 500 || error.status === 401) throw error; });
  } else if (binding === 'JSONRPC') {
    const { error } = await client.json('rpc', { method: 'POST', headers, body: { jsonrpc: '2.0', id: 1, method: isNew ? 'GetTask' : 'tasks/get', params: { id: 'probe' } } });
    if (error && error.code !== -32001) throw new Error(error.message);
  } else {
    const body = grpcFrame(isNew ? stringField(2, 'probe') : stringField(1, 'tasks/probe'));
    const response = await client.fetch(`${isNew ? 'lf.' : ''}a2a.v1.A2AService/GetTask`, { method: 'POST', headers: { 'content-type': 'application/grpc-web+proto', 'x-grpc-web': '1' }, body });
    const status = response.headers.get('grpc-status');
    if (status !== '5') throw new Error(`gRPC status ${status}`);
  }
  return `answers in ${duration(performance.now() - started)}`;
}

function Interface({ entry }) {
  const client = useValue(api);
  const [result, setResult] = useState(null);
  const isHere = entry.protocolBinding === 'GRPC' || (safeLink(entry.url) && new URL(entry.url).origin === base.origin);
  const run = async () => {
    setResult({ text: 'asking…' });
    try {
      setResult({ text: `✓ ${await probe(client, entry)}`, tone: 'ok' });
    } catch (error) {
      setResult({ text: `✗ ${error.message}`, tone: 'fail' });
    }
  };
  return html`<tr><td>${entry.protocolBinding}</td><td>${entry.protocolVersion}</td><td><code>${entry.url}</code></td>
    <td>${isHere ? html`<div class="row"><${Button} onClick=${run}>Probe<//>${result && html`<span class=${result.tone ?? 'muted'} role="status">${result.text}</span>`}</div>` : html`<span class="muted">other origin</span>`}</td></tr>`;
}

function Problems({ problems }) {
  if (problems === null) return html`<p class="muted">Loading…</p>`;
  if (problems.length === 0) return html`<p><span class="ok">✓</span> No problem found.</p>`;
  return html`<${Table} label="Problems" head="Path|Problem|Remedy|Versions">
    ${problems.map((item) => html`<tr><td><code>${item.path}</code></td><td>${item.problem}</td><td>${item.remedy}</td><td>${(item.versions ?? []).join(', ') || 'this page'}</td></tr>`)}<//>`;
}

/** Names the security schemes of a card, with what a caller sends. */
export function schemesOf(card) {
  return Object.entries(card?.securitySchemes ?? {}).map(([name, scheme]) => {
    const http = scheme.httpAuthSecurityScheme;
    const key = scheme.apiKeySecurityScheme;
    if (http) return { name, kind: http.scheme?.toLowerCase() === 'basic' ? 'basic' : 'bearer', label: `${http.scheme}${http.bearerFormat ? ` (${http.bearerFormat})` : ''}` };
    if (key) return { name, kind: key.location === 'header' ? 'header' : 'other', header: key.name, label: `API key in ${key.location} ${key.name}` };
    if (scheme.oauth2SecurityScheme) return { name, kind: 'bearer', label: 'OAuth 2.0 access token' };
    if (scheme.openIdConnectSecurityScheme) return { name, kind: 'bearer', label: 'OpenID Connect token' };
    return { name, kind: 'other', label: 'mutual TLS' };
  });
}

export function Card() {
  const { query } = useValue(route);
  const client = useValue(api);
  const [cards, setCards] = useState({});
  const [review, setReview] = useState(null);
  const [error, setError] = useState(null);
  const raw = query.get('raw') ?? '';
  useRun((signal) => {
    const options = { signal };
    setCards({});
    setReview(null);
    const add = (name) => (card) => {
      setCards((cards) => ({ ...cards, [name]: card }));
      return card;
    };
    const get = (version) => client.json(CARD, { ...options, headers: { 'a2a-version': version } }).then(add(version));
    get('1.0').then((card) => {
      current.value = card;
      return card.capabilities?.extendedAgentCard && client.json('extendedAgentCard', options).then(add('extended'), () => {});
    }, (failure) => signal.aborted || setError(failure));
    get('0.3').catch(() => {});
    // Without a version: both forms in one card, and a review of each one that is served.
    const read = (path) => client.fetch(path, options).then((response) => response.json());
    read(CARD).then(add('merged'), () => {});
    read('console/review.json').then(setReview, () => signal.aborted || setReview({ problems: [] }));
  }, [client]);
  const card = cards['1.0'];
  if (!card) return html`<div class="view"><${Loading} error=${error} title="The card can't be read." /></div>`;
  const { capabilities = {}, provider } = card;
  const link = (url, text) => {
    const safe = safeLink(url);
    return safe ? html`<${ExternalLink} piece=${{ text: text ?? url, ...safe }} />` : text ?? url;
  };
  const problems = review && [...(review.problems ?? []), ...pageChecks(card, client.root)];
  return html`<div class="view">
    <div class="row"><h1>${card.name}</h1><span class="muted">version ${card.version}</span>${card.signatures?.length > 0 ? html`<span class="ok">✓ signed</span>` : html`<span class="muted">not signed</span>`}<span class="grow"></span>
      <${CopyButton} text=${client.url(CARD).href} label="Copy URL of the card" /></div>
    <p>${card.description}</p>
    <dl class="facts">
      ${provider && html`<dt>provider</dt><dd>${link(provider.url, provider.organization)}</dd>`}
      ${card.documentationUrl && html`<dt>documentation</dt><dd>${link(card.documentationUrl)}</dd>`}
      <dt>capabilities</dt><dd>${Object.entries(CAPABILITIES).filter(([name]) => capabilities[name]).map(([, label]) => label).join(', ') || 'none'}</dd>
      <dt>input</dt><dd>${(card.defaultInputModes ?? []).join(', ')}</dd><dt>output</dt><dd>${(card.defaultOutputModes ?? []).join(', ')}</dd>
      ${capabilities.extensions?.length > 0 && html`<dt>extensions</dt><dd>${capabilities.extensions.map((extension) => html`<div><code>${extension.uri}</code> ${extension.required ? 'required' : ''}</div>`)}</dd>`}
      <dt>credentials</dt><dd>${schemesOf(card).map(({ label }) => label).join(', ') || 'none needed'}</dd>
    </dl>
    <${Section} title="Problems"><${Problems} problems=${problems} /><//>
    <${Section} title="Interfaces"><${Table} label="Interfaces" head="Binding|Version|URL|Probe">
      ${(card.supportedInterfaces ?? []).map((entry) => html`<${Interface} key=${`${entry.protocolBinding}${entry.protocolVersion}`} entry=${entry} />`)}<//><//>
    <${Section} title="Skills"><div class="grid">${(card.skills ?? []).map((skill) => html`<div class="box stack" key=${skill.id}>
      <div class="row"><strong class="grow">${skill.name || skill.id}</strong><${Link} to=${['chat']} query=${{ skill: skill.id, new: '1' }} class="button small">Try<//></div>
      <p>${skill.description}</p><p class="muted">${(skill.tags ?? []).join(', ')}</p>
      ${(skill.examples ?? []).map((example) => html`<div class="row"><code class="grow">${example}</code><${CopyButton} text=${example} /></div>`)}</div>`)}</div><//>
    <${Section} title="As sent"><div class="row">${Object.entries(RAW).filter(([name]) => cards[name]).map(([name, label]) => html`<${Button} aria-pressed=${raw === name} onClick=${() => replaceRoute(['card'], { raw: raw === name ? '' : name })}>${label}<//>`)}</div>
      ${cards[raw] && html`<div class="row"><${CopyButton} text=${JSON.stringify(cards[raw], null, 2)} label="Copy JSON" /></div><${Json} value=${cards[raw]} label=${RAW[raw]} />`}<//>
  </div>`;
}

