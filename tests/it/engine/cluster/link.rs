//! Connection of a replica to the shared store, which delays, loses and reorders requests, responses and notes.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use a2a_service::{
    base::faults::Faults,
    clock::Millis,
    error::Error,
    event::{Event, Fence, Position, Seq},
    store::{
        Acquired, Advance, Claim, Commit, Committed, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome,
        DeliveryPage, DeliveryToken, Expect, Full, InUse, Inspect, Lease, ListPage, ListQuery, Load, LogSummary, Mail,
        Maintenance, Note, Posted, PushConfig, PushPage, PushQueue, PushTaskPage, PutResult, Refused, Renewal,
        ReplicaId, ReplicaInfo, Retention, Scope, SendOutcome, SharedStore, StoreUsage, StoredTask, SweepResult,
        TaskKey, TaskStore, Unavailable, memory::Replica,
    },
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::lockstep::{LocalClock, Network, Time};

/// Probabilities of faults in thousandths, and times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkFaults {
    /// Maximum delay of a request, a response and a note. The minimum is 1 ms.
    pub(crate) max_delay: Time,
    /// Requests that never arrive.
    pub(crate) lost_requests: u64,
    /// Requests whose response never arrives.
    pub(crate) lost_replies: u64,
    /// Requests that arrive only after the replica got an error.
    pub(crate) late_requests: u64,
    /// Commits that arrive only long after the replica got an error.
    pub(crate) late_commits: u64,
    /// Notes that never arrive.
    pub(crate) lost_notes: u64,
    /// Maximum time until the replica gets an error if no response arrives.
    pub(crate) timeout: Time,
}

impl LinkFaults {
    /// Delays only.
    pub(crate) const NONE: Self = Self {
        max_delay: 5,
        lost_requests: 0,
        lost_replies: 0,
        late_requests: 0,
        late_commits: 0,
        lost_notes: 0,
        timeout: 1000,
    };
}

/// Fate of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    Lost,
    ReplyLost,
    Late,
    VeryLate,
}

/// Links of a cluster: those that are cut, and the replicas at their ends.
#[derive(Default)]
pub(crate) struct Links(Mutex<BTreeMap<usize, End>>);

#[derive(Default)]
struct End {
    replica: ReplicaId,
    cut_until: Time,
}

impl Links {
    /// Cuts a link until a time: what arrives at either end meanwhile is lost.
    pub(crate) fn cut(&self, number: usize, until: Time) {
        self.0.lock().entry(number).or_default().cut_until = until;
    }

    fn is_cut(&self, number: usize, now: Time) -> bool {
        self.0.lock().get(&number).is_some_and(|end| now < end.cut_until)
    }

    fn is_replica_cut(&self, replica: ReplicaId, now: Time) -> bool {
        self.0.lock().values().any(|end| end.replica == replica && now < end.cut_until)
    }
}

/// Link of one process to the store, which is the store of that process.
#[derive(Clone)]
pub(crate) struct SimLink {
    network: Arc<Network>,
    links: Arc<Links>,
    number: usize,
    clock: LocalClock,
    replica: Arc<Replica>,
    faults: Arc<Mutex<LinkFaults>>,
}

impl SimLink {
    pub(crate) fn new(
        network: &Arc<Network>,
        links: &Arc<Links>,
        number: usize,
        clock: LocalClock,
        replica: Replica,
        faults: LinkFaults,
    ) -> Self {
        let link = Self {
            network: Arc::clone(network),
            links: Arc::clone(links),
            number,
            clock,
            replica: Arc::new(replica),
            faults: Arc::new(Mutex::new(faults)),
        };
        link.register();
        link
    }

    /// Changes the faults of the link.
    pub(crate) fn set_faults(&self, faults: LinkFaults) {
        *self.faults.lock() = faults;
    }

    /// Records the id of the replica, for notes to it.
    fn register(&self) {
        self.links.0.lock().entry(self.number).or_default().replica = self.replica.replica();
    }

    fn delay(&self) -> Time {
        1 + self.network.below(self.faults.lock().max_delay)
    }

    /// Decides the fate of a request.
    fn fate(&self, name: &str) -> Fate {
        let LinkFaults { lost_requests, lost_replies, late_requests, late_commits, .. } = *self.faults.lock();
        if name == "commit" && self.network.below(1000) < late_commits {
            return Fate::VeryLate;
        }
        match self.network.below(1000) {
            n if n < lost_requests => Fate::Lost,
            n if n < lost_requests + lost_replies => Fate::ReplyLost,
            n if n < lost_requests + lost_replies + late_requests => Fate::Late,
            _ => Fate::Answered,
        }
    }

    /// Sends a request, which runs in the store when it arrives, and waits for the response.
    async fn call<T, F>(
        &self,
        name: &'static str,
        request: impl FnOnce(Arc<Replica>) -> F + Send + 'static,
    ) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Unavailable>> + Send,
    {
        // A request keeps the id that the replica has now.
        let replica = Arc::new(Replica::clone(&self.replica));
        self.call_as(name, replica, request).await
    }

    async fn call_as<T, F>(
        &self,
        name: &'static str,
        replica: Arc<Replica>,
        request: impl FnOnce(Arc<Replica>) -> F + Send + 'static,
    ) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Unavailable>> + Send,
    {
        let (fate, sent) = (self.fate(name), self.clock.now());
        let failure = sent + 1 + self.network.below(self.faults.lock().timeout);
        let arrival = match fate {
            Fate::Late => failure + self.network.below(5 * self.faults.lock().timeout),
            Fate::VeryLate => failure + self.faults.lock().timeout * (8 + self.network.below(4)),
            Fate::Answered | Fate::Lost | Fate::ReplyLost => sent + self.delay(),
        };
        let (link, number) = (self.clone(), self.number);
        self.network.note(format_args!("{number} {name} at {sent}: {fate:?}, arrives at {arrival}"));
        let (reply, response) = oneshot::channel();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let answer = move |reply: &Mutex<Option<oneshot::Sender<_>>>, outcome| {
            if let Some(reply) = reply.lock().take() {
                drop(reply.send(outcome));
            }
        };
        let timed_out = Arc::clone(&reply);
        self.network.at(failure.max(arrival.min(failure) + 2 * self.faults.lock().max_delay), move || {
            answer(&timed_out, Err(Unavailable(format!("no response to {name}"))));
        });
        if !matches!(fate, Fate::Lost) {
            self.network.at(arrival, move || {
                if link.links.is_cut(number, link.network.now()) {
                    return link.network.note(format_args!("{number} {name} is cut off"));
                }
                let outcome = drive(request(replica));
                link.network.note(format_args!("{number} {name} done: {}", outcome.is_ok()));
                if matches!(fate, Fate::Answered) {
                    let (back, network) = (link.network.now() + link.delay(), Arc::clone(&link.network));
                    network.at(back, move || {
                        if !link.links.is_cut(number, link.network.now()) {
                            answer(&reply, outcome);
                        }
                    });
                }
            });
        }
        self.clock.interrupt();
        response.await.unwrap_or_else(|_| Err(Unavailable("the connection was lost".to_owned())))
    }
}

/// Runs a request of the store in memory, which never waits for anything.
fn drive<T>(request: impl Future<Output = T>) -> T {
    let (mut request, mut context) = (pin!(request), Context::from_waker(Waker::noop()));
    for _ in 0..100_000 {
        if let Poll::Ready(output) = request.as_mut().poll(&mut context) {
            return output;
        }
    }
    panic!("the store in memory waits");
}

/// Implements a part of a store by requests: first the borrowed arguments of each, then the others.
macro_rules! remote {
    (
        impl $part:ident {
            $(async fn $name:ident($(&$borrowed:ident: $target:ty),*; $($value:ident: $type:ty),*) -> $result:ty;)+
        }
        $($local:tt)*
    ) => {
        #[tonic::async_trait]
        impl $part for SimLink {
            $(async fn $name(&self, $($borrowed: &$target,)* $($value: $type),*) -> Result<$result, Unavailable> {
                $(let $borrowed = $borrowed.to_owned();)*
                let request = move |store: Arc<Replica>| async move {
                    $part::$name(&*store, $(&$borrowed,)* $($value),*).await
                };
                self.call(stringify!($name), request).await
            })+

            $($local)*
        }
    };
}

remote! {
    impl TaskStore {
        async fn commit(; batch: Arc<[Commit]>) -> Vec<Result<Committed, Refused>>;
        async fn load(&key: TaskKey;) -> Option<StoredTask>;
        async fn events(&key: TaskKey; after: Seq, limit: usize, max_bytes: usize) -> Vec<Event>;
        async fn find_send(&scope: Arc<Scope>, &key: str;) -> Option<SendOutcome>;
        async fn list(&query: ListQuery;) -> ListPage;
        async fn log_summary(&key: TaskKey;) -> LogSummary;
        async fn context_bytes(&scope: Arc<Scope>, &context: str; max: usize) -> usize;
    }

    fn first_fence(&self) -> Fence {
        self.replica.first_fence()
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }

    fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
        self.replica.check_capacity(scope)
    }
}

remote! {
    impl PushQueue {
        async fn check_push_capacity(&scope: Scope;) -> Result<(), Full>;
        async fn put_push(&key: TaskKey; push: Arc<PushConfig>, max: usize) -> PutResult;
        async fn get_push(&key: TaskKey, &id: str;) -> Option<Arc<PushConfig>>;
        async fn list_push(&key: TaskKey; after: u64, limit: usize) -> Option<PushPage>;
        async fn delete_push(&key: TaskKey, &id: str;) -> bool;
        async fn mark_due(&keys: [TaskKey]; now: Millis) -> usize;
        async fn mark_all_due(; now: Millis, after: DeliveryToken, limit: usize) -> PushTaskPage;
        async fn next_due(;) -> Option<Millis>;
        async fn oldest_pending(;) -> Option<Millis>;
        async fn claim_due(&lease: Lease; limit: usize) -> Vec<DeliveryClaim>;
        async fn end_claim(&claim: DeliveryClaim; outcome: DeliveryOutcome) -> bool;
        async fn release_deliveries(&runner: str; now: Millis) -> usize;
        async fn undelivered_tasks(&keys: [TaskKey];) -> Vec<TaskKey>;
        async fn deliveries(; dead_only: bool, after: DeliveryToken, limit: usize) -> DeliveryPage;
        async fn task_deliveries(&key: TaskKey;) -> Vec<Delivery>;
        async fn delivery_counts(;) -> DeliveryCounts;
        async fn retry_delivery(&key: TaskKey, &id: str; now: Millis) -> bool;
    }

    fn marks_in_commit(&self) -> bool {
        self.replica.marks_in_commit()
    }
}

remote! {
    impl Maintenance {
        async fn claim(; limit: usize) -> Vec<Claim>;
        async fn idle_tasks(; before: Millis, skip: usize, limit: usize) -> Vec<TaskKey>;
        async fn check(;) -> ();
        async fn usage(;) -> StoreUsage;
    }

    // Never late, since it borrows from the process.
    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        self.check().await?;
        self.replica.sweep(policy, now, in_use).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        self.replica.inspect()
    }
}

remote! {
    impl SharedStore {
        async fn renew(; load: Load) -> Renewal;
        async fn bury(; older: Duration) -> Vec<ReplicaId>;
        async fn acquire(&key: TaskKey;) -> Acquired;
        async fn release(&tasks: [(TaskKey, Fence)];) -> ();
        async fn post(&key: TaskKey, &mail: Mail;) -> Posted;
        async fn mail(&key: TaskKey; after: u64) -> Vec<(u64, Mail)>;
        async fn rejection(&key: TaskKey; number: u64) -> Option<Error>;
        async fn unread(; limit: usize) -> Vec<TaskKey>;
        async fn follow(&at: [(TaskKey, Position)];) -> Vec<(TaskKey, Option<Advance>)>;
        async fn lead(; job: &'static str, time: Duration) -> bool;
        async fn leave(;) -> ();
        async fn burn(&key: TaskKey, &expect: Expect;) -> bool;
    }

    fn replica(&self) -> ReplicaId {
        self.replica.replica()
    }

    async fn join(&self, info: &ReplicaInfo) -> Result<ReplicaId, Unavailable> {
        let info = info.clone();
        // Changes the id of the process, unlike other requests.
        let join = move |replica: Arc<Replica>| async move { replica.join(&info).await };
        let joined = self.call_as("join", Arc::clone(&self.replica), join).await;
        self.register();
        joined
    }

    async fn owned(&self, after: Option<&TaskKey>, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let after = after.cloned();
        self.call("owned", move |store| async move { store.owned(after.as_ref(), limit).await }).await
    }

    async fn reject_mail(&self, key: &TaskKey, number: u64, error: &Error) -> Result<(), Unavailable> {
        let (key, error) = (key.clone(), error.clone());
        self.call("reject_mail", move |store| async move { store.reject_mail(&key, number, &error).await }).await
    }

    fn wake(&self, to: Option<ReplicaId>, note: Note) {
        let (arrival, is_lost) = (self.clock.now() + self.delay(), self.network.below(1000));
        if is_lost < self.faults.lock().lost_notes {
            return self.network.note(format_args!("{} loses {note:?}", self.number));
        }
        let link = self.clone();
        self.network.at(arrival, move || {
            let now = link.network.now();
            let is_cut = |to| link.links.is_replica_cut(to, now);
            if !link.links.is_cut(link.number, now) && !to.is_some_and(is_cut) {
                link.network.note(format_args!("{} sends {note:?} to {to:?}", link.number));
                link.replica.wake(to, note);
            }
        });
        self.clock.interrupt();
    }

    fn notes(&self) -> mpsc::Receiver<Note> {
        self.replica.notes()
    }

    fn faults(&self) -> Faults {
        self.replica.faults()
    }
}
