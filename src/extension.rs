//! Extensions of the protocol (4.6): what a server offers beside it, and its caller may ask for.
//!
//! A caller names those it wants in `A2A-Extensions`. Those that the server has too are active for this call, and the
//! reply names them; any other is ignored. A server without extensions has none of this in its way.

use std::{fmt, sync::Arc};

pub use self::extended::ExtendedService;
use crate::{
    call::Call,
    error::Error,
    pb::{
        v1::{AgentExtension, SendMessageRequest, stream_response::Payload},
        wkt::Struct,
    },
};

mod extended;
pub mod resume;

/// Where a reply names what was active, as a call does what it asks for.
pub(crate) const ACTIVE: &str = "a2a-extensions";

/// An extension. It sees what is sent to the agent and what comes back, of the calls in which it is active.
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
    /// Names it. Another version of it is another URI (4.6.3).
    fn uri(&self) -> &str;

    /// What the agent card says of how it is used here.
    #[expect(clippy::unnecessary_literal_bound, reason = "another one may make its description")]
    fn description(&self) -> &str {
        ""
    }

    /// Whether a call that does not ask for it is refused.
    fn required(&self) -> bool {
        false
    }

    /// What the agent card says of it, as the extension itself defines it.
    fn params(&self) -> Option<Struct> {
        None
    }

    /// Sees a message before the agent does. May add to its metadata: the same to each repetition of a send that has an
    /// `Idempotency-Key`, which is else another message under this key.
    ///
    /// # Errors
    /// Refuses it.
    fn request(&self, _request: &mut SendMessageRequest, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// Sees what the agent has said: an event of a stream, and the task or the message of a reply. What this returns is
    /// added to its metadata, for this caller alone.
    ///
    /// # Errors
    /// Refuses it, and ends the stream.
    fn said(&self, _said: &Payload, _call: &Call) -> Result<Option<Struct>, Error> {
        Ok(None)
    }
}

/// One that is declared on the card, and that the agent itself sees to.
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

/// Says that the extensions of a call are those that are active, and not just those that were asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated;

/// The extensions of a server.
pub(crate) type Extensions = Arc<[Arc<dyn Extension>]>;

/// The extensions that somebody sees to, and those that are only declared on the card; and then the card has both.
pub(crate) fn all(mut all: Vec<Arc<dyn Extension>>, declared: &mut Vec<AgentExtension>) -> Vec<Arc<dyn Extension>> {
    declared.retain(|it| all.iter().all(|own| own.uri() != it.uri));
    all.extend(declared.drain(..).map(|it| -> Arc<dyn Extension> { Arc::new(it) }));
    declared.extend(all.iter().map(|it| AgentExtension {
        uri: it.uri().to_owned(),
        description: it.description().to_owned(),
        required: it.required(),
        params: it.params(),
    }));
    all
}

/// Where an extension adds to what was said.
fn metadata_mut(said: &mut Payload) -> &mut Option<Struct> {
    match said {
        Payload::Task(it) => &mut it.metadata,
        Payload::Message(it) => &mut it.metadata,
        Payload::StatusUpdate(it) => &mut it.metadata,
        Payload::ArtifactUpdate(it) => &mut it.metadata,
    }
}

impl fmt::Debug for dyn Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri())
    }
}
