// Calls as commands to paste into a shell, or as a Python program. Pure functions. A call is `{operation, method, url, headers,
// body, isAuthenticated}` of the operation SendMessage or SubscribeToTask; `headers` are without credentials, in whose place the
// variable A2A_TOKEN is written.

const GRPC_SERVICE = 'lf.a2a.v1.A2AService';

/** Paths of the API below the URL of an agent. */
const API_PATH = /(?:rpc|(?:v1\/)?(?:message:send|tasks\/[^?]*)|lf\.a2a\.v1\.A2AService\/\w+)$/;

/** Characters that terminals, or readers of a pasted line, could take for something else: C1 controls and directions of text. */
const HIDDEN = /[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

const unicodeEscape = (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;

/** Escapes hidden characters in JSON: they can occur within strings only. */
const visibleJson = (json) => json.replace(HIDDEN, unicodeEscape);

/** Quotes a text as one word of a POSIX shell. */
export function shellQuoted(text) {
  return /^[\w@%+:,./-][\w@%+=:,./-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Quotes a text as a string of Python. */
export function pythonQuoted(text) {
  const json = visibleJson(JSON.stringify(text));
  return json.includes('\\"') && !text.includes("'") ? `'${json.slice(1, -1).replaceAll('\\"', '"')}'` : json;
}

/** Returns the URL of the agent that a call is for, without a slash at the end. */
function agentUrl(url) {
  const { origin, pathname } = new URL(url);
  return origin + pathname.replace(API_PATH, '').replace(/\/$/, '');
}

/** Returns the JSON-RPC request in the body of a call, if it has one. */
function rpcOf({ body }) {
  const json = body ? JSON.parse(body) : null;
  return json?.jsonrpc ? json : null;
}

/** Returns a call that curl can make: JSON-RPC in place of gRPC-Web. */
function httpCall(call) {
  if (!new URL(call.url).pathname.includes(`/${GRPC_SERVICE}/`)) return call;
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: call.operation, params: JSON.parse(call.body ?? '{}') });
  const headers = { ...call.headers, 'content-type': 'application/json', 'a2a-version': '1.0' };
  return { ...call, method: 'POST', url: `${agentUrl(call.url)}/rpc`, headers, body };
}

/** Returns the request message of a call: the members of its body, and the task in its path. */
function messageOf({ url, body, agent }) {
  const message = rpcOf({ body })?.params ?? (body ? JSON.parse(body) : {});
  const [, task] = /\/tasks\/([^/:]+)/.exec(new URL(url).pathname) ?? [];
  return { ...(agent && { tenant: agent }), ...message, ...(task && { id: decodeURIComponent(task) }) };
}

/** Returns the text of a message with one text part that needs no other form. */
function plainText({ parts = [], metadata, extensions, referenceTaskIds }) {
  const [{ text, ...more } = {}, ...rest] = parts;
  const isPlain = typeof text === 'string' && rest.length === 0 && Object.keys(more).length === 0;
  if (!isPlain || metadata || extensions?.length || referenceTaskIds?.length) return null;
  // A text that the program would take for a file or a flag, or that can't be pasted.
  return text === '' || /^[@-]|[\0-\x08\x0b-\x1f]/.test(text) || text.search(HIDDEN) >= 0 || !text.isWellFormed() ? null : text;
}

export function curl(call) {
  const { operation, method, url, headers, body, isAuthenticated } = httpCall(call);
  const words = [`curl ${operation === 'SubscribeToTask' ? '-N ' : ''}${shellQuoted(url)}`];
  if (method !== (body ? 'POST' : 'GET')) words.push(`-X ${method}`);
  for (const [name, value] of Object.entries(headers)) words.push(`-H ${shellQuoted(`${name}: ${value}`)}`);
  if (isAuthenticated) words.push('-H "authorization: Bearer $A2A_TOKEN"');
  if (body) words.push(`--data-raw ${shellQuoted(visibleJson(body))}`);
  return words.join(' \\\n  ');
}

export function grpcurl(call) {
  const { protocol, hostname, port, searchParams } = new URL(call.url);
  const isPlain = protocol === 'http:';
  const words = [`grpcurl${isPlain ? ' -plaintext' : ''}`];
  const cursor = searchParams.get('lastEventId');
  const headers = { ...call.headers, 'a2a-version': '1.0', ...(cursor && { 'last-event-id': cursor }) };
  for (const [name, value] of Object.entries(headers)) {
    if (!/^(?:accept|content-type|x-grpc-web)$/i.test(name)) words.push(`-H ${shellQuoted(`${name}: ${value}`)}`);
  }
  if (call.isAuthenticated) words.push('-H "authorization: Bearer $A2A_TOKEN"');
  words.push(`-d ${shellQuoted(visibleJson(JSON.stringify(messageOf(call))))}`);
  words.push(`${hostname}:${port || (isPlain ? 80 : 443)} ${GRPC_SERVICE}/${call.operation}`);
  return words.join(' \\\n  ');
}

export function python(call) {
  const { method, url, headers, body, isAuthenticated } = httpCall(call);
  const lines = Object.entries(headers).map(([name, value]) => `        ${pythonQuoted(name)}: ${pythonQuoted(value)},`);
  if (isAuthenticated) lines.push('        "authorization": "Bearer " + os.environ["A2A_TOKEN"],');
  return [
    ...(isAuthenticated ? ['import os'] : []),
    'import urllib.request',
    '',
    'request = urllib.request.Request(',
    `    ${pythonQuoted(url)},`,
    `    method=${pythonQuoted(method)},`,
    ...(lines.length > 0 ? ['    headers={', ...lines, '    },'] : []),
    ...(body ? [`    data=${pythonQuoted(visibleJson(body))}.encode(),`] : []),
    ')',
    'with urllib.request.urlopen(request) as response:',
    '    for line in response:',
    '        print(line.decode(), end="")',
    '',
  ].join('\n');
}

/** Returns the command of the program `a2a`. */
export function a2a(call) {
  const url = agentUrl(call.url);
  const { id, message, configuration } = messageOf({ ...call, agent: null });
  const cursor = new URL(call.url).searchParams.get('lastEventId') ?? call.headers['last-event-id'];
  const words = [];
  const add = (flag, value) => value && words.push(`${flag} ${shellQuoted(String(value))}`);
  if (call.operation === 'SendMessage') {
    const text = plainText(message);
    words.push(`a2a send ${shellQuoted(url)}${text === null ? '' : ` ${shellQuoted(text)}`}`);
    if (text === null) {
      add('--json', visibleJson(JSON.stringify(message)));
    } else {
      add('--context', message.contextId);
      add('--task', message.taskId);
    }
    if (configuration?.returnImmediately) words.push('--immediate');
  } else {
    words.push(`a2a subscribe ${shellQuoted(url)} ${shellQuoted(id)}`);
    add('--resume', cursor);
  }
  if (rpcOf(call)) words.push('--binding jsonrpc');
  if (call.headers['a2a-version'] === '0.3') words.push('--protocol 0.3');
  if (call.isAuthenticated) words.push('--token "$A2A_TOKEN"');
  return words.join(' \\\n  ');
}
