//! Command line of `a2a serve`: a flag for each configuration key, and the flags of the official command line.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use crate::cli::config::{Config, DEFAULT_LISTEN, KEYS, Setting};

/// Short examples in the short help.
const MORE: &str = "Examples: a2a serve --exec ./agent.py --exec-format json-lines; a2a serve --upstream URL";

/// Flags in the short help, separated by spaces.
const COMMON: &str = "exec exec-format http openai openai-model upstream listen public-url token insecure cors-origins \
                      auth-tokens tls-cert tls-key log turn-deadline store push-enabled card-file card-name";

/// Names in the official command line, and short names, for flags that have another one here.
const OFFICIAL: [(&str, &str); 6] = [
    ("openai-model", "model"),
    ("upstream", "proxy"),
    ("card-name", "name"),
    ("card-description", "description"),
    ("card-file", "card"),
    ("protocols", "protocol"),
];

/// Arguments of `a2a serve`.
#[derive(Debug, Args)]
#[command(after_help = MORE)]
pub(super) struct Serve {
    /// Configuration file [default: `a2a.toml`, if it exists] [env: `A2A_CONFIG`]
    #[arg(long, value_name = "PATH")]
    pub(super) config: Option<PathBuf>,
    /// Prints the effective configuration with the origin of each value, and exits.
    #[arg(long)]
    pub(super) print_config: bool,
    /// Does not change the schema of a PostgreSQL database: `a2a admin migrate` does.
    #[arg(long, value_name = "never", value_parser = ["never"], hide_short_help = true)]
    pub(super) migrate: Option<String>,
    #[command(flatten)]
    pub(super) official: Official,
    #[command(flatten)]
    flags: Flags,
}

/// Flags of the official command line that are not keys of the configuration.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(super) struct Official {
    /// Host of `--listen`: an IP address, or `localhost`. Defaults to 127.0.0.1.
    #[arg(long, conflicts_with = "listen", value_parser = parse_host, hide_short_help = true)]
    host: Option<IpAddr>,
    /// Port of `--listen`. Defaults to 8080.
    #[arg(long, conflicts_with = "listen", hide_short_help = true)]
    port: Option<u16>,
    /// Serves an agent that echoes messages: the demo agent, which is the default.
    #[arg(long, conflicts_with_all = ["exec", "http", "openai", "upstream"], hide_short_help = true)]
    pub(super) echo: bool,
    /// Serves the card in a form for clients of 0.3 and 1.0. This is the default if both are served.
    #[arg(long, hide_short_help = true)]
    card_compat: bool,
    /// Adds the causes of failed turns to status messages, on loopback addresses only.
    #[arg(long)]
    pub(super) dev: bool,
    /// Prints no startup message, and logs only warnings.
    #[arg(long)]
    pub(super) quiet: bool,
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    let address = if text == "localhost" { "127.0.0.1" } else { text.trim_matches(['[', ']']) };
    address.parse().map_err(|_| "expected an IP address, or localhost".to_owned())
}

impl Serve {
    /// Returns the names and values of the flags of configuration keys, including those that the official ones stand for.
    pub(super) fn flags(&self) -> Vec<(String, String)> {
        let Official { host, port, quiet, .. } = &self.official;
        let mut flags = self.flags.0.clone();
        let mut add = |name: &str, value: String| flags.push((name.to_owned(), value));
        if host.is_some() || port.is_some() {
            let default = DEFAULT_LISTEN;
            let address = (host.unwrap_or(default.ip()), port.unwrap_or(default.port()));
            add("listen", SocketAddr::from(address).to_string());
        }
        if *quiet && !self.flags.0.iter().any(|(name, _)| name == "log-filter") {
            add("log-filter", "warn".to_owned());
        }
        flags
    }
}

/// Names and values of the flags that were given. [`config::load`](crate::cli::config::load) parses the values.
#[derive(Clone, Default)]
struct Flags(Vec<(String, String)>);

impl Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Config::default();
        command.args(KEYS.iter().map(|key| flag(key, &defaults)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Returns the flag of a key.
fn flag(key: &Setting, defaults: &Config) -> Arg {
    let name = key.flag();
    let default = (key.show)(defaults).map(|value| format!("default: {}", value.trim_matches('"')));
    let bracketed =
        |notes: &[String]| if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join(", ")) };
    // Up to the first detail, so that a flag is one line of the short help.
    let first = [". ", ": ", "; ", ", "].into_iter().filter_map(|end| Some(key.description.split_once(end)?.0));
    let first = first.min_by_key(|text| text.len()).unwrap_or(key.description).trim_end_matches('.');
    // Without the values that a flag has as if it did not exist.
    let shown: Vec<_> =
        default.iter().filter(|default| !default.ends_with(": false") && !default.ends_with("[]")).cloned().collect();
    let short = format!("{first}{}", bracketed(&shown));
    let notes: Vec<_> = default.iter().cloned().chain([format!("env: {}", key.variable())]).collect();
    let long = format!("{}{}", key.description, bracketed(&notes));
    let arg = Arg::new(name.clone()).long(name.clone()).help(short).long_help(long).action(ArgAction::Set);
    let arg = arg.help_heading(heading(key.table())).hide_short_help(COMMON.split(' ').all(|common| common != name));
    let choice = key.kind.contains('`').then(|| key.kind.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("|"));
    let arg = arg.value_name(choice.unwrap_or_else(|| key.kind.trim_start_matches("secret ").to_uppercase()));
    let arg = match key.value_without_argument {
        Some(value) => arg.num_args(0..=1).require_equals(true).default_missing_value(value),
        None => arg,
    };
    arg.visible_aliases(OFFICIAL.iter().filter(|(ours, _)| *ours == name).map(|(_, official)| *official))
}

/// Returns the heading of the flags of a table.
fn heading(table: &'static str) -> &'static str {
    match table {
        "" => "Server",
        "exec" | "http" | "openai" | "upstream" => "Agent (exec, http, openai, upstream)",
        "auth" | "auth.jwt" | "tls" => "Authentication and TLS (auth, auth.jwt, tls)",
        "turn" | "store" | "retention" | "push" => "Turns, store and notifications (turn, store, retention, push)",
        table => table,
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = KEYS.iter().map(Setting::flag);
        let value = |name: String| matches.get_one::<String>(&name).cloned().map(|value| (name, value));
        Ok(Self(names.filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Omits the values, because they may be secret.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_flags_of_keys() {
        let flags: Vec<_> = KEYS.iter().map(Setting::flag).collect();
        for name in COMMON.split(' ').chain(OFFICIAL.map(|(name, _)| name)) {
            assert!(flags.iter().any(|flag| flag == name), "{name}");
        }
    }

    #[test]
    fn short_help_has_at_most_45_lines() {
        let command = Serve::augment_args(clap::Command::new("serve"));
        let help = command.clone().render_help().to_string();
        assert!(help.lines().count() <= 45, "{}\n{help}", help.lines().count());
        let long = command.clone().render_long_help().to_string();
        assert!(COMMON.split(' ').all(|name| help.contains(&format!("--{name}"))));
        assert!(KEYS.iter().all(|key| long.contains(&format!("--{}", key.flag()))));
    }
}
