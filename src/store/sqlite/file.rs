//! Database file: the locks that give one server exclusive use, connection setup, and paths of companion files.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    mem,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    error::{Error, Problem},
    options::Durability,
};
use crate::base::clock::Clock;

/// Maximum time that a connection waits for a lock of another connection, which is held only briefly.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a lock that `user_of` had is free.
const PROBE: Duration = Duration::from_millis(50);

/// Size in bytes to which SQLite truncates the write-ahead log after a complete checkpoint.
pub(super) const WAL_SIZE_LIMIT: i64 = 64 << 20;

/// Capacity of the prepared statement cache of a connection: enough for all statements.
const STATEMENTS: usize = 64;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Write(Durability),
    Read,
    Checkpoint,
}

/// Database file that this process has locked. The locks are released on drop.
#[derive(Debug)]
pub(super) struct LockedFile {
    /// Canonical path of the database.
    pub(super) path: PathBuf,
    /// Lock file, which names the process, and locks the path also after the database was replaced. The operating system releases
    /// the lock when the process ends for any reason.
    _lock: File,
    /// The database, locked itself, in case that the lock file is deleted.
    _database: Option<File>,
}

impl LockedFile {
    /// Locks a database file, which need not exist yet.
    pub(super) fn lock(path: &Path) -> Result<Self, Error> {
        let path = canonical(path)?;
        let lock_path = path.with_added_extension("lock");
        let mut lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path)?;
        let mut locked = lock.try_lock();
        if matches!(locked, Err(TryLockError::WouldBlock)) {
            #[expect(clippy::disallowed_methods, reason = "`user_of` has the lock for a moment")]
            thread::sleep(PROBE);
            locked = lock.try_lock();
        }
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::from(Problem::InUse(holder(&mut lock))).at(&path)),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let since = jiff::Timestamp::from_millisecond(Clock::default().millis()).unwrap_or_default();
        let user = format!("process {}, since {since:.0}\n", process::id());
        lock.set_len(0).and_then(|()| lock.write_all(user.as_bytes()))?;
        Ok(Self { path, _lock: lock, _database: None })
    }

    /// Locks the database itself, and creates it if it does not exist. Must be called before SQLite opens it: a descriptor that is
    /// closed later releases the locks of SQLite in this process (POSIX).
    pub(super) fn lock_database(self) -> Result<Self, Error> {
        // On other systems, this lock conflicts with those of SQLite.
        if !cfg!(target_os = "linux") {
            create_private(&self.path)?;
            return Ok(self);
        }
        let file = private().read(true).open(&self.path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _database: Some(file), ..self }),
            Err(TryLockError::WouldBlock) => {
                // Not closed: the other user may be in this process, where the lock file was deleted.
                mem::forget(file);
                Err(Problem::InUse("another process".to_owned()).into())
            }
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// Opens a connection.
    pub(super) fn connect(&self, role: Role) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&self.path, flags)?;
        db.busy_timeout(BUSY_TIMEOUT)?;
        db.set_prepared_statement_cache_capacity(STATEMENTS);
        // The schema of a manipulated file must not run functions.
        db.pragma_update(None, "trusted_schema", false)?;
        // Query plans must not depend on bound values. Otherwise a statement with a bound LIMIT is prepared again on each use.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        match role {
            Role::Write(durability) => {
                db.pragma_update(None, "journal_size_limit", WAL_SIZE_LIMIT)?;
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

/// Returns the process that uses a database, and since when, as far as known. `None` if no process does.
pub(crate) fn user_of(path: &Path) -> Option<String> {
    let mut lock = File::open(canonical(path).ok()?.with_added_extension("lock")).ok()?;
    matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| holder(&mut lock))
}

/// Reads the name of the process that has a lock file.
fn holder(lock: &mut File) -> String {
    let mut by = String::new();
    // On some systems, a locked file can't be read.
    let read = lock.read_to_string(&mut by);
    if read.is_ok() && !by.is_empty() { by.trim_end().to_owned() } else { "another process".to_owned() }
}

/// Creates an empty file for a database, unless it exists. Only its owner may read it: it has the messages of clients. SQLite gives
/// the write-ahead log the same permissions.
pub(super) fn create_private(path: &Path) -> io::Result<()> {
    // A file that is opened and closed again would lose the locks of SQLite in this process.
    if path.exists() { Ok(()) } else { private().open(path).map(drop) }
}

/// Returns options that create a private file. The path may be a link to a file that does not exist yet.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates an empty private file beside `path`, for a copy of a database that gets this path once it is complete. Returns its
/// path, also as the text that SQLite takes.
pub(super) fn create_part(path: &Path) -> io::Result<(PathBuf, String)> {
    let part = path.with_added_extension("part");
    // An interrupted attempt may have left a partial copy.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let text = part.to_str().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    create_private(&part)?;
    Ok((part, text))
}

/// Moves a closed database to a path where there is none yet.
///
/// # Errors
/// A server has locked the path, a database or its write-ahead log exists there, the new file has a write-ahead log with data
/// that is not in the file (most often because the disk is full), or the system can't rename it.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |path: &Path, cause: io::Error| Error::from(cause).at(path);
    // SQLite deletes the write-ahead log after a complete checkpoint.
    if wal_path(from).exists() {
        let cause = io::Error::other("the database could not be written completely; check that the disk is not full");
        return Err(failed(to, cause));
    }
    // SQLite would replay an old write-ahead log over the new file.
    let is_free = |path: &Path| {
        let existing = [path.to_owned(), wal_path(path)].into_iter().find(|path| path.exists());
        existing.map_or(Ok(()), |path| Err(failed(&path, io::ErrorKind::AlreadyExists.into())))
    };
    // Before locking, which would leave a lock file.
    is_free(to)?;
    // A server that starts concurrently gets either the lock or the complete file.
    let locked = LockedFile::lock(to).map_err(|error| error.at(to))?;
    is_free(&locked.path)?;
    let renamed = File::open(from).and_then(|file| file.sync_all()).and_then(|()| fs::rename(from, &locked.path));
    renamed.and_then(|()| sync_directory(&locked.path)).map_err(|cause| failed(&locked.path, cause))
}

impl Durability {
    /// Configures a connection, with effect from the next transaction.
    pub(super) fn apply(self, db: &Connection) -> rusqlite::Result<()> {
        let (level, full) = match self {
            Self::Process => ("NORMAL", false),
            Self::Power => ("FULL", true),
        };
        db.pragma_update(None, "synchronous", level)?;
        // On macOS, an ordinary sync leaves data in the cache of the drive.
        db.pragma_update(None, "fullfsync", full)?;
        db.pragma_update(None, "checkpoint_fullfsync", full)
    }
}

/// Device and inode number of a file.
pub(super) type FileId = (u64, u64);

/// Returns the identity of the file at a path. Without inode numbers, all files are the same.
pub(super) fn file_id(path: &Path) -> io::Result<FileId> {
    let metadata = fs::metadata(path)?;
    #[cfg(unix)]
    let id = (std::os::unix::fs::MetadataExt::dev(&metadata), std::os::unix::fs::MetadataExt::ino(&metadata));
    #[cfg(not(unix))]
    let id = (0, u64::from(metadata.is_file()));
    Ok(id)
}

/// Path of SQLite's write-ahead log of a database.
pub(super) fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Canonical path of a file that may not exist yet.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    if path.exists() {
        return fs::canonicalize(path);
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok(fs::canonicalize(parent)?.join(name))
}

/// Syncs the directory of a file, which makes a new directory entry durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if cfg!(unix) => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}
