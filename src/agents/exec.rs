//! Agent that is a command: a process for each turn, or one that keeps running and gets all turns.
//!
//! With [`ExecFormat::Text`], the command reads the message from stdin, and its stdout becomes an artifact. With
//! [`ExecFormat::JsonLines`], it reads the turn and writes events as JSON, a line each. `docs/agents.md` describes both for authors
//! of commands.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, io, mem,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy, sink},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::spawn_blocking,
    time::timeout,
};

use self::{guard::Grace, persistent::Persistent, stderr::Stderr};
use super::{
    Agent, AgentCard, End, Error, Stopped, Turn, Updates,
    files::{PREFIX, TurnFiles, task_directory},
    turn_json::{EventSink, Line, OUTPUT, TurnEnd, TurnLine, read_line},
    wait_for,
};
use crate::base::{
    decoding::BYTE_ORDER_MARK,
    dependency::{Dependency, OutboundResult},
    metric,
    redaction::Secrets,
    trace::{Span, SpanKind, TraceScope},
};

pub(crate) mod guard;
mod persistent;
pub(crate) mod script;
mod stderr;

/// Variable that makes Python write its stdout at once, also to a pipe. It does so on a terminal, but a terminal would also change line
/// ends, join stderr with stdout and need its own escaping. Node.js and shells write at once to a pipe too.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// Maximum size of the line feeds that are held back, in bytes.
const MAX_PIECE: usize = 64 << 10;

/// Output of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecFormat {
    /// The message on stdin, an artifact on stdout. The exit code decides if the task is completed.
    #[default]
    Text,
    /// The turn on stdin, and events on stdout, as a JSON object on each line.
    JsonLines,
}

options! {
    /// Options of an [`Exec`] agent.
    #[derive(Clone)]
    #[non_exhaustive]
    pub struct ExecOptions {
        /// Format of stdin and stdout.
        pub format: ExecFormat,
        /// Keeps the command running, and sends it all turns. Only in the format `JsonLines`. Off by default.
        pub persistent: bool,
        /// Directory with a working directory for each task, which is created and not deleted. By default, the command runs in
        /// the directory of the server.
        pub workspace: Option<PathBuf>,
        /// Further environment variables of the command. Those of the server are passed too, except for `A2A_…`, `PGPASSWORD`,
        /// `PGPASSFILE` and `OTEL_…_HEADERS`. `PYTHONUNBUFFERED` is 1 unless it is set.
        pub env: BTreeMap<String, String>,
        /// Maximum size of the stdout of a turn, and of the files that it writes, in bytes. 64 MiB by default.
        pub output_bytes: usize = 64 << 20,
        /// Maximum address space of each process in bytes. Needs a guard.
        pub memory: Option<u64>,
        /// Time between SIGTERM and SIGKILL for a command whose task is canceled. 3 s by default.
        pub grace: Duration = Duration::from_secs(3),
        /// The command may run again for a turn that was interrupted ([`Agent::resumable`]). Off by default.
        pub resumable: bool,
        /// Path of the program `a2a`, which starts the command, limits its memory, and ends all its processes with it. Without
        /// it, processes may remain that the command has moved to another process group.
        pub guard: Option<PathBuf>,
        /// Agent card.
        pub card: AgentCard,
    }
}

impl fmt::Debug for ExecOptions {
    /// Environment variables may be secrets, so only their names are printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("ExecOptions");
        f.field("format", &self.format).field("persistent", &self.persistent).field("workspace", &self.workspace);
        f.field("env", &self.env.keys()).field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// Agent that runs a command.
///
/// ```no_run
/// use a2a_service::{adapter::{Exec, ExecOptions}, server::Server};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let upper = Exec::new(["tr", "a-z", "A-Z"], ExecOptions::default())?;
/// Server::new(upper).name("Upper").serve("127.0.0.1:8080").await
/// # }
/// ```
pub struct Exec {
    runner: Arc<Runner>,
    persistent: Option<Persistent>,
}

/// Command with its options.
struct Runner {
    program: PathBuf,
    arguments: Vec<OsString>,
    options: ExecOptions,
    secrets: Arc<Secrets>,
    dependency: Dependency,
}

// Arguments may be secrets.
debug_fields!(Exec { program: runner.program, options: runner.options });

impl Exec {
    /// Creates the agent of a command: a program with its arguments. No shell is involved. A program that is not in `PATH` is looked for
    /// in the working directory.
    ///
    /// # Errors
    /// `InvalidInput` if there is no program, a persistent command has the format `Text`, or a memory limit has no guard; `NotFound` if
    /// the program does not exist or can't be executed, with a remedy in the text.
    pub fn new<T: Into<OsString>>(command: impl IntoIterator<Item = T>, options: ExecOptions) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut words: Vec<OsString> = command.into_iter().map(Into::into).collect();
        if words.is_empty() {
            return Err(invalid("the command is empty"));
        }
        let program = script::find(&words, options.workspace.is_some())?;
        if options.persistent && options.format == ExecFormat::Text {
            return Err(invalid("a persistent command needs the format of JSON lines"));
        }
        if options.memory.is_some() && options.guard.is_none() {
            return Err(invalid("a memory limit needs a guard"));
        }
        let is_persistent = options.persistent;
        let secrets = Arc::new(Secrets::of(&options.env));
        let probed = program.clone();
        let dependency = Dependency::new("exec", "the command of the agent").with_probe(false, move || {
            let program = probed.clone();
            async move {
                let found = spawn_blocking(move || script::problem(&program, "")).await;
                if matches!(found, Ok(None)) { OutboundResult::Ok } else { OutboundResult::Connect }
            }
        });
        let runner = Arc::new(Runner { program, arguments: words.split_off(1), options, secrets, dependency });
        let persistent = is_persistent.then(|| Persistent::new(Arc::clone(&runner)));
        Ok(Self { runner, persistent })
    }
}

impl Agent for Exec {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        wait_for(&self.runner.dependency, &turn, &out).await?;
        match &self.persistent {
            Some(persistent) => persistent.run(&turn, &out).await,
            None => self.runner.run(&turn, &out).await,
        }
    }

    fn card(&self) -> AgentCard {
        self.runner.options.card.clone()
    }

    fn resumable(&self) -> bool {
        self.runner.options.resumable
    }

    fn dependencies(&self) -> Vec<Dependency> {
        vec![self.runner.dependency.clone()]
    }
}

/// Reason to stop reading the output of a command that is still running.
enum Interrupt {
    /// An event has ended the turn.
    Ended(TurnEnd),
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Interrupt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Runner {
    /// Returns the command, with its guard if there is one. `files` is the beginning of the paths of the
    /// directories of its turns.
    fn command(&self, files: &Path) -> Command {
        let Self { program, arguments, options, .. } = self;
        let memory = options.memory.unwrap_or_default();
        let grace = Grace { terminated: options.grace, orphaned: Duration::ZERO };
        let mut command = guard::command(options.guard.as_deref(), program, grace, memory, Some(files));
        if std::env::var_os(UNBUFFERED).is_none() {
            command.env(UNBUFFERED, "1");
        }
        command.args(arguments).envs(&options.env);
        command
    }

    /// Starts a command.
    fn start(&self, command: &mut Command) -> Result<Process, Error> {
        match command.spawn() {
            Ok(child) => Process::new(child, self),
            // A message does not fit into the environment: another one may.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::ArgumentListTooLong) => {
                Err(Error::internal(error.to_string()))
            }
            Err(error) => Err(self.unavailable(self.problem().unwrap_or_else(|| error.to_string()))),
        }
    }

    /// Returns the failure of a turn whose command can't be started.
    fn unavailable(&self, problem: String) -> Error {
        self.dependency.begin().fail(OutboundResult::Connect, &problem);
        Error::internal(problem).because_of("unavailable")
    }

    /// Begins the span of a command, below that of the turn.
    fn span(&self) -> Span {
        let name = self.program.file_name().unwrap_or(self.program.as_os_str()).to_string_lossy().into_owned();
        let mut span = TraceScope::current().start(SpanKind::Client, name.clone());
        span.set("process.executable.name", name);
        span
    }

    /// Counts the end of a process. Returns why it has failed, if the program can't be started any more.
    fn ended(&self, status: ExitStatus) -> Option<String> {
        let code = exit_code(status).map_or_else(|| "signal".to_owned(), |code| code.to_string());
        metric::EXEC_EXITS.add(self.dependency.agent(), &[&code], 1);
        let problem = if status.success() { None } else { self.problem() };
        let result = if problem.is_some() { OutboundResult::Connect } else { OutboundResult::Ok };
        self.dependency.begin().fail(result, &problem.as_deref().unwrap_or_default());
        problem
    }

    /// Returns why the program can't be started any more.
    fn problem(&self) -> Option<String> {
        script::problem(&self.program, &self.program.to_string_lossy())
    }

    /// Runs the command for a turn.
    async fn run(&self, turn: &Turn, out: &Updates) -> Result<End, Error> {
        let files = TurnFiles::create(turn, PREFIX).await?;
        let mut command = self.command(files.directory());
        let mut span = self.span();
        let (own, trace) = (span.header(), span.header().or_else(|| turn.trace().map(str::to_owned)));
        let state = if own.is_some() { span.state() } else { turn.trace_state().map(str::to_owned) };
        describe(&mut command, turn, &files, (trace.as_deref(), state.as_deref()));
        if let Some(workspace) = &self.options.workspace {
            command.current_dir(task_directory(workspace, turn).await?);
        }
        let input = match self.options.format {
            ExecFormat::Text => files.text(turn.messages()).into_bytes(),
            ExecFormat::JsonLines => {
                let line = TurnLine::new(turn, "1", &files.paths, Some(&files.output));
                line.traced(trace.as_deref()).to_line()?
            }
        };
        if self.options.format == ExecFormat::Text {
            out.working().await?;
        }
        let mut process = self.start(&mut command).inspect_err(|_| span.fail("connect"))?;
        span.set_some("process.pid", process.child.id());
        let (status, without_event) = match process.work(input, self, turn, out).await {
            Ok(ended) => ended,
            Err(Interrupt::Ended(end)) => {
                process.finish(self.options.grace, turn.task_id()).await;
                files.send(out, self.options.output_bytes).await?;
                return end;
            }
            Err(Interrupt::Failed(error)) => return Err(error),
        };
        let problem = self.ended(status);
        if let Some(code) = exit_code(status) {
            turn.record_exit(code);
            span.set("process.exit.code", i64::from(code));
        }
        if let Some(failure) = failure(status, &self.options) {
            let reason = if problem.is_some() { "unavailable" } else { "exit_code" };
            span.fail(reason);
            let failure = Error::internal(problem.unwrap_or_else(|| process.stderr.error(&failure)));
            return Err(failure.because_of(reason));
        }
        let has_files = files.send(out, self.options.output_bytes).await?;
        without_event.filter(|_| !has_files).map_or(Ok(End::Completed(None)), Err)
    }
}

/// Describes a turn in environment variables.
fn describe(command: &mut Command, turn: &Turn, files: &TurnFiles, (trace, state): (Option<&str>, Option<&str>)) {
    command.env("A2A_TASK_ID", turn.task_id()).env("A2A_CONTEXT_ID", turn.context_id());
    command.env("A2A_MESSAGE_ID", &turn.message().message_id).env("A2A_ATTEMPT", turn.attempt().to_string());
    command.env("A2A_FENCE", turn.fence().to_string());
    command.env("A2A_OWNER", turn.owner()).env("A2A_TENANT", turn.tenant());
    command.env("A2A_INPUT_DIR", &files.input).env("A2A_OUTPUT_DIR", &files.output);
    let trace = [("TRACEPARENT", trace), ("TRACESTATE", state)].map(|(name, value)| Some((name, value?)));
    command.envs(trace.into_iter().flatten());
    command.env("A2A_HOPS", turn.hops().to_string());
}

/// Returns the exit code or the signal of a failed command as text.
fn failure(status: ExitStatus, options: &ExecOptions) -> Option<String> {
    use std::os::unix::process::ExitStatusExt as _;

    let killed = |signal: i32| {
        let why = match signal {
            9 if options.memory.is_some() => " (it may have exceeded a memory limit)",
            9 => " (the system may have run out of memory)",
            24 => " (it exceeded its processor time)",
            _ => "",
        };
        format!("ended by signal {signal}{why}")
    };
    match (exit_code(status), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit code {code}")),
        (None, Some(signal)) => Some(killed(signal)),
        (None, None) => Some(killed(status.code().unwrap_or_default() - i32::from(guard::KILLED))),
    }
}

/// Returns the exit code of a command. `None` if a signal has ended it, which a guard passes on as a code.
fn exit_code(status: ExitStatus) -> Option<i32> {
    let is_signal = |code: &i32| (1..=64).contains(&(code - i32::from(guard::KILLED)));
    status.code().filter(|code| !is_signal(code))
}

/// Process of a command, or of its guard. When it is dropped, the command is killed.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: Stderr,
    group: Option<Pid>,
    is_guarded: bool,
    has_ended: bool,
    agent: Option<Arc<str>>,
}

impl Process {
    fn new(mut child: Child, runner: &Runner) -> Result<Self, Error> {
        let missing = || Error::internal("a command has no standard streams");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let stderr = Stderr::new(child.stderr.take().ok_or_else(missing)?, Arc::clone(&runner.secrets));
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let (is_guarded, agent) = (runner.options.guard.is_some(), runner.dependency.agent().cloned());
        metric::EXEC_PROCESSES.adjust(agent.as_ref(), &[], 1);
        Ok(Self { child, stdin, stdout, stderr, group, is_guarded, has_ended: false, agent })
    }

    /// Sends the input, and applies the output until the command ends. Returns its status, and the failure of a turn without an
    /// event.
    async fn work(
        &mut self,
        input: Vec<u8>,
        runner: &Runner,
        turn: &Turn,
        out: &Updates,
    ) -> Result<(ExitStatus, Option<Error>), Interrupt> {
        let Self { child, stdin, stdout, stderr, .. } = self;
        let options = &runner.options;
        let output = async {
            let write = async {
                if let Some(mut stdin) = stdin.take() {
                    // The command may end without reading it.
                    drop(stdin.write_all(&input).await);
                }
                Ok(())
            };
            let read = async {
                match options.format {
                    ExecFormat::Text => read_text(stdout, options, out).await,
                    ExecFormat::JsonLines => read_events(stdout, runner, turn, out).await,
                }
            };
            let log = async {
                stderr.log(turn.task_id()).await;
                Ok(())
            };
            tokio::try_join!(write, read, log)
        };
        let result = tokio::select! {
            result = output => Some(result),
            () = turn.canceled() => None,
        };
        match result {
            Some(Ok(((), without_event, ()))) => {
                let status = child.wait().await?;
                self.has_ended = true;
                Ok((status, without_event))
            }
            // An update fails if the task is canceled meanwhile.
            Some(Err(interrupt)) if !turn.is_canceled() => Err(interrupt),
            _ => {
                self.terminate();
                self.drain(turn.task_id()).await;
                Err(Stopped.into())
            }
        }
    }

    /// Asks the command to end.
    fn terminate(&self) {
        if let Some(id) = self.group.filter(|_| !self.has_ended) {
            // Fails if the process has ended. A guard passes the signal on.
            _ = if self.is_guarded { kill_process(id, Signal::TERM) } else { kill_process_group(id, Signal::TERM) };
        }
    }

    /// Waits for the end of the command, and drops its output.
    async fn drain(&mut self, task_id: &str) {
        self.stdin = None;
        let mut nowhere = sink();
        let (_, (), status) =
            tokio::join!(copy(&mut self.stdout, &mut nowhere), self.stderr.log(task_id), self.child.wait());
        self.has_ended = status.is_ok();
    }

    /// Waits for the end of a command whose turn has ended, up to the grace period. Then it is killed.
    async fn finish(mut self, grace: Duration, task_id: &str) {
        if timeout(grace, self.drain(task_id)).await.is_err() {
            tracing::warn!(task.id = task_id, "command killed: it did not end after the end of its turn");
        }
    }
}

impl Drop for Process {
    /// A guard kills the command when the pipes are closed.
    fn drop(&mut self) {
        metric::EXEC_PROCESSES.adjust(self.agent.as_ref(), &[], -1);
        if let Some(group) = self.group.filter(|_| !self.is_guarded && !self.has_ended) {
            _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Sends stdout as an artifact.
async fn read_text(
    stdout: &mut BufReader<ChildStdout>,
    options: &ExecOptions,
    out: &Updates,
) -> Result<Option<Error>, Interrupt> {
    let mut artifact = out.artifact(OUTPUT);
    let mut splitter = Splitter::default();
    let mut left = options.output_bytes;
    loop {
        let bytes = stdout.fill_buf().await?;
        if bytes.is_empty() {
            break;
        }
        left = left.checked_sub(bytes.len()).ok_or_else(|| too_much_output(options))?;
        let piece = splitter.push(bytes);
        let length = bytes.len();
        stdout.consume(length);
        if let Some(piece) = piece {
            artifact.text(piece).await?;
        }
    }
    if let Some(piece) = splitter.finish() {
        artifact.text(piece).await?;
    }
    Ok(None)
}

fn too_much_output(options: &ExecOptions) -> Error {
    let max = options.output_bytes;
    Error::public(format!("The output of the command exceeds {max} bytes (limits.task_bytes)."))
}

/// Applies the events of stdout. Returns the failure of the turn if there is none.
async fn read_events(
    stdout: &mut BufReader<ChildStdout>,
    Runner { options, secrets, .. }: &Runner,
    turn: &Turn,
    out: &Updates,
) -> Result<Option<Error>, Interrupt> {
    let mut sink = EventSink::new(out, turn.task_id(), Arc::clone(secrets));
    let mut left = options.output_bytes;
    while let Some(line) = read_line(stdout, left).await? {
        let Line::Whole(line) = line else { return Err(too_much_output(options).into()) };
        left = left.saturating_sub(line.len());
        if let Some(end) = sink.apply_line(line).await? {
            return Err(Interrupt::Ended(end));
        }
    }
    sink.flush().await?;
    Ok(sink.failure("command"))
}

/// Splitter of stdout into the chunks of an artifact. Each is valid UTF-8. Line feeds at the end of the output are dropped, as a
/// shell does: those at the end of what has arrived are carried over to the next chunk. A byte order mark at the beginning is dropped.
#[derive(Default)]
struct Splitter {
    pending: Vec<u8>,
    has_begun: bool,
}

impl Splitter {
    /// Adds output, and returns the next chunk, if it is complete.
    fn push(&mut self, bytes: &[u8]) -> Option<String> {
        self.pending.extend_from_slice(bytes);
        let end = complete(&self.pending);
        let kept = without_line_feeds(self.pending.get(..end).unwrap_or_default()).len();
        // Nothing but line feeds for a long time: they are not at the end.
        let kept = if kept == 0 && end > MAX_PIECE { end } else { kept };
        if kept == 0 {
            return None;
        }
        let rest = self.pending.split_off(kept);
        let chunk = mem::replace(&mut self.pending, rest);
        self.text(&chunk)
    }

    /// Returns the last chunk.
    fn finish(mut self) -> Option<String> {
        let rest = mem::take(&mut self.pending);
        self.text(without_line_feeds(&rest))
    }

    fn text(&mut self, chunk: &[u8]) -> Option<String> {
        let text = if self.has_begun { chunk } else { chunk.strip_prefix(BYTE_ORDER_MARK).unwrap_or(chunk) };
        self.has_begun |= !chunk.is_empty();
        (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
    }
}

fn without_line_feeds(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    bytes.get(..end).unwrap_or_default()
}

/// Returns the length of the beginning that does not end within a character.
fn complete(bytes: &[u8]) -> usize {
    let invalid = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    let is_incomplete = str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
    bytes.len() - if is_incomplete { invalid.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(output: &[&[u8]]) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut pieces: Vec<String> = output.iter().filter_map(|bytes| splitter.push(bytes)).collect();
        pieces.extend(splitter.finish());
        pieces
    }

    #[test]
    fn output_is_split_between_characters_and_without_its_last_line_feeds() {
        assert_eq!(split(&[b"hello\n", b"world\n\n"]), ["hello", "\nworld"]);
        assert_eq!(split(&["ä€😀".as_bytes()]), ["ä€😀"]);
        for cut in 0.."ä€😀".len() {
            let (first, second) = "ä€😀".as_bytes().split_at(cut);
            assert_eq!(split(&[first, second]).concat(), "ä€😀", "{cut}");
        }
        assert_eq!(split(&[b"a\xffb\xc3"]), ["a\u{fffd}b", "\u{fffd}"]);
        assert_eq!(split(&[b"\n"]), [""; 0]);
        let marked = "\u{feff}a\u{feff}\n".as_bytes();
        for cut in 0..marked.len() {
            let (first, second) = marked.split_at(cut);
            assert_eq!(split(&[first, second]).concat(), "a\u{feff}", "{cut}");
        }
        assert_eq!(split(&["\u{feff}\r\n".as_bytes()]), [""; 0]);
        let mut splitter = Splitter::default();
        let blank = (0..100).filter_map(|_| splitter.push(&[b'\n'; 4096])).collect::<String>();
        assert!(blank.len() > 200_000, "line feeds do not pile up");
    }

    #[test]
    fn exit_codes_have_their_meaning() {
        use std::os::unix::process::ExitStatusExt as _;
        let status = |code: i32| failure(ExitStatus::from_raw(code << 8), &ExecOptions::default());
        assert_eq!(status(0), None);
        assert_eq!(status(3).unwrap(), "exit code 3");
        assert!(status(137).unwrap().starts_with("ended by signal 9"));
        let killed = failure(ExitStatus::from_raw(15), &ExecOptions::default());
        assert_eq!(killed.unwrap(), "ended by signal 15");
    }
}
