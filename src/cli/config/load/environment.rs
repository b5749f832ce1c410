//! Environment variables of the configuration: which of them are keys, which are ignored, and warnings of unknown ones.

use std::{env, ffi::OsString, path::Path, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::{Loader, Origin, nearest};
use crate::{
    cli::config::{DEFAULT_STORE_FILE, KEYS, RawValue, Setting, StorePath},
    protocol::message::hops,
};

/// Environment variable with the path of the configuration file.
pub(super) const CONFIG_VARIABLE: &str = "A2A_CONFIG";

/// Variable with the token of commands that call an agent. The server does not use it.
pub(crate) const CLIENT_TOKEN_VARIABLE: &str = "A2A_CLIENT_TOKEN";

/// Environment variable with the API key of the client.
pub(crate) const CLIENT_API_KEY_VARIABLE: &str = "A2A_CLIENT_API_KEY";

/// Environment variable with the OAuth client secret of the client.
pub(crate) const CLIENT_SECRET_VARIABLE: &str = "A2A_CLIENT_SECRET";

/// Environment variable of a command that is an agent: the hop count of its turn.
const HOPS_VARIABLE: &str = "A2A_HOPS";

/// Environment variables that are no keys of the server.
const CLIENT_VARIABLES: [&str; 4] =
    [CLIENT_TOKEN_VARIABLE, CLIENT_API_KEY_VARIABLE, CLIENT_SECRET_VARIABLE, HOPS_VARIABLE];

/// Variable with the directories that systemd has created for the data of a service, separated by colons (systemd.exec(5)).
const STATE_VARIABLE: &str = "STATE_DIRECTORY";

/// Conventional variable of the log filter. `A2A_LOG_FILTER` overrides it.
pub(super) const RUST_LOG: &str = "RUST_LOG";

/// Returns the hop count of the turn whose command has started this program. `None` if none has.
pub(crate) fn hops() -> Option<u32> {
    Some(hops::parse(&env::var_os(HOPS_VARIABLE)?.to_string_lossy()))
}

/// Returns the headers and the interval of the export of metrics, as the variables of OpenTelemetry set them.
pub(crate) fn metrics_export() -> (HeaderMap, Duration) {
    let get = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let millis = get("OTEL_METRIC_EXPORT_INTERVAL").and_then(|text| text.parse().ok()).filter(|millis| *millis > 0);
    let headers = get("OTEL_EXPORTER_OTLP_METRICS_HEADERS").or_else(|| get("OTEL_EXPORTER_OTLP_HEADERS"));
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().parse::<HeaderName>().ok()?, HeaderValue::from_str(&value).ok()?))
    };
    let headers = headers.unwrap_or_default().split(',').filter_map(header).collect();
    (headers, Duration::from_millis(millis.unwrap_or(30_000)))
}

impl Loader {
    /// Returns the variables that configure this program, in the order in which they are applied.
    pub(super) fn variables(&mut self, all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
        let (all, mut variables): (Vec<_>, _) = (all.collect(), Vec::new());
        self.apply_standard(&all);
        for (name, value) in all {
            if name == STATE_VARIABLE {
                let first = value.to_str().and_then(|list| list.split(':').next()).filter(|path| !path.is_empty());
                if let Some(directory) = first {
                    // A default: other sources override it.
                    self.config.store.path = StorePath::Sqlite(Path::new(directory).join(DEFAULT_STORE_FILE));
                }
                continue;
            }
            let Some(name) = name.to_str().filter(|name| name.starts_with("A2A_") || *name == RUST_LOG) else {
                continue;
            };
            match value.to_str() {
                Some(value) if CLIENT_VARIABLES.contains(&name) || is_set_by_kubernetes(name, value) => {}
                Some(value) => variables.push((name.to_owned(), value.to_owned())),
                None if name == CONFIG_VARIABLE || key_of(name).is_some() => {
                    self.errors.push(format!("{name}: not UTF-8"));
                }
                None => self.warn_unknown_variable(name),
            }
        }
        // Descending, so that `A2A_LOG_FILTER` is applied after `RUST_LOG`. Sorted also for a stable order of errors.
        variables.sort_by(|a, b| b.cmp(a));
        variables
    }

    /// Applies the variables of OpenTelemetry, which set defaults: other sources override them. The exporter reads the others.
    fn apply_standard(&mut self, variables: &[(OsString, OsString)]) {
        let get = |name: &str| {
            let set = variables.iter().filter_map(|(name, value)| name.to_str().zip(value.to_str()));
            set.filter(|(_, value)| !value.is_empty()).find(|(known, _)| *known == name)
        };
        self.is_telemetry_disabled =
            get("OTEL_SDK_DISABLED").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"));
        let endpoint = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or(get("OTEL_EXPORTER_OTLP_ENDPOINT"));
        let ratio = match get("OTEL_TRACES_SAMPLER") {
            Some((name, sampler)) if sampler.ends_with("always_off") => Some((name, "0")),
            Some((_, sampler)) if sampler.ends_with("traceidratio") => get("OTEL_TRACES_SAMPLER_ARG"),
            _ => None,
        };
        for (key, variable) in [("otlp.endpoint", endpoint), ("otlp.sample", ratio)] {
            if let (Some(key), Some((name, value))) = (KEYS.iter().find(|known| known.name == key), variable) {
                self.set(key, RawValue::Text(value), Origin::Variable(name.to_owned()));
            }
        }
        let protocol = get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or(get("OTEL_EXPORTER_OTLP_PROTOCOL"));
        if let (Some(_), Some((name, value))) = (endpoint, protocol.filter(|(_, value)| *value != "http/protobuf")) {
            self.warnings.push(format!("{name}: {value} is not supported; spans are sent as http/protobuf"));
        }
    }

    /// Applies variables in this order.
    pub(super) fn apply_environment(&mut self, variables: &[(String, String)]) {
        for (name, value) in variables.iter().filter(|(name, _)| name != CONFIG_VARIABLE) {
            let (key, value) = match key_of(name) {
                // Compose files and charts pass an unset value on as an empty one. An empty secret is an error instead:
                // an operator who meant to set a token must not run without one.
                Some((key, _)) if value.is_empty() && !key.secret => continue,
                Some((key, true)) => (key, RawValue::Path(value)),
                Some((key, false)) => (key, RawValue::Text(value)),
                None => {
                    self.warn_unknown_variable(name);
                    continue;
                }
            };
            self.set(key, value, Origin::Variable(name.clone()));
        }
    }

    /// Warns of an unknown variable that resembles a known one. Others are not for this program: scripts and platforms use the
    /// prefix too.
    fn warn_unknown_variable(&mut self, name: &str) {
        if let Some(meant) = meant(name) {
            self.warnings.push(format!("{name}: unknown variable, ignored; did you mean {meant}?"));
        }
    }
}

/// Returns the known variable that a name resembles: by a typing error, by a table that is missing or too much, or as a flag.
fn meant(name: &str) -> Option<String> {
    let rest = name.strip_prefix("A2A_")?;
    if ["HOST", "PORT"].contains(&rest) {
        return Some("A2A_LISTEN".to_owned());
    }
    let full = |key: &Setting| key.name.replace('.', "_").to_uppercase();
    let is_part = |key: &&Setting| full(key) == rest || rest.contains('_') && full(key).ends_with(&format!("_{rest}"));
    let known: Vec<_> = KEYS.iter().map(Setting::variable).collect();
    let nearest = nearest(name, known.iter().map(String::as_str).chain([CONFIG_VARIABLE]));
    let is_near = strsim::damerau_levenshtein(name, nearest) <= (rest.len() / 4).clamp(1, 2);
    KEYS.iter().find(is_part).map(Setting::variable).or_else(|| is_near.then(|| nearest.to_owned()))
}

/// Returns the key that an environment variable sets, and true if it is the variable with the path of a file.
fn key_of(variable: &str) -> Option<(&'static Setting, bool)> {
    let is_value = |key: &&Setting| key.variable() == variable || (variable == RUST_LOG && key.name == "log.filter");
    let is_file = |key: &&Setting| key.file_variable().is_some_and(|name| name == variable);
    let value = KEYS.iter().find(is_value).map(|key| (key, false));
    value.or_else(|| KEYS.iter().find(is_file).map(|key| (key, true)))
}

/// Returns true for the variables that Kubernetes sets in the pods of a namespace with a service named `a2a`.
fn is_set_by_kubernetes(name: &str, value: &str) -> bool {
    let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, port)| starts_with_digit(port))
        || (name.ends_with("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://")))
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{load_from, origin},
        *,
    };

    #[test]
    fn variables_of_kubernetes_services_are_ignored() {
        let variables = [
            ("A2A_SERVICE_HOST", "10.0.0.1"),
            ("A2A_SERVICE_PORT_HTTP", "80"),
            ("A2A_PORT", "tcp://10.0.0.1:80"),
            ("A2A_PORT_80_TCP_ADDR", "10.0.0.1"),
        ];
        assert!(load_from("", &variables, &[]).is_ok());
        assert_eq!(load_from("", &[("A2A_PORT", "80")], &[]).unwrap().warnings.len(), 1, "possibly a mistake");
    }

    #[test]
    fn unknown_variables_are_warned_of() {
        for (name, warning) in [
            ("A2A_LISTTEN", "A2A_LISTTEN: unknown variable, ignored; did you mean A2A_LISTEN?"),
            ("A2A_CONFG", "A2A_CONFG: unknown variable, ignored; did you mean A2A_CONFIG?"),
            ("A2A_STORE_PATH", "A2A_STORE_PATH: unknown variable, ignored; did you mean A2A_STORE?"),
            ("A2A_BODY_BYTES", "A2A_BODY_BYTES: unknown variable, ignored; did you mean A2A_LIMITS_BODY_BYTES?"),
            ("A2A_PORT", "A2A_PORT: unknown variable, ignored; did you mean A2A_LISTEN?"),
        ] {
            assert_eq!(load_from("", &[(name, "x")], &[]).unwrap().warnings, [warning]);
            let error = load_from("send_timeout = 1", &[(name, "x")], &[]).unwrap_err();
            assert_eq!(error.lines().last(), Some(warning), "a warning may explain an error");
        }
        // Of this program, and of scripts and other programs.
        for name in ["A2A_SEND_TIMEOUT", "PATH", "A2A_BIN", "A2A_URL", "A2A_AGENT_URL", "A2A_", "A2A_JSON"] {
            let warnings = load_from("", &[(name, "1s")], &[]).unwrap().warnings;
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn default_store_is_in_the_state_directory_of_systemd() {
        let store = |file: &str, variables: &[(&str, &str)]| {
            let loaded = load_from(file, variables, &[]).unwrap();
            let agents = loaded.agents.into_iter().map(|agent| agent.config.store.path);
            [loaded.config.store.path].into_iter().chain(agents).collect::<Vec<_>>()
        };
        let sqlite = |path: &str| StorePath::Sqlite(path.into());
        let state = ("STATE_DIRECTORY", "/var/lib/a2a:/var/lib/other");
        assert_eq!(store("", &[state]), [sqlite("/var/lib/a2a/a2a.db")]);
        let agents = store("[[agents]]\nname = 'geo'", &[state]);
        assert_eq!(agents, [sqlite("/var/lib/a2a/a2a.db"), sqlite("/var/lib/a2a/a2a.geo.db")]);
        assert_eq!(store("store = 'sqlite:b.db'", &[state]), [sqlite("b.db")]);
        assert_eq!(store("", &[state, ("A2A_STORE", "memory")]), [StorePath::Memory]);
        assert_eq!(store("", &[("STATE_DIRECTORY", "")]), [sqlite("a2a.db")]);
    }

    #[test]
    fn a2a_log_filter_overrides_rust_log() {
        let loaded = load_from("log.filter = 'info'", &[("RUST_LOG", "debug")], &[]).unwrap();
        assert_eq!(origin(&loaded, "log.filter"), "RUST_LOG");
        let loaded = load_from("", &[("A2A_LOG_FILTER", "trace"), ("RUST_LOG", "debug")], &[]).unwrap();
        assert_eq!(origin(&loaded, "log.filter"), "A2A_LOG_FILTER");
    }
}
