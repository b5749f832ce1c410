//! `a2a admin push`: lists the deliveries of push notifications, retries them, and deletes their configurations.

use std::path::Path;

use clap::Subcommand;
use serde_json::Value;
use url::Url;

use super::{NotFound, Output, Target, audited, reader::Reader, with_existing_store};
use crate::{
    base::clock::Millis,
    cli::{show::OutputFormat, time},
    client,
    store::{Delivery, DeliveryToken, PushQueue as _, TaskSummary},
};

/// Number of deliveries that are read at once.
const PAGE: usize = 1000;

/// Reason why a command that writes can't run.
const IN_USE: &str = "a server is using the database and delivers its push notifications; stop it first";

#[derive(Debug, Subcommand)]
pub(super) enum Push {
    /// Lists the deliveries to push configurations. A server may be using the database.
    List {
        /// List only dead letters: deliveries that were given up.
        #[arg(long)]
        dead: bool,
    },
    /// Prints the deliveries of a task, without secrets. A server may be using the database.
    Show(Selection),
    /// Makes deliveries due at once: those that wait for their next attempt, and dead letters, which continue after the last
    /// delivered event. A server delivers them after its start. No server may be using the database. `-o json` prints the
    /// deliveries as they were before.
    Retry(Selection),
    /// Deletes push configurations with their deliveries. No server may be using the database.
    Drop(Selection),
}

/// Selection of deliveries.
#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// Task of the deliveries. Not needed with `--dead`.
    #[arg(required_unless_present = "dead")]
    task: Option<String>,
    /// Id of the push configuration. Defaults to all of the task.
    id: Option<String>,
    /// Select only the tasks of this owner.
    #[arg(long)]
    owner: Option<String>,
    /// Select only the tasks of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Select only dead letters.
    #[arg(long)]
    dead: bool,
}

impl Selection {
    fn contains(&self, delivery: &Delivery) -> bool {
        let is = |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|wanted| wanted == text);
        let scope = delivery.key.scope();
        is(&self.task, delivery.key.id())
            && is(&self.id, &delivery.config.config.id)
            && is(&self.owner, &scope.owner)
            && is(&self.tenant, &scope.tenant)
    }

    /// Reads the selected deliveries.
    ///
    /// # Errors
    /// The database can't be read, or a task was named and nothing is selected.
    fn read(&self, reader: &Reader) -> anyhow::Result<Vec<Delivery>> {
        let mut selected = Vec::new();
        each_page(reader, self.dead, |page| {
            selected.extend(page.into_iter().filter(|it| self.contains(it)));
            Ok(())
        })?;
        match &self.task {
            Some(task) if selected.is_empty() => Err(NotFound(format!("task {task} has no such delivery")).into()),
            _ => Ok(selected),
        }
    }
}

/// Runs an `a2a admin push` command.
pub(super) fn run(push: &Push, target: &Target, now: Millis, out: &Output<'_>) -> anyhow::Result<()> {
    let (path, open) = (&target.path, || Reader::open(target));
    match push {
        Push::List { dead } => {
            if each_page(&open()?, *dead, |page| print(&page, out, now))? == 0 && out.format == OutputFormat::Text {
                super::report(if *dead { "no dead letters\n" } else { "no deliveries\n" });
            }
            Ok(())
        }
        Push::Show(selection) => {
            for delivery in selection.read(&open()?)? {
                out.print(|| to_json(&delivery, now), || details(&delivery, now))?;
            }
            Ok(())
        }
        Push::Retry(selection) => {
            let selected = selection.read(&open()?)?;
            let retried = with_existing_store(target, IN_USE, async |store| {
                let mut retried = Vec::new();
                for delivery in selected {
                    if store.retry_delivery(&delivery.key, &delivery.config.config.id, now).await? {
                        retried.push(delivery);
                    }
                }
                Ok(retried)
            })?;
            audited("admin push retry", None, u64::try_from(retried.len())?);
            report(&retried, out, now, "deliveries are due at once in", path)
        }
        Push::Drop(selection) => {
            let selected = selection.read(&open()?)?;
            with_existing_store(target, IN_USE, async |store| {
                for delivery in &selected {
                    store.delete_push(&delivery.key, &delivery.config.config.id).await?;
                }
                Ok(())
            })?;
            audited("admin push drop", None, u64::try_from(selected.len())?);
            report(&selected, out, now, "push configurations were deleted from", path)
        }
    }
}

/// Reads the deliveries of a task.
pub(super) fn of_task(reader: &Reader, task: &TaskSummary) -> anyhow::Result<Vec<Delivery>> {
    let (owner, tenant) = (Some(task.owner.clone()), Some(task.tenant.clone()));
    Selection { task: Some(task.id.clone()), id: None, owner, tenant, dead: false }.read(reader)
}

/// Reads deliveries page by page. Returns their number.
fn each_page(
    reader: &Reader,
    dead_only: bool,
    mut read: impl FnMut(Vec<Delivery>) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let (mut token, mut count) = (DeliveryToken::default(), 0);
    loop {
        let page = reader.deliveries(dead_only, token, PAGE)?;
        count += page.deliveries.len();
        read(page.deliveries)?;
        let Some(next) = page.next else { return Ok(count) };
        token = next;
    }
}

fn print(deliveries: &[Delivery], out: &Output<'_>, now: Millis) -> anyhow::Result<()> {
    deliveries.iter().try_for_each(|delivery| out.print(|| to_json(delivery, now), || line(delivery, now)))
}

fn report(deliveries: &[Delivery], out: &Output<'_>, now: Millis, what: &str, path: &Path) -> anyhow::Result<()> {
    if out.format != OutputFormat::Text {
        return print(deliveries, out, now);
    }
    out.print(Value::default, || format!("{} {what} {}\n", deliveries.len(), path.display()))
}

/// Returns the URL as it may be shown. What is no URL is not shown.
pub(super) fn shown_url(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |_| client::shown_url(url))
}

fn line(delivery: &Delivery, now: Millis) -> String {
    let Delivery { key, config, seq, state } = delivery;
    let (scope, id) = (key.scope(), &config.config.id);
    let outcome = match (&state.dead, state.due) {
        (Some(dead), _) => format!("given up {}: {}", time(dead.time), dead.reason),
        (None, Some(due)) => {
            let lag = state.lag(now).unwrap_or_default() / 1000;
            format!("due {}, lag {lag} s", time(due))
        }
        (None, None) => String::new(),
    };
    let line = format!(
        "{} task {} config {id} of {:?} in tenant {:?}: event {} of {seq}, {} failed attempts {outcome}",
        state.name(*seq),
        key.id(),
        scope.owner,
        scope.tenant,
        state.cursor,
        state.attempts
    );
    format!("{}\n", line.trim_end())
}

/// Formats the members of [`to_json`], one per line.
fn details(delivery: &Delivery, now: Millis) -> String {
    let json = to_json(delivery, now);
    let members = json.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let lines: Vec<_> = members.map(|(name, value)| format!("{name}: {}\n", text(value))).collect();
    lines.concat() + "\n"
}

pub(super) fn to_json(delivery: &Delivery, now: Millis) -> Value {
    let mut json = delivery.to_json(now);
    (json["cursor"], json["seq"]) = (delivery.state.cursor.into(), delivery.seq.into());
    json["failed_attempts"] = delivery.state.attempts.into();
    json["url"] = shown_url(&delivery.config.config.url).into();
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_secrets() {
        for (url, shown) in [
            ("https://user:secret@a.example:8443/hook?key=secret#secret", "https://a.example:8443/hook"),
            ("http://a.example/", "http://a.example/"),
            ("secret", ""),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }
}
