//! Streaming agent: `cargo run --example streaming [ADDRESS]`.
//!
//! Each call of `text` adds a chunk to one artifact. The chunk is committed to the task's log before it is sent, so that late and
//! reconnecting subscribers receive every chunk.

use std::time::Duration;

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    pb::v1::AgentCard,
    server::Server,
};

struct Counter;

impl Agent for Counter {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let last: u32 = turn.text().trim().parse().map_err(|_| Error::public("Send a number to count up to."))?;
        out.working().await?;
        let mut counted = out.artifact("counted");
        let mut interval = tokio::time::interval(Duration::from_millis(50));
        for n in 1..=last {
            interval.tick().await;
            if n == last {
                counted = counted.last();
            }
            // Fails after the task was canceled; `?` then ends the turn.
            counted.text(format!("{n} ")).await?;
        }
        Ok(End::Completed(None))
    }

    fn card(&self) -> AgentCard {
        AgentCard::new("Counter").describe("Counts up to a number and streams each step.").skill(
            "count",
            "Counts up to a number.",
            ["numbers"],
        )
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    Server::new(Counter).serve(address).await
}
