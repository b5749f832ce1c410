//! Agent and its client in one program, which sends, streams, cancels and ends: `cargo run --example round_trip`.

use std::{error::Error as StdError, io::Write, time::Duration};

use a2a_service::{
    agent::{self, End, Error},
    client::{Client, StreamEvent},
    pb::v1::Part,
    server::Server,
};
use tokio_stream::StreamExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    run(&mut std::io::stdout()).await
}

pub(crate) async fn run(out: &mut impl Write) -> Result<(), Box<dyn StdError>> {
    let counter = agent::from_fn(|turn, out| async move {
        let last: u32 = turn.text().parse().map_err(|_| Error::public("Send a number to count up to."))?;
        out.working().await?;
        let mut counted = out.artifact("counted");
        let mut interval = tokio::time::interval(Duration::from_millis(10));
        for n in 1..=last {
            interval.tick().await;
            // Fails after the task was canceled; `?` then ends the turn.
            counted.text(format!("{n} ")).await?;
        }
        Ok(End::Completed(None))
    });
    let server = Server::new(counter).name("Counter").bind("127.0.0.1:0").await?;
    let (url, handle) = (server.url(), server.handle());
    let serving = tokio::spawn(server.run_until(std::future::pending()));

    let client = Client::connect(&url).await?;
    writeln!(out, "agent: {}", client.card().name)?;
    writeln!(out, "sent: {}", client.send("3").await?.text())?;

    let mut events = client.stream("5").await?;
    while let Some(event) = events.next().await {
        let event = event?;
        if let Some(state) = event.state() {
            writeln!(out, "state: {state:?}")?;
        }
        if let StreamEvent::Artifact(update) = event {
            let artifact = update.artifact.unwrap_or_default();
            writeln!(out, "chunk: {}", artifact.parts.iter().filter_map(Part::as_text).collect::<String>())?;
        }
    }

    let mut events = client.stream("1000000").await?;
    if let Some(StreamEvent::Task(task)) = events.next().await.transpose()? {
        writeln!(out, "canceled: {:?}", client.cancel(&task.id).await?.state())?;
    }
    drop((events, client));
    handle.drain().await;
    serving.await?;
    Ok(())
}
