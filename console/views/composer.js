// Composer of a message: text, files, data, and the options of a send.

import { useEffect, useRef, useState } from '../vendor/hooks.js';
import { size, shortId } from '../model.js';
import { announce, Button, Check, Field, html, options as choices, typed, useValue } from '../ui.js';
import { card, draftOf, keepDraft, messageOf } from '../store.js';
import { base64Of } from './parts.js';

const SECRET = 'urn:a2a-service:secret:v1';

const BINDINGS = { rest: '1.0 HTTP+JSON', jsonrpc: '1.0 JSON-RPC', 0.3: '0.3 JSON-RPC' };

/** Options of a message, without those that are not set at first. */
const NO_OPTIONS = { binding: 'rest', hasKey: true, modes: '', metadata: '', extensions: '' };

/** Returns a JSON value, or `{error}`. An empty text is no value. */
function parseJson(text, kind) {
  if (!text?.trim()) return {};
  try {
    const value = JSON.parse(text);
    if (kind === 'object' && (value === null || typeof value !== 'object' || Array.isArray(value))) return { error: 'must be an object' };
    return { value };
  } catch (error) {
    return { error: error.message };
  }
}

const list = (text) => text.split(',').map((item) => item.trim()).filter(Boolean);

/** Returns the request of a send, or `{problem}`. */
function buildRequest({ text, files, data, options, taskId, contextId }) {
  const dataPart = data === null ? {} : parseJson(data);
  if (dataPart.error) return { problem: `data: ${dataPart.error}` };
  const metadata = parseJson(options.metadata, 'object');
  if (metadata.error) return { problem: `metadata: ${metadata.error}` };
  const secret = options.isSecret ? { metadata: { [SECRET]: true } } : {};
  const parts = [
    ...(text.trim() ? [{ text, ...secret }] : []),
    ...files.map(({ raw, filename, mediaType }) => ({ raw, filename, ...(mediaType && { mediaType }), ...secret })),
    ...(dataPart.value !== undefined ? [{ data: dataPart.value, mediaType: 'application/json', ...secret }] : []),
  ];
  if (parts.length === 0) return { problem: 'nothing to send' };
  const more = { ...metadata.value, ...(options.skill && { skillId: options.skill }) };
  const configuration = {
    ...(list(options.modes).length > 0 && { acceptedOutputModes: list(options.modes) }),
    ...(options.returnImmediately && { returnImmediately: true }),
    ...(options.pushUrl && { taskPushNotificationConfig: { url: options.pushUrl, ...(options.pushToken && { token: options.pushToken }) } }),
  };
  return {
    request: {
      message: messageOf(parts, { taskId, contextId, metadata: Object.keys(more).length > 0 ? more : null, extensions: list(options.extensions) }),
      ...(Object.keys(configuration).length > 0 && { configuration }),
      options: { binding: options.binding, hasKey: options.hasKey },
      isSecret: options.isSecret,
    },
  };
}

async function fileOf(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  return { filename: file.name, mediaType: file.type, bytes: bytes.length, raw: base64Of(bytes) };
}

function Options({ options, change }) {
  const skills = useValue(card)?.skills ?? [];
  const canPush = useValue(card)?.capabilities?.pushNotifications;
  const set = (name) => typed((value) => change({ [name]: value }));
  const field = (name, label, hint, more) => html`<${Field} label=${label} hint=${hint}><input value=${options[name]} onInput=${set(name)} ...${more} /><//>`;
  return html`<fieldset class="box stack"><legend class="muted">Options of this message</legend>
    <div class="grid">
      <${Field} label="Binding"><select value=${options.binding} onChange=${set('binding')}>${choices(BINDINGS)}</select><//>
      <${Field} label="Skill"><select value=${options.skill} onChange=${set('skill')}><option value="">none named</option>
        ${skills.map((skill) => html`<option value=${skill.id}>${skill.name || skill.id}</option>`)}</select><//>
      ${field('modes', 'Accepted output modes', 'Media types, separated by commas')}
      ${field('extensions', 'Extensions', 'URIs, separated by commas')}
      ${field('pushUrl', 'Push URL', canPush ? 'Receives the events of the task' : 'This agent sends no push notifications', { type: 'url', disabled: !canPush })}
      ${field('pushToken', 'Push token', '', { disabled: !canPush, autocomplete: 'off' })}
    </div>
    <${Field} label="Metadata of the message (JSON object)"><textarea class="mono" rows="2" value=${options.metadata} onInput=${set('metadata')} /><//>
    <${Check} checked=${options.hasKey} onChange=${set('hasKey')}>Idempotency key: a repeated send runs once. Without it, an agent may reply without a task<//>
    <${Check} checked=${options.isSecret} onChange=${set('isSecret')}>Secret: the server redacts these parts once the agent has read them<//>
    <${Check} checked=${options.returnImmediately} onChange=${set('returnImmediately')}>Return immediately<//>
  </fieldset>`;
}

/**
 * Composer of a conversation. `waiting` is the task that waits for an answer: the message is for it, unless the caller chooses a
 * new task. `onSend(request)` returns true if the message was accepted; otherwise the draft is kept. A reference gets a function for
 * `onRetried`, which drops that draft once the server has the message.
 */
export function Composer({ onRetried, context, waiting, onSend, skill, example, isFocused }) {
  const draftName = context || 'new';
  const [text, setText] = useState(() => draftOf(draftName));
  const [files, setFiles] = useState([]);
  const [data, setData] = useState(null);
  const [isNewTask, setIsNewTask] = useState(false);
  const [showsOptions, setShowsOptions] = useState(false);
  const [options, setOptions] = useState({ ...NO_OPTIONS, skill: skill ?? '' });
  const [isDragged, setIsDragged] = useState(false);
  const [isBusy, setIsBusy] = useState(false);
  const area = useRef(null);
  const picker = useRef(null);
  useEffect(() => { if (isFocused) area.current?.focus(); }, [isFocused]);
  useEffect(() => {
    if (!example) return;
    setText(example.text);
    area.current?.focus();
  }, [example]);
  const change = (value) => {
    setText(value);
    // A secret is not stored, also not in this tab.
    keepDraft(draftName, options.isSecret ? '' : value);
  };
  const addFiles = async (chosen) => {
    const read = await Promise.all([...chosen].map(fileOf));
    setFiles((before) => [...before, ...read]);
    announce(`${read.length} file${read.length === 1 ? '' : 's'} attached`);
  };
  const target = waiting && !isNewTask ? waiting.id : undefined;
  const built = buildRequest({ text, files, data, options, taskId: target, contextId: context });
  const clear = () => {
    setText('');
    setFiles([]);
    setData(null);
  };
  onRetried.current = ({ message }) => {
    if (JSON.stringify(message.parts) !== JSON.stringify(built.request?.message.parts)) return;
    clear();
    keepDraft(draftName, '');
  };
  const submit = async (event) => {
    event?.preventDefault();
    if (built.problem || isBusy) return;
    const before = { text, files, data };
    setIsBusy(true);
    // The draft returns if the server rejects the message.
    clear();
    const isAccepted = await onSend(built.request, () => {
      setIsBusy(false);
      keepDraft(draftName, '');
    });
    setIsBusy(false);
    if (!isAccepted) {
      setText((now) => now || before.text);
      setFiles((now) => (now.length > 0 ? now : before.files));
      setData((now) => now ?? before.data);
    }
    area.current?.focus();
  };
  const key = (event) => {
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) submit(event);
    else if (event.key === 'Escape') area.current?.blur();
  };
  const paste = (event) => {
    if (event.clipboardData?.files.length > 0) {
      event.preventDefault();
      void addFiles(event.clipboardData.files);
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setIsDragged(false);
    if (event.dataTransfer?.files.length > 0) void addFiles(event.dataTransfer.files);
  };
  const dragOver = (event) => {
    if (![...(event.dataTransfer?.types ?? [])].includes('Files')) return;
    event.preventDefault();
    setIsDragged(true);
  };
  const label = target ? `Answer to task ${shortId(waiting.id)}` : 'Message';
  const dataError = data === null ? null : parseJson(data).error;
  return html`<section class=${isDragged ? 'composer drop' : 'composer'} aria-label="Composer" onDragOver=${dragOver} onDragLeave=${() => setIsDragged(false)} onDrop=${drop}>
    <form onSubmit=${submit} onKeyDown=${key}>
      <div class="row"><label for="composer-text" class="grow"><strong>${label}</strong></label>
        ${waiting && html`<${Check} checked=${isNewTask} set=${setIsNewTask}>new task instead<//>`}</div>
      <textarea id="composer-text" ref=${area} rows="3" value=${text} onInput=${typed(change)} onPaste=${paste}
        placeholder=${target ? 'Your answer' : 'Message to the agent'} />
      ${files.length > 0 && html`<div class="row">${files.map((file, index) => html`<span class="chip" key=${index}><span class="name">${file.filename}</span><span class="muted">${size(file.bytes)}</span>
        <${Button} class="small plain" aria-label=${`Remove ${file.filename}`} onClick=${() => setFiles(files.filter((_, other) => other !== index))}>✕<//></span>`)}</div>`}
      ${data !== null && html`<${Field} label="Data part (JSON)" hint=${dataError && html`<span class="bad">${dataError}</span>`}>
        <textarea class="mono" rows="3" value=${data} aria-invalid=${dataError ? 'true' : undefined} onInput=${typed(setData)} /><//>`}
      ${showsOptions && html`<${Options} options=${options} change=${(change) => setOptions({ ...options, ...change })} />`}
      <div class="row">
        <${Button} onClick=${() => picker.current.click()}>+ File<//>
        <input type="file" multiple hidden ref=${picker} aria-label="Files to attach" onChange=${(event) => { void addFiles(event.currentTarget.files); event.currentTarget.value = ''; }} />
        <${Button} aria-pressed=${data !== null} onClick=${() => setData(data === null ? '{\n  \n}' : null)}>${data === null ? '+ Data' : 'No data'}<//>
        <${Button} aria-pressed=${showsOptions} aria-expanded=${showsOptions} onClick=${() => setShowsOptions(!showsOptions)}>Options<//>
        <span class="grow"></span>
        ${(text.trim() || files.length > 0) && built.problem && html`<span class="bad">${built.problem}</span>`}
        <span class="muted hide-narrow">Ctrl+Enter</span>
        <button type="submit" class="primary" disabled=${Boolean(built.problem) || isBusy}>${isBusy ? 'Sending…' : 'Send'}</button>
      </div>
    </form>
  </section>`;
}
