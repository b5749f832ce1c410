//! Configuration of several agents: the tables `[[agents]]`, whose keys override those of the server.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{Error, File, LoadedConfig, Loader, Origin};
use crate::{
    cli::config::{Config, KEYS, Scope, store_path::StorePath, value::Value as _},
    server::is_agent_name,
};

/// Name of the tables.
pub(super) const TABLE: &str = "agents";

/// Hint for a value that is not a list of such tables.
const FORM: &str = "write a table [[agents]] for each agent";

/// Maximum number of agents.
const MAX_AGENTS: usize = 100;

/// Keys that select the kind of an agent, without which it is the demo agent. They are not inherited from the server.
const KIND_KEYS: [&str; 4] = ["exec.command", "http.url", "openai.url", "upstream.url"];

/// Keys with credentials for a service, and of what may be sent to it, by the key with the URL of the service. Several agents do
/// not share them: each service gets only its own.
const CREDENTIALS: [(&str, &[&str]); 3] = [
    ("http.url", &["http.token", "http.secret"]),
    ("openai.url", &["openai.key", "openai.mcp"]),
    ("upstream.url", &["upstream.token", "upstream.forward"]),
];

/// Agent of a server with several.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    /// Name in paths and in the catalog.
    pub(crate) name: String,
    /// Scopes that callers need.
    pub(crate) scopes: Vec<String>,
    /// Configuration of the server, with the keys of the agent.
    pub(crate) config: Config,
    /// Origins of the values in the order of [`KEYS`]. The default for those of the server.
    pub(super) origins: Vec<Origin>,
}

impl Loader {
    /// Reads the tables of agents, after all other sources. Errors are added to the others.
    pub(super) fn read_agents(&mut self, path: &Path, text: &str) -> Vec<AgentConfig> {
        let Ok(document) = DeTable::parse(text) else { return Vec::new() };
        let Some((member, value)) = document.get_ref().iter().find(|(name, _)| name.get_ref() == TABLE) else {
            return Vec::new();
        };
        let file = File { path, text };
        let at = |offset: usize| format!("{}:{}", path.display(), file.line(offset));
        let tables = match value.get_ref().as_array() {
            Some(tables) if tables.len() <= MAX_AGENTS => tables,
            tables => {
                let of_count = |count: usize| format!("{count} agents exceed the limit of {MAX_AGENTS}");
                let why = tables.map_or_else(|| FORM.to_owned(), |tables| of_count(tables.len()));
                self.errors.push(format!("{}: {TABLE}: {why}", at(member.span().start)));
                return Vec::new();
            }
        };
        for (key, origin) in KEYS.iter().zip(&self.origins) {
            if KIND_KEYS.contains(&key.name) && *origin != Origin::Default {
                let why = format!("not allowed together with [[{TABLE}]]; move it into one of the tables");
                self.errors.push(format!("{}: {why}", origin.subject(key)));
            }
        }
        let mut agents: Vec<AgentConfig> = Vec::new();
        for table in tables {
            let at = at(table.span().start);
            let Some(table) = table.get_ref().as_table() else {
                self.errors.push(format!("{at}: {TABLE}: {FORM}"));
                continue;
            };
            if let Some(agent) = self.read_agent(&file, &at, table) {
                if agents.iter().any(|known| known.name == agent.name) {
                    self.errors.push(format!("{at}: {TABLE}: there are two agents with the name `{}`", agent.name));
                }
                agents.push(agent);
            }
        }
        self.reject_shared_credentials(&agents);
        agents
    }

    /// Rejects credentials of the server that several agents would send to different services.
    fn reject_shared_credentials(&mut self, agents: &[AgentConfig]) {
        for (url, keys) in CREDENTIALS {
            let users = || agents.iter().filter(|agent| is_set(&agent.origins, url));
            for name in keys {
                let count = users().filter(|agent| !is_set(&agent.origins, name)).count();
                if count > 0 && users().count() > 1 && is_set(&self.origins, name) {
                    let why = "several agents would use it, for different services; set it in their tables";
                    self.errors.push(format!("{name}: {why}"));
                }
            }
        }
    }

    /// Returns the first segment of the path of `public_url`, at which an agent would not be found.
    fn reserved_name(&self) -> Option<String> {
        let url: http::Uri = self.config.public_url.as_ref()?.0.parse().ok()?;
        let name = url.path().trim_matches('/').split('/').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Reads the table of an agent.
    fn read_agent(&mut self, file: &File<'_>, at: &str, table: &DeTable<'_>) -> Option<AgentConfig> {
        let mut layers = Self { config: self.config.clone(), ..Self::default() };
        let Config { exec, http, openai, upstream, .. } = &mut layers.config;
        (exec.command, http.url, openai.url, upstream.url) = (None, None, None, None);
        let (mut name, mut scopes) = (None, Vec::new());
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|(member, _)| member.span().start);
        for (member, value) in members {
            match (&**member.get_ref(), value.get_ref()) {
                ("name", DeValue::String(text)) => name = Some(text.clone().into_owned()),
                ("scopes", _) => match <Vec<String>>::from_toml(value) {
                    Ok(names) if names.iter().all(|name| is_scope(name)) => scopes = names,
                    Ok(_) | Err(_) => {
                        let why = "write names without spaces and quotes, such as [\"agent:geo\"]";
                        layers.errors.push(format!("{at}: {TABLE}: scopes: {why}"));
                    }
                },
                _ => layers.apply_member(file, "", member, value),
            }
        }
        let server_keys = KEYS
            .iter()
            .zip(&layers.origins)
            .filter(|(key, origin)| **origin != Origin::Default && key.scope == Scope::Server);
        for (key, origin) in server_keys {
            let why = format!("applies to the whole server; move it above the first [[{TABLE}]]");
            layers.errors.push(format!("{}: {why}", origin.subject(key)));
        }
        let name = name.unwrap_or_default();
        if name.is_empty() {
            layers.errors.push(format!("{at}: {TABLE}: name: is missing or empty; it is the path of the agent"));
        } else if !is_agent_name(&name) {
            let rule = "1 to 64 lower-case letters, digits, `-` or `_`, beginning with a letter or digit";
            let why = format!("is not a name of an agent; write {rule}, and no path of the server such as `tasks`");
            layers.errors.push(format!("{at}: {TABLE}: name: `{name}` {why}"));
        } else if self.reserved_name().as_deref() == Some(&name) {
            let why = "is in public_url; write another name";
            layers.errors.push(format!("{at}: {TABLE}: name: `{name}` {why}"));
        }
        if !is_set(&layers.origins, "store.path") {
            layers.config.store.path = match &layers.config.store.path {
                StorePath::Memory => StorePath::Memory,
                StorePath::Sqlite(path) => StorePath::Sqlite(agent_store(path, &name)),
                StorePath::Postgres(url) => StorePath::Postgres(url.of_agent(&name)),
            };
        }
        let Self { config, origins, errors, warnings, .. } = layers;
        let is_valid = errors.is_empty();
        self.errors.extend(errors);
        self.warnings.extend(warnings);
        is_valid.then_some(AgentConfig { name, scopes, config, origins })
    }
}

impl LoadedConfig {
    /// Rejects keys for a kind of agent if no key selects a kind: the demo agent would be served. Credentials in variables may be
    /// for other programs.
    ///
    /// # Errors
    /// There is such a key.
    pub(crate) fn check_kinds(&self) -> Result<(), Error> {
        let unused = match &*self.agents {
            [] => keys_without_kind(&self.origins),
            agents => agents.iter().find_map(|agent| keys_without_kind(&agent.origins)),
        };
        unused.map_or(Ok(()), |why| Err(Error::new(why)))
    }
}

/// Describes a key for a kind of agent if no key selects a kind.
fn keys_without_kind(origins: &[Origin]) -> Option<String> {
    if KIND_KEYS.iter().any(|name| is_set(origins, name)) {
        return None;
    }
    KEYS.iter().zip(origins).find_map(|(key, origin)| {
        let (table, _) = key.name.split_once('.')?;
        let kind = KIND_KEYS.iter().find(|kind| kind.split('.').next() == Some(table))?;
        let is_credential = CREDENTIALS.iter().any(|(_, keys)| keys.contains(&key.name));
        let is_unused = match origin {
            Origin::Default => false,
            Origin::Variable(_) => !is_credential,
            Origin::File(..) | Origin::Flag(_) => true,
        };
        is_unused.then(|| format!("{}: needs {kind}, which is not set", origin.subject(key)))
    })
}

/// Returns true if a source has set the key with a name.
fn is_set(origins: &[Origin], name: &str) -> bool {
    KEYS.iter().zip(origins).any(|(key, origin)| key.name == name && *origin != Origin::Default)
}

/// Returns true for a scope (RFC 6749, 3.3).
fn is_scope(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

/// Returns the file of the store of an agent: `a2a.geo.db` for `a2a.db`.
fn agent_store(path: &Path, name: &str) -> PathBuf {
    match (path.file_stem(), path.extension()) {
        (Some(stem), Some(extension)) => {
            let [stem, extension] = [stem, extension].map(|part| part.to_string_lossy());
            path.with_file_name(format!("{stem}.{name}.{extension}"))
        }
        _ => path.with_file_name(format!("{}.{name}", path.file_name().unwrap_or_default().to_string_lossy())),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::load_from, *};

    /// Returns the agents in the text of a file, with flags.
    fn load(text: &str, flags: &[(&str, &str)]) -> Result<Vec<AgentConfig>, String> {
        load_from(text, &[], flags).map(|loaded| loaded.agents)
    }

    #[test]
    fn agents_override_the_keys_of_the_server() {
        let text = "store = 'sqlite:data/a2a.db'\nlimits.streams = 7\nturn.deadline = '1m'\n\n\
                    [[agents]]\nname = 'a'\nexec = 'cat'\n[agents.limits]\nstreams = 3\n\n\
                    [[agents]]\nname = 'b'\nscopes = ['agent:b', 'geo']\nstore = 'memory'\n\n\
                    [[agents]]\nname = 'c'\nscopes = 'agent:c'";
        let agents = load(text, &[("turn-deadline", "2m")]).unwrap();
        let [a, b, c] = &*agents else { panic!("{agents:?}") };
        assert_eq!((&*a.name, a.config.limits().streams, a.config.limits().turn_deadline.as_secs()), ("a", 3, 120));
        assert_eq!(a.config.store.path, StorePath::Sqlite("data/a2a.a.db".into()));
        assert!(a.config.exec.command.is_some() && a.scopes.is_empty());
        assert_eq!((&*b.name, b.config.limits().streams, &b.config.store.path), ("b", 7, &StorePath::Memory));
        assert_eq!(
            (&*b.scopes, &*c.scopes),
            (&["agent:b".to_owned(), "geo".to_owned()][..], &["agent:c".to_owned()][..])
        );
        assert!(load("", &[]).unwrap().is_empty());
        assert_eq!(agent_store(Path::new("tasks"), "a"), Path::new("tasks.a"));
    }

    #[test]
    fn errors_name_the_line_of_the_agent() {
        for (text, expected) in [
            ("agents = 1", "a2a.toml:1: agents: write a table [[agents]] for each agent"),
            ("agents = [1]", "a2a.toml:1: agents: write a table [[agents]] for each agent"),
            ("[[agents]]", "a2a.toml:1: agents: name: is missing or empty"),
            ("[[agents]]\nname = ''", "a2a.toml:1: agents: name: is missing or empty"),
            ("[[agents]]\nname = 'A B'", "a2a.toml:1: agents: name: `A B` is not a name of an agent"),
            ("[[agents]]\nname = 'a'\nscopes = {}", "a2a.toml:1: agents: scopes: write names"),
            ("[[agents]]\nname = 'a'\nscopes = ['b c']", "a2a.toml:1: agents: scopes: write names"),
            ("public_url = 'http://x/a/b'\n[[agents]]\nname = 'a'", "a2a.toml:2: agents: name: `a` is in public_url"),
            ("[[agents]]\nname = 'a'\nexce = 'b'", "a2a.toml:3: unknown key `exce`; did you mean"),
            ("[[agents]]\nname = 'a'\nlisten = '8080'", "a2a.toml:3: listen: applies to the whole server"),
            ("[[agents]]\nname = 'a'\nlimits.connections = 1", "a2a.toml:3: limits.connections: applies to the whole"),
            ("[[agents]]\nname = 'a'\nlimits.memory = 1", "a2a.toml:3: limits.memory: applies to the whole"),
            ("[[agents]]\nname = 'a'\nlimits.streams = 'x'", "a2a.toml:3: limits.streams: "),
            ("exec = 'cat'\n[[agents]]\nname = 'a'", "a2a.toml:1: exec.command: not allowed together with [[agents]]"),
            (
                "[[agents]]\nname = 'a'\n[[agents]]\nname = 'a'",
                "a2a.toml:3: agents: there are two agents with the name `a`",
            ),
        ] {
            let error = load(text, &[]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let two = "upstream.token = 's'\n[[agents]]\nname = 'a'\nupstream = 'http://a'\n\
                   [[agents]]\nname = 'b'\nupstream = 'http://b'";
        let error = load(two, &[]).unwrap_err();
        assert_eq!(
            error,
            "upstream.token: several agents would use it, for different services; set it in their tables"
        );
        let one = "upstream.token = 's'\n[[agents]]\nname = 'a'\nupstream = 'http://a'\n[[agents]]\nname = 'b'";
        assert!(load(one, &[]).unwrap()[0].config.upstream.token.is_some());
        let many = (0..=MAX_AGENTS).map(|n| format!("[[agents]]\nname = 'a{n}'")).collect::<Vec<_>>().join("\n");
        assert!(load(&many, &[]).unwrap_err().contains("101 agents exceed the limit of 100"));
        let error = load("[[agents]]\nname = 'a'", &[("exec", "cat")]).unwrap_err();
        assert!(error.starts_with("--exec: not allowed together with [[agents]]"), "{error}");
    }

    #[test]
    fn keys_for_a_kind_need_the_key_that_selects_it() {
        let check = |text: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]| {
            let loaded = load_from(text, variables, flags).unwrap();
            loaded.check_kinds().map_err(|error| error.to_string())
        };
        for (text, expected) in [
            ("[[agents]]\nname = 'a'\nopenai.ask = true", "a2a.toml:3: openai.ask: needs openai.url, which is not set"),
            ("exec.memory = '1MiB'", "a2a.toml:1: exec.memory: needs exec.command, which is not set"),
        ] {
            assert_eq!(check(text, &[], &[]).unwrap_err(), expected);
        }
        let error = check("", &[], &[("openai-model", "tiny")]).unwrap_err();
        assert_eq!(error, "--openai-model: needs openai.url, which is not set");
        let error = check("", &[("A2A_OPENAI_MODEL", "tiny")], &[]).unwrap_err();
        assert_eq!(error, "A2A_OPENAI_MODEL: needs openai.url, which is not set");
        assert!(check("", &[("A2A_OPENAI_KEY", "secret")], &[]).is_ok());
        // A default for all agents, and keys of another kind.
        assert!(check("exec.memory = '1MiB'\n[[agents]]\nname = 'a'\nexec = 'cat'", &[], &[]).is_ok());
        assert!(check("exec.memory = '1MiB'\nhttp = 'http://a'", &[], &[]).is_ok());
    }
}
