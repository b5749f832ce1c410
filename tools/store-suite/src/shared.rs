//! Cases of stores that several replicas share: ownership, fences, claims, mail, abandoned changes, followers and leases. Each
//! case opens its store twice.

use std::time::Duration;

use super::{
    Checked, Failure, StoreSuite, TestStore, acknowledged,
    delivery::push,
    finished, keyed, load, position,
    writer::{TaskWriter, chunk, message, scope, status},
};
use a2a_service::{
    error::ErrorKind,
    event::Position,
    pb::v1::TaskState,
    store::{
        Acquired, Commit, Committed, Expect, Lease, Load, Mail, MailKind, Posted, Refused, Rejected, Renewal,
        ReplicaInfo, SharedStore, Store, StoredTask, TaskHead, TaskKey, Unavailable,
    },
};

/// Store of a replica, with its shared operations.
struct Replica<'a>(TestStore<'a>);

impl Replica<'_> {
    fn shared(&self) -> Result<&dyn SharedStore, Failure> {
        self.0.store.shared().ok_or_else(|| Failure::new("the store has no shared operations".to_owned()))
    }

    fn store(&self) -> &dyn Store {
        &*self.0
    }

    /// Acquires a task that must be free.
    async fn acquire(&self, key: &TaskKey) -> Result<StoredTask, Failure> {
        match self.shared()?.acquire(key).await? {
            Acquired::Owned(stored) => Ok(*stored),
            refused @ (Acquired::Elsewhere(_) | Acquired::Ended | Acquired::NotFound) => {
                Err(Failure::new(format!("task {} was not acquired: {refused:?}", key.id())))
            }
        }
    }

    /// Commits one change.
    async fn commit(&self, commit: Commit) -> Result<Result<Committed, Refused>, Failure> {
        let mut outcomes = self.store().commit([commit].into()).await?;
        outcomes.pop().ok_or_else(|| Failure::new("a commit has no outcome".to_owned()))
    }

    /// Claims tasks, none of which is damaged.
    async fn claim(&self, limit: usize) -> Result<Vec<(TaskKey, StoredTask)>, Failure> {
        let claims = self.store().claim(limit).await?.into_iter();
        let undamaged = |(key, stored): (_, Result<_, _>)| Some((key, stored.ok()?));
        Ok(claims.filter_map(undamaged).collect())
    }
}

async fn replicas(suite: &StoreSuite) -> Result<(Replica<'_>, Replica<'_>), Failure> {
    let one = suite.open().await;
    let other = one.opened_again().await;
    Ok((Replica(one), Replica(other)))
}

/// Creates a task whose turn runs on a replica.
async fn running(replica: &Replica<'_>, id: &str) -> Result<TaskWriter, Failure> {
    let mut task = TaskWriter::new(&scope("ada", ""), id);
    task.commit(replica.store(), [status(TaskState::Working, 5)]).await??;
    Ok(task)
}

/// Creates a change that ends the turn, but not the task.
fn closing(task: &TaskWriter, store: &dyn Store) -> Commit {
    let commit = task.next(store, [status(TaskState::InputRequired, 6)]);
    Commit { row: TaskHead { open: false, ..commit.row }, ..commit }
}

fn mail(kind: MailKind, key: &str) -> Mail {
    Mail { kind, key: key.into(), hash: [7; 16], body: "body".into() }
}

/// Numbers and keys of the unread mail of a task.
async fn unread(replica: &Replica<'_>, key: &TaskKey, after: u64) -> Result<Vec<(u64, String)>, Failure> {
    let unread = replica.shared()?.mail(key, after).await?.into_iter();
    Ok(unread.map(|(number, mail)| (number, mail.key.into())).collect())
}

pub(super) async fn acquisition_tells_the_runner(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    ensure!(one.shared()?.replica() != other.shared()?.replica());
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    ensure!(matches!(other.shared()?.acquire(&task.key).await?, Acquired::NotFound));
    task.commit(one.store(), []).await??;
    let elsewhere = other.shared()?.acquire(&task.key).await?;
    ensure!(matches!(&elsewhere, Acquired::Elsewhere(runner) if *runner == one.shared()?.replica()), "{elsewhere:?}");
    ensure_eq!(one.shared()?.owned(None, 9).await?, [task.key.clone()]);
    ensure_eq!(one.shared()?.owned(Some(&task.key), 9).await?, []);
    // An idle task has no runner, whoever ran its last turn.
    ensure_eq!(one.commit(closing(&task, one.store())).await?, Ok(Committed::default()));
    ensure_eq!(one.shared()?.owned(None, 9).await?, []);
    let before = position(other.store(), &task.key).await?;
    let stored = other.acquire(&task.key).await?;
    ensure_eq!((Some(stored.position.seq), stored.row.attempt), (before.map(|before| before.seq), 1));
    ensure!(before.is_some_and(|before| stored.position.fence > before.fence), "{before:?} {:?}", stored.position);
    ensure_eq!(position(one.store(), &task.key).await?, Some(stored.position));
    // Repeated, since a response may be lost.
    task.at = other.acquire(&task.key).await?.position;
    ensure!(task.at.fence > stored.position.fence);
    // Released at another fence, and then at its own.
    for (fence, is_free) in [(stored.position.fence, false), (task.at.fence, true)] {
        other.shared()?.release(&[(task.key.clone(), fence)]).await?;
        let acquired = one.shared()?.acquire(&task.key).await?;
        ensure_eq!(matches!(acquired, Acquired::Owned(_)), is_free, "{acquired:?}");
    }
    task.at = one.acquire(&task.key).await?.position;
    task.commit(one.store(), [status(TaskState::Completed, 7)]).await??;
    ensure!(matches!(one.shared()?.acquire(&task.key).await?, Acquired::Ended));
    Ok(())
}

pub(super) async fn only_the_runner_commits(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut task = running(&one, "t-1").await?;
    let late = task.next(one.store(), [chunk("a", "late", false)]);
    ensure_eq!(other.commit(late.clone()).await?, Err(Refused::Stale(Some(task.at))));
    // Nobody is the runner of an idle task.
    let idle = closing(&task, one.store());
    ensure_eq!(one.commit(idle.clone()).await?, Ok(Committed::default()));
    let at = idle.position();
    let next = Commit { expect: Expect::At(at), ..idle.clone() };
    for replica in [&one, &other] {
        ensure_eq!(replica.commit(next.clone()).await?, Err(Refused::Stale(Some(at))));
    }
    task.record(idle);
    task.at = other.acquire(&task.key).await?.position;
    ensure_eq!(one.commit(late).await?, Err(Refused::Stale(Some(task.at))));
    task.commit(other.store(), [chunk("a", "x", false)]).await??;
    task.check(one.store()).await
}

/// A change is refused if its writer was the runner with an earlier fence, although the sequence number is the same.
pub(super) async fn fenced_runner_is_refused(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut task = running(&one, "t-1").await?;
    let late = task.next(one.store(), [chunk("a", "late", false)]);
    let at = one.acquire(&task.key).await?.position;
    ensure_eq!(one.commit(late.clone()).await?, Err(Refused::Stale(Some(at))));
    one.shared()?.leave().await?;
    let claimed = other.claim(9).await?;
    ensure_eq!(claimed.iter().map(|(key, _)| key).collect::<Vec<_>>(), [&task.key]);
    task.at = claimed[0].1.position;
    ensure!(task.at.fence > at.fence);
    one.shared()?.join(&ReplicaInfo::default()).await?;
    for replica in [&one, &other] {
        ensure_eq!(replica.commit(late.clone()).await?, Err(Refused::Stale(Some(task.at))));
    }
    task.commit(other.store(), [chunk("a", "x", false)]).await??;
    task.check(one.store()).await
}

pub(super) async fn tasks_of_dead_replicas_are_claimed(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let (mut begun, mut queued) = (running(&one, "t-1").await?, TaskWriter::new(&scope("ada", ""), "t-2"));
    let first = queued.next(one.store(), []);
    queued.write(one.store(), Commit { row: TaskHead { attempt: 0, ..first.row }, ..first }).await??;
    let idle = running(&one, "t-3").await?;
    one.commit(closing(&idle, one.store())).await??;
    ensure!(other.claim(9).await?.is_empty(), "the tasks of a replica that is alive were claimed");
    one.shared()?.leave().await?;
    let mut claimed = other.claim(1).await?;
    ensure_eq!(claimed.len(), 1);
    claimed.extend(other.claim(9).await?);
    claimed.sort_by(|a, b| a.0.cmp(&b.0));
    let rows: Vec<_> = claimed.iter().map(|(key, stored)| (key, stored.row.attempt)).collect();
    ensure_eq!(rows, [(&begun.key, 2), (&queued.key, 0)]);
    ensure!(other.claim(9).await?.is_empty());
    for (task, (_, stored)) in [&mut begun, &mut queued].into_iter().zip(claimed) {
        ensure!(stored.position.fence > task.at.fence && stored.position.seq == task.at.seq);
        task.at = stored.position;
        task.commit(other.store(), [status(TaskState::Completed, 9)]).await??;
        task.check(other.store()).await?;
    }
    Ok(())
}

pub(super) async fn released_turns_are_claimed_by_replicas_with_free_turns(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    for id in ["t-1", "t-2"] {
        let task = running(&one, id).await?;
        one.shared()?.release(&[(task.key.clone(), task.at.fence)]).await?;
        let more = task.next(one.store(), [message("more")]);
        ensure_eq!(one.commit(more).await?, Err(Refused::Stale(Some(task.at))));
    }
    for (free_turns, claimed) in [(0, 0), (1, 1), (9, 1), (9, 0)] {
        other.shared()?.renew(Load { free_turns, ..Load::default() }).await?;
        ensure_eq!(other.claim(9).await?.len(), claimed, "with {free_turns} free turns");
    }
    ensure_eq!(other.shared()?.owned(None, 9).await?.len(), 2);
    Ok(())
}

pub(super) async fn mail_is_read_in_order(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut task = running(&one, "t-1").await?;
    let runner = one.shared()?.replica();
    for (number, key) in [(1, "a"), (2, "b"), (3, "c")] {
        let posted = other.shared()?.post(&task.key, &mail(MailKind::Message, key)).await?;
        ensure_eq!(posted, Posted::To { runner, number });
    }
    ensure_eq!(
        other.shared()?.post(&task.key, &mail(MailKind::Message, "b")).await?,
        Posted::Duplicate { number: Some(2) }
    );
    let [a, b, c, d] = [(1, "a"), (2, "b"), (3, "c"), (4, "d")].map(|(number, key)| (number, key.to_owned()));
    ensure_eq!(unread(&one, &task.key, 0).await?, [a, b, c.clone()]);
    ensure_eq!(unread(&one, &task.key, 2).await?, std::slice::from_ref(&c));
    let first = one.shared()?.mail(&task.key, 0).await?.swap_remove(0).1;
    ensure_eq!(first, mail(MailKind::Message, "a"));
    ensure_eq!((one.shared()?.unread(9).await?.len(), other.shared()?.unread(9).await?.len()), (1, 0));
    // Read with the commit of their messages, whose keys are recorded.
    let mut sends = keyed("a", 7, 3);
    sends.extend(keyed("b", 7, 4));
    let read = Commit { mail_read: 2, sends, ..task.next(one.store(), [message("a"), message("b")]) };
    ensure!(one.commit(read.clone()).await??.unread_mail);
    task.record(read.clone());
    // Repeated after a lost response.
    ensure_eq!(one.commit(read).await?, Err(Refused::Stale(Some(task.at))));
    ensure_eq!(unread(&one, &task.key, 0).await?, std::slice::from_ref(&c));
    ensure_eq!(
        other.shared()?.post(&task.key, &mail(MailKind::Message, "a")).await?,
        Posted::Duplicate { number: None }
    );
    ensure_eq!(other.shared()?.post(&task.key, &mail(MailKind::Message, "d")).await?, Posted::To { runner, number: 4 });
    // Another runner gets what is unread.
    one.shared()?.leave().await?;
    task.at = other.claim(9).await?.swap_remove(0).1.position;
    ensure_eq!(unread(&other, &task.key, 0).await?, [c, d]);
    ensure_eq!(other.shared()?.unread(9).await?, [task.key.clone()]);
    let read = Commit { mail_read: 4, ..task.next(other.store(), [message("c"), message("d")]) };
    ensure!(!other.commit(read).await??.unread_mail);
    ensure_eq!(unread(&other, &task.key, 0).await?, []);
    Ok(())
}

pub(super) async fn mail_needs_a_runner(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let post = async |key: &TaskKey, mail_key: &str| {
        Ok::<_, Failure>(other.shared()?.post(key, &mail(MailKind::Message, mail_key)).await?)
    };
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    ensure_eq!(post(&task.key, "a").await?, Posted::NoRunner);
    let begin = Commit { sends: keyed("k", 7, 1), ..task.next(one.store(), []) };
    task.write(one.store(), begin).await??;
    ensure_eq!(post(&task.key, "k").await?, Posted::Duplicate { number: None });
    let idle = closing(&task, one.store());
    one.commit(idle.clone()).await??;
    task.record(idle);
    ensure_eq!(post(&task.key, "a").await?, Posted::NoRunner);
    task.at = one.acquire(&task.key).await?.position;
    ensure_eq!(post(&task.key, "a").await?, Posted::To { runner: one.shared()?.replica(), number: 1 });
    let end = Commit { mail_read: 1, ..task.next(one.store(), [status(TaskState::Completed, 7)]) };
    one.commit(end).await??;
    ensure_eq!(post(&task.key, "b").await?, Posted::Ended);
    ensure_eq!(post(&task.key, "k").await?, Posted::Duplicate { number: None });
    Ok(())
}

pub(super) async fn unread_mail_keeps_the_runner(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut task = running(&one, "t-1").await?;
    other.shared()?.post(&task.key, &mail(MailKind::Message, "a")).await?;
    let idle = closing(&task, one.store());
    ensure!(one.commit(idle.clone()).await??.unread_mail);
    task.record(idle);
    one.shared()?.release(&[(task.key.clone(), task.at.fence)]).await?;
    ensure!(matches!(other.shared()?.acquire(&task.key).await?, Acquired::Elsewhere(_)));
    let read = closing(&task, one.store());
    ensure!(!one.commit(Commit { mail_read: 1, ..read }).await??.unread_mail);
    other.acquire(&task.key).await?;
    // The mail of a dead replica is claimed with its idle task.
    other.shared()?.post(&task.key, &mail(MailKind::Message, "b")).await?;
    other.shared()?.leave().await?;
    ensure_eq!(one.claim(9).await?.len(), 1);
    ensure_eq!(unread(&one, &task.key, 0).await?, [(2, "b".to_owned())]);
    Ok(())
}

pub(super) async fn rejected_mail_is_not_unread(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let task = running(&one, "t-1").await?;
    for key in ["a", "b"] {
        other.shared()?.post(&task.key, &mail(MailKind::Message, key)).await?;
    }
    let error = ErrorKind::InvalidParams.because("too many messages wait");
    for replica in [&other, &one] {
        ensure!(other.shared()?.rejection(&task.key, 2).await?.is_none());
        // Only the runner can reject it.
        replica.shared()?.reject_mail(&task.key, 2, &error).await?;
    }
    let rejection = other.shared()?.rejection(&task.key, 2).await?.map(|error| (error.kind(), error.to_string()));
    ensure_eq!(rejection, Some((error.kind(), error.to_string())));
    ensure_eq!(unread(&one, &task.key, 0).await?, [(1, "a".to_owned())]);
    let read = Commit { mail_read: 1, ..closing(&task, one.store()) };
    ensure!(!one.commit(read).await??.unread_mail);
    ensure!(other.shared()?.rejection(&task.key, 2).await?.is_some(), "the poster has not got the error yet");
    // The same message can be sent again.
    other.acquire(&task.key).await?;
    let posted = one.shared()?.post(&task.key, &mail(MailKind::Message, "b")).await?;
    ensure_eq!(posted, Posted::To { runner: other.shared()?.replica(), number: 3 });
    Ok(())
}

pub(super) async fn requested_cancel_is_kept(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut task = running(&one, "t-1").await?;
    let posted = other.shared()?.post(&task.key, &mail(MailKind::Cancel, "cancel")).await?;
    ensure!(matches!(posted, Posted::To { .. }), "{posted:?}");
    ensure!(load(one.store(), &task.key).await?.row.cancel_requested);
    let work = task.next(one.store(), [chunk("a", "x", false)]);
    ensure!(!work.row.cancel_requested);
    let committed = Committed { unread_mail: true, has_push: false };
    ensure_eq!(one.commit(work.clone()).await?, Ok(committed));
    task.record(work);
    ensure!(load(one.store(), &task.key).await?.row.cancel_requested);
    task.check(one.store()).await
}

pub(super) async fn burned_change_is_not_committed(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut new = TaskWriter::new(&scope("ada", ""), "t-1");
    let late = new.next(one.store(), []);
    for _ in 0..2 {
        ensure!(one.shared()?.burn(&new.key, &Expect::New).await?);
    }
    ensure_eq!(new.write(one.store(), late).await?, Err(Refused::Stale(None)));
    ensure!(load(one.store(), &new.key).await.is_err());
    // A task that exists after all, one with an open turn, and one at another position.
    let mut task = running(&one, "t-2").await?;
    ensure!(!one.shared()?.burn(&task.key, &Expect::New).await?);
    ensure!(!one.shared()?.burn(&task.key, &Expect::At(task.at)).await?);
    let idle = closing(&task, one.store());
    one.commit(idle.clone()).await??;
    ensure!(!one.shared()?.burn(&task.key, &Expect::At(task.at)).await?);
    task.record(idle);
    task.at = one.acquire(&task.key).await?.position;
    let late = task.next(one.store(), [message("late")]);
    ensure!(one.shared()?.burn(&task.key, &late.expect).await?);
    ensure!(matches!(one.commit(late).await?, Err(Refused::Stale(Some(_)))));
    task.at = other.acquire(&task.key).await?.position;
    task.commit(other.store(), [message("more")]).await??;
    task.check(one.store()).await
}

pub(super) async fn followers_get_changes(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let (mut task, quiet) = (running(&one, "t-1").await?, running(&one, "t-2").await?);
    let missing = TaskKey::new(&scope("ada", ""), "t-3");
    let before = [(task.key.clone(), task.at), (quiet.key.clone(), quiet.at), (missing.clone(), Position::default())];
    task.commit(one.store(), [chunk("a", "1", false), chunk("a", "2", true)]).await??;
    let mut changes = other.shared()?.follow(&before).await?;
    ensure_eq!(changes.iter().map(|(key, _)| key).collect::<Vec<_>>(), [&task.key, &missing]);
    ensure!(changes[1].1.is_none());
    let change = changes.swap_remove(0).1.ok_or_else(|| Failure::new("the task is missing".to_owned()))?;
    ensure_eq!((change.position, change.row.seq), (task.at, task.at.seq));
    ensure_eq!(change.runner, Some(one.shared()?.replica()));
    ensure_eq!(change.events, task.log[2..]);
    // Another fence alone is a change too.
    let at = task.at;
    one.shared()?.leave().await?;
    other.claim(9).await?;
    let change = one.shared()?.follow(&[(task.key.clone(), at)]).await?.swap_remove(0).1;
    let fields = change.map(|change| (change.position.seq, change.position.fence > at.fence, change.events.len()));
    ensure_eq!(fields, Some((at.seq, true, 0)));
    Ok(())
}

/// Waits for the time of the store.
async fn wait(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the time of a lease has no notification")]
    tokio::time::sleep(time).await;
}

pub(super) async fn one_replica_leads_a_job(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let (long, short) = (Duration::from_mins(1), Duration::from_millis(20));
    for _ in 0..2 {
        ensure!(one.shared()?.lead("sweep", long).await?);
    }
    ensure!(!other.shared()?.lead("sweep", long).await?);
    ensure!(other.shared()?.lead("other", short).await?);
    ensure!(one.shared()?.lead("sweep", short).await?);
    wait(short * 3).await;
    ensure!(other.shared()?.lead("sweep", long).await?);
    ensure!(!one.shared()?.lead("sweep", long).await?);
    Ok(())
}

pub(super) async fn dead_replica_is_refused(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let task = running(&one, "t-1").await?;
    let lost = one.shared()?.replica();
    let lease = Duration::from_secs(1);
    ensure_eq!(one.shared()?.renew(Load::default()).await?, Renewal::Alive);
    ensure_eq!(other.shared()?.bury(lease * 100).await?, []);
    wait(lease / 2).await;
    ensure_eq!(other.shared()?.renew(Load::default()).await?, Renewal::Alive);
    wait(lease).await;
    ensure_eq!(other.shared()?.bury(lease).await?, []);
    ensure_eq!(other.shared()?.renew(Load::default()).await?, Renewal::Alive);
    ensure_eq!(other.shared()?.bury(lease).await?, [lost]);
    ensure_eq!(one.shared()?.renew(Load::default()).await?, Renewal::Lost);
    let work = task.next(one.store(), [chunk("a", "x", false)]);
    ensure_eq!(one.commit(work).await?, Err(Refused::Stale(Some(task.at))));
    let mut new = TaskWriter::new(&scope("ada", ""), "t-2");
    ensure_eq!(one.commit(new.next(one.store(), [])).await?, Err(Refused::Stale(None)));
    ensure!(matches!(one.shared()?.acquire(&task.key).await, Err(Unavailable(_))));
    ensure_eq!(one.shared()?.replica(), lost);
    let info = ReplicaInfo { name: "one".into(), version: 1 };
    let id = one.shared()?.join(&info).await?;
    ensure!(id != lost && id == one.shared()?.replica());
    ensure_eq!(one.shared()?.join(&info).await?, id);
    new.commit(one.store(), []).await??;
    Ok(())
}

pub(super) async fn tasks_with_a_runner_are_not_swept(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let mut task = running(&one, "t-1").await?;
    other.shared()?.post(&task.key, &mail(MailKind::Message, "a")).await?;
    let end = task.next(one.store(), [status(TaskState::Completed, 7)]);
    ensure!(one.commit(end.clone()).await??.unread_mail);
    task.record(end);
    for swept in [0, 1] {
        ensure_eq!(other.store().sweep(&finished(0), 100, &|_| false).await?.tasks, swept);
        one.shared()?.reject_mail(&task.key, 1, &ErrorKind::InvalidParams.error()).await?;
        one.shared()?.release(&[(task.key.clone(), task.at.fence)]).await?;
    }
    Ok(())
}

pub(super) async fn key_of_two_replicas_is_recorded_once(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    let [mut first, mut second] = ["t-1", "t-2"].map(|id| TaskWriter::new(&scope("ada", ""), id));
    let keyed = |task: &TaskWriter| Commit { sends: keyed("k", 7, 1), ..task.next(one.store(), []) };
    let (commit, repeated) = (keyed(&first), keyed(&second));
    ensure_eq!(first.write(one.store(), commit).await?, Ok(()));
    let duplicate = Err(Refused::Rejected(Rejected::Duplicate { task_id: "t-1".into() }));
    ensure_eq!(second.write(other.store(), repeated).await?, duplicate);
    ensure_eq!(position(one.store(), &second.key).await?, None);
    Ok(())
}

pub(super) async fn commits_mark_deliveries(suite: &StoreSuite) -> Checked {
    let (one, other) = replicas(suite).await?;
    if !one.store().marks_in_commit() {
        return Ok(());
    }
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    let begin = Commit { push: Some(push("a")), time: 10, ..task.next(one.store(), []) };
    ensure!(one.commit(begin.clone()).await??.has_push);
    task.record(begin);
    let claimed = other.store().claim_due(&Lease::new("other", 20, Duration::from_secs(1)), 9).await?;
    ensure_eq!(claimed.iter().map(|claim| claim.end).collect::<Vec<_>>(), [1]);
    // A change during the delivery is due after it.
    let more = Commit { time: 30, ..task.next(one.store(), [message("more")]) };
    task.write(one.store(), more).await??;
    ensure!(other.store().end_claim(&claimed[0], acknowledged(1, 40)).await?);
    ensure_eq!(one.store().next_due().await?, Some(40));
    Ok(())
}
