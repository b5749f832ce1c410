//! Judgement of a simulation: compares what clients have seen, and what the agents have run, with the store.

use std::collections::BTreeMap;

use a2a_service::{
    event::Cursor,
    pb::v1::{Role, TaskState, stream_response::Payload},
};

use super::{
    REST, SERVERS,
    monitor::Monitor,
    record::{Run, Seen, task_of},
    schedule::Schedule,
    server::answer_to,
};
use crate::history::{Line, Logged, StoreContents};

/// Returns the contradictions.
pub(super) fn judge(contents: &StoreContents, seen: &Seen, schedule: &Schedule, monitor: &Monitor) -> Vec<String> {
    let mut errors = seen.errors.clone();
    errors.extend(contents.check(&seen.lines));
    check_messages(contents, seen, &mut errors);
    check_reads(contents, seen, &mut errors);
    check_runs(&seen.runs, schedule, &mut errors);
    for (id, Logged { task, .. }) in &contents.tasks {
        if task.state() == TaskState::Failed && !is_excused(id, seen, schedule, monitor) {
            errors.push(format!("{id} has failed without a disturbance of its runner: {task:?}"));
        }
        if task.state() == TaskState::Canceled && !seen.cancels.contains(id) {
            errors.push(format!("{id} is canceled without a request: {task:?}"));
        }
    }
    errors
}

/// Returns whether a task may have failed, since its runner was disturbed. The agent itself never fails.
fn is_excused(task: &str, seen: &Seen, schedule: &Schedule, monitor: &Monitor) -> bool {
    let until = monitor.ended(task).unwrap_or(REST);
    let mut runs = seen.runs.iter().filter(|run| run.task == task).peekable();
    if runs.peek().is_none() {
        return (0..SERVERS).any(|server| schedule.excuses(server, 0, until));
    }
    runs.any(|run| schedule.excuses(run.server, run.time, until))
}

/// Each accepted message is in a log, with an answer or the end of its task. A message that was not recorded is in none.
fn check_messages(contents: &StoreContents, seen: &Seen, errors: &mut Vec<String>) {
    let mut logged = BTreeMap::new();
    for (id, Logged { task, .. }) in &contents.tasks {
        for message in task.history.iter().filter(|message| message.role() == Role::User) {
            logged.insert(message.message_id.clone(), id);
            let answer = answer_to(&message.message_id);
            let is_answered = task.artifacts.iter().any(|artifact| artifact.artifact_id == answer);
            if !is_answered && !task.state().is_terminal() {
                errors.push(format!("{id} has no answer to {}: {task:?}", message.message_id));
            }
        }
    }
    for (id, sent) in &seen.sends {
        match logged.get(id) {
            None if sent.accepted => errors.push(format!("the accepted message {id} is in no task")),
            Some(task) if !sent.accepted && !sent.unknown => {
                errors.push(format!("{task} has message {id}, whose sender was told that nothing was recorded"));
            }
            None | Some(_) => {}
        }
    }
}

/// Reads of a client do not go back.
fn check_reads(contents: &StoreContents, seen: &Seen, errors: &mut Vec<String>) {
    // By client and task: lines, each with the greatest position up to there.
    let mut known = BTreeMap::<(usize, &str), Vec<(usize, u64)>>::new();
    for read in &seen.reads {
        let (id, (first, last)) = match &seen.lines[read.line] {
            Line::Reply { task, .. } => {
                let Some(range) = contents.tasks.get(&task.id).and_then(|logged| logged.positions(task)) else {
                    continue;
                };
                (task.id.as_str(), range)
            }
            Line::Event { cursor, event, .. } => {
                let Some(id) = event.payload.as_ref().and_then(task_of) else { continue };
                let seq = cursor
                    .as_deref()
                    .and_then(Cursor::from_text)
                    .and_then(|cursor| cursor.parts().map(|(_, at)| at.seq));
                match (seq, &event.payload, contents.tasks.get(id)) {
                    (Some(seq), ..) => (id, (seq, seq)),
                    (None, Some(Payload::Task(task)), Some(logged)) => {
                        let Some(range) = logged.positions(task) else { continue };
                        (id, range)
                    }
                    _ => continue,
                }
            }
            Line::Stream { .. } | Line::End { .. } => continue,
        };
        let earlier = known.entry((read.client, id)).or_default();
        let before = earlier.iter().rev().find(|(line, _)| *line < read.started).map_or(0, |(_, position)| *position);
        if last < before && !read.is_continued {
            let (line, client) = (&seen.lines[read.line], read.client);
            errors.push(format!("client {client} has seen event {before} of {id}, but reads {line:?}"));
        }
        let greatest = earlier.last().map_or(0, |(_, position)| *position).max(first);
        earlier.push((read.line, greatest));
    }
}

/// Each attempt of a turn has a greater fence than the one before, and a reason.
fn check_runs(runs: &[Run], schedule: &Schedule, errors: &mut Vec<String>) {
    let mut last = BTreeMap::<(&str, &str), &Run>::new();
    for run in runs {
        let Some(before) = last.insert((&run.task, &run.message), run) else { continue };
        let (task, message) = (&run.task, &run.message);
        if before.fence >= run.fence {
            errors.push(format!("{task}: two attempts at {message} have the fence {}", run.fence));
        }
        if !schedule.excuses(before.server, before.time, run.time) {
            let (server, time, attempt) = (before.server, before.time, run.attempt);
            errors.push(format!(
                "{task}: attempt {attempt} at {message} without a disturbance of server {server}, which ran it at {time}"
            ));
        }
    }
}

/// Returns the number of events of all logs.
pub(super) fn count_events(contents: &StoreContents) -> usize {
    contents.tasks.values().map(|Logged { log, .. }| log.len()).sum()
}
