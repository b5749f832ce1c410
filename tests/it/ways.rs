//! The ways in to one service, and the macro that runs a scenario over each.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{About, Agent, End, Error, Turn, Updates, demo::Demo},
    client,
    pb::v1::{Message, TaskState, a2a_service_server::A2aService},
    server::Server,
    service::Limits,
    store::sqlite::Options,
};

use crate::{classic_client, classic_rpc_client, store::place::Opened};

/// A test for each way in: a column more is a word more here, and its function below. A test that 0.3 can't say, or that
/// is otherwise there, says why; then its columns are shown as ignored, with the reason. `not_at_0_3` is of all of them,
/// `not_in_proto` of those that have its proto file, and `not_in_classic` of its JSON-RPC.
macro_rules! columns {
    (
        $flavour:meta, $way:ident => $test:expr,
        $(not_at_0_3 = $why:literal)? $(not_in_proto = $proto:literal)? $(not_in_classic = $classic:literal)?
    ) => {
        $crate::ways::columns!(@ $flavour, $way => $test; in_process grpc rest json_rpc);
        $crate::ways::columns!(@ $flavour, $way => $test; classic_grpc classic_rest, $($why)? $($proto)?);
        $crate::ways::columns!(@ $flavour, $way => $test; classic_rpc, $($why)? $($classic)?);
    };
    // What may be there and what is there several times can only be written side by side one after the other.
    (@ $flavour:meta, $way:ident => $test:expr; $($column:ident)* $(, $($why:literal)?)?) => {
        $crate::ways::columns!(! $flavour, $way => $test; [$($($why)?)?] $($column)*);
    };
    (! $flavour:meta, $way:ident => $test:expr; $why:tt $($column:ident)*) => {
        $($crate::ways::columns!(? $flavour, $way => $test; $why $column);)*
    };
    (? $flavour:meta, $way:ident => $test:expr; [$($why:literal)?] $column:ident) => {
        #[$flavour]
        $(#[ignore = $why])?
        async fn $column() {
            let $way = async |server| $crate::ways::$column(server).await;
            $test.await;
        }
    };
}

/// Runs a scenario over every way in.
macro_rules! scenario {
    ($name:ident, $mark:ident = $why:literal, $scenario:expr) => {
        $crate::ways::scenario!(@ $name, $scenario, $mark = $why);
    };
    ($name:ident, $scenario:expr) => {
        $crate::ways::scenario!(@ $name, $scenario,);
    };
    (@ $name:ident, $scenario:expr, $($mark:tt)*) => {
        mod $name {
            use super::*;

            async fn run(agent: &dyn A2aService) {
                ($scenario)(agent).await;
            }

            $crate::ways::columns!(
                tokio::test, way => async { run(&*way($crate::ways::server()).await).await }, $($mark)*
            );
            $crate::ways::columns!(
                @ tokio::test, way => async { run(&*way($crate::ways::server()).await).await }; in_file json_rpc_in_file
            );
        }
    };
}

/// Runs a scenario of what is otherwise at 0.3, over its ways in.
macro_rules! classic {
    ($name:ident, $scenario:expr) => {
        mod $name {
            use super::*;

            async fn run(agent: &dyn A2aService) {
                ($scenario)(agent).await;
            }

            $crate::ways::columns!(@ tokio::test, way => async { run(&*way($crate::ways::server()).await).await }; classic_grpc classic_rest classic_rpc);
        }
    };
}

/// The same, for a test that puts its server together by itself: `$test` is a function of a way in.
macro_rules! each_way {
    ($test:ident $(, $mark:ident = $why:literal)?) => {
        mod $test {
            $crate::ways::columns!(tokio::test(flavor = "multi_thread", worker_threads = 2), way => super::$test(way), $($mark = $why)?);
        }
    };
}

/// The same, of what is otherwise at 0.3.
macro_rules! each_classic_way {
    ($test:ident) => {
        mod $test {
            $crate::ways::columns!(@ tokio::test(flavor = "multi_thread", worker_threads = 2), way => super::$test(way); classic_grpc classic_rest classic_rpc);
        }
    };
}

pub(crate) use {classic, columns, each_classic_way, each_way, scenario};

pub(crate) async fn in_process<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    server.into_service()
}

/// In process, with tasks in a file.
pub(crate) async fn in_file<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    in_process(in_a_file(server)).await
}

pub(crate) async fn json_rpc_in_file<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    json_rpc(in_a_file(server)).await
}

/// The server, with tasks in a file, which is there until the test is over.
fn in_a_file<A: Agent>(server: Server<A>) -> Server<A> {
    let store = Opened::sqlite(Options::default());
    let server = server.store(Arc::clone(&store.store));
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(store);
    });
    server
}

pub(crate) async fn grpc<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    client::grpc(&serve(server).await).unwrap()
}

pub(crate) async fn rest<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    client::rest(&serve(server).await).unwrap()
}

pub(crate) async fn json_rpc<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    client::json_rpc(&format!("{}/rpc", serve(server).await)).unwrap()
}

pub(crate) async fn classic_grpc<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    classic_client::grpc(&serve(server).await)
}

pub(crate) async fn classic_rest<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    classic_client::rest(&serve(server).await)
}

pub(crate) async fn classic_rpc<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    classic_rpc_client::json_rpc(&serve(server).await)
}

/// The server of the scenarios. A send waits for half a second, so that what happens then can be seen.
pub(crate) fn server() -> Server<Actor> {
    let mut limits = Limits::default();
    limits.wait = Some(Duration::from_millis(500));
    Server::new(Actor).limits(limits)
}

/// Serves on a port of its own until the test is over, and says where.
pub(crate) async fn serve<A: Agent>(server: Server<A>) -> String {
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    url
}

/// The same of a program of somebody else, with a door in it.
pub(crate) async fn program(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// The demo agent, and what it has no command for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor;

impl Agent for Actor {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let text = turn.text().to_owned();
        let (command, rest) = text.split_once(' ').unwrap_or((&text, ""));
        match command {
            // Goes on while its caller authorises, until it is canceled.
            "!authorise" => {
                out.auth_required(Message::agent("Authorise this elsewhere.")).await?;
                turn.canceled().await;
                Err(a2a_service::agent::Stopped.into())
            }
            "!referenced" => {
                let ids: Vec<_> = turn.referenced().iter().map(|it| it.id.clone()).collect();
                out.artifact("referenced").text(ids.join(" ")).await?;
                Ok(End::Completed(None))
            }
            // What it knows of the conversation.
            "!history" => {
                let said: Vec<_> = turn.history().map(Message::text).collect();
                out.artifact("history").text(said.join("|")).await?;
                Ok(End::InputRequired(Message::agent("more?")))
            }
            "!burst" => {
                let events: usize = rest.parse().unwrap();
                let mut artifact = out.artifact("burst");
                for n in 0..events {
                    artifact.text(format!("{n:06} {}", "x".repeat(1017))).await?;
                }
                Ok(End::Completed(None))
            }
            // So many bytes at once.
            "!bytes" => {
                let bytes: usize = rest.parse().unwrap();
                out.artifact("bytes").last().text("x".repeat(bytes)).await?;
                Ok(End::Completed(None))
            }
            // Until there is another message.
            "!wait" => {
                out.working().await?;
                tokio::task::yield_now().await;
                Ok(End::InputRequired(Message::agent("go on")))
            }
            // Sends nothing, and never returns.
            "!silent" => std::future::pending().await,
            "!error" => Err(std::io::Error::other("the password is swordfish").into()),
            "!done" => {
                out.progress("nearly").await?;
                Ok(End::Completed(Some(Message::agent("done"))))
            }
            _ if turn.task().state() == TaskState::InputRequired && turn.text() == "again" => {
                Ok(End::InputRequired(Message::agent("again?")))
            }
            _ => Demo.run(turn, out).await,
        }
    }

    fn about(&self) -> About {
        Demo.about()
    }
}
