//! Demo agent with settings that a program has and `a2a serve` has not: `cargo run --example tuned -- small|v03-events STORE`.
//!
//! `small` has limits and times that generated requests reach. `v03-events` sends push notifications of events, instead of tasks,
//! to configurations of protocol 0.3. `STORE` is the SQLite file of the tasks.

use std::{env, error::Error, sync::Arc, time::Duration};

use a2a_service::{
    agent::demo::Demo,
    push::{PushOptions, V03Payload},
    server::{Limits, Server, Signals},
    store::sqlite::{Options, Sqlite},
};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "scripts read the address")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (kind, store) = arguments.next().zip(arguments.next()).ok_or("usage: tuned small|v03-events STORE")?;
    let server = Server::new(Demo).push(true).store(Arc::new(Sqlite::open(store.as_ref(), options())?));
    let server = match kind.as_str() {
        "small" => server.limits(small()).body_bytes(64 << 10),
        "v03-events" => {
            let push = PushOptions::default().allow(vec!["http://127.0.0.1".parse()?]);
            server.push_options(push.v03_payload(V03Payload::Event))
        }
        _ => return Err("usage: tuned small|v03-events STORE".into()),
    };
    let bound = server.bind("127.0.0.1:0").await?;
    println!("listening on {}", bound.url());
    let mut signals = Signals::listen();
    bound.run_until(async move { _ = signals.next().await }).await;
    Ok(())
}

fn options() -> Options {
    let mut options = Options::default();
    options.max_tasks = 2000;
    options
}

fn small() -> Limits {
    Limits::default()
        .send_timeout(Some(Duration::from_secs(1)))
        .turn_deadline(Duration::from_millis(100))
        .cancel_grace(Duration::from_millis(50))
        .stream_max_age(Duration::from_millis(200))
        .history_bytes(64 << 10)
        .page_bytes(64 << 10)
        .turns(64)
        .queued_messages(8)
        .streams(64)
        .push_configs(4)
}
