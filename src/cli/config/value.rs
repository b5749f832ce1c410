//! Types of configuration values: parsing from text and from TOML, and formatting as TOML.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize as _, Serialize, de::DeserializeOwned};
use toml::{
    Spanned,
    de::{DeValue, ValueDeserializer},
    ser::ValueSerializer,
};
use tracing::Level;
use tracing_subscriber::filter::Targets;

use crate::{
    base::secret_file,
    cli::{log::LogFormat, read_file},
    protocol::{
        v03,
        version::{Protocols, Version},
    },
    server::Console,
    service::{
        IdempotencySource,
        auth::{CertificateName, Token},
        card::{CardConfig, ExtendedCardAccess, Network, ProtocolBinding},
        push::AllowedTarget,
    },
    store::sqlite::Durability,
    transport::{AllowedHost, AllowedOrigin, FileBytes},
};

/// Maximum size of a file with an agent card, in bytes.
const MAX_CARD: usize = 4 << 20;

/// Maximum size of a file with a secret or text, in bytes.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// Text in place of a secret.
pub(super) const HIDDEN: &str = "(hidden)";

/// Type of a configuration value.
pub(crate) trait Value: Sized {
    /// Name of the type in the reference and in errors.
    const KIND: &'static str;
    /// The value is redacted wherever it is printed.
    const SECRET: bool = false;
    /// The value may be in a file: [`from_file`](Self::from_file).
    const FROM_FILE: bool = false;
    /// Value of a flag without an argument. `None` if it needs one.
    const WITHOUT_ARGUMENT: Option<&'static str> = None;

    /// Parses the text of a variable or flag.
    ///
    /// # Errors
    /// The text is invalid. The message says what is valid, and does not contain a secret.
    fn read(text: &str) -> Result<Self, String>;

    /// Parses a value of the file. By default from a string, a number or a boolean, as text.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        match value.get_ref() {
            DeValue::String(text) => Self::read(text),
            DeValue::Integer(number) => Self::read(&number.to_string()),
            DeValue::Float(number) => Self::read(number.as_str()),
            DeValue::Boolean(value) => Self::read(&value.to_string()),
            other @ (DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_)) => {
                Err(format!("{} instead of {}", other.type_str(), Self::KIND))
            }
        }
    }

    /// Reads the value from the file at a path.
    ///
    /// # Errors
    /// The file can't be read, its content is invalid, or the value can't be in a file. The message does not contain the content.
    fn from_file(_path: &Path) -> Result<Self, String> {
        Err("can't be in a file".to_owned())
    }

    /// Formats the value as TOML. Returns `None` if it is not set.
    fn show(&self) -> Option<String>;
}

impl<T: Value> Value for Option<T> {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;
    const FROM_FILE: bool = T::FROM_FILE;

    fn read(text: &str) -> Result<Self, String> {
        T::read(text).map(Some)
    }

    fn from_file(path: &Path) -> Result<Self, String> {
        T::from_file(path).map(Some)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        T::from_toml(value).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }
}

impl Value for String {
    const KIND: &'static str = "text";

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let text = value.get_ref().as_str();
        text.map(str::to_owned).ok_or_else(|| format!("{} is not text; put it in quotes", value.get_ref().type_str()))
    }

    fn from_file(path: &Path) -> Result<Self, String> {
        let (text, _) = secret_file::read_file(path, MAX_FILE).map_err(|error| error.to_string())?;
        Self::from_utf8(text).map_err(|_| "the file is not UTF-8".to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for bool {
    const KIND: &'static str = "boolean";
    const WITHOUT_ARGUMENT: Option<&'static str> = Some("true");

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{} is not a boolean; write `true` or `false`", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Implements [`Value`] for types whose `FromStr` has errors for users, and whose `Display` is the same syntax.
macro_rules! parsed_values {
    ($($type:ty = $kind:literal),*) => { $(
        impl Value for $type {
            const KIND: &'static str = $kind;

            fn read(text: &str) -> Result<Self, String> {
                text.parse()
            }

            fn show(&self) -> Option<String> {
                Some(quoted(self))
            }
        }
    )* };
}

parsed_values!(Network = "network", AllowedHost = "host", AllowedOrigin = "origin", AllowedTarget = "target");

// Between the types of fields and those of their configuration values.
conversions! { OptionalTimeout: time: Option<Duration> => Self(time); }
conversions! { Option<Duration>: value: OptionalTimeout => value.0; }
conversions! { ByteSize: bytes: usize => Self(bytes); }
conversions! { usize: size: ByteSize => size.0; }

/// Implements [`Value`] for unsigned integers.
macro_rules! number {
    ($($number:ty),*) => { $(
        impl Value for $number {
            const KIND: &'static str = "number";

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{} is not a whole number", brief(text)))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )* };
}

number!(usize, u32);

impl Value for Console {
    const KIND: &'static str = "`true`, `\"developer\"` or `false`";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "true" => Ok(Self::Full),
            "developer" => Ok(Self::Developer),
            "false" => Ok(Self::Off),
            _ => Err(format!("{} is not {}", brief(text), Self::KIND)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(match self {
            Self::Full => "true".to_owned(),
            Self::Developer => quoted(&"developer"),
            Self::Off => "false".to_owned(),
        })
    }
}

/// Numbers with units, added up: `500ms`, `10s`, `1h30m`.
impl Value for Duration {
    const KIND: &'static str = "duration";

    fn read(text: &str) -> Result<Self, String> {
        let error = || format!("{} is not a duration; write 500ms, 10s, 5m or 1h", brief(text));
        // The parser panics at sums beyond `u64::MAX` seconds. It also knows months (`M`), which are likely to be mistaken for
        // minutes.
        let is_plausible = text.len() <= 24 && !text.contains('M');
        let parsed = if is_plausible { humantime::parse_duration(text).ok() } else { None };
        parsed.filter(|time| time.is_zero() || *time >= Self::from_millis(1)).ok_or_else(error)
    }

    fn show(&self) -> Option<String> {
        let nanos = self.as_nanos();
        let (day, hour, minute, second) = (86_400_000_000_000, 3_600_000_000_000, 60_000_000_000, 1_000_000_000);
        let units = [(day, "d"), (hour, "h"), (minute, "m"), (second, "s"), (1_000_000, "ms"), (1000, "us"), (1, "ns")];
        let unit = units.into_iter().find(|(size, _)| nanos > 0 && nanos.is_multiple_of(*size));
        let (size, unit) = unit.unwrap_or((1, "s"));
        Some(quoted(&format_args!("{}{unit}", nanos / size)))
    }
}

/// Retention time. `None`, written as zero, is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionalTimeout(pub(crate) Option<Duration>);

impl Value for OptionalTimeout {
    const KIND: &'static str = Duration::KIND;

    fn read(text: &str) -> Result<Self, String> {
        Duration::read(text).map(|time| Self((!time.is_zero()).then_some(time)))
    }

    fn show(&self) -> Option<String> {
        self.0.unwrap_or_default().show()
    }
}

/// Size in bytes: `1048576`, `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

impl ByteSize {
    const UNITS: [(&'static str, usize); 7] = [
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1000),
        ("B", 1),
    ];
}

impl Value for ByteSize {
    const KIND: &'static str = "size";

    fn read(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = if unit.is_empty() { "B" } else { unit };
        let factor = Self::UNITS.into_iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let bytes = factor.and_then(|factor| number.parse::<usize>().ok()?.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| format!("{} is not a size; write 65536, 64KiB or 1MiB", brief(text)))
    }

    fn show(&self) -> Option<String> {
        let mut binary = Self::UNITS.into_iter().take(3);
        let unit = binary.find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        Some(match unit {
            Some((name, factor)) => quoted(&format_args!("{}{name}", self.0 / factor)),
            None => self.0.to_string(),
        })
    }
}

/// Implements [`Value`] for an enum, with one word for each variant.
macro_rules! word_values {
    ($name:ident: $first:ident = $first_word:literal $(, $variant:ident = $word:literal)* ; $last:ident = $last_word:literal) => {
        impl Value for $name {
            const KIND: &'static str =
                concat!("`", $first_word, "`" $(, ", `", $word, "`")*, " or `", $last_word, "`");

            fn read(text: &str) -> Result<Self, String> {
                match &*text.replace('-', "_") {
                    $first_word => Ok(Self::$first),
                    $($word => Ok(Self::$variant),)*
                    $last_word => Ok(Self::$last),
                    _ => Err(format!("{} is not {}", brief(text), Self::KIND)),
                }
            }

            fn show(&self) -> Option<String> {
                Some(quoted(&match self {
                    Self::$first => $first_word,
                    $(Self::$variant => $word,)*
                    Self::$last => $last_word,
                }))
            }
        }
    };
}

word_values!(IdempotencySource: Header = "header"; MessageId = "message_id");
word_values!(FileBytes: Auto = "auto", Base64 = "base64"; Raw = "raw");
word_values!(ProtocolBinding: JsonRpc = "JSONRPC", HttpJson = "HTTP+JSON"; Grpc = "GRPC");
word_values!(CertificateName: Uri = "uri", Dns = "dns"; Subject = "subject");
word_values!(LogFormat: Auto = "auto", Text = "text"; Json = "json");
word_values!(Durability: Process = "process"; Power = "power");
word_values!(ExtendedCardAccess: Off = "off", Guarded = "guarded"; Open = "open");

/// Declares enums that have no other use than as values, with a word for each variant. The first one is the default.
macro_rules! words {
    ($($(#[$attribute:meta])* $name:ident: $first:ident = $first_word:literal
        $(, $variant:ident = $word:literal)* ; $last:ident = $last_word:literal;)*) => { $(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) enum $name {
            #[default]
            $first,
            $($variant,)*
            $last,
        }

        word_values!($name: $first = $first_word $(, $variant = $word)* ; $last = $last_word);
    )* };
}

words! {
    /// Selection of what makes the server not ready.
    HealthReady: Store = "store"; Agents = "agents";
    /// Signs of other servers of a database.
    ClusterWake: Notify = "notify"; Poll = "poll";
    /// Contents in spans.
    SpanContent: None = "none"; Messages = "messages";
    /// Credentials that a request needs if several schemes are configured.
    AuthRequire: Any = "any"; All = "all";
    /// Protocol extension of the server that the card can offer.
    OfferedExtension: Resume = "resume"; SecretParts = "secret_parts";
    /// Format of stdin and stdout of a command. `Persistent` is as `JsonLines`, for one command that keeps running.
    CommandFormat: Text = "text", JsonLines = "json_lines"; Persistent = "persistent";
}

/// Ratio from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio(pub(crate) f64);

impl Value for Ratio {
    const KIND: &'static str = "ratio";

    fn read(text: &str) -> Result<Self, String> {
        let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.map(Self).ok_or_else(|| format!("{} is not a ratio; write a number from 0 to 1", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(format!("{:?}", self.0))
    }
}

/// Command: its words, and the TOML as which it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) words: Vec<String>,
    text: String,
}

impl Value for CommandLine {
    const KIND: &'static str = "command";

    fn read(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).filter(|words| words.first().is_some_and(|program| !program.is_empty()));
        let words = words.ok_or_else(|| format!("{} is not a command; check its quotes", brief(text)))?;
        Ok(Self { words, text: quoted(text) })
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        if value.get_ref().as_array().is_none() {
            return Self::read(&String::from_toml(value)?);
        }
        let words = <Vec<String>>::from_toml(value)?;
        let text = words.show().unwrap_or_default();
        if words.first().is_none_or(String::is_empty) {
            return Err(format!("{text} is not a command; begin with the program"));
        }
        Ok(Self { words, text })
    }

    fn show(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

/// File with an agent card in JSON, and the configuration in it.
#[derive(Clone, Debug)]
pub(crate) struct CardFile {
    path: PathBuf,
    pub(super) card: CardConfig,
    pub(crate) declares_security: bool,
}

impl Value for CardFile {
    const KIND: &'static str = PathBuf::KIND;

    fn read(text: &str) -> Result<Self, String> {
        let path = PathBuf::read(text)?;
        let json = read_file(&path, MAX_CARD).map_err(|error| format!("{error:#}"))?;
        let card = v03::card::from_json(&json).map_err(|error| format!("{text}: not an agent card: {error}"))?;
        if card.name.is_empty() {
            return Err(format!("{text}: not an agent card: it has no name"));
        }
        let declares_security = !card.security_schemes.is_empty() || !card.security_requirements.is_empty();
        Ok(Self { path, card: CardConfig::of_card(card), declares_security })
    }

    fn show(&self) -> Option<String> {
        self.path.show()
    }
}

impl Value for PathBuf {
    const KIND: &'static str = "file";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("the path of a file is empty".to_owned()) } else { Ok(text.into()) }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.display()))
    }
}

/// Certificate of the server: a file, or one that is generated at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Certificate {
    File(PathBuf),
    SelfSigned,
}

/// Value for a certificate that is generated.
const SELF_SIGNED: &str = "self_signed";

impl Value for Certificate {
    const KIND: &'static str = "`FILE` or `self_signed`";

    fn read(text: &str) -> Result<Self, String> {
        if text == SELF_SIGNED { Ok(Self::SelfSigned) } else { PathBuf::read(text).map(Self::File) }
    }

    fn show(&self) -> Option<String> {
        match self {
            Self::File(path) => path.show(),
            Self::SelfSigned => Some(quoted(SELF_SIGNED)),
        }
    }
}

impl Value for Token {
    const KIND: &'static str = "secret text";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(str::to_owned)
    }

    fn from_file(path: &Path) -> Result<Self, String> {
        let text = secret_file::read_secret(path, MAX_FILE).map_err(|error| error.to_string())?;
        Self::read(text.trim())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(HIDDEN))
    }
}

/// Log filter: comma-separated levels, each for a target such as a crate or module, or for all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    text: String,
    pub(crate) targets: Targets,
}

impl Default for Filter {
    /// Warnings of all crates, and info of this one.
    fn default() -> Self {
        let targets = Targets::new().with_default(Level::WARN).with_target("a2a_service", Level::INFO);
        Self { text: "warn,a2a_service=info".to_owned(), targets }
    }
}

impl Value for Filter {
    const KIND: &'static str = "log filter";

    fn read(text: &str) -> Result<Self, String> {
        let parsed = text.parse().map(|targets| Self { text: text.to_owned(), targets });
        parsed.map_err(|_| format!("{} is not a log filter; write levels such as warn,a2a_service=debug", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.text))
    }
}

impl Value for Version {
    const KIND: &'static str = "version";

    fn read(text: &str) -> Result<Self, String> {
        // The official command line calls its newest version `latest`.
        if text == "latest" {
            return Ok(Self::V1_0);
        }
        Self::from_text(text)
            .ok_or_else(|| format!("{} is not a supported protocol version; write 1.0 or 0.3", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.as_str()))
    }
}

impl Value for Protocols {
    const KIND: &'static str = <Vec<Version>>::KIND;

    fn read(text: &str) -> Result<Self, String> {
        Ok(filled(<Vec<Version>>::read(text)?)?.into_iter().collect())
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        Ok(filled(<Vec<Version>>::from_toml(value)?)?.into_iter().collect())
    }

    fn show(&self) -> Option<String> {
        self.iter().collect::<Vec<_>>().show()
    }
}

/// Rejects an empty list.
pub(super) fn filled<T: Value>(list: Vec<T>) -> Result<Vec<T>, String> {
    if list.is_empty() { Err(format!("the list is empty; write one {} or several", T::KIND)) } else { Ok(list) }
}

/// List of values: an array or a single value in TOML, separated by commas in text.
impl<T: Value> Value for Vec<T> {
    const KIND: &'static str = "list";

    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(T::read).collect()
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        match value.get_ref().as_array() {
            Some(items) => items.iter().map(T::from_toml).collect(),
            None => Ok(vec![T::from_toml(value)?]),
        }
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().filter_map(T::show).collect::<Vec<_>>().join(", ")))
    }
}

/// Structured value, such as a table or a list of tables: TOML in the file, and TOML or JSON in text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structure<T> {
    pub(crate) value: T,
    /// TOML.
    text: String,
}

impl<T: DeserializeOwned> Structure<T> {
    fn new(value: &toml::Value) -> Result<Self, String> {
        let parsed = T::deserialize(value.clone()).map_err(|error| error.message().to_owned());
        Ok(Self { value: parsed?, text: inline(value) })
    }
}

impl<T: DeserializeOwned> Value for Structure<T> {
    const KIND: &'static str = "TOML";

    fn read(text: &str) -> Result<Self, String> {
        match (DeValue::parse(text), serde_json::from_str(text)) {
            (Ok(value), _) => Self::from_toml(&value),
            (Err(_), Ok(json)) => Self::new(&json),
            (Err(error), Err(_)) => Err(error.message().to_owned()),
        }
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let value = toml::Value::deserialize(ValueDeserializer::from(value.clone()));
        Self::new(&value.map_err(|error| error.message().to_owned())?)
    }

    fn show(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

/// Formats a value as TOML, with tables in braces.
pub(super) fn inline(value: &impl Serialize) -> String {
    let mut text = String::new();
    // Fails only for values that TOML does not have, such as null.
    _ = value.serialize(ValueSerializer::new(&mut text));
    text
}

/// Formats a TOML string. Strings of JSON are strings of TOML, except that TOML does not allow DEL.
pub(super) fn quoted(text: &(impl fmt::Display + ?Sized)) -> String {
    serde_json::Value::from(text.to_string()).to_string().replace('\u{7f}', "\\u007F")
}

/// Quotes and escapes the text of a value for an error message, up to 80 characters.
pub(super) fn brief(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let end = text.char_indices().nth(MAX_CHARS).map_or(text.len(), |(offset, _)| offset);
    let ellipsis = if end < text.len() { "…" } else { "" };
    format!("`{}{ellipsis}`", text[..end].escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        for (text, millis, printed) in [
            ("500ms", 500, "500ms"),
            ("0s", 0, "0s"),
            ("90s", 90_000, "90s"),
            ("1h30m", 5_400_000, "90m"),
            ("24h", 86_400_000, "1d"),
            ("1s500ms", 1500, "1500ms"),
            ("30m1h", 5_400_000, "90m"),
            ("1.5s", 1500, "1500ms"),
            ("1 s", 1000, "1s"),
            ("1w", 604_800_000, "7d"),
        ] {
            let read = Duration::read(text).unwrap();
            assert_eq!(read, Duration::from_millis(millis), "{text}");
            assert_eq!(read.show().unwrap(), format!("\"{printed}\""));
        }
        for text in ["", "5", "s", "-1s", "1x", "5s3", "99999999999999999999s", "9999999999999999999d"] {
            assert!(Duration::read(text).unwrap_err().contains("10s"), "{text}");
        }
    }

    #[test]
    fn sizes_are_numbers_with_optional_units() {
        for (text, bytes, printed) in [
            ("65536", 65_536, "\"64KiB\""),
            ("1MiB", 1 << 20, "\"1MiB\""),
            ("3MB", 3_000_000, "3000000"),
            ("7B", 7, "7"),
            ("0", 0, "0"),
        ] {
            let read = ByteSize::read(text).unwrap();
            assert_eq!((read, read.show().unwrap()), (ByteSize(bytes), printed.to_owned()), "{text}");
        }
        for text in ["", "MiB", "1mib", "1.5MiB", "-1", "99999999999999999999", "99999999999999GiB"] {
            assert!(ByteSize::read(text).unwrap_err().contains("1MiB"), "{text}");
        }
    }

    #[test]
    fn commands_are_text_or_lists() {
        let toml = |text: &str| CommandLine::from_toml(&DeValue::parse(text).unwrap());
        for (text, printed) in
            [("'sh -c \"a | b\"'", r#""sh -c \"a | b\"""#), ("['sh', '-c', 'a | b']", r#"["sh", "-c", "a | b"]"#)]
        {
            let command = toml(text).unwrap();
            assert_eq!(
                (command.words.join("/"), command.show().unwrap()),
                ("sh/-c/a | b".to_owned(), printed.to_owned())
            );
        }
        for text in ["''", "[]", "['']", "'a \"'", "[1]", "3"] {
            assert!(toml(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durability_is_a_kind_of_failure() {
        assert_eq!(Durability::read("power"), Ok(Durability::Power));
        assert!(Durability::read("full").unwrap_err().contains("`power`"));
    }

    #[test]
    fn tables_are_toml_or_json() {
        let read = |text: &str| Structure::<serde_json::Map<String, serde_json::Value>>::read(text);
        let expected = serde_json::json!({ "temperature": 0.5, "stop": ["a"] });
        for text in ["{ temperature = 0.5, stop = ['a'] }", r#"{"temperature": 0.5, "stop": ["a"]}"#] {
            let found = read(text).unwrap();
            assert_eq!(serde_json::Value::from(found.value.clone()), expected, "{text}");
            assert_eq!(read(&found.show().unwrap()).unwrap().value, found.value, "it is printed as TOML");
            assert!(DeValue::parse(&found.show().unwrap()).is_ok());
        }
        for text in ["temperature", r#"{"temperature": null}"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_are_arrays_or_separated_by_commas() {
        let read = Vec::<Network>::read("10.0.0.0/8, ::1").unwrap();
        assert_eq!(read.show().unwrap(), r#"["10.0.0.0/8", "::1/128"]"#);
        let value = DeValue::parse(r#"["10.0.0.0/8", "::1"]"#).unwrap();
        assert_eq!(Vec::<Network>::from_toml(&value), Ok(read));
        let value = DeValue::parse(r#""10.0.0.0/8""#).unwrap();
        assert_eq!(Vec::<Network>::from_toml(&value).unwrap().show().unwrap(), r#"["10.0.0.0/8"]"#);
        // In TOML, a single text is a single item, also with commas.
        let value = DeValue::parse("'CN=a,O=b'").unwrap();
        assert_eq!(Vec::<String>::from_toml(&value).unwrap(), ["CN=a,O=b"]);
        let value = DeValue::parse("{ a = 1 }").unwrap();
        assert_eq!(Vec::<Network>::from_toml(&value).unwrap_err(), "table instead of network");
    }

    #[test]
    fn unsupported_versions_are_rejected() {
        let read = Protocols::read("0.3, 1.0.1").unwrap();
        assert_eq!((read, read.show().unwrap()), (Protocols::default(), r#"["1.0", "0.3"]"#.to_owned()));
        let value = DeValue::parse(r#"["0.3"]"#).unwrap();
        assert_eq!(Protocols::from_toml(&value).unwrap().show().unwrap(), r#"["0.3"]"#);
        assert_eq!(Protocols::read("2.0").unwrap_err(), "`2.0` is not a supported protocol version; write 1.0 or 0.3");
        for empty in ["", " , "] {
            assert!(Protocols::read(empty).unwrap_err().contains("is empty"), "{empty}");
        }
    }

    #[test]
    fn structures_are_toml_in_text_too() {
        type Skills = Structure<Vec<crate::service::card::SkillConfig>>;
        let text = r#"[{ description = "d", id = "i", name = "n", tags = ["a", "b"] }]"#;
        let read = Skills::read(text).unwrap();
        assert_eq!((&*read.value[0].id, &*read.show().unwrap()), ("i", text));
        let error = Skills::read(r#"[{ id = "i", nmae = "n" }]"#).unwrap_err();
        assert!(error.contains("nmae"), "{error}");
    }

    #[test]
    fn quoted_text_parses_as_toml() {
        let text = "a \"quoted\" \\ name\nin lines\u{7}\u{7f}";
        let document = format!("name = {}", quoted(&text));
        let table = toml::de::DeTable::parse(&document).unwrap();
        assert_eq!(table.get_ref().get("name").unwrap().get_ref().as_str(), Some(text));
    }
}
