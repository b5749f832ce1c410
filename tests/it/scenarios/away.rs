//! A store that takes nothing any more: each caller is told in their own protocol, in time, and nothing is half done.

use std::{sync::Arc, time::Duration};

use a2a_service::server::Server;
use futures::future::join3;

use super::*;
use crate::{
    gate::Gate,
    ways::{Actor, each_way},
};

async fn who_sends_hears_of_it(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let gate = Gate::opened();
    let agent = way(Server::new(Actor).store(gate.store())).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let again = send(&*agent, text("", "/ask what?")).await;
    gate.fail(true);
    let streamed = async {
        let mut events = agent.send_streaming_message(request(text("", "hello"))).await?.into_inner();
        events.next().await.unwrap()
    };
    let refused = join3(answer(&*agent, text("", "hello")), answer(&*agent, text(&asked.id, "Rome")), streamed).await;
    for error in [refused.0.err(), refused.1.err(), refused.2.err().map(Error::from)] {
        let error = error.unwrap();
        is(&error, ErrorKind::Unavailable);
        assert!(error.to_string().ends_with("nothing of it was done; try again"), "{error}");
    }
    // From now on at once, and what is there can be read.
    is(&answer(&*agent, text("", "hello")).await.err().unwrap(), ErrorKind::Unavailable);
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked);
    gate.fail(false);
    let mut beat = tokio::time::interval(Duration::from_millis(50));
    let done = loop {
        beat.tick().await;
        match answer(&*agent, text(&asked.id, "Rome")).await {
            Ok(Answer::Task(it)) => break it,
            Ok(Answer::Message(it)) => panic!("{it:?}"),
            Err(error) => is(&error, ErrorKind::Unavailable),
        }
    };
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Rome"));
    assert_eq!(get(&*agent, &again.id).await.unwrap(), again);
}

each_way!(who_sends_hears_of_it);
