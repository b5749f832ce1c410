//! Our server, with an agent that does what a text tells it.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    server::Server,
    service::Limits,
    store::{
        Retention, Store,
        memory::{MAX_TASKS, Memory},
        sqlite::{Durability, Options, Sqlite},
    },
};
use tokio::{runtime::Builder, sync::watch};

use crate::{durable, floor};

/// Serves until it is killed, and says where on its first line. It has a worker for each core that it may run on, as the
/// program has.
pub(crate) fn run(kind: &str) {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if let Some((durability, path)) = durable::file(kind) {
            let mut options = Options::default();
            options.max_tasks = usize::MAX;
            if durability == "power" {
                options.durability = Durability::Power;
            }
            return serve(Arc::new(Sqlite::open(path, options).unwrap()), Limits::default()).await;
        }
        match kind {
            "ours" | "ours-each" | "ours-all" => {
                // As many as the program keeps, unless it is counted what each takes: then none is dropped.
                let most = if kind == "ours-all" { 10_000_000 } else { MAX_TASKS };
                let store = Arc::new(Memory::with_max_tasks(most));
                let mut limits = Limits::default();
                if kind == "ours-each" {
                    limits.pace = Duration::ZERO;
                }
                serve(store, limits).await;
            }
            "bare-grpc" => floor::grpc().await,
            _ => floor::http().await,
        }
    });
}

async fn serve(store: Arc<dyn Store>, mut limits: Limits) {
    (limits.streams, limits.subscribers) = (100_000, 100_000);
    let server = Server::new(Echo).store(store).limits(limits).retention(Retention::FOREVER);
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    println!("{}", bound.addr());
    bound.run_until(std::future::pending()).await;
}

/// What is said at once, and when it is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// So many chunks, each in a poll of its own, as a model's tokens come.
    Stream(usize),
    /// So many at once.
    Burst(usize),
    /// So many, each in a poll of its own, when somebody says "go".
    Fan(usize),
    /// Nothing, for ever.
    Silence,
    /// The text, in an artifact.
    Echo,
}

impl Asked {
    pub(crate) fn of(text: &str) -> Self {
        let number = |text: &str| text.parse().ok();
        let rest = |sign| text.strip_prefix(sign).and_then(number);
        number(text)
            .map(Self::Stream)
            .or_else(|| rest('!').map(Self::Burst))
            .or_else(|| rest('~').map(Self::Fan))
            .unwrap_or(if text == "?" { Self::Silence } else { Self::Echo })
    }
}

/// What is waited for by all who are asked to [`Fan`](Asked::Fan).
pub(crate) static GO: LazyLock<watch::Sender<()>> = LazyLock::new(watch::Sender::default);

struct Echo;

impl Agent for Echo {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let text = turn.text();
        let mut go = GO.subscribe();
        out.working().await?;
        let mut artifact = out.artifact("echo");
        match Asked::of(text) {
            Asked::Stream(chunks) => {
                for _ in 0..chunks {
                    tokio::task::yield_now().await;
                    artifact.text(CHUNK).await?;
                }
            }
            Asked::Fan(chunks) => {
                go.changed().await?;
                for _ in 0..chunks {
                    tokio::task::yield_now().await;
                    artifact.text(CHUNK).await?;
                }
            }
            Asked::Burst(chunks) => {
                for _ in 0..chunks {
                    artifact.text(LONG.as_str()).await?;
                }
            }
            Asked::Silence => std::future::pending().await,
            Asked::Echo if text == "fail" => return Err(Error::say("It was asked to.")),
            Asked::Echo => {
                if text == "go" {
                    GO.send_replace(());
                }
                artifact.last().text(text).await?;
            }
        }
        Ok(End::Completed(None))
    }
}

pub(crate) const CHUNK: &str = "0123456789012345678901234567890123456789012345678901234567890123";

/// Too long for two to be joined to one event.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| CHUNK.repeat(9));
