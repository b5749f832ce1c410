//! Errors of opening a database.

use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::ErrorCode;

use super::values::describe;

/// Failure of a database, with its path.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", path.display())]
pub struct Error {
    /// Path of the database, or of the file that failed.
    pub path: PathBuf,
    /// Reason of the failure.
    pub problem: Problem,
}

/// Reason why a database can't be opened. The texts follow its path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Another process uses the database: this one, since when, as far as known.
    #[error(" is in use by {0}")]
    InUse(String),
    /// A newer version of this program wrote the database.
    #[error(" has schema version {version}, but this program supports versions up to {newest}; use a newer program")]
    Newer {
        /// Schema version of the database.
        version: i32,
        /// Newest supported schema version.
        newest: i32,
    },
    /// An older version of this program wrote the database, with this schema version. It has not been migrated yet.
    #[error(" has the old schema version {0}; start a server with it once to migrate it")]
    Older(i32),
    /// A former build of this program wrote the database. It is not changed.
    #[error(
        " was written by a former build of this program; export it with that build (a2a admin export), and import it \
         into a new database with this one (a2a admin import)"
    )]
    Former,
    /// The file is not a database of this program. It is not changed.
    #[error(" is not a database of this program")]
    Foreign,
    /// The file is larger than [`Options::max_bytes`](super::Options::max_bytes).
    #[error(
        ": {bytes} bytes exceed the limit of {max_bytes} (store.max_size); raise the limit, or serve a compact copy \
         (a2a admin backup)"
    )]
    TooLarge {
        /// Size of the file in bytes.
        bytes: u64,
        /// The configured maximum in bytes.
        max_bytes: u64,
    },
    /// The file can't be accessed, or a thread can't be started.
    #[error(": {0}")]
    Io(io::Error),
    /// SQLite reports an error.
    #[error(": {}", describe(.0))]
    Sqlite(rusqlite::Error),
}

impl Error {
    /// Sets the path, unless a more specific one is set.
    pub(super) fn at(self, path: &Path) -> Self {
        if self.path.as_os_str().is_empty() { Self { path: path.to_owned(), ..self } } else { self }
    }
}

conversions! {
    Error:
    problem: Problem => Self { path: PathBuf::new(), problem };
    error: io::Error => Problem::Io(error).into();
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let is_foreign = error.sqlite_error_code() == Some(ErrorCode::NotADatabase);
        if is_foreign { Problem::Foreign.into() } else { Problem::Sqlite(error).into() }
    }
}
