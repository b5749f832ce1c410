//! Parameters of statements with their types, which need not be asked of the server.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Value of a parameter.
pub(super) trait Parameter: ToSql + Sync {
    /// Type of the parameter.
    fn sql_type(&self) -> Type;
    fn value(&self) -> &(dyn ToSql + Sync);
}

/// Parameters in the order of their numbers.
pub(super) type Parameters<'a> = &'a [&'a dyn Parameter];

macro_rules! parameters {
    ($($($type:ty),+ => $sql_type:ident;)+) => { $($(
        impl Parameter for $type {
            fn sql_type(&self) -> Type {
                Type::$sql_type
            }

            fn value(&self) -> &(dyn ToSql + Sync) {
                self
            }
        }
    )+)+ };
}

parameters! {
    bool => BOOL;
    i16 => INT2;
    i32, Option<i32> => INT4;
    i64, Option<i64> => INT8;
    Uuid, Option<Uuid> => UUID;
    &str, Option<&str>, String, Option<String> => TEXT;
    &[u8], Vec<u8>, Option<Vec<u8>> => BYTEA;
    Vec<bool> => BOOL_ARRAY;
    Vec<i16> => INT2_ARRAY;
    Vec<i32> => INT4_ARRAY;
    Vec<i64>, Vec<Option<i64>> => INT8_ARRAY;
    &[Uuid], Vec<Uuid>, Vec<Option<Uuid>> => UUID_ARRAY;
    Vec<&str>, Vec<String>, Vec<Option<String>> => TEXT_ARRAY;
    Vec<Option<Vec<u8>>> => BYTEA_ARRAY;
}
