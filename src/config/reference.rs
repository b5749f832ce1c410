//! The keys and their values, for people to read.

use std::fmt::Write as _;

use super::{Config, KEYS, Loaded};

const HEAD: &str = "\
# Configuration

This is what `a2a config reference` prints.

`a2a serve` reads `a2a.toml` in its directory, if it is there, or the file that `--config` or `A2A_CONFIG` names. What a file
says is overridden by variables of the environment, and those by flags. `a2a serve --print-config` shows the result, and
where each value came from. An unknown key and a value that can't be read are errors. An unknown
variable with the prefix `A2A_` is a warning: other programs may use the prefix too.

A name with a dot is a key in a table: `turn.deadline` is `deadline` in `[turn]`, `A2A_TURN_DEADLINE` and `--turn-deadline`.
A duration is a number with a unit, such as `500ms`, `10s`, `5m` or `1h`. A size is a number of bytes, or has a unit: `64KiB`,
`1MiB`. A variable that is empty is not set, unless it is a secret: then it is an error.
";

/// Every key, with its default and what it is for. In Markdown, which can be read as it is.
pub(crate) fn reference() -> String {
    let defaults = Config::default();
    let mut text = HEAD.to_owned();
    for key in KEYS {
        let default = key.show(&defaults).map_or_else(|| "not set".to_owned(), |it| format!("`{it}`"));
        let (name, kind, sentence) = (key.name, key.kind, key.sentence);
        let (variable, flag) = (key.variable(), key.flag());
        // Writing to memory does not fail.
        _ = write!(text, "\n## `{name}`\n\n{sentence}\n\n- {kind}; default: {default}\n- `{variable}`, `--{flag}`\n");
        for it in key.short {
            _ = writeln!(text, "- `{it} = {default}` says this alone", default = default.trim_matches('`'));
        }
    }
    text
}

impl Loaded {
    /// Every value, as it would stand in a file, and where it came from.
    pub(crate) fn print(&self) -> String {
        let line = |name: &str, value: Option<String>| match value {
            Some(value) => format!("{name} = {value}"),
            None => format!("# {name} ="),
        };
        // What stands in no table has to come first.
        let mut tables = vec![""];
        for (of, _) in KEYS.iter().map(|it| table(it.name)) {
            if !tables.contains(&of) {
                tables.push(of);
            }
        }
        let mut text = String::new();
        for of in tables {
            if !of.is_empty() {
                _ = write!(text, "\n[{of}]\n");
            }
            for (key, origin) in self.origins().filter(|it| table(it.0.name).0 == of) {
                let line = line(table(key.name).1, key.show(&self.config));
                _ = writeln!(text, "{line:<40} # {origin}");
            }
        }
        text
    }
}

/// The table that a key stands in, and its name there.
fn table(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}
