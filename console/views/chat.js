// Chat: the conversations of the caller, and the turns of one of them.

import { useEffect, useRef, useState } from '../vendor/hooks.js';
import { approvalOf, askOf, contextsOf, duration, isInterrupted, isTerminal, requestedSchema, shortId, stateOf, timeOfId } from '../model.js';
import { Age, announce, Button, Confirm, CopyButton, Empty, ErrorBox, hasModifier, html, Json, Link, State, useValue } from '../ui.js';
import { answerTo, api, attempt, cancelTask, card, dropSend, feedOf, go, messageOf, now, ownTasks, pending, preferences, replies, replaceRoute, route, send, watch } from '../store.js';
import { Composer } from './composer.js';
import { isFlat, SchemaForm } from './form.js';
import { Artifact, Message } from './parts.js';

const MAX_CONVERSATIONS = 100;
const MAX_TURNS = 20;

function Conversations({ list, current }) {
  useValue(list.version);
  const [limit, setLimit] = useState(MAX_CONVERSATIONS);
  const contexts = contextsOf(list.rows.values());
  return html`<aside aria-label="Conversations">
    <div class="row"><h2 class="grow">Conversations</h2><${Link} to=${['chat']} class="button small" title="New conversation (n)">+ New<//></div>
    ${contexts.length === 0 && html`<p class="muted">None yet.</p>`}
    <ul class="conversations">${contexts.slice(0, limit).map((context) => html`<li key=${context.id}>
      <${Link} to=${['chat', context.id]} aria-current=${context.id === current ? 'true' : undefined}>
        <${State} name=${context.last.state} isShort=${true} /><span class="title">${context.title || context.last.message || shortId(context.id)}</span><span class="muted"><${Age} at=${context.updated} /></span>
      <//></li>`)}</ul>
    ${contexts.length > limit && html`<${Button} onClick=${() => setLimit(limit + MAX_CONVERSATIONS)}>Show more<//>`}
  </aside>`;
}

/** Tool call that waits for an approval. Its keys act only while the focus is inside. */
function Approval({ call, onAnswer, isBusy }) {
  const key = (event) => {
    if (!preferences.peek().shortcuts || hasModifier(event)) return;
    if (event.key === 'a' || event.key === 'd') {
      event.preventDefault();
      event.stopPropagation();
      onAnswer(event.key === 'a');
    }
  };
  return html`<section class="box ask stack" aria-label="Approval of a tool call" onKeyDown=${key}>
    <div class="row"><strong>Tool call to approve</strong><code>${call.name}</code></div>
    <${Json} value=${call.arguments ?? {}} label="Arguments of the tool call" />
    <div class="row"><${Button} class="primary" disabled=${isBusy} title="a, while the focus is here" onClick=${() => onAnswer(true)}>Approve<//>
      <${Button} class="danger" disabled=${isBusy} title="d, while the focus is here" onClick=${() => onAnswer(false)}>Deny<//>
      <span class="muted">or answer with text below</span></div>
  </section>`;
}

/** Moves the focus to the composer if the element that had it is gone. */
function returnFocus() {
  if (document.activeElement === document.body) document.getElementById('composer-text')?.focus();
}

/** Controls for a waiting task: an approval, a form, or credentials. A plain question is answered in the composer. */
export function Question({ task, onAnswer }) {
  const [isBusy, setIsBusy] = useState(false);
  const answer = async (parts) => {
    setIsBusy(true);
    await onAnswer(parts);
    setIsBusy(false);
    returnFocus();
  };
  const json = (data) => answer([{ data, mediaType: 'application/json' }]);
  const call = approvalOf(task);
  if (call) return html`<${Approval} call=${call} isBusy=${isBusy} onAnswer=${(approve) => answer([{ data: { approve } }])} />`;
  const schema = requestedSchema(task);
  if (schema && isFlat(schema)) return html`<section class="box ask" aria-label="Form"><${SchemaForm} schema=${schema} isBusy=${isBusy} onSubmit=${json} /></section>`;
  if (schema) return html`<section class="box ask stack"><p>The agent asks for JSON of this schema. Answer with a data part.</p><${Json} value=${schema} label="Schema" /></section>`;
  if (task.status.state === 'TASK_STATE_AUTH_REQUIRED') {
    return html`<section class="box ask row" aria-label="Authorization"><span class="grow">Authorize as the agent says, then continue. If it asks for a code or a password, answer below and mark the message as secret.</span>
      <${Button} class="primary" disabled=${isBusy} onClick=${() => answer([{ text: 'Continue' }])}>Continue<//></section>`;
  }
  return null;
}

/** Buttons of a task: cancel while it runs, send it again when it has ended. */
export function TaskActions({ task, onRetried }) {
  const [isAsking, setIsAsking] = useState(false);
  const [error, setError] = useState(null);
  const cancel = async () => {
    try {
      const canceled = await cancelTask(task.id);
      announce(`Task ${stateOf(canceled.status?.state).word}`);
      setError(null);
      const feed = feedOf(task.id);
      feed.snapshot = canceled;
      feed.touch();
      setTimeout(returnFocus, 100);
    } catch (failure) {
      setError(failure);
    }
  };
  const first = askOf(task);
  const retry = () => {
    const message = messageOf(first.parts, { contextId: task.contextId, referenceTaskIds: [task.id], metadata: first.metadata });
    void send({ message }, (id, context) => onRetried?.(id, context));
  };
  return html`${isTerminal(task)
    ? first && html`<${Button} title="The same message as a new task of this conversation" onClick=${retry}>Retry as new<//>`
    : html`<${Button} class="small danger" onClick=${() => setIsAsking(true)}>Cancel task<//>`}
    <${ErrorBox} error=${error} title="Not canceled." />
    ${isAsking && html`<${Confirm} title="Cancel this task?" text="The agent stops its work. A canceled task can't be continued." action="Cancel task" onConfirm=${cancel} onClose=${() => setIsAsking(false)} />`}`;
}

/** Whether the events of a task are received. */
export function FeedState({ feed }) {
  const state = useValue(feed.state);
  const error = useValue(feed.error);
  if (state === 'live') return html`<span class="busy">● live</span>`;
  if (state === 'reconnecting') return html`<span class="ask" role="status">⟳ Reconnecting… last event ${feed.log.lastSeq || 'none'}${error ? ` (${error.message})` : ''}</span>`;
  return !error && html`<span class="muted">${{ loading: 'loading…', ended: 'whole log' }[state]}</span>`;
}

/** A task in a conversation. The last one that has not ended is followed. */
function Turn({ id, isCurrent, onAnswer }) {
  const feed = feedOf(id);
  useValue(feed.version);
  const error = useValue(feed.error);
  useEffect(() => {
    if (!feed.snapshot && !feed.log.task) void feed.load();
  }, [feed]);
  const { task } = feed;
  const isRunning = task && !isTerminal(task);
  const isWorking = isRunning && !isInterrupted(task);
  useEffect(() => {
    if (!isCurrent || !isRunning) return undefined;
    let end = null;
    const begin = () => {
      end?.();
      end = watch(feed);
    };
    // The stream of a send delivers the events: a subscription begins when it ends.
    feed.onIdle = begin;
    if (feed.state.peek() !== 'live' || feed.stopping) begin();
    return () => {
      feed.onIdle = null;
      end?.();
    };
  }, [feed, isCurrent, isRunning]);
  if (!task) {
    return html`<article class="turn"><header><span class="muted">task ${shortId(id)}</span></header>
      ${error ? html`<${ErrorBox} error=${error} onRetry=${() => feed.load()} />` : html`<p class="muted">Loading…</p>`}</article>`;
  }
  const created = timeOfId(task.id);
  const updated = isWorking ? now.peek() : Date.parse(task.status?.timestamp);
  return html`<article class="turn" aria-label=${`Task ${shortId(task.id)}`}>
    <header><span>task <code title=${task.id}>${shortId(task.id)}</code></span><${State} name=${task.status?.state} />
      ${created !== null && html`<span class="muted">${duration(updated - created)}</span>`}
      <${Link} to=${['task', task.id]} class="button small">Open<//>
      <${TaskActions} task=${task} /></header>
    ${(task.history ?? []).map((message) => html`<${Message} key=${message.messageId} message=${message} />`)}
    ${task.artifacts?.length > 0 && html`<div class="message"><div class="who">Agent</div><div class="body">${task.artifacts.map((artifact) => html`<${Artifact} key=${artifact.artifactId} artifact=${artifact} />`)}</div></div>`}
    ${task.status?.message && html`<${Message} message=${task.status.message} />`}
    ${isCurrent && isWorking && html`<p><${FeedState} feed=${feed} /></p>`}
    ${isCurrent && isInterrupted(task) && html`<${Question} key=${task.status.timestamp} task=${task} onAnswer=${(parts) => onAnswer(task, parts)} />`}
    ${isRunning && error?.status > 0 && error.status < 500 && html`<${ErrorBox} error=${error} title="The task can't be followed." />`}
  </article>`;
}

function PendingSend({ item, onTask }) {
  const { key, request, state, error } = item;
  return html`<article class="turn"><${Message} message=${request.message} />
    ${state === 'sending' && html`<p class="muted">Sending…</p>`}
    ${state === 'unknown' && html`<div class="box ask row"><span class="grow">No response: the message may have arrived. A retry has the same key, so the agent gets the message once.${request.options?.hasKey === false && ' Without a key, the agent may get it twice.'}</span>
      <${Button} class="primary" onClick=${() => attempt(key, onTask)}>Retry with the same key<//><${Button} class="" onClick=${() => dropSend(key)}>Discard<//></div>`}
    ${state === 'failed' && html`<${ErrorBox} error=${error} title="Not sent." onRetry=${() => attempt(key, onTask)}><${Button} onClick=${() => dropSend(key)}>Discard<//><//>`}
  </article>`;
}

/** Scrolls to the end when something is added, unless the reader has scrolled up. */
function useStickToEnd() {
  const element = useRef(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    const list = element.current;
    // On a narrow page, the page scrolls instead of the list.
    const box = () => (getComputedStyle(list).overflowY === 'visible' ? document.scrollingElement : list);
    const scrolled = () => {
      const { scrollHeight, scrollTop, clientHeight } = box();
      isAtEnd.current = scrollHeight - scrollTop - clientHeight < 60;
    };
    const stick = () => { if (isAtEnd.current && list.querySelector('.turn')) box().scrollTop = box().scrollHeight; };
    const observer = new MutationObserver(stick);
    addEventListener('scroll', scrolled, { passive: true, capture: true });
    observer.observe(list, { childList: true, subtree: true, characterData: true });
    stick();
    return () => {
      observer.disconnect();
      removeEventListener('scroll', scrolled, { capture: true });
    };
  }, []);
  return element;
}

const EXAMPLES = ['hello', '/help', '/stream 10 200', '/ask Which city?', '/approve write_file', '/form', '/parts', '/fail no reason'];

function Welcome({ onChoose }) {
  const { description, skills = [] } = useValue(card) ?? {};
  const examples = skills.flatMap((skill) => (skill.id === 'provoke' ? EXAMPLES : skill.examples ?? [])).slice(0, 12);
  return html`<${Empty}>${description && html`<p>${description}</p>`}<p>Send a message to begin a conversation.</p>
    ${examples.length > 0 && html`<p>Examples:</p><p class="row">${examples.map((text) => html`<${Button} key=${text} onClick=${() => onChoose(text)}>${text}<//>`)}</p>`}<//>`;
}

/** True while a new conversation gets its id: its view is made anew, and the composer keeps the focus. */
let isFocusKept = false;

function Conversation({ context, list, skill }) {
  useValue(list.version);
  useValue(now);
  const sends = useValue(pending).filter(({ request }) => (request.message.contextId ?? '') === context);
  const plain = useValue(replies).filter((reply) => reply.context === context);
  const [limit, setLimit] = useState(MAX_TURNS);
  const [example, setExample] = useState(null);
  const [isFocused] = useState(() => isFocusKept || route.peek().query.has('new'));
  useEffect(() => { isFocusKept = false; }, []);
  const element = useStickToEnd();
  const ids = context ? [...list.rows.values()].filter((row) => row.context === context).sort((a, b) => a.created - b.created).map((row) => row.id) : [];
  const open = ids.findLast((id) => {
    const { task } = feedOf(id);
    return task ? !isTerminal(task) : !stateOf(list.rows.get(id).state).isTerminal;
  });
  const feed = open ? feedOf(open) : null;
  useValue(feed?.version);
  const waiting = feed?.task && isInterrupted(feed.task) ? feed.task : null;
  const onTask = (id, contextId) => {
    if (context || !contextId) return;
    isFocusKept = true;
    replaceRoute(['chat', contextId]);
  };
  const composer = useRef(null);
  const onRetried = (request) => (id, contextId) => {
    composer.current(request);
    onTask(id, contextId);
  };
  const onSend = (request, onAccepted) => {
    const accept = (id, contextId) => {
      onAccepted?.();
      onTask(id, contextId);
    };
    // The same message again is a retry of one that may have arrived.
    const contentOf = ({ message: { taskId, parts } }) => JSON.stringify([taskId, parts]);
    const same = sends.find((item) => item.state === 'unknown' && contentOf(item.request) === contentOf(request));
    return same ? attempt(same.key, accept) : send(request, accept);
  };
  const onAnswer = (task, parts) => onSend(answerTo(task, parts));
  const last = ids.length > 0 ? feedOf(ids.at(-1)) : null;
  useValue(last?.version);
  const spoken = last?.task ? `Task ${stateOf(last.task.status?.state).word}` : '';
  useEffect(() => { if (spoken) announce(spoken); }, [last, spoken]);
  const shown = ids.slice(-limit);
  return html`<div class="conversation">
    <div class="turns" ref=${element} tabindex="0" role="region" aria-label="Messages">
      ${context && html`<div class="row muted"><${Link} to=${['chat']} class="button small only-narrow">All conversations<//>conversation <code title=${context}>${shortId(context)}</code><${CopyButton} text=${context} label="Copy id" /></div>`}
      ${ids.length > limit && html`<${Button} class="" onClick=${() => setLimit(limit + MAX_TURNS)}>Show ${Math.min(MAX_TURNS, ids.length - limit)} earlier tasks<//>`}
      ${ids.length === 0 && sends.length === 0 && plain.length === 0 && (context ? html`<${Empty}>${list.state.peek() === 'loading' ? 'Loading…' : 'No task of this conversation is known.'}<//>` : html`<${Welcome} onChoose=${(text) => setExample({ text })} />`)}
      ${shown.map((id) => html`<${Turn} key=${id} id=${id} isCurrent=${id === open} onAnswer=${onAnswer} />`)}
      ${plain.map((reply, index) => html`<article class="turn" key=${index}><${Message} message=${reply.asked} /><${Message} message=${reply.message} /></article>`)}
      ${sends.map((item) => html`<${PendingSend} key=${item.key} item=${item} onTask=${onRetried(item.request)} />`)}
    </div>
    <${Composer} key=${context} onRetried=${composer} context=${context} waiting=${waiting} skill=${skill} example=${example} onSend=${onSend} isFocused=${isFocused} />
  </div>`;
}

export function Chat() {
  const { args, query } = useValue(route);
  useValue(api);
  const list = ownTasks();
  const context = args[0] ?? '';
  return html`<h1 class="sr-only">Chat</h1><div class=${context ? 'chat chosen' : 'chat'}><${Conversations} list=${list} current=${context} /><${Conversation} key=${context} context=${context} list=${list} skill=${query.get('skill')} /></div>`;
}

export const newConversation = () => go(['chat'], { new: '1' });
