//! Configuration reference in Markdown, and the output of `a2a serve --print-config`.

use std::fmt::Write as _;

use super::{Config, KEYS, Loaded};

const HEAD: &str = "\
# Configuration

Output of `a2a config reference`.

`a2a serve` reads the file that `--config` or `A2A_CONFIG` names, or else `a2a.toml` in the working directory if it exists.
Environment variables override the file, and flags override both. `a2a serve --print-config` prints the result with the
origin of each value. Unknown keys and invalid values are errors. Unknown variables with the prefix `A2A_` are warnings,
because other programs may use the prefix too.

A name with a dot is a key in a table: `turn.deadline` is `deadline` in `[turn]`, `A2A_TURN_DEADLINE` and `--turn-deadline`.
Former names of keys, variables and flags are accepted with a warning. A name and its former name together are an error.

A duration is a number with a unit, such as `500ms`, `10s`, `5m` or `1h`. A size is a number of bytes, optionally with a unit:
`64KiB`, `1MiB`. An empty variable counts as not set; for a secret, it is an error.
";

/// Returns the reference of all keys with their types, defaults and descriptions, in Markdown.
pub(crate) fn reference() -> String {
    let defaults = Config::default();
    let mut text = HEAD.to_owned();
    for key in KEYS {
        let default = key.show(&defaults).map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
        let (name, kind, description) = (key.name, key.kind, key.description);
        let (variable, flag) = (key.variable(), key.flag());
        // Writing to memory does not fail.
        _ = write!(
            text,
            "\n## `{name}`\n\n{description}\n\n- {kind}; default: {default}\n- `{variable}`, `--{flag}`\n"
        );
        for short in key.short {
            _ = writeln!(text, "- shorthand: `{short} = {default}`", default = default.trim_matches('`'));
        }
        for former in key.former {
            _ = writeln!(text, "- formerly `{former}`");
        }
    }
    text
}

impl Loaded {
    /// Formats all values as a configuration file, with their origins as comments.
    pub(crate) fn print(&self) -> String {
        let line = |name: &str, value: Option<String>| match value {
            Some(value) => format!("{name} = {value}"),
            None => format!("# {name} ="),
        };
        // Keys outside of tables have to come first in TOML.
        let mut tables = vec![""];
        for (table, _) in KEYS.iter().map(|key| split_name(key.name)) {
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
        let mut text = String::new();
        for table in tables {
            if !table.is_empty() {
                _ = write!(text, "\n[{table}]\n");
            }
            for (key, origin) in self.origins().filter(|(key, _)| split_name(key.name).0 == table) {
                let line = line(split_name(key.name).1, key.show(&self.config));
                _ = writeln!(text, "{line:<40} # {origin}");
            }
        }
        text
    }
}

/// Splits the name of a key into its table and its name there.
fn split_name(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}
