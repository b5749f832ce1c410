//! Migrations of the database schema: versions, steps, and the backup copy before a migration.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, TransactionBehavior};

use super::{
    error::Error,
    failpoint,
    file::{create_part, sibling, sync_directory},
};

/// SQLite application id of databases of this program: "A2AS".
const APPLICATION_ID: i32 = 0x4132_4153;

/// Application id of the databases of former builds, whose schema versions have no migration: "A2AT".
const FORMER_APPLICATION_ID: i32 = 0x4132_4154;

/// Migrations from each schema version to the next, starting with an empty file. Released steps must not change.
const STEPS: &[&str] = &[include_str!("migrations/1.sql")];

/// Returns the migrations, with the one that a test has planned.
pub(super) fn steps() -> Vec<&'static str> {
    STEPS.iter().copied().chain(failpoint::migration_step()).collect()
}

/// Migrates a database to the newest schema version in one transaction, after copying the old file.
pub(super) fn migrate(db: &mut Connection, path: &Path, steps: &[&str]) -> Result<(), Error> {
    let failed = |source| Error::new(path, source);
    let newest = i32::try_from(steps.len()).unwrap_or(i32::MAX);
    let version = pragma(db, path, "user_version")?;
    let tables = "SELECT count(*) FROM sqlite_schema";
    let is_empty = version == 0 && db.query_row(tables, [], |row| row.get::<_, i64>(0)).map_err(failed)? == 0;
    if !is_empty {
        check_application(db, path)?;
    }
    if version > newest {
        return Err(Error::Newer { path: path.to_owned(), version, newest });
    }
    // Persistent, and not possible within a transaction.
    let mode =
        db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0)).map_err(failed)?;
    if mode != "wal" {
        let cause = io::Error::other("the file system does not support shared memory for WAL mode; use a local disk");
        return Err(Error::Io { path: path.to_owned(), cause });
    }
    if version == newest {
        return Ok(());
    }
    if !is_empty {
        copy(db, path, version)?;
    }
    let steps = &steps[usize::try_from(version).unwrap_or(0)..];
    let migrated = db.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|transaction| {
        steps.iter().try_for_each(|step| transaction.execute_batch(step))?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", newest)?;
        failpoint::at("tables.commit")?;
        transaction.commit()
    });
    migrated.map_err(failed)
}

/// Checks that a file is a database of this program with the current schema version.
pub(super) fn check_version(db: &Connection, path: &Path) -> Result<(), Error> {
    let (version, newest) = (pragma(db, path, "user_version")?, i32::try_from(steps().len()).unwrap_or(i32::MAX));
    check_application(db, path)?;
    let path = path.to_owned();
    match version {
        _ if version > newest => Err(Error::Newer { path, version, newest }),
        _ if version < newest => Err(Error::Older { path, version }),
        _ => Ok(()),
    }
}

fn check_application(db: &Connection, path: &Path) -> Result<(), Error> {
    match pragma(db, path, "application_id")? {
        APPLICATION_ID => Ok(()),
        FORMER_APPLICATION_ID => Err(Error::Former { path: path.to_owned() }),
        _ => Err(Error::Foreign { path: path.to_owned() }),
    }
}

fn pragma(db: &Connection, path: &Path, name: &str) -> Result<i32, Error> {
    db.pragma_query_value(None, name, |row| row.get(0)).map_err(|error| Error::new(path, error))
}

/// Path of the copy of a database with an old schema version.
fn copy_path(path: &Path, version: i32) -> PathBuf {
    sibling(path, &format!("v{version}"))
}

fn copy(db: &Connection, path: &Path, version: i32) -> Result<(), Error> {
    let copy = copy_path(path, version);
    let failed = |cause| Error::Io { path: copy.clone(), cause };
    let (part, text) = create_part(&copy).map_err(failed)?;
    let copied = failpoint::at("copy.begin").and_then(|()| db.execute("VACUUM INTO ?", [text]));
    copied.and_then(|_| failpoint::at("copy.made")).map_err(|error| Error::new(path, error))?;
    fs::rename(&part, &copy).map_err(failed)?;
    // The copy must be durable before the migration is.
    sync_directory(&copy).map_err(failed)?;
    failpoint::at("copy.done").map_err(|error| Error::new(path, error))
}
