//! Delivery of push notifications: claims due deliveries from the queue of the store, reads the events after their cursors
//! from the log, sends them to the webhooks, and records the outcome.
//!
//! Each configuration gets its events in order and at least once. The agent's commits write nothing for it: they only name
//! the changed tasks in memory, and after a start all tasks with configurations are checked once.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use url::Url;

use super::{
    PushOptions,
    payload::{Form, Notification},
    response::Failure,
    sender::Sender,
    stats::PushStats,
};
use crate::{
    base::{
        clock::{Millis, whole_millis},
        retry::{Backoff, jittered},
        sources::Sources,
    },
    engine::journal::{CommitObserver, StoredContexts},
    protocol::{
        error::Error,
        event::{Ends, Event, Seq},
    },
    store::{
        Attempt, Delivery, DeliveryClaim, DeliveryOutcome, DeliveryToken, EVENTS_PER_CLAIM, Lease, Store, TaskKey,
        Unavailable,
    },
};

/// Maximum number of claims that are sent or wait for their host.
const MAX_CLAIMED: usize = 1024;

/// Maximum number of claims that are taken from the store at once.
const CLAIM_BATCH: usize = 128;

/// Maximum time for which one claim sends notification after notification before its progress is recorded.
const CLAIM_TIME: Duration = Duration::from_secs(5);

/// Maximum number of tasks that are marked or checked at once.
const TASK_BATCH: usize = 1024;

/// Time that a server which stops gives to notifications that are being sent, and after that to the store.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Number of tasks with configurations from which it is checked whether they are still needed.
const MIN_CHECKED_TASKS: usize = 1024;

/// Number of tasks per page when all tasks with configurations are checked.
const TASKS_PER_PAGE: usize = 500;

/// Interval at which the queue is read if nothing else happens: an operator may have changed it.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between two log lines about deliveries that fail or are behind.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Delay before an operation is repeated for which the store was unavailable.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Delays between the attempts of a delivery.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(10) };

/// Number of successive failures of a host after which its circuit breaker opens.
const BREAKER_FAILURES: u32 = 5;

/// Number of hosts above which the failures of those without deliveries are forgotten.
const MAX_HOSTS: usize = 4096;

/// Times for which a circuit breaker stays open, by the number of failed probes.
const BREAKER_OPEN: Backoff = Backoff { first: Duration::from_secs(5), longest: Duration::from_mins(5) };

/// Delivery service of a server. Stops when it is dropped.
pub(crate) struct DeliveryService {
    shared: Arc<Shared>,
    /// Dispatcher, until it is stopped.
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl DeliveryService {
    /// Starts the delivery from a store.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn start(store: Arc<dyn Store>, sources: Sources, options: PushOptions) -> Self {
        let sender = Sender::new(&options, sources.tracing.clone());
        let (tasks, counters, wake, stop) = Default::default();
        let runner = sources.ids.random().into();
        let shared = Arc::new(Shared { store, sources, options, sender, runner, tasks, wake, stop, counters });
        let task = Mutex::new(Some(AbortOnDropHandle::new(tokio::spawn(Arc::clone(&shared).run()))));
        Self { shared, task }
    }

    /// Returns the observer that a journal tells of its commits.
    pub(crate) fn observer(&self) -> Arc<dyn CommitObserver> {
        Arc::<Shared>::clone(&self.shared)
    }

    /// Returns the sender, which checks targets.
    pub(crate) fn sender(&self) -> &Sender {
        &self.shared.sender
    }

    /// Returns the counters and the lag.
    pub(crate) async fn stats(&self) -> Result<PushStats, Unavailable> {
        self.shared.stats().await
    }

    /// Sends a delivery that has become due at once, also if the circuit breaker of its host is open.
    pub(crate) fn retry(&self, Delivery { key, config, .. }: &Delivery) {
        let mut tasks = self.shared.tasks.lock();
        tasks.insert(key);
        tasks.retried.insert(host_of(&config.config.url));
        self.shared.wake.notify_one();
    }

    /// Stops the delivery, and ends the leases of this process, so that the next start delivers at once. Notifications whose
    /// receivers do not answer within [`STOP_GRACE`] are sent again then.
    pub(crate) async fn stop(&self) {
        self.shared.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task {
            _ = task.await;
        }
    }
}

struct Shared {
    /// Store of the events, and of the queue.
    store: Arc<dyn Store>,
    sources: Sources,
    options: PushOptions,
    sender: Sender,
    /// Name of this process in the leases of the store.
    runner: Box<str>,
    tasks: Mutex<Tasks>,
    /// Wakes the dispatcher.
    wake: Notify,
    /// Canceled when the server stops.
    stop: CancellationToken,
    /// Without the lag.
    counters: Mutex<PushStats>,
}

/// Tasks with configurations.
#[derive(Default)]
struct Tasks {
    /// Tasks whose events are delivered.
    known: HashSet<TaskKey>,
    /// Known tasks that have changed since they were last marked in the store.
    changed: HashSet<TaskKey>,
    /// Known tasks that may have no more configurations or events.
    doubtful: HashSet<TaskKey>,
    /// Number of known tasks after the last check of all of them.
    checked: usize,
    /// Hosts to which an operator retries deliveries, so that their circuit breakers let one through.
    retried: HashSet<Box<str>>,
}

impl Tasks {
    fn take(keys: &mut HashSet<TaskKey>) -> Vec<TaskKey> {
        keys.extract_if(|_| true).take(TASK_BATCH).collect()
    }

    /// Adds a task. Once there are twice as many as after the last check, all are checked.
    fn insert(&mut self, key: &TaskKey) {
        if self.known.contains(key) {
            return;
        }
        if self.known.len() >= MIN_CHECKED_TASKS.max(2 * self.checked) {
            self.checked = self.known.len();
            self.doubtful.extend(self.known.iter().cloned());
        }
        self.known.insert(key.clone());
    }
}

impl CommitObserver for Shared {
    fn on_committed(&self, key: &TaskKey, has_new_config: bool, has_push: bool) {
        if self.store.marks_in_commit() {
            if has_new_config {
                // It may replace one with undelivered events.
                self.tasks.lock().changed.insert(key.clone());
            }
            if has_new_config || has_push {
                self.wake.notify_one();
            }
            return;
        }
        {
            let mut tasks = self.tasks.lock();
            if has_new_config {
                tasks.insert(key);
            }
            if !tasks.known.contains(key) || !tasks.changed.insert(key.clone()) {
                return;
            }
        }
        self.wake.notify_one();
    }

    fn on_push_deleted(&self, key: &TaskKey) {
        self.doubt(key);
        self.wake.notify_one();
    }
}

/// Destination host of deliveries.
#[derive(Default)]
struct Host {
    /// Number of deliveries that are being sent.
    sending: usize,
    /// Claims that wait for their turn, with the end of their lease.
    waiting: VecDeque<(DeliveryClaim, Instant)>,
    /// Number of successive failures.
    failures: u32,
    /// Set while the circuit breaker is open.
    open_until: Option<Instant>,
}

/// Host of a claim that has ended, and whether it did what it should.
type Finished = (Box<str>, bool);

impl Shared {
    /// Time for which a claim is leased: twice what it can take. A delivery whose process ended is repeated after it.
    fn lease(&self) -> Duration {
        (self.options.timeout + CLAIM_TIME) * 2
    }

    fn now(&self) -> Millis {
        self.sources.clock.millis()
    }

    /// Claims and sends deliveries until the server stops.
    async fn run(self: Arc<Self>) {
        let mut running = JoinSet::new();
        tokio::select! {
            () = self.dispatch(&mut running) => {}
            () = self.report() => {}
            () = self.stop.cancelled() => {}
        }
        let finished = async { while running.join_next().await.is_some() {} };
        _ = timeout(STOP_GRACE, finished).await;
        running.shutdown().await;
        let released = timeout(STOP_GRACE, self.store.release_deliveries(&self.runner, self.now())).await;
        if !matches!(released, Ok(Ok(_))) {
            tracing::warn!("push deliveries continue after the end of their leases: the store does not answer");
        }
    }

    async fn stats(&self) -> Result<PushStats, Unavailable> {
        let since = self.store.oldest_pending().await?;
        let lag = since.map_or(0, |since| self.now().saturating_sub(since).max(0));
        Ok(PushStats { lag: Duration::from_millis(lag.unsigned_abs()), ..*self.counters.lock() })
    }

    /// Logs the counters at an interval while attempts fail or the delivery is behind. Never ends.
    async fn report(&self) {
        let mut before = PushStats::default();
        loop {
            sleep_until(Instant::now() + REPORT_INTERVAL).await;
            let Ok(stats) = self.stats().await else { continue };
            let PushStats { attempts, successes, failures, dead_letters, lag } = stats;
            if failures > before.failures || dead_letters > before.dead_letters || lag > REPORT_INTERVAL {
                tracing::info!(
                    attempts,
                    successes,
                    failures,
                    dead_letters,
                    lag_s = lag.as_secs(),
                    "push deliveries fail or are behind"
                );
            }
            before = stats;
        }
    }

    async fn dispatch(self: &Arc<Self>, running: &mut JoinSet<Finished>) {
        if !self.store.marks_in_commit() {
            self.find_tasks().await;
        }
        let mut hosts = HashMap::<Box<str>, Host>::new();
        loop {
            while let Some(finished) = running.try_join_next() {
                if let Ok(finished) = finished {
                    settle(&mut hosts, finished);
                }
            }
            let next = match self.step(&mut hosts, running).await {
                Ok(next) => next,
                Err(cause) => {
                    tracing::debug!(error.cause = %cause, "push deliveries wait for the store");
                    Instant::now() + STORE_RETRY
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                Some(Ok(finished)) = running.join_next() => settle(&mut hosts, finished),
                () = sleep_until(next) => {}
            }
        }
    }

    /// Finds all tasks with configurations, and those among them with events that are not delivered yet.
    async fn find_tasks(&self) {
        let mut after = DeliveryToken::default();
        loop {
            match self.store.mark_all_due(self.now(), after, TASKS_PER_PAGE).await {
                Ok(page) => {
                    self.tasks.lock().known.extend(page.keys);
                    let Some(next) = page.next else { return };
                    after = next;
                }
                Err(cause) => {
                    tracing::warn!(error.cause = %cause, "push deliveries wait for the store");
                    sleep_until(Instant::now() + STORE_RETRY).await;
                }
            }
        }
    }

    /// Marks the changed tasks, claims what is due, and starts what can be sent. Returns the time of the next step, unless
    /// something happens before.
    async fn step(
        self: &Arc<Self>,
        hosts: &mut HashMap<Box<str>, Host>,
        running: &mut JoinSet<Finished>,
    ) -> Result<Instant, Unavailable> {
        let retried = mem::take(&mut self.tasks.lock().retried);
        for (_, host) in hosts.iter_mut().filter(|(name, _)| retried.contains(*name)) {
            host.open_until = None;
        }
        let changed = Tasks::take(&mut self.tasks.lock().changed);
        if !changed.is_empty()
            && let Err(cause) = self.store.mark_due(&changed, self.now()).await
        {
            self.tasks.lock().changed.extend(changed);
            return Err(cause);
        }
        self.forget_tasks().await?;
        loop {
            let claimed = running.len() + hosts.values().map(|host| host.waiting.len()).sum::<usize>();
            let limit = CLAIM_BATCH.min(MAX_CLAIMED.saturating_sub(claimed));
            if limit == 0 {
                break;
            }
            let lease = Lease::new(&self.runner, self.now(), self.lease());
            let claims = self.store.claim_due(&lease, limit).await?;
            let is_last = claims.len() < limit;
            let lease_end = Instant::now() + self.lease();
            {
                // A dead letter may have been retried by an operator.
                let mut tasks = self.tasks.lock();
                for claim in &claims {
                    tasks.insert(&claim.key);
                }
            }
            for claim in claims {
                hosts.entry(host_of(&claim.config.config.url)).or_default().waiting.push_back((claim, lease_end));
            }
            if is_last {
                break;
            }
        }
        self.start_waiting(hosts, running).await?;
        {
            let tasks = self.tasks.lock();
            if !tasks.changed.is_empty() || !tasks.doubtful.is_empty() {
                return Ok(Instant::now());
            }
        }
        let next_due = if running.is_empty() { self.store.next_due().await? } else { None };
        let wait = next_due
            .map_or(POLL_INTERVAL, |due| Duration::from_millis(due.saturating_sub(self.now()).max(1).unsigned_abs()));
        Ok(Instant::now() + wait.min(POLL_INTERVAL))
    }

    /// Forgets those of the doubtful tasks that get no more events.
    async fn forget_tasks(&self) -> Result<(), Unavailable> {
        let doubtful = Tasks::take(&mut self.tasks.lock().doubtful);
        if doubtful.is_empty() {
            return Ok(());
        }
        match self.store.undelivered_tasks(&doubtful).await {
            Ok(undelivered) => {
                let undelivered: HashSet<TaskKey> = undelivered.into_iter().collect();
                let mut tasks = self.tasks.lock();
                for key in doubtful.iter().filter(|key| !undelivered.contains(*key)) {
                    // A change after the check may be a new configuration.
                    if !tasks.changed.contains(key) {
                        tasks.known.remove(key);
                    }
                }
                tasks.checked = tasks.checked.min(tasks.known.len());
                Ok(())
            }
            Err(cause) => {
                self.tasks.lock().doubtful.extend(doubtful);
                Err(cause)
            }
        }
    }

    /// Notes that a task may have no more configurations or events.
    fn doubt(&self, key: &TaskKey) {
        let mut tasks = self.tasks.lock();
        if tasks.known.contains(key) {
            tasks.doubtful.insert(key.clone());
        }
    }

    /// Starts the waiting claims of hosts with capacity, each host in turn. Claims of a host whose breaker is open fail
    /// until then, and those whose lease is about to end are left to the next claim.
    async fn start_waiting(
        self: &Arc<Self>,
        hosts: &mut HashMap<Box<str>, Host>,
        running: &mut JoinSet<Finished>,
    ) -> Result<(), Unavailable> {
        let now = Instant::now();
        let margin = self.options.timeout + CLAIM_TIME;
        let mut is_stuck = false;
        while !is_stuck && running.len() < self.options.concurrency {
            is_stuck = true;
            for (name, host) in &mut *hosts {
                let is_open = host.open_until.is_some_and(|until| until > now);
                if is_open {
                    for (claim, _) in host.waiting.drain(..) {
                        let left = host.open_until.map_or(Duration::ZERO, |until| until - now);
                        // Not before the breaker closes, and not all at once then.
                        let delay = left / 2 + jittered(left, self.sources.rng.next_u64());
                        self.fail(&claim, delay, None).await?;
                    }
                    continue;
                }
                // After the breaker was open, one delivery probes the host.
                let max = if host.failures >= BREAKER_FAILURES { 1 } else { self.options.per_host };
                if host.sending >= max || running.len() >= self.options.concurrency {
                    continue;
                }
                let Some((claim, lease_end)) = host.waiting.pop_front() else { continue };
                is_stuck = false;
                if lease_end <= now + margin {
                    continue;
                }
                host.sending += 1;
                let (shared, name) = (Arc::clone(self), name.clone());
                running.spawn(async move {
                    let is_success = shared.deliver(&claim).await.unwrap_or_else(|cause| {
                        // The lease expires, and the delivery is claimed again.
                        let task_id = claim.key.id();
                        tracing::debug!(error.cause = %cause, task.id = task_id, "push delivery waits for the store");
                        true
                    });
                    (name, is_success)
                });
            }
        }
        let keeps_failures = hosts.len() <= MAX_HOSTS;
        hosts.retain(|_, host| host.sending > 0 || !host.waiting.is_empty() || (keeps_failures && host.failures > 0));
        Ok(())
    }

    /// Sends what is due of a claim and records the outcome. Returns whether the host did what it should.
    async fn deliver(&self, claim: &DeliveryClaim) -> Result<bool, Unavailable> {
        let max_age = self.options.max_age;
        if max_age.is_some_and(|max| self.now() - claim.pending_since > whole_millis(max)) {
            return self.give_up(claim, "undelivered for longer than push.max_age", None).await;
        }
        let due = match self.read(claim).await? {
            Ok(due) => due,
            Err(cause) => {
                tracing::error!(error.cause = %cause, task.id = claim.key.id(), "push payload can't be encoded");
                return self.give_up(claim, "the payload can't be encoded", None).await;
            }
        };
        let started = Instant::now();
        let (mut cursor, mut last) = (claim.cursor, None);
        for Notification { seq, body } in due.notifications {
            self.counters.lock().attempts += 1;
            let trace = StoredContexts::decode(claim.turn_contexts.as_deref()).trace(seq);
            let id = delivery_id(claim, seq);
            match self.sender.send(claim, &id, trace.as_deref(), body, self.now()).await {
                Ok(status) => last = Some(self.attempted(Some(status), None)),
                Err(failure) => return self.record_failure(claim, cursor, failure).await,
            }
            self.counters.lock().successes += 1;
            cursor = seq;
            if (started.elapsed() > CLAIM_TIME || self.stop.is_cancelled()) && cursor < due.last {
                return self.ack(claim, cursor, last).await.map(|_| true);
            }
        }
        let is_recorded = self.ack(claim, due.last, last).await?;
        if due.is_end || !is_recorded {
            self.doubt(&claim.key);
        }
        Ok(true)
    }

    /// Returns the description of an attempt that has ended.
    fn attempted(&self, status: Option<u16>, error: Option<&str>) -> Attempt {
        Attempt { time: self.now(), status, error: error.map(Into::into) }
    }

    /// Records the delivery of all events up to `cursor`.
    async fn ack(&self, claim: &DeliveryClaim, cursor: Seq, attempt: Option<Attempt>) -> Result<bool, Unavailable> {
        self.store.end_claim(claim, DeliveryOutcome::Delivered { cursor, now: self.now(), attempt }).await
    }

    /// Records a failure, and the delay before the next attempt.
    async fn fail(&self, claim: &DeliveryClaim, delay: Duration, last: Option<Attempt>) -> Result<bool, Unavailable> {
        let next_attempt = self.now() + whole_millis(delay);
        self.store.end_claim(claim, DeliveryOutcome::Failed { next_attempt, attempt: last }).await
    }

    /// Reads the events after the cursor of a claim. If the log no longer has them, the whole task is sent instead.
    async fn read(&self, claim: &DeliveryClaim) -> Result<Result<Due, Error>, Unavailable> {
        let PushOptions { events, v03_payload: v03, .. } = self.options;
        let form = Form { version: claim.config.version, events, v03 };
        let (store, key) = (&*self.store, &claim.key);
        let mut events = store.events(key, claim.cursor, EVENTS_PER_CLAIM.into(), usize::MAX).await?;
        let has_gap = events.first().is_none_or(|event| event.seq() > claim.cursor + 1);
        // Later events would be joined to these, and another attempt would not repeat the notifications of this one.
        events.retain(|event| event.seq() <= claim.end);
        if has_gap {
            events.clear();
        }
        let stored = if has_gap || form.needs_task() { store.load(key).await? } else { None };
        let mut task = None;
        if let Some(mut stored) = stored {
            task = Some(Arc::new(stored.load_task(store, key).await?));
            if let Some(task) = task.as_ref().filter(|_| has_gap) {
                let ends = if task.state().is_terminal() { Ends::Task } else { Ends::Nothing };
                events = vec![Event::from_task(stored.position, ends, Arc::clone(task))];
            }
        }
        // Without its task there is nothing left to deliver.
        let (last, ends) = events.last().map_or((claim.cursor, Ends::Task), |last| (last.seq(), last.ends()));
        let notifications = form.notifications(&events, task.as_deref());
        Ok(notifications.map(|notifications| Due { notifications, last, is_end: ends == Ends::Task }))
    }

    /// Records a failed attempt, after deliveries up to `cursor`. Returns false if the host is to blame.
    async fn record_failure(&self, claim: &DeliveryClaim, cursor: Seq, failure: Failure) -> Result<bool, Unavailable> {
        self.counters.lock().failures += 1;
        let (task, config) = (claim.key.id(), &claim.config.config.id);
        match failure {
            Failure::Retry { reason, after, status } => {
                let attempt = Some(self.attempted(status, Some(&reason)));
                tracing::info!(
                    task.id = task,
                    config.id = config,
                    attempts = claim.attempts + 1,
                    "push delivery failed: {reason}"
                );
                if cursor > claim.cursor {
                    // What remains is due at once, and its failures count from there.
                    self.ack(claim, cursor, attempt).await?;
                } else {
                    let delay =
                        BACKOFF.delay(claim.attempts, self.sources.rng.next_u64()).max(after.unwrap_or_default());
                    self.fail(claim, delay, attempt).await?;
                }
                Ok(false)
            }
            Failure::Busy { reason } => {
                tracing::info!(task.id = task, config.id = config, "push delivery postponed: {reason}");
                self.fail(claim, BACKOFF.first, None).await?;
                Ok(true)
            }
            Failure::Gone => {
                if self.store.end_claim(claim, DeliveryOutcome::Gone).await? {
                    tracing::info!(
                        task.id = task,
                        config.id = config,
                        "push configuration ended: its receiver is gone"
                    );
                }
                self.doubt(&claim.key);
                Ok(true)
            }
            Failure::Rejected { reason, status } => {
                let attempt = Some(self.attempted(status, Some(&reason)));
                self.give_up(claim, &reason, attempt).await
            }
        }
    }

    /// Makes a delivery a dead letter. Returns true: the host is not to blame.
    async fn give_up(&self, claim: &DeliveryClaim, reason: &str, last: Option<Attempt>) -> Result<bool, Unavailable> {
        let (task, config) = (claim.key.id(), &claim.config.config.id);
        tracing::warn!(task.id = task, config.id = config, "push delivery given up: {reason}");
        self.counters.lock().dead_letters += 1;
        let (reason, now, max_dead) = (reason.into(), self.now(), self.options.dead_letters);
        self.store.end_claim(claim, DeliveryOutcome::GivenUp { reason, now, max_dead, attempt: last }).await?;
        self.doubt(&claim.key);
        Ok(true)
    }
}

/// Notifications of a claim.
struct Due {
    notifications: Vec<Notification>,
    /// Last event that is covered once all notifications are sent.
    last: Seq,
    /// The task has no more events.
    is_end: bool,
}

/// Records the result of a delivery for its host: opens the circuit breaker after several failures, closes it after a
/// success.
fn settle(hosts: &mut HashMap<Box<str>, Host>, (host, is_success): Finished) {
    let host = hosts.entry(host).or_default();
    host.sending = host.sending.saturating_sub(1);
    if is_success {
        (host.failures, host.open_until) = (0, None);
        return;
    }
    host.failures = host.failures.saturating_add(1);
    if let Some(opened) = host.failures.checked_sub(BREAKER_FAILURES) {
        host.open_until = Some(Instant::now() + BREAKER_OPEN.without_jitter(opened));
    }
}

/// Returns host and port of a URL.
fn host_of(url: &str) -> Box<str> {
    let url = Url::parse(url).ok();
    let name = url.as_ref().and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)));
    name.unwrap_or_default().into()
}

/// Returns the id of a delivery: the same for each attempt, and different for each other event and configuration.
fn delivery_id(claim: &DeliveryClaim, seq: Seq) -> String {
    let encode = |id| utf8_percent_encode(id, NON_ALPHANUMERIC).to_string();
    let encoded = (encode(claim.key.id()), encode(&claim.config.config.id));
    format!("{}~{}~{seq}", encoded.0, encoded.1).replace("%2D", "-")
}
