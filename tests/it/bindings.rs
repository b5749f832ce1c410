//! Bindings of a service, and the macros that expand a scenario to one test per binding.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use a2a_service::{
    agent::{Agent, DynAgent, End, Error, Turn, Updates, demo::Demo},
    client,
    pb::v1::{AgentCard, Message, TaskState, a2a_service_server::A2aService},
    push::{PushOptions, Resolver},
    server::Server,
    service::Limits,
    store::sqlite::Options,
};
use futures::future::BoxFuture;

use crate::{agent_kinds, conformance::CheckLayer, store::opened::OpenedStore, v03_client};

/// Expands a test to one function per binding. A new binding needs a column here and a function below. A binding that
/// cannot express a test is ignored with a reason: `not_at_0_3` excludes every binding of 0.3, `not_in_v03_proto` those that
/// use its proto file, and `not_in_v03_json_rpc` its JSON-RPC.
macro_rules! columns {
    ([] $flavour:meta, $binding:ident => $test:expr, [$($mark:tt)*]) => {
        $crate::bindings::columns!($flavour, $binding => $test, $($mark)*);
    };
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
            let $binding: $crate::bindings::Binding = |server| Box::pin($crate::bindings::$column(server));
            $test.await;
            $crate::conformance::assert_no_violations();
        }
    };
}

/// Runs a scenario over every binding. With `kinds(…)`, also with each kind of agent without code.
macro_rules! scenario {
    ($name:ident, kinds($($kind:tt)*), $mark:ident = $why:literal, $scenario:expr) => {
        $crate::bindings::scenario!(@ $name, [$($kind)*], $scenario, [$mark = $why]);
    };
    ($name:ident, kinds($($kind:tt)*), $scenario:expr) => {
        $crate::bindings::scenario!(@ $name, [$($kind)*], $scenario, []);
    };
    ($name:ident, $mark:ident = $why:literal, $scenario:expr) => {
        $crate::bindings::scenario!(@ $name, , $scenario, [$mark = $why]);
    };
    ($name:ident, $scenario:expr) => {
        $crate::bindings::scenario!(@ $name, , $scenario, []);
    };
    (@ $name:ident, $([$($kind:tt)*])?, $scenario:expr, $marks:tt) => {
        mod $name {
            use super::*;

            async fn run(agent: &dyn A2aService) {
                ($scenario)(agent).await;
            }

            $crate::bindings::columns!(
                [] tokio::test, binding => async { run(&*binding($crate::bindings::server()).await).await }, $marks
            );
            $crate::bindings::columns!(
                @ tokio::test, binding => async { run(&*binding($crate::bindings::server()).await).await }; in_file json_rpc_in_file
            );
            $($crate::bindings::each_kind!(
                tokio::test, binding => async { run(&*binding($crate::bindings::server()).await).await }, [$($kind)*] $marks
            );)?
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

/// Runs a test that creates its own server over every binding: `$test` is a function of a binding. With `kinds(…)`, also with
/// each kind of agent without code.
macro_rules! each_binding {
    ($test:ident, kinds($($kind:tt)*) $(, $mark:ident = $why:literal)?) => {
        mod $test {
            use super::$test as test;

            $crate::bindings::columns!(tokio::test(flavor = "multi_thread", worker_threads = 2), binding => test(binding), $($mark = $why)?);
            $crate::bindings::each_kind!(tokio::test(flavor = "multi_thread", worker_threads = 2), binding => test(binding), [$($kind)*] [$($mark = $why)?]);
        }
    };
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

/// Runs a test with each kind of agent without code (`agent_kinds`), over the bindings of both versions. A kind that cannot
/// express a test is ignored with a reason, such as `not_exec`; the reasons are in the order of the kinds.
macro_rules! each_kind {
    (
        $flavour:meta, $binding:ident => $test:expr,
        [$(not_exec = $exec:literal $(,)?)? $(not_http = $http:literal $(,)?)? $(not_openai = $openai:literal $(,)?)? $(not_upstream = $upstream:literal $(,)?)?
            $(not_upstream_v03 = $upstream_v03:literal)?]
        [$(not_at_0_3 = $why:literal)? $(not_in_v03_proto = $proto:literal)? $(not_in_v03_json_rpc = $classic:literal)?]
    ) => {
        #[cfg(unix)]
        mod exec {
            use super::*;
            $crate::bindings::each_kind!(@ exec, $flavour, $binding => $test; [$($exec)?] [$($exec)? $($why)? $($proto)?] [$($exec)? $($why)? $($classic)?]);
        }
        mod http {
            use super::*;
            $crate::bindings::each_kind!(@ http, $flavour, $binding => $test; [$($http)?] [$($http)? $($why)? $($proto)?] [$($http)? $($why)? $($classic)?]);
        }
        mod openai {
            use super::*;
            $crate::bindings::each_kind!(@ openai, $flavour, $binding => $test; [$($openai)?] [$($openai)? $($why)? $($proto)?] [$($openai)? $($why)? $($classic)?]);
        }
        mod upstream {
            use super::*;
            $crate::bindings::each_kind!(@ upstream, $flavour, $binding => $test; [$($upstream)?] [$($upstream)? $($why)? $($proto)?] [$($upstream)? $($why)? $($classic)?]);
        }
        mod upstream_v03 {
            use super::*;
            $crate::bindings::each_kind!(@ upstream_v03, $flavour, $binding => $test; [$($upstream_v03)?] [$($upstream_v03)? $($why)? $($proto)?] [$($upstream_v03)? $($why)? $($classic)?]);
        }
    };
    (@ $kind:ident, $flavour:meta, $binding:ident => $test:expr; $whys:tt $proto_whys:tt $classic_whys:tt) => {
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; $whys grpc);
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; $whys rest);
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; $whys json_rpc);
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; $proto_whys v03_grpc);
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; $proto_whys v03_rest);
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; $classic_whys v03_rpc);
    };
    (? $kind:ident, $flavour:meta, $binding:ident => $test:expr; [$($why:literal)?] $column:ident) => {
        #[$flavour]
        $(#[ignore = $why])?
        async fn $column() {
            let $binding: $crate::bindings::Binding = |server| Box::pin($crate::bindings::$column(server));
            $crate::agent_kinds::with($crate::agent_kinds::$kind().await, async { $test.await }).await;
            $crate::conformance::assert_no_violations();
        }
    };
    (? $kind:ident, $flavour:meta, $binding:ident => $test:expr; [$why:literal $($further:literal)+] $column:ident) => {
        $crate::bindings::each_kind!(? $kind, $flavour, $binding => $test; [$why] $column);
    };
}

pub(crate) use {columns, each_binding, each_kind, each_v03_binding, scenario, v03_scenario};

/// Serves a server over a binding, and returns a client of it. Bindings have one type, so that each test is compiled once.
pub(crate) type Binding = fn(Server) -> BoxFuture<'static, Arc<dyn A2aService>>;

pub(crate) async fn in_process(server: Server) -> Arc<dyn A2aService> {
    server.into_service()
}

/// In process, with tasks in a file.
pub(crate) async fn in_file(server: Server) -> Arc<dyn A2aService> {
    in_process(in_a_file(server)).await
}

pub(crate) async fn json_rpc_in_file(server: Server) -> Arc<dyn A2aService> {
    json_rpc(in_a_file(server)).await
}

/// Moves the tasks of a server to a temporary file, which exists until the test ends.
fn in_a_file(server: Server) -> Server {
    let store = OpenedStore::sqlite(Options::default());
    let server = server.store(Arc::clone(&store.store));
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(store);
    });
    server
}

pub(crate) async fn grpc(server: Server) -> Arc<dyn A2aService> {
    client::grpc(&serve(server).await).unwrap()
}

pub(crate) async fn rest(server: Server) -> Arc<dyn A2aService> {
    client::rest(&serve(server).await).unwrap()
}

pub(crate) async fn json_rpc(server: Server) -> Arc<dyn A2aService> {
    client::json_rpc(&format!("{}/rpc", serve(server).await)).unwrap()
}

pub(crate) async fn v03_grpc(server: Server) -> Arc<dyn A2aService> {
    v03_client::grpc(&serve(server).await)
}

pub(crate) async fn v03_rest(server: Server) -> Arc<dyn A2aService> {
    v03_client::rest(&serve(server).await)
}

pub(crate) async fn v03_rpc(server: Server) -> Arc<dyn A2aService> {
    v03_client::json_rpc(&serve(server).await)
}

/// Server of the scenarios. A blocking send waits at most half a second, so that tests can observe the timeout. Other kinds of
/// agents are slower, and have more time for sends and for replies without a task.
pub(crate) fn server() -> Server {
    let mut limits = Limits::default();
    if agent_kinds::current().is_some() {
        limits.task_delay = Duration::from_secs(10);
    } else {
        limits.send_timeout = Some(Duration::from_millis(500));
    }
    Server::new(Actor::new()).limits(limits).push_options(no_names())
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
pub(crate) async fn serve(server: Server) -> String {
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
#[derive(Clone)]
pub(crate) struct Actor {
    /// Agent that provides the behaviour.
    other: Option<Arc<dyn DynAgent>>,
}

impl Actor {
    /// Creates the agent. In a test of a kind of agents, one of that kind provides the behaviour.
    pub(crate) fn new() -> Self {
        Self { other: agent_kinds::current() }
    }
}

impl Agent for Actor {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        if let Some(other) = &self.other {
            return other.run(turn, out).await;
        }
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
            // Repeats the text, and waits for another message.
            "!more" => {
                out.working().await?;
                out.artifact("answer").text(rest).await?;
                Ok(End::input_required("more?"))
            }
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

    fn resumable(&self) -> bool {
        self.other.as_ref().is_some_and(Agent::resumable)
    }
}
