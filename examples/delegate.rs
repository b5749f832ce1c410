//! Agent that calls another agent, passes its artifacts on as they arrive, and passes a cancel on: `cargo run --example delegate`.
//!
//! The program serves both agents, calls them, and ends.

use std::{error::Error as StdError, io::Write, time::Duration};

use a2a_service::{
    agent::{self, Agent, End, Error, Stopped, Turn, Updates},
    client::{Client, StreamEvent},
    pb::v1::{ListTasksRequest, TaskState},
    server::Server,
};
use tokio_stream::StreamExt as _;

/// Agent that delegates its tasks to another one.
struct Delegate {
    writer: Client,
}

impl Agent for Delegate {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        out.working().await?;
        // The client adds one to the hop count of the turn, so that agents which delegate to each other in a circle stop.
        let mut events = self.writer.stream(turn.text()).await?;
        let mut task_id: Option<String> = None;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = turn.canceled() => break,
            };
            let Some(event) = event.transpose()? else {
                return Err(Error::public("The writer ended without a result."));
            };
            let state = event.state();
            if let StreamEvent::Task(task) = &event {
                task_id = Some(task.id.clone());
            } else if let StreamEvent::Artifact(update) = event {
                let artifact = update.artifact.unwrap_or_default();
                let mut passed = out.artifact(artifact.name).id(artifact.artifact_id);
                if update.append {
                    passed = passed.appending();
                }
                if update.last_chunk {
                    passed = passed.last();
                }
                if passed.parts(artifact.parts).await.is_err() {
                    break;
                }
            } else if let StreamEvent::Message(message) = event {
                return Ok(End::completed(*message));
            }
            match state {
                Some(TaskState::Completed) => return Ok(End::Completed(None)),
                Some(state) if state.is_terminal() || state.is_interrupted() => {
                    return Err(Error::public(format!("The writer is {state:?}.")));
                }
                _ => {}
            }
        }
        // This turn was stopped, so the one of the writer is too.
        if let Some(id) = &task_id {
            self.writer.cancel(id).await?;
        }
        Err(Stopped.into())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    run(&mut std::io::stdout()).await
}

pub(crate) async fn run(out: &mut impl Write) -> Result<(), Box<dyn StdError>> {
    let writer = agent::from_fn(|turn, out| async move {
        let mut poem = out.artifact("poem");
        let mut interval = tokio::time::interval(Duration::from_millis(10));
        for line in 1.. {
            interval.tick().await;
            poem.text(format!("line {line} about {}\n", turn.text())).await?;
            if line == 3 && turn.text() != "eternity" {
                break;
            }
        }
        Ok(End::Completed(None))
    });
    let writer = Server::new(writer).name("Writer").bind("127.0.0.1:0").await?;
    let (writer_url, writer_handle) = (writer.url(), writer.handle());
    tokio::spawn(writer.run_until(std::future::pending()));
    let writer = Client::connect(&writer_url).await?;

    let editor = Server::new(Delegate { writer: writer.clone() }).name("Editor").bind("127.0.0.1:0").await?;
    let (editor_url, editor_handle) = (editor.url(), editor.handle());
    tokio::spawn(editor.run_until(std::future::pending()));
    let editor = Client::connect(&editor_url).await?;

    write!(out, "{}", editor.send("spring").await?.text())?;

    let mut events = editor.stream("eternity").await?;
    let mut task_id = String::new();
    while let Some(event) = events.next().await {
        let event = event?;
        if let StreamEvent::Task(task) = &event {
            task_id.clone_from(&task.id);
        }
        if matches!(event, StreamEvent::Artifact(_)) {
            // The writer has begun.
            break;
        }
    }
    writeln!(out, "editor: {:?}", editor.cancel(&task_id).await?.state())?;
    let mut tasks = writer.list(ListTasksRequest { page_size: Some(1), ..ListTasksRequest::default() });
    if let Some(task) = tasks.next().await.transpose()? {
        writeln!(out, "writer: {:?}", writer.wait(&task.id).await?.state())?;
    }
    drop((events, tasks, editor, writer));
    editor_handle.drain().await;
    writer_handle.drain().await;
    Ok(())
}
