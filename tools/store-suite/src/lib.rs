//! Conformance suite for stores: checks that a [`Store`] of your own keeps what the server relies on.
//!
//! The suite is a list of named cases. Each case opens stores of its own, and a failure names the case. Some cases apply
//! only to stores with certain properties, which a [`StoreSuite`] declares: quotas, persistence, separate retention, inspection, and
//! replicas.
//!
//! ```
//! use a2a_service::store::memory::Memory;
//! use a2a_store_suite::StoreSuite;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let suite = StoreSuite::new(|setup| async move { Memory::with_max_tasks(setup.max_tasks) });
//! suite.run_case("refused_commit_changes_nothing").await?;
//! # Ok::<_, a2a_store_suite::Failure>(())
//! # }).unwrap();
//! ```

use std::{
    fmt,
    future::Future,
    ops::Deref,
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;

use a2a_service::{
    clock::Millis,
    event::{Position, Seq},
    store::{DeliveryOutcome, IdempotencyRecord, Refused, Retention, Store, StoredTask, TaskKey, Unavailable},
};

/// Fails the case unless a condition holds.
macro_rules! ensure {
    ($condition:expr) => {
        ensure!($condition, "{} is false", stringify!($condition))
    };
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new(format!($($message)+)));
        }
    };
}

/// Fails the case unless two values are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr) => {
        ensure_eq!($left, $right, "")
    };
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => ensure!(
                *left == *right,
                "{} is {left:?} instead of {right:?} {}",
                stringify!($left),
                format_args!($($message)+)
            ),
        }
    };
}

// After the macros, which they use.
mod commits;
mod delivery;
mod inspect;
mod lists;
mod push;
mod retention;
mod shared;
pub mod writer;

/// Maximum number of tasks of a store that is opened for a case without a quota.
const MANY: usize = 10_000;

/// Parameters of a store that a case opens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setup {
    /// Name of the database, such as a file or a schema. A new name stands for an empty store. A persistent store is opened
    /// again with the same name.
    pub database: String,
    /// Maximum number of tasks.
    pub max_tasks: usize,
    /// Maximum number of tasks of one owner, over all tenants. `None` if only `max_tasks` applies.
    pub max_tasks_per_owner: Option<usize>,
    /// Maximum number of push configurations of the tasks of one owner, over all tenants.
    pub max_push_configs_per_owner: usize,
}

/// Result of a case.
type Checked = Result<(), Failure>;

/// Reason why a store does not conform.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{case}: {message} ({location})")]
pub struct Failure {
    case: &'static str,
    message: String,
    location: &'static Location<'static>,
}

impl Failure {
    #[track_caller]
    fn new(message: String) -> Self {
        Self { case: "", message, location: Location::caller() }
    }

    /// Name of the case. Empty outside a suite.
    pub fn case(&self) -> &'static str {
        self.case
    }
}

impl From<Unavailable> for Failure {
    #[track_caller]
    fn from(error: Unavailable) -> Self {
        Self::new(error.to_string())
    }
}

impl From<Refused> for Failure {
    #[track_caller]
    fn from(refused: Refused) -> Self {
        Self::new(format!("a commit was refused: {refused}"))
    }
}

/// Test suite for one kind of store.
pub struct StoreSuite {
    open: Box<dyn Fn(Setup) -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>,
    /// Declared properties.
    has: Vec<Requires>,
    opened: AtomicUsize,
}

/// Property of a store that a case may require.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Requires {
    Nothing,
    Quotas,
    Persistence,
    SeparateRetention,
    Inspection,
    Shared,
}

/// Named case.
struct Case {
    name: &'static str,
    requires: Requires,
    run: for<'a> fn(&'a StoreSuite) -> BoxFuture<'a, Checked>,
}

/// Creates the table of cases.
macro_rules! cases {
    ($($requires:ident: $($module:ident::$name:ident),+;)+) => {
        &[$($(Case {
            name: stringify!($name),
            requires: Requires::$requires,
            run: |suite| Box::pin($module::$name(suite)),
        },)+)+]
    };
}

const CASES: &[Case] = cases! {
    Nothing:
        commits::row_has_the_position_of_its_last_commit,
        commits::refused_commit_changes_nothing,
        commits::idempotency_key_is_recorded_once,
        commits::request_context_of_a_message_is_stored,
        commits::batch_has_one_outcome_per_commit,
        commits::row_can_change_without_an_event,
        commits::saved_state_is_kept_until_replaced,
        commits::log_can_be_read_from_every_position,
        commits::stored_task_equals_its_folded_log,
        commits::owners_and_tenants_are_isolated,
        commits::single_commit_task_is_stored_whole,
        commits::batch_of_single_commit_tasks_has_one_outcome_each,
        lists::totals_match_the_tasks,
        lists::pages_have_each_unchanged_task_once,
        lists::page_ends_before_the_task_that_exceeds_its_bytes,
        lists::size_of_a_context_is_the_sum_of_its_tasks,
        push::push_configurations_belong_to_their_task,
        push::push_configurations_are_listed_in_pages,
        push::push_configurations_are_deleted_with_their_task,
        push::push_configuration_is_stored_with_the_first_commit,
        delivery::events_after_the_cursor_are_due_once_marked,
        delivery::longest_due_deliveries_are_claimed_first,
        delivery::claimed_delivery_is_leased,
        delivery::ack_leaves_later_events_due,
        delivery::failed_delivery_waits_for_its_next_attempt,
        delivery::dead_letters_are_kept_up_to_their_limit,
        delivery::replaced_configuration_keeps_its_position,
        delivery::gone_receiver_deletes_its_configuration,
        delivery::leases_of_a_stopped_runner_are_released,
        delivery::deliveries_are_deleted_with_their_configuration,
        delivery::sweeps_keep_undelivered_events,
        delivery::runners_claim_different_deliveries,
        delivery::all_deliveries_are_marked_in_pages,
        delivery::deliveries_are_listed_in_pages,
        retention::expired_terminal_tasks_are_swept,
        retention::tasks_in_use_are_swept_later,
        retention::log_can_expire_before_its_task,
        retention::long_log_is_deleted_in_steps,
        retention::push_configurations_can_expire_before_their_task,
        retention::idempotency_key_can_expire_before_its_task,
        retention::idle_interrupted_tasks_are_listed;
    Quotas:
        retention::full_store_evicts_terminal_tasks,
        retention::tasks_per_owner_are_limited_over_all_tenants,
        retention::each_accepted_task_evicts_one,
        retention::rejected_task_evicts_nothing,
        push::push_configurations_per_owner_are_limited_over_all_tenants,
        delivery::undelivered_tasks_are_evicted_last,
        delivery::evictions_follow_the_deliveries;
    Persistence:
        commits::committed_tasks_survive_a_reopen,
        commits::open_tasks_are_claimed_once,
        delivery::deliveries_survive_a_reopen;
    Inspection:
        inspect::tasks_of_all_owners_are_listed_newest_first,
        inspect::inspected_task_has_its_contents,
        inspect::times_and_turns_of_commits_are_kept,
        inspect::newest_turns_outlive_their_log,
        inspect::tasks_are_selected_by_prefix_context_and_states,
        inspect::counts_follow_the_tasks;
    Shared:
        shared::acquisition_tells_the_runner,
        shared::only_the_runner_commits,
        shared::fenced_runner_is_refused,
        shared::tasks_of_dead_replicas_are_claimed,
        shared::released_turns_are_claimed_by_replicas_with_free_turns,
        shared::mail_is_read_in_order,
        shared::mail_needs_a_runner,
        shared::unread_mail_keeps_the_runner,
        shared::rejected_mail_is_not_unread,
        shared::requested_cancel_is_kept,
        shared::burned_change_is_not_committed,
        shared::followers_get_changes,
        shared::one_replica_leads_a_job,
        shared::dead_replica_is_refused,
        shared::tasks_with_a_runner_are_not_swept,
        shared::key_of_two_replicas_is_recorded_once,
        shared::commits_mark_deliveries;
};

impl StoreSuite {
    /// Creates the suite for the stores that `open` opens. A store without declared properties can ignore the setup.
    pub fn new<S, F>(open: impl Fn(Setup) -> F + Send + Sync + 'static) -> Self
    where
        S: Store,
        F: Future<Output = S> + Send + 'static,
    {
        let open = move |setup| -> BoxFuture<'static, Arc<dyn Store>> {
            let store = open(setup);
            Box::pin(async move {
                let store: Arc<dyn Store> = Arc::new(store.await);
                store
            })
        };
        Self { open: Box::new(open), has: vec![Requires::Nothing], opened: AtomicUsize::new(0) }
    }

    /// Declares that the store limits the number of tasks as the [`Setup`] requires, and evicts tasks in a terminal state at
    /// the limit.
    #[must_use]
    pub fn with_quotas(self) -> Self {
        self.having(Requires::Quotas)
    }

    /// Declares that the store keeps its data when it is dropped and opened again under the same name.
    #[must_use]
    pub fn persistent(self) -> Self {
        self.having(Requires::Persistence)
    }

    /// Declares that logs, push configurations and idempotency keys expire before their task as the [`Retention`] requires.
    /// Otherwise they must stay as long as their task.
    #[must_use]
    pub fn with_separate_retention(self) -> Self {
        self.having(Requires::SeparateRetention)
    }

    /// Declares that operators can read the store ([`Inspect`](a2a_service::store::Inspect)).
    #[must_use]
    pub fn with_inspection(self) -> Self {
        self.having(Requires::Inspection)
    }

    /// Declares that the store can be opened several times under the same name, each time as another replica
    /// ([`SharedStore`](a2a_service::store::SharedStore)).
    #[must_use]
    pub fn shared(self) -> Self {
        self.having(Requires::Shared)
    }

    fn has_separate_retention(&self) -> bool {
        self.has.contains(&Requires::SeparateRetention)
    }

    fn having(mut self, property: Requires) -> Self {
        self.has.push(property);
        self
    }

    /// Names of the cases that apply to the store.
    pub fn cases(&self) -> impl Iterator<Item = &'static str> {
        self.applicable().map(|case| case.name)
    }

    fn applicable(&self) -> impl Iterator<Item = &'static Case> {
        CASES.iter().filter(|case| self.has.contains(&case.requires))
    }

    /// Runs all cases that apply to the store, one after the other. A panic of the store is not caught.
    ///
    /// # Errors
    /// The first case that fails.
    pub async fn run(&self) -> Result<(), Failure> {
        for case in self.applicable() {
            self.check(case).await?;
        }
        Ok(())
    }

    /// Runs one case.
    ///
    /// # Errors
    /// The case fails, or no case that applies to the store has this name.
    pub async fn run_case(&self, name: &str) -> Result<(), Failure> {
        match self.applicable().find(|case| case.name == name) {
            Some(case) => self.check(case).await,
            None => Err(Failure::new(format!("no case has the name `{name}`"))),
        }
    }

    async fn check(&self, case: &Case) -> Checked {
        (case.run)(self).await.map_err(|failure| Failure { case: case.name, ..failure })
    }

    /// Opens an empty store that no case fills.
    async fn open(&self) -> TestStore<'_> {
        self.open_with(MANY, None).await
    }

    /// Opens an empty store with these limits.
    async fn open_with(&self, max_tasks: usize, max_tasks_per_owner: Option<usize>) -> TestStore<'_> {
        self.open_setup(max_tasks, max_tasks_per_owner, MANY).await
    }

    async fn open_setup(
        &self,
        max_tasks: usize,
        max_tasks_per_owner: Option<usize>,
        max_push_configs_per_owner: usize,
    ) -> TestStore<'_> {
        let database = format!("store-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let setup = Setup { database, max_tasks, max_tasks_per_owner, max_push_configs_per_owner };
        let store = (self.open)(setup.clone()).await;
        TestStore { suite: self, setup, store }
    }
}

impl fmt::Debug for StoreSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSuite").field("cases", &self.cases().count()).finish_non_exhaustive()
    }
}

/// Open store of a case.
struct TestStore<'a> {
    suite: &'a StoreSuite,
    setup: Setup,
    store: Arc<dyn Store>,
}

impl TestStore<'_> {
    /// Closes a persistent store and opens it again. Other stores stay open.
    async fn reopen(self) -> Self {
        if !self.suite.has.contains(&Requires::Persistence) {
            return self;
        }
        let Self { suite, setup, store } = self;
        drop(store);
        let store = (suite.open)(setup.clone()).await;
        Self { suite, setup, store }
    }

    /// Opens a shared store again, as another replica.
    async fn opened_again(&self) -> Self {
        let Self { suite, setup, .. } = self;
        Self { suite, setup: setup.clone(), store: (suite.open)(setup.clone()).await }
    }

    fn shared(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }
}

impl Deref for TestStore<'_> {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

/// Loads a task that must exist.
async fn load(store: &dyn Store, key: &TaskKey) -> Result<StoredTask, Failure> {
    store.load(key).await?.ok_or_else(|| Failure::new(format!("task {} is missing", key.id())))
}

/// Position of a task, or `None` if it does not exist.
async fn position(store: &dyn Store, key: &TaskKey) -> Result<Option<Position>, Unavailable> {
    Ok(store.load(key).await?.map(|stored| stored.position))
}

/// Record of a send with this key and hash, which became event `seq`.
fn keyed(key: &str, hash_byte: u8, seq: Seq) -> Vec<IdempotencyRecord> {
    vec![IdempotencyRecord { key: key.into(), hash: [hash_byte; 16], seq, time: 5 }]
}

/// Retention that deletes terminal tasks after this time and keeps everything else.
fn finished(millis: u64) -> Retention {
    Retention::FOREVER.finished(Some(Duration::from_millis(millis)))
}

/// Outcome of a claim whose events up to `cursor` were delivered.
fn acknowledged(cursor: Seq, now: Millis) -> DeliveryOutcome {
    DeliveryOutcome::Delivered { cursor, now, attempt: None }
}

/// Outcome of a claim whose attempt failed.
fn failed(next_attempt: Millis) -> DeliveryOutcome {
    DeliveryOutcome::Failed { next_attempt, attempt: None }
}

/// Outcome of a claim whose delivery is given up.
fn given_up(reason: &str, now: Millis, max_dead: usize) -> DeliveryOutcome {
    DeliveryOutcome::GivenUp { reason: reason.into(), now, max_dead, attempt: None }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
