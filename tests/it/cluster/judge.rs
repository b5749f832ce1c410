//! Judgement of a run, by the rows of the database and what clients have seen.

use std::{collections::HashMap, time::SystemTime};

use a2a_service::{
    event::Ends,
    pb::v1::{Message, TaskState},
};

use super::{
    Cluster,
    chaos::{Disturbance, Timeline, seconds},
};
use crate::{history::StoreContents, scenarios::status_text, workload::Position};

/// Tables in which triggers record takeovers and burials. The process of each replica is that in the name of its connections. A
/// takeover is a change of the runner, or another attempt.
pub(super) const TABLES: &str = "
    ALTER TABLE @replica ADD COLUMN process text DEFAULT current_setting('application_name');
    CREATE TABLE @takeover(at timestamptz DEFAULT clock_timestamp(), tid uuid, old bigint, new bigint, attempts int, was_dead bool);
    CREATE FUNCTION @record_takeover() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO @takeover(tid, old, new, attempts, was_dead) SELECT NEW.tid, OLD.runner, NEW.runner, NEW.attempt - OLD.attempt,
            NOT EXISTS (SELECT 1 FROM @replica WHERE id = OLD.runner AND NOT dead);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record_takeover AFTER UPDATE ON @task FOR EACH ROW
        WHEN (OLD.runner IS NOT NULL AND (NEW.runner <> OLD.runner OR NEW.attempt > OLD.attempt AND OLD.attempt > 0))
        EXECUTE FUNCTION @record_takeover();
    CREATE TABLE @burial(at timestamptz DEFAULT clock_timestamp(), id bigint);
    CREATE FUNCTION @record_burial() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO @burial(id) VALUES(NEW.id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record_burial AFTER UPDATE ON @replica FOR EACH ROW WHEN (NEW.dead AND NOT OLD.dead)
        EXECUTE FUNCTION @record_burial();";

/// Checks the rows of a database at rest.
pub(super) async fn check_rows(cluster: &Cluster, timeline: &Timeline, errors: &mut Vec<String>) {
    for (what, rows) in [
        ("tasks have a runner", "@task WHERE runner IS NOT NULL"),
        ("tasks are open", "@task WHERE open"),
        ("mails are unread", "@inbox WHERE error IS NULL"),
        (
            "deliveries are not due and lack events",
            "@push p JOIN @task t USING (tid) WHERE due IS NULL AND p.dead IS NULL AND cursor < t.seq",
        ),
    ] {
        let count = cluster.count(&format!("SELECT count(*) FROM {rows}")).await;
        if count > 0 {
            errors.push(format!("at rest, {count} {what}"));
        }
    }
    let burials =
        "SELECT process, extract(epoch FROM seen), extract(epoch FROM at) FROM @burial JOIN @replica USING (id)
        WHERE process LIKE 'server-%'";
    for row in cluster.sql(burials).await {
        if timeline.since_cause(&row).is_none() {
            errors.push(format!("a server was declared dead, but nothing had happened to it: {row:?}"));
        }
    }
}

/// Returns the number and times of takeovers, from the disturbance of the earlier runner.
pub(super) async fn takeovers(
    cluster: &Cluster,
    timeline: &Timeline,
    errors: &mut Vec<String>,
) -> Vec<(&'static str, String)> {
    let sql = "SELECT process, extract(epoch FROM seen), extract(epoch FROM at), old = new, was_dead, attempts, tid FROM @takeover
        JOIN @replica ON id = old";
    let (mut times, mut again) = (Vec::new(), 0);
    for row in cluster.sql(sql).await {
        match (&*row[3], &*row[4]) {
            (_, "t") => times.extend(timeline.since_cause(&row)),
            // A claim or an acquisition without a response is repeated: the database or its connections must have failed.
            ("t", _) if timeline.has_failed_before(row[2].parse().unwrap()) => again += 1,
            _ => errors.push(format!("a task has got another runner or attempt while its runner was alive: {row:?}")),
        }
    }
    times.sort_by(f64::total_cmp);
    let time = |time: Option<&f64>| time.map_or("–".to_owned(), |time| format!("{time:.1} s"));
    vec![
        ("takeovers of tasks", times.len().to_string()),
        ("median of their times", time(times.get(times.len() / 2))),
        ("maximum", time(times.last())),
        ("repeated claims", again.to_string()),
    ]
}

impl Timeline {
    /// Returns the seconds from the disturbance that made a replica fail to what happened then. The row has the name of its
    /// connections, and the times of its last renewal and of what happened.
    fn since_cause(&self, row: &[String]) -> Option<f64> {
        let server: usize = row[0].trim_start_matches("server-").parse().unwrap();
        let [seen, at]: [f64; 2] = [&row[1], &row[2]].map(|time| time.parse().unwrap());
        let all = self.all.lock();
        let later =
            all.iter().filter(|disturbed| disturbed.server == Some(server) && seconds(disturbed.begin) > seen - 0.5);
        later.map(|disturbed| at - seconds(disturbed.begin)).max_by(f64::total_cmp).filter(|since| *since > 0.0)
    }

    /// Returns whether a server was disturbed at a time, or shortly before.
    pub(super) fn is_disturbed(&self, at: SystemTime) -> bool {
        let is_over = |it: &Disturbance| it.end.is_some_and(|end| seconds(at) - seconds(end) > 5.0);
        self.all.lock().iter().any(|it| it.server.is_some() && it.begin <= at && !is_over(it))
    }

    /// Returns whether the database, or a connection to it, failed shortly before a time.
    fn has_failed_before(&self, at: f64) -> bool {
        let is_recent = |it: &Disturbance| seconds(it.begin) <= at && it.end.is_none_or(|end| at - seconds(end) < 40.0);
        self.all.lock().iter().any(|it| it.kind != "killed" && is_recent(it))
    }
}

/// Checks the tasks at rest: how they have ended, and that no message waits for a turn.
pub(super) fn check_tasks(contents: &StoreContents, is_resumable: bool, errors: &mut Vec<String>) {
    for (id, logged) in &contents.tasks {
        let (task, asked) = (&logged.task, logged.task.history.first().map(Message::text).unwrap_or_default());
        let reason = status_text(task);
        let is_expected = if task.state() == TaskState::Failed {
            asked.starts_with("/fail")
                || reason.starts_with("The server stopped ") && (is_crashed(&reason) || !is_resumable)
        } else {
            task.state() != TaskState::Canceled || asked.starts_with("/slow")
        };
        if !is_expected {
            errors.push(format!("{id} has ended unexpectedly: {task:?}"));
        }
        if task.state().is_interrupted() && logged.log.last().is_none_or(|event| event.ends() == Ends::Nothing) {
            errors.push(format!("{id}: a message has no turn: {task:?}"));
        }
    }
}

/// Returns whether the turn was interrupted too often.
fn is_crashed(reason: &str) -> bool {
    reason.contains(" times while ")
}

/// Checks that no client reads a task in an older state than one it has seen before.
pub(super) fn check_seen(contents: &StoreContents, seen: &[(usize, String, Position)], errors: &mut Vec<String>) {
    let mut newest: HashMap<(usize, &str), u64> = HashMap::new();
    for (client, id, position) in seen {
        let Some(logged) = contents.tasks.get(id) else {
            errors.push(format!("client {client} has seen the task {id}, which does not exist"));
            continue;
        };
        let newest = newest.entry((*client, id)).or_default();
        let first = match position {
            Position::Event(seq) => *seq,
            // The history has those that the log never yields.
            Position::Read(task) => {
                let Some((first, last)) = logged.positions(task) else { continue };
                if last < *newest {
                    errors.push(format!("client {client} has seen event {newest} of {id}, but reads {task:?}"));
                }
                first
            }
        };
        *newest = first.max(*newest);
    }
}
