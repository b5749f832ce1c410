//! An agent whose words reach the caller as it finds them: `cargo run --example streaming [ADDRESS]`.
//!
//! Each `text` is a chunk of one artifact. It is in the task's log before it is on any wire, so a caller who comes
//! late, or comes again, misses nothing.

use std::time::Duration;

use a2a_service::{
    agent::{About, Agent, End, Error, Turn, Updates},
    server::Server,
};

struct Counter;

impl Agent for Counter {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let last: u32 = turn.text().trim().parse().map_err(|_| Error::say("Send a number, and I count up to it."))?;
        out.working().await?;
        let mut counted = out.artifact("counted");
        let mut beat = tokio::time::interval(Duration::from_millis(50));
        for n in 1..=last {
            beat.tick().await;
            if n == last {
                counted = counted.last();
            }
            // Fails once the task has been canceled, and `?` ends the turn.
            counted.text(format!("{n} ")).await?;
        }
        Ok(End::Completed(None))
    }

    fn about(&self) -> About {
        About::new("Counter").describe("Counts, and lets you watch.").skill(
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
