//! Values of columns, ids of rows, and errors of SQLite.

use rusqlite::ErrorCode;

use super::Seq;

/// Number of bits of the first sequence number in the id of a log row.
pub(super) const SEQ_BITS: u32 = 28;

/// Id of the log row of a task that begins with this event. Fails if a task has more than 2^28 events.
pub(super) fn log_row_id(task: i64, first: Seq) -> rusqlite::Result<i64> {
    let seq = i64::try_from(first).ok().filter(|seq| seq >> SEQ_BITS == 0);
    seq.map(|seq| task << SEQ_BITS | seq).ok_or_else(|| other_error("a task has too many events"))
}

/// Sequence number of the first event of a log row.
pub(super) fn first_seq(log_row_id: i64) -> Seq {
    unsigned(log_row_id & ((1 << SEQ_BITS) - 1))
}

/// Error for stored data that this program can't have written.
pub(super) fn damaged(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, problem.into())
}

/// Error that does not come from SQLite.
pub(super) fn other_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(error.into())
}

/// Converts a number to an SQLite integer, which is signed.
pub(super) fn signed(number: u64) -> rusqlite::Result<i64> {
    i64::try_from(number).map_err(|_| other_error("a number is too large"))
}

/// Converts an SQLite integer back to an unsigned number. See [`signed`].
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Describes an error: a summary for operators, followed by SQLite's message.
pub(super) fn describe(error: &rusqlite::Error) -> String {
    let summary = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk or the database is full",
        Some(ErrorCode::ReadOnly) => "the database is read-only",
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => "the database can't be opened",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "the database is damaged",
        Some(ErrorCode::SystemIoFailure) => "I/O error",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process has locked the database",
        _ if is_damage(error) => "the database is damaged",
        _ => return error.to_string(),
    };
    format!("{summary} ({error})")
}

/// Returns whether data can't be read: a value of a row, or a structure of the file.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    is_corruption(error)
        || matches!(
            error,
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
        )
}

/// Returns whether a row can't be read, or has no scope.
pub(super) fn is_unreadable(error: &rusqlite::Error) -> bool {
    is_damage(error) || *error == rusqlite::Error::QueryReturnedNoRows
}

/// Returns whether SQLite can't read the structure of the file, which may concern any task.
pub(super) fn is_corruption(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}
