//! The signals that tell a program to stop.

use std::fmt;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C and SIGTERM. From when it is made, they no longer end the process by themselves, and none is missed.
pub struct Signals {
    #[cfg(unix)]
    interrupted: Option<Signal>,
    #[cfg(unix)]
    terminated: Option<Signal>,
}

impl Signals {
    /// Listens from now on. Must be called in a tokio runtime.
    #[cfg(unix)]
    pub fn listen() -> Self {
        // Where the system refuses, the signal does what it does to every process: it ends it.
        Self { interrupted: signal(SignalKind::interrupt()).ok(), terminated: signal(SignalKind::terminate()).ok() }
    }

    /// Listens from now on. Must be called in a tokio runtime.
    #[cfg(not(unix))]
    pub fn listen() -> Self {
        Self {}
    }

    /// Returns when the next one has come.
    #[cfg(unix)]
    pub async fn next(&mut self) {
        async fn next(signal: Option<&mut Signal>) {
            match signal {
                Some(it) => drop(it.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = next(self.interrupted.as_mut()) => {}
            () = next(self.terminated.as_mut()) => {}
        }
    }

    /// Returns when the next one has come.
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
