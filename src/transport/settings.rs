//! What can be set of a door.

use std::{fmt, future, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{
    ReadinessCheck, health,
    request_budget::{RECEIVING_BYTES, ReceiveBudget},
};
use crate::{card::CardRequest, protocol::Protocols};

/// How large a request may be, where nothing else is said.
pub(crate) const MAX_BODY: usize = 1 << 20;

/// Default of `body_timeout`.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// Default of `limits.health_watches`.
pub(crate) const HEALTH_WATCHES: usize = 100;

/// How long a stream is silent before it has a sign of life, where nothing else is said.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Default of [`Settings::batch_bytes`].
pub(crate) const BATCH_BYTES: usize = 8 << 20;

/// Default of [`Settings::unsent_bytes`].
pub(crate) const UNSENT_BYTES: usize = 256 << 20;

/// Form of the bytes of files in the messages of 0.3's proto, over gRPC and HTTP+JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileBytes {
    /// By what the `User-Agent` of the client is known to expect.
    #[default]
    Auto,
    /// Their base64, as SDKs for Python have them.
    Base64,
    /// The bytes themselves, as SDKs for JavaScript have them, and Go's of 1.0.
    Raw,
}

/// Makes the card that a request is for, in JSON.
pub type CardSource = Arc<dyn Fn(&CardRequest<'_>) -> Bytes + Send + Sync>;

/// What can be set of a door.
#[derive(Clone)]
pub struct Settings {
    /// A request may have a body, or a message, of so many bytes.
    pub max_body: usize,
    /// Timeout for receiving the body of a request, whichever binding it is for.
    pub body_timeout: Duration,
    /// Maximum number of bytes in the request bodies that all connections are receiving. Zero: no limit.
    pub receiving_bytes: usize,
    /// Maximum number of open `Watch` streams of gRPC's health service.
    pub health_watches: usize,
    /// How long a stream of server-sent events is silent before it has a comment. Zero: for ever.
    pub keep_alive: Duration,
    /// Maximum age of a stream, enforced also where its client does not read. Zero: no limit.
    pub stream_age: Duration,
    /// Maximum size of the results of a JSON-RPC batch in bytes. A call whose result exceeds it is answered with an error.
    pub batch_bytes: usize,
    /// Maximum size in bytes of all answers together that are being made or wait for slow readers. At it calls are refused as
    /// unavailable.
    pub unsent_bytes: usize,
    /// What `/.well-known/agent-card.json` is.
    pub card: CardSource,
    /// A call that does not say its version is refused, as one of 0.3 (3.6.2). Else it is taken by its form.
    pub strict_version: bool,
    /// The versions that are spoken; a call in another is refused as one that says it right.
    pub protocols: Protocols,
    /// The form of files in the messages of 0.3's proto.
    pub v03_file_bytes: FileBytes,
    /// The service takes a send with an `Idempotency-Key` once. Then the answer to a call that has a key has it too, whatever
    /// it is and whatever was called: so a client can find out, by a call that changes nothing, whether it may send again.
    pub idempotency_keys: bool,
    /// Canceled when the server begins to end: from then on it says that it takes no work, to whoever asks it.
    pub drain: CancellationToken,
    /// What else it asks before it says that it takes work.
    pub readiness: ReadinessCheck,
}

impl Settings {
    /// The defaults.
    pub fn new(card: CardSource) -> Self {
        Self {
            max_body: MAX_BODY,
            body_timeout: BODY_TIMEOUT,
            receiving_bytes: RECEIVING_BYTES,
            health_watches: HEALTH_WATCHES,
            keep_alive: KEEP_ALIVE,
            stream_age: Duration::ZERO,
            batch_bytes: BATCH_BYTES,
            unsent_bytes: UNSENT_BYTES,
            card,
            strict_version: false,
            protocols: Protocols::default(),
            v03_file_bytes: FileBytes::default(),
            idempotency_keys: false,
            drain: CancellationToken::new(),
            readiness: Arc::new(|| Box::pin(future::ready(true))),
        }
    }

    /// Limits of a new service, with a budget of its own.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            max_body: self.max_body,
            body_timeout: self.body_timeout,
            keep_alive: self.keep_alive,
            stream_age: self.stream_age,
            batch_bytes: self.batch_bytes,
            receiving: ReceiveBudget::new(self.receiving_bytes),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Settings");
        f.field("max_body", &self.max_body).field("body_timeout", &self.body_timeout);
        f.field("keep_alive", &self.keep_alive).field("stream_age", &self.stream_age);
        f.field("batch_bytes", &self.batch_bytes)
            .field("unsent_bytes", &self.unsent_bytes)
            .field("strict_version", &self.strict_version);
        f.field("protocols", &self.protocols).field("idempotency_keys", &self.idempotency_keys).finish_non_exhaustive()
    }
}

/// What the bindings need of the settings.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) max_body: usize,
    pub(super) body_timeout: Duration,
    pub(super) keep_alive: Duration,
    pub(super) stream_age: Duration,
    pub(super) batch_bytes: usize,
    pub(super) receiving: Arc<ReceiveBudget>,
}

impl Limits {
    /// Limits of gRPC's health service, whose callers are not authenticated: small messages, and a budget of their own.
    pub(super) fn of_health(&self) -> Self {
        Self { max_body: health::MAX_MESSAGE, receiving: ReceiveBudget::of_health(), ..self.clone() }
    }
}
