//! `a2a admin show --timeline` and `a2a admin error`: what happened to a task and when, and the task of an error id.

use std::{collections::BTreeSet, fmt::Write as _};

use clap::Args;
use serde_json::{Value, json};

use super::{NotFound, Output, Target, push, reader::Reader};
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
    store::{Delivery, InspectedTask, LoggedEvent, TaskFilter, TurnRecord, turn_record::time_of},
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

/// Prints the timeline of a task.
pub(super) fn show(reader: &Reader, found: &InspectedTask, out: &Output<'_>) -> anyhow::Result<()> {
    let task = &found.summary;
    let mut events = Vec::<LoggedEvent>::new();
    while let page = reader.events(task.number, events.last().map_or(0, |last| last.event.seq()), PAGE)?
        && !page.is_empty()
    {
        events.extend(page);
    }
    let now = Clock::default().millis();
    let pushes = if task.push_configs == 0 { Vec::new() } else { push::of_task(reader, task)? };
    out.print(
        || {
            let mut json = task.to_json();
            json["events"] = events.iter().map(event_json).collect();
            json["turns"] = found.turns.iter().map(TurnRecord::to_json).collect();
            json["push"] = pushes.iter().map(|delivery| push::to_json(delivery, now)).collect();
            json
        },
        || text(found, &events, &pushes),
    )
}

fn event_json(logged: &LoggedEvent) -> Value {
    let mut json = logged.to_json();
    json["event"] = json!(logged.event.response());
    json
}

/// Place of a line among those of one time: an event, and 0 before it, 1 for the event itself, or more after it.
type Place = (u64, u8);

/// Lines of a timeline: the time and the place of each, and its text.
struct Timeline {
    /// Time to which the others relate: that of the creation, if it is known.
    start: Millis,
    lines: Vec<(Millis, Place, String)>,
}

/// Formats a timeline: of events, and of what the log does not have.
fn text(found: &InspectedTask, events: &[LoggedEvent], pushes: &[Delivery]) -> String {
    let InspectedTask { summary, turns, .. } = found;
    let first = events.iter().find_map(|event| event.time).or(turns.first().map(|turn| turn.accepted));
    let mut timeline = Timeline { start: summary.created.or(first).unwrap_or(summary.time), lines: Vec::new() };
    let mut now = timeline.start;
    let timed = events.iter().map(|LoggedEvent { event, time, .. }| {
        now = time.unwrap_or(now);
        (now, event)
    });
    let timed: Vec<_> = timed.collect();
    timeline.add_events(&timed, events, found);
    timeline.add_turns(&timed, turns);
    for Delivery { config, seq, state, .. } in pushes {
        let failed = if state.attempts > 0 { format!(", {} failed attempts", state.attempts) } else { String::new() };
        let (url, name) = (push::shown_url(&config.config.url), state.name(*seq));
        let text = format!("{url}: {name}, event {} of {seq}{failed}", state.cursor);
        timeline.add(Millis::MAX, (u64::MAX, 0), "push", &text);
    }
    timeline.text()
}

impl Timeline {
    fn add(&mut self, time: Millis, place: Place, what: &str, text: &str) {
        let indented = safe(text).replace('\n', &format!("\n{:<15}", ""));
        self.lines.push((time, place, format!("{:<14} {indented}", safe(what))));
    }

    /// Adds the lines of events, one of chunks of an artifact that follow each other.
    fn add_events(&mut self, events: &[(Millis, &Event)], logged: &[LoggedEvent], found: &InspectedTask) {
        let chunk = |event: &Event| {
            let Payload::ArtifactUpdate(update) = event.payload()? else { return None };
            Some((update.artifact.clone()?.artifact_id, event.position().fence))
        };
        for chunks in events.chunk_by(|(_, a), (_, b)| chunk(a).is_some() && chunk(a) == chunk(b)) {
            let (time, event) = chunks[0];
            let (time, what, text) = match event.payload() {
                Some(Payload::Task(task)) => message(event, task.history.first(), time, found),
                Some(Payload::Message(new)) => message(event, Some(new), time, found),
                Some(Payload::StatusUpdate(update)) => {
                    let status = update.status.clone().unwrap_or_default();
                    let text = status.message.as_ref().map(Message::text).unwrap_or_default();
                    let text = if text.is_empty() { text } else { format!("{text:?}") };
                    let error = status.message.as_ref().and_then(|message| message.detail("errorId"));
                    let error = error.map(|id| format!("\nerror {id}")).unwrap_or_default();
                    (time, show::state(status.state()), text + &error)
                }
                Some(Payload::ArtifactUpdate(update)) => {
                    let names = update.artifact.as_ref().map(|new| [&*new.name, &*new.artifact_id]);
                    let name = names.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or_default();
                    let counted = if let [_, .., (last, _)] = chunks {
                        let all = logged.iter().skip_while(|other| other.event.seq() < event.seq()).take(chunks.len());
                        let commits: Option<BTreeSet<_>> = all.map(|logged| logged.commit).collect();
                        let commits =
                            commits.map(|commits| format!(" in {} commits", commits.len())).unwrap_or_default();
                        format!("  {} chunks{commits} .. +{}", chunks.len(), self.seconds(*last))
                    } else {
                        String::new()
                    };
                    (time, "artifact", name.to_owned() + &counted)
                }
                None => continue,
            };
            self.add(time, (event.seq(), 1), what, &text);
        }
    }

    /// Adds the begin and the end of each attempt at a turn, and the restarts of the server before them. A first attempt begins
    /// after its message, another one before the first event of its start of the server.
    fn add_turns(&mut self, events: &[(Millis, &Event)], turns: &[TurnRecord]) {
        let ends: Vec<_> = events.iter().filter(|(_, event)| event.ends() != Ends::Nothing).collect();
        let mut fence = turns.first().map_or(0, |turn| turn.fence);
        for turn in turns {
            let what = format!("turn {}", turn.number);
            if turn.begun.is_some() || turn.outcome.is_none() {
                let first = events.iter().find(|(_, event)| event.position().fence >= turn.fence);
                let place = match first {
                    _ if turn.attempt == 1 => (turn.message, 2),
                    Some((_, event)) => (event.seq(), 0),
                    None => (u64::MAX, 0),
                };
                let text = format!("start {} of the server", turn.fence);
                if std::mem::replace(&mut fence, turn.fence) != turn.fence {
                    self.add(turn.accepted, place, "restart", &text);
                }
                let text = format!("attempt {}, {text}", turn.attempt);
                self.add(turn.begun.unwrap_or(turn.accepted), place, &what, &text);
            }
            if let Some(outcome) = turn.outcome {
                let end = usize::try_from(turn.number).ok().and_then(|number| ends.get(number.checked_sub(1)?));
                let (committed, place) =
                    end.map_or((self.start, (u64::MAX, 0)), |(time, event)| (*time, (event.seq(), 3)));
                let text = format!("{outcome}{}", numbers(turn));
                self.add(turn.ended.unwrap_or(committed).max(committed), place, &what, &text);
            }
        }
    }

    /// Formats a time as seconds since the start.
    fn seconds(&self, time: Millis) -> String {
        let millis = time.saturating_sub(self.start).max(0);
        format!("{}.{:03}", millis / 1000, millis % 1000)
    }

    fn text(mut self) -> String {
        self.lines.sort_by_key(|(time, place, _)| (*time, *place));
        let mut text = String::new();
        for (time, _, line) in &self.lines {
            let mut time = if *time == Millis::MAX { String::new() } else { format!("+{}", self.seconds(*time)) };
            for line in line.lines() {
                _ = writeln!(text, "{}", show::cut(format!("{time:<9} {line}").trim_end(), COLUMNS));
                time.clear();
            }
        }
        text
    }
}

/// Returns the time, the name and the text of the line of a message, with what the record of its turn tells about the call.
fn message(
    event: &Event,
    message: Option<&Message>,
    now: Millis,
    found: &InspectedTask,
) -> (Millis, &'static str, String) {
    let mut text = message.map(|message| message.message_id.clone()).unwrap_or_default();
    let turn = found.turns.iter().find(|turn| turn.message == event.seq());
    let caller = turn.and_then(|turn| turn.caller.as_deref()).unwrap_or(&found.summary.owner);
    if !caller.is_empty() {
        _ = write!(text, " from {caller}");
    }
    let Some(turn) = turn else { return (now, "message", text) };
    text.extend(turn.binding.map(|binding| format!(" over {}", binding.name())));
    text.extend(turn.version.map(|version| format!(", {}", version.as_str())));
    text.extend(turn.request_id.as_deref().map(|id| format!("\nrequest {id}")));
    text.extend(turn.trace.map(|trace| format!("\ntrace {}", TraceContext(trace).trace_id())));
    (turn.accepted.min(now), "message", text)
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
pub(super) fn error(ErrorId { id }: &ErrorId, target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    let id = id.to_ascii_lowercase();
    let Some(at) = time_of(&id) else {
        let why = "not an error id, which is a UUID of version 7 such as the `errorId` of a task";
        return Err(Usage(format!("{id}: {why}")).into());
    };
    let search = format!("journalctl -u a2a --since @{} -g {id}", at / 1000 - 60);
    let in_file = format!("or: grep {id} FILE (the stderr of the server)");
    let when = time(at);
    let reader = Reader::open(target)?;
    let filter = TaskFilter { error_id: Some(id.clone()), ..TaskFilter::default() };
    let Some(task) = reader.tasks(&filter, 1)?.tasks.pop() else {
        let why = format!(
            "{}: no task has the error id {id}\nit is of {when}: of a call without a task, or of a deleted task",
            target.path.display()
        );
        return Err(NotFound(format!("{why}\n{search}\n{in_file}")).into());
    };
    let turn = reader.task(task.number)?.turns.pop().unwrap_or_default();
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
                ("Time:", when.clone()),
                ("Task:", task.id.clone()),
                ("Owner:", format!("{:?} in tenant {:?}", task.owner, task.tenant)),
                ("Reason:", reason.to_owned()),
                ("Message:", text(task.status_text.as_deref())),
                ("Turn:", format!("{}, attempt {}, start {} of the server", turn.number, turn.attempt, turn.fence)),
                ("Request:", text(turn.request_id.as_deref())),
                ("Trace:", text(trace.as_deref())),
                ("Cause:", search.clone()),
                ("", in_file),
                ("More:", format!("a2a admin show {} --timeline", task.id)),
            ];
            let line = |(label, value): &(&str, String)| {
                let value = safe(value.lines().next().unwrap_or_default());
                format!("{}\n", show::cut(&format!("{label:<9} {value}"), COLUMNS))
            };
            lines.iter().map(line).collect()
        },
    )
}
