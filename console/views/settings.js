// Settings: credentials, headers of all requests, theme, keys; and the login dialog.

import { useState } from '../vendor/hooks.js';
import { Button, Check, Dialog, Field, html, options, PageLink, Section, typed, useValue } from '../ui.js';
import { card, challenge, extraHeaders, forget, isOperator, login, operatorToken, prefer, preferences, session, setExtraHeaders, useOperatorToken } from '../store.js';
import server from '../server.js';
import { schemesOf } from './card.js';

const encodeBasic = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

/** Form for the credentials that the card declares. A bearer token can always be given: a card may be protected itself. */
function Login({ error, onDone }) {
  const schemes = schemesOf(useValue(card)).filter(({ kind }) => kind !== 'other');
  const choices = schemes.length > 0 ? schemes : [{ name: 'bearer', kind: 'bearer', label: 'Bearer token' }, { name: 'basic', kind: 'basic', label: 'Basic' }];
  const [index, setIndex] = useState(0);
  const [secret, setSecret] = useState('');
  const [user, setUser] = useState('');
  const [isKept, setIsKept] = useState(false);
  const scheme = choices[Math.min(index, choices.length - 1)];
  const submit = (event) => {
    event.preventDefault();
    const value = secret.trim();
    const headers = scheme.kind === 'basic' ? { authorization: `Basic ${encodeBasic(`${user}:${secret}`)}` } : scheme.kind === 'header' ? { [scheme.header.toLowerCase()]: value } : { authorization: `Bearer ${value}` };
    setSecret('');
    login({ label: scheme.kind === 'basic' ? user : scheme.label, headers }, isKept);
    onDone?.();
  };
  return html`<form class="stack" onSubmit=${submit} autocomplete="off">
    ${error?.message && html`<p class="box fail" role="alert">${error.message}${error.challenge && html`<br /><code>${error.challenge}</code>`}</p>`}
    ${choices.length > 1 && html`<${Field} label="Scheme"><select value=${String(index)} onChange=${typed((value) => setIndex(Number(value)))}>${options(choices.map(({ label }) => label))}</select><//>`}
    ${scheme.kind === 'basic' && html`<${Field} label="Name"><input value=${user} required autofocus=${error} onInput=${typed(setUser)} /><//>`}
    <${Field} label=${scheme.kind === 'basic' ? 'Password' : scheme.label}><input type="password" required autocomplete="off" autofocus=${error} value=${secret} onInput=${typed(setSecret)} /><//>
    <${Check} checked=${isKept} set=${setIsKept}>keep for this tab, also when it is reloaded<//>
    <div class="row end"><button type="submit" class="primary">Sign in</button></div>
  </form>`;
}

export function LoginDialog() {
  const error = useValue(challenge);
  if (!error) return null;
  const close = () => { challenge.value = null; };
  return html`<${Dialog} title=${session.peek() ? 'The credentials were rejected' : 'Sign in'} onClose=${close}><${Login} error=${error} onDone=${close} /><//>`;
}

function Headers() {
  const headers = useValue(extraHeaders);
  const [draft, setDraft] = useState({ name: '', value: '' });
  const add = (event) => {
    event.preventDefault();
    setExtraHeaders([...headers, draft]);
    setDraft({ name: '', value: '' });
  };
  return html`<${Section} title="Headers of all requests" class="box stack"><p class="muted">For a gateway or a tenant. Kept for this tab.</p>
    ${headers.map((header, index) => html`<div class="row" key=${index}><code class="grow">${header.name}: ••••</code><${Button} onClick=${() => setExtraHeaders(headers.filter((_, other) => other !== index))}>Remove ${header.name}<//></div>`)}
    <form class="row" onSubmit=${add}><${Field} label="Name"><input required pattern="[A-Za-z0-9\\-_]+" value=${draft.name} onInput=${typed((value) => setDraft({ ...draft, name: value }))} /><//>
      <${Field} label="Value"><input required type="password" autocomplete="off" value=${draft.value} onInput=${typed((value) => setDraft({ ...draft, value }))} /><//><button type="submit">Add</button></form><//>`;
}

function Operator() {
  const isFull = useValue(isOperator);
  const token = useValue(operatorToken);
  const [draft, setDraft] = useState('');
  const submit = (event) => {
    event.preventDefault();
    useOperatorToken(draft.trim());
    setDraft('');
  };
  return html`<${Section} title="Operator" class="box stack">
    <p>${isFull ? 'You see the tasks and deliveries of all owners.' : 'The views of operators need credentials with the scope admin, or the token that the server prints at its start, in the URL behind the #.'}</p>
    <form class="row" onSubmit=${submit}><${Field} label="Operator token"><input type="password" required autocomplete="off" value=${draft} onInput=${typed(setDraft)} /><//><button type="submit">Use</button>
      ${token && html`<${Button} class="" onClick=${() => useOperatorToken(null)}>Forget operator token<//>`}</form><//>`;
}

const KEYS = [['1 … 6', 'views'], ['/', 'find'], ['n', 'new conversation'], ['j k ↑ ↓', 'next and previous row'], ['Enter', 'open'], ['Esc', 'leave a field, close'], ['Ctrl+Enter', 'send'], ['a d', 'approve, deny: with the focus in an approval'], ['?', 'these keys']];

export const KeyTable = () => html`<table><tbody>${KEYS.map(([key, what]) => html`<tr><td class="mono">${key}</td><td>${what}</td></tr>`)}</tbody></table>`;

export function Settings() {
  const { theme, shortcuts, markdown } = useValue(preferences);
  const current = useValue(session);
  return html`<div class="view"><h1>Settings</h1>
    <${Section} title="Caller" class="box stack">
      ${current ? html`<div class="row"><span class="grow">Signed in: ${current.label}</span><${Button} class="danger" onClick=${forget}>Forget credentials<//></div>` : html`<p>No credentials: you see what anonymous callers see.</p>`}
      <${Login} /><//>
    ${server.operator && html`<${Operator} />`}
    <${Headers} />
    <${Section} title="Display" class="box stack">
      <${Field} label="Theme"><select value=${theme} onChange=${typed((value) => prefer({ theme: value }))}>${options({ auto: 'as the system', light: 'light', dark: 'dark' })}</select><//>
      <${Check} checked=${markdown} set=${(value) => prefer({ markdown: value })}>Show Markdown in texts of agents (headings, lists, code, links; never HTML or images)<//>
      <${Check} checked=${shortcuts} set=${(value) => prefer({ shortcuts: value })}>Keys without Ctrl<//><//>
    <${Section} title="Keys" class="box stack"><${KeyTable} /><//>
    <p class="muted">Server ${server.version}. ${server.docs && html`<${PageLink} path="docs/">API documents<//>`}</p>
  </div>`;
}
