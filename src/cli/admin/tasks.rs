//! `a2a admin list` and `a2a admin show`: the tasks of a database, of all owners.

use std::{fmt::Write as _, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::{NotFound, Output, Target, push::shown_url, reader::Reader, report, timeline};
use crate::{
    base::clock::{Clock, Millis},
    cli::show::{self, OutputFormat},
    protocol::pb::v1::{TaskPushNotificationConfig, TaskState},
    store::{InspectedTask, PushConfig, TaskFilter, TaskSummary},
};

/// Maximum number of tasks on a page, and of those with one id that are printed.
pub(super) const MAX_PAGE: u16 = 1000;

/// Arguments of `a2a admin list`.
#[derive(Debug, Args)]
pub(super) struct List {
    /// List only the tasks of this owner. Callers without a name have the owner ''.
    #[arg(long)]
    owner: Option<String>,
    /// List only the tasks of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// List only the tasks in this state, such as `working`.
    #[arg(long, value_name = "STATE", value_parser = show::parse_state)]
    state: Option<TaskState>,
    /// Maximum number of tasks, at most 1000.
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PAGE)))]
    limit: u16,
    /// Start of the page, as printed with the previous one.
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<u64>,
}

/// Selection of tasks by an id.
#[derive(Clone, Debug, Args)]
pub(super) struct Selection {
    /// Id of the task. Several owners can have a task with one id: all of them are meant.
    id: String,
    /// Only the task of this owner.
    #[arg(long)]
    owner: Option<String>,
    /// Only the task of this tenant.
    #[arg(long)]
    tenant: Option<String>,
}

impl Selection {
    pub(super) fn filter(&self) -> TaskFilter {
        let Self { id, owner, tenant } = self.clone();
        TaskFilter { id: Some(id), owner, tenant, ..TaskFilter::default() }
    }
}

/// Arguments of `a2a admin show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    selection: Selection,
    /// Print what happened to the task, and when, instead of its contents.
    #[arg(long)]
    timeline: bool,
}

/// Runs `a2a admin list`.
pub(super) fn list(arguments: &List, target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    let filter = TaskFilter {
        owner: arguments.owner.clone(),
        tenant: arguments.tenant.clone(),
        states: arguments.state.into_iter().collect(),
        before: arguments.page_token,
        ..TaskFilter::default()
    };
    let page = Reader::open(target)?.tasks(&filter, usize::from(arguments.limit))?;
    out.print(
        || {
            let tasks: Vec<_> = page.tasks.iter().map(TaskSummary::to_json).collect();
            json!({"tasks": tasks, "next_page_token": page.next.map(|row| row.to_string())})
        },
        || {
            let now = Clock::default().millis();
            let mut text = format!("{:<36}  {:<14}  {:>5}  OWNER (TENANT)\n", "ID", "STATE", "AGE");
            if page.tasks.is_empty() {
                report("no tasks\n");
            }
            page.tasks.iter().for_each(|task| text.push_str(&line(task, now)));
            if let Some(row) = page.next {
                let agent = out.agent.map(|agent| format!("--agent {agent} ")).unwrap_or_default();
                _ = writeln!(text, "More tasks: {agent}--page-token {row}");
            }
            text
        },
    )
}

/// Runs `a2a admin show`.
pub(super) fn show(arguments: &Show, target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    let (Selection { id, .. }, path) = (&arguments.selection, &target.path);
    let reader = Reader::open(target)?;
    let page = reader.tasks(&arguments.selection.filter(), usize::from(MAX_PAGE))?;
    if page.tasks.is_empty() {
        return Err(NotFound(format!("{} has no task {id}; `a2a admin list` lists the tasks", path.display())).into());
    }
    for summary in &page.tasks {
        let damaged = || format!("task {id} of owner {:?} can't be read; see `a2a admin check`", summary.owner);
        let found = reader.task(summary.number).with_context(damaged)?;
        if arguments.timeline {
            timeline::show(&reader, &found, out)?;
            continue;
        }
        let InspectedTask { task, push_configs, .. } = found;
        let shown = |push: &Arc<PushConfig>| {
            let config = push.without_secrets().config;
            // The query of a URL may be a secret too.
            TaskPushNotificationConfig { url: shown_url(&config.url), ..config }
        };
        let pushes: Vec<_> = push_configs.iter().map(shown).collect();
        let text = show::task(&task, OutputFormat::Text)?;
        let mut json = summary.to_json();
        json["push_configs"] = serde_json::to_value(&pushes)?;
        json["task"] = serde_json::to_value(&task)?;
        out.print(|| json, || details(summary, &pushes, &text))?;
    }
    Ok(())
}

/// Formats a task as a line of 80 columns. A long owner is cut.
fn line(task: &TaskSummary, now: Millis) -> String {
    let tenant = if task.tenant.is_empty() { String::new() } else { format!(" ({})", show::safe(&task.tenant)) };
    let (id, state, age) = (show::safe(&task.id), show::state_cell(task.state), age(now.saturating_sub(task.time)));
    let owner = format!("{:?}{tenant}", task.owner);
    format!("{id:<36}  {state}  {age:>5}  {}\n", show::cut(&owner, 19))
}

/// Formats a time span in its largest unit.
fn age(millis: Millis) -> String {
    match millis.max(0) / 1000 {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} m", seconds / 60),
        seconds @ ..86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Formats a task with the data that its owner does not see. `text` is the task.
fn details(task: &TaskSummary, pushes: &[TaskPushNotificationConfig], text: &str) -> String {
    let log = if task.has_log { "" } else { " (the log was deleted)" };
    let mut details = format!(
        "Owner:    {:?}\nTenant:   {:?}\nEvents:   {}{log}\nBytes:    {}\n{text}",
        task.owner, task.tenant, task.events, task.bytes
    );
    if !pushes.is_empty() {
        details.push_str("Push configurations:\n");
        for config in pushes {
            _ = writeln!(details, "  [{}] {}", show::safe(&config.id), show::safe(&config.url));
        }
    }
    details
}
