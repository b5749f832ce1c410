//! The file: who has it, and how connections to it are made.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{Durability, Error, sync_directory};
use crate::clock::Clock;

/// How long a connection waits for another one of ours, which is busy for moments only.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The log is cut to this many bytes once all of it is in the file.
pub(super) const LOG: i64 = 64 << 20;

/// How many statements a connection keeps prepared: all that there are.
const STATEMENTS: usize = 64;

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Write(Durability),
    /// Its cache is for itself.
    Read,
    Checkpoint,
}

/// A file that no other server has as long as this lives.
#[derive(Debug)]
pub(super) struct LockedFile {
    pub(super) path: PathBuf,
    /// The operating system lets go of it with the process, however that ends.
    _lock: File,
}

impl LockedFile {
    /// Claims the file, which may not be there yet.
    pub(super) fn new(path: &Path) -> Result<Self, Error> {
        let failed = |cause| Error::Io { path: path.to_owned(), cause };
        let path = whole(path).map_err(failed)?;
        let beside = beside(&path, "lock");
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&beside);
        let mut lock = options.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut by = String::new();
                // Where a lock keeps others from reading too, nothing is known of its owner.
                let read = lock.read_to_string(&mut by);
                let by = if read.is_ok() && !by.is_empty() { by } else { "another process".to_owned() };
                return Err(Error::InUse { path, by: by.trim_end().to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let since = jiff::Timestamp::from_millisecond(Clock::new().millis()).unwrap_or_default();
        let who = format!("process {}, since {since:.0}\n", process::id());
        lock.set_len(0).and_then(|()| lock.write_all(who.as_bytes())).map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    /// Another connection.
    pub(super) fn connect(&self, role: Role) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&self.path, flags)?;
        db.busy_timeout(PATIENCE)?;
        db.set_prepared_statement_cache_capacity(STATEMENTS);
        // Whoever writes this file otherwise, by accident or not, is not to make us run their code.
        db.pragma_update(None, "trusted_schema", false)?;
        // What a statement is given is no part of its plan. Else one with a limit is made anew each time that it is run.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        match role {
            Role::Write(durability) => {
                db.pragma_update(None, "journal_size_limit", LOG)?;
                db.pragma_update(None, "cache_size", -32_768)?;
                durability.apply(&db)?;
            }
            Role::Read => {
                db.pragma_update(None, "query_only", true)?;
                db.pragma_update(None, "cache_size", -8192)?;
            }
            Role::Checkpoint => {}
        }
        Ok(db)
    }
}

/// Moves a closed database to a path where there is none yet.
///
/// # Errors
/// A server has the path, a file or the write-ahead log of one is there, some of the new file is in its log alone (most often
/// because the disk is full), or the system can't rename it.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |path: &Path, cause| Error::Io { path: path.to_owned(), cause };
    // SQLite deletes a log when all of it is in the file.
    if log_of(from).exists() {
        return Err(failed(to, std::io::Error::other("not all of it could be written; is the disk full?")));
    }
    // SQLite would replay an old log over the new file.
    let is_free = |path: &Path| {
        let taken = [path.to_owned(), log_of(path)].into_iter().find(|path| path.exists());
        taken.map_or(Ok(()), |path| Err(failed(&path, std::io::ErrorKind::AlreadyExists.into())))
    };
    // Before the lock, which would leave a file.
    is_free(to)?;
    // A server that starts meanwhile has either the lock or the whole file.
    let claimed = LockedFile::new(to)?;
    is_free(&claimed.path)?;
    let renamed = File::open(from).and_then(|file| file.sync_all()).and_then(|()| fs::rename(from, &claimed.path));
    renamed.and_then(|()| sync_directory(&claimed.path)).map_err(|cause| failed(&claimed.path, cause))
}

impl Durability {
    /// From the next transaction on.
    pub(super) fn apply(self, db: &Connection) -> rusqlite::Result<()> {
        let (level, full) = match self {
            Self::Process => ("NORMAL", false),
            Self::Power => ("FULL", true),
        };
        db.pragma_update(None, "synchronous", level)?;
        // Where an ordinary sync leaves bytes in the drive (macOS).
        db.pragma_update(None, "fullfsync", full)?;
        db.pragma_update(None, "checkpoint_fullfsync", full)
    }
}

/// Device and number of a file.
pub(super) type FileId = (u64, u64);

/// Which file has this name now, where the system tells files apart by more than their names.
pub(super) fn which(path: &Path) -> std::io::Result<FileId> {
    let found = fs::metadata(path)?;
    #[cfg(unix)]
    let which = (std::os::unix::fs::MetadataExt::dev(&found), std::os::unix::fs::MetadataExt::ino(&found));
    #[cfg(not(unix))]
    let which = (0, u64::from(found.is_file()));
    Ok(which)
}

/// Path of SQLite's write-ahead log of a database.
pub(super) fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// The name of a file beside the database.
pub(super) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

/// The one path of a file, by whichever of its names it is meant.
fn whole(path: &Path) -> std::io::Result<PathBuf> {
    if path.exists() {
        return fs::canonicalize(path);
    }
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(std::io::ErrorKind::InvalidFilename)?;
    Ok(fs::canonicalize(parent)?.join(name))
}
