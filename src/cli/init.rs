//! `a2a init`: writes a configuration file to begin with, and a script that is an agent.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::{Usage, say};

/// Kinds of agents that need no code.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// A script in Python, which is written too.
    Python,
    /// A script in JavaScript for Node.js, which is written too.
    Node,
    /// A shell script, which is written too.
    Shell,
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
    /// File to write, which must not exist. `-` prints it. A script is written to its directory, which is created.
    #[arg(long, value_name = "FILE", default_value = "a2a.toml")]
    file: PathBuf,
}

/// Writes the files. An existing one is never overwritten.
pub(super) fn run(arguments: &Init) -> anyhow::Result<()> {
    let Init { kind, file } = arguments;
    let script = script(*kind).map(|(name, content)| (file.with_file_name(name), content.to_owned()));
    let text = text(*kind, script.as_ref().map(|(path, _)| path.as_path()));
    if file == Path::new("-") {
        return Ok(say(&text)?);
    }
    let files: Vec<_> = [(file.clone(), text)].into_iter().chain(script).collect();
    // Before anything is written.
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        let name = file.file_name().unwrap_or_default().display();
        let why =
            format!("{}: the file exists; remove it, or write to another directory: --file new/{name}", path.display());
        return Err(Usage(why).into());
    }
    let directory = file.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    for (path, content) in &files {
        let context = || path.display().to_string();
        let mut created = fs::File::create_new(path).with_context(context)?;
        created.write_all(content.as_bytes()).with_context(context)?;
        #[cfg(unix)]
        if path != file {
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            created.set_permissions(executable).with_context(context)?;
        }
    }
    let names: Vec<_> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    let config = if file == Path::new("a2a.toml") { String::new() } else { format!(" --config {}", file.display()) };
    let written = names.join(" and ");
    let next = format!("edit, start the agent with `a2a serve{config}`, and talk to it:");
    Ok(say(&format!("written: {written}\n{next}\n  a2a chat 127.0.0.1:8080\n"))?)
}

/// Returns the name and the content of the script that a kind of agent is.
fn script(kind: Kind) -> Option<(&'static str, &'static str)> {
    match kind {
        Kind::Python => Some(("agent.py", include_str!("../../examples/agent.py"))),
        Kind::Node => Some(("agent.mjs", include_str!("../../examples/agent.mjs"))),
        Kind::Shell => Some(("agent.sh", include_str!("../../examples/agent.sh"))),
        Kind::Exec | Kind::Http | Kind::Openai | Kind::Upstream => None,
    }
}

/// Returns the content of the configuration file for a kind of agent, and for the path of its script.
fn text(kind: Kind, script: Option<&Path>) -> String {
    let (agent, has_card) = match kind {
        Kind::Exec | Kind::Python | Kind::Node | Kind::Shell => (include_str!("init/exec.toml"), true),
        Kind::Http => (include_str!("init/http.toml"), true),
        Kind::Openai => (include_str!("init/openai.toml"), true),
        // The card is that of the other agent.
        Kind::Upstream => (include_str!("init/upstream.toml"), false),
    };
    let agent = match script {
        Some(path) => {
            let path = Path::new(".").join(path).display().to_string();
            let command = format!("[{path:?}]");
            agent.replace("\"./agent.sh\"", &command).replace("# format = ", "format = ")
        }
        None => agent.to_owned(),
    };
    let card = if has_card { include_str!("init/card.toml") } else { "" };
    let parts = [include_str!("init/server.toml"), &agent, card];
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
            let text = text(*kind, script(*kind).map(|(name, _)| Path::new(name)));
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
