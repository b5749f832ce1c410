//! `a2a doctor`: checks an agent as its clients see it, and says what is wrong and what to do.
//!
//! The checks run one after another, from the network to the calls of each interface. Each has a time limit, and what is
//! received is limited in size, so that the command ends with any agent.

use std::{
    borrow::Cow,
    fmt::{Display, Write as _},
    time::Duration,
};

use anyhow::bail;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;
use url::Url;

use super::{
    Verdict,
    connection::Agent,
    say,
    show::{self, OutputFormat, safe, wrapped},
    terminal::{DIM, GREEN, RED, YELLOW, paint},
};
use crate::{
    client::complete_url,
    protocol::{call::Binding, error::ErrorKind, pb::v1::AgentCapabilities},
};

mod card;
mod interface;
mod network;
mod push;

pub(super) use self::network::is_local;

/// Time limit of a check, unless `--timeout` sets another.
const LIMIT: Duration = Duration::from_secs(15);

/// Maximum number of interfaces that are checked.
const MAX_INTERFACES: usize = 12;

/// Maximum length of a cause that is on the line of its check, in columns.
const DETAIL: usize = 40;

/// Maximum number of faults that are named at the end.
const FIRST: usize = 3;

/// Arguments of `a2a doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    agent: Agent,
    /// Makes no calls that create a task.
    #[arg(long, help_heading = "Checks")]
    no_send: bool,
    /// Text of the messages that are sent.
    #[arg(long, help_heading = "Checks", value_name = "TEXT", default_value = "Hello")]
    message: String,
    /// URL at which the agent reaches `--push-listen`. Without it, push notifications of agents on other machines are not
    /// checked.
    #[arg(long, help_heading = "Checks", value_name = "URL", requires = "push_listen")]
    push_url: Option<Url>,
    /// Address at which push notifications are received.
    #[arg(long, help_heading = "Checks", value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    push_listen: String,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warning,
    Failed,
    Skipped,
}

/// Result of a check with its cause, and what to do about it.
#[derive(Debug, Serialize)]
struct Finding {
    status: Status,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<Cow<'static, str>>,
}

impl Finding {
    fn ok(detail: impl Display) -> Self {
        Self { status: Status::Ok, detail: detail.to_string(), remedy: None }
    }

    fn warning(detail: impl Display, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { status: Status::Warning, detail: detail.to_string(), remedy: Some(remedy.into()) }
    }

    fn failed(detail: impl Display, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { status: Status::Failed, ..Self::warning(detail, remedy) }
    }

    fn skipped(detail: impl Display) -> Self {
        Self { status: Status::Skipped, ..Self::ok(detail) }
    }
}

/// Finding of a check. `Err` is one that ended the check early.
type Outcome = Result<Finding, Finding>;

/// Check with its name, such as `JSONRPC 1.0: send`.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    #[serde(flatten)]
    finding: Finding,
}

/// Checks that were made. As text, each is printed at once.
struct Report {
    checks: Vec<Check>,
    format: OutputFormat,
    limit: Duration,
}

impl Report {
    fn add(&mut self, name: impl Into<String>, finding: Finding) -> anyhow::Result<Status> {
        let (status, check) = (finding.status, Check { name: name.into(), finding });
        if self.format == OutputFormat::Text {
            say(&line(&check))?;
        }
        self.checks.push(check);
        Ok(status)
    }

    /// Makes a check within the time limit.
    async fn check(&mut self, name: impl Into<String>, check: impl Future<Output = Outcome>) -> anyhow::Result<Status> {
        let finding = timeout(self.limit, check).await.unwrap_or_else(|_| {
            let why = format!("no result within {}", humantime::format_duration(self.limit));
            Ok(Finding::failed(why, "find out what the agent waits for, or allow more time with --timeout"))
        });
        self.add(name, finding.unwrap_or_else(|early| early))
    }

    /// Returns the faults to fix first: failures, then warnings, in the order of the checks. Interfaces share most of their
    /// faults, so that each remedy is named once.
    fn first(&self) -> Vec<&Check> {
        let with = |status| self.checks.iter().filter(move |check| check.finding.status == status);
        let mut first: Vec<&Check> = Vec::new();
        for check in with(Status::Failed).chain(with(Status::Warning)) {
            if first.len() < FIRST && first.iter().all(|known| known.finding.remedy != check.finding.remedy) {
                first.push(check);
            }
        }
        first
    }

    fn count(&self, status: Status) -> usize {
        self.checks.iter().filter(|check| check.finding.status == status).count()
    }
}

fn line(check: &Check) -> String {
    let (status, style) = match check.finding.status {
        Status::Ok => ("ok", GREEN),
        Status::Warning => ("warning", YELLOW),
        Status::Failed => ("FAILED", RED),
        Status::Skipped => ("skipped", DIM),
    };
    let status = paint(style, format_args!("{status:<8}"));
    let (name, detail) = (safe(&check.name), safe(&check.finding.detail));
    let mut text = if detail.chars().count() <= DETAIL {
        format!("{status} {name:<30} {detail}\n")
    } else {
        format!("{status} {name}\n{:9}{}\n", "", wrapped(&detail, 9))
    };
    if let Some(remedy) = &check.finding.remedy {
        _ = writeln!(text, "{:9}-> {}", "", wrapped(&safe(remedy), 12));
    }
    text
}

/// Runs `a2a doctor`.
pub(super) async fn run(arguments: &Doctor) -> anyhow::Result<()> {
    let connection = &arguments.agent.connection;
    let limit = connection.timeout.unwrap_or(LIMIT);
    let mut report = Report { checks: Vec::new(), format: connection.output, limit };
    let missing = examine(arguments, &mut report).await?;
    let [ok, warnings, failed, skipped] =
        [Status::Ok, Status::Warning, Status::Failed, Status::Skipped].map(|status| report.count(status));
    let has_called = report.checks.iter().any(|check| check.name.ends_with(": get") || check.name.ends_with(": send"));
    let verdict = match (missing, failed, warnings) {
        (Some(missing), ..) => missing,
        (None, 0, 0) if !has_called => "no call was checked, see above",
        (None, 0, 0) => "sound",
        (None, 0, _) => "works, with warnings",
        _ => "faulty",
    };
    let first = report.first();
    if report.format == OutputFormat::Text {
        let mut text =
            format!("\nVerdict: {verdict} ({ok} ok, {warnings} warnings, {failed} failed, {skipped} skipped)\n");
        // Without an agent, they are the line above.
        let listed = if missing.is_none() { &*first } else { &[] };
        if !listed.is_empty() {
            text.push_str("What to fix first:\n");
        }
        for (number, Check { name, finding: Finding { detail, remedy, .. } }) in (1..).zip(listed) {
            let detail = wrapped(&safe(&format!("{name}: {detail}")), 3);
            let remedy = wrapped(&safe(remedy.as_deref().unwrap_or_default()), 6);
            _ = writeln!(text, "{number}. {detail}\n   -> {remedy}");
        }
        say(&text)?;
    } else {
        let value = json!({
            "checks": report.checks, "ok": ok, "warnings": warnings, "failed": failed, "verdict": verdict, "fixFirst": first,
        });
        say(&show::json(&value, report.format)?)?;
    }
    if let Some(missing) = missing {
        bail!(Verdict { text: missing.to_owned(), code: 3 });
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// Makes all checks. Returns the verdict if there is no agent.
async fn examine(arguments: &Doctor, report: &mut Report) -> anyhow::Result<Option<&'static str>> {
    let url = complete_url(&arguments.agent.url)?;
    let builder = arguments.agent.connection.builder()?;
    if !network::check(&url, &arguments.agent.connection, report).await? {
        return Ok(Some("the agent cannot be reached"));
    }
    let Some(found) = card::check(&url, &builder, report).await? else {
        return Ok(Some("there is no card that can be used"));
    };
    let all = &found.card.supported_interfaces;
    for declared in all.iter().take(MAX_INTERFACES) {
        let target = interface::Target { declared, found: &found, builder: &builder, doctor: arguments };
        check_interface(&target, report).await?;
    }
    if all.len() > MAX_INTERFACES {
        let why = format!("{} further interfaces of the card", all.len() - MAX_INTERFACES);
        report.add("interfaces", Finding::skipped(why))?;
    }
    Ok(None)
}

/// Makes the checks of an interface.
async fn check_interface(target: &interface::Target<'_>, report: &mut Report) -> anyhow::Result<()> {
    let Doctor { agent, no_send, .. } = target.doctor;
    let name = format!("{} {}", target.declared.protocol_binding, target.declared.protocol_version);
    let session = match target.session() {
        Ok(session) => session,
        Err(error) => {
            let is_unknown = error.kind() == ErrorKind::UnsupportedOperation;
            if is_unknown && agent.connection.selects_interfaces() {
                return Ok(());
            }
            let finding = if is_unknown {
                Finding::skipped(format!("not known to this program, or its URL is invalid: {error}"))
            } else {
                Finding::failed(error, "correct the URL of the interface on the card")
            };
            return report.add(name, finding).map(drop);
        }
    };
    let named = |check: &str| format!("{name}: {check}");
    report.check(named("authentication"), session.authentication()).await?;
    if report.check(named("call"), session.call()).await? != Status::Ok {
        return Ok(());
    }
    if session.interface.binding != Binding::Grpc {
        report.check(named("version"), session.version()).await?;
        report.check(named("cors"), session.cors()).await?;
    }
    let capabilities = target.found.card.capabilities.clone().unwrap_or_default();
    if capabilities.extended_agent_card.unwrap_or_default() {
        report.check(named("extended card"), session.extended_card()).await?;
    }
    if *no_send {
        return report.add(named("send"), Finding::skipped("--no-send")).map(drop);
    }
    check_tasks(&session, &named, capabilities, report).await?;
    report.check(named("cleanup"), session.clean_up(report.limit)).await.map(drop)
}

/// Makes the checks of an interface that create tasks.
async fn check_tasks(
    session: &interface::Session<'_>,
    named: &impl Fn(&str) -> String,
    capabilities: AgentCapabilities,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut task = None;
    if report.check(named("send"), session.send(&mut task)).await? == Status::Failed {
        return Ok(());
    }
    if let Some(task) = &task {
        report.check(named("get"), session.get(task)).await?;
    }
    if capabilities.streaming.unwrap_or_default() {
        let mut events = Vec::new();
        if report.check(named("stream"), session.stream(&mut events)).await? != Status::Failed {
            report.check(named("resume"), session.resume(&events)).await?;
        }
    }
    report.check(named("cancel"), session.cancel()).await?;
    if capabilities.push_notifications.unwrap_or_default() {
        report.check(named("push"), push::check(session)).await?;
    }
    Ok(())
}
