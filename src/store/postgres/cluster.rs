//! Access of operators without joining the other servers: an overview of the replicas, and the end of what a stuck one runs.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::{
    Error, Options, Postgres, TaskKey, Unavailable,
    commit::UNREAD,
    connection::Connection,
    shared::NEXT_FENCE,
    values::{signed, task_row, unsigned},
    wake::Wakes,
};
use crate::store::{Note, ReplicaId};

/// Reads the replicas that are not dead or whose tasks were not claimed yet, and what waits for a replica. Times without an offset are
/// seconds, by the clock of the database.
const OVERVIEW: &str = r#"SELECT json_build_object(
    'replicas', (SELECT coalesce(json_agg(r), '[]') FROM (
        SELECT r.id, r.name, r.version, to_char(r.started AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS started,
            extract(epoch FROM clock_timestamp() - r.seen)::int8 AS seen_seconds, r.turns, r.free_turns,
            CASE WHEN r.dead THEN 'dead' WHEN r.draining THEN 'draining' ELSE 'alive' END AS state,
            (SELECT count(*) FROM @task t WHERE t.runner = r.id) AS tasks
        FROM @replica r WHERE NOT r.dead OR EXISTS (SELECT 1 FROM @task t WHERE t.runner = r.id) ORDER BY r.id) r),
    'free_tasks', (SELECT count(*) FROM @task WHERE runner IS NULL AND open),
    'oldest_free_seconds', (SELECT extract(epoch FROM clock_timestamp())::int8 - min("time") / 1000
        FROM @task WHERE runner IS NULL AND open),
    'unread_mail', (SELECT count(*) FROM @inbox WHERE error IS NULL),
    'oldest_mail_seconds', (SELECT extract(epoch FROM clock_timestamp() - min(at))::int8 FROM @inbox WHERE error IS NULL),
    'push_lag_seconds', (SELECT extract(epoch FROM clock_timestamp())::int8 - min(pending) / 1000
        FROM @push WHERE due IS NOT NULL)
)::text AS overview"#;

impl Postgres {
    /// Connects to a database with an existing schema, without becoming a replica.
    ///
    /// # Errors
    /// The URL is invalid, the database can't be reached, or the schema does not exist.
    pub(crate) async fn open_for_operator(url: &str, options: &Options) -> Result<Self, Error> {
        let (settings, connection) = Self::connect(url, options).await?;
        connection.query_row("SELECT version FROM @meta", &[]).await?;
        let (control, (id, replica)) = (Arc::new(connection), watch::channel(0));
        let wakes = Wakes::new(&settings.schema, false, None, Arc::clone(&control), replica);
        Ok(Self::new(options, id, 0, wakes, &control, |_| Connection::clone(&control)))
    }

    /// Returns the replicas, and what waits for one, as an object of JSON.
    pub(crate) async fn overview(&self) -> Result<Value, Unavailable> {
        let row = self.background.query_row(OVERVIEW, &[]).await?;
        let text: Option<String> = row.map(|row| row.try_get("overview")).transpose()?;
        serde_json::from_str(&text.unwrap_or_default()).map_err(|error| Unavailable(error.to_string()))
    }

    /// Ends the ownership of a task by its runner, whose commits are refused from now on: an open task can be claimed. Returns the
    /// runner. `None` if there was none, or if only its mail keeps the task, which another replica would not find.
    pub(crate) async fn release_task(&self, key: &TaskKey) -> Result<Option<ReplicaId>, Unavailable> {
        let sql = format!(
            "WITH o AS MATERIALIZED (SELECT tid, runner FROM @task WHERE tid = $1 AND runner IS NOT NULL FOR UPDATE)
            UPDATE @task t SET runner = NULL, fence = {NEXT_FENCE}
            FROM o WHERE t.tid = o.tid AND (t.open OR NOT {UNREAD}) RETURNING o.runner"
        );
        let Some(row) = self.control.query_row(&sql, &[&task_row(key)]).await? else { return Ok(None) };
        let runner = ReplicaId(unsigned(&row, "runner")?);
        self.wakes.send_now(&self.control, runner, &Note::Progress(key.clone())).await;
        Ok(Some(runner))
    }

    /// Declares a replica dead, whatever its lease: its commits are refused, and its tasks can be claimed. Returns false if it was dead,
    /// or does not exist.
    pub(crate) async fn bury_replica(&self, id: u64) -> Result<bool, Unavailable> {
        let sql = "UPDATE @replica SET dead = true WHERE id = $1 AND NOT dead RETURNING id";
        Ok(self.control.query_row(sql, &[&signed(id)]).await?.is_some())
    }
}
