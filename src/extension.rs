//! Protocol extensions (4.6): the trait [`Extension`], and the negotiation of active extensions by `A2A-Extensions`.
//!
//! The caller lists the extensions that it requests. Those that the server supports are active for the call, and listed in the
//! response; others are ignored. Calls without extensions have no overhead.

use std::{fmt, sync::Arc};

pub use self::extended::ExtendedService;
pub use crate::event::resume;
use crate::{
    call::Call,
    error::Error,
    pb::{
        v1::{AgentExtension, SendMessageRequest, stream_response::Payload},
        wkt::Struct,
    },
};

mod extended;

/// Header (or gRPC metadata) that lists the requested extensions of a call, and the active ones of a response.
pub(crate) const ACTIVE: &str = "a2a-extensions";

/// Protocol extension. For calls in which it is active, it can change requests, and add metadata to responses and events.
///
/// ```
/// use a2a_service::{agent::demo::Demo, extension::Extension, server::Server};
///
/// struct Timing;
///
/// impl Extension for Timing {
///     fn uri(&self) -> &str {
///         "https://example.com/ext/timing/v1"
///     }
/// }
///
/// let server = Server::new(Demo).extension(Timing);
/// ```
pub trait Extension: Send + Sync + 'static {
    /// Returns the URI of the extension. Each version has another URI (4.6.3).
    fn uri(&self) -> &str;

    /// Returns the description for the agent card.
    #[expect(clippy::unnecessary_literal_bound, reason = "implementations may return a string that they own")]
    fn description(&self) -> &str {
        ""
    }

    /// Returns true if calls that do not request the extension are rejected.
    fn required(&self) -> bool {
        false
    }

    /// Returns the parameters for the agent card, as the extension defines them.
    fn params(&self) -> Option<Struct> {
        None
    }

    /// Inspects a send before it is accepted, and may add metadata. It must add equal metadata to a retry with the same
    /// `Idempotency-Key`, which is a conflict otherwise.
    ///
    /// # Errors
    /// The send is rejected with this error.
    fn request(&self, _request: &mut SendMessageRequest, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// Returns metadata to add to an event of a stream, or to the task or message of a response, for this caller only.
    ///
    /// # Errors
    /// The call fails with this error, or its stream ends with it.
    fn said(&self, _said: &Payload, _call: &Call) -> Result<Option<Struct>, Error> {
        Ok(None)
    }
}

/// Extension that the card declares and the agent implements itself.
impl Extension for AgentExtension {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn required(&self) -> bool {
        self.required
    }

    fn params(&self) -> Option<Struct> {
        self.params.clone()
    }
}

/// Request extension: the extensions of the [`Call`] are the active ones, not all that the caller requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated;

/// Extensions of a server.
pub(crate) type Extensions = Arc<[Arc<dyn Extension>]>;

/// Merges the extensions that the server implements with those that the card declares, and declares all of them on the card.
pub(crate) fn all(mut all: Vec<Arc<dyn Extension>>, declared: &mut Vec<AgentExtension>) -> Vec<Arc<dyn Extension>> {
    declared.retain(|declaration| all.iter().all(|extension| extension.uri() != declaration.uri));
    all.extend(declared.drain(..).map(|declaration| -> Arc<dyn Extension> { Arc::new(declaration) }));
    declared.extend(all.iter().map(|extension| AgentExtension {
        uri: extension.uri().to_owned(),
        description: extension.description().to_owned(),
        required: extension.required(),
        params: extension.params(),
    }));
    all
}

impl fmt::Debug for dyn Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri())
    }
}
