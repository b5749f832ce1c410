//! Connection settings: URL, TLS mode, and the password from a file or the environment.

use std::{
    env,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Config, Host, SslMode, TargetSessionAttrs};

use super::Error;
use crate::{
    base::{
        faults::Faults,
        secret_file::{is_shared, read_file},
    },
    store::{quota::DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER, shared::DEFAULT_LEASE},
};

/// Maximum size of a password file in bytes.
const MAX_PASSWORD_FILE: u64 = 1 << 20;

/// Timeout for connecting to one host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout after which a connection without acknowledged data is closed.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);

/// Schema without the parameter `schema` in the URL.
const DEFAULT_SCHEMA: &str = "a2a";

options! {
    /// Settings of the store.
    #[derive(Clone)]
    #[non_exhaustive]
    pub struct Options {
        /// Password. By default that in the URL, in the variable `PGPASSWORD`, or in the file `.pgpass`.
        pub password: Option<String>,
        /// Prepares statements, and sets timeouts of sessions. True by default. A pool that runs the transactions of several clients on
        /// one connection, as PgBouncer does in transaction mode, needs false, and the database needs timeouts of its own.
        pub prepared: bool = true,
        /// Creates and migrates the schema. True by default. Otherwise, opening a database with an older schema fails.
        pub migrates: bool = true,
        /// Name of this replica for operators, such as the host name.
        pub name: Box<str>,
        /// Time after the last renewal in which a replica is not declared dead, 10 s by default. One with a longer lease is
        /// declared dead as much later.
        pub lease: Duration = DEFAULT_LEASE,
        /// Sends and receives notes between replicas by NOTIFY. True by default. Otherwise, replicas find changes by polling, which takes up
        /// to half a second, and a second for a message or cancel.
        pub notifies: bool = true,
        /// URL for the connection that receives notifications, if that of the store is the URL of such a pool. Without it, replicas
        /// behind a pool get no notes, and find changes by polling.
        pub listen: Option<String>,
        /// Maximum number of tasks.
        pub max_tasks: usize = 1_000_000,
        /// Maximum number of tasks of one owner, over all tenants. `max_tasks` by default.
        pub max_tasks_per_owner: Option<usize>,
        /// Planted bug, for tests.
        #[doc(hidden)]
        pub faults: Faults,
        /// Maximum number of push configurations of the tasks of one owner, over all tenants.
        pub max_push_configs_per_owner: usize = DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER,
    }
}

debug_fields!(Options { max_push_configs_per_owner });

/// Verification of the server, the parameter `sslmode` of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    /// `disable`, `prefer` and `require`: none.
    Nothing,
    /// `verify-ca`: the certificate has a trusted root.
    Root,
    /// `verify-full`: the certificate is also one of the host.
    Host,
}

/// Parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) verify: Verify,
    /// Trusted root certificates instead of those of the system.
    pub(super) root_file: Option<PathBuf>,
    /// Quoted name of the schema.
    pub(super) schema: Box<str>,
    pub(super) is_prepared: bool,
    pub(super) faults: Faults,
    /// True once a connection has logged the outage, so that the others do not.
    pub(super) is_outage_logged: Arc<AtomicBool>,
}

// The configuration does not print its password.
debug_fields!(Settings { config, verify, schema });

impl Settings {
    /// Parses a URL. Of the parameters of libpq, it may have those of hosts, TLS and timeouts; `schema` is another one.
    pub(super) fn parse(url: &str, options: &Options) -> Result<Self, Error> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut rest, mut ssl_mode, mut root_file, mut pass_file) = (Vec::new(), None, None, None);
        let mut schema = DEFAULT_SCHEMA.to_owned();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "schema" => schema = value,
                "sslmode" => ssl_mode = Some(value),
                "sslrootcert" => root_file = Some(value).filter(|path| path != "system").map(PathBuf::from),
                "passfile" => pass_file = Some(PathBuf::from(value)),
                _ => rest.push(parameter),
            }
        }
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || schema.len() > 48 || !schema.chars().all(is_plain) {
            return Err(Error::Url("schema: must be 1 to 48 lower-case letters, digits and underscores".into()));
        }
        let mut config: Config =
            format!("{base}?{}", rest.join("&")).parse().map_err(|error| Error::Url(super::describe(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(Error::Url("the host is missing".into()));
        }
        let mode = ssl_mode.as_deref().unwrap_or(if is_local(&config) { "prefer" } else { "verify-full" });
        let (mode, verify) = match mode {
            "disable" => (SslMode::Disable, Verify::Nothing),
            // libpq tries `allow` without TLS first; with TLS first, it reaches the same servers.
            "prefer" | "allow" => (SslMode::Prefer, Verify::Nothing),
            // As libpq: a file with root certificates is used.
            "require" if root_file.is_none() => (SslMode::Require, Verify::Nothing),
            "require" | "verify-ca" => (SslMode::Require, Verify::Root),
            "verify-full" => (SslMode::Require, Verify::Host),
            _ => {
                return Err(Error::Url(
                    "sslmode: must be disable, allow, prefer, require, verify-ca or verify-full".into(),
                ));
            }
        };
        config.ssl_mode(mode);
        if !query.contains("target_session_attrs=") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(TCP_TIMEOUT).keepalives_interval(TCP_TIMEOUT).tcp_user_timeout(TCP_TIMEOUT);
        if config.get_application_name().is_none() {
            config.application_name("a2a");
        }
        if let Some(password) = options.password.clone().or_else(|| find_password(&config, pass_file.as_deref())) {
            config.password(password);
        }
        let (schema, is_prepared, faults) = (format!("\"{schema}\"").into(), options.prepared, options.faults);
        let is_outage_logged = Arc::default();
        Ok(Self { config, verify, root_file, schema, is_prepared, faults, is_outage_logged })
    }
}

/// Returns whether all hosts are this one.
fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    })
}

/// Looks for a password that the URL does not have, in the places of libpq.
fn find_password(config: &Config, file: Option<&Path>) -> Option<String> {
    if config.get_password().is_some() {
        return None;
    }
    if let Ok(password) = env::var("PGPASSWORD") {
        return Some(password);
    }
    let file = file.map(Path::to_owned).or_else(|| env::var_os("PGPASSFILE").map(PathBuf::from));
    let file = file.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pgpass")))?;
    let (content, metadata) = read_file(&file, MAX_PASSWORD_FILE).ok()?;
    if is_shared(&metadata) {
        tracing::warn!(path = %file.display(), "password file ignored, because other users can read it; run `chmod 600` on it");
        return None;
    }
    password_in(&String::from_utf8(content).ok()?, config)
}

/// Finds the password of the first host in lines of `host:port:database:user:password`, where `*` stands for any value.
fn password_in(lines: &str, config: &Config) -> Option<String> {
    let host = config.get_hosts().first().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(_) => "localhost".to_owned(),
    });
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    let wanted = [host.as_deref().unwrap_or("localhost"), &port, config.get_dbname().unwrap_or(user), user];
    lines.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [rest @ .., password] = &*fields else { return None };
        let matches =
            rest.len() == wanted.len() && rest.iter().zip(wanted).all(|(field, value)| field == "*" || field == value);
        matches.then(|| password.clone())
    })
}

/// Splits a line at colons, except those after a backslash. The last of at most five fields has the rest.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut chars) = (vec![String::new()], line.chars());
    while let Some(c) = chars.next() {
        match c {
            ':' if fields.len() < 5 => fields.push(String::new()),
            c => {
                let c = if c == '\\' { chars.next().unwrap_or(c) } else { c };
                if let Some(field) = fields.last_mut() {
                    field.push(c);
                }
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings, Error> {
        Settings::parse(url, &Options::default().password(Some("secret".to_owned())))
    }

    #[test]
    fn url_names_hosts_schema_and_verification() {
        let settings = parse("postgres://ada@db1:5433,db2/a2a?schema=blue").unwrap();
        assert_eq!(settings.config.get_hosts(), [Host::Tcp("db1".into()), Host::Tcp("db2".into())]);
        assert_eq!((settings.verify, &*settings.schema), (Verify::Host, "\"blue\""));
        assert_eq!(settings.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert!(
            !format!("{settings:?} {:?}", Options::default().password(Some("secret".to_owned()))).contains("secret")
        );
        for (url, mode, verify) in [
            ("postgres://127.0.0.1/a2a", SslMode::Prefer, Verify::Nothing),
            ("postgres://db/a2a?sslmode=disable", SslMode::Disable, Verify::Nothing),
            ("postgres://db/a2a?sslmode=allow", SslMode::Prefer, Verify::Nothing),
            ("postgres://db/a2a?sslmode=require", SslMode::Require, Verify::Nothing),
            ("postgres://db/a2a?sslmode=require&sslrootcert=ca.pem", SslMode::Require, Verify::Root),
            ("postgres://localhost/a2a?sslmode=verify-full", SslMode::Require, Verify::Host),
        ] {
            let settings = parse(url).unwrap();
            assert_eq!((settings.config.get_ssl_mode(), settings.verify), (mode, verify), "{url}");
        }
        for url in ["postgres:///a2a", "postgres://db/a2a?sslmode=no", "postgres://db/a2a?schema=a-b", "http://db"] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn password_file_is_searched_in_order() {
        let config = parse("postgres://ada@db:5433/a2a").unwrap().config;
        let lines = "# comment\nother:5433:a2a:ada:no\ndb:5433:*:ada:a\\:b\\\\c:d\n*:*:*:*:last\n";
        assert_eq!(password_in(lines, &config).as_deref(), Some("a:b\\c:d"));
        assert_eq!(password_in("db:1:a2a:ada:no", &config), None);
    }
}
