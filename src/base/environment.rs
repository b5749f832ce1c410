//! Environment variables of this process that may be secrets, which commands must not get.

use std::{env, ffi::OsString};

/// Beginning of the names of the variables of this program.
pub(crate) const PREFIX: &str = "A2A_";

/// Returns the names of the variables that may be secrets: those of this program, and the credentials of databases and collectors of
/// telemetry.
pub(crate) fn secret_variables() -> impl Iterator<Item = OsString> {
    env::vars_os().map(|(name, _)| name).filter(|name| is_secret(&name.to_string_lossy()))
}

fn is_secret(name: &str) -> bool {
    let is_headers = name.starts_with("OTEL_") && name.ends_with("_HEADERS");
    name.starts_with(PREFIX) || matches!(name, "PGPASSWORD" | "PGPASSFILE") || is_headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_secrets_are_known_by_name() {
        for name in
            ["A2A_TOKEN", "PGPASSWORD", "PGPASSFILE", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
        {
            assert!(is_secret(name), "{name}");
        }
        for name in ["PATH", "PGHOST", "OTEL_EXPORTER_OTLP_ENDPOINT", "HEADERS"] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
