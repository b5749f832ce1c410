//! Store of the tasks in the configuration: memory, a file, or the URL of a database, whose password is not printed.

use std::{fmt, path::PathBuf};

use super::value::{HIDDEN, Value, brief, quoted};

/// Store of the tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePath {
    Memory,
    Sqlite(PathBuf),
    Postgres(DatabaseUrl),
}

/// URL of a PostgreSQL database. Printed without the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DatabaseUrl(String);

impl DatabaseUrl {
    /// Returns the URL with the password, if it has one.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the URL for one of several agents, each of which has a schema of its own.
    pub(super) fn of_agent(&self, name: &str) -> Self {
        let (base, query) = self.0.split_once('?').unwrap_or((&self.0, ""));
        let (mut schema, mut others) = ("a2a", String::new());
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.strip_prefix("schema=") {
                Some(name) => schema = name,
                None => others = format!("{others}&{parameter}"),
            }
        }
        Self(format!("{base}?schema={schema}_{}{others}", name.replace('-', "_")))
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |text: &str| {
            let (scheme, rest) = text.split_once("://")?;
            let (user, host) = rest.rsplit_once('@')?;
            Some(format!("{scheme}://{}:{HIDDEN}@{host}", user.split_once(':')?.0))
        };
        let (base, query) = self.0.split_once('?').unwrap_or((&self.0, ""));
        f.write_str(&hidden(base).unwrap_or_else(|| base.to_owned()))?;
        for (n, parameter) in query.split('&').filter(|parameter| !parameter.is_empty()).enumerate() {
            let shown = if parameter.starts_with("password=") { &format!("password={HIDDEN}") } else { parameter };
            write!(f, "{}{shown}", if n == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Value for DatabaseUrl {
    const KIND: &'static str = "`postgres://USER@HOST/DATABASE`";

    fn read(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("{} is not {}", brief(text), Self::KIND))
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for StorePath {
    const KIND: &'static str = "`memory`, `sqlite:PATH` or `postgres://…`";

    fn read(text: &str) -> Result<Self, String> {
        // URLs and connection strings of other programs would be files with other names.
        let is_path = |path: &str| {
            let is_url = path.starts_with("//") || path.contains('?') && path.contains('=');
            !is_url && !path.starts_with("file:") && !matches!(path, "" | "memory" | ":memory:")
        };
        match text.strip_prefix("sqlite:") {
            None if text == "memory" => Ok(Self::Memory),
            Some(path) if is_path(path) => Ok(Self::Sqlite(path.into())),
            _ if text.starts_with("postgres") => DatabaseUrl::read(text).map(Self::Postgres),
            _ => {
                let examples = "memory, sqlite:a2a.db or postgres://a2a@db.example/a2a";
                Err(format!("{} is not {}; write {examples}", brief(text), Self::KIND))
            }
        }
    }

    fn show(&self) -> Option<String> {
        Some(match self {
            Self::Memory => quoted(&"memory"),
            Self::Sqlite(path) => quoted(&format_args!("sqlite:{}", path.display())),
            Self::Postgres(url) => quoted(url),
        })
    }
}

#[cfg(test)]
mod tests {
    use toml::de::DeValue;

    use super::*;

    #[test]
    fn stores_are_memory_a_file_or_a_database() {
        for text in ["memory", "sqlite:a2a.db", "sqlite:/x", "sqlite:why?.db", "sqlite:C:\\a b\\a2a.db"] {
            let read = StorePath::read(text).unwrap();
            let printed = read.show().unwrap();
            assert_eq!(StorePath::from_toml(&DeValue::parse(&printed).unwrap()), Ok(read), "{printed}");
        }
        for text in [
            "",
            "sqlite",
            "sqlite:",
            "sqlite://",
            "memory:",
            "a2a.db",
            "sqlite://rel.db",
            "sqlite:///abs/path",
            "sqlite::memory:",
            "sqlite:?mode=memory",
            "sqlite:file:a2a?cache=shared&mode=memory",
            "sqlite:memory",
            "sqlite:?cache=shared",
            "sqlite://:memory:",
            ":memory:",
            "file:x.db",
            "sqlite:file:x.db?mode=ro",
            "sqlite:x.db?mode=rwc",
        ] {
            let error = StorePath::read(text).unwrap_err();
            let hint = "is not `memory`, `sqlite:PATH` or `postgres://…`; write memory, sqlite:a2a.db or postgres://a2a@db.example/a2a";
            assert_eq!(error, format!("`{text}` {hint}"));
        }
        for (text, shown) in [
            ("postgres://a2a@db1,db2/a2a?schema=blue", "postgres://a2a@db1,db2/a2a?schema=blue"),
            ("postgresql://a2a:p@ss@db/a2a", "postgresql://a2a:(hidden)@db/a2a"),
            (
                "postgres://db/a2a?user=a&password=b&sslmode=require",
                "postgres://db/a2a?user=a&password=(hidden)&sslmode=require",
            ),
        ] {
            let path = StorePath::read(text).unwrap();
            assert_eq!((path.show(), format!("{path:?}")), (Some(quoted(shown)), format!("Postgres({shown})")));
        }
        assert!(StorePath::read("postgres:a2a").unwrap_err().contains("is not `postgres://USER@HOST/DATABASE`"));
        let url = DatabaseUrl::read("postgres://db/a2a?schema=blue&sslmode=require").unwrap();
        assert_eq!(url.of_agent("geo-1").expose(), "postgres://db/a2a?schema=blue_geo_1&sslmode=require");
    }
}
