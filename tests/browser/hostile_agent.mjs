// Agent whose artifacts have hostile texts, as a command that reads a turn and writes events in lines of JSON. The corpus is also
// that of the test.

import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Texts that a page could take for markup, a link, or an instruction. */
export const CORPUS = [
  '<script>window.attacked=1</script>',
  '<img src=x onerror="window.attacked=1">',
  '<svg onload="window.attacked=1">',
  '<svg><script>window.attacked=1</script></svg>',
  '<iframe src="javascript:window.attacked=1"></iframe>',
  '<iframe srcdoc="<script>parent.attacked=1</script>">',
  '<a href="javascript:window.attacked=1">link</a>',
  '<a href="data:text/html,<script>alert(1)</script>">link</a>',
  '<style>*{display:none}</style>',
  '<link rel=stylesheet href="http://attacker.example/x.css">',
  '<meta http-equiv="refresh" content="0;url=http://attacker.example/">',
  '<base href="http://attacker.example/">',
  '<form action="http://attacker.example/"><input name=q></form>',
  '<object data="http://attacker.example/x"></object>',
  '<title>attacked</title>',
  '</script><script>window.attacked=1</script>',
  '</textarea><script>window.attacked=1</script>',
  '<!--',
  'javascript:window.attacked=1',
  'JaVaScRiPt:window.attacked=1',
  'data:text/html,<script>alert(1)</script>',
  '[link](javascript:window.attacked=1)',
  '[link](data:text/html;base64,PHNjcmlwdD4=)',
  '![image](http://attacker.example/x.png)',
  '<http://attacker.example/>',
  'safe\u202Egnp.exe',
  'null\u0000byte',
  '\u001b[31mred\u001b]0;attacked\u0007',
  '__proto__',
  'constructor',
  '{"type":"script","props":{"dangerouslySetInnerHTML":{"__html":"<img src=x onerror=alert(1)>"}},"__k":[],"constructor":null}',
  '${window.attacked=1}{{7*7}}',
  "'\"><img src=x onerror=window.attacked=1>",
];

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const send = (event) => console.log(JSON.stringify(event));
  createInterface({ input: process.stdin }).once('line', (line) => {
    const { text } = JSON.parse(line);
    const [, number = '0', kind = ''] = /^(\d+)(.*)/.exec(text) ?? [];
    const hostile = CORPUS[Number(number)];
    if (kind === ' fail') {
      send({ type: 'fail', message: hostile });
    } else if (kind === ' ask') {
      const metadata = { toolCall: { id: '1', name: hostile, arguments: { [hostile]: hostile } } };
      send({ type: 'ask', message: { messageId: 'q', role: 'ROLE_AGENT', parts: [{ text: hostile }], metadata } });
    } else {
      const file = { raw: Buffer.from(hostile).toString('base64'), filename: hostile.replaceAll('\u0000', ''), mediaType: 'text/html' };
      const url = { url: /^[a-z]+:/i.test(hostile) ? hostile : 'http://attacker.example/x', filename: hostile.replaceAll('\u0000', ''), mediaType: 'text/html' };
      const data = { data: JSON.parse(`{${JSON.stringify(hostile)}: ${hostile.startsWith('{') ? hostile : JSON.stringify(hostile)}, "list": [${JSON.stringify(hostile)}]}`) };
      send({ type: 'status', message: hostile, metadata: { [hostile]: hostile } });
      send({ type: 'artifact', name: hostile, description: hostile, metadata: { key: hostile }, parts: [{ text: hostile }, file, url, data], last: true });
      send({ type: 'complete', message: hostile });
    }
    process.exitCode = 0;
  });
}
