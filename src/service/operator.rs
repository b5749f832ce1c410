//! Operator API: the state of a server, and the tasks and deliveries of all owners, for the people who run it.
//! `transport/resource/operator.rs` serves it over HTTP.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::stream;
use http::HeaderMap;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;
use tokio::{
    sync::{Semaphore, SemaphorePermit, broadcast},
    time::{Instant, sleep_until},
};
use tokio_stream::Stream;
use url::Url;

use super::Service;
use crate::{
    base::{
        clock::{Clock, Millis, whole_millis},
        dependency::Dependency,
        metric::{LimitUse, SECONDS},
    },
    engine::{execution::RETRY_AFTER, journal::CommitObserver},
    protocol::{
        call::{ADMIN, Principal, Scopes},
        error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
        event::Event,
        pb::{v1::TaskState, wkt::timestamp},
        v03::{event::v03_frame, json::EnumNames as _},
    },
    service::auth::{Token, bearer::bearer_token, require_scope},
    store::{
        Attempt, Delivery, DeliveryToken, FileUsage, Inspect, LoggedEvent, Scope, Store, TaskFilter, TaskKey,
        TaskSummary, TurnRecord, Unavailable,
    },
};

/// Maximum number of elements of a page, and that without a limit in the query.
const MAX_PAGE: usize = 1000;
const PAGE: usize = 100;

/// Maximum number of requests that read from the stores at once. Commits do not wait for them, but share the processor.
const READS: usize = 2;

/// Maximum size in bytes of a task that is shown as a whole, encoded in protobuf.
const MAX_SNAPSHOT: usize = 1 << 20;

/// Maximum number of open feeds, and of commits by which one may lag behind.
const MAX_FEEDS: usize = 16;
const MAX_LAG: usize = 4096;

/// Time for which a feed gathers commits, so that a task that streams is read a few times a second.
const FEED_INTERVAL: Duration = Duration::from_millis(200);

/// Access of a caller to the operator API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Access {
    /// Numbers without names.
    Counts,
    /// The state of the server, and no task.
    Status,
    /// Everything.
    Full,
}

/// Agent of a server, as its operator sees it.
#[derive(Clone)]
pub(crate) struct OperatedAgent {
    /// Name in the catalog.
    pub(crate) name: Box<str>,
    /// Kind of the agent, such as `exec`.
    pub(crate) kind: &'static str,
    pub(crate) service: Arc<Service>,
}

impl OperatedAgent {
    fn store(&self) -> &dyn Store {
        &**self.service.journal().store()
    }

    fn inspect(&self) -> Result<&dyn Inspect, Error> {
        let why = "the store of this agent can't list the tasks of all owners";
        self.store().inspect().ok_or_else(|| ErrorKind::UnsupportedOperation.because(why))
    }
}

/// Query of tasks, events and deliveries, and body of a retry. Without a value, all are selected.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Query {
    agent: Option<String>,
    owner: Option<String>,
    tenant: Option<String>,
    context: Option<String>,
    /// Beginning of the ids of tasks.
    id: Option<String>,
    error_id: Option<String>,
    /// States, separated by commas.
    state: Option<String>,
    /// Task of deliveries, and id of their push configuration.
    task: Option<String>,
    config: Option<String>,
    /// All dead letters.
    dead: bool,
    /// Start of a page: `next` of the page before.
    #[serde(alias = "before")]
    after: Option<String>,
    limit: Option<usize>,
    /// Form of events: `1.0`, `0.3` or `proto`.
    form: Option<String>,
}

impl Query {
    fn limit(&self) -> Result<usize, Error> {
        let limit = Some(self.limit.unwrap_or(PAGE)).filter(|limit| (1..=MAX_PAGE).contains(limit));
        limit.ok_or_else(|| Error::invalid_field("limit", format!("must be 1 to {MAX_PAGE}")))
    }

    /// Returns the selection of tasks in a store.
    fn filter(self) -> Result<TaskFilter, Error> {
        let why = "unknown state; for example working or TASK_STATE_WORKING";
        let state = |name| TaskState::from_any_name(name).ok_or_else(|| Error::invalid_field("state", why));
        let states = self.state.iter().flat_map(|states| states.split(',')).map(state).collect::<Result<_, _>>()?;
        let Self { owner, tenant, context, id: id_prefix, error_id, .. } = self;
        Ok(TaskFilter { id_prefix, owner, tenant, context, states, error_id, ..TaskFilter::default() })
    }
}

/// Event of a feed: a task that has changed. `None`: changes may be missing, and the reader reads the list again.
pub(crate) type FeedEvent = Option<Value>;

/// Position of an agent, and a task with a commit.
type Change = (usize, TaskKey);

/// Commits of all agents.
type Changes = broadcast::Sender<Change>;

/// Operator API of a server.
pub(crate) struct Operator {
    /// Agents of the server, that of the root first.
    agents: Vec<OperatedAgent>,
    /// Operator token of this start.
    token: Option<Token>,
    clock: Clock,
    started: Millis,
    reads: Semaphore,
    feeds: Arc<Semaphore>,
    /// Set by the first feed.
    changes: OnceLock<Changes>,
}

debug_fields!(Operator {});

impl Operator {
    /// Creates the operator API of a server that starts now.
    pub(crate) fn new(agents: Vec<OperatedAgent>, token: Option<Token>, clock: Clock) -> Self {
        let (started, changes) = (clock.millis(), OnceLock::new());
        let (reads, feeds) = (Semaphore::new(READS), Arc::new(Semaphore::new(MAX_FEEDS)));
        Self { agents, token, clock, started, reads, feeds, changes }
    }

    /// Returns true if these headers have the operator token of this start.
    pub(crate) fn has_token(&self, headers: &HeaderMap) -> bool {
        // In constant time.
        let is_token = |token: &Token, sent: &[u8]| bool::from(token.as_bytes().ct_eq(sent));
        self.token.as_ref().zip(bearer_token(headers)).is_some_and(|(token, sent)| is_token(token, sent))
    }

    /// Returns what a caller may read. `is_local`: a client on this machine, of a server without authentication. Credentials with
    /// all scopes may be those of any caller, so that the tasks of other owners need ones that name the scope.
    ///
    /// # Errors
    /// `Unauthenticated` or `PermissionDenied`: this is less than `needed`.
    pub(crate) fn access(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
        is_local: bool,
        needed: Access,
    ) -> Result<Access, Error> {
        let access = match principal {
            _ if self.has_token(headers) => Access::Full,
            Some(Principal { scopes: Scopes::All, .. }) if needed == Access::Full => {
                let why = "credentials must name the scope admin to read the tasks of all owners";
                return Err(ErrorKind::PermissionDenied.because(why).with("scope", ADMIN));
            }
            Some(Principal { scopes: Scopes::All, .. }) => Access::Status,
            Some(principal) => require_scope(principal, ADMIN).map(|()| Access::Full)?,
            None if is_local && needed == Access::Counts && bearer_token(headers).is_none() => Access::Counts,
            None => {
                let why = "the operator API needs the scope admin, or the operator token of this start";
                let challenge = if bearer_token(headers).is_some() { INVALID_TOKEN } else { BEARER };
                return Err(ErrorKind::Unauthenticated.because(why).challenge(challenge));
            }
        };
        Ok(access)
    }

    /// Returns the state of the server. `not_ready` is the reason why it is not ready, `metrics` are those for Prometheus.
    pub(crate) async fn status(
        &self,
        access: Access,
        is_draining: bool,
        not_ready: Option<String>,
        metrics: &str,
    ) -> Value {
        let now = self.clock.millis();
        let (mut agents, mut limits, mut oldest) = (Vec::new(), Vec::new(), None);
        let mut totals = json!({ "agents": self.agents.len(), "tasks": {} });
        let (mut store, mut push) = (json!({}), json!({}));
        for OperatedAgent { name, kind, service } in &self.agents {
            let gauges = service.gauges();
            add(&mut totals, "turns", gauges.turns);
            add(&mut totals, "queued", gauges.queued_turns);
            if let Some((usage, used)) = service.usage().await {
                usage.tasks.iter().for_each(|(state, count)| add(&mut totals["tasks"], state.as_str_name(), *count));
                if let Some(FileUsage { database, free, log, max }) = usage.files {
                    let sizes = [("bytes", database), ("free", free), ("wal", log)];
                    for (name, size) in sizes.into_iter().chain(max.map(|max| ("max", max))) {
                        add(&mut store, name, size);
                    }
                }
                let used = used.into_iter().chain([service.live_memory_in_use()]);
                limits.extend(used.map(|LimitUse { name: limit, used, max }| {
                    json!({ "agent": name, "name": limit, "used": used, "max": max })
                }));
            }
            if let Some((counts, since)) = service.pending_deliveries().await {
                add(&mut push, "due", counts.due);
                add(&mut push, "dead", counts.dead);
                oldest = [oldest, since].into_iter().flatten().min();
            }
            let dependencies = service.dependencies();
            let down = dependencies.iter().filter(|dependency| dependency.state().is_down()).count();
            add(&mut totals, "dependencies_down", down);
            let breaker = dependencies.iter().map(|it| it.state().breaker()).find(|breaker| *breaker != "closed");
            let last_error = service.journal().last_error();
            agents.push(json!({
                "name": name,
                "kind": kind,
                "turns": gauges.turns,
                "queued": gauges.queued_turns,
                "dependencies": dependencies.iter().map(|needed| dependency_json(needed, now)).collect::<Value>(),
                "breaker": breaker.unwrap_or("closed"),
                "last_error": last_error.map(|last| json!({ "class": last.reason, "error_id": last.error_id, "time": timestamp(last.time) })),
            }));
        }
        push["lag_seconds"] = oldest.map_or(0, |since| now.saturating_sub(since).max(0) / 1000).into();
        let mut status = json!({
            "access": access,
            "ready": not_ready.is_none(),
            "reason": not_ready,
            "draining": is_draining,
            "uptime_seconds": now.saturating_sub(self.started) / 1000,
            "totals": totals,
            "push": push,
        });
        if access >= Access::Status {
            store["commit_p99_ms"] = commit_p99(metrics).into();
            let lost = ["dropped", "failed"].map(|result| format!("a2a_otlp_spans_total{{result=\"{result}\"}}"));
            let dropped: f64 = lost.iter().filter_map(|name| sample(metrics, name)).sum();
            let otlp = sample(metrics, "a2a_otlp_queue").map(|queue| json!({ "queue": queue, "dropped": dropped }));
            status["build"] = json!({ "version": env!("CARGO_PKG_VERSION"), "commit": option_env!("A2A_COMMIT") });
            status["started"] = json!(timestamp(self.started));
            status["agents"] = agents.into();
            status["limits"] = limits.into();
            status["store"] = store;
            status["otlp"] = otlp.into();
        }
        status
    }

    /// Waits until few other requests read from the stores.
    pub(crate) async fn read_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }

    /// Returns the agents with this name, or all.
    ///
    /// # Errors
    /// `InvalidParams` if there is no such agent.
    fn agents(&self, name: Option<&str>) -> Result<Vec<&OperatedAgent>, Error> {
        let found: Vec<_> = self.agents.iter().filter(|agent| name.is_none_or(|name| *agent.name == *name)).collect();
        let why = "no agent has this name; operator/status lists them";
        if found.is_empty() { Err(Error::invalid_field("agent", why)) } else { Ok(found) }
    }

    /// Returns the agent that a page is about, its position, and the start of the page, which is the default for the first one. The pages
    /// of several agents are one after another. `parse` reads another start.
    fn page<T: Default>(
        &self,
        query: &Query,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(&OperatedAgent, usize, T), Error> {
        let token = query.after.as_deref().unwrap_or("0.");
        let agents = self.agents(query.agent.as_deref())?;
        let found = token.split_once('.').and_then(|(at, start)| {
            let at: usize = at.parse().ok()?;
            let start = if start.is_empty() { T::default() } else { parse(start)? };
            Some((*agents.get(at)?, at, start))
        });
        found.ok_or_else(|| Error::invalid_field("after", "is no `next` of this list; start again without it"))
    }

    /// Returns the start of the next page, which may be that of the next agent.
    fn next(&self, query: &Query, at: usize, start: Option<String>) -> Option<String> {
        let is_last = query.agent.is_some() || at + 1 >= self.agents.len();
        start.map(|start| format!("{at}.{start}")).or_else(|| (!is_last).then(|| format!("{}.", at + 1)))
    }

    /// Lists tasks, the latest created first.
    pub(crate) async fn tasks(&self, query: Query) -> Result<Value, Error> {
        let (agent, at, before) = self.page(&query, |start| start.parse().ok().map(Some))?;
        let filter = TaskFilter { before, ..query.clone().filter()? };
        let page = agent.inspect()?.tasks(&filter, query.limit()?).await?;
        let tasks: Value = page.tasks.iter().map(|task| task_json(agent, task)).collect();
        Ok(json!({ "tasks": tasks, "next": self.next(&query, at, page.next.map(|next| next.to_string())) }))
    }

    /// Returns the task with this id.
    ///
    /// # Errors
    /// `TaskNotFound`; or `Aborted` with the candidates if several tasks have the id.
    async fn find(&self, id: &str, query: &Query) -> Result<(&OperatedAgent, TaskSummary), Error> {
        let Query { owner, tenant, .. } = query.clone();
        let filter = TaskFilter { id: Some(id.to_owned()), owner, tenant, ..TaskFilter::default() };
        let mut found = Vec::new();
        for agent in self.agents(query.agent.as_deref())? {
            let page = agent.inspect()?.tasks(&filter, PAGE).await?;
            found.extend(page.tasks.into_iter().map(|task| (agent, task)));
        }
        if found.len() > 1 {
            let name = |(agent, task): &(&OperatedAgent, TaskSummary)| {
                format!("agent={}&owner={}&tenant={}", agent.name, task.owner, task.tenant)
            };
            let names: Vec<_> = found.iter().take(10).map(name).collect();
            return Err(ErrorKind::Aborted.because(format!("several tasks have this id: {}", names.join(", "))));
        }
        found.pop().ok_or_else(|| Error::task_not_found(id))
    }

    /// Returns a task with its turns and the deliveries of its push notifications.
    pub(crate) async fn task(&self, id: &str, query: &Query) -> Result<Value, Error> {
        let (agent, TaskSummary { number, .. }) = self.find(id, query).await?;
        let found = agent.inspect()?.task(number).await?.ok_or_else(|| Error::task_not_found(id))?;
        let (deliveries, now) = (agent.store().task_deliveries(&key_of(&found.summary)).await?, self.clock.millis());
        Ok(json!({
            "task": task_json(agent, &found.summary),
            "turns": found.turns.iter().map(TurnRecord::to_json).collect::<Value>(),
            "push": deliveries.iter().map(|delivery| delivery_json(agent, delivery, now)).collect::<Value>(),
            "snapshot": Some(&found.task).filter(|task| task.encoded_len() <= MAX_SNAPSHOT),
        }))
    }

    /// Returns events of a task, also hidden ones.
    pub(crate) async fn events(&self, id: &str, query: &Query) -> Result<Value, Error> {
        let raw = |json: &[u8]| serde_json::from_slice(json).map_err(Error::internal);
        let wire = |event: &Event| match query.form.as_deref() {
            None | Some("1.0") => raw(event.json()),
            Some("0.3") => v03_frame(event)?.map_or(Ok(Value::Null), |frame| raw(frame.data.bytes())),
            Some("proto") => Ok(BASE64_STANDARD.encode(event.proto()).into()),
            Some(_) => Err(Error::invalid_field("form", "is not one of 1.0, 0.3, proto")),
        };
        let after = query.after.as_deref().unwrap_or("0").parse();
        let after = after.map_err(|_| Error::invalid_field("after", "is not the number of an event"))?;
        let (agent, task) = self.find(id, query).await?;
        let events = agent.inspect()?.events(task.number, after, query.limit()?).await?;
        let next = events.last().map(|last| last.event.seq()).filter(|last| *last < task.events);
        let json = |logged: &LoggedEvent| {
            let mut json = logged.to_json();
            json["wire"] = wire(&logged.event)?;
            Ok::<_, Error>(json)
        };
        let events = events.iter().map(json).collect::<Result<Value, _>>()?;
        Ok(json!({ "events": events, "next": next, "has_log": task.has_log }))
    }

    /// Lists deliveries. A page may have fewer than the limit, also none, and be followed by another one.
    pub(crate) async fn deliveries(&self, query: Query) -> Result<Value, Error> {
        let (state, now) = (query.state.as_deref(), self.clock.millis());
        let (agent, found, next) = if let Some(id) = &query.task {
            let (agent, task) = self.find(id, &query).await?;
            (agent, agent.store().task_deliveries(&key_of(&task)).await?, None)
        } else {
            let (agent, at, start) = self.page(&query, |start| {
                let (a, b) = start.split_once('-')?;
                Some(DeliveryToken(a.parse().ok()?, b.parse().ok()?))
            })?;
            let is_dead = state == Some("dead");
            let page = agent.store().deliveries(is_dead, start, query.limit()?).await?;
            let next = page.next.map(|DeliveryToken(a, b)| format!("{a}-{b}"));
            (agent, page.deliveries, self.next(&query, at, next))
        };
        let is_selected = |delivery: &&Delivery| state.is_none_or(|state| state == delivery.state.name(delivery.seq));
        let found = found.iter().filter(is_selected).map(|delivery| delivery_json(agent, delivery, now));
        Ok(json!({ "deliveries": found.collect::<Value>(), "next": next }))
    }

    /// Makes deliveries due at once: those of a task, or all dead letters.
    pub(crate) async fn retry(&self, query: &Query) -> Result<Value, Error> {
        let mut retried = 0;
        if let Some(id) = query.task.as_deref().filter(|_| !query.dead) {
            let (agent, task) = self.find(id, query).await?;
            for delivery in agent.store().task_deliveries(&key_of(&task)).await? {
                if query.config.as_ref().is_none_or(|id| *id == delivery.config.config.id) {
                    retried += usize::from(agent.service.retry_delivery(&delivery).await?);
                }
            }
        } else if query.dead {
            for agent in self.agents(query.agent.as_deref())? {
                let mut next = Some(DeliveryToken::default());
                while let Some(start) = next {
                    let page = agent.store().deliveries(true, start, PAGE).await?;
                    for delivery in &page.deliveries {
                        retried += usize::from(agent.service.retry_delivery(delivery).await?);
                    }
                    next = page.next;
                }
            }
        } else {
            return Err(Error::invalid_field("task", "is required, unless `dead` is true"));
        }
        Ok(json!({ "retried": retried }))
    }

    /// Returns a feed of the tasks that the query selects: those that change, as they are when the reader takes them. It has no
    /// queue of its own: one that lags behind the commits gets a reset. It never ends by itself.
    ///
    /// # Errors
    /// `ResourceExhausted` if there are too many feeds.
    pub(crate) fn feed(self: Arc<Self>, query: Query) -> Result<impl Stream<Item = FeedEvent> + Send + use<>, Error> {
        let permit = Arc::clone(&self.feeds).try_acquire_owned().map_err(|_| {
            let why = format!("{MAX_FEEDS} feeds of operator/tasks are open; close some or retry later");
            ErrorKind::ResourceExhausted.because(why).retry_after(RETRY_AFTER)
        })?;
        self.agents(query.agent.as_deref())?.into_iter().try_for_each(|agent| agent.inspect().map(drop))?;
        let filter = (query.agent.clone(), query.filter()?);
        let changes = self.changes.get_or_init(|| {
            let changes = Changes::new(MAX_LAG);
            for (position, agent) in self.agents.iter().enumerate() {
                agent.service.journal().observe(Arc::new(ChangesOf(position, changes.clone())));
            }
            changes
        });
        let state = (changes.subscribe(), BTreeSet::new());
        Ok(stream::unfold((self, state, filter, permit), |(operator, mut state, filter, permit)| async move {
            let event = operator.next_change(&mut state, &filter).await;
            Some((event, (operator, state, filter, permit)))
        }))
    }

    /// Waits for the next event of a feed of an agent, or of all.
    async fn next_change(
        &self,
        (changes, pending): &mut (broadcast::Receiver<Change>, BTreeSet<Change>),
        (name, filter): &(Option<String>, TaskFilter),
    ) -> FeedEvent {
        loop {
            while let Some((position, key)) = pending.pop_first() {
                let agent = self.agents.get(position)?;
                if name.as_ref().is_some_and(|name| **name != *agent.name) {
                    continue;
                }
                // If others are selected, those of this owner are not found.
                let (id, scope) = (Some(key.id().to_owned()), key.scope());
                let owner = filter.owner.clone().or_else(|| Some(scope.owner.to_string()));
                let tenant = filter.tenant.clone().or_else(|| Some(scope.tenant.to_string()));
                let filter = TaskFilter { id, owner, tenant, ..filter.clone() };
                let page = agent.inspect().ok()?.tasks(&filter, 1).await.ok()?;
                if let Some(task) = page.tasks.first() {
                    return Some(task_json(agent, task));
                }
            }
            let mut is_first = true;
            while is_first || !changes.is_empty() {
                // Fails only if the feed lags behind, since the server has a sender.
                let Ok(change) = changes.recv().await else {
                    *changes = changes.resubscribe();
                    return None;
                };
                pending.insert(change);
                if std::mem::take(&mut is_first) {
                    sleep_until(Instant::now() + FEED_INTERVAL).await;
                }
            }
        }
    }
}

/// Passes the commits of the agent at a position on to the feeds.
struct ChangesOf(usize, Changes);

impl CommitObserver for ChangesOf {
    fn on_committed(&self, key: &TaskKey, _: bool, _: bool) {
        if self.1.receiver_count() > 0 {
            // Fails only without receivers.
            _ = self.1.send((self.0, key.clone()));
        }
    }

    fn on_push_deleted(&self, _: &TaskKey) {}
}

impl Service {
    /// Makes a dead letter, or a delivery that waits for its next attempt, due at once. Returns whether there is such a delivery.
    async fn retry_delivery(&self, delivery: &Delivery) -> Result<bool, Unavailable> {
        let (journal, id) = (self.journal(), &delivery.config.config.id);
        let now = journal.sources().clock.millis();
        let is_retried = journal.store().retry_delivery(&delivery.key, id, now).await?;
        #[cfg(feature = "push")]
        if let Some(service) = self.delivery.as_ref().filter(|_| is_retried) {
            service.retry(delivery);
        }
        Ok(is_retried)
    }
}

/// Adds to a number in an object.
fn add(object: &mut Value, name: &str, count: impl TryInto<u64>) {
    let sum = object[name].as_u64().unwrap_or_default();
    object[name] = sum.saturating_add(count.try_into().unwrap_or(u64::MAX)).into();
}

/// Returns the value of a series in the text of Prometheus.
fn sample(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Returns the time in milliseconds within which 99 % of the commits were done, as the upper bound of a bucket.
fn commit_p99(metrics: &str) -> Option<f64> {
    let count = |series: &str| sample(metrics, &format!("a2a_commit_duration_seconds_{series}"));
    let most = 0.99 * count("count")?;
    let has_most = |bound: &&f64| count(&format!("bucket{{le=\"{bound}\"}}")).is_some_and(|count| count >= most);
    SECONDS.iter().find(has_most).map(|bound| bound * 1000.0)
}

fn key_of(task: &TaskSummary) -> TaskKey {
    let scope = Scope { owner: task.owner.as_str().into(), tenant: task.tenant.as_str().into() };
    TaskKey::new(&scope.into(), &task.id)
}

fn dependency_json(dependency: &Dependency, now: Millis) -> Value {
    let state = dependency.state();
    let error = state.last_error;
    let at = |at: Instant| timestamp(now.saturating_sub(whole_millis(at.elapsed())));
    json!({
        "peer": dependency.peer(), "address": dependency.address(), "state": state.name(), "breaker": state.breaker(),
        "since": at(state.since), "last_success": state.last_success.map(at), "failures": state.failures,
        "last_error": error.map(|(error, _)| error.label()), "last_error_time": error.map(|(_, time)| at(time)),
        "latency_ms": state.latency.map(whole_millis), "limited_ms": state.limited_for().map(whole_millis),
    })
}

fn task_json(agent: &OperatedAgent, task: &TaskSummary) -> Value {
    let mut json = task.to_json();
    json["agent"] = json!(agent.name);
    json
}

/// Describes a delivery. The URL has neither a user nor a query, which may be secrets.
fn delivery_json(agent: &OperatedAgent, delivery: &Delivery, now: Millis) -> Value {
    let (state, url) = (&delivery.state, Url::parse(&delivery.config.config.url));
    let url = url.map(|url| format!("{}{}", url.origin().ascii_serialization(), url.path())).unwrap_or_default();
    let last = |last: &Attempt| json!({ "at": timestamp(last.time), "status": last.status, "error": last.error });
    let mut json = delivery.to_json(now);
    (json["agent"], json["url"]) = (json!(agent.name), url.into());
    (json["delivered"], json["events"]) = (state.cursor.into(), delivery.seq.into());
    (json["attempts"], json["last"]) = (state.attempts.into(), json!(state.last.as_ref().map(last)));
    json
}
