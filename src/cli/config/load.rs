//! Loading of the configuration from the file, the environment and the flags, with the origin of each value and error.

use std::{
    env, fmt,
    fmt::Write as _,
    fs, io, mem,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use self::{
    agents::{AgentConfig, TABLE},
    environment::{CONFIG_VARIABLE, RUST_LOG},
};
use super::{Config, KEYS, RawValue, Setting};

pub(super) mod agents;
pub(super) mod environment;

/// Default configuration file, read if it exists.
const DEFAULT_FILE: &str = "a2a.toml";

/// Configuration errors, one line each, with the origin of the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\nerror: "))]
pub(crate) struct Error(Vec<String>);

impl Error {
    /// Creates an error with one line.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(vec![text.into()])
    }
}

/// Origin of a configured value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    #[default]
    Default,
    /// File and line, counted from 1.
    File(PathBuf, usize),
    /// Name of the environment variable.
    Variable(String),
    /// Name of the flag, without its leading dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "{name}"),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

impl Origin {
    /// Names a key at this origin, for the beginning of a message. A variable or flag names its key already.
    fn subject(&self, key: &Setting) -> String {
        match self {
            Self::File(..) => format!("{self}: {}", key.name),
            Self::Default | Self::Variable(_) | Self::Flag(_) => self.to_string(),
        }
    }
}

/// Loaded configuration with the origin of each value.
#[derive(Debug)]
pub(crate) struct LoadedConfig {
    pub(crate) config: Config,
    /// Warnings about unknown environment variables, one line each.
    pub(crate) warnings: Vec<String>,
    /// Agents of a server with several. The first one is at the root.
    pub(crate) agents: Vec<AgentConfig>,
    /// Configuration file that was read.
    pub(crate) file: Option<PathBuf>,
    /// In the order of [`KEYS`].
    origins: Vec<Origin>,
}

impl LoadedConfig {
    /// Iterates over all keys with the origins of their values.
    pub(crate) fn origins(&self) -> impl Iterator<Item = (&'static Setting, &Origin)> {
        KEYS.iter().zip(&self.origins)
    }

    /// Returns the origin of the value of a key.
    pub(crate) fn origin(&self, name: &str) -> &Origin {
        self.origins().find(|(key, _)| key.name == name).map_or(&Origin::Default, |(_, origin)| origin)
    }

    /// Formats all values as a configuration file, with their origins as comments.
    pub(crate) fn print(&self) -> String {
        let line = |name: &str, value: Option<String>| match value {
            Some(value) => format!("{name} = {value}"),
            None => format!("# {name} ="),
        };
        // The first ones are outside of tables, as TOML demands.
        let (keys, mut text) = (self.origins().collect::<Vec<_>>(), String::new());
        for keys in keys.chunk_by(|(a, _), (b, _)| a.table() == b.table()) {
            let table = keys[0].0.table();
            if !table.is_empty() {
                _ = write!(text, "\n[{table}]\n");
            }
            for (key, origin) in keys {
                let line = line(key.name.rsplit('.').next().unwrap_or_default(), (key.show)(&self.config));
                _ = writeln!(text, "{line:<40} # {origin}");
            }
        }
        for AgentConfig { name, scopes, config, origins } in &self.agents {
            _ = write!(text, "\n[[{TABLE}]]\nname = {name:?}\n");
            if !scopes.is_empty() {
                _ = writeln!(text, "scopes = {scopes:?}");
            }
            for (key, origin) in KEYS.iter().zip(origins).filter(|(_, origin)| **origin != Origin::Default) {
                let line = line(key.name, (key.show)(config));
                _ = writeln!(text, "{line:<40} # {origin}");
            }
        }
        text
    }
}

/// Loads the configuration from the file, the environment of this process, and the flags.
///
/// Without `file`, `A2A_CONFIG` names the file; without both, `a2a.toml` is read if it exists.
///
/// # Errors
/// All errors of all sources, together with the warnings.
pub(crate) fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<LoadedConfig, Error> {
    let mut layers = Loader::default();
    let variables = layers.variables(env::vars_os());
    let configured = variables.iter().find(|(name, _)| name == CONFIG_VARIABLE).map(|(_, path)| Path::new(path));
    let file = layers.read_file(file.or(configured));
    if let Some((path, text)) = &file {
        layers.apply_file(path, text);
    }
    layers.apply_environment(&variables);
    layers.apply_flags(flags);
    let agents = file.map(|(path, text)| layers.read_agents(&path, &text)).unwrap_or_default();
    layers.finish(agents)
}

defaults! {
    /// Configuration that is being loaded, one source after the other. A later source overrides an earlier one.
    struct Loader {
        config: Config,
        file: Option<PathBuf>,
        origins: Vec<Origin> = vec![Origin::Default; KEYS.len()],
        errors: Vec<String>,
        warnings: Vec<String>,
        /// `OTEL_SDK_DISABLED` is true.
        is_telemetry_disabled: bool,
    }
}

impl Loader {
    fn finish(self, agents: Vec<AgentConfig>) -> Result<LoadedConfig, Error> {
        let Self { mut config, file, origins, mut errors, warnings, is_telemetry_disabled } = self;
        config.otlp.endpoint = config.otlp.endpoint.filter(|_| !is_telemetry_disabled);
        if errors.is_empty() {
            return Ok(LoadedConfig { config, warnings, agents, file, origins });
        }
        // A warning may explain an error: a misspelled variable leaves a value unset.
        errors.extend(warnings);
        Err(Error(errors))
    }

    fn set(&mut self, key: &'static Setting, value: RawValue<'_, '_>, origin: Origin) {
        let mut origins = KEYS.iter().zip(&mut self.origins).filter(|(known, _)| known.name == key.name);
        let Some((_, previous)) = origins.next() else { return };
        let is_same_source = mem::discriminant(previous) == mem::discriminant(&origin);
        let is_default = matches!(previous, Origin::Variable(name) if name == RUST_LOG || name.starts_with("OTEL_"));
        if is_same_source && !is_default {
            self.errors.push(format!("{}: {previous} sets the same key; remove one of them", origin.subject(key)));
            return;
        }
        match (key.read)(&mut self.config, value) {
            Ok(()) => *previous = origin,
            Err(error) => self.errors.push(format!("{}: {error}", origin.subject(key))),
        }
    }

    /// Reads the configured file, which must exist, or the default one, which may be missing.
    fn read_file(&mut self, configured: Option<&Path>) -> Option<(PathBuf, String)> {
        let path = configured.unwrap_or(Path::new(DEFAULT_FILE));
        match fs::read_to_string(path) {
            Ok(text) => Some((path.to_owned(), text)),
            Err(error) if configured.is_none() && error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.errors.push(format!("{}: {error}", path.display()));
                None
            }
        }
    }

    fn apply_file(&mut self, path: &Path, text: &str) {
        self.file = Some(path.to_owned());
        let file = File { path, text };
        match DeTable::parse(text) {
            Ok(table) => self.apply_table(&file, "", table.get_ref()),
            Err(error) => {
                let line = file.line(error.span().map_or(0, |span| span.start));
                self.errors.push(format!("{}:{line}: {}", path.display(), error.message()));
            }
        }
    }

    fn apply_table(&mut self, file: &File<'_>, prefix: &str, table: &DeTable<'_>) {
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|(member, _)| member.span().start);
        for (member, value) in members {
            // Agents are read after all other sources.
            if !(prefix.is_empty() && member.get_ref() == TABLE) {
                self.apply_member(file, prefix, member, value);
            }
        }
    }

    /// Applies a key, or a table of keys.
    fn apply_member(
        &mut self,
        file: &File<'_>,
        prefix: &str,
        member: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let name = format!("{prefix}{}", member.get_ref());
        let origin = Origin::File(file.path.to_owned(), file.line(member.span().start));
        let is_shorthand = |key: &Setting| key.short == Some(&name) && value.get_ref().as_table().is_none();
        let is_name = |key: &Setting| key.name == name || is_shorthand(key);
        if let Some(key) = KEYS.iter().find(|key| is_name(key)) {
            self.set(key, RawValue::Toml(value), origin);
            return;
        }
        let inner = format!("{name}.");
        let is_known_table = KEYS.iter().any(|key| key.name.starts_with(&inner));
        match (is_known_table, value.get_ref()) {
            (true, DeValue::Table(table)) => self.apply_table(file, &inner, table),
            (true, other) => self.errors.push(format!("{origin}: {name}: {} is not a table of keys", other.type_str())),
            (false, _) => self.unknown_key(&origin, &name, value),
        }
    }

    fn unknown_key(&mut self, origin: &Origin, name: &str, value: &Spanned<DeValue<'_>>) {
        // For an unknown table, its first key finds the best suggestion.
        let first = value.get_ref().as_table().and_then(|table| table.keys().next());
        let sought = first.map_or_else(|| name.to_owned(), |first| format!("{name}.{}", first.get_ref()));
        let nearest = nearest(&sought, KEYS.iter().map(|key| key.name).chain([TABLE]));
        self.errors.push(format!("{origin}: unknown key `{name}`; did you mean `{nearest}`?"));
    }

    fn apply_flags(&mut self, flags: &[(String, String)]) {
        for (name, value) in flags {
            match KEYS.iter().find(|key| key.flag() == *name) {
                Some(key) => self.set(key, RawValue::Text(value), Origin::Flag(name.clone())),
                None => self.errors.push(format!("--{name}: unknown flag")),
            }
        }
    }
}

/// Returns the known name with the smallest edit distance, to the whole name or to its last segment.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    let distance = |known: &str| {
        let last = known.rsplit('.').next().unwrap_or(known);
        strsim::damerau_levenshtein(name, known).min(strsim::damerau_levenshtein(name, last) + 1)
    };
    known.min_by_key(|known| distance(known)).unwrap_or_default()
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    /// Returns the line of a byte offset, counted from 1.
    fn line(&self, offset: usize) -> usize {
        let before = self.text.get(..offset).unwrap_or(self.text);
        1 + before.matches('\n').count()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::OfferedExtension, *};
    use crate::service::Limits;

    /// Loads a configuration from the text of a file, variables and flags.
    pub(in crate::cli::config) fn load_from(
        text: &str,
        variables: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> Result<LoadedConfig, String> {
        let mut layers = Loader::default();
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let variables = layers.variables(variables.collect::<Vec<_>>().into_iter());
        layers.apply_file(Path::new("a2a.toml"), text);
        layers.apply_environment(&variables);
        layers.apply_flags(&flags.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>());
        let agents = layers.read_agents(Path::new("a2a.toml"), text);
        layers.finish(agents).map_err(|error| error.0.join("\n"))
    }

    pub(in crate::cli::config) fn origin(loaded: &LoadedConfig, name: &str) -> String {
        loaded.origin(name).to_string()
    }

    #[test]
    fn flags_override_variables_and_variables_override_the_file() {
        let file = "send_timeout = '1s'\nlimits.connections = 7\nidle_timeout = '1s'\n\n[turn]\ndeadline = '2s'\n\
                    [card]\nname = 'A'";
        let variables =
            [("A2A_SEND_TIMEOUT", "3s"), ("A2A_IDLE_TIMEOUT", "3s"), ("A2A_OPENAI_MODEL", ""), ("PATH", "x")];
        let loaded = load_from(file, &variables, &[("send-timeout", "4s")]).unwrap();
        let config = &loaded.config;
        let Limits { send_timeout, turn_deadline, .. } = config.limits();
        let seconds = [send_timeout.unwrap_or_default(), config.connections.idle_timeout, turn_deadline]
            .map(|time| time.as_secs());
        assert_eq!((seconds, config.connections.count, config.card.name.as_deref()), ([4, 3, 2], 7, Some("A")));
        assert_eq!(config.openai.model, None, "an empty variable is unset");
        let names = ["send_timeout", "idle_timeout", "turn.deadline", "limits.body_bytes"];
        let origins = names.map(|name| origin(&loaded, name));
        assert_eq!(origins, ["--send-timeout", "A2A_IDLE_TIMEOUT", "a2a.toml:6", "default"]);
    }

    #[test]
    fn shorthand_sets_the_key_in_its_table() {
        for (text, expected) in [
            ("exec = 'cat'", "a2a.toml:1"),
            ("[exec]\ncommand = 'cat'", "a2a.toml:2"),
            ("exec.command = ['cat']", "a2a.toml:1"),
        ] {
            let loaded = load_from(text, &[], &[]).unwrap();
            assert_eq!(origin(&loaded, "exec.command"), expected);
        }
        let loaded = load_from("[exec]\nmemory = '1MiB'", &[("A2A_EXEC", "cat")], &[]).unwrap();
        assert_eq!((&*origin(&loaded, "exec.command"), &*origin(&loaded, "exec.memory")), ("A2A_EXEC", "a2a.toml:2"));
        let loaded = load_from("", &[("A2A_EXEC_MEMORY", "1MiB")], &[("exec", "cat")]).unwrap();
        assert_eq!(
            (&*origin(&loaded, "exec.command"), &*origin(&loaded, "exec.memory")),
            ("--exec", "A2A_EXEC_MEMORY")
        );
    }

    #[test]
    fn lists_with_one_item_may_be_the_item() {
        let text = "listen = 8081\nauth.jwt.audience = 'a2a'\nprotocols = '1.0'\nextensions = 'resume'";
        let config = load_from(text, &[], &[]).unwrap().config;
        assert_eq!((config.listen.0.len(), config.listen.0[0].port()), (1, 8081));
        assert_eq!(
            (config.auth.jwt.audience, config.protocols.to_string()),
            (vec!["a2a".to_owned()], "1.0".to_owned())
        );
        assert_eq!(config.extensions, [OfferedExtension::Resume]);
        let error = load_from("listen = []", &[], &[]).unwrap_err();
        assert_eq!(error, "a2a.toml:1: listen: the list is empty; write one address or several");
    }

    #[test]
    fn errors_name_the_origin_and_suggest_the_nearest_key() {
        for (text, expected) in [
            ("\n\nlistten = 'x'", "a2a.toml:3: unknown key `listten`; did you mean `listen`?"),
            ("[card]\nnmae = 'x'", "a2a.toml:2: unknown key `card.nmae`; did you mean `card.name`?"),
            ("[crad]\nname = 'x'", "a2a.toml:1: unknown key `crad`; did you mean `card.name`?"),
            ("[[agnets]]\nid = 'x'", "a2a.toml:1: unknown key `agnets`; did you mean `agents`?"),
            ("name = 'x'", "a2a.toml:1: unknown key `name`; did you mean `card.name`?"),
            ("turn = 3", "a2a.toml:1: turn: integer is not a table of keys"),
            ("durability = 'power'", "a2a.toml:1: unknown key `durability`; did you mean `store.durability`?"),
            ("send.timeout = '1s'", "a2a.toml:1: unknown key `send`; did you mean `send_timeout`?"),
            ("idempotency = 'off'", "a2a.toml:1: idempotency: `off` is not `header` or `message_id`"),
            ("[exec]\nname = 'cat'", "a2a.toml:2: unknown key `exec.name`; did you mean `exec.env`?"),
            ("[listen]\nx = 1", "a2a.toml:1: listen: table instead of address"),
            ("send_timeout = 10", "a2a.toml:1: send_timeout: `10` is not a duration; write 500ms, 10s, 5m or 1h"),
            ("card.name = 10", "a2a.toml:1: card.name: integer is not text; put it in quotes"),
            ("log = 'xml'", "a2a.toml:1: log.format: `xml` is not `auto`, `text` or `json`"),
        ] {
            assert_eq!(load_from(text, &[], &[]).unwrap_err(), expected, "{text}");
        }
        assert!(load_from("docs = true\ndocs = false", &[], &[]).unwrap_err().starts_with("a2a.toml:2: duplicate key"));
        let error = load_from("a = [", &[], &[]).unwrap_err();
        assert!(error.starts_with("a2a.toml:1: "), "{error}");
        for (name, value, expected) in [
            ("A2A_INSECURE", "yes", "A2A_INSECURE: `yes` is not a boolean; write `true` or `false`"),
            ("A2A_TOKEN", "", "A2A_TOKEN: "),
            ("RUST_LOG", "a=b=c", "RUST_LOG: `a=b=c` is not a log filter; write levels such as warn,a2a_service=debug"),
        ] {
            let error = load_from("", &[(name, value)], &[]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = load_from("", &[], &[("limits-body-bytes", "lots")]).unwrap_err();
        assert_eq!(error, "--limits-body-bytes: `lots` is not a size; write 65536, 64KiB or 1MiB");
    }

    #[test]
    fn all_errors_are_reported_together() {
        let error =
            load_from("send_timeout = 1\nlisten = true", &[("A2A_LOG", "1")], &[("insecure", "1")]).unwrap_err();
        assert_eq!(error.lines().count(), 4, "{error}");
    }

    #[test]
    fn secrets_are_not_printed() {
        let error =
            load_from("token = 'hunter 2'", &[("A2A_TOKEN", "hunter\n2")], &[("token", "hunter 2")]).unwrap_err();
        assert!(!error.contains("hunter"), "{error}");
        let loaded = load_from("token = 'hunter2'", &[], &[]).unwrap();
        assert!(!format!("{loaded:?} {}", loaded.print()).contains("hunter"));
    }
}
