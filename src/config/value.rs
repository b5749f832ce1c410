//! What a value of the configuration can be: how it is read from text and from TOML, and how it is shown.

use std::{fmt, fmt::Write as _, net::SocketAddr, time::Duration};

use http::Uri;
use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeValue, ValueDeserializer},
};
use tracing_subscriber::EnvFilter;

pub(crate) use self::words::{Agent, Log, Place};
use crate::{auth::Token, call::Version, card::Network, transport::Protocols};

mod words;

/// A type of values.
pub(crate) trait Value: Sized {
    /// What the reference calls it.
    const KIND: &'static str;
    /// It is shown to nobody.
    const SECRET: bool = false;
    /// A flag that says nothing more means this.
    const ALONE: Option<&'static str> = None;

    /// Reads what stands in a variable or after a flag. The error says what would do, and repeats no secret.
    fn read(text: &str) -> Result<Self, String>;

    /// Reads what stands in the file. What has no form of its own in TOML is a string there.
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        match value.get_ref() {
            DeValue::String(it) => Self::read(it),
            DeValue::Integer(it) => Self::read(&it.to_string()),
            DeValue::Boolean(it) => Self::read(&it.to_string()),
            other @ (DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_)) => {
                Err(format!("{} is no {}", other.type_str(), Self::KIND))
            }
        }
    }

    /// As it would stand in the file; nothing where it is not set.
    fn show(&self) -> Option<String>;
}

impl<T: Value> Value for Option<T> {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;

    fn read(text: &str) -> Result<Self, String> {
        T::read(text).map(Some)
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
        text.map(str::to_owned).ok_or_else(|| format!("{} is no text; put it in quotes", value.get_ref().type_str()))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for bool {
    const KIND: &'static str = "boolean";
    const ALONE: Option<&'static str> = Some("true");

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{} is neither `true` nor `false`", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Numbers of things.
macro_rules! number {
    ($($number:ty),*) => { $(
        impl Value for $number {
            const KIND: &'static str = "number";

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{} is no whole number", brief(text)))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )* };
}

number!(usize, u64);

impl Value for SocketAddr {
    const KIND: &'static str = "address";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{} is no address with a port, such as 127.0.0.1:8080", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

/// Numbers with units, one after the other: `500ms`, `10s`, `1h30m`.
impl Value for Duration {
    const KIND: &'static str = "duration";

    fn read(text: &str) -> Result<Self, String> {
        let error = || format!("{} is no duration, such as 500ms, 10s, 5m or 1h", brief(text));
        let (mut rest, mut sum) = (text, Self::ZERO);
        while !rest.is_empty() {
            let (number, tail) = split(rest, |it| !it.is_ascii_digit());
            let (unit, tail) = split(tail, |it| it.is_ascii_digit());
            let millis: u64 = match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return Err(error()),
            };
            let part = number.parse().ok().and_then(|it: u64| it.checked_mul(millis)).ok_or_else(error)?;
            sum = sum.checked_add(Self::from_millis(part)).ok_or_else(error)?;
            rest = tail;
        }
        if text.is_empty() { Err(error()) } else { Ok(sum) }
    }

    fn show(&self) -> Option<String> {
        let millis = self.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let unit = units.into_iter().find(|it| millis > 0 && millis.is_multiple_of(it.0));
        let (size, unit) = unit.unwrap_or(if millis == 0 { (1, "s") } else { (1, "ms") });
        Some(quoted(&format_args!("{}{unit}", millis / size)))
    }
}

/// How long something is kept: no time at all means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window(pub(crate) Option<Duration>);

impl Value for Window {
    const KIND: &'static str = Duration::KIND;

    fn read(text: &str) -> Result<Self, String> {
        Duration::read(text).map(|it| Self((!it.is_zero()).then_some(it)))
    }

    fn show(&self) -> Option<String> {
        self.0.unwrap_or_default().show()
    }
}

/// A number of bytes: `1048576`, `64KiB`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl Size {
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

impl Value for Size {
    const KIND: &'static str = "size";

    fn read(text: &str) -> Result<Self, String> {
        let (number, unit) = split(text, |it| !it.is_ascii_digit());
        let unit = if unit.is_empty() { "B" } else { unit };
        let unit = Self::UNITS.into_iter().find(|it| it.0 == unit).map(|it| it.1);
        let bytes = unit.and_then(|it| number.parse::<usize>().ok()?.checked_mul(it));
        bytes.map(Self).ok_or_else(|| format!("{} is no size, such as 65536, 64KiB or 1MiB", brief(text)))
    }

    fn show(&self) -> Option<String> {
        let unit = Self::UNITS.into_iter().take(3).find(|it| self.0 > 0 && self.0.is_multiple_of(it.1));
        Some(unit.map_or_else(|| self.0.to_string(), |it| quoted(&format_args!("{}{}", self.0 / it.1, it.0))))
    }
}

/// Where clients reach a server: a URL without a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl(pub(crate) String);

impl Value for BaseUrl {
    const KIND: &'static str = "URL";

    fn read(text: &str) -> Result<Self, String> {
        let uri: Option<Uri> = text.parse().ok();
        let whole = uri.is_some_and(|it| {
            matches!(it.scheme_str(), Some("http" | "https")) && it.host().is_some() && it.query().is_none()
        });
        let error = || format!("{} is no URL of a server, such as https://agent.example", brief(text));
        if whole && !text.contains('#') { Ok(Self(text.to_owned())) } else { Err(error()) }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.0))
    }
}

impl Value for Token {
    const KIND: &'static str = "secret text";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(str::to_owned)
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&"(hidden)"))
    }
}

/// What is logged: directives of `tracing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter(String);

impl Filter {
    /// Warnings of everybody, and what a server says of its work.
    pub(crate) fn standard() -> Self {
        Self("warn,a2a_service=info".to_owned())
    }

    /// To be used. What could not be read has been refused before.
    pub(crate) fn to_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl Value for Filter {
    const KIND: &'static str = "log filter";

    fn read(text: &str) -> Result<Self, String> {
        let read = EnvFilter::builder().parse(text);
        read.map(|_| Self(text.to_owned()))
            .map_err(|_| format!("{} is no log filter, such as warn,a2a_service=debug", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.0))
    }
}

impl Value for Network {
    const KIND: &'static str = "network";

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for Version {
    const KIND: &'static str = "version";

    fn read(text: &str) -> Result<Self, String> {
        Self::from_text(text)
            .ok_or_else(|| format!("{} is no version that is spoken here: 1.0 and 0.3 are", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.as_str()))
    }
}

impl Value for Protocols {
    const KIND: &'static str = <Vec<Version>>::KIND;

    fn read(text: &str) -> Result<Self, String> {
        any_of(<Vec<Version>>::read(text)?)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        any_of(<Vec<Version>>::from_toml(value)?)
    }

    fn show(&self) -> Option<String> {
        self.iter().collect::<Vec<_>>().show()
    }
}

/// A server that speaks nothing would be a mistake.
fn any_of(versions: Vec<Version>) -> Result<Protocols, String> {
    if versions.is_empty() { Err("no version is named".to_owned()) } else { Ok(versions.into_iter().collect()) }
}

/// Outside of the file, with commas between.
impl<T: Value> Value for Vec<T> {
    const KIND: &'static str = "list";

    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|it| !it.is_empty()).map(T::read).collect()
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let items = value.get_ref().as_array();
        let items = items.ok_or_else(|| format!("{} is no list of each a {}", value.get_ref().type_str(), T::KIND))?;
        items.iter().map(T::from_toml).collect()
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().filter_map(T::show).collect::<Vec<_>>().join(", ")))
    }
}

/// What is made of tables; outside of the file, a value of TOML in text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structure<T> {
    /// What was said.
    pub(crate) value: T,
    text: String,
}

impl<T: DeserializeOwned> Value for Structure<T> {
    const KIND: &'static str = "TOML";

    fn read(text: &str) -> Result<Self, String> {
        Self::from_toml(&DeValue::parse(text).map_err(|it| it.message().to_owned())?)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let read = T::deserialize(ValueDeserializer::from(value.clone()));
        let text = inline(value.get_ref());
        read.map(|value| Self { value, text }).map_err(|it| it.message().to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

/// A value in a line.
fn inline(value: &DeValue<'_>) -> String {
    let joined = |it: &mut dyn Iterator<Item = String>| it.collect::<Vec<_>>().join(", ");
    match value {
        DeValue::String(it) => quoted(it),
        DeValue::Integer(it) => it.to_string(),
        DeValue::Float(it) => it.to_string(),
        DeValue::Boolean(it) => it.to_string(),
        DeValue::Datetime(it) => it.to_string(),
        DeValue::Array(it) => format!("[{}]", joined(&mut it.iter().map(|it| inline(it.get_ref())))),
        DeValue::Table(it) => {
            let member = |(name, value): (&Spanned<_>, &Spanned<_>)| {
                format!("{} = {}", quoted(name.get_ref()), inline(value.get_ref()))
            };
            format!("{{ {} }}", joined(&mut it.iter().map(member)))
        }
    }
}

/// Splits before the first character that is so.
fn split(text: &str, at: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}

/// A string of TOML.
fn quoted(text: &impl fmt::Display) -> String {
    let mut quoted = String::from('"');
    for c in text.to_string().chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            it if it.is_control() => _ = write!(quoted, "\\u{:04X}", u32::from(it)),
            it => quoted.push(it),
        }
    }
    quoted.push('"');
    quoted
}

/// What was said, for a message about it.
fn brief(text: &str) -> String {
    const LENGTH: usize = 80;
    let cut = text.char_indices().nth(LENGTH).map_or(text.len(), |it| it.0);
    let dots = if cut < text.len() { "…" } else { "" };
    format!("`{}{dots}`", text[..cut].escape_debug())
}

#[cfg(test)]
mod tests;
