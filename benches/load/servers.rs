//! Server processes: this server with an agent that executes commands, and the baselines.

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
        memory::{DEFAULT_MAX_TASKS, Memory},
        sqlite::{Durability, Options, Sqlite},
    },
};
use tokio::{runtime::Builder, sync::watch};

use crate::{baseline, durable};

/// Serves until killed, and prints the address on the first line. The runtime has one worker per core that the process may
/// use, as in the program.
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
            "server" | "server-uncoalesced" | "server-unlimited" => {
                // The default maximum, except where the memory per task is measured and no task may be evicted.
                let max_tasks = if kind == "server-unlimited" { 10_000_000 } else { DEFAULT_MAX_TASKS };
                let store = Arc::new(Memory::with_max_tasks(max_tasks));
                let mut limits = Limits::default();
                if kind == "server-uncoalesced" {
                    limits.commit_interval = Duration::ZERO;
                }
                serve(store, limits).await;
            }
            "baseline-grpc" => baseline::grpc().await,
            _ => baseline::http().await,
        }
    });
}

async fn serve(store: Arc<dyn Store>, mut limits: Limits) {
    (limits.streams, limits.streams_per_task) = (100_000, 100_000);
    let server = Server::new(Echo).store(store).limits(limits).retention(Retention::FOREVER);
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    println!("{}", bound.addr());
    bound.run_until(std::future::pending()).await;
}

/// Command to the agent, encoded in the message text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// This many chunks, each in a poll of its own, as a model streams tokens.
    Stream(usize),
    /// This many chunks in one poll.
    Burst(usize),
    /// This many chunks, each in a poll of its own, after another message said "go".
    Fan(usize),
    /// No update, without end.
    Silence,
    /// The text as an artifact.
    Echo,
}

impl Command {
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

/// Start signal of [`Fan`](Command::Fan).
pub(crate) static GO: LazyLock<watch::Sender<()>> = LazyLock::new(watch::Sender::default);

struct Echo;

impl Agent for Echo {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let text = turn.text();
        let mut go = GO.subscribe();
        out.working().await?;
        let mut artifact = out.artifact("echo");
        match Command::of(text) {
            Command::Stream(chunks) => {
                for _ in 0..chunks {
                    tokio::task::yield_now().await;
                    artifact.text(CHUNK).await?;
                }
            }
            Command::Fan(chunks) => {
                go.changed().await?;
                for _ in 0..chunks {
                    tokio::task::yield_now().await;
                    artifact.text(CHUNK).await?;
                }
            }
            Command::Burst(chunks) => {
                for _ in 0..chunks {
                    artifact.text(LONG.as_str()).await?;
                }
            }
            Command::Silence => std::future::pending().await,
            Command::Echo if text == "fail" => return Err(Error::public("failed as requested")),
            Command::Echo => {
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

/// Long enough that two chunks are not coalesced.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| CHUNK.repeat(9));
