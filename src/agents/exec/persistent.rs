//! Command that keeps running and gets all turns: one process, whose events name their turn.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::mpsc,
    time::timeout,
};

use super::{Process, Runner, failure};
use crate::{
    agents::{
        files::{PREFIX, TurnFiles},
        turn_json::{AgentEvent, EventSink, Level, Line, LogLimit, Received, TurnLine, log, read_line, redacted},
    },
    base::{redaction::Secrets, sources::Ids},
    engine::agent::{End, Error, Stopped, Turn, Updates},
};

/// Number of events of a turn, and of lines for the command, that wait to be taken.
const QUEUED: usize = 64;

/// Maximum length of a line of the command in bytes.
const MAX_LINE: usize = 16 << 20;

/// Time in which a turn has to take an event.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Time in which a command ends, and its stderr, after one of its other streams.
const END_DELAY: Duration = Duration::from_millis(500);

/// Senders to the turns that are running, by their id.
type Turns = Arc<Mutex<HashMap<String, mpsc::Sender<Result<AgentEvent, Error>>>>>;

/// Persistent command. It is started with the first turn, and again with the first turn after its end.
pub(super) struct Persistent {
    runner: Arc<Runner>,
    running: Mutex<Option<Running>>,
    next_id: AtomicU64,
    /// Beginning of the names of the directories of its turns, which those of other commands do not have.
    prefix: String,
}

/// Process of a persistent command.
#[derive(Clone)]
struct Running {
    lines: mpsc::Sender<Vec<u8>>,
    turns: Turns,
    /// Error of the process that has ended.
    error: Arc<OnceLock<String>>,
}

impl Persistent {
    pub(super) fn new(runner: Arc<Runner>) -> Self {
        let prefix = format!("{PREFIX}{}-", Ids::default().time_ordered());
        Self { runner, running: Mutex::new(None), next_id: AtomicU64::new(1), prefix }
    }

    /// Sends a turn to the command, and applies its events until one ends the turn.
    pub(super) async fn run(&self, turn: &Turn, out: &Updates) -> Result<End, Error> {
        let options = &self.runner.options;
        let files = TurnFiles::create(turn, &self.prefix).await?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed).to_string();
        let (span, line) = (self.runner.span(), TurnLine::new(turn, &id, &files.paths, Some(&files.output)));
        let line = line.traced(span.header().as_deref()).to_line()?;
        let running = self.running()?;
        let (sender, mut events) = mpsc::channel(QUEUED);
        running.turns.lock().insert(id.clone(), sender);
        let mut registration = Registration { running: running.clone(), id: id.clone(), is_announced: false };
        // What the command has written may belong to another caller.
        let ended = || {
            let cause = running.error.get().map_or("its end is not known yet", String::as_str);
            Error::public("The command ended before the end of the turn.").caused_by(cause)
        };
        running.lines.send(line).await.map_err(|_| ended())?;
        registration.is_announced = true;
        let mut sink = EventSink::new(out, turn.task_id(), Arc::clone(&self.runner.secrets));
        let mut is_canceled = false;
        loop {
            let event = tokio::select! {
                event = events.recv() => event.ok_or_else(ended)??,
                () = turn.canceled(), if !is_canceled => {
                    (is_canceled, registration.is_announced) = (true, false);
                    let cancel = serde_json::json!({"type": "cancel", "turn": id, "metadata": turn.cancel_metadata()});
                    running.lines.send(format!("{cancel}\n").into_bytes()).await.map_err(|_| ended())?;
                    continue;
                }
            };
            if is_canceled {
                // The task accepts no more updates. Until the end of the grace period, the turn may end by itself.
                if event.ends_turn() {
                    return Err(Stopped.into());
                }
                continue;
            }
            let applied = match sink.apply(event).await {
                // An update fails if the task is canceled meanwhile. The cancel is sent to the command next.
                Err(_) if turn.is_canceled() => continue,
                applied => applied?,
            };
            if let Some(end) = applied {
                registration.is_announced = false;
                files.send(out, options.output_bytes).await?;
                return end;
            }
        }
    }

    /// Returns the process, which is started if there is none.
    fn running(&self) -> Result<Running, Error> {
        let mut running = self.running.lock();
        if let Some(running) = running.as_ref().filter(|running| !running.lines.is_closed()) {
            return Ok(running.clone());
        }
        let mut command = self.runner.command(&std::env::temp_dir().join(&self.prefix));
        let mut process = self.runner.start(&mut command)?;
        let (sender, lines) = mpsc::channel(QUEUED);
        let turns = Turns::default();
        let started = Running { lines: sender, turns: Arc::clone(&turns), error: Arc::default() };
        *running = Some(started.clone());
        let (error, runner) = (Arc::clone(&started.error), Arc::clone(&self.runner));
        tokio::spawn(async move {
            let stdin = process.stdin.take();
            let Process { child, stdout, stderr, .. } = &mut process;
            let is_killed = tokio::select! {
                () = write_lines(stdin, lines) => false,
                result = route_events(stdout, &turns, &runner.secrets) => {
                    if let Err(error) = &result {
                        tracing::error!(error.cause = %error, "persistent command killed");
                    }
                    result.is_err()
                }
                // The command may close stderr.
                () = async {
                    stderr.log("").await;
                    std::future::pending::<()>().await;
                } => false,
                _ = child.wait() => false,
            };
            // A command that has only closed its streams is killed when the process is dropped.
            let end = async { tokio::join!(stderr.log(""), child.wait()) };
            if !is_killed && let Ok(((), Ok(status))) = timeout(END_DELAY, end).await {
                process.has_ended = true;
                let how = failure(status, &runner.options).unwrap_or_else(|| "exit code 0".to_owned());
                let cause = runner.ended(status).unwrap_or_else(|| process.stderr.error(&how));
                tracing::warn!(%status, error.cause = cause, "persistent command ended");
                // Nothing else sets it.
                _ = error.set(cause);
            }
            // The turns that have not ended fail.
            turns.lock().clear();
        });
        Ok(started)
    }
}

/// Registration of a turn for its events, until it is dropped.
struct Registration {
    running: Running,
    id: String,
    /// The command has the turn, and knows of no end.
    is_announced: bool,
}

impl Drop for Registration {
    /// Announces to the command a turn that the server has ended, such as by a time limit.
    fn drop(&mut self) {
        self.running.turns.lock().remove(&self.id);
        if self.is_announced {
            let cancel = serde_json::json!({"type": "cancel", "turn": self.id});
            // A command that does not read misses it.
            _ = self.running.lines.try_send(format!("{cancel}\n").into_bytes());
        }
    }
}

/// Writes lines to the command, until it does not read any more or the agent is dropped.
async fn write_lines(stdin: Option<ChildStdin>, mut lines: mpsc::Receiver<Vec<u8>>) {
    let Some(mut stdin) = stdin else { return };
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

/// Sends each event to its turn. Events of turns that have ended are dropped, and lines that are no JSON objects are logged. A turn
/// that does not take its events, because its task waits for the store or for memory, delays the others for at most [`MAX_DELAY`],
/// and then fails.
async fn route_events(stdout: &mut BufReader<ChildStdout>, turns: &Turns, secrets: &Secrets) -> Result<(), Error> {
    let mut limit = LogLimit::default();
    while let Some(line) = read_line(stdout, MAX_LINE).await? {
        let Line::Whole(line) = line else {
            return Err(Error::internal(format!("a line of the command exceeds {MAX_LINE} bytes")));
        };
        let line = Bytes::from(line);
        let events = match Received::decode(line.clone()).await.map_err(|error| redacted(error, secrets)) {
            Ok(Received::Output(text, _)) => {
                limit.log(&secrets.redact(&text), |line| log("", Level::Info, line), |why| tracing::warn!("{why}"));
                continue;
            }
            Ok(Received::Events(events)) => events.into_iter().map(|event| (event.turn.clone(), Ok(event))).collect(),
            // Without the id of its turn, the turn that misses the event is not known: all fail.
            Err(error) => match serde_json::from_slice(&line) {
                Ok(TurnId { turn }) => vec![(Some(turn), Err(error))],
                Err(_) => return Err(error),
            },
        };
        for (id, event) in events {
            let id = id.ok_or_else(|| Error::internal("an event of a persistent command has no turn"))?;
            let sender = turns.lock().get(&id).cloned();
            if let Some(sender) = sender {
                // Fails if the turn has ended.
                if timeout(MAX_DELAY, sender.send(event)).await.is_err() {
                    turns.lock().remove(&id);
                }
            }
        }
    }
    Ok(())
}

/// Id of the turn of an object that is not an event.
#[derive(Deserialize)]
struct TurnId {
    turn: String,
}
