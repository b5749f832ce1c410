//! `a2a init`: writes a configuration file to begin with.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::{Usage, say};

/// Kinds of agents that need no code.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// A command.
    Exec,
    /// An HTTP endpoint.
    Http,
    /// A model with a chat completions API.
    Openai,
    /// Another A2A agent.
    Upstream,
}

#[derive(Debug, Args)]
pub(super) struct Init {
    /// Kind of the agent.
    #[arg(value_enum)]
    kind: Kind,
    /// File to write, which must not exist. `-` prints it.
    #[arg(long, value_name = "FILE", default_value = "a2a.toml")]
    file: PathBuf,
}

/// Writes the file. An existing one is never overwritten.
pub(super) fn run(arguments: &Init) -> anyhow::Result<()> {
    let Init { kind, file } = arguments;
    let text = text(*kind);
    if file == Path::new("-") {
        return Ok(say(&text)?);
    }
    let created = fs::OpenOptions::new().write(true).create_new(true).open(file);
    let mut created = match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let why = format!("{}: the file exists; remove it, or name another one with --file", file.display());
            return Err(Usage(why).into());
        }
        created => created.with_context(|| file.display().to_string())?,
    };
    created.write_all(text.as_bytes()).with_context(|| file.display().to_string())?;
    let config = if file == Path::new("a2a.toml") { String::new() } else { format!(" --config {}", file.display()) };
    say(&format!("{} is written; edit it, and start the agent with `a2a serve{config}`\n", file.display()))?;
    Ok(())
}

/// Returns the content of the file for a kind of agent.
fn text(kind: Kind) -> String {
    let (agent, has_card) = match kind {
        Kind::Exec => (include_str!("init/exec.toml"), true),
        Kind::Http => (include_str!("init/http.toml"), true),
        Kind::Openai => (include_str!("init/openai.toml"), true),
        // The card is that of the other agent.
        Kind::Upstream => (include_str!("init/upstream.toml"), false),
    };
    let card = if has_card { include_str!("init/card.toml") } else { "" };
    let parts = [include_str!("init/server.toml"), agent, card];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config;

    /// Removes the `# ` before a key or a table, but not before a sentence.
    fn uncommented(text: &str) -> String {
        let is_key =
            |line: &&str| line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        let lines = text.lines().map(|line| line.strip_prefix("# ").filter(is_key).unwrap_or(line));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn files_are_valid_also_with_all_keys() {
        let directory = tempfile::tempdir().unwrap();
        let card = directory.path().join("card.json");
        fs::write(&card, r#"{"name": "Geo"}"#).unwrap();
        for kind in Kind::value_variants() {
            let text = text(*kind);
            assert_ne!(text, uncommented(&text));
            for (name, text) in
                [("plain", text.clone()), ("all", uncommented(&text).replace("card.json", card.to_str().unwrap()))]
            {
                let file = directory.path().join(name);
                fs::write(&file, &text).unwrap();
                let loaded =
                    config::load(Some(&file), &[]).map_err(|error| format!("{kind:?}: {error}\n{text}")).unwrap();
                assert!(loaded.warnings.iter().all(|warning| !warning.contains(name)), "{:?}", loaded.warnings);
            }
        }
    }
}
