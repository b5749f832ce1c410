//! Shutdown signals: Ctrl-C and SIGTERM.

use std::fmt;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listener for Ctrl-C and SIGTERM. Replaces their default action, which ends the process, and misses none.
pub struct Signals {
    #[cfg(unix)]
    interrupted: Option<Signal>,
    #[cfg(unix)]
    terminated: Option<Signal>,
}

impl Signals {
    /// Starts to listen. Must be called in a tokio runtime.
    #[cfg(unix)]
    pub fn listen() -> Self {
        // If registration fails, the signal keeps its default action.
        Self { interrupted: signal(SignalKind::interrupt()).ok(), terminated: signal(SignalKind::terminate()).ok() }
    }

    /// Starts to listen. Must be called in a tokio runtime.
    #[cfg(not(unix))]
    pub fn listen() -> Self {
        Self {}
    }

    /// Waits for the next signal.
    #[cfg(unix)]
    pub async fn next(&mut self) {
        async fn next(signal: Option<&mut Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = next(self.interrupted.as_mut()) => {}
            () = next(self.terminated.as_mut()) => {}
        }
    }

    /// Waits for the next signal.
    #[cfg(not(unix))]
    pub async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}
