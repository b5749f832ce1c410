//! Push notifications: delivery of the events of tasks to the webhooks that clients have registered (4.3).
//!
//! | module | subject |
//! | --- | --- |
//! | `credentials` | credentials for webhooks, and the client credentials grant of OAuth 2.0 |
//! | `delivery` | queue, retries, circuit breaker |
//! | `token` | tokens signed with the keys of the server |
//! | `payload` | selection and form of the notifications |
//! | `receiver` | verification and decoding, for receivers |
//! | `sender` | requests to webhooks |
//! | `signature` | signatures of Standard Webhooks |
//! | `stats` | counters for operators |
//! | `target` | protection against requests to internal addresses |

use std::{sync::Arc, time::Duration};

pub use credentials::{ClientCredentials, CredentialsError, HostCredentials, WebhookCredentials, WebhookRequest};
#[cfg(feature = "cli")]
pub(crate) use credentials::{host_key, token_endpoint};
pub use receiver::{Received, Receiver, Rejection, VerifiedNotification};
pub use stats::PushStats;
pub use target::{AllowedTarget, Resolver};

pub use crate::base::jws::{Algorithm, KeyError, KeyFileError, PublicKeys, SigningKey, SigningKeys};

pub(crate) mod credentials;
pub(crate) mod delivery;
pub(crate) mod payload;
pub(crate) mod receiver;
pub(crate) mod response;
pub(crate) mod sender;
pub(crate) mod stats;
pub(crate) mod target;
pub(crate) mod token;

/// Events that are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PushEvents {
    /// All events: the new task, status updates and artifact updates.
    #[default]
    All,
    /// The new task and status updates.
    Status,
    /// The update with which the task reaches a terminal state.
    Terminal,
}

/// Form of the notifications of configurations that were registered in 0.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum V03Payload {
    /// The task (0.3, 9.5).
    #[default]
    Task,
    /// The status update or artifact update.
    Event,
}

options! {
    /// Delivery of push notifications.
    #[derive(Clone)]
    #[non_exhaustive]
    pub struct PushOptions {
        /// Targets that are accepted although they are internal, use another port, or do without TLS. None by default.
        pub allow: Vec<AllowedTarget>,
        /// Ports of targets that need no entry in `allow`. 443, 80, 8080 and 8443 by default.
        pub ports: Vec<u16> = target::PORTS.into(),
        /// Events that are delivered. All by default.
        pub events: PushEvents,
        /// Form of the notifications of configurations that were registered in 0.3. The task by default.
        pub v03_payload: V03Payload,
        /// Sends notifications of 1.0 as `application/json` instead of `application/a2a+json`. Off by default.
        pub plain_json: bool,
        /// Maximum age of an undelivered event, after which its configuration becomes a dead letter; unlimited if `None`.
        /// 24 h by default.
        pub max_age: Option<Duration> = Some(Duration::from_hours(24)),
        /// Timeout of an attempt, from name resolution to the head of the response. 10 s by default.
        pub timeout: Duration = Duration::from_secs(10),
        /// Maximum number of concurrent attempts. 64 by default.
        pub concurrency: usize = 64,
        /// Maximum number of concurrent attempts per host. 4 by default.
        pub per_host: usize = 4,
        /// Maximum number of dead letters that are kept. 1000 by default.
        pub dead_letters: usize = 1000,
        /// Keys that sign the token of notifications whose configuration has the authentication scheme `Bearer` without
        /// credentials. The server publishes them at `/.well-known/jwks.json`. None by default: then there is no token.
        pub keys: Option<SigningKeys>,
        /// Issuer of these tokens: their claim `iss`. By default the origin of the [URL](crate::server::Server::url) of the
        /// server, or else that of its listen address, or `a2a-service` if it has neither.
        pub issuer: Option<String>,
        /// Source of the credentials that the server presents to webhooks whose configuration has none of its own. None by
        /// default.
        pub credentials: Option<Arc<dyn WebhookCredentials>>,
        /// Source of the addresses of hosts. The resolver of the system by default.
        pub resolver: Option<Arc<dyn Resolver>>,
    }
}

debug_fields!(PushOptions { allow, events });
