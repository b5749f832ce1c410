//! `a2a admin show --timeline` and `a2a admin error`: what happened to a task and when, and the task of an error id.

use std::{fmt::Write as _, path::Path};

use clap::Args;
use serde_json::{Value, json};

use super::{NotFound, Output, push};
use crate::{
    base::{
        clock::{Clock, Millis},
        trace::TraceContext,
    },
    cli::{
        Usage,
        show::{self, safe},
        time,
    },
    protocol::{
        event::{Ends, Event},
        pb::v1::{Message, stream_response::Payload},
    },
    store::{Delivery, InspectedTask, LoggedEvent, TaskFilter, TurnRecord, sqlite::Inspector, turn_record::time_of},
};

/// Number of events that are read at once.
const PAGE: usize = 1000;

/// Maximum width of a line in columns.
const COLUMNS: usize = 100;

/// Arguments of `a2a admin error`.
#[derive(Debug, Args)]
pub(super) struct ErrorId {
    /// Error id, as the client got it: `errorId` in the metadata of the status message, or in the error of a call.
    id: String,
}

/// Prints the timeline of a task. `json` has its summary.
pub(super) fn show(
    inspector: &Inspector,
    path: &Path,
    found: &InspectedTask,
    mut json: Value,
    out: &Output<'_>,
) -> anyhow::Result<()> {
    let task = &found.summary;
    let mut events = Vec::new();
    while let page = inspector.events(task.number, events.last().map_or(0, seq), PAGE)?
        && !page.is_empty()
    {
        events.extend(page);
    }
    let now = Clock::default().millis();
    let pushes = if task.push_configs == 0 { Vec::new() } else { push::of_task(path, task)? };
    out.print(
        || {
            json["events"] = events.iter().map(event_json).collect();
            json["turns"] = found.turns.iter().map(TurnRecord::to_json).collect();
            json["push"] = pushes.iter().map(|delivery| push::to_json(delivery, now)).collect();
            json
        },
        || Timeline::new(found, &events).text(&events, &pushes),
    )
}

fn seq(event: &LoggedEvent) -> u64 {
    event.event.seq()
}

fn event_json(LoggedEvent { event, time: at }: &LoggedEvent) -> Value {
    let ends = match event.ends() {
        Ends::Nothing => Value::Null,
        Ends::Turn => "turn".into(),
        Ends::Task => "task".into(),
    };
    json!({
        "seq": event.seq(),
        "fence": event.position().fence,
        "time": at.map(time),
        "hidden": event.mark().hidden,
        "ends": ends,
        "bytes": event.proto_len(),
        "event": event.response(),
    })
}

/// Lines of a timeline, each with its time.
struct Timeline<'a> {
    /// Time to which the others relate: that of the creation, if it is known.
    start: Millis,
    turns: &'a [TurnRecord],
    owner: &'a str,
    lines: Vec<(Millis, String)>,
    /// Artifact of the last events.
    chunks: Option<Chunks>,
    /// Attempts whose begin, or whose end, has no line yet.
    begins: Vec<&'a TurnRecord>,
    ends: Vec<&'a TurnRecord>,
    /// Start of the server in which the last attempt began.
    fence: u64,
    /// Number of turns that have ended.
    ended: u32,
}

/// Chunks of an artifact that follow each other.
struct Chunks {
    id: String,
    name: String,
    count: usize,
    commits: usize,
    first: Millis,
    last: Millis,
}

impl<'a> Timeline<'a> {
    fn new(InspectedTask { summary, turns, .. }: &'a InspectedTask, events: &[LoggedEvent]) -> Self {
        let first = events.iter().find_map(|event| event.time).or(turns.first().map(|turn| turn.accepted));
        Self {
            start: summary.created.or(first).unwrap_or(summary.time),
            turns,
            owner: &summary.owner,
            lines: Vec::new(),
            chunks: None,
            begins: turns.iter().filter(|turn| turn.begun.is_some() || turn.outcome.is_none()).collect(),
            ends: turns.iter().filter(|turn| turn.outcome.is_some()).collect(),
            fence: turns.first().map_or(0, |turn| turn.fence),
            ended: 0,
        }
    }

    /// Formats the timeline, of events and of what the log does not have.
    fn text(mut self, events: &[LoggedEvent], pushes: &[Delivery]) -> String {
        let mut now = self.start;
        for LoggedEvent { event, time } in events {
            let (is_commit, fence) = (time.is_some_and(|time| time != now), event.position().fence);
            now = time.unwrap_or(now);
            self.begin_turns(|turn| turn.attempt > 1 && turn.fence <= fence);
            self.event(event, now, is_commit);
            self.begin_turns(|turn| turn.attempt == 1 && turn.message == event.seq());
            if event.ends() != Ends::Nothing {
                self.ended += 1;
                let number = self.ended;
                self.end_turns(now, |turn| turn.number == number);
            }
        }
        self.end_chunks();
        // Without the log, or with a part of it.
        self.begin_turns(|_| true);
        self.end_turns(self.start, |_| true);
        for Delivery { config, seq, state, .. } in pushes {
            let failed =
                if state.attempts > 0 { format!(", {} failed attempts", state.attempts) } else { String::new() };
            let (url, name) = (push::shown_url(&config.config.url), state.name(*seq));
            self.add(Millis::MAX, "push", &format!("{url}: {name}, event {} of {seq}{failed}", state.cursor));
        }
        // Stable: lines of one millisecond keep the order of the log.
        self.lines.sort_by_key(|(time, _)| *time);
        let mut text = String::new();
        for (time, line) in &self.lines {
            let millis = time.saturating_sub(self.start).max(0);
            let time = if *time == Millis::MAX { String::new() } else { format!("+{}", seconds(millis)) };
            for (n, line) in line.lines().enumerate() {
                let time = if n == 0 { &*time } else { "" };
                _ = writeln!(text, "{}", show::cut(format!("{time:<9} {line}").trim_end(), COLUMNS));
            }
        }
        text
    }

    /// Adds the begins of attempts.
    fn begin_turns(&mut self, is_due: impl Fn(&TurnRecord) -> bool) {
        let due: Vec<_> = self.begins.extract_if(.., |turn| is_due(turn)).collect();
        for turn in due {
            self.end_chunks();
            if turn.fence != self.fence {
                self.fence = turn.fence;
                self.add(turn.accepted, "restart", &format!("start {} of the server", turn.fence));
            }
            let text = format!("attempt {}, start {} of the server", turn.attempt, turn.fence);
            self.add(turn.begun.unwrap_or(turn.accepted), &format!("turn {}", turn.number), &text);
        }
    }

    /// Adds the ends of turns, whose last event was committed at this time.
    fn end_turns(&mut self, committed: Millis, is_due: impl Fn(&TurnRecord) -> bool) {
        let due: Vec<_> = self.ends.extract_if(.., |turn| is_due(turn)).collect();
        for turn in due {
            let text = format!("{}{}", turn.outcome.unwrap_or_default(), numbers(turn));
            self.add(turn.ended.unwrap_or(committed).max(committed), &format!("turn {}", turn.number), &text);
        }
    }

    fn add(&mut self, time: Millis, what: &str, text: &str) {
        let indented = safe(text).replace('\n', &format!("\n{:<15}", ""));
        self.lines.push((time, format!("{:<14} {indented}", safe(what))));
    }

    fn event(&mut self, event: &Event, now: Millis, is_commit: bool) {
        if let Some(Payload::ArtifactUpdate(update)) = event.payload() {
            let (id, name) = update.artifact.as_ref().map(|new| (&*new.artifact_id, &*new.name)).unwrap_or_default();
            if self.chunks.as_ref().is_none_or(|chunks| chunks.id != id) {
                self.end_chunks();
                let (id, name) = (id.to_owned(), if name.is_empty() { id } else { name }.to_owned());
                let chunks = Chunks { id, name, count: 0, commits: usize::from(!is_commit), first: now, last: now };
                self.chunks = Some(chunks);
            }
            if let Some(chunks) = &mut self.chunks {
                (chunks.count, chunks.commits, chunks.last) =
                    (chunks.count + 1, chunks.commits + usize::from(is_commit), now);
            }
            return;
        }
        self.end_chunks();
        match event.payload() {
            Some(Payload::Task(task)) => self.message(event, task.history.first(), now),
            Some(Payload::Message(message)) => self.message(event, Some(message), now),
            Some(Payload::StatusUpdate(update)) => {
                let status = update.status.clone().unwrap_or_default();
                let text = status.message.as_ref().map(Message::text).unwrap_or_default();
                let text = if text.is_empty() { text } else { format!("{text:?}") };
                let error = status.message.as_ref().and_then(|message| message.detail("errorId"));
                let error = error.map(|id| format!("\nerror {id}")).unwrap_or_default();
                self.add(now, show::state(status.state()), &format!("{text}{error}"));
            }
            Some(Payload::ArtifactUpdate(_)) | None => {}
        }
    }

    /// Adds the line of an artifact, once its chunks are counted.
    fn end_chunks(&mut self) {
        let Some(Chunks { name, count, commits, first, last, .. }) = self.chunks.take() else { return };
        let until = seconds(last.saturating_sub(self.start).max(0));
        let counted =
            if count > 1 { format!("  {count} chunks in {commits} commits .. +{until}") } else { String::new() };
        self.add(first, "artifact", &format!("{name}{counted}"));
    }

    /// Adds a message of the client, with what the record of its turn tells about the call.
    fn message(&mut self, event: &Event, message: Option<&Message>, now: Millis) {
        let mut text = message.map(|message| message.message_id.clone()).unwrap_or_default();
        let turn = self.turns.iter().find(|turn| turn.message == event.seq());
        let caller = turn.and_then(|turn| turn.caller.as_deref()).unwrap_or(self.owner);
        if !caller.is_empty() {
            _ = write!(text, " from {caller}");
        }
        if let Some(turn) = turn {
            let binding = turn.binding.map(|binding| format!(" over {}", binding.name())).unwrap_or_default();
            let version = turn.version.map(|version| format!(", {}", version.as_str())).unwrap_or_default();
            text += &(binding + &version);
            text.extend(turn.request_id.as_deref().map(|id| format!("\nrequest {id}")));
            text.extend(turn.trace.map(|trace| format!("\ntrace {}", TraceContext(trace).trace_id())));
        }
        self.add(turn.map_or(now, |turn| turn.accepted.min(now)), "message", &text);
    }
}

/// Formats milliseconds as seconds.
fn seconds(millis: Millis) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

/// Formats what a turn has used.
fn numbers(turn: &TurnRecord) -> String {
    let mut text =
        turn.reason.filter(|reason| *reason != "none").map(|reason| format!(" ({reason})")).unwrap_or_default();
    _ = write!(text, ", {} commits", turn.commits);
    if turn.tokens_in + turn.tokens_out > 0 {
        _ = write!(text, ", {} tokens in, {} out", turn.tokens_in, turn.tokens_out);
    }
    text.extend(turn.exit_code.map(|code| format!(", exit code {code}")));
    text
}

/// Runs `a2a admin error`.
pub(super) fn error(ErrorId { id }: &ErrorId, path: &Path, out: &Output<'_>) -> anyhow::Result<()> {
    let id = id.to_ascii_lowercase();
    let Some(at) = time_of(&id) else {
        return Err(Usage(format!(
            "{id}: not an error id, which is a UUID of version 7 such as the `errorId` of a task"
        ))
        .into());
    };
    let search = format!("journalctl -u a2a --since @{} -g {id}", at / 1000 - 60);
    let when = time(at);
    let when = when.as_str().unwrap_or_default();
    let inspector = Inspector::open(path)?;
    let filter = TaskFilter { error_id: Some(id.clone()), ..TaskFilter::default() };
    let Some(task) = inspector.tasks(&filter, 1)?.tasks.pop() else {
        let why = format!(
            "{}: no task has the error id {id}\nit is of {when}: of a call without a task, or of a deleted task",
            path.display()
        );
        return Err(NotFound(format!("{why}\n{search}")).into());
    };
    let turn = inspector.task(task.number)?.turns.pop().unwrap_or_default();
    let trace = turn.trace.map(|trace| TraceContext(trace).trace_id().to_string());
    let reason = turn.reason.unwrap_or("error");
    out.print(
        || {
            json!({
                "error_id": id, "time": when, "task": task.id, "owner": task.owner, "tenant": task.tenant,
                "state": task.state.as_str_name(), "reason": reason, "message": task.status_text,
                "turn": turn.to_json(), "trace": trace, "search": search,
            })
        },
        || {
            let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
            let lines = [
                ("Error:", id.clone()),
                ("Time:", when.to_owned()),
                ("Task:", task.id.clone()),
                ("Owner:", format!("{:?} in tenant {:?}", task.owner, task.tenant)),
                ("Reason:", reason.to_owned()),
                ("Message:", text(task.status_text.as_deref())),
                ("Turn:", format!("{}, attempt {}, start {} of the server", turn.number, turn.attempt, turn.fence)),
                ("Request:", text(turn.request_id.as_deref())),
                ("Trace:", text(trace.as_deref())),
                ("Cause:", search.clone()),
                ("More:", format!("a2a admin show {} --timeline", task.id)),
            ];
            let line = |(label, value): &(&str, String)| {
                let value = value.lines().next().unwrap_or_default();
                let is_command = matches!(*label, "Cause:" | "More:");
                let line = format!("{label:<9} {}", safe(value));
                if is_command { line + "\n" } else { format!("{}\n", show::cut(&line, COLUMNS)) }
            };
            lines.iter().map(line).collect()
        },
    )
}
