//! Bindings of a service, and the macros that expand a scenario to one test per binding.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates, demo::Demo},
    client,
    pb::v1::{AgentCard, Message, TaskState, a2a_service_server::A2aService},
    push::{PushOptions, Resolver},
    server::Server,
    service::Limits,
    store::sqlite::Options,
};

use crate::{conformance::CheckLayer, store::opened::OpenedStore, v03_client};

/// Expands a test to one function per binding. A new binding needs a column here and a function below. A binding that
/// cannot express a test is ignored with a reason: `not_at_0_3` excludes every binding of 0.3, `not_in_v03_proto` those that
/// use its proto file, and `not_in_v03_json_rpc` its JSON-RPC.
macro_rules! columns {
    (
        $flavour:meta, $binding:ident => $test:expr,
        $(not_at_0_3 = $why:literal)? $(not_in_v03_proto = $proto:literal)? $(not_in_v03_json_rpc = $classic:literal)?
    ) => {
        $crate::bindings::columns!(@ $flavour, $binding => $test; in_process grpc rest json_rpc);
        $crate::bindings::columns!(@ $flavour, $binding => $test; v03_grpc v03_rest, $($why)? $($proto)?);
        $crate::bindings::columns!(@ $flavour, $binding => $test; v03_rpc, $($why)? $($classic)?);
    };
    // An optional fragment and a repeated one can only be combined in separate rules.
    (@ $flavour:meta, $binding:ident => $test:expr; $($column:ident)* $(, $($why:literal)?)?) => {
        $crate::bindings::columns!(! $flavour, $binding => $test; [$($($why)?)?] $($column)*);
    };
    (! $flavour:meta, $binding:ident => $test:expr; $why:tt $($column:ident)*) => {
        $($crate::bindings::columns!(? $flavour, $binding => $test; $why $column);)*
    };
    (? $flavour:meta, $binding:ident => $test:expr; [$($why:literal)?] $column:ident) => {
        #[$flavour]
        $(#[ignore = $why])?
        async fn $column() {
            let $binding = async |server| $crate::bindings::$column(server).await;
            $test.await;
            $crate::conformance::assert_no_violations();
        }
    };
}

/// Runs a scenario over every binding.
macro_rules! scenario {
    ($name:ident, $mark:ident = $why:literal, $scenario:expr) => {
        $crate::bindings::scenario!(@ $name, $scenario, $mark = $why);
    };
    ($name:ident, $scenario:expr) => {
        $crate::bindings::scenario!(@ $name, $scenario,);
    };
    (@ $name:ident, $scenario:expr, $($mark:tt)*) => {
        mod $name {
            use super::*;

            async fn run(agent: &dyn A2aService) {
                ($scenario)(agent).await;
            }

            $crate::bindings::columns!(
                tokio::test, binding => async { run(&*binding($crate::bindings::server()).await).await }, $($mark)*
            );
            $crate::bindings::columns!(
                @ tokio::test, binding => async { run(&*binding($crate::bindings::server()).await).await }; in_file json_rpc_in_file
            );
        }
    };
}

/// Runs a scenario of 0.3 behaviour over the bindings of 0.3.
macro_rules! v03_scenario {
    ($name:ident, $scenario:expr) => {
        mod $name {
            use super::*;

            async fn run(agent: &dyn A2aService) {
                ($scenario)(agent).await;
            }

            $crate::bindings::columns!(@ tokio::test, binding => async { run(&*binding($crate::bindings::server()).await).await }; v03_grpc v03_rest v03_rpc);
        }
    };
}

/// Runs a test that creates its own server over every binding: `$test` is a function of a binding.
macro_rules! each_binding {
    ($test:ident $(, $mark:ident = $why:literal)?) => {
        mod $test {
            $crate::bindings::columns!(tokio::test(flavor = "multi_thread", worker_threads = 2), binding => super::$test(binding), $($mark = $why)?);
        }
    };
}

/// Runs such a test over the bindings of 0.3.
macro_rules! each_v03_binding {
    ($test:ident) => {
        mod $test {
            $crate::bindings::columns!(@ tokio::test(flavor = "multi_thread", worker_threads = 2), binding => super::$test(binding); v03_grpc v03_rest v03_rpc);
        }
    };
}

pub(crate) use {columns, each_binding, each_v03_binding, scenario, v03_scenario};

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

/// Moves the tasks of a server to a temporary file, which exists until the test ends.
fn in_a_file<A: Agent>(server: Server<A>) -> Server<A> {
    let store = OpenedStore::sqlite(Options::default());
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

pub(crate) async fn v03_grpc<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    v03_client::grpc(&serve(server).await)
}

pub(crate) async fn v03_rest<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    v03_client::rest(&serve(server).await)
}

pub(crate) async fn v03_rpc<A: Agent>(server: Server<A>) -> Arc<dyn A2aService> {
    v03_client::json_rpc(&serve(server).await)
}

/// Server of the scenarios. A blocking send waits at most half a second, so that tests can observe the timeout.
pub(crate) fn server() -> Server<Actor> {
    let mut limits = Limits::default();
    limits.send_timeout = Some(Duration::from_millis(500));
    Server::new(Actor).limits(limits).push_options(no_names())
}

/// Options of push notifications without names, so that none leaves the machine.
pub(crate) fn no_names() -> PushOptions {
    PushOptions::default().resolver(Arc::new(NoNames))
}

/// Resolver that knows no names.
struct NoNames;

#[async_trait::async_trait]
impl Resolver for NoNames {
    async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Serves on a free port until the test ends, and returns the URL. Requests and responses are checked against the documents
/// in `openapi/`.
pub(crate) async fn serve<A: Agent>(server: Server<A>) -> String {
    let bound = server.layer(CheckLayer).bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    url
}

/// Serves a router that embeds the service, and returns the URL.
pub(crate) async fn program(router: axum::Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

/// Demo agent with additional commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor;

impl Agent for Actor {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let text = turn.text().to_owned();
        let (command, rest) = text.split_once(' ').unwrap_or((&text, ""));
        match command {
            // Waits for authorization until it is canceled.
            "!authorise" => {
                out.auth_required(Message::agent("Authorise this elsewhere.")).await?;
                turn.canceled().await;
                Err(a2a_service::agent::Stopped.into())
            }
            "!referenced" => {
                let ids: Vec<_> = turn.referenced().iter().map(|task| task.id.clone()).collect();
                out.artifact("referenced").text(ids.join(" ")).await?;
                Ok(End::Completed(None))
            }
            // Returns the conversation history.
            "!history" => {
                let texts: Vec<_> = turn.history().map(Message::text).collect();
                out.artifact("history").text(texts.join("|")).await?;
                Ok(End::input_required("more?"))
            }
            "!burst" => {
                let events: usize = rest.parse().unwrap();
                let mut artifact = out.artifact("burst");
                for n in 0..events {
                    artifact.text(format!("{n:06} {}", "x".repeat(1017))).await?;
                }
                Ok(End::Completed(None))
            }
            // Writes an artifact of this many bytes.
            "!bytes" => {
                let bytes: usize = rest.parse().unwrap();
                out.artifact("bytes").last().text("x".repeat(bytes)).await?;
                Ok(End::Completed(None))
            }
            // Waits for another message.
            "!wait" => {
                out.working().await?;
                tokio::task::yield_now().await;
                Ok(End::input_required("go on"))
            }
            // Sends no update and never returns.
            "!silent" => std::future::pending().await,
            "!error" => Err(io::Error::other("the password is swordfish").into()),
            "!done" => {
                out.progress("nearly").await?;
                Ok(End::completed("done"))
            }
            _ if turn.task().state() == TaskState::InputRequired && turn.text() == "again" => {
                Ok(End::input_required("again?"))
            }
            _ => Demo.run(turn, out).await,
        }
    }

    fn card(&self) -> AgentCard {
        Demo.card()
    }
}
