// Shell of the console: header, router and keys.

import { render } from './vendor/preact.js';
import { useEffect, useState } from './vendor/hooks.js';
import { visible } from './text.js';
import { announce, Button, Dialog, Empty, Guard, hasModifier, html, Link, Menu, typed, usePoll, useValue } from './ui.js';
import { agent, agents, card, challenge, connection, epoch, forget, go, isOperator, listen, operator, ping, PING_MS, prefer, preferences, route, segmentsOf, session, start } from './store.js';
import { Card } from './views/card.js';
import { Chat, newConversation } from './views/chat.js';
import { Push } from './views/push.js';
import { KeyTable, LoginDialog, Settings } from './views/settings.js';
import { Status } from './views/status.js';
import { Task } from './views/task.js';
import { Tasks } from './views/tasks.js';

const VIEWS = {
  chat: { label: 'Chat', view: Chat },
  tasks: { label: 'Tasks', view: Tasks },
  card: { label: 'Card', view: Card },
  push: { label: 'Push', view: Push, isFor: isOperator },
  status: { label: 'Status', view: Status, isFor: operator },
  settings: { label: 'Settings', view: Settings },
  task: { label: 'Task', view: Task, isHidden: true },
};

const THEMES = { auto: 'light', light: 'dark', dark: 'auto' };
const CONNECTIONS = { live: ['ok', '●', 'connected'], offline: ['fail', '○', 'offline'], unauthorized: ['ask', '○', 'sign in'], connecting: ['muted', '○', 'connecting'] };

/** True if own tasks need credentials, which the caller has not given. An operator sees those of all owners then. */
const isAnonymous = () => !session.peek() && (card.peek()?.securitySchemes || connection.peek() === 'unauthorized');

function Caller() {
  const current = useValue(session);
  useValue(connection);
  useValue(card);
  if (!current) return isAnonymous() && html`<${Button} onClick=${() => { challenge.value = {}; }}>Sign in<//>`;
  return html`<${Menu} label=${current.label} title="Caller"><${Button} class="" onClick=${forget}>Forget credentials<//><//>`;
}

function Header({ onKeys }) {
  const { view } = useValue(route);
  useValue(operator);
  usePoll(ping, PING_MS);
  const isFull = useValue(isOperator);
  const list = useValue(agents);
  const current = useValue(agent);
  const { theme } = useValue(preferences);
  const [tone, symbol, word] = CONNECTIONS[useValue(connection)];
  const shownView = view === 'task' ? 'tasks' : view;
  return html`<header class="top"><a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById('main').focus(); }}>Skip to content</a>
    <span class="brand">a2a</span>
    ${list.length > 1
      ? html`<select class="small" aria-label="Agent" value=${current.id} onChange=${typed((value) => go(['chat'], { agent: value }))}>${list.map(({ id, name }) => html`<option value=${id}>${name}</option>`)}</select>`
      : html`<span>${useValue(card)?.name ?? current.name}</span>`}
    <nav aria-label="Views">${Object.entries(VIEWS).filter(([, { isHidden, isFor }]) => !isHidden && (!isFor || isFor.peek())).map(([name, { label }]) => html`<${Link} key=${name} to=${segmentsOf(name)} query=${{ all: name === 'tasks' && isFull && isAnonymous() && '1' }} aria-current=${name === shownView ? 'page' : undefined}>${label}<//>`)}</nav>
    <div class="tools"><span class=${tone} role="status">${symbol}<span class="hide-narrow"> ${word}</span></span>${isFull && html`<span class="muted">operator</span>`}<${Caller} />
      <${Button} title="Theme" onClick=${() => { prefer({ theme: THEMES[theme] }); announce(`Theme ${THEMES[theme]}`); }}>◐<span class="hide-narrow"> ${theme}</span><//>
      <${Button} aria-label="Keys" title="Keys (?)" onClick=${onKeys}>?<//></div>
  </header>`;
}

const isTyping = (element) => element.closest('input, textarea, select') !== null;

/** Single keys act outside of fields and dialogs, and can be switched off in the settings. */
function useKeys(onKeys) {
  useEffect(() => {
    const press = (event) => {
      if (hasModifier(event) || event.defaultPrevented || !preferences.peek().shortcuts || document.querySelector('dialog[open]')) return;
      if (isTyping(event.target)) {
        if (event.key === 'Escape') event.target.blur();
        return;
      }
      const link = document.querySelectorAll('.top nav a')[event.key - 1];
      if (link) link.click();
      else if (event.key === '/') (document.getElementById('find') ?? document.getElementById('composer-text'))?.focus();
      else if (event.key === 'n') newConversation();
      else if (event.key === '?') onKeys();
      else if (event.key === 'Escape' && route.peek().view === 'task') history.back();
      else if (/^[jk]$/.test(event.key)) document.querySelector('.list-body')?.dispatchEvent(new KeyboardEvent('keydown', { key: event.key }));
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

function App() {
  const { view, args } = useValue(route);
  const isFull = useValue(isOperator);
  const generation = useValue(epoch);
  const name = useValue(card)?.name;
  const [showsKeys, setShowsKeys] = useState(false);
  useKeys(() => setShowsKeys(true));
  const { view: View, label } = VIEWS[view] ?? VIEWS.chat;
  useEffect(() => { document.title = `${label} · ${name ? visible(name) : 'A2A console'}`; }, [label, name]);
  return html`<${Header} onKeys=${() => setShowsKeys(true)} />
    <main id="main" tabindex="-1"><${Guard} key=${`${generation}/${view}/${view === 'task' ? args[0] : ''}/${agent.peek().id}/${isFull}`}><${View} /><//></main>
    <${LoginDialog} />
    ${showsKeys && html`<${Dialog} title="Keys" onClose=${() => setShowsKeys(false)}><${KeyTable} /><//>`}`;
}

const page = document.getElementById('app');
listen();
render(html`<${Empty}>Connecting…<//>`, page);
await start();
render(html`<${App} />`, page);
