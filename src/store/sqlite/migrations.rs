//! Migrations of the database schema: versions, steps, and the backup copy before a migration.

use std::{fs, io, path::Path};

use rusqlite::{Connection, TransactionBehavior};

use super::{
    error::{Error, Problem},
    failpoint,
    file::{create_part, sync_directory},
};

/// SQLite application id of databases of this program: "A2AS".
const APPLICATION_ID: i32 = 0x4132_4153;

/// Application id of the databases of former builds, whose schema versions have no migration: "A2AT".
const FORMER_APPLICATION_ID: i32 = 0x4132_4154;

/// Migrations from each schema version to the next, starting with an empty file. Released steps must not change.
const STEPS: &[&str] = &[include_str!("migrations/1.sql"), include_str!("migrations/2.sql")];

/// Returns the migrations, with the one that a test has planned.
pub(super) fn steps() -> Vec<&'static str> {
    STEPS.iter().copied().chain(failpoint::migration_step()).collect()
}

/// Migrates a database to the newest schema version in one transaction, after copying the old file.
pub(super) fn migrate(db: &mut Connection, path: &Path, steps: &[&str]) -> Result<(), Error> {
    let newest = i32::try_from(steps.len()).unwrap_or(i32::MAX);
    let version = pragma(db, "user_version")?;
    let tables = "SELECT count(*) FROM sqlite_schema";
    let is_empty = version == 0 && db.query_row(tables, [], |row| row.get::<_, i64>(0))? == 0;
    if !is_empty {
        check_application(db)?;
    }
    if version > newest {
        return Err(Problem::Newer { version, newest }.into());
    }
    // Persistent, and not possible within a transaction.
    let mode = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    if mode != "wal" {
        let reason = "the file system does not support shared memory for WAL mode; use a local disk";
        return Err(io::Error::other(reason).into());
    }
    if version == newest {
        return Ok(());
    }
    if !is_empty {
        copy(db, path, version)?;
    }
    let steps = &steps[usize::try_from(version).unwrap_or(0)..];
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    steps.iter().try_for_each(|step| transaction.execute_batch(step))?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", newest)?;
    failpoint::at("tables.commit")?;
    Ok(transaction.commit()?)
}

/// Checks that a file is a database of this program with the current schema version.
pub(super) fn check_version(db: &Connection) -> Result<(), Error> {
    let (version, newest) = (pragma(db, "user_version")?, i32::try_from(steps().len()).unwrap_or(i32::MAX));
    check_application(db)?;
    match version {
        _ if version > newest => Err(Problem::Newer { version, newest }.into()),
        _ if version < newest => Err(Problem::Older(version).into()),
        _ => Ok(()),
    }
}

fn check_application(db: &Connection) -> Result<(), Error> {
    match pragma(db, "application_id")? {
        APPLICATION_ID => Ok(()),
        FORMER_APPLICATION_ID => Err(Problem::Former.into()),
        _ => Err(Problem::Foreign.into()),
    }
}

fn pragma(db: &Connection, name: &str) -> rusqlite::Result<i32> {
    db.pragma_query_value(None, name, |row| row.get(0))
}

/// Copies a database with an old schema version.
fn copy(db: &Connection, path: &Path, version: i32) -> Result<(), Error> {
    let copy = path.with_added_extension(format!("v{version}"));
    let failed = |cause: io::Error| Error::from(cause).at(&copy);
    let (part, text) = create_part(&copy).map_err(failed)?;
    failpoint::at("copy.begin")?;
    db.execute("VACUUM INTO ?", [text])?;
    failpoint::at("copy.made")?;
    fs::rename(&part, &copy).map_err(failed)?;
    // The copy must be durable before the migration is.
    sync_directory(&copy).map_err(failed)?;
    Ok(failpoint::at("copy.done")?)
}
