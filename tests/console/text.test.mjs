import assert from 'node:assert/strict';
import test from 'node:test';

import { fileName, inline, linkify, markdown, preview, safeLink, visible } from '../../console/text.js';

test('invisible characters and those that change direction are escaped', () => {
  assert.equal(visible('a\u202Eb'), 'a\\u202Eb');
  assert.equal(visible('\0\x1b[31m\u200b\u2066\ufeff\u0085'), '\\0\\x1b[31m\\u200B\\u2066\\uFEFF\\u0085');
  assert.equal(visible('\u{E0041}'), '\\u{E0041}');
  assert.equal(visible('\ud800x'), '\\uD800x');
  assert.equal(visible('tab\tline\nä 漢 🙂 👩‍👩‍👧'), 'tab\tline\nä 漢 🙂 👩‍👩‍👧');
});

test('only http, https and mailto are links', () => {
  for (const text of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'data:text/html,x', 'vbscript:x', 'file:///etc', '//host/x', '/x', 'java\nscript:x', ' \u0001javascript:x', 'blob:x', 'http:\u202Ex', 'https://a b', '']) {
    assert.equal(safeLink(text), null, text);
  }
  assert.deepEqual(safeLink('https://user@evil.example/p?q#f'), { href: 'https://user@evil.example/p?q#f', host: 'evil.example' });
  assert.equal(safeLink('mailto:a@b.example').host, 'mail');
});

test('links in text have their host, and no punctuation after them', () => {
  assert.deepEqual(linkify('See https://a.example/x, (https://b.example). <https://c.example>').filter(({ href }) => href).map(({ text, host }) => [text, host]), [
    ['https://a.example/x', 'a.example'], ['https://b.example', 'b.example'], ['https://c.example', 'c.example'],
  ]);
  assert.equal(linkify('<b>javascript:x</b>').map(({ text }) => text).join(''), '<b>javascript:x</b>');
  assert.deepEqual(linkify(''), []);
});

test('markdown has blocks, and never HTML', () => {
  const blocks = markdown('# Title\ntext **bold** *em* `code`\n\n- a\n- b\n\n1. c\n```js\n<b>\n```\n<img src=x>');
  assert.deepEqual(blocks.map((block) => Object.keys(block)[0]), ['heading', 'paragraph', 'items', 'items', 'fence', 'paragraph']);
  assert.equal(blocks[4].fence, '<b>');
  assert.equal(blocks[3].isOrdered, true);
  assert.deepEqual(blocks[5].paragraph, [{ text: '<img src=x>' }]);
  assert.deepEqual(blocks[1].paragraph.map((piece) => Object.keys(piece)[0]), ['text', 'strong', 'text', 'em', 'text', 'code']);
});

test('links of markdown with other schemes stay text', () => {
  assert.deepEqual(inline('[x](javascript:alert)'), [{ text: '[x](javascript:alert)' }]);
  assert.deepEqual(inline('[x](data:text/html,y)'), [{ text: '[x](data:text/html,y)' }]);
  const [link] = inline('[shown](https://real.example/)');
  assert.deepEqual([link.text, link.host], ['shown', 'real.example']);
  assert.deepEqual(inline('![i](https://a.example/i.png)').at(-1).href, 'https://a.example/i.png');
});

test('markdown of hostile length ends in time', () => {
  const started = performance.now();
  for (const text of ['*'.repeat(20_000), '`'.repeat(20_000), '['.repeat(20_000), '**a'.repeat(5000), '_a '.repeat(5000), '# '.repeat(20_000), '- '.repeat(20_000)]) markdown(text);
  assert.ok(performance.now() - started < 3000, `${performance.now() - started} ms`);
});

test('previews do not split a character', () => {
  assert.deepEqual(preview('ab🙂', 3), { text: 'ab', isShortened: true });
  assert.deepEqual(preview('abc', 3), { text: 'abc', isShortened: false });
});

test('names of downloads have no path', () => {
  assert.equal(fileName('../../etc/pass\u202Ewd'), 'pass_u202Ewd'.replace('_', '\\').split('\\').at(-1));
  assert.equal(fileName('a/b\\c<d>.html'), 'c_d_.html');
  assert.equal(fileName(''), 'part');
});
