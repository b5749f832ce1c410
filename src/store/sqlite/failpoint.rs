//! Places on the way of a commit, by name, where a test lets things go wrong.
//!
//! Only a program that was built for debugging has them: in a release, and so in a bench, nothing is left of them. A
//! Cargo feature would not do, as benches are built with the features that tests want. `FAULT_POINT=batch.commit=abort@3`
//! has the process end when it comes there for the third time.

/// Comes to this place. Fails where it is to.
#[cfg(not(debug_assertions))]
#[expect(clippy::unnecessary_wraps, reason = "it is the other one's type")]
pub(super) const fn at(_: &str) -> rusqlite::Result<()> {
    Ok(())
}

#[cfg(debug_assertions)]
pub(super) use debugging::at;

#[cfg(debug_assertions)]
mod debugging {
    use std::{
        env,
        str::FromStr,
        sync::{
            LazyLock,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use rusqlite::ffi;

    /// Long enough for whoever waits to do something else meanwhile.
    const DELAY: Duration = Duration::from_millis(300);

    static PLANNED: LazyLock<Option<Fault>> =
        LazyLock::new(|| env::var("FAULT_POINT").ok().and_then(|it| it.parse().ok()));

    struct Fault {
        point: String,
        act: Act,
        /// How often one comes there until it happens: that time alone, so that whoever tries again succeeds.
        left: AtomicU32,
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Abort,
        Error,
        Delay,
    }

    impl FromStr for Fault {
        type Err = ();

        fn from_str(text: &str) -> Result<Self, ()> {
            let (point, rest) = text.split_once('=').ok_or(())?;
            let (act, times) = rest.split_once('@').unwrap_or((rest, "1"));
            let act = match act {
                "abort" => Act::Abort,
                "error" => Act::Error,
                "delay" => Act::Delay,
                _ => return Err(()),
            };
            Ok(Self { point: point.to_owned(), act, left: times.parse().map(AtomicU32::new).map_err(drop)? })
        }
    }

    /// Comes to this place. Fails where it is to.
    pub(in crate::store::sqlite) fn at(point: &str) -> rusqlite::Result<()> {
        let Some(it) = PLANNED.as_ref().filter(|it| it.point == point) else { return Ok(()) };
        let left = it.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1));
        if left != Ok(1) {
            return Ok(());
        }
        tracing::error!(point, act = ?it.act, "a fault, as planned");
        match it.act {
            Act::Abort => std::process::abort(),
            Act::Delay => {
                #[expect(clippy::disallowed_methods, reason = "it is what it is for")]
                std::thread::sleep(DELAY);
                Ok(())
            }
            Act::Error => {
                Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_WRITE), Some(point.to_owned())))
            }
        }
    }
}
