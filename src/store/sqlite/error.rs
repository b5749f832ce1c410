//! Errors of opening a database.

use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::ErrorCode;

use super::values::describe;

/// Reason why a database can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process uses the database.
    #[error("{} is in use by {by}", path.display())]
    InUse {
        /// Path of the database.
        path: PathBuf,
        /// Process that uses it, and since when, as far as known.
        by: String,
    },
    /// A newer version of this program wrote the database.
    #[error(
        "{} has schema version {version}, but this program supports versions up to {newest}; use a newer program",
        path.display()
    )]
    Newer {
        /// Path of the database.
        path: PathBuf,
        /// Schema version of the database.
        version: i32,
        /// Newest supported schema version.
        newest: i32,
    },
    /// An older version of this program wrote the database, and it has not been migrated yet.
    #[error("{} has the old schema version {version}; start a server with it once to migrate it", path.display())]
    Older {
        /// Path of the database.
        path: PathBuf,
        /// Schema version of the database.
        version: i32,
    },
    /// A former build of this program wrote the database. It is not changed.
    #[error(
        "{} was written by a former build of this program; export it with that build (a2a admin export), and import it \
         into a new database with this one (a2a admin import)",
        path.display()
    )]
    Former {
        /// Path of the database.
        path: PathBuf,
    },
    /// The file is not a database of this program. It is not changed.
    #[error("{} is not a database of this program", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is larger than [`Options::max_bytes`](super::Options::max_bytes).
    #[error(
        "{}: {bytes} bytes exceed the limit of {max_bytes} (store.max_size); raise the limit, or serve a compact copy \
         (a2a admin backup)",
        path.display()
    )]
    TooLarge {
        /// Path of the database.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The configured maximum in bytes.
        max_bytes: u64,
    },
    /// The file can't be accessed, or a thread can't be started.
    #[error("{}: {cause}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// SQLite reports an error.
    #[error("{}: {}", path.display(), describe(cause))]
    Sqlite {
        /// Path of the database.
        path: PathBuf,
        /// Error of SQLite.
        cause: rusqlite::Error,
    },
}

/// Failure while a database is opened.
#[derive(Debug)]
pub(super) enum OpenFailure {
    Sqlite(rusqlite::Error),
    System(io::Error),
}

impl Error {
    pub(super) fn new(path: &Path, failure: impl Into<OpenFailure>) -> Self {
        let path = path.to_owned();
        match failure.into() {
            OpenFailure::Sqlite(cause) if cause.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                Self::Foreign { path }
            }
            OpenFailure::Sqlite(cause) => Self::Sqlite { path, cause },
            OpenFailure::System(cause) => Self::Io { path, cause },
        }
    }
}

impl From<rusqlite::Error> for OpenFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}
