//! Agents that are programs or servers: each adapter translates between the service and a command, an endpoint, a model or
//! an A2A agent.
//!
//! `Exec` runs a command for each turn, or sends the turns to a command that keeps running (crate feature `exec`, on Unix).
//! `HttpEndpoint` sends the turns to an HTTP endpoint (crate features `client` and `push`).
//! `Openai` sends conversations to a model with a chat completions API (crate feature `openai`), and calls the tools of MCP servers
//! for it (crate feature `mcp`).
//! `Upstream` passes the messages to another A2A agent (crate feature `client`).

#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
mod endpoint;
#[cfg(all(feature = "exec", unix))]
pub(crate) mod exec;
#[cfg(all(feature = "exec", unix))]
mod files;
#[cfg(all(feature = "client", feature = "push"))]
mod http;
#[cfg(feature = "openai")]
mod openai;
#[cfg(any(all(feature = "exec", unix), all(feature = "client", feature = "push"), feature = "mcp"))]
pub(crate) mod turn_json;
#[cfg(feature = "client")]
mod upstream;

use tokio::time::Instant;

// For the files of this folder.
use crate::{
    base::dependency::{Dependency, MAX_WAIT},
    engine::agent::{Agent, ArtifactWriter, End, Error, Stopped, Turn, Updates},
    protocol::pb::v1::{AgentCard, Message, Part, Role, Task, part::Content},
};

/// Returns the status message of a turn that waits for something that can't be reached.
#[cfg(any(feature = "client", all(feature = "exec", unix)))]
fn waiting_message(dependency: &Dependency) -> Result<Message, Error> {
    let message = Message::agent(format!("Waiting for {}.", dependency.subject()));
    Ok(message.with_metadata(&serde_json::json!({ format!("{}Waiting", dependency.peer()): true }))?)
}

/// Waits for something for which new work is refused, such as before a turn that was queued or recovered.
#[cfg(any(feature = "openai", all(feature = "exec", unix)))]
async fn wait_for(dependency: &Dependency, turn: &Turn, out: &Updates) -> Result<(), Error> {
    if dependency.refusal().is_none() {
        return Ok(());
    }
    out.progress(waiting_message(dependency)?).await?;
    tokio::select! {
        is_closed = dependency.wait_while_open(Instant::now() + MAX_WAIT) => {
            let failure = || Error::public(format!("Can't reach {}.", dependency.subject()));
            if is_closed { Ok(()) } else { Err(failure().because_of("breaker_open")) }
        }
        () = turn.canceled() => Err(Stopped.into()),
    }
}

#[cfg(all(feature = "exec", unix))]
pub use self::exec::{Exec, ExecFormat, ExecOptions};
#[cfg(all(feature = "client", feature = "push"))]
pub use self::http::{HttpEndpoint, HttpOptions};
#[cfg(feature = "mcp")]
pub use self::openai::{Approval, McpServer, McpTransport};
#[cfg(feature = "openai")]
pub use self::openai::{Openai, OpenaiOptions};
#[cfg(feature = "client")]
pub use self::upstream::{GAP, Upstream};
#[cfg(feature = "client")]
pub use crate::base::credential::Credential;
