//! Where values come from: the file, then the environment, then flags; and what is wrong with them, with its place.

use std::{
    env,
    ffi::OsString,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Config, Given, KEYS, Key};

/// The file that is read where no other is named, if it is there.
const FILE: &str = "a2a.toml";

/// Names another file.
const CONFIG: &str = "A2A_CONFIG";

/// What others call `A2A_LOG_FILTER`, which overrides it.
const RUST_LOG: &str = "RUST_LOG";

/// What is wrong with a configuration: a line for each mistake, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error(Vec<String>);

impl Error {
    /// One mistake.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(vec![text.into()])
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\nerror: "))
    }
}

impl std::error::Error for Error {}

/// Where a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody has said anything.
    #[default]
    Default,
    /// This line of this file.
    File(PathBuf, usize),
    /// This variable.
    Variable(String),
    /// This flag.
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

/// A configuration, and where each of its values comes from, in the order of the keys.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// Variables of the environment that are not used, one line each.
    pub(crate) warnings: Vec<String>,
    origins: Vec<Origin>,
}

impl Loaded {
    /// Each key with the origin of its value.
    pub(crate) fn origins(&self) -> impl Iterator<Item = (&'static Key, &Origin)> {
        KEYS.iter().zip(&self.origins)
    }
}

/// Puts a configuration together: of the file, of the environment of this process, and of flags, by key.
///
/// # Errors
/// All that is wrong, each with its place.
pub(crate) fn load(file: Option<&Path>, flags: &[(&'static Key, String)]) -> Result<Loaded, Error> {
    from(file, env::vars_os(), flags)
}

fn from(
    file: Option<&Path>,
    variables: impl Iterator<Item = (OsString, OsString)>,
    flags: &[(&'static Key, String)],
) -> Result<Loaded, Error> {
    let mut layers = Layers::new();
    let variables = layers.variables(variables);
    let named = variables.iter().find(|it| it.0 == CONFIG).map(|it| Path::new(&it.1));
    if let Some((path, text)) = layers.read(file.or(named)) {
        layers.file(&path, &text);
    }
    layers.environment(&variables);
    for (key, text) in flags {
        layers.set(key, Given::Text(text), &Origin::Flag(key.flag()));
    }
    layers.loaded()
}

struct Layers {
    config: Config,
    origins: Vec<Origin>,
    wrong: Vec<String>,
    warnings: Vec<String>,
}

impl Layers {
    fn new() -> Self {
        Self {
            config: Config::default(),
            origins: vec![Origin::Default; KEYS.len()],
            wrong: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// A warning may explain an error: a misspelled variable leaves a value unset.
    fn loaded(self) -> Result<Loaded, Error> {
        let Self { config, origins, mut wrong, warnings } = self;
        if wrong.is_empty() {
            return Ok(Loaded { config, warnings, origins });
        }
        wrong.extend(warnings);
        Err(Error(wrong))
    }

    fn set(&mut self, key: &'static Key, given: Given<'_, '_>, origin: &Origin) {
        match (key.read)(&mut self.config, given) {
            Ok(()) => {
                let origins = KEYS.iter().zip(&mut self.origins).filter(|it| it.0.name == key.name);
                origins.for_each(|it| *it.1 = origin.clone());
            }
            // Flags and variables are named by their place already.
            Err(error) if matches!(origin, Origin::File(..)) => {
                self.wrong.push(format!("{origin}: {}: {error}", key.name));
            }
            Err(error) => self.wrong.push(format!("{origin}: {error}")),
        }
    }

    /// The file that is named has to be there; the other one may.
    fn read(&mut self, named: Option<&Path>) -> Option<(PathBuf, String)> {
        let path = named.unwrap_or(Path::new(FILE));
        match fs::read_to_string(path) {
            Ok(text) => Some((path.to_owned(), text)),
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.wrong.push(format!("{}: {error}", path.display()));
                None
            }
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let file = File { path, text };
        match DeTable::parse(text) {
            Ok(table) => self.table(&file, "", table.get_ref()),
            Err(error) => {
                let place = file.place(error.span().map_or(0, |it| it.start));
                self.wrong.push(format!("{place}: {}", error.message()));
            }
        }
    }

    fn table(&mut self, file: &File<'_>, prefix: &str, table: &DeTable<'_>) {
        let mut members: Vec<_> = table.iter().collect();
        members.sort_by_key(|it| it.0.span().start);
        for (member, value) in members {
            let name = format!("{prefix}{}", member.get_ref());
            let place = file.place(member.span().start);
            let short = |it: &&Key| it.short.contains(&&*name) && value.get_ref().as_table().is_none();
            if let Some(key) = KEYS.iter().find(|it| it.name == name || short(it)) {
                self.set(key, Given::Toml(value), &place);
            } else {
                let inner = format!("{name}.");
                let known = KEYS.iter().any(|it| it.name.starts_with(&inner));
                match (known, value.get_ref()) {
                    (true, DeValue::Table(table)) => self.table(file, &inner, table),
                    (true, other) => {
                        self.wrong.push(format!("{place}: {name}: {} is no table of keys", other.type_str()));
                    }
                    (false, _) => self.unknown(&place, &name, value),
                }
            }
        }
    }

    fn unknown(&mut self, place: &Origin, name: &str, value: &Spanned<DeValue<'_>>) {
        // A table is as wrong as the first thing in it.
        let first = value.get_ref().as_table().and_then(|it| it.keys().next());
        let sought = first.map_or_else(|| name.to_owned(), |it| format!("{name}.{}", it.get_ref()));
        let nearest = nearest(&sought, KEYS.iter().map(|it| it.name));
        self.wrong.push(format!("{place}: unknown key `{name}`; the nearest is `{nearest}`"));
    }

    /// The variables that concern us.
    fn variables(&mut self, all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
        let mut ours = Vec::new();
        for (name, value) in all {
            let Some(name) = name.to_str().filter(|it| it.starts_with("A2A_") || *it == RUST_LOG) else { continue };
            match value.to_str() {
                Some(value) if of_kubernetes(name, value) => {}
                Some(value) => ours.push((name.to_owned(), value.to_owned())),
                None if name == CONFIG || key_of(name).is_some() => self.wrong.push(format!("{name}: not UTF-8")),
                None => self.warn_unknown(name),
            }
        }
        // `A2A_` comes before `RUST_LOG`, which is the weaker one; and what is wrong comes in the same order each time.
        ours.sort_by(|a, b| b.cmp(a));
        ours
    }

    fn environment(&mut self, variables: &[(String, String)]) {
        for (name, value) in variables.iter().filter(|it| it.0 != CONFIG) {
            match key_of(name) {
                // Compose files and charts pass on what is not set as what is empty. Not so a secret: who meant to set
                // one shall not be left without.
                Some(key) if value.is_empty() && !key.secret => {}
                Some(key) => self.set(key, Given::Text(value), &Origin::Variable(name.clone())),
                None => self.warn_unknown(name),
            }
        }
    }

    /// Other programs and platforms set variables with this prefix too, so an unknown one does not stop the server.
    fn warn_unknown(&mut self, name: &str) {
        let all: Vec<_> = KEYS.iter().map(Key::variable).collect();
        let nearest = nearest(name, all.iter().map(String::as_str).chain([CONFIG]));
        self.warnings.push(format!("{name}: unknown variable, ignored; the nearest is {nearest}"));
    }
}

/// The key that a variable of the environment sets.
fn key_of(variable: &str) -> Option<&'static Key> {
    let sets = |key: &&Key| key.variable() == variable || (variable == RUST_LOG && key.name == "log_filter");
    KEYS.iter().find(sets)
}

/// In the pods of a namespace with a service that is called `a2a`, Kubernetes sets variables such as these.
fn of_kubernetes(name: &str, value: &str) -> bool {
    let number = |it: &str| it.starts_with(|it: char| it.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split_once("_PORT_").is_some_and(|it| number(it.1))
        || (name.ends_with("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://")))
}

/// The name that is most like this one, or of which the last part is.
fn nearest<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> &'a str {
    let distance = |known: &str| {
        let last = known.rsplit('.').next().unwrap_or(known);
        strsim::damerau_levenshtein(name, known).min(strsim::damerau_levenshtein(name, last) + 1)
    };
    all.min_by_key(|it| distance(it)).unwrap_or_default()
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn place(&self, at: usize) -> Origin {
        let before = self.text.get(..at).unwrap_or(self.text);
        Origin::File(self.path.to_owned(), 1 + before.matches('\n').count())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A configuration of the text of a file, of variables, and of flags.
    fn put(text: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded, String> {
        let mut layers = Layers::new();
        layers.file(Path::new("a2a.toml"), text);
        let variables = variables.iter().map(|it| (it.0.into(), it.1.into()));
        let variables = layers.variables(variables.collect::<Vec<_>>().into_iter());
        layers.environment(&variables);
        for (name, value) in flags {
            let key = KEYS.iter().find(|it| it.flag() == *name).unwrap();
            layers.set(key, Given::Text(value), &Origin::Flag(key.flag()));
        }
        layers.loaded().map_err(|error| error.0.join("\n"))
    }

    fn origin(loaded: &Loaded, name: &str) -> String {
        loaded.origins().find(|it| it.0.name == name).unwrap().1.to_string()
    }

    #[test]
    fn flags_override_variables_and_those_the_file() {
        let file = "wait = '1s'\nmax_connections = 7\nkeep_alive = '1s'\n\n[turn]\ndeadline = '2s'\n[card]\nname = 'A'";
        let variables = [("A2A_WAIT", "3s"), ("A2A_KEEP_ALIVE", "3s"), ("A2A_CARD_VERSION", ""), ("PATH", "x")];
        let loaded = put(file, &variables, &[("wait", "4s")]).unwrap();
        let Config { wait, keep_alive, turn_deadline, max_connections, card_name, card_version, .. } = &loaded.config;
        let seconds = [&wait.unwrap_or_default(), keep_alive, turn_deadline].map(Duration::as_secs);
        assert_eq!((seconds, *max_connections, card_name.as_deref()), ([4, 3, 2], 7, Some("A")));
        assert_eq!(*card_version, None, "what is empty is not set");
        let names = ["wait", "keep_alive", "turn.deadline", "max_body"];
        let origins = names.map(|it| origin(&loaded, it));
        assert_eq!(origins, ["--wait", "A2A_KEEP_ALIVE", "a2a.toml:6", "default"]);
    }

    #[test]
    fn a_table_may_be_its_one_word() {
        for (text, place) in [
            ("agent = 'demo'", "a2a.toml:1"),
            ("[agent]\nkind = 'demo'", "a2a.toml:2"),
            ("agent.kind = 'demo'", "a2a.toml:1"),
        ] {
            let loaded = put(text, &[], &[]).unwrap();
            assert_eq!((origin(&loaded, "agent.kind"), loaded.config.require_text), (place.to_owned(), false));
        }
        let loaded = put("[agent]\nrequire_text = true", &[("A2A_AGENT", "demo")], &[]).unwrap();
        assert_eq!((origin(&loaded, "agent.kind").as_str(), loaded.config.require_text), ("A2A_AGENT", true));
        let loaded = put("", &[("A2A_AGENT_REQUIRE_TEXT", "true")], &[("agent", "demo")]).unwrap();
        assert_eq!((origin(&loaded, "agent.kind").as_str(), loaded.config.require_text), ("--agent", true));
    }

    #[test]
    fn what_is_wrong_names_its_place_and_what_is_nearest() {
        for (text, said) in [
            ("\n\nlistten = 'x'", "a2a.toml:3: unknown key `listten`; the nearest is `listen`"),
            ("[card]\nnmae = 'x'", "a2a.toml:2: unknown key `card.nmae`; the nearest is `card.name`"),
            ("[crad]\nname = 'x'", "a2a.toml:1: unknown key `crad`; the nearest is `card.name`"),
            ("name = 'x'", "a2a.toml:1: unknown key `name`; the nearest is `card.name`"),
            ("turn = 3", "a2a.toml:1: turn: integer is no table of keys"),
            ("require_text = true", "a2a.toml:1: unknown key `require_text`; the nearest is `agent.require_text`"),
            ("agent = 'dmo'", "a2a.toml:1: agent.kind: `dmo` is not `demo`"),
            ("[agent]\nname = 'demo'", "a2a.toml:2: unknown key `agent.name`; the nearest is `agent.kind`"),
            ("[listen]\nx = 1", "a2a.toml:1: listen: table is no address"),
            ("wait = 10", "a2a.toml:1: wait: `10` is no duration, such as 500ms, 10s, 5m or 1h"),
            ("card.name = 10", "a2a.toml:1: card.name: integer is no text; put it in quotes"),
            ("log = 'xml'", "a2a.toml:1: log: `xml` is not `text` or `json`"),
        ] {
            assert_eq!(put(text, &[], &[]).unwrap_err(), said, "{text}");
        }
        assert!(put("wait = '1s'\nwait = '2s'", &[], &[]).unwrap_err().starts_with("a2a.toml:2: duplicate key"));
        let said = put("a = [", &[], &[]).unwrap_err();
        assert!(said.starts_with("a2a.toml:1: "), "{said}");
        for (name, value, said) in [
            ("A2A_INSECURE", "yes", "A2A_INSECURE: `yes` is neither `true` nor `false`"),
            ("A2A_TOKEN", "", "A2A_TOKEN: it is empty"),
            ("RUST_LOG", "a=b=c", "RUST_LOG: `a=b=c` is no log filter, such as warn,a2a_service=debug"),
        ] {
            assert_eq!(put("", &[(name, value)], &[]).unwrap_err(), said);
        }
        let said = put("", &[], &[("max-body", "lots")]).unwrap_err();
        assert_eq!(said, "--max-body: `lots` is no size, such as 65536, 64KiB or 1MiB");
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let said = put("wait = 1\nlisten = 1", &[("A2A_LOG", "1")], &[("insecure", "1")]).unwrap_err();
        assert_eq!(said.lines().count(), 4, "{said}");
    }

    #[test]
    fn what_kubernetes_sets_is_not_ours() {
        let variables = [
            ("A2A_SERVICE_HOST", "10.0.0.1"),
            ("A2A_SERVICE_PORT_HTTP", "80"),
            ("A2A_PORT", "tcp://10.0.0.1:80"),
            ("A2A_PORT_80_TCP_ADDR", "10.0.0.1"),
        ];
        assert!(put("", &variables, &[]).is_ok());
        assert_eq!(put("", &[("A2A_PORT", "80")], &[]).unwrap().warnings.len(), 1, "this one may be a mistake");
    }

    #[test]
    fn unknown_variables_are_warnings() {
        for (name, warning) in [
            ("A2A_LISTTEN", "A2A_LISTTEN: unknown variable, ignored; the nearest is A2A_LISTEN"),
            ("A2A_CONFG", "A2A_CONFG: unknown variable, ignored; the nearest is A2A_CONFIG"),
        ] {
            assert_eq!(put("", &[(name, "x")], &[]).unwrap().warnings, [warning]);
            let error = put("wait = 1", &[(name, "x")], &[]).unwrap_err();
            assert_eq!(error.lines().last(), Some(warning), "a warning may explain an error");
        }
        assert!(put("", &[("A2A_WAIT", "1s"), ("PATH", "x")], &[]).unwrap().warnings.is_empty());
    }

    #[test]
    fn the_name_of_others_for_the_filter_is_the_weaker_one() {
        let loaded = put("log_filter = 'info'", &[("RUST_LOG", "debug")], &[]).unwrap();
        assert_eq!(origin(&loaded, "log_filter"), "RUST_LOG");
        let loaded = put("", &[("A2A_LOG_FILTER", "trace"), ("RUST_LOG", "debug")], &[]).unwrap();
        assert_eq!(origin(&loaded, "log_filter"), "A2A_LOG_FILTER");
    }

    #[test]
    fn a_secret_is_in_no_message() {
        let said = put("token = 'hunter 2'", &[("A2A_TOKEN", "hunter\n2")], &[("token", "hunter 2")]).unwrap_err();
        assert!(!said.contains("hunter"), "{said}");
        let loaded = put("token = 'hunter2'", &[], &[]).unwrap();
        assert!(!format!("{loaded:?} {}", loaded.print()).contains("hunter"));
    }
}
