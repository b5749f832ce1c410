// Components that several views use. The only file that sets `href`: links of agents are checked by `text.js`.

import { Component, Fragment, h } from './vendor/preact.js';
import { useEffect, useLayoutEffect, useRef, useState } from './vendor/hooks.js';
import htm from './vendor/htm.js';
import { effect } from './vendor/signals.js';
import { age, grouped, stateOf } from './model.js';
import { fileName, linkify, markdown, preview, visible } from './text.js';
import { hrefOf, isVisible, now, preferences } from './store.js';

const ESCAPED = ['title', 'aria-label', 'alt'];

/** Makes a vnode. All text passes through `visible`, so no view can forget it. */
function element(type, props, ...children) {
  for (const name of ESCAPED) if (typeof props?.[name] === 'string') props[name] = visible(props[name]);
  return h(type, props, ...children.map(shown));
}

const shown = (child) => (typeof child === 'string' ? visible(child) : Array.isArray(child) ? child.map(shown) : child);

export const html = htm.bind(element);
export { Fragment };

/** Renders a component again when a signal changes, and returns its value. There may be no signal. */
export function useValue(source) {
  const [, render] = useState(0);
  const seen = source?.peek();
  useEffect(() => effect(() => {
    if (source && source.value !== seen) render((count) => count + 1);
  }), [source, seen]);
  return seen;
}

/** Calls `read` at once, and then in this interval while the page is visible; from the begin when one of the inputs changes. */
export function usePoll(read, ms, inputs = []) {
  const isShown = useValue(isVisible);
  useEffect(() => {
    if (!isShown) return undefined;
    void read();
    const timer = setInterval(read, ms);
    return () => clearInterval(timer);
  }, [isShown, ...inputs]);
}

/** Runs an asynchronous function when one of the inputs changes. Its signal ends the run before. */
export function useRun(run, inputs) {
  useEffect(() => {
    const stop = new AbortController();
    run(stop.signal);
    return () => stop.abort();
  }, inputs);
}

export const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;

/** Announces a change of state to screen readers. */
export function announce(text) {
  document.getElementById('announcements').textContent = visible(text);
}

export const Button = ({ class: name = 'small', ...props }) => h('button', { type: 'button', class: name, ...props });

// Links and buttons

/** Link to a view: `to` is the list of its segments. */
export function Link({ to, query, children, ...props }) {
  return h('a', { ...props, href: hrefOf(to, query) }, children);
}

/** Link to a page of this server, by a path relative to the page. */
export const PageLink = ({ path, children }) => h('a', { href: `./${path}` }, children);

/** Link of an agent: shows its host, and opens a new tab without a referrer. `piece` is from `text.js`. */
export function ExternalLink({ piece }) {
  const isVisibleHost = piece.text.includes(piece.host) || piece.host === 'mail';
  return h('a', { href: piece.href, target: '_blank', rel: 'noopener noreferrer' }, visible(piece.text), !isVisibleHost && h('span', { class: 'muted' }, ` (${piece.host})`));
}

/** Writes to the clipboard. Without permission, or without TLS, the text is shown to be copied by hand. */
export function CopyButton({ text, label = 'Copy' }) {
  const [state, setState] = useState('');
  const value = () => (typeof text === 'function' ? text() : text);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(await value());
      setState('copied');
      announce('Copied');
      setTimeout(() => setState(''), 1500);
    } catch {
      setState(await value());
    }
  };
  return html`<${Button} onClick=${copy}>${state === 'copied' ? 'Copied ✓' : label}<//>
    ${state && state !== 'copied' && html`<${Dialog} title="Copy this text" onClose=${() => setState('')}><textarea class="mono" rows="8" readonly aria-label="Text to copy">${state}</textarea><//>`}`;
}

/** Id with a button that copies it. `name` is what the button calls it. */
export const Id = ({ id, name = 'id' }) => html`<code>${id}</code> <${CopyButton} text=${id} label=${`Copy ${name}`} />`;

export function Menu({ label, children, title }) {
  const element = useRef(null);
  useEffect(() => {
    const close = (event) => {
      if (element.current?.open && !element.current.contains(event.target)) element.current.open = false;
    };
    addEventListener('pointerdown', close);
    addEventListener('focusin', close);
    return () => {
      removeEventListener('pointerdown', close);
      removeEventListener('focusin', close);
    };
  }, []);
  const key = (event) => {
    if (event.key !== 'Escape' || !element.current.open) return;
    element.current.open = false;
    element.current.querySelector('summary').focus();
    event.stopPropagation();
  };
  const open = () => {
    const { style } = element.current.lastChild;
    style.translate = '';
    const { left } = element.current.lastChild.getBoundingClientRect();
    if (left < 0) style.translate = `${-left}px`;
  };
  return html`<details class="menu" ref=${element} onKeyDown=${key} onToggle=${open}><summary class="button small" title=${title}>${label} <span aria-hidden="true">▾</span></summary><div class="popup">${children}</div></details>`;
}

/** Modal dialog. The browser keeps the focus inside, and returns it after the dialog. */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <header class="row"><h2 id="dialog-title" class="grow">${title}</h2><${Button} class="small plain" aria-label="Close" onClick=${onClose}>✕<//></header>
    ${children}
  </dialog>`;
}

export function Confirm({ title, text, action, onConfirm, onClose }) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${text}</p>
    <footer class="row end"><${Button} class="" autofocus onClick=${onClose}>Back<//><${Button} class="danger" onClick=${() => { onClose(); onConfirm(); }}>${action}<//></footer>
  <//>`;
}

/** Tabs of a view, as links: each has an address. `items` are names with labels; the segments of an address end with a name. */
export const Tabs = ({ items, current, label, to, query }) => html`<nav class="tabs" aria-label=${label}>${Object.entries(items).map(([name, text]) =>
  html`<${Link} key=${name} to=${[...to, name]} query=${query} aria-current=${name === current ? 'page' : undefined}>${text}<//>`)}</nav>`;

export const Section = ({ title, class: name = 'stack', children }) => html`<section class=${name}><h2>${title}</h2>${children}</section>`;

/**
 * Table; on a narrow page, each row is a list, for which its cells get the names of their columns. `head` has these, separated by
 * `|`; those of numbers begin with `#`.
 */
export function Table({ label, head, class: name, children }) {
  const body = useRef(null);
  const columns = head.split('|');
  useLayoutEffect(() => {
    for (const row of body.current.rows) columns.forEach((text, index) => { row.cells[index].dataset.label = text.replace('#', ''); });
  });
  const column = (text) => html`<th class=${text.startsWith('#') ? 'number' : text === 'What' ? 'what' : ''}>${text.replace('#', '')}</th>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class=${name ?? 'rows'}><thead><tr>${columns.map(column)}</tr></thead><tbody ref=${body}>${children}</tbody></table></div>`;
}

/** Options of a `select`: names with labels. */
export const options = (labels) => Object.entries(labels).map(([name, label]) => html`<option value=${name}>${label}</option>`);

/** Handler that passes the value of a field to `set`. */
export const typed = (set) => ({ currentTarget: { type, checked, value } }) => set(type === 'checkbox' ? checked : value);

export function Check({ set, children, ...props }) {
  return html`<label class="check"><input type="checkbox" onChange=${typed(set)} ...${props} />${children}</label>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span class="name">${label}</span>${children}${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

// Texts

export function State({ name, isShort }) {
  const state = stateOf(name);
  return html`<span class=${`state ${state.tone}`}><span aria-hidden="true">${state.symbol}</span> <span class=${isShort ? 'sr-only' : ''}>${state.word}</span></span>`;
}

/** Age of a time in milliseconds or as text, with the time itself as the title. */
export function Age({ at }) {
  const current = useValue(now);
  at = typeof at === 'string' ? Date.parse(at) : at;
  if ((at ?? null) === null) return html`<span class="muted">–</span>`;
  const date = new Date(at);
  return html`<time dateTime=${date.toISOString()} title=${date.toLocaleString()}>${age(at, current)}</time>`;
}

/** Time of day with milliseconds, with the date as the title. */
export function Clock({ at }) {
  if ((at ?? null) === null) return null;
  const date = new Date(at);
  const text = date.toISOString();
  return html`<time dateTime=${text} title=${text}>${date.toLocaleTimeString('en-GB', { fractionalSecondDigits: 3, hour: '2-digit', minute: '2-digit', second: '2-digit' })}</time>`;
}

const Piece = (piece) => {
  if (piece.href) return html`<${ExternalLink} piece=${piece} />`;
  if (piece.code !== undefined) return html`<code>${piece.code}</code>`;
  if (piece.strong) return html`<strong>${piece.strong.map(Piece)}</strong>`;
  if (piece.em) return html`<em>${piece.em.map(Piece)}</em>`;
  return piece.text;
};

function Block(block) {
  if (block.heading) return html`<p class="heading"><strong>${block.heading.map(Piece)}</strong></p>`;
  if (block.fence !== undefined) return html`<pre>${block.fence}</pre>`;
  if (block.items) return h(block.isOrdered ? 'ol' : 'ul', null, block.items.map((item) => html`<li>${item.map(Piece)}</li>`));
  return html`<p>${block.paragraph.map(Piece)}</p>`;
}

/** Returns a text, shortened until the reader asks for all, and the control for that. */
function useBegin(all) {
  const [isWhole, setIsWhole] = useState(false);
  const { text, isShortened } = isWhole ? { text: all } : preview(all);
  return [text, isShortened && html`<p class="row"><span class="muted">${grouped(text.length)} of ${grouped(all.length)} characters</span><${Button} onClick=${() => setIsWhole(true)}>Show all<//></p>`];
}

/** Text of an agent: text nodes and checked links. */
export function Prose({ text }) {
  const { markdown: isMarkdown } = useValue(preferences);
  const [begin, more] = useBegin(text);
  return html`<div class=${isMarkdown ? 'prose markdown' : 'prose'}>${isMarkdown ? markdown(begin).map(Block) : linkify(begin).map(Piece)}</div>${more}`;
}

export function Code({ text, label }) {
  const [begin, more] = useBegin(text);
  return html`<pre tabindex="0" role="region" aria-label=${label}>${begin}</pre>${more}`;
}

export const Json = ({ value, label }) => html`<${Code} text=${JSON.stringify(value, null, 2) ?? 'undefined'} label=${label} />`;

/** Error of a call: message, fields, reason and the id that the log of the server has. */
export function ErrorBox({ error, title, onRetry, children }) {
  if (!error) return null;
  const fields = (error.fields ?? []).filter(({ description }) => !error.message.includes(description));
  return html`<div class="box fail" role="alert">
    ${title && html`<strong>${title} </strong>`}<span>${error.message}</span>
    ${fields.length > 0 && html`<ul>${fields.map((field) => html`<li><code>${field.field}</code> ${field.description}</li>`)}</ul>`}
    <div class="row muted">${error.status > 0 && html`<span>status ${error.status}</span>`}${error.reason && html`<span>${error.reason}</span>`}
      ${error.requestId && html`<span>request <${Id} id=${error.requestId} name="request id" /></span>`}
      ${onRetry && html`<${Button} onClick=${onRetry}>Retry<//>`}${children}</div>
  </div>`;
}

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

/** Error of a read, or that it is not complete yet. */
export const Loading = (props) => (props.error ? html`<${ErrorBox} ...${props} />` : html`<${Empty}>Loading…<//>`);

/** Where credentials for the views of the operator are entered. */
export const NeedsOperator = () => html`<p>All of it needs the scope <code>admin</code>, or the operator token of the last start: see <${Link} to=${['settings']}>Settings<//>.</p>`;

/** Saves bytes or text as a file. The type is fixed: a `blob:` of HTML that a tab opens would run in this origin. */
export function download(content, name) {
  const url = URL.createObjectURL(new Blob([content], { type: 'application/octet-stream' }));
  const element = document.createElement('a');
  element.href = url;
  element.download = fileName(name);
  element.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Lists

/**
 * List of which only the visible rows are in the page. `count` rows of `height` pixels, `row(index)` renders one. Keys move the
 * focus between the links or buttons with the class `row-focus`.
 */
export function VirtualList({ count, height, row, label, head, columns }) {
  const element = useRef(null);
  const [{ top, space }, setView] = useState({ top: 0, space: 600 });
  const wanted = useRef(null);
  useLayoutEffect(() => {
    const measure = () => setView((view) => ({ ...view, space: element.current?.clientHeight ?? view.space }));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (wanted.current === null) return;
    const target = element.current.querySelector(`[data-index="${wanted.current}"] .row-focus`);
    if (target) {
      target.focus({ preventScroll: true });
      wanted.current = null;
    }
  });
  const first = Math.max(0, Math.floor(top / height) - 6);
  const last = Math.min(count, Math.ceil((top + space) / height) + 6);
  const focus = (index) => {
    if (index < 0 || index >= count) return;
    const list = element.current;
    if (index * height < list.scrollTop) list.scrollTop = index * height;
    else if ((index + 1) * height > list.scrollTop + list.clientHeight - height) list.scrollTop = (index + 2) * height - list.clientHeight;
    wanted.current = index;
    setView((view) => ({ ...view, top: list.scrollTop }));
  };
  const key = (event) => {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    const at = event.target.closest('[data-index]');
    if (!step || hasModifier(event) || (/^[jk]$/.test(event.key) && !preferences.peek().shortcuts)) return;
    event.preventDefault();
    event.stopPropagation();
    focus(at ? Math.max(0, Math.min(count - 1, Number(at.dataset.index) + step)) : first);
  };
  const scroll = () => setView((view) => ({ ...view, top: element.current.scrollTop }));
  const rows = [];
  for (let index = first; index < last; index += 1) rows.push(row(index));
  return html`<div class="list" role="table" aria-label=${label} aria-rowcount=${count + 1} aria-colcount=${columns}>
    ${head && html`<div role="rowgroup" class="list-head">${head}</div>`}
    <div class="list-body" role="rowgroup" ref=${element} onScroll=${scroll} onKeyDown=${key} tabindex="0" aria-label=${label}>
      <div class="list-space" role="presentation" style=${{ height: `${count * height}px` }}><div role="presentation" style=${{ transform: `translateY(${first * height}px)` }}>${rows}</div></div>
    </div>
  </div>`;
}

/** True below 640 CSS pixels. */
export function useNarrow() {
  const query = matchMedia('(max-width: 640px)');
  const [isNarrow, setIsNarrow] = useState(query.matches);
  useEffect(() => {
    const change = () => setIsNarrow(query.matches);
    query.addEventListener('change', change);
    return () => query.removeEventListener('change', change);
  }, []);
  return isNarrow;
}

/** Keeps an exception of one view from removing the page. */
export class Guard extends Component {
  constructor(props) {
    super(props);
    this.state = { error: null };
  }

  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidCatch(error) {
    console.error(error);
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return html`<${ErrorBox} title="This view failed." error=${error} onRetry=${() => this.setState({ error: null })} />`;
  }
}
