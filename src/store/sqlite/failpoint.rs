//! Failpoints: named points in a commit where tests inject faults.
//!
//! Only builds with debug assertions contain them, so that releases and benchmarks have no overhead. (A Cargo feature would
//! not do: benchmarks are built with the features of the tests.) For example, `FAULT_POINT=batch.commit=abort@3` aborts the
//! process when it passes `batch.commit` for the third time. The actions are `abort`, `error` and `delay`. The variable
//! `MIGRATION_STEP` has the SQL of a further migration.

/// Passes a failpoint. Fails if a fault is planned for it.
#[cfg(not(debug_assertions))]
#[expect(clippy::unnecessary_wraps, reason = "same signature as with debug assertions")]
pub(super) const fn at(_: &str) -> rusqlite::Result<()> {
    Ok(())
}

/// Returns the SQL of a further migration, which tests of migrations plan.
#[cfg(not(debug_assertions))]
pub(super) const fn migration_step() -> Option<&'static str> {
    None
}

#[cfg(debug_assertions)]
pub(super) use debugging::{at, migration_step};

#[cfg(debug_assertions)]
mod debugging {
    use std::{
        env,
        sync::{
            LazyLock,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use rusqlite::ffi;

    /// Duration of an injected delay: long enough for concurrent work of the test.
    const DELAY: Duration = Duration::from_millis(300);

    static PLANNED: LazyLock<Option<Fault>> = LazyLock::new(|| {
        let text = env::var("FAULT_POINT").ok()?;
        let (point, rest) = text.split_once('=')?;
        let (action, passes) = rest.split_once('@').unwrap_or((rest, "1"));
        Some(Fault { point: point.to_owned(), action: action.to_owned(), left: AtomicU32::new(passes.parse().ok()?) })
    });

    static STEP: LazyLock<Option<String>> = LazyLock::new(|| env::var("MIGRATION_STEP").ok());

    struct Fault {
        point: String,
        action: String,
        /// Remaining passes until the fault occurs. It occurs once, so that a retry succeeds.
        left: AtomicU32,
    }

    /// Returns the SQL of a further migration, which tests of migrations plan.
    pub(in crate::store::sqlite) fn migration_step() -> Option<&'static str> {
        STEP.as_deref()
    }

    /// Passes a failpoint. Fails if a fault is planned for it.
    pub(in crate::store::sqlite) fn at(point: &str) -> rusqlite::Result<()> {
        let Some(fault) = PLANNED.as_ref().filter(|fault| fault.point == point) else { return Ok(()) };
        let left = fault.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left != Ok(1) {
            return Ok(());
        }
        tracing::error!(point, action = fault.action, "planned fault injected");
        match &*fault.action {
            "abort" => std::process::abort(),
            "delay" => {
                #[expect(clippy::disallowed_methods, reason = "the delay must block the thread")]
                std::thread::sleep(DELAY);
                Ok(())
            }
            _ => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_WRITE), Some(point.to_owned()))),
        }
    }
}
