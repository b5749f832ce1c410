// Parts, messages and artifacts of a task. Content of agents is text; images are `blob:` URLs of sent bytes; nothing is loaded
// from a URL before the reader opens it.

import { useEffect, useState } from '../vendor/hooks.js';
import { size } from '../model.js';
import { fileName, safeLink } from '../text.js';
import { Button, CopyButton, download, ExternalLink, html, Id, Json, Prose, useValue } from '../ui.js';
import { isOperator } from '../store.js';

const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];
const MAX_IMAGE_BYTES = 5_000_000;

/** Returns the bytes of base64, standard or URL-safe, or `null`. */
export function bytesOf(base64) {
  try {
    return Uint8Array.from(atob(base64.replaceAll('-', '+').replaceAll('_', '/')), (char) => char.charCodeAt(0));
  } catch {
    return null;
  }
}

export function base64Of(bytes) {
  let binary = '';
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}

function Image({ bytes, type, name }) {
  const [url, setUrl] = useState(null);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([bytes], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [bytes, type]);
  return url && html`<img src=${url} alt=${name || 'Image without a name'} />`;
}

function RawPart({ part }) {
  const [bytes] = useState(() => bytesOf(part.raw));
  const type = part.mediaType ?? '';
  const caption = [part.filename || 'File without a name', type || 'no media type', bytes ? size(bytes.length) : 'not base64'].join(' · ');
  return html`<div class="part">
    ${bytes && IMAGES.includes(type) && bytes.length <= MAX_IMAGE_BYTES && html`<${Image} bytes=${bytes} type=${type} name=${part.filename} />`}
    <div class="row"><span class="muted">${caption}</span>
      ${bytes && html`<${Button} onClick=${() => download(bytes, fileName(part.filename, 'part.bin'))}>Download<//>`}</div>
  </div>`;
}

const namesOf = ({ filename, mediaType }) => [filename, mediaType].filter(Boolean).join(' · ');

function UrlPart({ part }) {
  const link = safeLink(part.url);
  return html`<div class="part"><div class="row">
    ${link ? html`<${ExternalLink} piece=${{ text: part.url, ...link }} />` : html`<code>${part.url}</code>`}
    <span class="muted">${namesOf(part)}</span>
  </div></div>`;
}

function TextPart({ part }) {
  const isLong = part.text.length > 65_536;
  return html`<div class="part">
    ${namesOf(part) && html`<span class="muted">${namesOf(part)}</span>`}
    <${Prose} text=${part.text} />
    ${isLong && html`<div class="row"><${Button} onClick=${() => download(part.text, fileName(part.filename, 'text.txt'))}>Download text<//></div>`}
  </div>`;
}

export function Part({ part }) {
  if (typeof part?.text === 'string') return html`<${TextPart} part=${part} />`;
  if (typeof part?.raw === 'string') return html`<${RawPart} part=${part} />`;
  if (typeof part?.url === 'string') return html`<${UrlPart} part=${part} />`;
  return html`<div class="part"><${Json} value=${part?.data ?? part} label="Data part" /></div>`;
}

const Parts = ({ parts }) => (parts ?? []).map((part, index) => html`<${Part} key=${index} part=${part} />`);

/** Error id of a failure, and how its cause is found. A message with the id in its text does not say the cause. */
export function ErrorId({ id, message }) {
  return html`<${Id} id=${id} name="error id" /> ${useValue(isOperator)
    ? html`<span class="muted">the log has the cause (in the folder of the server): <${Id} id=${`a2a admin error ${id}`} name="command" /></span>`
    : JSON.stringify(message.parts ?? '').includes(id) && html`<span class="muted">the operator finds the cause by it</span>`}`;
}

export function Message({ message, who = 'You' }) {
  const isUser = message.role === 'ROLE_USER';
  const { errorId } = message.metadata ?? {};
  return html`<div class=${isUser ? 'message user' : 'message'}>
    <div class="who">${isUser ? who : 'Agent'}</div>
    <div class="body"><${Parts} parts=${message.parts} />
      ${typeof errorId === 'string' && html`<div class="row">error id <${ErrorId} id=${errorId} message=${message} /></div>`}
    </div>
  </div>`;
}

export function Artifact({ artifact }) {
  const texts = (artifact.parts ?? []).map((part) => part.text).filter((text) => typeof text === 'string');
  return html`<div class="artifact">
    <div class="row caption"><span>artifact ${artifact.name || artifact.artifactId}</span>
      ${artifact.description && html`<span>${artifact.description}</span>`}
      ${texts.length > 0 && html`<${CopyButton} text=${texts.join('')} label="Copy text" />`}</div>
    <${Parts} parts=${artifact.parts} />
  </div>`;
}
