//! Tasks of all owners, as operators see them: lists, one task with its turns, and its events.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MAX_PAGE, OperatedAgent, Operator, PAGE, Reader, deliveries::delivery_json, time};
use crate::{
    base::trace::TraceContext,
    protocol::{
        error::{Error, ErrorKind},
        event::{Ends, Event, Seq},
        pb::v1::TaskState,
        v03::{event::v03_frame, json::EnumNames as _},
    },
    service::wrappers::observed,
    store::{LoggedEvent, READ_BYTES, TaskFilter, TaskKey, TaskSummary, TurnRecord},
};

/// Maximum size in bytes of a task that is shown as a whole, encoded in protobuf.
const MAX_SNAPSHOT: usize = 1 << 20;

/// Maximum number of tasks with one id that an error names.
const MAX_CANDIDATES: usize = 10;

/// Query of a list of tasks, or of their feed. Without a value, all are selected.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskQuery {
    agent: Option<String>,
    owner: Option<String>,
    tenant: Option<String>,
    context: Option<String>,
    /// Beginning of the id.
    id: Option<String>,
    error_id: Option<String>,
    /// Names of states, separated by commas.
    state: Option<String>,
    /// Start of a page: `next` of the page before.
    before: Option<String>,
    limit: Option<usize>,
}

/// Agent, owner and tenant of one task: those that its id alone does not identify.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskScope {
    pub(super) agent: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) tenant: Option<String>,
}

/// Query of the events of a task.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventQuery {
    agent: Option<String>,
    owner: Option<String>,
    tenant: Option<String>,
    after: Option<Seq>,
    limit: Option<usize>,
    /// `1.0`, `0.3` or `proto`.
    form: Option<String>,
}

/// Checks the number of elements of a page.
pub(super) fn page_limit(limit: Option<usize>) -> Result<usize, Error> {
    let why = || format!("must be 1 to {MAX_PAGE}");
    Some(limit.unwrap_or(PAGE))
        .filter(|limit| (1..=MAX_PAGE).contains(limit))
        .ok_or_else(|| Error::invalid_field("limit", why()))
}

impl TaskQuery {
    pub(super) fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// Returns the selection of tasks in one store.
    pub(super) fn filter(&self) -> Result<TaskFilter, Error> {
        let state = |name: &str| {
            let why = || "unknown state; for example TASK_STATE_WORKING or working";
            TaskState::from_any_name(name.trim()).ok_or_else(|| Error::invalid_field("state", why()))
        };
        let states = self.state.iter().flat_map(|states| states.split(',')).map(state).collect::<Result<_, _>>()?;
        Ok(TaskFilter {
            id_prefix: self.id.clone(),
            owner: self.owner.clone(),
            tenant: self.tenant.clone(),
            context: self.context.clone(),
            error_id: self.error_id.clone(),
            states,
            ..TaskFilter::default()
        })
    }
}

/// Position in the lists of several agents, one after another: that of the agent, and the start of its page.
pub(super) fn parse_token(field: &str, token: Option<&str>) -> Result<(usize, String), Error> {
    let Some(token) = token else { return Ok((0, String::new())) };
    let parsed = token.split_once('.').and_then(|(agent, rest)| Some((agent.parse().ok()?, rest.to_owned())));
    parsed.ok_or_else(|| Error::invalid_field(field, "is not a `next` of this server"))
}

impl Operator {
    /// Lists tasks, the latest created first; those of several agents one agent after another.
    pub(crate) async fn tasks(&self, query: &TaskQuery, reader: &Reader<'_>) -> Result<Value, Error> {
        reader.access.require_full()?;
        let (limit, filter) = (page_limit(query.limit)?, query.filter()?);
        let (first, start) = parse_token("before", query.before.as_deref())?;
        let mut before = start.parse().ok();
        let agents = self.agents(query.agent())?;
        let _permit = self.read_permit().await;
        let (mut tasks, mut next, mut others) = (Vec::new(), None, 0);
        for (position, agent) in agents.into_iter().filter(|(position, _)| *position >= first) {
            if tasks.len() == limit {
                next = Some(format!("{position}."));
                break;
            }
            let filter = TaskFilter { before: before.take().filter(|_| position == first), ..filter.clone() };
            let page = agent.inspect()?.tasks(&filter, limit - tasks.len()).await?;
            others += page.tasks.iter().filter(|task| !reader.owns(&task.owner)).count();
            tasks.extend(page.tasks.iter().map(|task| task_json(agent, task)));
            if let Some(before) = page.next {
                next = Some(format!("{position}.{before}"));
                break;
            }
        }
        reader.audit("operator/tasks", others);
        Ok(json!({ "tasks": tasks, "next": next }))
    }

    /// Returns the task with this id.
    ///
    /// # Errors
    /// `TaskNotFound`; or `Aborted` with the candidates if several tasks have the id.
    pub(super) async fn find(&self, id: &str, scope: &TaskScope) -> Result<(&OperatedAgent, TaskSummary), Error> {
        let TaskScope { agent, owner, tenant } = scope.clone();
        let filter = TaskFilter { id: Some(id.to_owned()), owner, tenant, ..TaskFilter::default() };
        let mut found = Vec::new();
        for (_, agent) in self.agents(agent.as_deref())? {
            let page = agent.inspect()?.tasks(&filter, MAX_CANDIDATES).await?;
            found.extend(page.tasks.into_iter().map(|task| (agent, task)));
        }
        if found.len() > 1 {
            let name = |(agent, task): &(&OperatedAgent, TaskSummary)| {
                format!("agent={}&owner={}&tenant={}", agent.name, task.owner, task.tenant)
            };
            let names: Vec<_> = found.iter().take(MAX_CANDIDATES).map(name).collect();
            let why = format!("several tasks have the id {id}; select one by {}", names.join(" or "));
            return Err(ErrorKind::Aborted.because(why));
        }
        found.pop().ok_or_else(|| Error::task_not_found(id))
    }

    /// Returns a task with its turns and the deliveries of its push notifications.
    pub(crate) async fn task(&self, id: &str, scope: &TaskScope, reader: &Reader<'_>) -> Result<Value, Error> {
        reader.access.require_full()?;
        let _permit = self.read_permit().await;
        let (agent, TaskSummary { number, .. }) = self.find(id, scope).await?;
        let found = agent.inspect()?.task(number).await?.ok_or_else(|| Error::task_not_found(id))?;
        reader.audit_task("operator/task", &found.summary);
        let deliveries = agent.store().task_deliveries(&key_of(&found.summary)).await?;
        let now = self.clock.millis();
        Ok(json!({
            "task": task_json(agent, &found.summary),
            "turns": found.turns.iter().map(turn_json).collect::<Value>(),
            "push": deliveries.iter().map(|delivery| delivery_json(agent, delivery, now)).collect::<Value>(),
            "snapshot": Some(&found.task).filter(|task| task.encoded_len() <= MAX_SNAPSHOT),
        }))
    }

    /// Returns events of a task, also hidden ones.
    pub(crate) async fn events(&self, id: &str, query: EventQuery, reader: &Reader<'_>) -> Result<Value, Error> {
        reader.access.require_full()?;
        let EventQuery { agent, owner, tenant, after, limit, form } = query;
        let (limit, after) = (page_limit(limit)?, after.unwrap_or(0));
        let write: fn(&Event) -> Result<Value, Error> = match form.as_deref() {
            None | Some("1.0") => |event| raw(event.json()),
            Some("0.3") => |event| v03_frame(event)?.map_or(Ok(Value::Null), |frame| raw(frame.data.bytes())),
            Some("proto") => |event| Ok(BASE64_STANDARD.encode(event.proto()).into()),
            Some(_) => return Err(Error::invalid_field("form", "is not one of 1.0, 0.3, proto")),
        };
        let _permit = self.read_permit().await;
        let (agent, task) = self.find(id, &TaskScope { agent, owner, tenant }).await?;
        reader.audit_task("operator/events", &task);
        let events = agent.inspect()?.events(task.number, after, limit, READ_BYTES).await?;
        let last = events.last().map(|last| last.event.seq());
        let json = |LoggedEvent { event, time: at }: &LoggedEvent| {
            let ends = match event.mark().ends {
                Ends::Nothing => None,
                Ends::Turn => Some("turn"),
                Ends::Task => Some("task"),
            };
            Ok::<_, Error>(json!({
                "seq": event.seq(),
                "fence": event.position().fence,
                "time": at.map(time),
                "hidden": event.mark().hidden,
                "ends": ends,
                "bytes": event.proto().len(),
                "wire": write(event)?,
            }))
        };
        let events = events.iter().map(json).collect::<Result<Value, _>>()?;
        Ok(json!({ "events": events, "next": last.filter(|last| *last < task.events), "has_log": task.has_log }))
    }
}

/// Returns JSON that was encoded before.
fn raw(json: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(json).map_err(Error::internal)
}

/// Returns the key of a task.
fn key_of(task: &TaskSummary) -> TaskKey {
    let scope = crate::store::Scope { owner: task.owner.as_str().into(), tenant: task.tenant.as_str().into() };
    TaskKey::new(&scope.into(), &task.id)
}

/// Describes a task.
pub(super) fn task_json(agent: &OperatedAgent, task: &TaskSummary) -> Value {
    json!({
        "agent": agent.name,
        "id": task.id,
        "owner": task.owner,
        "tenant": task.tenant,
        "context": task.context,
        "state": task.state.as_str_name(),
        "created": task.created.map(time),
        "updated": time(task.time),
        "events": task.events,
        "bytes": task.bytes,
        "has_log": task.has_log,
        "attempt": task.attempt,
        "error_id": task.error_id,
        "message": task.status_text,
        "push_configs": task.push_configs,
    })
}

/// Describes a turn.
fn turn_json(turn: &TurnRecord) -> Value {
    json!({
        "n": turn.number,
        "attempt": turn.attempt,
        "fence": turn.fence,
        "message_seq": turn.message,
        "queued": time(turn.accepted),
        "begun": turn.begun.map(time),
        "ended": turn.ended.map(time),
        "outcome": turn.outcome,
        "reason": turn.reason,
        "error_id": turn.error_id,
        "caller": turn.caller,
        "binding": turn.binding.map(observed::name),
        "version": turn.version.map(|version| version.as_str()),
        "trace": turn.trace.map(|trace| TraceContext(trace).to_header()),
        "request_id": turn.request_id,
        "tokens": { "input": turn.tokens_in, "output": turn.tokens_out },
        "exit_code": turn.exit_code,
        "commits": turn.commits,
        "commit_wait_ms": u64::try_from(turn.commit_wait.as_millis()).unwrap_or(u64::MAX),
    })
}
