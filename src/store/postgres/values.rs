//! Values of columns: keys of rows, numbers, and texts.

use std::sync::Arc;

use aws_lc_rs::digest::{self, SHA256};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Fence, Position, Scope, TaskKey, connection::Failure};
use crate::store::turn_record::created;

/// Number of bits of the hash in the id of a row. The bits before it are those of the time in a UUID of version 7.
const HASH_BITS: u32 = 80;

/// Returns the id of the row of a task, which does not depend on the database.
pub(super) fn task_row(key: &TaskKey) -> Uuid {
    let time = u128::from(u64::try_from(created(key.id())).unwrap_or(0));
    let Scope { owner, tenant } = &**key.scope();
    Uuid::from_u128(time << HASH_BITS | hash(&[owner, tenant, key.id()]) >> (u128::BITS - HASH_BITS))
}

/// Returns the smallest and the greatest id of the rows of tasks with this id.
pub(super) fn row_range(task_id: &str) -> (Uuid, Uuid) {
    let first = u128::from(u64::try_from(created(task_id)).unwrap_or(0)) << HASH_BITS;
    (Uuid::from_u128(first), Uuid::from_u128(first | ((1 << HASH_BITS) - 1)))
}

/// Returns the value of the column `scope`.
pub(super) fn scope_row(Scope { owner, tenant }: &Scope) -> Uuid {
    Uuid::from_u128(hash(&[owner, tenant]))
}

/// First 128 bits of a digest of texts.
fn hash(texts: &[&str]) -> u128 {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend(text.len().to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    let digest = digest::digest(&SHA256, &bytes);
    digest.as_ref().first_chunk().map_or(0, |first| u128::from_be_bytes(*first))
}

/// Returns whether PostgreSQL can't store a text, and therefore has no row with it.
pub(super) fn is_unstorable(text: &str) -> bool {
    text.contains('\0')
}

/// Returns a text to compare columns with. NULL, which equals none, for one that no row has.
pub(super) fn comparable(text: &str) -> Option<&str> {
    Some(text).filter(|text| !is_unstorable(text))
}

/// Converts a number to a column, which is signed. Numbers beyond its range do not occur.
pub(super) fn signed<T: TryInto<i64>>(number: T) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Converts a number to a column of 32 bits.
pub(super) fn signed_int(number: u32) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

/// Reads a number that is not negative.
pub(super) fn unsigned(row: &Row, column: &str) -> Result<u64, Failure> {
    Ok(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0))
}

/// Reads a number of 32 bits that is not negative.
pub(super) fn unsigned_int(row: &Row, column: &str) -> Result<u32, Failure> {
    Ok(u32::try_from(row.try_get::<_, i32>(column)?).unwrap_or(0))
}

/// Reads the column `hash`.
pub(super) fn digest(row: &Row) -> Result<[u8; 16], Failure> {
    row.try_get::<_, &[u8]>("hash")?.try_into().map_err(|_| Failure::damaged("wrong length of a digest"))
}

/// Reads the columns `owner`, `tenant` and `id`.
pub(super) fn key(row: &Row) -> Result<TaskKey, Failure> {
    let scope =
        Scope { owner: row.try_get::<_, &str>("owner")?.into(), tenant: row.try_get::<_, &str>("tenant")?.into() };
    Ok(TaskKey::new(&Arc::new(scope), row.try_get("id")?))
}

/// Reads the columns `fence` and `seq`.
pub(super) fn position(row: &Row) -> Result<Position, Failure> {
    let fence: Fence = unsigned(row, "fence")?;
    Ok(Position { fence, seq: unsigned(row, "seq")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_a_task_begins_with_its_time_and_depends_on_its_scope() {
        let key = |owner: &str, tenant: &str, id: &str| {
            TaskKey::new(&Arc::new(Scope { owner: owner.into(), tenant: tenant.into() }), id)
        };
        let id = "01930000-0000-7000-8000-000000000001";
        let row = task_row(&key("ada", "", id));
        assert!(row.to_string().starts_with("01930000-0000-"), "{row}");
        let (first, last) = row_range(id);
        assert!(first < row && row < last);
        let others = [key("ada", "a", id), key("ad", "a", id), key("", "ada", id), key("ada", "", "t-1")];
        assert!(others.iter().all(|other| task_row(other) != row));
        assert_eq!(task_row(&key("ada", "", "t-1")).as_u128() >> HASH_BITS, 0);
    }
}
