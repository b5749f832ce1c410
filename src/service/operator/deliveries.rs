//! Deliveries of push notifications of all owners, as operators see them, and their retry.

use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::{
    OperatedAgent, Operator, Reader, Service, TaskScope,
    tasks::{page_limit, parse_token},
    time,
};
use crate::{
    base::clock::Millis,
    protocol::error::Error,
    store::{Delivery, DeliveryToken, Scope, TaskKey, Unavailable},
};

/// Maximum number of deliveries that one request reads.
const MAX_READ: usize = 10_000;

/// Number of dead letters that are read at once to retry all of them.
const BATCH: usize = 500;

/// Query of a list of deliveries. Without a value, all are selected.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeliveryQuery {
    agent: Option<String>,
    /// `waiting`, `dead`, `leased` or `idle`.
    state: Option<String>,
    /// Id of a task.
    task: Option<String>,
    owner: Option<String>,
    tenant: Option<String>,
    /// Start of a page: `next` of the page before.
    after: Option<String>,
    limit: Option<usize>,
}

/// Deliveries to retry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    agent: Option<String>,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    tenant: String,
    task: Option<String>,
    /// Id of a push configuration. All of the task without it.
    config: Option<String>,
    /// All dead letters.
    #[serde(default)]
    dead: bool,
}

impl Operator {
    /// Lists deliveries, those of several agents one agent after another. A page may have less than the limit, also none, and be
    /// followed by another one.
    pub(crate) async fn deliveries(&self, query: DeliveryQuery, reader: &Reader<'_>) -> Result<Value, Error> {
        reader.access.require_full()?;
        let DeliveryQuery { agent, state, task, owner, tenant, after, limit } = query;
        let (limit, now) = (page_limit(limit)?, self.clock.millis());
        if state.as_deref().is_some_and(|state| !["waiting", "dead", "leased", "idle"].contains(&state)) {
            return Err(Error::invalid_field("state", "is not one of waiting, dead, leased, idle"));
        }
        let is_selected = |delivery: &Delivery| {
            let (name, scope) = (delivery.state.name(delivery.seq), delivery.key.scope());
            state.as_deref().is_none_or(|state| state == name)
                && owner.as_deref().is_none_or(|owner| *owner == *scope.owner)
                && tenant.as_deref().is_none_or(|tenant| *tenant == *scope.tenant)
        };
        let _permit = self.read_permit().await;
        let (mut found, mut next, mut left) = (Vec::new(), None, MAX_READ);
        if let Some(id) = &task {
            let scope = TaskScope { agent, owner: owner.clone(), tenant: tenant.clone() };
            let (agent, task) = self.find(id, &scope).await?;
            let scope = Scope { owner: task.owner.into(), tenant: task.tenant.into() };
            let all = agent.store().task_deliveries(&TaskKey::new(&scope.into(), id)).await?;
            found.extend(all.into_iter().filter(is_selected).take(limit).map(|delivery| (agent, delivery)));
        } else {
            let (first, start) = parse_token("after", after.as_deref())?;
            let start = start.split_once('.').and_then(|(a, b)| Some(DeliveryToken(a.parse().ok()?, b.parse().ok()?)));
            for (position, agent) in self.agents(agent.as_deref())?.into_iter().filter(|(at, _)| *at >= first) {
                let mut token = start.filter(|_| position == first).unwrap_or_default();
                loop {
                    let wanted = (limit - found.len()).min(left);
                    if wanted == 0 {
                        next = next.or(Some(format!("{position}.{}.{}", token.0, token.1)));
                        break;
                    }
                    let is_dead = state.as_deref() == Some("dead");
                    let page = agent.store().deliveries(is_dead, token, wanted).await?;
                    left -= page.deliveries.len().min(left);
                    let selected = page.deliveries.into_iter().filter(is_selected);
                    found.extend(selected.map(|delivery| (agent, delivery)));
                    let Some(following) = page.next else { break };
                    token = following;
                }
            }
        }
        let others = found.iter().filter(|(_, delivery)| !reader.owns(&delivery.key.scope().owner)).count();
        reader.audit("operator/deliveries", others);
        let deliveries: Value = found.iter().map(|(agent, delivery)| delivery_json(agent, delivery, now)).collect();
        Ok(json!({ "deliveries": deliveries, "next": next }))
    }

    /// Makes deliveries due at once: those of a task, or all dead letters.
    pub(crate) async fn retry(&self, retry: Retry, reader: &Reader<'_>) -> Result<Value, Error> {
        reader.access.require_full()?;
        let Retry { agent, owner, tenant, task, config, dead } = retry;
        let agents = self.agents(agent.as_deref())?;
        let _permit = self.read_permit().await;
        let mut retried = 0_usize;
        if let Some(id) = task.filter(|_| !dead) {
            let key = TaskKey::new(&Scope { owner: owner.into(), tenant: tenant.into() }.into(), &id);
            for (_, agent) in agents {
                let all = agent.store().task_deliveries(&key).await?.into_iter();
                for delivery in all.filter(|delivery| config.as_ref().is_none_or(|id| *id == delivery.config.config.id))
                {
                    retried += usize::from(agent.service.retry_delivery(&delivery).await?);
                }
            }
        } else if dead {
            for (_, agent) in agents {
                let mut token = DeliveryToken::default();
                loop {
                    let page = agent.store().deliveries(true, token, BATCH).await?;
                    for delivery in &page.deliveries {
                        retried += usize::from(agent.service.retry_delivery(delivery).await?);
                    }
                    let Some(next) = page.next else { break };
                    token = next;
                }
            }
        } else {
            return Err(Error::invalid_field("task", "is required, or `dead` must be true"));
        }
        reader.audit("operator/deliveries:retry", retried);
        Ok(json!({ "retried": retried }))
    }
}

impl Service {
    /// Makes a dead letter, or a delivery that waits for its next attempt, due at once. Returns whether there is such a delivery.
    async fn retry_delivery(&self, delivery: &Delivery) -> Result<bool, Unavailable> {
        #[cfg(feature = "push")]
        if let Some(service) = &self.delivery {
            return service.retry(delivery).await;
        }
        let (journal, id) = (self.journal(), &delivery.config.config.id);
        journal.store().retry_delivery(&delivery.key, id, journal.sources().clock.millis()).await
    }
}

/// Describes a delivery. The URL has neither a user nor a query, which may be secrets.
pub(super) fn delivery_json(agent: &OperatedAgent, delivery: &Delivery, now: Millis) -> Value {
    let Delivery { key, config, seq, state } = delivery;
    let url = Url::parse(&config.config.url);
    let url = url.map(|url| format!("{}{}", url.origin().ascii_serialization(), url.path())).unwrap_or_default();
    json!({
        "agent": agent.name,
        "task": key.id(),
        "config": config.config.id,
        "owner": &*key.scope().owner,
        "tenant": &*key.scope().tenant,
        "url": url,
        "state": state.name(*seq),
        "delivered": state.cursor,
        "events": seq,
        "attempts": state.attempts,
        "due": state.due.map(time),
        "pending_since": state.pending_since.map(time),
        "lag_seconds": state.lag(now).map(|lag| lag / 1000),
        "last": state.last.as_ref().map(|last| json!({ "at": time(last.time), "status": last.status, "error": last.error })),
        "given_up": state.dead.as_ref().map(|dead| time(dead.time)),
        "reason": state.dead.as_ref().map(|dead| &*dead.reason),
    })
}
