// State that the views share: route, session, agents, lists of tasks, logs of tasks, and messages that are being sent.

import { batch, computed, effect, signal } from './vendor/signals.js';
import { Api, ApiError, follow, isRefused, readSse, reasonOf, rpcBody, sleep } from './api.js';
import server from './server.js';
import { TaskLog, isInterrupted, isTerminal, listRow, operatorRow, payloadOf } from './model.js';

// Route

function parseHash(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const [view, ...args] = path.split('/').map(decode);
  return { view: view || 'chat', args, query: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = signal({ view: 'chat', args: [], query: new URLSearchParams() });
/** Conversation that the chat showed last. */
let conversation = '';

function takeRoute() {
  route.value = parseHash(location.hash);
  const { view, args } = route.peek();
  if (view === 'chat') conversation = args[0] ?? '';
}

/** Segments of a view, as the navigation and the keys open it. */
export const segmentsOf = (view) => (view === 'chat' && conversation ? [view, conversation] : [view]);

/** Returns the fragment of a view. Segments are encoded; the agent stays, unless the query names another. */
export function hrefOf(segments, query = {}) {
  const params = new URLSearchParams();
  const agent = agentId.peek();
  if (agent) params.set('agent', agent);
  for (const [name, value] of Object.entries(query)) {
    if (value) params.set(name, value);
    else params.delete(name);
  }
  const text = params.toString();
  return `#/${segments.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

export const go = (segments, query) => {
  location.hash = hrefOf(segments, query);
};

export function replaceRoute(segments, query) {
  history.replaceState(null, '', hrefOf(segments, query));
  takeRoute();
}

// Preferences (in this browser; no content, no credentials)

const DEFAULTS = { theme: 'auto', shortcuts: true, markdown: false };

function stored(storage, name, fallback) {
  try {
    return JSON.parse(storage.getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

function store(storage, name, value) {
  try {
    if (value === null) storage.removeItem(name);
    else storage.setItem(name, JSON.stringify(value));
  } catch {
    // Storage is full or not permitted: the value lasts until the page is closed.
  }
}

export const preferences = signal({ ...DEFAULTS, ...stored(localStorage, 'a2a-preferences', {}) });
export const prefer = (change) => {
  preferences.value = { ...preferences.peek(), ...change };
  store(localStorage, 'a2a-preferences', preferences.peek());
};

export const isVisible = signal(true);
export const now = signal(Date.now());

// Session

/** Credentials: `{scheme, label, headers}` or `null`. In memory, and in `sessionStorage` if the caller chose to keep them. */
export const session = signal(stored(sessionStorage, 'a2a-session', null));
/** Further headers of every request, `[{name, value}]`. */
export const extraHeaders = signal(stored(sessionStorage, 'a2a-headers', []));
/** Token of the operator API that the start URL had, or that was entered. */
export const operatorToken = signal(stored(sessionStorage, 'a2a-operator', null));
/** Error with status 401 that the login dialog shows, an empty object if the caller opened it, or `null`. */
export const challenge = signal(null);
/** Grows when credentials change: everything that was loaded before is dropped. */
export const epoch = signal(0);

function headers() {
  const result = {};
  for (const { name, value } of extraHeaders.peek()) if (/^[\w!#$%&'*+.^`|~-]+$/.test(name)) result[name.toLowerCase()] = value;
  return { ...result, ...session.peek()?.headers };
}

function forgetData() {
  for (const feed of feeds.values()) feed.stop();
  for (const list of lists.values()) list.stop();
  feeds.clear();
  lists.clear();
  for (const name of Object.keys(sessionStorage)) if (name.startsWith('a2a-draft') || name === 'a2a-pending') sessionStorage.removeItem(name);
  conversation = '';
  batch(() => {
    pending.value = [];
    replies.value = [];
    operator.value = null;
    rejection.value = null;
    card.value = null;
    challenge.value = null;
    epoch.value += 1;
  });
  void start();
}

export function login(credentials, isKept) {
  session.value = credentials;
  store(sessionStorage, 'a2a-session', isKept ? credentials : null);
  forgetData();
}

/** Changes the operator token, and drops what the one before made visible. `error` is set if the server rejected that one. */
export function useOperatorToken(token, error = null) {
  batch(() => {
    operatorToken.value = token;
    operator.value = null;
    rejection.value = error;
  });
  store(sessionStorage, 'a2a-operator', token);
  void probeOperator();
}

export function setExtraHeaders(list) {
  extraHeaders.value = list;
  store(sessionStorage, 'a2a-headers', list.length > 0 ? list : null);
  forgetData();
}

/** Drops all credentials and everything that they made visible. */
export function forget() {
  session.value = null;
  extraHeaders.value = [];
  operatorToken.value = null;
  sessionStorage.clear();
  forgetData();
}

// Agents

export const agents = signal([]);
const agentId = computed(() => route.value.query.get('agent') ?? '');
export const agent = computed(() => agents.value.find(({ id }) => id === agentId.value) ?? agents.value[0] ?? { id: '', name: 'Agent', path: './' });
export const card = signal(null);
/** False after a request without a response, until the next response. */
const isReachable = signal(true);
const access = signal('connecting');
/** `connecting`, `live`, `offline`, or `unauthorized`. */
export const connection = computed(() => (isReachable.value ? access.value : 'offline'));

function onReach(isReached) {
  // The server may have been restarted with other settings.
  if (isReached && !isReachable.peek()) void start();
  isReachable.value = isReached;
}

const onUnauthorized = (error) => {
  access.value = 'unauthorized';
  // The operator token is enough for the views of the operator.
  if (!challenge.peek() && (session.peek() || !operatorToken.peek())) challenge.value = error;
};

export const api = computed(() => new Api({ path: agent.value.path, credentials: headers, onUnauthorized, onReach }));
const rootApi = new Api({ credentials: headers, onUnauthorized, onReach });
const operatorHeaders = () => (operatorToken.peek() ? { authorization: `Bearer ${operatorToken.peek()}` } : headers());
// The token is probably one of an earlier start.
const onRejected = (error) => operatorToken.peek() && useOperatorToken(null, error);
export const operatorApi = new Api({ credentials: operatorHeaders, onUnauthorized: onRejected, onReach });
/** For `/metrics`: the operator token does not open it, and a refusal is not a reason to ask for credentials. */
export const metricsApi = new Api({ credentials: headers, onReach });

/** Status of the server from the operator API, or `null` if the caller may not read it. */
export const operator = signal(null);
export const operatorError = signal(null);
/** Error by which the server rejected an operator token, or `null`. */
export const rejection = signal(null);
/** True if the caller may read the tasks and deliveries of all owners. Without credentials, a local caller gets counts only. */
export const isOperator = computed(() => (operator.value?.access ?? '') === 'full');

export async function probeOperator() {
  if (!server.operator) return;
  const token = operatorToken.peek();
  try {
    operator.value = await operatorApi.json('operator/status');
    operatorError.value = null;
  } catch (error) {
    if (token !== operatorToken.peek()) return;
    if (isRefused(error)) operator.value = null;
    operatorError.value = error;
  }
}

/** Path of an agent below the page. URLs of the catalog are those of the public URL, which the page need not have. */
const pathOf = ({ id, url }) => (String(url ?? '').endsWith(`/${encodeURIComponent(id)}`) ? `./${encodeURIComponent(id)}/` : './');

export const PING_MS = 3000;
/** Asks whether the server responds, for views that send no requests. Ends in time: a browser has six connections to a server. */
export const ping = () => rootApi.fetch('healthz', { signal: AbortSignal.timeout(PING_MS) }).catch(() => {});

const RESTART_MS = 3000;
let restarting;

/** Loads what every view needs. Called at the start, and after a change of credentials. */
export async function start() {
  clearTimeout(restarting);
  void probeOperator();
  try {
    // A page of one agent has no catalog: the request for the card tells whether the server answers.
    const catalog = server.agents ? await rootApi.json('agents') : {};
    agents.value = (catalog.agents ?? []).map((entry) => ({ id: String(entry.id), name: String(entry.name ?? entry.id), path: pathOf(entry) }));
    access.value = 'live';
  } catch (error) {
    if (error.status !== 401) {
      access.value = 'offline';
      restarting = setTimeout(start, RESTART_MS);
      return;
    }
  }
  await loadCard();
}

async function loadCard() {
  try {
    card.value = await api.peek().json('.well-known/agent-card.json');
  } catch {
    card.value = null;
  }
}

// Lists of tasks

const POLL_MS = 2000;
/** Messages of a task in a list, the last ones: the first of the client is the title of a conversation. */
const TITLE_MESSAGES = '10';

/** Calls `change` at most once per animation frame. */
function perFrame(change) {
  let isScheduled = false;
  return () => {
    if (isScheduled) return;
    isScheduled = true;
    const run = () => {
      isScheduled = false;
      change();
    };
    if (document.visibilityState === 'hidden') setTimeout(run, 50);
    else requestAnimationFrame(run);
  };
}

const isStream = ({ headers }) => headers.get('content-type')?.startsWith('text/event-stream');

class List {
  constructor() {
    this.rows = new Map();
    this.version = signal(0);
    this.total = 0;
    /** `loading`, `live`, or `offline`. */
    this.state = signal('loading');
    this.error = signal(null);
    this.stopping = new AbortController();
    this.touch = perFrame(() => { this.version.value += 1; });
  }

  stop() {
    this.stopping.abort();
  }

  /** Notes that all of it has been read. */
  read() {
    batch(() => {
      this.state.value = 'live';
      this.error.value = null;
    });
  }

  async start() {
    const { signal: stop } = this.stopping;
    for (let failures = 0; !stop.aborted;) {
      try {
        await this.run(stop);
        failures = 0;
      } catch (error) {
        if (stop.aborted) return;
        this.state.value = 'offline';
        this.error.value = error;
        if (isRefused(error)) return;
        failures += 1;
      }
      await sleep(Math.min(10_000, 1000 * 2 ** failures));
    }
  }
}

/** Own tasks of an agent: loaded page by page, then polled by the time of their status. */
class OwnTasks extends List {
  constructor(client) {
    super();
    this.client = client;
    /** Latest status time of a complete poll, in milliseconds, and the number of polls since it changed. */
    this.latest = 0;
    this.polls = 0;
  }

  add(tasks) {
    for (const task of tasks) {
      const row = listRow(task);
      row.asked = this.rows.get(row.id)?.asked || row.asked;
      this.rows.set(row.id, row);
    }
    this.touch();
  }

  async pages(query, historyLength, stop) {
    let token = '';
    let latest = this.latest;
    do {
      const params = new URLSearchParams({ pageSize: '100', historyLength, ...query, ...(token && { pageToken: token }) });
      const page = await this.client.json(`tasks?${params}`, { signal: stop });
      this.add(page.tasks ?? []);
      latest = Math.max(latest, ...(page.tasks ?? []).map((task) => Date.parse(task.status?.timestamp) || 0));
      if (!query.statusTimestampAfter) this.total = page.totalSize ?? this.rows.size;
      token = page.nextPageToken ?? '';
      // Messages of the newest 100 tasks are enough for titles; all of them would be many megabytes.
      if (!query.statusTimestampAfter) historyLength = '0';
    } while (token);
    this.polls = latest === this.latest ? this.polls + 1 : 0;
    this.latest = latest;
  }

  /** Time for the next poll: a second earlier at first, since commits need not be in the order of their times. */
  since() {
    return new Date(this.latest - (this.polls < 3 ? 1000 : 0)).toISOString();
  }

  async run(stop) {
    if (!this.isComplete) await this.pages({}, TITLE_MESSAGES, stop);
    this.isComplete = true;
    this.total = this.rows.size;
    for (;;) {
      if (isVisible.peek()) {
        await this.pages(this.latest > 0 ? { statusTimestampAfter: this.since() } : {}, TITLE_MESSAGES, stop);
        this.total = Math.max(this.total, this.rows.size);
        this.read();
        access.value = 'live';
      }
      await sleep(POLL_MS);
      if (stop.aborted) return;
    }
  }
}

/** Tasks of all owners, from the operator API: loaded page by page, then followed. */
class AllTasks extends List {
  add(tasks) {
    for (const task of tasks) this.rows.set(`${task.agent}/${task.owner}/${task.tenant ?? ''}/${task.id}`, operatorRow(task));
    this.total = Math.max(this.total, this.rows.size);
    this.touch();
  }

  async run(stop) {
    // The feed first, so that no change is lost between the pages and the feed.
    const opened = await operatorApi.fetch('operator/tasks', { headers: { accept: 'text/event-stream' }, signal: stop });
    const isFeed = isStream(opened);
    const changes = isFeed
      ? readSse(opened, ({ name, data }) => {
        if (name === 'reset') throw new ApiError('the feed was interrupted');
        this.add([JSON.parse(data)]);
      })
      : opened.body?.cancel();
    changes?.catch(() => {});
    let before = '';
    do {
      const page = await operatorApi.json(`operator/tasks?${new URLSearchParams({ limit: '1000', ...(before && { before }) })}`, { signal: stop });
      this.add(page.tasks ?? []);
      before = page.next ?? '';
    } while (before);
    this.read();
    await changes;
    if (!isFeed) await sleep(POLL_MS);
  }
}

const lists = new Map();

function listOf(name, make) {
  if (!lists.has(name)) {
    const list = make();
    lists.set(name, list);
    void list.start();
  }
  return lists.get(name);
}

export const ownTasks = () => listOf(`own/${agent.peek().path}`, () => new OwnTasks(api.peek()));
export const allTasks = () => listOf('all', () => new AllTasks());

/** Closes the feed of all tasks when no view shows it. */
export function closeAllTasks() {
  lists.get('all')?.stop();
  lists.delete('all');
}

// Logs of tasks

const MAX_FEEDS = 60;
const HIDDEN_MS = 20_000;
const feeds = new Map();
export const taskPath = (id) => `tasks/${encodeURIComponent(id)}`;

/** A task as the page knows it: a snapshot from `GetTask`, and its log as far as it was received. */
export class TaskFeed {
  constructor(id, client) {
    this.id = id;
    this.client = client;
    this.log = new TaskLog();
    this.snapshot = null;
    this.version = signal(0);
    /** `idle`, `loading`, `live`, `reconnecting`, or `ended`. */
    this.state = signal('idle');
    this.error = signal(null);
    this.stopping = null;
    this.touch = perFrame(() => { this.version.value += 1; });
  }

  /** The task as of the newest event. Follow-up messages are on no stream: the history is that of the snapshot if it is longer. */
  get task() {
    const { snapshot } = this;
    const { task } = this.log;
    if (!task) return snapshot;
    if (!snapshot) return task;
    if ((snapshot.status?.timestamp ?? '') > (task.status?.timestamp ?? '')) return snapshot;
    return (snapshot.history?.length ?? 0) > (task.history?.length ?? 0) ? { ...task, history: snapshot.history } : task;
  }

  async load() {
    try {
      this.snapshot = await this.client.json(taskPath(this.id));
      this.error.value = null;
    } catch (error) {
      this.error.value = error;
    }
    this.touch();
  }

  receive({ id, name, data }) {
    const json = JSON.parse(data);
    if (name === 'error') throw errorIn(json);
    const before = this.log.lastSeq;
    if (!this.log.add(id, json, data.length)) return;
    const { kind, value } = payloadOf(json);
    const hasEnded = kind === 'statusUpdate' && (isTerminal(value) || isInterrupted(value));
    // The first event of a replay is number 1; a missing number after that is a follow-up message.
    if (hasEnded || (before > 0 && this.log.lastSeq > before + 1)) this.reload();
    this.touch();
  }

  reload() {
    clearTimeout(this.reloading);
    this.reloading = setTimeout(() => void this.load(), 100);
  }

  /** Follows the log from its begin, or from the last event that was received, until the task is terminal. */
  follow() {
    if (this.stopping || this.state.peek() === 'ended') return;
    const stopping = (this.stopping = new AbortController());
    this.state.value = this.log.cursor ? 'reconnecting' : 'loading';
    const path = () => `${taskPath(this.id)}:subscribe?lastEventId=${encodeURIComponent(this.log.cursor ?? `${this.id}.0.0`)}`;
    follow({
      open: (stop) => this.client.fetch(path(), { headers: { accept: 'text/event-stream', 'a2a-version': '1.0' }, signal: stop }),
      onEvent: (event) => this.receive(event),
      isEnd: () => isTerminal(this.log.task),
      onState: (state, error) => batch(() => {
        this.state.value = state;
        this.error.value = error ?? null;
      }),
      signal: stopping.signal,
    }).catch((error) => {
      if (stopping.signal.aborted) return;
      batch(() => {
        this.error.value = error;
        this.state.value = 'ended';
      });
    }).finally(() => {
      if (this.stopping === stopping) this.stopping = null;
    });
  }

  stop() {
    this.stopping?.abort();
    this.stopping = null;
    clearTimeout(this.reloading);
    if (this.state.peek() !== 'ended') this.state.value = 'idle';
  }
}

/** Error in a stream, or in a response of JSON-RPC, whose codes are no statuses. */
function errorIn(json, status) {
  const error = json?.error ?? json;
  return new ApiError(String(error?.message ?? 'the stream ended with an error'), { status: status ?? (Number(error?.code) || 500), reason: reasonOf(error) ?? (status && String(error.code)) });
}

/** Returns the feed of a task of the current agent; the oldest of many are dropped. */
export function feedOf(id) {
  const client = api.peek();
  const name = `${client.root.pathname}/${id}`;
  let feed = feeds.get(name);
  if (!feed) {
    feed = new TaskFeed(id, client);
    if (feeds.size >= MAX_FEEDS) {
      const [oldest, old] = feeds.entries().next().value;
      old.stop();
      feeds.delete(oldest);
    }
  }
  feeds.delete(name);
  feeds.set(name, feed);
  return feed;
}

/** Follows a feed while a view shows it and the page is visible. Returns a function that ends this. */
export function watch(feed) {
  let timer;
  const stop = effect(() => {
    clearTimeout(timer);
    if (isVisible.value) feed.follow();
    else timer = setTimeout(() => feed.stop(), HIDDEN_MS);
  });
  return () => {
    clearTimeout(timer);
    stop();
    feed.stop();
  };
}

// Sending

/** Messages without a response yet: `{key, request, state: sending|unknown|failed, error}`. */
export const pending = signal(stored(sessionStorage, 'a2a-pending', []).map((send) => ({ ...send, state: 'unknown' })));
/** Plain messages that agents returned without a task: `{context, message, asked}`. */
export const replies = signal([]);

const MAX_STORED_SEND = 200_000;

function setPending(list) {
  pending.value = list;
  const small = list.filter(({ request, state }) => state !== 'failed' && !request.isSecret && JSON.stringify(request).length < MAX_STORED_SEND);
  store(sessionStorage, 'a2a-pending', small.length > 0 ? small.map(({ key, request }) => ({ key, request })) : null);
}

const changeSend = (key, change) => setPending(pending.peek().map((send) => (send.key === key ? { ...send, ...change } : send)));
export const dropSend = (key) => setPending(pending.peek().filter((send) => send.key !== key));

export function messageOf(parts, { taskId, contextId, referenceTaskIds, metadata, extensions } = {}) {
  return {
    messageId: crypto.randomUUID(),
    role: 'ROLE_USER',
    parts,
    ...(taskId && { taskId }),
    ...(contextId && { contextId }),
    ...(referenceTaskIds?.length && { referenceTaskIds }),
    ...(metadata && { metadata }),
    ...(extensions?.length && { extensions }),
  };
}

/** Request that continues a task. */
export const answerTo = (task, parts) => ({ message: messageOf(parts, { taskId: task.id, contextId: task.contextId }) });

/**
 * Sends a request `{message, configuration, metadata, options: {binding, hasKey}}`. `onTask(id, context)` is called with the first
 * event. The promise ends with the response; the task is followed after that as long as a view shows it.
 */
export async function send(request, onTask = () => {}) {
  const key = request.key ?? crypto.randomUUID();
  setPending([...pending.peek().filter((send) => send.key !== key), { key, request: { ...request, key }, state: 'sending', error: null }]);
  return attempt(key, onTask);
}

/** Repeats a send with its key: the server recognizes a message that has arrived. */
export async function attempt(key, onTask = () => {}) {
  const { request } = pending.peek().find((send) => send.key === key) ?? {};
  if (!request) return false;
  changeSend(key, { state: 'sending', error: null });
  const known = request.message.taskId ? feedOf(request.message.taskId) : null;
  known?.stop();
  let feed = null;
  const receive = (response, event) => {
    const { kind, value } = payloadOf(response);
    if (kind === 'message') {
      replies.value = [...replies.peek(), { context: value.contextId ?? request.message.contextId ?? '', message: value, asked: request.message }];
      dropSend(key);
      onTask(null, value.contextId ?? request.message.contextId);
      return;
    }
    if (!feed) {
      const id = value.id ?? value.taskId;
      feed = feedOf(id);
      if (kind === 'task') ownTasks().add([value]);
      if (feed.log.lastSeq > 0 && kind === 'task') feed.snapshot = value;
      feed.state.value = 'live';
      dropSend(key);
      onTask(id, value.contextId);
    }
    if (event) feed.receive(event);
    else {
      feed.snapshot = value;
      feed.touch();
    }
  };
  try {
    await exchange(request, receive);
  } catch (error) {
    if (!feed) {
      changeSend(key, { state: error.status ? 'failed' : 'unknown', error });
      void known?.load();
      known?.onIdle?.();
      return false;
    }
    feed.error.value = error;
  }
  if (feed) {
    const isDone = isTerminal(feed.task);
    feed.state.value = isDone ? 'ended' : 'idle';
    // The stream of a send ends with its turn, or was interrupted: a view that shows the task goes on with a subscription.
    if (!isDone) feed.onIdle?.();
  }
  return true;
}

/** Makes the call of a send over its binding, and passes each response to `receive`. */
async function exchange(request, receive) {
  const { message, configuration, metadata, options = {} } = request;
  const client = api.peek();
  const body = { message, ...(configuration && { configuration }), ...(metadata && { metadata }) };
  const extra = {
    'content-type': 'application/json',
    'a2a-version': options.binding === '0.3' ? '0.3' : '1.0',
    ...(options.hasKey !== false && { 'idempotency-key': request.key }),
    ...(message.extensions?.length && { 'a2a-extensions': message.extensions.join(', ') }),
  };
  if (options.binding === '0.3') {
    const response = await client.json('rpc', { method: 'POST', headers: extra, body: rpcBody('message/send', sendOf03(body)) });
    if (response.error) throw errorIn(response, 400);
    const id = response.result?.kind === 'task' ? response.result.id : null;
    if (id) receive({ task: await client.json(taskPath(id)) });
    else receive({ message: { ...response.result, role: 'ROLE_AGENT', parts: (response.result?.parts ?? []).map(({ kind, ...part }) => part) } });
    return;
  }
  const isRpc = options.binding === 'jsonrpc';
  const response = await client.fetch(isRpc ? 'rpc' : 'message:stream', {
    method: 'POST',
    headers: { ...extra, accept: 'text/event-stream' },
    body: isRpc ? rpcBody('SendStreamingMessage', body) : JSON.stringify(body),
  });
  if (!isStream(response)) {
    const json = await response.json();
    if (json.error) throw errorIn(json, 400);
    receive(json.result ?? json);
    return;
  }
  await readSse(response, (event) => {
    if (!isRpc) {
      const json = JSON.parse(event.data);
      if (event.name === 'error') throw errorIn(json);
      receive(json, event);
      return;
    }
    const { result, error } = JSON.parse(event.data);
    if (error) throw errorIn(error, 400);
    receive(result, { ...event, data: JSON.stringify(result) });
  });
}

/** Parameters of `message/send` of 0.3. The call returns as soon as there is a task. */
function sendOf03({ message, configuration, metadata }) {
  const part = ({ text, raw, url, data, filename, mediaType, metadata: more }) => ({
    ...(text !== undefined && { kind: 'text', text }),
    ...(raw !== undefined && { kind: 'file', file: { bytes: raw, name: filename, mimeType: mediaType } }),
    ...(url !== undefined && { kind: 'file', file: { uri: url, name: filename, mimeType: mediaType } }),
    ...(data !== undefined && { kind: 'data', data }),
    ...(more && { metadata: more }),
  });
  return {
    message: { ...message, kind: 'message', role: 'user', parts: message.parts.map(part) },
    configuration: { blocking: false, acceptedOutputModes: configuration?.acceptedOutputModes, pushNotificationConfig: configuration?.taskPushNotificationConfig },
    ...(metadata && { metadata }),
  };
}

export const cancelTask = (id) => api.peek().json(`${taskPath(id)}:cancel`, { method: 'POST', body: {} });

/** Returns a call for `copy.js`: an absolute URL, and a mark in place of credentials. */
export function requestOf(operation, { path, method = 'GET', body, headers: more = {} }) {
  return {
    operation,
    method,
    url: api.peek().url(path).href,
    headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...more },
    body: body === undefined ? null : JSON.stringify(body),
    isAuthenticated: Boolean(session.peek()),
    ...(agent.peek().path !== './' && { agent: agent.peek().id }),
  };
}


export const draftOf = (context) => stored(sessionStorage, `a2a-draft/${context}`, '');
export const keepDraft = (context, text) => store(sessionStorage, `a2a-draft/${context}`, text || null);

// Start

/** Takes the operator token out of the fragment of the start URL: `#operator=TOKEN`. */
function takeOperatorToken() {
  const [, token] = /^#operator=([^&]+)/.exec(location.hash) ?? [];
  if (!token) return;
  useOperatorToken(decode(token));
  history.replaceState(null, '', `${location.pathname}${location.search}#/status`);
}

export function listen() {
  const update = () => {
    takeOperatorToken();
    const before = agentId.peek();
    takeRoute();
    if (agentId.peek() !== before) void loadCard();
  };
  update();
  addEventListener('hashchange', update);
  const show = () => { isVisible.value = document.visibilityState !== 'hidden'; };
  show();
  document.addEventListener('visibilitychange', show);
  setInterval(() => { if (isVisible.peek()) now.value = Date.now(); }, 1000);
  effect(() => {
    const { theme } = preferences.value;
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  });
}
