//! Effect of push notifications on the tasks that have them. Run `cargo bench --bench push` on an otherwise idle machine.
//!
//! Receivers hang, so that the measured time has no part of their work. Each round runs both variants, in turns one or the
//! other first. The figures are medians. The first row compares a variant with itself and shows the accuracy; a ratio like
//! that one means that the delivery is not on the path of the agent or of a stream.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark may panic, pauses between events, and prints its results"
)]

use std::{
    net::TcpListener,
    sync::{Arc, LazyLock},
    time::Duration,
};

use a2a_service::{
    A2aService,
    agent::{self, Agent, End, Turn, Updates},
    call::Call,
    pb::v1::{
        Message, SendMessageRequest, TaskPushNotificationConfig, send_message_response::Payload,
        stream_response::Payload as EventPayload,
    },
    push::PushOptions,
    server::Server,
    store::{
        Store,
        sqlite::{Options, Sqlite},
    },
};
use futures::StreamExt as _;
use tokio::time::{Instant, sleep};

const ROUNDS: usize = 11;

/// Number of events of a turn, each committed.
const EVENTS: usize = 10_000;

/// Number of events of a stream, with a pause between them.
const STREAM_EVENTS: usize = 500;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn elapsed_micros() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap()
}

/// Agent that asks for input, and then writes artifact chunks. Each chunk is the time at which it was written. The message
/// at the end is the duration of the turn in microseconds.
struct Writer;

impl Agent for Writer {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, agent::Error> {
        let text = turn.text();
        let Some((count, pause)) = text.split_once(' ') else { return Ok(End::input_required("how many?")) };
        let (count, pause) = (count.parse().unwrap_or(0_usize), pause.parse().unwrap_or(0));
        let started = Instant::now();
        let mut artifact = out.artifact("times");
        for _ in 0..count {
            artifact.text(elapsed_micros().to_string()).await?;
            out.flush().await?;
            if pause > 0 {
                sleep(Duration::from_millis(pause)).await;
            }
        }
        Ok(End::completed(started.elapsed().as_micros().to_string()))
    }
}

fn request(task: &str, text: &str) -> SendMessageRequest {
    let message = Message { task_id: task.into(), ..Message::user(text) };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

/// Creates a task with this number of configurations, whose receiver hangs.
async fn task(service: &dyn A2aService, configs: usize, receiver: &str) -> String {
    let reply = service.send_message(Call::default().request(request("", "begin"))).await.unwrap().into_inner();
    let Some(Payload::Task(task)) = reply.payload else { panic!("no task") };
    for number in 0..configs {
        let config = TaskPushNotificationConfig {
            task_id: task.id.clone(),
            id: number.to_string(),
            url: receiver.to_owned(),
            ..TaskPushNotificationConfig::default()
        };
        service.create_task_push_notification_config(Call::default().request(config)).await.unwrap();
    }
    task.id
}

/// Returns the median latency of a stream's events, and the duration of the turn, in microseconds.
async fn run(service: &dyn A2aService, configs: usize, receiver: &str, text: &str) -> (f64, f64) {
    let id = task(service, configs, receiver).await;
    let stream = service.send_streaming_message(Call::default().request(request(&id, text))).await.unwrap();
    let (mut stream, mut latencies, mut duration) = (stream.into_inner(), Vec::new(), 0.0);
    while let Some(event) = stream.next().await {
        let now = elapsed_micros();
        match event.unwrap().payload() {
            Some(EventPayload::ArtifactUpdate(update)) => {
                let last = update.artifact.as_ref().and_then(|artifact| artifact.parts.last()?.as_text());
                latencies.push(now.saturating_sub(last.unwrap_or_default().parse().unwrap_or(now)));
            }
            Some(EventPayload::StatusUpdate(update)) => {
                let message = update.status.as_ref().and_then(|status| status.message.as_ref());
                let text = message.and_then(|message| message.parts.first()?.as_text()).unwrap_or_default();
                duration = text.parse().unwrap_or(duration);
            }
            _ => {}
        }
    }
    latencies.sort_unstable();
    let median = latencies.get(latencies.len() / 2).copied().unwrap_or_default();
    (f64::from(u32::try_from(median).unwrap()), duration)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let receiver = format!("http://{}/", hanging.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&directory.path().join("a2a.db"), Options::default()).unwrap());
    let options = PushOptions::default().allow(vec!["http://127.0.0.1".parse().unwrap()]);
    let service = Server::new(Writer).store(store).push(true).push_options(options).into_service();
    println!("Medians of {ROUNDS} rounds, in microseconds.\n");
    println!("| figure | configurations | without | with | ratio |");
    println!("| --- | --- | --- | --- | --- |");
    let commits = format!("{EVENTS} 0");
    let paced = format!("{STREAM_EVENTS} 2");
    let rows = [
        ("time of a turn with 10 000 commits", 0, &commits, false),
        ("time of a turn with 10 000 commits", 3, &commits, false),
        ("latency of a stream's events", 1, &paced, true),
        ("time of a turn with a stream", 1, &paced, false),
    ];
    for (name, configs, text, is_latency) in rows {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let mut variants = [(0, &mut without), (configs, &mut with)];
            // A variant that always ran second would find warmer caches, or a larger file.
            variants.rotate_left(round % 2);
            for (count, figures) in variants {
                let (latency, duration) = run(&*service, count, &receiver, text).await;
                figures.push(if is_latency { latency } else { duration });
            }
        }
        let (without, with) = (median(without), median(with));
        println!("| {name} | {configs} | {without:.0} | {with:.0} | {:.2} |", with / without);
    }
}
