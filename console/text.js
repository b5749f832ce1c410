// Text of agents → safe pieces: visible control characters, links with their host, and a subset of Markdown. Pure: returns plain
// objects, which views render as text nodes. Never HTML.

const ESCAPES = { '\0': '\\0', '\x1b': '\\x1b', '\x7f': '\\x7f' };

// Control characters, except tab and line breaks; marks that change the direction of text; invisible and tag characters.
const INVISIBLE =
  /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u115f\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/gu;

/** Replaces characters that are invisible or change the direction of text by their escapes, such as `\u202E`. */
export function visible(text) {
  return String(text).replaceAll(INVISIBLE, (char) => {
    if (char in ESCAPES) return ESCAPES[char];
    const code = char.codePointAt(0);
    return code > 0xffff ? `\\u{${code.toString(16).toUpperCase()}}` : `\\u${code.toString(16).toUpperCase().padStart(4, '0')}`;
  });
}

const SCHEMES = ['http:', 'https:', 'mailto:'];

/** Returns `{href, host}` for a URL that a link may have, or `null`: only `http`, `https` and `mailto`, absolute, without control characters. */
export function safeLink(text) {
  const trimmed = String(text ?? '').trim();
  if (!/^[a-z]+:/i.test(trimmed) || trimmed.length > 2000 || visible(trimmed) !== trimmed || /\s/.test(trimmed)) return null;
  let url;
  try {
    url = new URL(trimmed);
  } catch {
    return null;
  }
  if (!SCHEMES.includes(url.protocol)) return null;
  return { href: url.href, host: url.protocol === 'mailto:' ? 'mail' : url.host };
}

const LINK = /\b(?:https?:\/\/|mailto:)[^\s<>"'`{}|\\^]+/gi;

/** Splits text into `{text}` and `{text, href, host}`. Punctuation after a link is not part of it. */
export function linkify(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(LINK)) {
    let found = match[0].replace(/[.,;:!?]+$/, '');
    if (found.endsWith(')') && !found.includes('(')) found = found.slice(0, -1);
    const link = safeLink(found);
    if (!link) continue;
    if (match.index > end) pieces.push({ text: visible(text.slice(end, match.index)) });
    pieces.push({ text: found, ...link });
    end = match.index + found.length;
  }
  if (end < text.length) pieces.push({ text: visible(text.slice(end)) });
  return pieces;
}

const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*(?=\S)(.+?)\*\*|\*(?=\S)([^*]+?)\*|(?<![\w])_(?=\S)([^_]+?)_(?![\w])|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)/s;

/** Splits a line of Markdown into pieces: `{text}`, `{code}`, `{strong: [pieces]}`, `{em: [pieces]}`, `{text, href, host}`. */
export function inline(text, depth = 0) {
  const pieces = [];
  let rest = text;
  while (rest) {
    const match = depth < 4 ? INLINE.exec(rest) : null;
    if (!match) {
      pieces.push(...linkify(rest));
      break;
    }
    if (match.index > 0) pieces.push(...linkify(rest.slice(0, match.index)));
    const [all, , code, strong, star, underscore, label, target] = match;
    if (code !== undefined) pieces.push({ code: visible(code.trim()) });
    else if (strong !== undefined) pieces.push({ strong: inline(strong, depth + 1) });
    else if (label !== undefined) {
      const link = safeLink(target);
      if (link) pieces.push({ text: visible(label), ...link });
      else pieces.push({ text: visible(all) });
    } else pieces.push({ em: inline(star ?? underscore, depth + 1) });
    rest = rest.slice(match.index + all.length);
  }
  return pieces;
}

const ITEM = /^(\s{0,8})(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;

/** Splits Markdown into blocks: `{heading}`, `{items, isOrdered}`, `{fence}`, `{paragraph}`. */
export function markdown(text) {
  const blocks = [];
  const lines = String(text).split(/\r?\n/);
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const fence = /^\s{0,3}(```+|~~~+)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      const end = lines.findIndex((other, index) => index > at && other.trim().startsWith(fence[1]));
      const body = lines.slice(at + 1, end < 0 ? lines.length : end);
      blocks.push({ fence: visible(body.join('\n')) });
      at = end < 0 ? lines.length : end + 1;
    } else if (heading) {
      blocks.push({ heading: inline(heading[2]) });
      at += 1;
    } else if (ITEM.test(line)) {
      const items = [];
      const isOrdered = ITEM.exec(line)[2] !== undefined;
      while (at < lines.length && ITEM.test(lines[at])) items.push(inline(ITEM.exec(lines[at++])[3]));
      blocks.push({ items, isOrdered });
    } else if (line.trim() === '') {
      at += 1;
    } else {
      const paragraph = [];
      while (at < lines.length && lines[at].trim() && !ITEM.test(lines[at]) && !/^(#{1,6}\s|\s{0,3}(```|~~~))/.test(lines[at])) paragraph.push(lines[at++]);
      blocks.push({ paragraph: inline(paragraph.join('\n')) });
    }
  }
  return blocks;
}

/** Maximum length of text that is shown at once, in characters. */
const PREVIEW = 65_536;

/** Returns the begin of a text for a preview, without half of a character at its end, and whether something is missing. */
export function preview(text, limit = PREVIEW) {
  if (text.length <= limit) return { text, isShortened: false };
  const end = /[\ud800-\udbff]/.test(text[limit - 1]) ? limit - 1 : limit;
  return { text: text.slice(0, end), isShortened: true };
}

/** Returns a name for a download: no path, no invisible characters, at most 100 characters. */
export function fileName(name, fallback = 'part') {
  const base = visible(name ?? '').split(/[\\/]/).at(-1).replaceAll(/[<>:"|?*]/g, '_').replace(/^\.+/, '');
  return base.slice(0, 100) || fallback;
}
