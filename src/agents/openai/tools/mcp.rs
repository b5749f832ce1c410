//! Servers of the Model Context Protocol, whose tools a model can call: commands with stdio, or streamable HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    ffi::OsStr,
    fmt, io,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use rmcp::{
    RoleClient, ServiceError,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ErrorCode, Implementation,
        PaginatedRequestParams, PingRequest, ProtocolVersion, Tool,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RunningService, RxJsonRpcMessage,
        TxJsonRpcMessage,
    },
    transport::{
        StreamableHttpClientTransport, Transport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde::de::Error as _;
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, BufReader, ReadBuf},
    process::{Child, ChildStdin, ChildStdout, Command},
    runtime::Handle,
    sync::{OnceCell, oneshot},
    time::{Instant, timeout},
};

use super::tool_result;
#[cfg(unix)]
use crate::agents::exec::guard;
use crate::{
    agents::{
        endpoint::{client_builder, parse_url},
        turn_json::each_log_line,
    },
    base::{
        clock,
        dependency::{Dependency, OutboundResult},
        metric,
        rate_limit::RateLimit,
        redaction::Secrets,
        retry::Backoff,
        stderr::escaped,
        trace::{Span, TraceScope},
    },
    protocol::{
        error::chain,
        json::{check_json, wkt::check_unique},
        rpc::brief,
    },
};

mod http;
mod listed;
mod message;
mod stdio;

pub(super) use self::listed::Servers;

/// Maximum number of tools of all servers.
const MAX_TOOLS: usize = 128;

/// Maximum number of pages of a list of tools.
const MAX_PAGES: usize = 16;

/// Maximum size of a message of a server over HTTP in bytes. The crate `rmcp` decodes it, to up to 90 times its size.
const MAX_HTTP_MESSAGE: usize = 2 << 20;

/// Maximum number of messages of a server per second, and of lines and of pieces of [`PIECE`] bytes that a command writes. A server
/// that sends more is ended.
const MAX_RATE: u32 = 1000;

/// Size that counts as much as a line.
const PIECE: usize = 64 << 10;

/// Maximum time for the response to a ping after a call that has timed out. A server without a response is replaced.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Delays before a server is started again if it has answered no call twice in a row, and before its tools are requested again.
const RESTARTS: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// Time after the end of its stdin in which a command ends by itself, and between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Tools of a server that need the approval of the client before each call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Approval {
    /// No tool.
    #[default]
    None,
    /// All tools.
    All,
    /// The tools with these names.
    Tools(BTreeSet<String>),
}

/// Connection to an MCP server.
#[derive(Clone)]
#[non_exhaustive]
pub enum McpTransport {
    /// Program with its arguments, and further environment variables. Those of this process are passed too, except for
    /// `A2A_…`.
    Command(Vec<String>, BTreeMap<String, String>),
    /// URL of a server with streamable HTTP, and its bearer token.
    Url(String, Option<String>),
}

/// Omits arguments, variables and URLs, which may be secret.
impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(words, _) => f.debug_tuple("Command").field(&words.first()).finish_non_exhaustive(),
            Self::Url(..) => f.debug_tuple("Url").finish_non_exhaustive(),
        }
    }
}

options! {
    /// MCP server, whose tools a model can call.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct McpServer {
        /// Name in logs and errors. It is the prefix of a tool if another server has a tool with the same name.
        pub name: String,
        /// Connection to the server.
        pub transport: McpTransport = McpTransport::Command(Vec::new(), BTreeMap::new()),
        /// Maximum duration of the start, and of each call. 1 minute by default.
        pub timeout: Duration = Duration::from_mins(1),
        /// Maximum size of the result of a call in bytes, as the model gets it. Longer results are truncated. 64 KiB by default.
        pub result_bytes: usize = 64 << 10,
        /// Tools that need the approval of the client before each call. None by default.
        pub approval: Approval,
        /// Path of the program `a2a`, which starts a command on Unix, and ends it even if this process is killed; on Linux with all
        /// processes that it has started. Without it, processes may remain.
        pub guard: Option<PathBuf>,
    }
}

impl McpServer {
    /// Creates a server with the default limits.
    pub fn new(name: impl Into<String>, transport: McpTransport) -> Self {
        Self { name: name.into(), transport, ..Self::default() }
    }

    fn needs_approval(&self, tool: &str) -> bool {
        match &self.approval {
            Approval::None => false,
            Approval::All => true,
            Approval::Tools(names) => names.contains(tool),
        }
    }
}

/// Session with an MCP server.
struct Session {
    client: RunningService<RoleClient, ClientConfig>,
    /// The server has answered a call.
    has_answered: AtomicBool,
}

impl Session {
    fn is_closed(&self) -> bool {
        self.client.is_closed() || self.client.is_transport_closed()
    }

    /// Closes the session if the server does not answer a ping in time, so that the next use opens another one. Returns false then.
    async fn check(&self, server: &str, limit: Duration) -> bool {
        let ping = self.client.send_request(ClientRequest::PingRequest(PingRequest::default()));
        // An error of the server is an answer too.
        let has_answered = matches!(timeout(limit, ping).await, Ok(Ok(_) | Err(ServiceError::McpError(_))));
        if !has_answered && !self.is_closed() {
            tracing::warn!(mcp.server = server, "MCP server replaced: it does not respond");
            self.client.cancellation_token().cancel();
        }
        has_answered
    }
}

/// Call that waits for its response. `rmcp` cancels it at the server if it is dropped before, by its time-out or with its turn. The
/// session is checked then.
struct PendingCall {
    session: Arc<Session>,
    server: String,
    /// Time at which the call times out.
    until: Instant,
    is_answered: bool,
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.is_answered, Handle::try_current()) {
            let (session, server) = (Arc::clone(&self.session), self.server.clone());
            // A server that handles one call after the other has as long for this one as if its turn had waited.
            let limit = self.until.saturating_duration_since(Instant::now()) + PING_TIMEOUT;
            runtime.spawn(async move { session.check(&server, limit).await });
        }
    }
}

/// Counter of the messages of a server, or of the output of a command.
struct FloodLimit {
    server: String,
    rate: RateLimit<()>,
    /// Bytes that are not counted yet.
    bytes: usize,
}

impl FloodLimit {
    fn new(server: &McpServer) -> Self {
        Self { server: server.name.clone(), rate: RateLimit::new(MAX_RATE), bytes: 0 }
    }

    /// Counts messages or lines. Returns false if there are too many.
    fn admits(&self, count: usize) -> bool {
        let is_admitted = (0..count).all(|_| self.rate.count(&()).is_ok());
        if !is_admitted {
            tracing::warn!(
                mcp.server = self.server,
                "MCP server ended: it sends more than {MAX_RATE} messages per second"
            );
        }
        is_admitted
    }
}

/// Output of a command, which ends at a flood. The process of the command ends when it is dropped.
struct LimitedOutput {
    stdout: ChildStdout,
    flood: FloodLimit,
    dependency: Dependency,
    _session: oneshot::Sender<Infallible>,
}

impl AsyncRead for LimitedOutput {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stdout).poll_read(cx, buf))?;
        let read = buf.filled().get(before..).unwrap_or_default();
        if read.is_empty() && buf.remaining() > 0 {
            self.dependency.begin().fail(OutboundResult::Connect, &"its output has ended");
        }
        let bytes = self.flood.bytes + read.len();
        self.flood.bytes = bytes % PIECE;
        let lines = lines(read);
        let flood = || io::Error::other("too many messages");
        Poll::Ready(self.flood.admits(lines + bytes / PIECE).then_some(()).ok_or_else(flood))
    }
}

/// Returns the number of line ends, each of which is LF, CR or CRLF.
fn lines(output: &[u8]) -> usize {
    let ends = output.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
    ends - output.windows(2).filter(|pair| pair == b"\r\n").count()
}

/// Transport that ends at a flood of messages.
struct LimitedTransport<T> {
    transport: T,
    flood: FloodLimit,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for LimitedTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.transport.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = self.transport.receive().await?;
        self.flood.admits(1).then_some(message)
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.transport.close()
    }
}

/// Process of a command, or of its guard.
struct Process {
    child: Child,
    #[cfg_attr(not(unix), expect(dead_code, reason = "commands have no guard there"))]
    is_guarded: bool,
}

impl Process {
    /// Waits for the end of the process. Once its session has ended, and so its stdin, it has some time to end by itself.
    async fn supervise(mut self, server: String, session_ended: oneshot::Receiver<Infallible>) {
        let status = tokio::select! {
            biased;
            _ = session_ended => timeout(GRACE, self.child.wait()).await,
            status = self.child.wait() => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                tracing::warn!(mcp.server = server, "MCP server ended: {status}");
                return;
            }
        };
        if status.is_err() {
            self.terminate();
            // Reaps the process.
            _ = self.child.wait().await;
        }
    }

    /// Sends SIGTERM to a guard, which kills the command later, and kills another process.
    #[cfg(unix)]
    fn terminate(&self) {
        use rustix::process::{Pid, Signal, kill_process, kill_process_group};

        if let Some(id) = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
            // Fails if the process has ended.
            _ = if self.is_guarded { kill_process(id, Signal::TERM) } else { kill_process_group(id, Signal::KILL) };
        }
    }

    #[cfg(not(unix))]
    fn terminate(&mut self) {
        // Fails if the process has ended.
        _ = self.child.start_kill();
    }
}

/// Standard streams of a command, and the secrets of its environment.
type Started = (ChildStdin, LimitedOutput, Arc<Secrets>);

/// Starts the command of a server.
fn start(
    Connection { server, dependency, .. }: &Connection,
    words: &[String],
    env: &BTreeMap<String, String>,
) -> io::Result<Started> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = command(server, program.as_ref(), env.get("PATH").map(AsRef::as_ref))?;
    let mut child = command.args(arguments).envs(env).spawn()?;
    let missing = || io::Error::other("the command has no standard streams");
    let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or_else(missing)?;
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let (session, session_ended) = oneshot::channel();
    let secrets = Arc::new(Secrets::of(env));
    let (name, of_command) = (server.name.clone(), Arc::clone(&secrets));
    tokio::spawn(async move {
        let log = |line: &str| tracing::info!(mcp.server = name, "MCP server: {}", escaped(line));
        let warn = |why: String| tracing::warn!(mcp.server = name, "{why}");
        each_log_line(&mut BufReader::new(stderr), |line| of_command.redact(line), log, warn).await;
    });
    let process = Process { child, is_guarded: cfg!(unix) && server.guard.is_some() };
    tokio::spawn(process.supervise(server.name.clone(), session_ended));
    let dependency = dependency.clone();
    Ok((stdin, LimitedOutput { stdout, flood: FloodLimit::new(server), dependency, _session: session }, secrets))
}

/// Returns the command of a program, which is looked for in `path` or in that of this process.
#[cfg(unix)]
fn command(server: &McpServer, program: &OsStr, path: Option<&OsStr>) -> io::Result<Command> {
    let program = guard::find_program(program, path)?;
    let grace = guard::Grace { terminated: GRACE, orphaned: GRACE };
    let mut command = guard::command(server.guard.as_deref(), &program, grace, 0, None);
    // If a guard is killed, its command is not.
    command.kill_on_drop(server.guard.is_none());
    Ok(command)
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "on Unix, the program is looked for")]
fn command(_: &McpServer, program: &OsStr, _: Option<&OsStr>) -> io::Result<Command> {
    use std::process::Stdio;

    let mut command = Command::new(program);
    for name in crate::base::environment::secret_variables() {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// MCP server with its session, which is opened again if it was closed.
pub(super) struct Connection {
    server: McpServer,
    dependency: Dependency,
    state: Mutex<ConnectionState>,
}

/// Session of a server, and the delay before the next one.
#[derive(Default)]
struct ConnectionState {
    session: Arc<OnceCell<Arc<Session>>>,
    /// Number of sessions in a row that were not opened, or in which no call was answered.
    failures: u32,
    /// Time before which no session is opened.
    not_before: Option<Instant>,
}

impl ConnectionState {
    /// Returns true if the next session has to wait.
    fn has_to_wait(&self) -> bool {
        self.not_before.is_some_and(|at| Instant::now() < at)
    }

    /// Counts a session that has failed. The first one is replaced at once.
    fn count_failure(&mut self) {
        // Further calls of the same time do not count.
        if !self.has_to_wait() {
            let delay = self.failures.checked_sub(1).map(|repeated| RESTARTS.without_jitter(repeated));
            (self.failures, self.not_before) =
                (self.failures.saturating_add(1), delay.map(|delay| Instant::now() + delay));
        }
    }

    /// Replaces a session that was closed.
    fn replace(&mut self, closed: &Session) {
        self.session = Arc::default();
        if closed.has_answered.load(Ordering::Relaxed) {
            (self.failures, self.not_before) = (0, None);
        } else {
            self.count_failure();
        }
    }
}

impl Connection {
    fn new(server: McpServer) -> Arc<Self> {
        Arc::new_cyclic(|connection: &Weak<Self>| {
            let connection = Weak::clone(connection);
            let dependency =
                Dependency::new(format!("mcp:{}", server.name), format!("the MCP server {}", escaped(&server.name)));
            let url = if let McpTransport::Url(url, _) = &server.transport { url.as_str() } else { "" };
            let dependency = dependency.at(url).with_probe(false, move || {
                let connection = connection.upgrade();
                async move {
                    // Spawned, because a server may take longer to start than a probe.
                    let probe = tokio::spawn(async move { Some(connection?.probe().await) });
                    probe.await.ok().flatten().unwrap_or(OutboundResult::Connect)
                }
            });
            Self { server, dependency, state: Mutex::default() }
        })
    }

    /// Opens a session if there is none, and pings a server at a URL.
    async fn probe(&self) -> OutboundResult {
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => return unopened(&error),
        };
        let is_there = match &self.server.transport {
            McpTransport::Url(..) => session.check(&self.server.name, PING_TIMEOUT).await,
            McpTransport::Command(..) => !session.is_closed(),
        };
        if is_there { OutboundResult::Ok } else { OutboundResult::Connect }
    }

    /// Counts a call of a tool.
    pub(super) fn count(&self, result: &'static str, duration: Duration) {
        let (agent, labels) = (self.dependency.agent(), [result, &*self.server.name]);
        metric::TOOL_CALLS.add(agent, &labels, 1);
        metric::TOOL_DURATION.observe(agent, &labels, duration);
    }

    /// Returns the open session. Opens one if there is none.
    async fn session(&self) -> io::Result<Arc<Session>> {
        let cell = {
            let mut state = self.state.lock();
            if let Some(closed) = state.session.get().filter(|session| session.is_closed()).cloned() {
                state.replace(&closed);
            }
            if state.session.get().is_none() && state.has_to_wait() {
                return Err(io::Error::other("the server fails again and again; it is started again later"));
            }
            Arc::clone(&state.session)
        };
        let open = async || self.open().await.map(Arc::new);
        // Calls at the same time share the session.
        let opened = timeout(self.server.timeout, cell.get_or_try_init(open)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).cloned();
        if opened.is_err() {
            self.state.lock().count_failure();
        }
        opened
    }

    /// Opens a session with the newest protocol version that both know.
    async fn open(&self) -> io::Result<Session> {
        let mut tried = vec![ProtocolVersion::LATEST_WITH_INITIALIZE];
        loop {
            let opened = self.open_with(tried.last().cloned().unwrap_or_default()).await;
            match opened.as_ref().err().and_then(|error| offered_version(error, &tried)) {
                Some(version) => tried.push(version),
                None => return opened,
            }
        }
    }

    async fn open_with(&self, version: ProtocolVersion) -> io::Result<Session> {
        let identity = Implementation::new("a2a-service", env!("CARGO_PKG_VERSION"));
        let client = ClientConfig::new(ClientCapabilities::default(), identity).with_protocol_version(version.clone());
        let lifecycle = if version.has_initialize() {
            ClientLifecycleMode::Initialize
        } else {
            ClientLifecycleMode::Discover { preferred_versions: vec![version] }
        };
        let client = match &self.server.transport {
            McpTransport::Command(words, env) => {
                let (stdin, stdout, secrets) = start(self, words, env)?;
                let transport = stdio::transport(&self.server.name, stdout, stdin, secrets);
                client.serve_with_lifecycle(transport, lifecycle).await
            }
            McpTransport::Url(url, token) => {
                let http = client_builder().build().map_err(io::Error::other)?;
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                config = config.max_json_response_size(MAX_HTTP_MESSAGE).max_sse_event_size(MAX_HTTP_MESSAGE);
                if let Some(token) = token {
                    config = config.auth_header(token);
                }
                let transport = StreamableHttpClientTransport::with_client(http::HttpClient(http), config);
                let transport = LimitedTransport { transport, flood: FloodLimit::new(&self.server) };
                client.serve_with_lifecycle(transport, lifecycle).await
            }
        };
        let client = client.map_err(|error| {
            // Its text has the Rust type of the transport.
            let ClientInitializeError::TransportError { error, .. } = error else { return io::Error::other(error) };
            io::Error::other(chain(&*error.error))
        });
        Ok(Session { client: client?, has_answered: AtomicBool::new(false) })
    }

    /// Calls a tool with arguments in JSON. Returns the result for the model, also if the call fails.
    pub(super) async fn call(&self, tool: &str, arguments: &str) -> String {
        let arguments = match arguments.trim() {
            "" => Ok(Map::new()),
            arguments => check_json(arguments.as_bytes())
                .map_err(serde_json::Error::custom)
                .and_then(|()| check_unique(arguments.as_bytes()))
                .and_then(|()| serde_json::from_str::<Map<String, Value>>(arguments)),
        };
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(error) => return format!("Error: the arguments are not a JSON object: {error}"),
        };
        let has_content = TraceScope::current().tracing.has_content;
        let (started, mut call) = (Instant::now(), self.dependency.begin().traced(format!("tools/call {tool}")));
        call.span.set("mcp.method.name", "tools/call");
        call.span.set("gen_ai.operation.name", "execute_tool");
        call.span.set("gen_ai.tool.name", tool);
        call.span.set("a2a_service.mcp.server", &*self.server.name);
        if has_content {
            let arguments = Value::from(arguments.clone()).to_string();
            call.span.set_content("gen_ai.tool.call.arguments", &arguments);
        }
        let (result, outcome, text) = self.attempt(tool, arguments, &call.span).await;
        self.count(result, started.elapsed());
        if result != "ok" {
            call.span.fail(result);
        }
        if has_content {
            call.span.set_content("gen_ai.tool.call.result", &text);
        }
        call.fail(outcome, &text);
        text
    }

    /// Sends a call. Returns its result for the metrics and for the state of the server, and a text for the model. A call is not
    /// repeated: the tool may have run.
    async fn attempt(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        span: &Span,
    ) -> (&'static str, OutboundResult, String) {
        let name = &self.server.name;
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(mcp.server = name, error.cause = %error, "MCP server not started");
                return ("error", unopened(&error), format!("Error: the server of {tool} is not available."));
            }
        };
        let mut request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        if let Some(trace) = span.header() {
            let meta = request.meta.get_or_insert_default();
            meta.set_traceparent(trace);
            span.state().into_iter().for_each(|state| meta.set_tracestate(state));
        }
        let until = clock::after(Instant::now(), self.server.timeout);
        let mut pending =
            PendingCall { session: Arc::clone(&session), server: name.clone(), until, is_answered: false };
        let called = timeout(self.server.timeout, session.client.call_tool(request)).await;
        let Ok(called) = called else {
            tracing::warn!(mcp.server = name, mcp.tool = tool, "MCP tool call timed out");
            // Before the model calls it again.
            session.check(name, PING_TIMEOUT).await;
            pending.is_answered = true;
            return ("timeout", OutboundResult::Timeout, format!("Error: {tool} did not respond in time."));
        };
        pending.is_answered = true;
        if matches!(called, Ok(_) | Err(ServiceError::McpError(_))) {
            session.has_answered.store(true, Ordering::Relaxed);
        }
        match called {
            Ok(result) => {
                let label = if result.is_error == Some(true) { "tool_error" } else { "ok" };
                (label, OutboundResult::Ok, tool_result::to_text(result, self.server.result_bytes))
            }
            Err(ServiceError::McpError(error)) => {
                let text = tool_result::truncated(format!("Error: {}", error.message), self.server.result_bytes);
                ("tool_error", OutboundResult::Ok, text)
            }
            Err(error) => {
                let cause = cause(&error);
                tracing::warn!(mcp.server = name, mcp.tool = tool, error.cause = cause, "MCP tool call failed");
                let is_lost = matches!(error, ServiceError::TransportClosed | ServiceError::TransportSend(_));
                if is_lost {
                    self.forget(&session);
                }
                let outcome = if is_lost { OutboundResult::Connect } else { OutboundResult::Protocol };
                ("error", outcome, format!("Error: the call of {tool} failed."))
            }
        }
    }

    /// Drops a session, so that the next use opens another one.
    fn forget(&self, failed: &Arc<Session>) {
        let mut state = self.state.lock();
        if state.session.get().is_some_and(|session| Arc::ptr_eq(session, failed)) {
            state.replace(failed);
        }
    }

    /// Returns the tools of the server.
    async fn list(&self) -> io::Result<Vec<Tool>> {
        let call = self.dependency.begin();
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => {
                call.fail(unopened(&error), &error);
                return Err(error);
            }
        };
        let listed = self.pages(&session).await;
        match &listed {
            Ok(_) => call.end(OutboundResult::Ok),
            Err(error) => {
                call.fail(OutboundResult::Protocol, error);
                self.forget(&session);
            }
        }
        listed
    }

    async fn pages(&self, session: &Session) -> io::Result<Vec<Tool>> {
        let (mut tools, mut cursors, mut cursor) = (Vec::new(), BTreeSet::new(), None);
        for _ in 0..MAX_PAGES {
            let request = PaginatedRequestParams::default().with_cursor(cursor);
            let page = timeout(self.server.timeout, session.client.list_tools(Some(request))).await;
            let page = match page.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))? {
                Err(ServiceError::McpError(error)) if !cursors.is_empty() => {
                    let why = escaped(&brief(&error.message));
                    tracing::warn!(mcp.server = self.server.name, "list of tools ended: {why}");
                    return Ok(tools);
                }
                page => page.map_err(|error| io::Error::other(cause(&error)))?,
            };
            for tool in page.tools {
                let known = tools.iter().find(|known: &&Tool| known.name == tool.name);
                // A server that ignores cursors sends its tools again.
                if known.is_some_and(|known| *known != tool) {
                    tracing::warn!(
                        mcp.server = self.server.name,
                        "tool ignored: another one has the name {:?}",
                        tool.name
                    );
                } else if known.is_none() {
                    tools.push(tool);
                }
            }
            cursor = page.next_cursor;
            let Some(next) = &cursor else { return Ok(tools) };
            if !cursors.insert(next.clone()) {
                tracing::warn!(mcp.server = self.server.name, "list of tools ended: a cursor was repeated");
                return Ok(tools);
            }
            if tools.len() > MAX_TOOLS {
                break;
            }
        }
        Err(io::Error::other(format!("the list of tools exceeds {MAX_TOOLS} tools or {MAX_PAGES} pages")))
    }
}

/// Returns the result of a session that could not be opened.
fn unopened(error: &io::Error) -> OutboundResult {
    if error.kind() == io::ErrorKind::TimedOut { OutboundResult::Timeout } else { OutboundResult::Connect }
}

/// Returns the cause of a failed call, without the Rust type of the transport.
fn cause(error: &ServiceError) -> String {
    if let ServiceError::TransportSend(error) = error { chain(&*error.error) } else { error.to_string() }
}

/// Returns a further protocol version for a server that has refused those that were tried: the newest one that both know. If the server
/// names none, the next older one.
fn offered_version(error: &io::Error, tried: &[ProtocolVersion]) -> Option<ProtocolVersion> {
    let ClientInitializeError::JsonRpcError(error) = error.get_ref()?.downcast_ref()? else { return None };
    let data = error.data.as_ref().unwrap_or(&Value::Null);
    let supported = &data["supported"];
    let text = format!("{} {data}", error.message);
    let is_of_version = text.to_lowercase().contains("version");
    let is_offered = |version: &&ProtocolVersion| match supported.as_array() {
        _ if tried.contains(version) => false,
        // Newer servers have no `initialize`.
        None if error.code == ErrorCode::METHOD_NOT_FOUND => **version == ProtocolVersion::LATEST,
        Some(supported) => supported.iter().any(|offered| offered.as_str() == Some(version.as_str())),
        None => is_of_version && text.contains(version.as_str()),
    };
    let is_older = |version: &ProtocolVersion| tried.last().is_some_and(|last| version.as_str() < last.as_str());
    let is_next = |version: &&ProtocolVersion| {
        is_of_version && !supported.is_array() && version.has_initialize() && is_older(version)
    };
    let mut newest_first = ProtocolVersion::KNOWN_VERSIONS.iter().rev();
    newest_first.clone().find(is_offered).or_else(|| newest_first.find(is_next)).cloned()
}

/// Checks the options of a server before it is started.
fn check(server: &McpServer) -> io::Result<()> {
    let invalid = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    match &server.transport {
        McpTransport::Command(words, env) => match words.first() {
            Some(program) if !program.is_empty() => {
                #[cfg(unix)]
                guard::find_program(program.as_ref(), env.get("PATH").map(AsRef::as_ref))?;
                #[cfg(not(unix))]
                let _ = (program, env);
                Ok(())
            }
            _ => invalid("the command is empty"),
        },
        McpTransport::Url(url, _) => {
            let parsed = parse_url(url)?;
            // Errors of connections name the URL.
            let has_secret = !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some();
            if has_secret {
                return invalid("the URL has a user or a query, which would be in logs; set `token`");
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agents::openai::tools::Tools;

    #[tokio::test(start_paused = true)]
    async fn servers_that_answer_no_call_are_started_with_growing_delays() {
        let mut state = ConnectionState::default();
        let mut delays = Vec::new();
        for _ in 0..4 {
            state.count_failure();
            state.count_failure();
            let delay = state.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
            delays.push(delay.as_secs());
            tokio::time::advance(delay).await;
        }
        assert_eq!(delays, [1, 2, 4, 8]);
    }

    #[tokio::test]
    async fn servers_that_can_not_start_are_named() {
        let command = |words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned()).collect();
            McpServer::new("files", McpTransport::Command(words, BTreeMap::new()))
        };
        let url = |url: &str| McpServer::new("files", McpTransport::Url(url.to_owned(), None));
        for server in [command(&[]), command(&["/nonexistent/program"]), url("ftp://e.example")] {
            let server = server.timeout(Duration::from_secs(10));
            let error = Tools::default().connect(vec![server]).await.err().unwrap().to_string();
            assert!(error.starts_with("files: "), "{error}");
        }
        // Those that may start later do not keep the agent from starting, and are named in each turn.
        for server in [command(&["true"]), url("http://127.0.0.1:1/mcp")] {
            let tools = Tools::default().connect(vec![server.timeout(Duration::from_secs(10))]).await.unwrap();
            let [(name, Err(_))] = &*tools.states() else { panic!("the server has no tools") };
            assert_eq!(name, "files");
            let error = tools.with_missing().await.err().unwrap();
            assert!(error.to_string().contains("MCP server files are not available"), "{error}");
        }
    }

    #[test]
    fn lines_end_with_lf_cr_or_crlf() {
        for (output, expected) in
            [("", 0), ("a", 0), ("a\nb\n", 2), ("a\rb\r", 2), ("a\r\nb\r\n", 2), ("\r\r\n\n\r", 4)]
        {
            assert_eq!(lines(output.as_bytes()), expected, "{output:?}");
        }
    }

    #[test]
    fn newest_common_version_is_offered() {
        let refused = |code: ErrorCode, data: Value| {
            let error = rmcp::ErrorData::new(code, "Unsupported protocol version", Some(data));
            let tried = [ProtocolVersion::LATEST_WITH_INITIALIZE];
            offered_version(&io::Error::other(ClientInitializeError::JsonRpcError(error)), &tried)
        };
        let supported = |versions: Value| refused(ErrorCode::INVALID_PARAMS, json!({ "supported": versions }));
        assert_eq!(supported(json!(["2025-06-18"])), Some(ProtocolVersion::V_2025_06_18));
        assert_eq!(supported(json!(["2024-11-05", "2025-03-26", "2099-01-01"])), Some(ProtocolVersion::V_2025_03_26));
        assert_eq!(supported(json!(["2026-07-28", "2025-06-18"])), Some(ProtocolVersion::V_2026_07_28));
        assert_eq!(supported(json!("2025-03-26, 2024-11-05")), Some(ProtocolVersion::V_2025_03_26));
        assert_eq!(supported(json!(null)), Some(ProtocolVersion::V_2025_06_18), "the next older one");
        for versions in [json!([]), json!(["2025-11-25"]), json!([7])] {
            assert_eq!(supported(versions.clone()), None, "{versions}");
        }
        assert_eq!(refused(ErrorCode::METHOD_NOT_FOUND, json!({})), Some(ProtocolVersion::V_2026_07_28));
        assert_eq!(offered_version(&io::Error::other("closed"), &[ProtocolVersion::LATEST_WITH_INITIALIZE]), None);
    }

    #[test]
    fn secrets_are_not_printed() {
        let env = [("KEY".to_owned(), "sesame".to_owned())].into();
        let words = vec!["server".to_owned(), "--key=sesame".to_owned()];
        let url = McpTransport::Url("https://sesame@e.example/".to_owned(), Some("sesame".to_owned()));
        for transport in [McpTransport::Command(words, env), url] {
            assert!(!format!("{:?}", McpServer::new("files", transport)).contains("sesame"));
        }
    }
}
