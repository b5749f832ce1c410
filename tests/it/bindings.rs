//! Bindings of a service, and the macros that expand a scenario to one test per binding, and to one with two servers.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

#[cfg(feature = "postgres")]
use a2a_service::store::postgres::Postgres;
use a2a_service::{
    Snapshot,
    agent::{Agent, DynAgent, End, Error, Turn, Updates, demo::Demo},
    client,
    clock::Clock,
    contract::BoxStream,
    event::Event,
    pb::{
        v1::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, Message, SendMessageRequest,
            SendMessageResponse, SubscribeToTaskRequest, TaskPushNotificationConfig, TaskState,
            a2a_service_server::A2aService,
        },
        wkt::Empty,
    },
    push::{PushOptions, Resolver},
    server::Server,
    service::Limits,
    sources::{Rng, Sources},
    store::{
        Store,
        memory::{Cluster, Memory},
        sqlite::Options,
    },
};
use futures::future::{BoxFuture, LocalBoxFuture};
use tokio::runtime::Builder;
use tonic::{Request, Response, Status};

use crate::{
    agent_kinds::{self, Create},
    conformance::{self, CheckLayer},
    store::opened::OpenedStore,
    v03_client,
};

/// Serves a server over a binding, and returns its client.
pub(crate) type Binding = fn(Server) -> BoxFuture<'static, Arc<dyn A2aService>>;

/// Test of a binding.
pub(crate) type Test = fn(Binding) -> LocalBoxFuture<'static, ()>;

/// Bindings between programs: those of 1.0, and of 0.3 those without its proto file first.
const REMOTE: [(&str, Binding); 6] = [
    ("gRPC", grpc),
    ("HTTP+JSON", rest),
    ("JSON-RPC", json_rpc),
    ("JSON-RPC 0.3", v03_rpc),
    ("gRPC 0.3", v03_grpc),
    ("HTTP+JSON 0.3", v03_rest),
];

/// Runs a test over a binding, in a runtime with this number of worker threads. 0: on the current thread.
pub(crate) fn run(threads: usize, test: Test, binding: Binding) {
    run_in_runtime(threads, test(binding));
}

/// Runs a test with a kind of agents over one of the first `bindings` bindings between programs. The binding differs between the
/// kinds of a test, whose numbers are `kind`, and between tests. The environment variable `KINDS=all` selects all bindings.
pub(crate) fn run_kind(threads: usize, test: Test, create: Create, name: &str, kind: usize, bindings: usize) {
    let bindings = &REMOTE[..bindings];
    let first = name.bytes().map(usize::from).sum::<usize>() + kind;
    let count = if std::env::var("KINDS").is_ok_and(|kinds| kinds == "all") { bindings.len() } else { 1 };
    for (binding, connect) in bindings.iter().cycle().skip(first % bindings.len()).take(count) {
        announce(binding);
        run_in_runtime(threads, Box::pin(async { agent_kinds::with(create().await, test(*connect)).await }));
    }
}

tokio::task_local! {
    /// Store, binding and choices of a test with two servers.
    static REPLICAS: (SharedBy, Binding, Rng);
}

/// Store that two servers share: in memory, or a schema of PostgreSQL.
#[derive(Clone)]
enum SharedBy {
    Memory(Cluster),
    #[cfg(feature = "postgres")]
    Postgres(String),
}

impl SharedBy {
    /// Returns an empty store: in the database whose URL is in `SHARED_STORE`, if it is set.
    fn new() -> Self {
        #[cfg(feature = "postgres")]
        if let Ok(url) = std::env::var("SHARED_STORE") {
            static NUMBER: AtomicUsize = AtomicUsize::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            return Self::Postgres(format!("{url}?schema=shared_{}_{number}", std::process::id()));
        }
        Self::Memory(Cluster::new(Memory::default(), || Clock::default().millis()))
    }

    async fn replica(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(cluster) => Arc::new(cluster.replica()),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => {
                Arc::new(Postgres::open(url, &a2a_service::store::postgres::Options::default()).await.unwrap())
            }
        }
    }
}

/// Runs a test with two servers that share a store, over each binding that its marks (`columns`) permit. Either server may answer a
/// call, as the seed determines; the environment variable `SEED` sets it.
pub(crate) fn run_replicas(threads: usize, test: Test, marks: &[&str]) {
    let seed = std::env::var("SEED").map_or_else(|_| Rng::default().next_u64() >> 32, |seed| seed.parse().unwrap());
    let permits = |binding: &str, mark: &str| match mark {
        "not_at_1_0" => binding.ends_with("0.3"),
        "not_at_0_3" => !binding.ends_with("0.3"),
        "not_in_v03_proto" => !["gRPC 0.3", "HTTP+JSON 0.3"].contains(&binding),
        "not_in_v03_json_rpc" => binding != "JSON-RPC 0.3",
        _ => panic!("unknown mark {mark}"),
    };
    let local: (_, Binding) = ("in process", in_process);
    let bindings = [local].into_iter().chain(REMOTE);
    for (binding, connect) in bindings.filter(|(binding, _)| marks.iter().all(|mark| permits(binding, mark))) {
        announce(&format!("two servers, {binding}, SEED={seed}"));
        let replicas = (SharedBy::new(), connect, Sources::simulated(seed << 32, 0).rng);
        run_in_runtime(threads, Box::pin(REPLICAS.scope(replicas, test(two_servers))));
    }
}

#[expect(clippy::print_stdout, reason = "the output of a failed test names the binding")]
fn announce(binding: &str) {
    println!("over {binding}");
}

fn run_in_runtime(threads: usize, test: LocalBoxFuture<'_, ()>) {
    let mut builder = if threads == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let runtime = builder.worker_threads(threads.max(1)).enable_all().build().unwrap();
    runtime.block_on(async {
        test.await;
        conformance::assert_no_violations();
    });
}

/// Expands a function `test` of the module to one test per binding. A new binding needs a column here and a function below. A
/// binding that cannot express a test is ignored with a reason: `not_at_0_3` excludes every binding of 0.3, `not_in_v03_proto`
/// those that use its proto file, and `not_in_v03_json_rpc` its JSON-RPC. The test `replicas` has two servers, over the bindings
/// that are not excluded; `one_server` is the reason why a test has no such servers.
macro_rules! columns {
    (
        $threads:literal,
        [$(not_at_0_3 = $why:literal)? $(not_in_v03_proto = $proto:literal)? $(not_in_v03_json_rpc = $json_rpc:literal)?
            $(one_server = $one:literal)?]
    ) => {
        $crate::bindings::columns!(@ $threads; in_process grpc rest json_rpc);
        $crate::bindings::columns!(@ $threads; v03_grpc v03_rest, $($why)? $($proto)?);
        $crate::bindings::columns!(@ $threads; v03_rpc, $($why)? $($json_rpc)?);
        $crate::bindings::replicas!(
            $threads,
            [$($one)?] $(not_at_0_3 $why)? $(not_in_v03_proto $proto)? $(not_in_v03_json_rpc $json_rpc)?
        );
    };
    // An optional fragment and a repeated one can only be combined in separate rules.
    (@ $threads:literal; $($column:ident)* $(, $($why:literal)?)?) => {
        $crate::bindings::columns!(! $threads; [$($($why)?)?] $($column)*);
    };
    (! $threads:literal; $why:tt $($column:ident)*) => {
        $($crate::bindings::columns!(? $threads; $why $column);)*
    };
    (? $threads:literal; [$($why:literal)?] $column:ident) => {
        #[test]
        $(#[ignore = $why])?
        fn $column() {
            $crate::bindings::run($threads, test, $crate::bindings::$column);
        }
    };
}

/// Expands a function `test` of the module to a test with two servers, with the marks of `columns` and their reasons. Ignored if
/// there is a reason in brackets.
macro_rules! replicas {
    ($threads:literal, [$($why:literal)?] $($mark:ident $reason:literal)*) => {
        #[test]
        $(#[ignore = $why])?
        fn replicas() {
            $crate::bindings::run_replicas($threads, test, &[$(stringify!($mark)),*]);
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

            $crate::bindings::scenario!(test $scenario);
            $crate::bindings::columns!(0, $marks);
            $crate::bindings::columns!(@ 0; in_file json_rpc_in_file);
            $($crate::bindings::each_kind!(0, [$($kind)*] $marks);)?
        }
    };
    // The function `test` of a scenario.
    (test $scenario:expr) => {
        async fn run(agent: &dyn A2aService) {
            ($scenario)(agent).await;
        }

        fn test(binding: $crate::bindings::Binding) -> futures::future::LocalBoxFuture<'static, ()> {
            Box::pin(async move { run(&*binding($crate::bindings::server()).await).await })
        }
    };
}

/// Runs a scenario of 0.3 behaviour over the bindings of 0.3.
macro_rules! v03_scenario {
    ($name:ident, $scenario:expr) => {
        mod $name {
            use super::*;

            $crate::bindings::scenario!(test $scenario);
            $crate::bindings::columns!(@ 0; v03_grpc v03_rest v03_rpc);
            $crate::bindings::replicas!(0, [] not_at_1_0 "it is behaviour of 0.3");
        }
    };
}

/// Runs a test that creates its own server over every binding: `$test` is a function of a binding. With `kinds(…)`, also with
/// each kind of agent without code.
macro_rules! each_binding {
    ($test:ident, kinds($($kind:tt)*) $(, $mark:ident = $why:literal)*) => {
        $crate::bindings::each_binding!(@ $test, [$($kind)*], [$($mark = $why)*]);
    };
    ($test:ident $(, $mark:ident = $why:literal)*) => {
        $crate::bindings::each_binding!(@ $test, , [$($mark = $why)*]);
    };
    (@ $test:ident, $([$($kind:tt)*])?, $marks:tt) => {
        mod $test {
            $crate::bindings::each_binding!(test $test);
            $crate::bindings::columns!(2, $marks);
            $($crate::bindings::each_kind!(2, [$($kind)*] $marks);)?
        }
    };
    // The function `test` of the module of such a test.
    (test $test:ident) => {
        fn test(binding: $crate::bindings::Binding) -> futures::future::LocalBoxFuture<'static, ()> {
            Box::pin(super::$test(binding))
        }
    };
}

/// Runs such a test over the bindings of 0.3.
macro_rules! each_v03_binding {
    ($test:ident $(, one_server = $one:literal)?) => {
        mod $test {
            $crate::bindings::each_binding!(test $test);
            $crate::bindings::columns!(@ 2; v03_grpc v03_rest v03_rpc);
            $crate::bindings::replicas!(2, [$($one)?] not_at_1_0 "it is behaviour of 0.3");
        }
    };
}

/// Expands a function `test` of the module to one test per kind of agent without code (`agent_kinds`), over bindings of both
/// versions. A kind that cannot express a test is ignored with a reason, such as `not_exec`; the reasons are in the order of the
/// kinds.
macro_rules! each_kind {
    (
        $threads:literal,
        [$(not_exec = $exec:literal $(,)?)? $(not_http = $http:literal $(,)?)? $(not_openai = $openai:literal $(,)?)? $(not_upstream = $upstream:literal $(,)?)?
            $(not_upstream_v03 = $upstream_v03:literal)?]
        $marks:tt
    ) => {
        #[cfg(unix)]
        $crate::bindings::each_kind!(@ $threads, exec 0 [$($exec)?] $marks);
        $crate::bindings::each_kind!(@ $threads, http 1 [$($http)?] $marks);
        $crate::bindings::each_kind!(@ $threads, openai 2 [$($openai)?] $marks);
        $crate::bindings::each_kind!(@ $threads, upstream 3 [$($upstream)?] $marks);
        $crate::bindings::each_kind!(@ $threads, upstream_v03 4 [$($upstream_v03)?] $marks);
    };
    (@ $threads:literal, $kind:ident $number:literal $why:tt [$(one_server = $one:literal)?]) => {
        $crate::bindings::each_kind!(? $threads, $kind $number $why 6);
    };
    (@ $threads:literal, $kind:ident $number:literal $why:tt [not_in_v03_proto = $proto:literal $(one_server = $one:literal)?]) => {
        $crate::bindings::each_kind!(? $threads, $kind $number $why 4);
    };
    (@ $threads:literal, $kind:ident $number:literal $why:tt [not_at_0_3 = $v03:literal $(one_server = $one:literal)?]) => {
        $crate::bindings::each_kind!(? $threads, $kind $number $why 3);
    };
    (? $threads:literal, $kind:ident $number:literal [$($why:literal)?] $bindings:literal) => {
        #[test]
        $(#[ignore = $why])?
        fn $kind() {
            let create = $crate::agent_kinds::$kind;
            $crate::bindings::run_kind($threads, test, create, module_path!(), $number, $bindings);
        }
    };
}

pub(crate) use {columns, each_binding, each_kind, each_v03_binding, replicas, scenario, v03_scenario};

pub(crate) fn in_process(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { server.into_service() })
}

/// In process, with tasks in a file.
pub(crate) fn in_file(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { in_a_file(server).into_service() })
}

pub(crate) fn json_rpc_in_file(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { json_rpc(in_a_file(server)).await })
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

pub(crate) fn grpc(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { client::grpc(&serve(server).await).unwrap() })
}

pub(crate) fn rest(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { client::rest(&serve(server).await).unwrap() })
}

pub(crate) fn json_rpc(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { client::json_rpc(&format!("{}/rpc", serve(server).await)).unwrap() })
}

pub(crate) fn v03_grpc(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { v03_client::grpc(&serve(server).await) })
}

pub(crate) fn v03_rest(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { v03_client::rest(&serve(server).await) })
}

pub(crate) fn v03_rpc(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    Box::pin(async { v03_client::json_rpc(&serve(server).await) })
}

/// Serves a server and a clone of it, as the replicas of the store of the test. All servers of a test share it, so that it has
/// what an earlier one stored.
fn two_servers(server: Server) -> BoxFuture<'static, Arc<dyn A2aService>> {
    let (store, connect, rng) = REPLICAS.with(Clone::clone);
    Box::pin(async move {
        let replica = async |server: Server| connect(server.store(store.replica().await)).await;
        // One after the other, since each takes a free address.
        let (one, other) = (replica(server.clone()).await, replica(server).await);
        let client: Arc<dyn A2aService> = Arc::new(AnyServer { servers: [one, other], rng });
        client
    })
}

/// Client of two servers, one of which answers each call.
struct AnyServer {
    servers: [Arc<dyn A2aService>; 2],
    rng: Rng,
}

macro_rules! any_server {
    ($($rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for AnyServer { $(
            async fn $rpc(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                let [one, other] = &self.servers;
                let server = if self.rng.next_u64().is_multiple_of(2) { one } else { other };
                server.$rpc(request).await
            }
        )* }
    };
}

any_server! {
    send_message: SendMessageRequest => SendMessageResponse;
    send_streaming_message: SendMessageRequest => BoxStream<Event>;
    get_task: GetTaskRequest => Snapshot;
    list_tasks: ListTasksRequest => ListTasksResponse;
    cancel_task: CancelTaskRequest => Snapshot;
    subscribe_to_task: SubscribeToTaskRequest => BoxStream<Event>;
    create_task_push_notification_config: TaskPushNotificationConfig => TaskPushNotificationConfig;
    get_task_push_notification_config: GetTaskPushNotificationConfigRequest => TaskPushNotificationConfig;
    list_task_push_notification_configs:
        ListTaskPushNotificationConfigsRequest => ListTaskPushNotificationConfigsResponse;
    get_extended_agent_card: GetExtendedAgentCardRequest => AgentCard;
    delete_task_push_notification_config: DeleteTaskPushNotificationConfigRequest => Empty;
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
    PushOptions::default().resolver(Some(Arc::new(NoNames)))
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
///
/// The environment variable `BEHIND_PROXY` has proxies, as `ADDRESS URL`, separated by commas (`scripts/deploy`). With it, serves on
/// the first free address, and returns the URL of the proxy in front of it.
pub(crate) async fn serve(server: Server) -> String {
    let server = server.layer(CheckLayer);
    let (bound, url) = if let Ok(proxies) = std::env::var("BEHIND_PROXY") {
        let free = |&(address, _): &(&str, &str)| std::net::TcpListener::bind(address).is_ok();
        let proxy = proxies.split(',').filter_map(|proxy| proxy.split_once(' ')).find(free);
        let (address, url) = proxy.expect("a proxy in front of a free address");
        (server.bind(address).await.unwrap(), url.to_owned())
    } else {
        let bound = server.bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", bound.addr());
        (bound, url)
    };
    tokio::spawn(bound.run_until(std::future::pending()));
    url
}

/// Returns an HTTP client without TLS root certificates, since loading them takes longer than a test.
pub(crate) fn http() -> reqwest::Client {
    reqwest::Client::builder().tls_certs_only([]).build().unwrap()
}

/// Sends a GET request without TLS.
pub(crate) async fn fetch(url: impl reqwest::IntoUrl) -> reqwest::Result<reqwest::Response> {
    http().get(url).send().await
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
