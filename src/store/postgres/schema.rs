//! Schema of the database: creation, migrations, and the check of its version.
//!
//! A migration only adds. Servers of the version before keep running beside those that have migrated; what they need is removed by a
//! later version, which raises `min_version`.

use super::{
    Error,
    connection::{Connection, Failure},
};

/// Statements that create version 1.
const CREATE: &str = include_str!("schema.sql");

/// Statements of the migrations to version 2 and later ones.
const MIGRATIONS: [&str; 1] = [
    // In milliseconds. NULL for servers of version 1: it is that of the server which looks.
    "ALTER TABLE @replica ADD COLUMN lease bigint;",
];

/// Newest schema version that this program supports.
const NEWEST: i32 = 2;

/// Creates or migrates the schema, if `migrates` permits that, and checks its version.
pub(super) async fn prepare(connection: &Connection, schema: &str, migrates: bool) -> Result<(), Error> {
    let mut version = version(connection, schema).await?;
    if version.is_none_or(|version| version < NEWEST) && !migrates {
        return Err(Error::Older { version: version.unwrap_or(0), newest: NEWEST });
    }
    if version.is_none() {
        // One transaction. Of several servers that start at the same time, one creates the schema.
        let created = connection.execute_script(&format!("CREATE SCHEMA IF NOT EXISTS {schema};\n{CREATE}")).await;
        version = self::version(connection, schema).await?;
        if version.is_none() {
            created?;
        }
    }
    let steps = MIGRATIONS.iter().zip(2..).filter(|(_, to)| version.is_some_and(|version| version < *to));
    for (sql, to) in steps {
        // The lock of the row orders servers that migrate at the same time.
        let script = format!(
            "SET LOCAL statement_timeout = 0;
            DO $migration$ BEGIN
                PERFORM 1 FROM @meta FOR UPDATE;
                IF (SELECT version FROM @meta) < {to} THEN {sql} UPDATE @meta SET version = {to}; END IF;
            END $migration$"
        );
        connection.execute_script(&script).await?;
        tracing::info!(version = to, "the schema of the database was migrated");
    }
    Ok(())
}

/// Checks that the session is one of a server that accepts writes, and that this version can use the tables.
pub(super) async fn check(connection: &Connection) -> Result<(), Failure> {
    let sql = "SELECT min_version, current_setting('transaction_read_only') = 'on' AS is_read_only FROM @meta";
    let row = connection.query_row(sql, &[]).await?.ok_or_else(|| Failure::damaged("there is no schema version"))?;
    let problem = if row.try_get("is_read_only")? {
        connection.reconnect();
        "the database can't be written"
    } else if row.try_get::<_, i32>("min_version")? > NEWEST {
        "a newer program has changed the tables"
    } else {
        return Ok(());
    };
    Err(Failure::NotConnected(problem.into()))
}

/// Returns the version of the schema, if it exists.
async fn version(connection: &Connection, schema: &str) -> Result<Option<i32>, Error> {
    let sql = "SELECT to_regclass($1) IS NOT NULL AS is_found";
    let row = connection.query_row(sql, &[&format!("{schema}.meta")]).await?;
    let is_found = row.map(|row| row.try_get("is_found")).transpose().map_err(Failure::from)?;
    if is_found != Some(true) {
        return Ok(None);
    }
    let Some(row) = connection.query_row("SELECT version, min_version FROM @meta", &[]).await? else {
        return Ok(None);
    };
    let [version, oldest]: [i32; 2] =
        [row.try_get("version").map_err(Failure::from)?, row.try_get("min_version").map_err(Failure::from)?];
    if oldest > NEWEST { Err(Error::Newer { version, newest: NEWEST }) } else { Ok(Some(version)) }
}
