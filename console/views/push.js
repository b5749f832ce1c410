// Push notifications: deliveries of all owners for operators, and the configurations of one own task.

import { useEffect, useState } from '../vendor/hooks.js';
import { isRefused } from '../api.js';
import { duration, shortId } from '../model.js';
import { Age, announce, Button, Confirm, Empty, ErrorBox, Field, html, Id, Link, NeedsOperator, Table, typed, usePoll, useValue } from '../ui.js';
import { api, card, now, operator, operatorApi, probeOperator, replaceRoute, route, taskPath } from '../store.js';

/** States of deliveries, with their colors. */
const STATES = { waiting: 'ask', leased: 'busy', dead: 'fail', idle: 'muted' };
const POLL_MS = 3000;
const MAX_DELIVERIES = 1000;

function Delivery({ delivery, onRetry }) {
  const { state, last } = delivery;
  // Events before the registration count as delivered.
  const left = delivery.events - delivery.delivered;
  return html`<tr>
    <td><span class=${`state ${STATES[state]}`}>${state}</span>${delivery.reason && html`<div class="muted">${delivery.reason}</div>`}</td>
    <td><code>${delivery.url}</code><div class="muted">config ${shortId(delivery.config)}${delivery.owner ? ` · ${delivery.owner}` : ''}</div></td>
    <td class="nowrap"><${Link} to=${['task', delivery.task]} query=${{ owner: delivery.owner, tenant: delivery.tenant, of: delivery.agent }}>${shortId(delivery.task)}<//></td>
    <td class="number">${left}</td>
    <td class="number">${delivery.attempts}</td>
    <td>${last ? html`${last.error ?? `status ${last.status}`} <span class="muted"><${Age} at=${last.at} /> ago</span>` : 'not tried yet'}</td>
    <td class="nowrap">${delivery.due && state !== 'dead' ? html`<${Due} at=${Date.parse(delivery.due)} />` : '–'}</td>
    <td class="number nowrap">${delivery.lag_seconds === null ? '–' : duration(delivery.lag_seconds * 1000)}</td>
    <td>${left > 0 && html`<${Button} onClick=${onRetry}>Retry<//>`}</td>
  </tr>`;
}

function Due({ at }) {
  const left = at - useValue(now);
  return left <= 0 ? 'now' : `in ${duration(left)}`;
}

async function retry(body, onDone) {
  try {
    const { retried } = await operatorApi.json('operator/deliveries:retry', { body });
    announce(`${retried} retried`);
    onDone(null);
  } catch (error) {
    onDone(error);
  }
}

/** Deliveries with a button that makes each due at once. `onDone` is called after that, with the error or `null`. */
export const Deliveries = ({ deliveries, onDone = () => {} }) => html`<${Table} label="Deliveries" class="rows wide" head="State|Receiver|Task|#Undelivered|#Attempts|Last attempt|Next|#Lag|Actions">
  ${deliveries.map((delivery) => {
    const { agent, owner, tenant, task, config } = delivery;
    return html`<${Delivery} key=${`${agent}/${task}/${config}`} delivery=${delivery} onRetry=${() => retry({ agent, owner, tenant, task, config }, onDone)} />`;
  })}<//>`;

export function Push() {
  const { query } = useValue(route);
  const status = useValue(operator);
  const isSupported = useSupport();
  const state = query.get('state') ?? '';
  const [deliveries, setDeliveries] = useState(null);
  const [error, setError] = useState(null);
  const [isAsking, setIsAsking] = useState(false);
  const load = async () => {
    try {
      const found = [];
      let after = '';
      do {
        const page = await operatorApi.json(`operator/deliveries?${new URLSearchParams({ limit: '200', ...(state && { state }), ...(after && { after }) })}`);
        found.push(...page.deliveries);
        after = page.next;
      } while (after && found.length < MAX_DELIVERIES);
      setDeliveries(found);
      setError(null);
      void probeOperator();
    } catch (failure) {
      setError(failure);
    }
  };
  useEffect(() => setDeliveries(null), [state]);
  usePoll(load, POLL_MS, [state]);
  const done = (failure) => (failure ? setError(failure) : load());
  return html`<div class="view">
    <div class="row"><h1 class="grow">Push notifications</h1>
      ${status?.push && html`<span class="muted">${status.push.due ?? 0} due · ${status.push.dead ?? 0} dead</span>`}
      ${['', ...Object.keys(STATES)].map((name) => html`<${Button} aria-pressed=${state === name} onClick=${() => replaceRoute(['push'], { state: name })}>${name || 'all'}<//>`)}
      <${Button} disabled=${!deliveries?.some((delivery) => delivery.state === 'dead')} onClick=${() => setIsAsking(true)}>Retry all dead<//></div>
    <${ErrorBox} error=${error} title="Deliveries can't be read." onRetry=${load} />
    ${isRefused(error) && html`<${NeedsOperator} />`}
    ${deliveries?.length === 0 && html`<${Empty}><p>${state ? `No delivery is ${state}.` : 'No task has a receiver.'}</p>${isSupported ? html`<p>A receiver for trying it out:</p><div class="row"><${Id} id="a2a listen --port 9000" name="command" /></div>` : NO_PUSH}<//>`}
    ${deliveries?.length > 0 && html`<${Deliveries} deliveries=${deliveries} onDone=${done} />`}
    ${deliveries?.length >= MAX_DELIVERIES && html`<p class="muted">The first ${MAX_DELIVERIES} are shown.</p>`}
    ${isAsking && html`<${Confirm} title="Retry all dead deliveries?" text="Each receiver gets the events that it has not accepted." action="Retry all" onConfirm=${() => retry({ dead: true }, done)} onClose=${() => setIsAsking(false)} />`}
  </div>`;
}

export const NO_RECEIVER = html`<p class="muted">No receiver is registered for this task.</p>`;
const NO_PUSH = html`<p class="muted">This agent sends no push notifications: the server enables them with <code>push.enabled</code>.</p>`;
/** True if the current agent sends push notifications. */
const useSupport = () => useValue(card)?.capabilities?.pushNotifications;

/** Receivers of an own task. `deliveries` are those of the operator API, if the caller may read it. */
export function TaskPush({ task, deliveries }) {
  const client = useValue(api);
  const isSupported = useSupport();
  const [configs, setConfigs] = useState(null);
  const [error, setError] = useState(null);
  const [draft, setDraft] = useState({ url: '', token: '' });
  const path = `${taskPath(task.id)}/pushNotificationConfigs`;
  const call = async (action) => {
    try {
      await action();
      const { configs: list = [] } = await client.json(path);
      setConfigs(list);
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  };
  useEffect(() => { if (isSupported) void call(() => {}); }, [path, isSupported]);
  if (!isSupported) return NO_PUSH;
  const create = (event) => {
    event.preventDefault();
    void call(async () => {
      await client.json(path, { body: { url: draft.url, ...(draft.token && { token: draft.token }) } });
      setDraft({ url: '', token: '' });
    });
  };
  return html`<div class="stack">
    <${ErrorBox} error=${error} />
    ${configs?.length === 0 && NO_RECEIVER}
    ${(configs ?? []).map((config) => html`<div class="box row" key=${config.id}><code class="grow">${config.url}</code><span class="muted">${shortId(config.id ?? '')}</span>
      <${Button} class="small danger" onClick=${() => call(() => client.json(`${path}/${encodeURIComponent(config.id)}`, { method: 'DELETE' }))}>Delete<//></div>`)}
    <form class="box stack" onSubmit=${create}><strong>Register a receiver</strong>
      <div class="grid"><${Field} label="URL"><input type="url" required value=${draft.url} onInput=${typed((value) => setDraft({ ...draft, url: value }))} /><//>
        <${Field} label="Token" hint="Optional; signs or marks the notifications"><input value=${draft.token} autocomplete="off" onInput=${typed((value) => setDraft({ ...draft, token: value }))} /><//></div>
      <div class="row"><button type="submit" class="primary">Register</button></div></form>
    ${deliveries?.length > 0 && html`<${Deliveries} deliveries=${deliveries} onDone=${setError} />`}
  </div>`;
}
