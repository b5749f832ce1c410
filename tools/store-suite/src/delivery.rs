//! Cases of the delivery queue of push notifications: marking, order, leases, outcomes, dead letters, and what retention and
//! eviction keep.

use std::{sync::Arc, time::Duration};

use super::{
    Checked, Failure, StoreSuite, acknowledged, failed, finished, given_up, position,
    writer::{TaskWriter, chunk, scope, status},
};
use a2a_service::{
    clock::Millis,
    event::Seq,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{
        Commit, Delivery, DeliveryClaim, DeliveryOutcome, DeliveryState, DeliveryToken, Lease, PushConfig, PutResult,
        Store, SweepResult, TaskKey, Unavailable,
    },
};

const LEASE: Duration = Duration::from_millis(100);

/// Maximum number of dead letters of a case that does not reach it.
const MANY: usize = 100;

pub(super) fn push(id: &str) -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: id.into(), url: format!("http://{id}"), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V0_3, extra: format!("extra of {id}").into() })
}

/// Creates a task with these configurations, whose deliveries begin after the first event.
async fn task(store: &dyn Store, owner: &str, id: &str, configs: &[&str]) -> Result<TaskWriter, Failure> {
    let mut task = TaskWriter::new(&scope(owner, ""), id);
    task.commit(store, []).await??;
    for config in configs {
        ensure_eq!(store.put_push(&task.key, push(config), 9).await?, PutResult::Created);
    }
    Ok(task)
}

/// Writes a commit, and marks the task unless the commit does. Returns how many deliveries became due.
async fn write(store: &dyn Store, task: &mut TaskWriter, commit: Commit, now: Millis) -> Result<usize, Failure> {
    let before = store.delivery_counts().await?.due;
    task.write(store, Commit { time: now, ..commit }).await??;
    if store.marks_in_commit() {
        let marked = store.delivery_counts().await?.due.saturating_sub(before);
        return Ok(usize::try_from(marked).unwrap_or(usize::MAX));
    }
    Ok(store.mark_due(std::slice::from_ref(&task.key), now).await?)
}

/// Commits an event and marks the task. Returns how many deliveries became due.
async fn update(store: &dyn Store, task: &mut TaskWriter, now: Millis) -> Result<usize, Failure> {
    let commit = task.next(store, [chunk("a", "x", true)]);
    write(store, task, commit, now).await
}

async fn end(store: &dyn Store, task: &mut TaskWriter, now: Millis) -> Result<usize, Failure> {
    let commit = task.next(store, [status(TaskState::Completed, now)]);
    write(store, task, commit, now).await
}

async fn claim(store: &dyn Store, now: Millis) -> Result<Vec<DeliveryClaim>, Unavailable> {
    store.claim_due(&Lease::new("r-1", now, LEASE), 100).await
}

/// Claims the only delivery that is due.
async fn claim_one(store: &dyn Store, now: Millis) -> Result<DeliveryClaim, Failure> {
    let mut claims = claim(store, now).await?;
    ensure_eq!(claims.len(), 1);
    claims.pop().ok_or_else(|| Failure::new("no delivery is due".to_owned()))
}

/// Task and configuration of each claim.
fn names(claims: &[DeliveryClaim]) -> Vec<(&str, &str)> {
    claims.iter().map(|claim| (claim.key.id(), claim.config.config.id.as_str())).collect()
}

async fn deliveries(store: &dyn Store) -> Result<Vec<Delivery>, Failure> {
    let page = store.deliveries(false, DeliveryToken::default(), 1000).await?;
    ensure_eq!(page.next, None);
    Ok(page.deliveries)
}

async fn state(store: &dyn Store, key: &TaskKey, id: &str) -> Result<DeliveryState, Failure> {
    let mut all = deliveries(store).await?.into_iter();
    let found = all.find(|delivery| delivery.key == *key && delivery.config.config.id == id);
    found.map(|delivery| delivery.state).ok_or_else(|| Failure::new(format!("configuration {id} is missing")))
}

/// A commit makes nothing due, unless the store marks in commits. Marking does, if there are events after the cursor.
pub(super) async fn events_after_the_cursor_are_due_once_marked(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut old = task(store, "ada", "t-1", &["a", "b"]).await?;
    ensure_eq!(store.mark_due(std::slice::from_ref(&old.key), 5).await?, 0, "new configurations get later events");
    let marks = store.marks_in_commit();
    let commit = Commit { time: 10, ..old.next(store, [chunk("a", "x", true)]) };
    old.write(store, commit).await??;
    if !marks {
        ensure_eq!((store.next_due().await?, claim(store, 99).await?), (None, Vec::new()));
    }
    let missing = TaskKey::new(&scope("bob", ""), "t-1");
    ensure_eq!(store.mark_due(&[missing, old.key.clone()], 10).await?, if marks { 0 } else { 2 });
    ensure_eq!(store.mark_due(std::slice::from_ref(&old.key), 20).await?, 0, "marked before");
    ensure_eq!(store.next_due().await?, Some(10));
    ensure_eq!(claim(store, 9).await?, []);
    let claims = claim(store, 10).await?;
    ensure_eq!(names(&claims), [("t-1", "a"), ("t-1", "b")]);
    for claim in &claims {
        ensure_eq!((claim.cursor, claim.attempts, claim.pending_since), (1, 0, 10));
        ensure_eq!((&claim.key, &*claim.config), (&old.key, &*push(&claim.config.config.id)));
    }
    // The configuration of a new task gets all of its events, that of an existing one those of its commit.
    let mut new = TaskWriter::new(&scope("ada", ""), "t-2");
    let begin = Commit { push: Some(push("a")), ..new.next(store, []) };
    new.write(store, begin).await??;
    let next = Commit { push: Some(push("b")), ..new.next(store, [chunk("a", "x", true)]) };
    ensure_eq!(write(store, &mut new, next, 30).await?, if marks { 1 } else { 2 });
    let claims = store.claim_due(&Lease::new("r-2", 30, LEASE), 9).await?;
    ensure_eq!(names(&claims), [("t-2", "a"), ("t-2", "b")]);
    ensure_eq!(claims.iter().map(|claim| claim.cursor).collect::<Vec<_>>(), [0, 1]);
    // Delivery does not affect the tasks.
    for task in [&old, &new] {
        task.check(store).await?;
    }
    Ok(())
}

pub(super) async fn longest_due_deliveries_are_claimed_first(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    for (id, time) in [("t-1", 30), ("t-2", 10), ("t-3", 20), ("t-4", 10), ("t-5", 99)] {
        let mut task = task(store, "ada", id, &["a"]).await?;
        ensure_eq!(update(store, &mut task, time).await?, 1);
    }
    let first = store.claim_due(&Lease::new("r-1", 50, LEASE), 3).await?;
    ensure_eq!(names(&first[..2]).len(), 2);
    let mut oldest = names(&first[..2]);
    oldest.sort_unstable();
    ensure_eq!(oldest, [("t-2", "a"), ("t-4", "a")]);
    ensure_eq!(names(&first[2..]), [("t-3", "a")]);
    ensure_eq!(names(&store.claim_due(&Lease::new("r-1", 50, LEASE), 3).await?), [("t-1", "a")]);
    ensure_eq!(store.next_due().await?, Some(99));
    Ok(())
}

/// The delivery is given to another runner once the lease has expired. Then the first one can no longer report.
pub(super) async fn claimed_delivery_is_leased(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = task(store, "ada", "t-1", &["a"]).await?;
    update(store, &mut task, 10).await?;
    let first = claim_one(store, 10).await?;
    ensure_eq!(state(store, &task.key, "a").await?.runner.as_deref(), Some("r-1"));
    ensure_eq!(store.next_due().await?, Some(110), "end of the lease");
    ensure_eq!(store.claim_due(&Lease::new("r-2", 109, LEASE), 9).await?, []);
    // New events do not end the lease.
    ensure_eq!(update(store, &mut task, 50).await?, 0);
    ensure_eq!(store.claim_due(&Lease::new("r-2", 109, LEASE), 9).await?, []);
    let second = store.claim_due(&Lease::new("r-2", 110, LEASE), 9).await?;
    ensure_eq!(names(&second), [("t-1", "a")]);
    ensure!(second[0].claim > first.claim, "claim {} after {}", second[0].claim, first.claim);
    ensure_eq!((second[0].cursor, second[0].attempts, second[0].pending_since), (1, 0, 10));
    let leased = state(store, &task.key, "a").await?;
    ensure_eq!(leased.runner.as_deref(), Some("r-2"));
    for _ in 0..2 {
        ensure!(!store.end_claim(&first, acknowledged(3, 120)).await?);
        ensure!(!store.end_claim(&first, failed(500)).await?);
        ensure!(!store.end_claim(&first, given_up("gone", 120, MANY)).await?);
        ensure_eq!(state(store, &task.key, "a").await?, leased);
    }
    // Expiry alone does not end a claim: its delivery succeeded, and no other runner has begun.
    ensure!(store.end_claim(&second[0], acknowledged(3, 900)).await?);
    let acked = state(store, &task.key, "a").await?;
    ensure_eq!((acked.cursor, acked.due, acked.pending_since, acked.runner), (3, None, None, None));
    ensure!(!store.end_claim(&second[0], acknowledged(3, 900)).await?, "the claim has an outcome");
    ensure!(!store.end_claim(&second[0], failed(950)).await?);
    ensure_eq!(store.next_due().await?, None);
    // A new configuration with the id of a deleted one has no claim.
    update(store, &mut task, 1000).await?;
    let old = claim_one(store, 1000).await?;
    store.delete_push(&task.key, "a").await?;
    store.put_push(&task.key, push("a"), 9).await?;
    update(store, &mut task, 1001).await?;
    let new = claim_one(store, 1001).await?;
    ensure!(!store.end_claim(&old, given_up("gone", 1002, MANY)).await?);
    ensure!(store.end_claim(&new, acknowledged(5, 1003)).await?);
    Ok(())
}

/// Events that are committed during a delivery are due after it.
pub(super) async fn ack_leaves_later_events_due(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = task(store, "ada", "t-1", &["a"]).await?;
    update(store, &mut task, 10).await?;
    let first = claim_one(store, 10).await?;
    // Not marked: the acknowledgement itself finds the event.
    task.commit(store, [chunk("a", "x", true)]).await??;
    ensure!(store.end_claim(&first, acknowledged(2, 40)).await?);
    ensure_eq!(store.next_due().await?, Some(40));
    let second = claim_one(store, 40).await?;
    ensure_eq!((second.cursor, second.attempts, second.pending_since), (2, 0, 40));
    ensure!(store.end_claim(&second, acknowledged(3, 50)).await?);
    ensure_eq!((store.next_due().await?, claim(store, Millis::MAX).await?), (None, Vec::new()));
    // Part of the events: the rest is due at once.
    update(store, &mut task, 60).await?;
    update(store, &mut task, 60).await?;
    let third = claim_one(store, 60).await?;
    update(store, &mut task, 60).await?;
    ensure!(store.end_claim(&third, acknowledged(4, 70)).await?);
    let rest = claim_one(store, 70).await?;
    ensure_eq!((third.end, rest.cursor, rest.end), (5, 4, 5), "a claim ends where that before it ended");
    ensure!(store.end_claim(&rest, acknowledged(5, 80)).await?);
    ensure_eq!(claim_one(store, 80).await?.end, 6);
    Ok(())
}

pub(super) async fn failed_delivery_waits_for_its_next_attempt(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = task(store, "ada", "t-1", &["a"]).await?;
    update(store, &mut task, 10).await?;
    for (attempts, now) in (0..).zip([10, 200, 300]) {
        let failing = claim_one(store, now).await?;
        ensure_eq!((failing.cursor, failing.attempts, failing.pending_since), (1, attempts, 10));
        ensure_eq!(failing.end, 2, "later events are not part of another attempt");
        ensure!(store.end_claim(&failing, failed(if now == 10 { 200 } else { now + 100 })).await?);
        ensure_eq!(update(store, &mut task, now).await?, 0, "events do not end the wait");
    }
    ensure_eq!((store.next_due().await?, claim(store, 399).await?), (Some(400), Vec::new()));
    // An operator need not wait, and the attempts and the age begin again.
    ensure!(store.retry_delivery(&task.key, "a", 350).await?);
    let retried = claim_one(store, 350).await?;
    ensure_eq!((retried.cursor, retried.end, retried.attempts, retried.pending_since), (1, 2, 0, 350));
    ensure!(!store.retry_delivery(&task.key, "a", 360).await?, "it is leased");
    ensure!(store.end_claim(&retried, failed(500)).await?);
    let last = claim_one(store, 500).await?;
    ensure!(store.end_claim(&last, acknowledged(task.at.seq, 510)).await?);
    ensure!(!store.retry_delivery(&task.key, "a", 520).await?, "nothing waits");
    ensure!(!store.retry_delivery(&task.key, "b", 520).await?);
    update(store, &mut task, 600).await?;
    let next = claim_one(store, 600).await?;
    ensure_eq!((next.attempts, next.pending_since), (0, 600));
    Ok(())
}

/// Dead letters keep the reason and their position, are not delivered, and are limited in number.
pub(super) async fn dead_letters_are_kept_up_to_their_limit(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut tasks = Vec::new();
    for id in ["t-1", "t-2", "t-3"] {
        let mut task = task(store, "ada", id, &["a", "b"]).await?;
        update(store, &mut task, 10).await?;
        tasks.push(task);
    }
    let claims = claim(store, 10).await?;
    ensure_eq!(claims.len(), 6);
    let dead: Vec<_> = claims.iter().filter(|claim| claim.config.config.id == "a").collect();
    for (claim, time) in dead.iter().zip([20, 40, 30]) {
        ensure!(store.end_claim(claim, given_up(&format!("at {time}"), time, 3)).await?);
        ensure!(!store.end_claim(claim, acknowledged(2, 99)).await?, "the claim has an outcome");
    }
    let page = store.deliveries(true, DeliveryToken::default(), 9).await?;
    ensure_eq!(page.deliveries.len(), 3);
    for delivery in &page.deliveries {
        let dead = delivery.state.dead.as_ref().ok_or_else(|| Failure::new("no dead letter".to_owned()))?;
        ensure_eq!(&*dead.reason, format!("at {}", dead.time));
        ensure_eq!((delivery.state.cursor, delivery.state.due, delivery.seq), (1, None, 2));
        ensure!(store.get_push(&delivery.key, "a").await?.is_some(), "the client still has the configuration");
    }
    for task in &mut tasks {
        ensure_eq!(update(store, task, 50).await?, 0);
    }
    // The oldest is deleted for another one.
    let last = claims.iter().find(|claim| **claim != *dead[0] && claim.config.config.id == "b");
    let last = last.ok_or_else(|| Failure::new("no claim is left".to_owned()))?;
    ensure!(store.end_claim(last, given_up("at 50", 50, 3)).await?);
    let left = store.deliveries(true, DeliveryToken::default(), 9).await?.deliveries;
    let mut reasons: Vec<_> = left.iter().filter_map(|delivery| Some(&*delivery.state.dead.as_ref()?.reason)).collect();
    reasons.sort_unstable();
    ensure_eq!(reasons, ["at 30", "at 40", "at 50"]);
    ensure_eq!(store.get_push(&dead[0].key, "a").await?, None);
    // A retry delivers from the position that was reached.
    ensure!(store.retry_delivery(&dead[1].key, "a", 60).await?);
    let retried = store.claim_due(&Lease::new("r-2", 60, LEASE), 9).await?;
    ensure_eq!(names(&retried), [(dead[1].key.id(), "a")]);
    ensure_eq!((retried[0].cursor, retried[0].attempts, retried[0].pending_since), (1, 0, 60));
    ensure!(store.end_claim(&retried[0], given_up("at 70", 70, 0)).await?);
    ensure_eq!(store.deliveries(true, DeliveryToken::default(), 9).await?.deliveries, []);
    Ok(())
}

/// The client corrects a configuration: its delivery continues, with the new one.
pub(super) async fn replaced_configuration_keeps_its_position(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = task(store, "ada", "t-1", &["a"]).await?;
    update(store, &mut task, 10).await?;
    ensure_eq!(store.oldest_pending().await?, Some(10));
    let failing = claim_one(store, 10).await?;
    store.end_claim(&failing, failed(5000)).await?;
    ensure_eq!(store.oldest_pending().await?, Some(10), "also while it is leased or waits");
    let corrected = Arc::new(PushConfig { version: Version::V1_0, ..(*push("a")).clone() });
    ensure_eq!(store.put_push(&task.key, Arc::clone(&corrected), 9).await?, PutResult::Replaced);
    let next = claim_one(store, 20).await?;
    ensure_eq!((next.cursor, next.attempts, next.pending_since), (1, 0, 10));
    ensure_eq!(next.config, corrected);
    // A delivery that runs is not affected.
    store.put_push(&task.key, push("a"), 9).await?;
    ensure_eq!(claim(store, 30).await?, []);
    // Its failure does not count for the new configuration, which is neither given up nor deleted and does not wait.
    ensure!(store.end_claim(&next, given_up("gone", 30, MANY)).await?);
    let next = claim_one(store, 30).await?;
    ensure_eq!((next.cursor, next.attempts, next.pending_since, &next.config), (1, 0, 10, &push("a")));
    store.put_push(&task.key, Arc::clone(&corrected), 9).await?;
    ensure!(store.end_claim(&next, DeliveryOutcome::Gone).await?);
    let next = claim_one(store, 30).await?;
    ensure_eq!((next.attempts, &next.config), (0, &corrected));
    store.put_push(&task.key, push("a"), 9).await?;
    ensure!(store.end_claim(&next, failed(9000)).await?);
    let next = claim_one(store, 30).await?;
    ensure!(store.end_claim(&next, given_up("gone", 30, MANY)).await?);
    ensure_eq!(store.oldest_pending().await?, None, "a dead letter is not behind");
    ensure_eq!(store.put_push(&task.key, corrected, 9).await?, PutResult::Replaced);
    ensure_eq!((state(store, &task.key, "a").await?.dead, store.next_due().await?), (None, None));
    ensure_eq!(store.mark_due(std::slice::from_ref(&task.key), 40).await?, 1);
    let last = claim_one(store, 40).await?;
    ensure_eq!((last.cursor, last.attempts, last.pending_since), (1, 0, 40));
    Ok(())
}

/// The answer that a receiver is gone deletes the configuration that was claimed, and no other.
pub(super) async fn gone_receiver_deletes_its_configuration(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = task(store, "ada", "t-1", &["a", "b"]).await?;
    update(store, &mut task, 10).await?;
    let claims = claim(store, 10).await?;
    ensure!(store.end_claim(&claims[0], DeliveryOutcome::Gone).await?);
    ensure!(!store.end_claim(&claims[0], DeliveryOutcome::Gone).await?, "deleted before");
    let key = &task.key;
    let left = async |claim: &DeliveryClaim| store.get_push(key, &claim.config.config.id).await;
    ensure_eq!((left(&claims[0]).await?, left(&claims[1]).await?.is_some()), (None, true));
    // A claim that another one has replaced deletes nothing.
    let later = claim_one(store, 500).await?;
    ensure!(!store.end_claim(&claims[1], DeliveryOutcome::Gone).await?);
    ensure_eq!(store.undelivered_tasks(std::slice::from_ref(&task.key)).await?, [task.key.clone()]);
    ensure!(store.end_claim(&later, DeliveryOutcome::Gone).await?);
    ensure_eq!(deliveries(store).await?, []);
    ensure_eq!(store.undelivered_tasks(std::slice::from_ref(&task.key)).await?, []);
    // A new configuration of the same id is not part of an earlier claim.
    store.put_push(&task.key, push("a"), 9).await?;
    ensure!(!store.end_claim(&claims[0], DeliveryOutcome::Gone).await?);
    ensure!(left(&claims[0]).await?.is_some());
    Ok(())
}

/// A runner that stops releases its leases, and no others.
pub(super) async fn leases_of_a_stopped_runner_are_released(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = task(store, "ada", "t-1", &["a", "b", "c", "d"]).await?;
    update(store, &mut task, 10).await?;
    let first = store.claim_due(&Lease::new("r-1", 10, LEASE), 2).await?;
    let other = store.claim_due(&Lease::new("r-2", 10, LEASE), 1).await?;
    ensure_eq!(store.release_deliveries("r-1", 20).await?, 2);
    ensure_eq!(store.release_deliveries("r-1", 20).await?, 0);
    ensure!(!store.end_claim(&first[0], acknowledged(9, 20)).await?, "the claim has ended");
    let again = claim(store, 20).await?;
    ensure_eq!(again.len(), 3);
    ensure_eq!(again.iter().map(|claim| (claim.attempts, claim.pending_since)).max(), Some((0, 10)));
    ensure!(store.end_claim(&other[0], acknowledged(9, 20)).await?, "another runner has kept its lease");
    Ok(())
}

pub(super) async fn deliveries_are_deleted_with_their_configuration(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut tasks = Vec::new();
    for id in ["t-1", "t-2"] {
        let mut task = task(store, "ada", id, &["dead", "due", "leased"]).await?;
        end(store, &mut task, 10).await?;
        tasks.push(task);
    }
    for claim in claim(store, 10).await? {
        match claim.config.config.id.as_str() {
            "dead" => ensure!(store.end_claim(&claim, given_up("gone", 10, MANY)).await?),
            "due" => ensure!(store.end_claim(&claim, failed(20)).await?),
            _ => {}
        }
    }
    // Retention without a maximum age keeps them.
    ensure_eq!(store.sweep(&finished(0), 1000, &|_| false).await?, SweepResult::default());
    for id in ["due", "leased"] {
        ensure!(store.delete_push(&tasks[0].key, id).await?);
    }
    ensure_eq!(store.deliveries(false, DeliveryToken::default(), 9).await?.deliveries.len(), 4);
    // The dead letter does not keep its task.
    ensure_eq!(store.sweep(&finished(0), 1000, &|_| false).await?.tasks, 1);
    ensure_eq!(position(store, &tasks[0].key).await?, None);
    let policy = finished(0).undelivered(Some(Duration::from_millis(500)));
    ensure_eq!(store.sweep(&policy, 1000, &|_| false).await?.tasks, 1);
    ensure_eq!(deliveries(store).await?, []);
    ensure_eq!((store.next_due().await?, claim(store, Millis::MAX).await?), (None, Vec::new()));
    ensure_eq!(store.mark_due(&[tasks[0].key.clone(), tasks[1].key.clone()], 50).await?, 0);
    Ok(())
}

/// The task, its log and its configurations stay while an event is to be delivered, up to the maximum age.
pub(super) async fn sweeps_keep_undelivered_events(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut policy = finished(0);
    (policy.logs, policy.push) = (Some(Duration::ZERO), Some(Duration::ZERO));
    policy.undelivered = Some(Duration::from_secs(1));
    let mut waiting = task(store, "ada", "waiting", &["a", "b"]).await?;
    let mut late = task(store, "ada", "late", &["a"]).await?;
    let mut delivered = task(store, "ada", "delivered", &["a"]).await?;
    for (task, now) in [(&mut waiting, 10), (&mut late, 300), (&mut delivered, 10)] {
        update(store, task, now).await?;
        end(store, task, now + 1).await?;
    }
    let sweep = async |now| store.sweep(&policy, now, &|_| false).await.map(|swept| swept.tasks);
    ensure_eq!(sweep(310).await?, 0);
    let claims = claim(store, 400).await?;
    ensure_eq!(claims.len(), 4);
    for claim in &claims {
        match (claim.key.id(), claim.config.config.id.as_str()) {
            ("delivered", _) | ("waiting", "b") => ensure!(store.end_claim(claim, acknowledged(3, 410)).await?),
            _ => ensure!(store.end_claim(claim, failed(800)).await?),
        }
    }
    ensure_eq!(sweep(1010).await?, 1, "the delivered task");
    for task in [&waiting, &late] {
        task.check(store).await?;
        ensure!(store.get_push(&task.key, "a").await?.is_some());
    }
    // The maximum age of the first one, which counts from its first mark, is over.
    ensure_eq!(sweep(1011).await?, 1);
    ensure_eq!(position(store, &waiting.key).await?, None);
    late.check(store).await?;
    let last = claim_one(store, 1100).await?;
    ensure!(store.end_claim(&last, acknowledged(3, 1100)).await?);
    ensure_eq!(sweep(1101).await?, 1);
    // Only the log and the configurations: they stay and go together.
    let mut task = task(store, "ada", "log", &["a", "b"]).await?;
    update(store, &mut task, 2000).await?;
    end(store, &mut task, 2001).await?;
    policy.finished = None;
    ensure_eq!(store.sweep(&policy, 2500, &|_| false).await?, SweepResult::default());
    task.check(store).await?;
    let claims = claim(store, 2500).await?;
    ensure!(store.end_claim(&claims[0], acknowledged(3, 2500)).await?);
    ensure_eq!(store.sweep(&policy, 2600, &|_| false).await?, SweepResult::default());
    ensure!(store.end_claim(&claims[1], given_up("gone", 2600, MANY)).await?);
    let swept = store.sweep(&policy, 2600, &|_| false).await?;
    let logs = u64::from(suite.has_separate_retention());
    ensure_eq!(swept, SweepResult { logs, ..SweepResult::default() }, "the dead letter has its own retention");
    task.is_log_deleted = suite.has_separate_retention();
    task.check(store).await?;
    let swept = store.sweep(&policy, 2601, &|_| false).await?;
    ensure_eq!(swept, SweepResult { push_configs: 2 * logs, ..SweepResult::default() });
    Ok(())
}

pub(super) async fn runners_claim_different_deliveries(suite: &StoreSuite) -> Checked {
    const TASKS: usize = 60;
    let opened = suite.open().await;
    let store = &*opened;
    let mut due = 0;
    for n in 0..TASKS {
        let mut task = task(store, "ada", &format!("t-{n:02}"), &["a", "b"]).await?;
        due += update(store, &mut task, 10).await?;
    }
    ensure_eq!(due, 2 * TASKS);
    let mut runners = tokio::task::JoinSet::new();
    for runner in 0..4 {
        let store = opened.shared();
        runners.spawn(async move {
            let mut claimed = Vec::new();
            while store.next_due().await?.is_some_and(|due| due <= 10) {
                claimed.extend(store.claim_due(&Lease::new(&format!("r-{runner}"), 10, LEASE), 7).await?);
            }
            Ok::<_, Unavailable>(claimed)
        });
    }
    let claims = runners.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    let mut claimed = names(&claims);
    claimed.sort_unstable();
    claimed.dedup();
    ensure_eq!((claims.len(), claimed.len()), (2 * TASKS, 2 * TASKS));
    let mut numbers: Vec<u64> = claims.iter().map(|claim| claim.claim).collect();
    numbers.sort_unstable();
    numbers.dedup();
    ensure_eq!(numbers.len(), 2 * TASKS, "claims have different numbers");
    for claim in &claims {
        ensure!(store.end_claim(claim, acknowledged(2, 20)).await?);
    }
    ensure_eq!(store.next_due().await?, None);
    Ok(())
}

/// After an opening, everything is marked in pages, which name the tasks that may still get events. A store that marks in commits
/// needs no marks after an opening.
pub(super) async fn all_deliveries_are_marked_in_pages(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    if store.marks_in_commit() {
        return Ok(());
    }
    let mut expected = Vec::new();
    for (id, configs, state) in [
        ("t-1", &["a", "b"][..], TaskState::Working),
        ("t-2", &[], TaskState::Working),
        ("t-3", &["a"], TaskState::Completed),
        ("t-4", &["a"], TaskState::InputRequired),
        ("t-5", &["a"], TaskState::Failed),
        ("t-6", &["a"], TaskState::Working),
    ] {
        let mut task = task(store, if id == "t-4" { "bob" } else { "ada" }, id, configs).await?;
        task.commit(store, [status(state, 5)]).await??;
        if id == "t-5" || id == "t-6" {
            store.mark_due(std::slice::from_ref(&task.key), 10).await?;
            let claim = claim_one(store, 10).await?;
            if id == "t-5" {
                ensure!(store.end_claim(&claim, acknowledged(2, 10)).await?);
            } else {
                ensure!(store.end_claim(&claim, given_up("gone", 10, MANY)).await?);
            }
        } else if !configs.is_empty() {
            expected.push(task.key);
        }
    }
    expected.sort_unstable();
    for (limit, now) in [(1, 20), (2, 30), (5, 40), (100, 50)] {
        let (mut token, mut keys) = (DeliveryToken::default(), Vec::new());
        loop {
            let page = store.mark_all_due(now, token, limit).await?;
            ensure!(page.keys.len() <= limit, "{} tasks on a page of {limit}", page.keys.len());
            keys.extend(page.keys);
            let Some(next) = page.next else { break };
            ensure!(next != token, "a page does not advance");
            token = next;
        }
        keys.sort_unstable();
        ensure_eq!(keys, expected, "pages of {limit}");
    }
    let claims = claim(store, 20).await?;
    let mut claimed = names(&claims);
    claimed.sort_unstable();
    ensure_eq!(claimed, [("t-1", "a"), ("t-1", "b"), ("t-3", "a"), ("t-4", "a")]);
    // A terminal task is finished with its last delivery.
    for claim in claims {
        ensure!(store.end_claim(&claim, acknowledged(2, 60)).await?);
    }
    let page = store.mark_all_due(70, DeliveryToken::default(), 100).await?;
    let mut keys: Vec<_> = page.keys.iter().map(TaskKey::id).collect();
    keys.sort_unstable();
    ensure_eq!(keys, ["t-1", "t-4"]);
    Ok(())
}

pub(super) async fn deliveries_are_listed_in_pages(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut expected = Vec::new();
    for (owner, id, configs) in
        [("ada", "t-1", &["a", "b", "c"][..]), ("bob", "t-1", &["a"]), ("bob", "t-2", &["d", "a"])]
    {
        let mut task = task(store, owner, id, configs).await?;
        update(store, &mut task, 10).await?;
        expected.extend(configs.iter().map(|config| (owner.to_owned(), id.to_owned(), (*config).to_owned())));
    }
    for claim in claim(store, 10).await? {
        if claim.config.config.id == "a" {
            ensure!(store.end_claim(&claim, given_up("gone", 20, MANY)).await?);
        }
    }
    let mut dead = expected.clone();
    dead.retain(|(_, _, config)| config == "a");
    for (dead_only, expected) in [(false, expected), (true, dead)] {
        for limit in [1, 2, 3, 6, 7] {
            let (mut token, mut listed) = (DeliveryToken::default(), Vec::new());
            loop {
                let page = store.deliveries(dead_only, token, limit).await?;
                ensure!(page.deliveries.len() == limit || page.next.is_none());
                for Delivery { key, config, seq, state } in page.deliveries {
                    ensure_eq!((seq, state.cursor, state.dead.is_some()), (2, 1, config.config.id == "a"));
                    ensure_eq!(*config, *push(&config.config.id));
                    listed.push((key.scope().owner.to_string(), key.id().to_owned(), config.config.id.clone()));
                }
                let Some(next) = page.next else { break };
                token = next;
            }
            ensure_eq!(listed, expected, "pages of {limit}");
        }
    }
    Ok(())
}

/// Tasks without undelivered events are evicted first, whatever their age.
pub(super) async fn undelivered_tasks_are_evicted_last(suite: &StoreSuite) -> Checked {
    for per_owner in [None, Some(4)] {
        let store = &*suite.open_with(4 + usize::from(per_owner.is_some()), per_owner).await;
        let mut tasks = Vec::new();
        for (n, id) in (1..).zip(["t-1", "t-2", "t-3", "t-4"]) {
            let configs: &[&str] = if id == "t-2" { &[] } else { &["a"] };
            let mut task = task(store, "ada", id, configs).await?;
            end(store, &mut task, n).await?;
            tasks.push(task);
        }
        // The third is delivered, the fourth fails, and the first is leased.
        let mut claims = claim(store, 10).await?;
        claims.sort_by(|a, b| a.key.id().cmp(b.key.id()));
        ensure_eq!(names(&claims), [("t-1", "a"), ("t-3", "a"), ("t-4", "a")]);
        ensure!(store.end_claim(&claims[1], acknowledged(2, 10)).await?);
        ensure!(store.end_claim(&claims[2], failed(500)).await?);
        let mut evicted = Vec::new();
        for n in 0..4 {
            task(store, "ada", &format!("new-{n}"), &[]).await?;
            for task in &tasks {
                if position(store, &task.key).await?.is_none() && !evicted.contains(&task.key.id()) {
                    evicted.push(task.key.id());
                }
            }
            ensure_eq!(evicted.len(), n + 1);
        }
        ensure_eq!(evicted, ["t-2", "t-3", "t-1", "t-4"]);
        ensure_eq!((deliveries(store).await?, store.next_due().await?), (Vec::new(), None));
    }
    Ok(())
}

/// Evictions between deliveries that begin and end: the first task is evicted that ended and has nothing to deliver, and
/// otherwise the first one.
pub(super) async fn evictions_follow_the_deliveries(suite: &StoreSuite) -> Checked {
    const TASKS: usize = 12;
    for per_owner in [None, Some(TASKS)] {
        let store = &*suite.open_with(if per_owner.is_some() { 1000 } else { TASKS }, per_owner).await;
        // Stored tasks in the order of their ends, with the claim of those that have undelivered events.
        let mut stored: Vec<(TaskKey, Option<DeliveryClaim>)> = Vec::new();
        let mut random = 7_u64;
        for n in 0..400_i64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let choice = random >> 33;
            let waiting = stored.iter_mut().filter(|(_, claim)| claim.is_some());
            let mut waiting: Vec<_> = waiting.collect();
            if choice % 8 < 3 && !waiting.is_empty() {
                let at = usize::try_from(choice >> 8).unwrap_or(0) % waiting.len();
                if let Some(claim) = waiting[at].1.take() {
                    match choice % 3 {
                        0 => ensure!(store.end_claim(&claim, acknowledged(2, n)).await?),
                        1 => ensure!(store.end_claim(&claim, given_up("gone", n, 1)).await?),
                        _ => ensure!(store.delete_push(&claim.key, "a").await?),
                    }
                }
                continue;
            }
            if stored.len() == TASKS {
                let evicted = stored.iter().position(|(_, claim)| claim.is_none()).unwrap_or(0);
                stored.remove(evicted);
            }
            let has_push = choice % 8 < 7;
            let mut new = TaskWriter::new(&scope("ada", ""), &format!("t-{n}"));
            let push = has_push.then(|| push("a"));
            let begin = Commit { push, ..new.next(store, [status(TaskState::Completed, n)]) };
            write(store, &mut new, begin, n).await?;
            let claim = store.claim_due(&Lease::new("r-1", n, Duration::from_hours(1)), 9).await?.pop();
            ensure_eq!(claim.is_some(), has_push);
            stored.push((new.key, claim));
            for (key, _) in &stored {
                ensure!(position(store, key).await?.is_some(), "{} was evicted at step {n}", key.id());
            }
        }
    }
    Ok(())
}

pub(super) async fn deliveries_survive_a_reopen(suite: &StoreSuite) -> Checked {
    let opened = suite.open().await;
    let store = &*opened;
    let mut tasks = Vec::new();
    for id in ["acked", "dead", "due", "failed", "leased"] {
        let mut task = task(store, "ada", id, &["a"]).await?;
        update(store, &mut task, 10).await?;
        tasks.push(task);
    }
    let mut claims = claim(store, 10).await?;
    claims.sort_by(|a, b| a.key.id().cmp(b.key.id()));
    ensure!(store.end_claim(&claims[0], acknowledged(2, 20)).await?);
    ensure!(store.end_claim(&claims[1], given_up("gone", 30, MANY)).await?);
    ensure!(store.end_claim(&claims[2], acknowledged(1, 40)).await?);
    ensure!(store.end_claim(&claims[3], failed(50)).await?);
    // but not marked.
    let unmarked = &mut tasks[0];
    unmarked.commit(store, [chunk("a", "x", true)]).await??;
    let before = deliveries(store).await?;
    let expected_due: [Option<Millis>; 5] = [None, None, Some(40), Some(50), Some(110)];
    let store = &*opened.reopen().await;
    ensure_eq!(deliveries(store).await?, before);
    for (task, due) in tasks.iter().zip(expected_due) {
        ensure_eq!(state(store, &task.key, "a").await?.due, due, "{}", task.key.id());
    }
    let page = store.mark_all_due(60, DeliveryToken::default(), 100).await?;
    ensure_eq!(page.keys.len(), 4);
    let again = claim(store, 60).await?;
    ensure_eq!(names(&again), [("due", "a"), ("failed", "a"), ("acked", "a")]);
    let largest: u64 = claims.iter().map(|claim| claim.claim).max().unwrap_or_default();
    ensure!(again.iter().all(|claim| claim.claim > largest), "claims are numbered over openings");
    let cursors: Vec<Seq> = again.iter().map(|claim| claim.cursor).collect();
    ensure_eq!(cursors, [1, 1, 2]);
    // The lease of the earlier opening ends by its time.
    ensure_eq!(names(&claim(store, 110).await?), [("leased", "a")]);
    ensure!(!store.end_claim(&claims[4], acknowledged(2, 120)).await?);
    Ok(())
}
