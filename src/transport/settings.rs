//! Settings of the HTTP service: limits, timeouts, protocol versions, agent card and readiness check, with their defaults.

use std::{future, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderName;
use tokio_util::sync::CancellationToken;

use crate::{
    base::{dependency::Dependency, metric::LimitUse, sources::Sources},
    protocol::{Protocols, call::Principal, response_budget::ResponseBudget},
    service::card::RequestOrigin,
    transport::body::{BodyLimits, receive_budget::ReceiveBudget},
};

/// Default of `limits.body_bytes`.
pub(crate) const BODY_BYTES: usize = 1 << 20;

/// Default of `limits.memory`: requests in receipt have a quarter of it, and live tasks and responses three eighths each.
pub(crate) const MEMORY: usize = 512 << 20;

/// Budgets for the memory of requests and responses, which all agents of a server share.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudgets {
    pub(super) receiving: Arc<ReceiveBudget>,
    pub(super) unsent: ResponseBudget,
}

impl MemoryBudgets {
    /// Returns the use of the budgets.
    pub(crate) fn in_use(&self) -> [LimitUse; 2] {
        [self.receiving.in_use(), self.unsent.in_use()]
    }
}

/// Encoding of file bytes in the protobuf messages of 0.3, over gRPC and HTTP+JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileBytes {
    /// The encoding that the client expects, according to its `User-Agent`.
    #[default]
    Auto,
    /// Base64, as SDKs for Python expect.
    Base64,
    /// Raw bytes, as the SDKs for JavaScript and the 1.0 SDK for Go expect.
    Raw,
}

/// Builds the agent card for a request, as JSON.
pub type CardSource = Arc<dyn Fn(&RequestOrigin<'_>) -> Bytes + Send + Sync>;

/// Builds the catalog of the agents that a caller may use, in the form of the requested path, as JSON.
pub type CatalogSource = Arc<dyn Fn(&RequestOrigin<'_>, Option<&Principal>) -> Bytes + Send + Sync>;

/// Source of the base URL at which the client of a request reaches the server. `None` if it is unknown.
pub type BaseUrlSource = Arc<dyn Fn(&RequestOrigin<'_>) -> Option<String> + Send + Sync>;

/// Returns the API document for a request: content type and content. `None` if there is no document at its path. May block.
pub type DocumentSource = Arc<dyn Fn(&RequestOrigin<'_>) -> Option<(&'static str, Bytes)> + Send + Sync>;

/// Renders the metrics in the text format of Prometheus.
pub type MetricsSource = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

/// Checks whether the store and other dependencies are available. It must be cheap: clients need no authentication, and no
/// rate limit applies.
pub type ReadinessCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<(), NotReady>> + Send + Sync>;

/// Reason why a server does not accept work. Its details are logged, and not disclosed to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Tasks of the last run are being recovered.
    #[error("recovering the tasks of the last run")]
    Recovering,
    /// The store does not answer.
    #[error("the store does not answer")]
    StoreUnavailable,
    /// The store answers, and commits have failed or hung for over a second.
    #[error("commits to the store do not complete")]
    CommitsDelayed,
    /// The lease on the tasks of this process has expired or is lost, so that other processes may run them.
    #[error("other servers may have taken over the tasks")]
    LeaseLost,
    /// Every agent has lacked something that it needs, such as its upstream agent, for 30 s.
    #[error("no agent can do its work")]
    AgentsDown,
    /// The server drains.
    #[error("draining")]
    Draining,
}

/// Issuers of the tokens that the server accepts.
#[derive(Clone)]
pub struct ProtectedResource {
    /// Identifiers of the issuers, which are URLs.
    pub issuers: Vec<String>,
    /// Source of the URL at which the client of a request reaches the server.
    pub base_url: BaseUrlSource,
}

debug_fields!(ProtectedResource { issuers });

defaults! {
    /// Settings of an [`HttpService`](super::HttpService).
    #[derive(Clone)]
    pub struct Settings {
        /// Maximum size of a request body, or of a gRPC message, in bytes.
        pub body_bytes: usize = BODY_BYTES,
        /// Timeout for receiving the body of a request, whichever binding it is for.
        pub body_timeout: Duration = Duration::from_mins(1),
        /// Maximum number of bytes in the request bodies that all connections are receiving. Zero: no limit.
        pub incoming_bytes: usize = MEMORY / 4,
        /// Maximum number of open `Watch` streams of gRPC's health service.
        pub health_watches: usize = 100,
        /// Interval of keep-alive comments on a stream of server-sent events without events. Zero: none.
        // The HTTP clients of SDKs have a timeout of 5 s.
        pub keep_alive: Duration = Duration::from_secs(4),
        /// Maximum age of a stream, enforced even if its client does not read. Zero: no limit.
        pub stream_max_age: Duration,
        /// Maximum number of calls in a JSON-RPC batch.
        pub batch_calls: usize = 64,
        /// Maximum size of the results of a JSON-RPC batch in bytes. A call whose result exceeds it gets an error.
        pub batch_bytes: usize = 8 << 20,
        /// Maximum total size in bytes of responses that are in preparation or wait for slow readers. Further calls are
        /// rejected as unavailable.
        pub outgoing_bytes: usize = MEMORY / 8 * 3,
        /// Source of `/.well-known/agent-card.json`.
        pub card: CardSource = Arc::new(|_| Bytes::new()),
        /// The card changes while the server runs, so that it has no modification time.
        pub card_changes: bool,
        /// The card requires authentication, so that caches and pages of other origins must not have it.
        pub protects_card: bool,
        /// Source of `/agents` and `/.well-known/ai-catalog.json`. `None`: the resources do not exist.
        pub catalog: Option<CatalogSource>,
        /// The catalog depends on the caller, and requires authentication.
        pub protects_catalog: bool,
        /// Source of the base URL of a request, for calls that get an agent card.
        pub base_url: Option<BaseUrlSource>,
        /// There is an extended agent card, which a call over each binding may get.
        pub has_extended_card: bool,
        /// JSON Web Key Set with the public keys of the server, for `/.well-known/jwks.json`. `None`: there are no keys.
        pub key_set: Option<Bytes>,
        /// Issuers of the tokens of callers, for `/.well-known/oauth-protected-resource`. `None`: no issuer is known.
        pub protected_resource: Option<ProtectedResource>,
        /// Source of the API documents below `/openapi`.
        pub documents: Option<DocumentSource>,
        /// Module `console/server.js`: facts about this server, for the console. `None`: there is no console.
        pub console: Option<Bytes>,
        /// Source of `/metrics`. `None`: the resource does not exist.
        pub metrics: Option<MetricsSource>,
        /// Rejects requests of 1.0 without `A2A-Version`, which the specification treats as 0.3 (3.6.2).
        pub strict_version: bool,
        /// Supported protocol versions. Requests of other versions are rejected.
        pub protocols: Protocols,
        /// Encoding of file bytes in the protobuf messages of 0.3.
        pub v03_file_bytes: FileBytes,
        /// The service deduplicates sends by `Idempotency-Key`. Every response then repeats the key of its request, for all
        /// methods: a client finds out by a read whether it may retry a send.
        pub idempotency_keys: bool,
        /// Headers of requests that turns may pass on.
        pub forward_headers: Arc<[HeaderName]>,
        /// Canceled when the server begins to drain. Health checks then report that it is not ready.
        pub drain: CancellationToken,
        /// Readiness check of the service.
        pub readiness: ReadinessCheck = Arc::new(|| Box::pin(future::ready(Ok(())))),
        /// Other processes share the store, so that `/readyz?verbose` has a line for the lease.
        pub is_replica: bool,
        /// Names of the agents, and what each needs for its turns: gRPC's health service `a2a.agent/NAME`.
        pub agents: Arc<[NamedDependencies]>,
        /// Clock and ids of the server.
        pub sources: Sources,
    }
}

/// Name of an agent, and what it needs for its turns.
type NamedDependencies = (Box<str>, Arc<[Dependency]>);

impl Settings {
    /// Creates settings with the defaults.
    pub fn new(card: CardSource) -> Self {
        Self { card, ..Self::default() }
    }

    /// Creates new budgets of these sizes.
    pub(crate) fn budgets(&self) -> MemoryBudgets {
        MemoryBudgets {
            receiving: ReceiveBudget::new(self.incoming_bytes),
            unsent: ResponseBudget::new(self.outgoing_bytes),
        }
    }

    /// Creates the limits of a new service.
    pub(super) fn limits(&self, receiving: Arc<ReceiveBudget>) -> BodyLimits {
        BodyLimits {
            body_bytes: self.body_bytes,
            body_timeout: self.body_timeout,
            keep_alive: self.keep_alive,
            stream_max_age: self.stream_max_age,
            batch_calls: self.batch_calls,
            batch_bytes: self.batch_bytes,
            receiving,
        }
    }
}

debug_fields!(Settings { body_bytes, outgoing_bytes, strict_version, protocols, idempotency_keys });
