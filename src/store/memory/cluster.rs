//! Store in memory that several replicas in one process share: the reference of [`SharedStore`], for tests of replicas.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    Claim, Commit, Committed, Event, Fence, Full, InUse, Inspect, ListPage, ListQuery, LogSummary, Maintenance, Memory,
    Millis, Position, Refused, Retention, Scope, SendOutcome, Seq, StoreUsage, StoredTask, SweepResult, SyncStore as _,
    TaskEntry, TaskHead, TaskKey, TaskStore, Unavailable, logged_events,
};
use crate::{
    base::{
        clock::whole_millis,
        faults::{Fault, Faults},
    },
    protocol::error::Error,
    store::{
        Acquired, Advance, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage, DeliveryToken,
        Expect, Lease, Load, MAX_MAIL, Mail, MailKind, Note, Posted, PushConfig, PushPage, PushQueue, PushTaskPage,
        PutResult, READ_BATCH, READ_BYTES, Renewal, ReplicaId, ReplicaInfo, SharedStore,
        shared::{DEFAULT_LEASE, freshness},
    },
};

/// Time for which the ids of abandoned new tasks and rejected mail are kept.
const KEPT_FOR: Duration = Duration::from_hours(1);

/// Maximum number of ids of abandoned new tasks.
const MAX_BURNED: usize = 10_000;

/// Number of notes that wait for a replica. Further ones are lost.
const MAX_NOTES: usize = 1024;

/// Store in memory for several replicas, which is lost when the process ends.
///
/// ```
/// use a2a_service::store::{SharedStore as _, memory::{Cluster, Memory}};
///
/// let cluster = Cluster::new(Memory::default(), || 0);
/// let (one, other) = (cluster.replica(), cluster.replica());
/// assert_ne!(one.replica(), other.replica());
/// ```
#[derive(Clone)]
pub struct Cluster(Arc<Core>);

/// Store of one replica of a [`Cluster`]. A clone keeps the id of the replica when the original [joins](SharedStore::join) again,
/// as a request that is delayed on its way to a database does.
pub struct Replica {
    core: Arc<Core>,
    id: AtomicU64,
}

struct Core {
    memory: Memory,
    /// Clock of leases, and of the other times that the store itself decides.
    clock: Box<dyn Fn() -> Millis + Send + Sync>,
    faults: Faults,
    /// Locked before the tasks in `memory`.
    table: Mutex<Table>,
}

/// Everything that the replicas share, except the tasks. Ordered, so that simulations can be repeated.
#[derive(Default)]
struct Table {
    last_replica: u64,
    /// Replicas that have not been declared dead.
    replicas: BTreeMap<ReplicaId, Member>,
    /// Tasks with a runner, open tasks without one, and tasks that have had mail.
    owned: BTreeMap<TaskKey, OwnedTask>,
    /// Tasks that must not be created, and when that was decided.
    burned: BTreeMap<TaskKey, Millis>,
    /// Replica that does a job, and until when.
    jobs: BTreeMap<&'static str, (ReplicaId, Millis)>,
    /// Time of the last renewal of any lease.
    renewed: Millis,
}

struct Member {
    /// Time of the last renewal.
    seen: Millis,
    info: ReplicaInfo,
    load: Load,
    notes: Option<mpsc::Sender<Note>>,
}

/// Runner and mail of a task.
#[derive(Default)]
struct OwnedTask {
    runner: Option<ReplicaId>,
    open: bool,
    /// Number of the last mail.
    mail: u64,
    /// Number of the last mail that was read.
    read: u64,
    /// Unread and rejected mail by number.
    inbox: BTreeMap<u64, (Mail, Option<Rejection>)>,
}

struct Rejection {
    time: Millis,
    error: Error,
}

impl OwnedTask {
    /// Mail after this number that was neither read nor rejected.
    fn unread(&self, after: u64) -> impl Iterator<Item = (u64, &Mail)> {
        let rest = self.inbox.range(self.read.max(after).saturating_add(1)..);
        rest.filter(|(_, (_, rejection))| rejection.is_none()).map(|(number, (mail, _))| (*number, mail))
    }

    fn has_unread(&self) -> bool {
        self.unread(0).next().is_some()
    }
}

impl Table {
    /// Adds a replica with a new id.
    fn add_replica(&mut self, info: ReplicaInfo, now: Millis) -> ReplicaId {
        self.last_replica += 1;
        let id = ReplicaId(self.last_replica);
        self.replicas.insert(id, Member { seen: now, info, load: Load::default(), notes: None });
        id
    }

    /// Records that a replica renews its lease. A time in which none could does not count.
    fn record_renewal(&mut self, now: Millis, faults: Faults) {
        let silence = now.saturating_sub(mem::replace(&mut self.renewed, now));
        if silence > whole_millis(freshness(DEFAULT_LEASE)) && !faults.has(Fault::BuryAfterOutage) {
            self.replicas.values_mut().for_each(|member| member.seen = now.min(member.seen.saturating_add(silence)));
        }
    }

    /// Checks that a replica has not been declared dead.
    fn check_alive(&self, id: ReplicaId) -> Result<&Member, Unavailable> {
        self.replicas
            .get(&id)
            .ok_or_else(|| Unavailable(format!("replica {id} was declared dead and has to join again")))
    }

    fn runner(&self, key: &TaskKey) -> Option<ReplicaId> {
        self.owned.get(key)?.runner
    }

    /// Removes the entry of a task that has no runner, no turn and has had no mail.
    fn forget_idle(&mut self, key: &TaskKey) {
        if self.owned.get(key).is_some_and(|task| task.runner.is_none() && !task.open && task.mail == 0) {
            self.owned.remove(key);
        }
    }
}

impl Cluster {
    /// Creates a cluster without replicas, which keeps its tasks in `memory`. Its own `clock` decides when a lease expires.
    pub fn new(memory: Memory, clock: impl Fn() -> Millis + Send + Sync + 'static) -> Self {
        Self::with_faults(memory, clock, Faults::default())
    }

    /// Creates a cluster with planted bugs.
    #[doc(hidden)]
    pub fn with_faults(memory: Memory, clock: impl Fn() -> Millis + Send + Sync + 'static, faults: Faults) -> Self {
        Self(Arc::new(Core { memory, clock: Box::new(clock), faults, table: Mutex::default() }))
    }

    /// Adds a replica. Returns its store.
    pub fn replica(&self) -> Replica {
        let (mut table, now) = (self.0.table.lock(), self.0.now());
        table.record_renewal(now, self.0.faults);
        let id = table.add_replica(ReplicaInfo::default(), now);
        drop(table);
        Replica { core: Arc::clone(&self.0), id: id.0.into() }
    }
}

impl Core {
    fn now(&self) -> Millis {
        (self.clock)()
    }

    fn row(&self, key: &TaskKey) -> Option<(Position, TaskHead)> {
        self.memory.with(key, |entry| (entry.position, entry.row.clone()))
    }

    /// Raises the fence of a task.
    fn raise_fence(&self, entry: &mut TaskEntry) {
        let now = Fence::try_from(self.now()).unwrap_or_default();
        entry.position.fence = now.max(entry.position.fence.saturating_add(1));
    }

    /// Makes a replica the runner of a task.
    fn take(&self, table: &mut Table, me: ReplicaId, key: &TaskKey) -> Option<StoredTask> {
        let open = self.memory.with_mut(key, |entry| {
            if !self.faults.has(Fault::KeepFence) {
                self.raise_fence(entry);
            }
            let row = &mut entry.row;
            row.attempt = row.attempt.saturating_add(u32::from(row.open && row.attempt > 0));
            row.open
        })?;
        let task = table.owned.entry(key.clone()).or_default();
        (task.runner, task.open) = (Some(me), open);
        self.memory.stored(key)
    }

    fn commit(&self, table: &mut Table, me: ReplicaId, commit: &Commit) -> Result<Committed, Refused> {
        let (key, current) = (&commit.key, self.row(&commit.key));
        let position = current.as_ref().map(|(position, _)| *position);
        let mut change = Cow::Borrowed(commit);
        let is_owned = match commit.expect {
            Expect::New => !table.burned.contains_key(key),
            Expect::At(_) => table.runner(key) == Some(me),
        };
        if self.faults.has(Fault::CompareOnlySeq) {
            if let (Expect::At(expected), Some(position)) = (&commit.expect, position)
                && expected.seq == position.seq
            {
                change.to_mut().expect = Expect::At(position);
            }
        } else if !is_owned || !table.replicas.contains_key(&me) {
            return Err(Refused::Stale(position));
        }
        let is_canceled = current.is_some_and(|(_, row)| row.cancel_requested);
        if is_canceled && !commit.row.cancel_requested && !self.faults.has(Fault::OverwriteCancel) {
            change.to_mut().row.cancel_requested = true;
        }
        if self.faults.has(Fault::IgnoreDuplicates) {
            change.to_mut().sends.retain(|send| self.memory.earlier_send(key.scope(), &send.key).is_none());
        }
        self.memory.commit_sync(&change)?;
        let has_push = self.memory.with(key, |entry| entry.push.is_some()).unwrap_or(false);
        if has_push {
            _ = self.memory.mark_task_due(key, commit.time);
        }
        let task = table.owned.entry(key.clone()).or_default();
        task.read = task.read.max(commit.mail_read.min(task.mail));
        task.inbox.retain(|number, (_, rejection)| *number > task.read || rejection.is_some());
        task.open = commit.row.open;
        let unread_mail = task.has_unread() && !self.faults.has(Fault::IgnoreUnreadMail);
        task.runner = (unread_mail || commit.row.open).then_some(me);
        table.forget_idle(key);
        // Once there are more entries than tasks can exist.
        if table.owned.len() > self.memory.max_tasks {
            self.remove_deleted(table);
        }
        Ok(Committed { unread_mail, has_push })
    }

    /// Removes the entries of tasks that were deleted.
    fn remove_deleted(&self, table: &mut Table) {
        table.owned.retain(|key, _| self.memory.with(key, |_| ()).is_some());
    }
}

impl Clone for Replica {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), id: self.replica().0.into() }
    }
}

#[async_trait]
impl SharedStore for Replica {
    fn replica(&self) -> ReplicaId {
        ReplicaId(self.id.load(Ordering::Acquire))
    }

    async fn join(&self, info: &ReplicaInfo) -> Result<ReplicaId, Unavailable> {
        let (mut table, now) = (self.core.table.lock(), self.core.now());
        table.record_renewal(now, self.core.faults);
        if let Some(member) = table.replicas.get_mut(&self.replica()) {
            (member.seen, member.info) = (now, info.clone());
        } else {
            self.id.store(table.add_replica(info.clone(), now).0, Ordering::Release);
        }
        Ok(self.replica())
    }

    async fn renew(&self, load: Load) -> Result<Renewal, Unavailable> {
        let (mut table, now) = (self.core.table.lock(), self.core.now());
        if !table.replicas.contains_key(&self.replica()) {
            return Ok(Renewal::Lost);
        }
        table.record_renewal(now, self.core.faults);
        let Some(member) = table.replicas.get_mut(&self.replica()) else { return Ok(Renewal::Lost) };
        (member.seen, member.load) = (now, load);
        Ok(Renewal::Alive)
    }

    async fn bury(&self, older: Duration) -> Result<Vec<ReplicaId>, Unavailable> {
        let (mut table, now) = (self.core.table.lock(), self.core.now());
        let has_renewed_since = |time| table.replicas.get(&self.replica()).is_some_and(|me| me.seen >= time);
        let is_fresh = has_renewed_since(now.saturating_sub(whole_millis(freshness(older))));
        if !is_fresh && !self.core.faults.has(Fault::BuryAfterOutage) {
            return Ok(Vec::new());
        }
        let cutoff = now.saturating_sub(whole_millis(older));
        Ok(table.replicas.extract_if(.., |_, member| member.seen < cutoff).map(|(id, _)| id).collect())
    }

    async fn acquire(&self, key: &TaskKey) -> Result<Acquired, Unavailable> {
        let (core, me) = (&self.core, self.replica());
        let mut table = core.table.lock();
        table.check_alive(me)?;
        let Some((_, row)) = core.row(key) else { return Ok(Acquired::NotFound) };
        if row.state.is_terminal() {
            return Ok(Acquired::Ended);
        }
        match table.runner(key) {
            Some(runner) if runner != me && table.replicas.contains_key(&runner) => Ok(Acquired::Elsewhere(runner)),
            _ => Ok(core.take(&mut table, me, key).map_or(Acquired::NotFound, |task| Acquired::Owned(Box::new(task)))),
        }
    }

    async fn owned(&self, after: Option<&TaskKey>, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let (table, me) = (self.core.table.lock(), Some(self.replica()));
        let owned =
            table.owned.iter().filter(|(key, task)| task.runner == me && after.is_none_or(|after| *key > after));
        Ok(owned.map(|(key, _)| key.clone()).take(limit).collect())
    }

    async fn release(&self, tasks: &[(TaskKey, Fence)]) -> Result<(), Unavailable> {
        let (mut table, me) = (self.core.table.lock(), Some(self.replica()));
        for (key, fence) in tasks {
            let is_current = self.core.row(key).is_some_and(|(position, _)| position.fence == *fence);
            let task = table.owned.get_mut(key).filter(|task| is_current && task.runner == me && !task.has_unread());
            if let Some(task) = task {
                task.runner = None;
                table.forget_idle(key);
            }
        }
        Ok(())
    }

    async fn post(&self, key: &TaskKey, mail: &Mail) -> Result<Posted, Unavailable> {
        let mut table = self.core.table.lock();
        let Some((_, row)) = self.core.row(key) else { return Ok(Posted::NoRunner) };
        if self.core.memory.earlier_send(key.scope(), &mail.key).is_some() {
            return Ok(Posted::Duplicate { number: None });
        }
        let Some(task) = table.owned.get_mut(key) else {
            return Ok(if row.state.is_terminal() { Posted::Ended } else { Posted::NoRunner });
        };
        if let Some((number, _)) = task.unread(0).find(|(_, earlier)| earlier.key == mail.key) {
            return Ok(Posted::Duplicate { number: Some(number) });
        }
        Ok(match task.runner {
            _ if row.state.is_terminal() => Posted::Ended,
            None => Posted::NoRunner,
            Some(_) if task.inbox.len() >= MAX_MAIL => Posted::Full,
            Some(runner) => {
                task.mail += 1;
                task.inbox.insert(task.mail, (mail.clone(), None));
                if mail.kind == MailKind::Cancel {
                    _ = self.core.memory.with_mut(key, |entry| entry.row.cancel_requested = true);
                }
                Posted::To { runner, number: task.mail }
            }
        })
    }

    async fn mail(&self, key: &TaskKey, after: u64) -> Result<Vec<(u64, Mail)>, Unavailable> {
        let (table, mut bytes) = (self.core.table.lock(), 0);
        let unread = table.owned.get(key).into_iter().flat_map(|task| task.unread(after));
        let up_to_bytes = unread.take_while(|(_, mail)| {
            let is_first = bytes == 0;
            bytes += mail.body.len() + mail.key.len() + size_of::<Mail>();
            is_first || bytes <= READ_BYTES
        });
        Ok(up_to_bytes.map(|(number, mail)| (number, mail.clone())).collect())
    }

    async fn reject_mail(&self, key: &TaskKey, number: u64, error: &Error) -> Result<(), Unavailable> {
        let (mut table, me) = (self.core.table.lock(), Some(self.replica()));
        let task = table.owned.get_mut(key).filter(|task| task.runner == me);
        if let Some((_, rejection)) = task.and_then(|task| task.inbox.get_mut(&number)) {
            *rejection = Some(Rejection { time: self.core.now(), error: error.clone() });
        }
        Ok(())
    }

    async fn rejection(&self, key: &TaskKey, number: u64) -> Result<Option<Error>, Unavailable> {
        let table = self.core.table.lock();
        let mail = table.owned.get(key).and_then(|task| task.inbox.get(&number));
        Ok(mail.and_then(|(_, rejection)| Some(rejection.as_ref()?.error.clone())))
    }

    async fn unread(&self, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let (table, me) = (self.core.table.lock(), Some(self.replica()));
        let unread = table.owned.iter().filter(|(_, task)| task.runner == me && task.has_unread());
        Ok(unread.map(|(key, _)| key.clone()).take(limit).collect())
    }

    async fn follow(&self, at: &[(TaskKey, Position)]) -> Result<Vec<(TaskKey, Option<Advance>)>, Unavailable> {
        let (table, mut changed, mut bytes) = (self.core.table.lock(), Vec::new(), 0);
        for (key, at) in at {
            let advance = self.core.memory.with(key, |entry| {
                let read = || logged_events(entry, key, at.seq, READ_BATCH, READ_BYTES);
                (entry.position != *at).then(|| (entry.position, entry.row.clone(), read()))
            });
            let advance = match advance {
                Some(None) => continue,
                Some(Some((position, row, events))) => {
                    bytes += events.iter().map(Event::approximate_size).sum::<usize>();
                    Some(Advance { position, row, runner: table.runner(key), events })
                }
                None => None,
            };
            changed.push((key.clone(), advance));
            if bytes >= READ_BYTES {
                break;
            }
        }
        Ok(changed)
    }

    async fn lead(&self, job: &'static str, time: Duration) -> Result<bool, Unavailable> {
        let (mut table, now, me) = (self.core.table.lock(), self.core.now(), self.replica());
        let is_free = table.jobs.get(job).is_none_or(|(leader, until)| *leader == me || *until < now);
        if is_free {
            table.jobs.insert(job, (me, now.saturating_add(whole_millis(time))));
        }
        Ok(is_free)
    }

    async fn leave(&self) -> Result<(), Unavailable> {
        self.core.table.lock().replicas.remove(&self.replica());
        Ok(())
    }

    async fn burn(&self, key: &TaskKey, expect: &Expect) -> Result<bool, Unavailable> {
        let mut table = self.core.table.lock();
        Ok(match (expect, self.core.row(key)) {
            (Expect::New, None) => {
                let may_burn = table.burned.contains_key(key) || table.burned.len() < MAX_BURNED;
                if may_burn {
                    table.burned.insert(key.clone(), self.core.now());
                }
                may_burn
            }
            (Expect::At(expected), Some((position, row))) if *expected == position && !row.open => {
                _ = self.core.memory.with_mut(key, |entry| self.core.raise_fence(entry));
                if let Some(task) = table.owned.get_mut(key).filter(|task| !task.has_unread()) {
                    task.runner = None;
                }
                table.forget_idle(key);
                true
            }
            (Expect::New | Expect::At(_), _) => false,
        })
    }

    fn wake(&self, to: Option<ReplicaId>, note: Note) {
        let (table, me) = (self.core.table.lock(), self.replica());
        let recipient = if let Some(id) = to {
            table.replicas.get(&id)
        } else {
            // The next one in the order of ids.
            let others = table.replicas.range(me..).chain(table.replicas.range(..me));
            others.filter(|(id, _)| **id != me).map(|(_, member)| member).find(|member| !member.load.draining)
        };
        if let Some(notes) = recipient.and_then(|member| member.notes.as_ref()) {
            // A replica with this many notes polls soon.
            drop(notes.try_send(note));
        }
    }

    fn notes(&self) -> mpsc::Receiver<Note> {
        let (sender, receiver) = mpsc::channel(MAX_NOTES);
        if let Some(member) = self.core.table.lock().replicas.get_mut(&self.replica()) {
            member.notes = Some(sender);
        }
        receiver
    }

    fn faults(&self) -> Faults {
        self.core.faults
    }
}

#[async_trait]
impl Maintenance for Replica {
    async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Unavailable> {
        let (mut table, me) = (self.core.table.lock(), self.replica());
        let free_turns = table.check_alive(me)?.load.free_turns;
        self.core.remove_deleted(&mut table);
        let is_dead = |runner: &ReplicaId| !table.replicas.contains_key(runner);
        let dead = table.owned.iter().filter(|(_, task)| task.runner.as_ref().is_some_and(is_dead));
        let mut keys: Vec<TaskKey> = dead.map(|(key, _)| key.clone()).take(limit).collect();
        let free = table.owned.iter().filter(|(_, task)| task.runner.is_none() && task.open);
        let mut free: Vec<_> = free.filter_map(|(key, _)| Some((self.core.row(key)?.1.time, key.clone()))).collect();
        free.sort_unstable();
        let max_free = usize::try_from(free_turns).unwrap_or(usize::MAX).min(limit - keys.len());
        keys.extend(free.into_iter().take(max_free).map(|(_, key)| key));
        let claim = |key: TaskKey| Some((key.clone(), Ok(self.core.take(&mut table, me, &key)?)));
        Ok(keys.into_iter().filter_map(claim).collect())
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        let has_runner = |key: &TaskKey| self.core.table.lock().runner(key).is_some();
        let swept = self.core.memory.sweep(policy, now, &|key| in_use(key) || has_runner(key)).await;
        let (mut table, expired) = (self.core.table.lock(), self.core.now().saturating_sub(whole_millis(KEPT_FOR)));
        table.burned.retain(|_, time| *time >= expired);
        for task in table.owned.values_mut() {
            let is_expired = |rejection: &Rejection| rejection.time < expired;
            task.inbox.retain(|_, (_, rejection)| !rejection.as_ref().is_some_and(is_expired));
        }
        self.core.remove_deleted(&mut table);
        swept
    }

    async fn check(&self) -> Result<(), Unavailable> {
        self.core.table.lock().check_alive(self.replica()).map(drop)
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(&self.core.memory)
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        self.core.memory.idle_tasks(before, skip, limit).await
    }

    async fn usage(&self) -> Result<StoreUsage, Unavailable> {
        self.core.memory.usage().await
    }
}

/// Implements a trait with some methods of a replica, and others that are those of the tasks in memory.
macro_rules! with_memory {
    (
        impl $trait:ident { $($own:tt)* }
        $(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+
    ) => {
        #[async_trait]
        impl $trait for Replica {
            $($own)*

            $(async fn $name(&self, $($argument: $type),*) -> Result<$result, Unavailable> {
                $trait::$name(&self.core.memory, $($argument),*).await
            })+
        }
    };
}

with_memory! {
    impl TaskStore {
        fn first_fence(&self) -> Fence {
            self.core.memory.first_fence()
        }

        fn shared(&self) -> Option<&dyn SharedStore> {
            Some(self)
        }

        fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
            self.core.memory.check_capacity(scope)
        }

        async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable> {
            let (mut table, me) = (self.core.table.lock(), self.replica());
            Ok(batch.iter().map(|commit| self.core.commit(&mut table, me, commit)).collect())
        }
    }
    fn load(key: &TaskKey) -> Option<StoredTask>;
    fn events(key: &TaskKey, after: Seq, limit: usize, max_bytes: usize) -> Vec<Event>;
    fn find_send(scope: &Arc<Scope>, key: &str) -> Option<SendOutcome>;
    fn list(query: &ListQuery) -> ListPage;
    fn log_summary(key: &TaskKey) -> LogSummary;
    fn context_bytes(scope: &Arc<Scope>, context: &str, max: usize) -> usize;
}

with_memory! {
    impl PushQueue {
        fn marks_in_commit(&self) -> bool {
            true
        }
    }
    fn check_push_capacity(scope: &Scope) -> Result<(), Full>;
    fn put_push(key: &TaskKey, push: Arc<PushConfig>, max: usize) -> PutResult;
    fn get_push(key: &TaskKey, id: &str) -> Option<Arc<PushConfig>>;
    fn list_push(key: &TaskKey, after: u64, limit: usize) -> Option<PushPage>;
    fn delete_push(key: &TaskKey, id: &str) -> bool;
    fn mark_due(keys: &[TaskKey], now: Millis) -> usize;
    fn mark_all_due(now: Millis, after: DeliveryToken, limit: usize) -> PushTaskPage;
    fn next_due() -> Option<Millis>;
    fn oldest_pending() -> Option<Millis>;
    fn claim_due(lease: &Lease, limit: usize) -> Vec<DeliveryClaim>;
    fn end_claim(claim: &DeliveryClaim, outcome: DeliveryOutcome) -> bool;
    fn release_deliveries(runner: &str, now: Millis) -> usize;
    fn undelivered_tasks(keys: &[TaskKey]) -> Vec<TaskKey>;
    fn deliveries(dead_only: bool, after: DeliveryToken, limit: usize) -> DeliveryPage;
    fn task_deliveries(key: &TaskKey) -> Vec<Delivery>;
    fn delivery_counts() -> DeliveryCounts;
    fn retry_delivery(key: &TaskKey, id: &str, now: Millis) -> bool;
}

debug_fields!(Replica { id });

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("replicas", &self.0.table.lock().replicas.len()).finish_non_exhaustive()
    }
}
