//! Delivery of a server that is killed again and again: between a commit and its delivery, and during a delivery.

use std::{collections::HashMap, path::Path};

use a2a_service::{event::Event, pb::v1::stream_response::Payload as EventPayload, store::TaskStore as _};

use super::*;
use crate::{
    crash::{number, seed},
    program::{a2a, output, signal, try_started},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Faults of successive rounds. Without one, the server is killed during a delivery.
const FAULTS: [Option<&str>; 4] =
    [Some("push.mark=abort@2"), None, Some("push.state=abort@5"), Some("push.claim=abort@3")];

/// Starts a server that sends notifications to loopback. `None` if the fault ends it before it listens: deliveries of earlier
/// rounds begin at once.
async fn start(store: &Path, fault: Option<&str>) -> Option<(tokio::process::Child, String)> {
    let store = format!("sqlite:{}", store.display());
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "off", "--store", &store]);
    command.env("A2A_PUSH_ENABLED", "true").env("A2A_PUSH_ALLOW", "http://127.0.0.1");
    command.envs(fault.map(|fault| ("FAULT_POINT", fault)));
    try_started(command).await.ok()
}

/// Sends a message to a new task that writes chunks, with a configuration, and adds another one. The server may end
/// meanwhile.
async fn begin_task(url: &str, receiver: &Receiver) -> Result<(), Error> {
    let agent = client::rest(url).unwrap();
    let hook = TaskPushNotificationConfig { id: "first".into(), ..hook(&receiver.url()) };
    let configuration = SendMessageConfiguration {
        task_push_notification_config: Some(hook.clone()),
        return_immediately: true,
        ..Default::default()
    };
    let request = SendMessageRequest {
        message: Some(Message::user("/stream 20 10")),
        configuration: Some(configuration),
        ..Default::default()
    };
    let reply = agent.send_message(Call::default().request(request)).await?;
    if let Some(Payload::Task(task)) = reply.into_inner().payload {
        let second = TaskPushNotificationConfig { id: "second".into(), task_id: task.id, ..hook };
        agent.create_task_push_notification_config(Call::default().request(second)).await?;
    }
    Ok(())
}

/// Waits until everything is delivered, as `a2a admin push list` tells.
async fn wait_until_delivered(store: &Path, count: &Receiver) {
    let store = format!("sqlite:{}", store.display());
    let delivered = async {
        let mut before = None;
        loop {
            let listed = output(a2a(&["admin", "push", "list", "-ojsonl", "--store", &store])).await;
            assert!(listed.status.success(), "{listed:?}");
            let listed = String::from_utf8(listed.stdout).unwrap();
            let received = count.requests.lock().len();
            let is_idle = listed.lines().all(|line| line.contains(r#""state":"idle""#));
            // A recovered turn may not have begun yet.
            if is_idle && before == Some(received) {
                return;
            }
            before = is_idle.then_some(received);
            for _ in 0..50 {
                pause().await;
            }
        }
    };
    timeout(Duration::from_mins(2), delivered).await.unwrap();
}

/// Text of an artifact update.
fn text_of(body: &Value) -> String {
    let parts = body["artifactUpdate"]["artifact"]["parts"].as_array().cloned().unwrap_or_default();
    parts.iter().filter_map(|part| part["text"].as_str()).collect()
}

/// Returns the first event after `cursor` that is not covered by the first notification at or after it.
fn first_missing(events: &[Event], received: &[(u64, Value)]) -> Option<String> {
    events.iter().find_map(|event| {
        let Some((seq, body)) = received.iter().find(|(seq, _)| *seq >= event.seq()) else {
            return Some(format!("event {} was not delivered", event.seq()));
        };
        let is_covered = match event.payload()? {
            // Joined with the chunks that follow it.
            EventPayload::ArtifactUpdate(update) => {
                let parts = update.artifact.iter().flat_map(|artifact| &artifact.parts);
                parts.map(|part| part.as_text().unwrap_or_default()).all(|text| text_of(body).contains(text))
            }
            EventPayload::Task(_) => *seq == event.seq() && body["task"].is_object(),
            EventPayload::StatusUpdate(_) => *seq == event.seq() && body["statusUpdate"].is_object(),
            // On no stream.
            EventPayload::Message(_) => true,
        };
        (!is_covered).then(|| format!("event {}: notification {seq} came before it: {body}", event.seq()))
    })
}

/// `KILLS` sets the number of kills, `SEED` their times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_delivered_in_order_after_every_kill() {
    let (directory, mut rng) = (tempfile::tempdir().unwrap(), seed());
    let path = directory.path().join("a2a.db");
    let receiver = Receiver::accepting().await;
    let kills = number("KILLS").unwrap_or(5);
    for round in 0..kills {
        let fault = FAULTS[usize::try_from(round).unwrap() % FAULTS.len()];
        let Some((mut child, url)) = start(&path, fault).await else {
            assert!(fault.is_some());
            continue;
        };
        let target = receiver.requests.lock().len() + rng.below(30);
        let mut is_alive = true;
        for _ in 0..3 {
            is_alive = is_alive && begin_task(&url, &receiver).await.is_ok();
        }
        if fault.is_some() {
            // Aborts by itself, unless the deliveries of an earlier round wait for their leases.
            _ = timeout(Duration::from_secs(5), child.wait()).await;
        } else if is_alive {
            _ = timeout(Duration::from_secs(5), receiver.wait(|all| all.len() > target)).await;
        }
        if child.try_wait().unwrap().is_none() {
            signal(&child, "-KILL");
        }
        timeout(TIMEOUT, child.wait()).await.unwrap().unwrap();
    }
    let (mut child, _) = start(&path, None).await.unwrap();
    wait_until_delivered(&path, &receiver).await;
    signal(&child, "-TERM");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));

    let mut arrivals = HashMap::<String, Vec<(u64, Value)>>::new();
    for one in receiver.requests.lock().iter() {
        let (config, seq) = one.header("webhook-id").rsplit_once('~').unwrap();
        arrivals.entry(config.to_owned()).or_default().push((seq.parse().unwrap(), one.body.clone()));
    }
    let store = sqlite::Sqlite::open(&path, sqlite::Options::default()).unwrap();
    let page = store.deliveries(false, DeliveryToken::default(), 10_000).await.unwrap();
    assert!(page.deliveries.len() > usize::try_from(kills).unwrap(), "{}", page.deliveries.len());
    for delivery in page.deliveries {
        let (key, id) = (&delivery.key, &delivery.config.config.id);
        assert_eq!((delivery.state.cursor, &delivery.state.dead), (delivery.seq, &None), "{} {id}", key.id());
        let all = arrivals.remove(&format!("{}~{id}", key.id())).unwrap_or_default();
        // The second configuration gets the events after its registration.
        let from = if id == "first" { 0 } else { all.first().map_or(u64::MAX, |(seq, _)| seq - 1) };
        let events = store.events(key, 0, 10_000, usize::MAX).await.unwrap();
        let events: Vec<_> = events.into_iter().filter(|event| event.seq() > from && !event.mark().hidden).collect();
        assert!(!events.is_empty() && events.last().unwrap().ends() == a2a_service::event::Ends::Task, "{}", key.id());
        assert_eq!(first_missing(&events, &all), None, "{} {id}: {all:?}", key.id());
    }
    assert_eq!(arrivals.len(), 0, "of tasks that do not exist");
}
