//! Store outages: unavailable, lost or full. Senders get an error within a bounded time over every binding, and nothing is
//! recorded in part.

use std::{fs, path::Path, sync::Arc, time::Duration};

use a2a_service::{
    server::Server,
    store::sqlite::{Options, Sqlite},
};
use futures::future::{join, join3};

use super::*;
use crate::{
    bindings::{Actor, Binding, each_binding},
    gate::Gate,
    store::opened::OpenedStore,
};

async fn sends_to_an_unavailable_store_fail_with_a_retryable_error(binding: Binding) {
    let gate = Gate::opened();
    let agent = binding(Server::new(Actor::new()).store(gate.store())).await;
    let interrupted = send(&*agent, text("", "/ask what?")).await;
    let other = send(&*agent, text("", "/ask what?")).await;
    gate.fail_commits(true);
    let streamed = async {
        let mut events = agent.send_streaming_message(request(text("", "hello"))).await?.into_inner();
        events.next().await.unwrap()
    };
    let rejected =
        join3(send_payload(&*agent, text("", "hello")), send_payload(&*agent, text(&interrupted.id, "Rome")), streamed)
            .await;
    for error in [rejected.0.err(), rejected.1.err(), rejected.2.err().map(Error::from)] {
        let error = error.unwrap();
        assert_error_kind(&error, ErrorKind::Unavailable);
        assert!(
            error.to_string().ends_with("nothing was recorded, but the agent may have run; retry later"),
            "{error}"
        );
    }
    // Later sends fail at once, and stored tasks can be read.
    assert_error_kind(&send_payload(&*agent, text("", "hello")).await.err().unwrap(), ErrorKind::Unavailable);
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap(), interrupted);
    gate.fail_commits(false);
    let mut interval = tokio::time::interval(Duration::from_millis(50));
    let done = loop {
        interval.tick().await;
        match send_payload(&*agent, text(&interrupted.id, "Rome")).await {
            Ok(Answer::Task(task)) => break task,
            Ok(Answer::Message(message)) => panic!("{message:?}"),
            Err(error) => assert_error_kind(&error, ErrorKind::Unavailable),
        }
    };
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Rome"));
    assert_eq!(get(&*agent, &other.id).await.unwrap(), other);
}

each_binding!(sends_to_an_unavailable_store_fail_with_a_retryable_error, one_server = "its store fails");

/// A database file that is deleted, moved or replaced closes the server for new work until the original file returns, so that
/// nothing acknowledged is lost with the process.
async fn new_work_is_rejected_while_the_file_is_lost(binding: Binding) {
    /// Less than the time for which commits to an unavailable store are retried.
    const TIMEOUT: Duration = Duration::from_secs(4);
    let directory = tempfile::tempdir().unwrap();
    let (database, backup) = (directory.path().join("place"), directory.path().join("aside"));
    fs::create_dir(&database).unwrap();
    let store = Sqlite::open(&database.join("a2a.db"), Options::default()).unwrap();
    let agent = binding(Server::new(Actor::new()).store(Arc::new(store))).await;
    let task = send(&*agent, text("", "hello")).await;
    let rename = |from: &Path, to: &Path| fs::rename(from, to).unwrap();
    let replace = || {
        rename(&database.join("a2a.db"), &backup);
        fs::copy(&backup, database.join("a2a.db")).unwrap();
    };
    let losses: [[&dyn Fn(); 2]; 2] = [
        [&|| rename(&database, &backup), &|| rename(&backup, &database)],
        [&replace, &|| rename(&backup, &database.join("a2a.db"))],
    ];
    for [lose_file, restore_file] in losses {
        lose_file();
        for _ in 0..3 {
            let rejected = tokio::time::timeout(TIMEOUT, send_payload(&*agent, text("", "hello"))).await.unwrap();
            assert_error_kind(&rejected.err().unwrap(), ErrorKind::Unavailable);
        }
        assert_eq!(get(&*agent, &task.id).await.unwrap(), task);
        restore_file();
        let mut interval = tokio::time::interval(Duration::from_millis(50));
        while let Err(error) = send_payload(&*agent, text("", "hello")).await {
            assert_error_kind(&error, ErrorKind::Unavailable);
            interval.tick().await;
        }
    }
    for file in fs::read_dir(&database).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let rejected = tokio::time::timeout(TIMEOUT, send_payload(&*agent, text("", "hello"))).await.unwrap();
    assert_error_kind(&rejected.err().unwrap(), ErrorKind::Unavailable);
}

each_binding!(new_work_is_rejected_while_the_file_is_lost, one_server = "its store is a file");

/// A task whose result does not fit into the file fails with the name of the limit. Other tasks continue.
async fn result_over_the_store_size_fails_only_its_task(binding: Binding) {
    let mut options = Options::default();
    options.max_bytes = Some(1 << 20);
    let store = OpenedStore::sqlite(options);
    let agent = binding(Server::new(Actor::new()).store(Arc::clone(&store.store))).await;
    let interrupted = send(&*agent, text("", "/ask what?")).await;
    for _ in 0..3 {
        let sends = join(send(&*agent, text("", "!bytes 4000000")), send(&*agent, text("", "hello")));
        let (large, small) = sends.await;
        assert_eq!((large.state(), small.state()), (TaskState::Failed, TaskState::Completed));
        assert!(status_text(&large).contains("(limit store.max_size)"), "{}", status_text(&large));
        assert_eq!(get(&*agent, &large.id).await.unwrap(), large);
    }
    let done = send(&*agent, text(&interrupted.id, "Rome")).await;
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Rome"));
    store.check().await.unwrap();
}

each_binding!(result_over_the_store_size_fails_only_its_task, one_server = "its store is a file");
