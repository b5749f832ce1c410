//! Conformance suite of stores and model tests, run over the memory store and the SQLite store with both durabilities, and
//! tests of database files. The files are in memory, where a sync is cheap; `power_loss` tests what is on a disk.

mod file;
mod fixture;
mod model;
pub(crate) mod opened;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod writer;

use std::{collections::HashMap, sync::Arc, time::Duration};

use a2a_service::{
    base::faults::{Fault, Faults},
    clock::Clock,
    store::{
        IdempotencyRecord, Retention,
        memory::{Cluster, DEFAULT_MAX_TASKS, Memory, Replica},
        sqlite::{Durability, Options, Sqlite},
    },
};
use a2a_store_suite::{Setup, StoreSuite};
use parking_lot::Mutex;

use self::opened::{OpenedStore, open_file};
use crate::power_loss::memory_directory;

/// Opens an empty store.
type Open<'a> = &'a (dyn Fn() -> OpenedStore + Sync);

/// Retention that deletes terminal tasks after this time and keeps everything else.
pub(crate) fn finished(millis: u64) -> Retention {
    let mut policy = Retention::FOREVER;
    policy.finished = Some(Duration::from_millis(millis));
    policy
}

/// Record of a send with this key and hash, which became event `seq`.
fn keyed(key: &str, hash_byte: u8, seq: u64) -> Vec<IdempotencyRecord> {
    vec![IdempotencyRecord { key: key.into(), hash: [hash_byte; 16], seq, time: 5 }]
}

fn memory(setup: &Setup) -> Memory {
    let memory = Memory::with_max_tasks(setup.max_tasks);
    let memory = memory.with_max_push_configs_per_owner(setup.max_push_configs_per_owner);
    match setup.max_tasks_per_owner {
        Some(max) => memory.with_max_tasks_per_owner(max),
        None => memory,
    }
}

fn sqlite(durability: Durability) -> StoreSuite {
    let directory = Arc::new(memory_directory());
    let open = move |setup: Setup| {
        let mut options = Options::default();
        (options.durability, options.max_tasks, options.max_tasks_per_owner) =
            (durability, setup.max_tasks, setup.max_tasks_per_owner);
        options.max_push_configs_per_owner = setup.max_push_configs_per_owner;
        let directory = Arc::clone(&directory);
        async move { open_file(&directory.path().join(setup.database), options) }
    };
    StoreSuite::new::<Sqlite, _>(open).with_quotas().persistent().with_separate_retention().with_inspection()
}

/// Suite of the store in memory that replicas share, with planted bugs.
fn cluster(faults: Faults) -> StoreSuite {
    let clusters: Arc<Mutex<HashMap<String, Cluster>>> = Arc::default();
    let open = move |setup: Setup| {
        let clock = Clock::simulated(1000);
        let new = || Cluster::with_faults(memory(&setup), move || clock.millis(), faults);
        let replica = clusters.lock().entry(setup.database.clone()).or_insert_with(new).replica();
        async move { replica }
    };
    StoreSuite::new::<Replica, _>(open).with_quotas().with_inspection().shared()
}

#[tokio::test(start_paused = true)]
async fn shared_memory_store_conforms() {
    cluster(Faults::default()).run().await.unwrap();
}

/// The suite finds a planted bug with the case that is named here.
#[cfg_attr(not(debug_assertions), ignore = "bugs are planted only with debug assertions")]
#[tokio::test(start_paused = true)]
async fn planted_bugs_of_the_shared_store_are_found() {
    for (fault, case) in [
        (Fault::CompareOnlySeq, "fenced_runner_is_refused"),
        (Fault::KeepFence, "fenced_runner_is_refused"),
        (Fault::IgnoreUnreadMail, "unread_mail_keeps_the_runner"),
        (Fault::IgnoreDuplicates, "key_of_two_replicas_is_recorded_once"),
        (Fault::OverwriteCancel, "requested_cancel_is_kept"),
    ] {
        let failure = cluster(Faults::only(fault)).run_case(case).await.unwrap_err();
        assert_eq!(failure.case(), case, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store_conforms() {
    let suite = StoreSuite::new(|setup| async move { memory(&setup) }).with_quotas().with_inspection();
    suite.run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_store_conforms() {
    sqlite(Durability::Process).run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_store_with_synced_commits_conforms() {
    sqlite(Durability::Power).run().await.unwrap();
}

/// A store that loses commits fails a case, which the failure names.
#[tokio::test]
async fn failure_names_its_case() {
    let suite = StoreSuite::new(|_| async { Memory::with_max_tasks(0) });
    let failure = suite.run().await.unwrap_err();
    assert_eq!(Some(failure.case()), suite.cases().next());
    let text = failure.to_string();
    assert!(text.starts_with("row_has_the_position_of_its_last_commit: a commit was refused"), "{text}");
    assert!(text.contains("commits.rs"), "{text}");
    assert!(suite.run_case("unknown").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store_agrees_with_the_model() {
    tokio::task::block_in_place(|| model::agrees(&|| OpenedStore::memory(DEFAULT_MAX_TASKS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_memory_store_agrees_with_the_model() {
    let open = || OpenedStore::of(Arc::new(Cluster::new(Memory::with_max_tasks(DEFAULT_MAX_TASKS), || 1000).replica()));
    tokio::task::block_in_place(|| model::agrees(&open));
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_store_agrees_with_the_model() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let Some(database) = postgres::Database::find() else { return };
    let (number, runtime) = (AtomicUsize::new(0), tokio::runtime::Handle::current());
    let open = || {
        let name = format!("model_{}", number.fetch_add(1, Ordering::Relaxed));
        // The thread of the caller runs a future already.
        let open = || runtime.block_on(database.open(&name, &a2a_service::store::postgres::Options::default()));
        OpenedStore::database(Arc::new(std::thread::scope(|scope| scope.spawn(open).join()).unwrap()))
    };
    tokio::task::block_in_place(|| model::agrees(&open));
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_store_agrees_with_the_model() {
    tokio::task::block_in_place(|| model::agrees(&|| OpenedStore::sqlite(Options::default())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_store_with_synced_commits_agrees_with_the_model() {
    let mut options = Options::default();
    options.durability = Durability::Power;
    tokio::task::block_in_place(|| model::agrees(&|| OpenedStore::sqlite(options)));
}
