//! Agents that are programs or servers: each adapter translates between the service and a command, an endpoint, a model or
//! an A2A agent.
//!
//! `Exec` runs a command for each turn, or sends the turns to a command that keeps running (crate feature `exec`, on Unix).
//! `HttpEndpoint` sends the turns to an HTTP endpoint (crate features `client` and `push`).
//! `Openai` sends conversations to a model with a chat completions API (crate feature `openai`), and calls the tools of MCP servers
//! for it (crate feature `mcp`).
//! `Upstream` passes the messages to another A2A agent (crate feature `client`).

#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
use std::time::Duration;

#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
use tokio::time::{Instant, sleep_until};

#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
use crate::{
    agent::{End, Error, Stopped, Turn},
    base::retry::{Backoff, retry_after},
};

#[cfg(any(all(feature = "exec", unix), all(feature = "client", feature = "push")))]
mod event;
#[cfg(all(feature = "exec", unix))]
mod exec;
#[cfg(all(feature = "exec", unix))]
mod files;
#[cfg(all(feature = "client", feature = "push"))]
mod http;
#[cfg(feature = "openai")]
mod openai;
#[cfg(all(feature = "exec", unix))]
pub(crate) mod process_guard;
#[cfg(feature = "client")]
mod upstream;

#[cfg(all(feature = "exec", unix))]
pub use self::exec::{Exec, ExecOptions, Format};
#[cfg(all(feature = "client", feature = "push"))]
pub use self::http::{HttpEndpoint, HttpOptions};
#[cfg(feature = "mcp")]
pub use self::openai::{Approval, McpServer, McpTransport};
#[cfg(feature = "openai")]
pub use self::openai::{Openai, OpenaiOptions};
#[cfg(feature = "client")]
pub use self::upstream::{GAP, Upstream};

/// Maximum delay that `Retry-After` may request before a retry. A longer one fails the turn.
#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Result of an attempt to send a request.
#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
type Attempt = reqwest::Result<reqwest::Response>;

/// Runs the work of a turn until it is canceled. The connection of the work is then closed, so that the other side can stop too.
#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
async fn until_canceled(turn: &Turn, work: impl Future<Output = Result<End, Error>>) -> Result<End, Error> {
    tokio::select! {
        end = work => end,
        () = turn.canceled() => Err(Stopped.into()),
    }
}

/// Sends a request until it succeeds, its result is final, or all retries were made. Waits as `Retry-After` asks for.
#[cfg(any(all(feature = "client", feature = "push"), feature = "openai"))]
async fn with_retries<F: Future<Output = Result<Attempt, Error>>>(
    turn: &Turn,
    max_retries: u32,
    backoff: Backoff,
    send: impl Fn() -> F,
    is_final: impl Fn(&Attempt) -> bool,
) -> Result<Attempt, Error> {
    let env = turn.live.journal().env();
    let mut retries = 0;
    loop {
        let result = send().await?;
        let wait = result.as_ref().ok().and_then(|response| retry_after(response.headers(), env.clock.millis()));
        let delay = backoff.delay_after(wait, MAX_RETRY_AFTER, retries, env.rng.next_u64());
        let Some(delay) = delay.filter(|_| retries < max_retries && !is_final(&result)) else { return Ok(result) };
        retries += 1;
        sleep_until(Instant::now() + delay).await;
    }
}
