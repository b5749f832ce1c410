//! The tables, their versions, and the way from one to the next.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, TransactionBehavior};

use super::{Error, failpoint, file::beside, sync_directory};

/// Says that a file is ours: "A2AT".
const APPLICATION: i32 = 0x4132_4154;

/// The way from each version to the next: the first one begins with nothing. What has been released does not change.
pub(super) const STEPS: &[&str] = &[
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
];

/// Brings a file to the newest version: in one transaction, and with a copy of it as it was.
pub(super) fn migrate(db: &mut Connection, path: &Path, steps: &[&str]) -> Result<(), Error> {
    let failed = |source| Error::of(path, source);
    let there = |db: &Connection, name| value(db, path, name);
    let newest = i32::try_from(steps.len()).unwrap_or(i32::MAX);
    let version = there(db, "user_version")?;
    let tables = "SELECT count(*) FROM sqlite_schema";
    let is_empty = version == 0 && db.query_row(tables, [], |it| it.get::<_, i64>(0)).map_err(failed)? == 0;
    if !is_empty && there(db, "application_id")? != APPLICATION {
        return Err(Error::Foreign { path: path.to_owned() });
    }
    if version > newest {
        return Err(Error::Newer { path: path.to_owned(), version, newest });
    }
    // Before anything is written: it can't be changed in a transaction, and stays with the file.
    let mode = db.pragma_update_and_check(None, "journal_mode", "WAL", |it| it.get::<_, String>(0)).map_err(failed)?;
    if mode != "wal" {
        let cause = io::Error::other("its file system does not let several connections share a log");
        return Err(Error::Io { path: path.to_owned(), cause });
    }
    if version == newest {
        return Ok(());
    }
    if !is_empty {
        copy(db, path, version)?;
    }
    let steps = &steps[usize::try_from(version).unwrap_or(0)..];
    let migrated = db.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|all| {
        steps.iter().try_for_each(|it| all.execute_batch(it))?;
        all.pragma_update(None, "application_id", APPLICATION)?;
        all.pragma_update(None, "user_version", newest)?;
        failpoint::at("tables.commit")?;
        all.commit()
    });
    migrated.map_err(failed)
}

/// Whether a file is one of ours, of this version.
pub(super) fn is_ours(db: &Connection, path: &Path) -> Result<(), Error> {
    let (version, newest) = (value(db, path, "user_version")?, i32::try_from(STEPS.len()).unwrap_or(i32::MAX));
    let path = path.to_owned();
    if value(db, &path, "application_id")? != APPLICATION {
        return Err(Error::Foreign { path });
    }
    match version {
        it if it > newest => Err(Error::Newer { path, version, newest }),
        it if it < newest => Err(Error::Older { path, version }),
        _ => Ok(()),
    }
}

fn value(db: &Connection, path: &Path, name: &str) -> Result<i32, Error> {
    db.pragma_query_value(None, name, |it| it.get(0)).map_err(|it| Error::of(path, it))
}

/// Where the copy of a version is.
fn copy_of(path: &Path, version: i32) -> PathBuf {
    beside(path, &format!("v{version}"))
}

fn copy(db: &Connection, path: &Path, version: i32) -> Result<(), Error> {
    let copy = copy_of(path, version);
    let part = beside(&copy, "part");
    let failed = |cause| Error::Io { path: copy.clone(), cause };
    // What is left of a copy that was never finished, or of the one of an earlier try.
    match fs::remove_file(&part) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let text = part.to_str().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
    let copied = failpoint::at("copy.begin").and_then(|()| db.execute("VACUUM INTO ?", [text]));
    copied.and_then(|_| failpoint::at("copy.made")).map_err(|it| Error::of(path, it))?;
    fs::rename(&part, &copy).map_err(failed)?;
    // Not only before the file is new, but there before that when the power fails.
    sync_directory(&copy).map_err(failed)?;
    failpoint::at("copy.done").map_err(|it| Error::of(path, it))
}
