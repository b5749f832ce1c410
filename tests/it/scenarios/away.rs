//! A store that takes nothing any more: each caller is told in their own protocol, in time, and nothing is half done.

use std::{fs, path::Path, sync::Arc, time::Duration};

use a2a_service::{
    server::Server,
    store::sqlite::{Options, Sqlite},
};
use futures::future::{join, join3};

use super::*;
use crate::{
    bindings::{Actor, each_binding},
    gate::Gate,
    store::place::Opened,
};

async fn who_sends_hears_of_it(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let gate = Gate::opened();
    let agent = way(Server::new(Actor).store(gate.store())).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let again = send(&*agent, text("", "/ask what?")).await;
    gate.fail_commits(true);
    let streamed = async {
        let mut events = agent.send_streaming_message(request(text("", "hello"))).await?.into_inner();
        events.next().await.unwrap()
    };
    let refused =
        join3(send_payload(&*agent, text("", "hello")), send_payload(&*agent, text(&asked.id, "Rome")), streamed).await;
    for error in [refused.0.err(), refused.1.err(), refused.2.err().map(Error::from)] {
        let error = error.unwrap();
        assert_error_kind(&error, ErrorKind::Unavailable);
        assert!(
            error.to_string().ends_with("nothing was recorded, but the agent may have run; retry later"),
            "{error}"
        );
    }
    // From now on at once, and what is there can be read.
    assert_error_kind(&send_payload(&*agent, text("", "hello")).await.err().unwrap(), ErrorKind::Unavailable);
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked);
    gate.fail_commits(false);
    let mut beat = tokio::time::interval(Duration::from_millis(50));
    let done = loop {
        beat.tick().await;
        match send_payload(&*agent, text(&asked.id, "Rome")).await {
            Ok(Answer::Task(it)) => break it,
            Ok(Answer::Message(it)) => panic!("{it:?}"),
            Err(error) => assert_error_kind(&error, ErrorKind::Unavailable),
        }
    };
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Rome"));
    assert_eq!(get(&*agent, &again.id).await.unwrap(), again);
}

each_binding!(who_sends_hears_of_it);

/// Nothing is acknowledged that would be lost with the process: a file that is deleted, moved or replaced closes the server for
/// new work, until the same file is back.
async fn new_work_is_refused_while_the_file_is_lost(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    /// Less than what an unavailable store is retried for.
    const SOON: Duration = Duration::from_secs(4);
    let directory = tempfile::tempdir().unwrap();
    let (place, aside) = (directory.path().join("place"), directory.path().join("aside"));
    fs::create_dir(&place).unwrap();
    let store = Sqlite::open(&place.join("a2a.db"), Options::default()).unwrap();
    let agent = way(Server::new(Actor).store(Arc::new(store))).await;
    let kept = send(&*agent, text("", "hello")).await;
    let moved = |from: &Path, to: &Path| fs::rename(from, to).unwrap();
    let replaced = || {
        moved(&place.join("a2a.db"), &aside);
        fs::copy(&aside, place.join("a2a.db")).unwrap();
    };
    let losses: [[&dyn Fn(); 2]; 2] =
        [[&|| moved(&place, &aside), &|| moved(&aside, &place)], [&replaced, &|| moved(&aside, &place.join("a2a.db"))]];
    for [lose, find] in losses {
        lose();
        for _ in 0..3 {
            let refused = tokio::time::timeout(SOON, send_payload(&*agent, text("", "hello"))).await.unwrap();
            assert_error_kind(&refused.err().unwrap(), ErrorKind::Unavailable);
        }
        assert_eq!(get(&*agent, &kept.id).await.unwrap(), kept);
        find();
        let mut beat = tokio::time::interval(Duration::from_millis(50));
        while let Err(error) = send_payload(&*agent, text("", "hello")).await {
            assert_error_kind(&error, ErrorKind::Unavailable);
            beat.tick().await;
        }
    }
    for file in fs::read_dir(&place).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let refused = tokio::time::timeout(SOON, send_payload(&*agent, text("", "hello"))).await.unwrap();
    assert_error_kind(&refused.err().unwrap(), ErrorKind::Unavailable);
}

each_binding!(new_work_is_refused_while_the_file_is_lost);

/// A task whose result does not fit into the file fails and names the limit; all other work goes on.
async fn a_result_that_does_not_fit_fails_alone(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let mut options = Options::default();
    options.max_bytes = Some(1 << 20);
    let store = Opened::sqlite(options);
    let agent = way(Server::new(Actor).store(Arc::clone(&store.store))).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    for _ in 0..3 {
        let sends = join(send(&*agent, text("", "!bytes 4000000")), send(&*agent, text("", "hello")));
        let (large, small) = sends.await;
        assert_eq!((large.state(), small.state()), (TaskState::Failed, TaskState::Completed));
        assert!(status_text(&large).contains("(limit store.max_size)"), "{}", status_text(&large));
        assert_eq!(get(&*agent, &large.id).await.unwrap(), large);
    }
    let done = send(&*agent, text(&asked.id, "Rome")).await;
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Rome"));
    store.check().await.unwrap();
}

each_binding!(a_result_that_does_not_fit_fails_alone);
