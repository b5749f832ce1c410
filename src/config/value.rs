//! What a value of the configuration can be: how it is read from text and from TOML, and how it is shown.

use std::{fmt, fmt::Write as _, net::SocketAddr};

use http::Uri;
use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeValue, ValueDeserializer},
};
use tracing_subscriber::EnvFilter;

pub(crate) use self::{
    choices::{Agent, Log, StorePath},
    units::{ByteSize, OptionalTimeout},
};
use crate::{
    auth::Token,
    call::Version,
    card::{Network, is_grpc_address},
    transport::{AllowedHost, AllowedOrigin, Protocols},
};

mod choices;
mod units;

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

impl Value for SocketAddr {
    const KIND: &'static str = "address";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{} is no address with a port, such as 127.0.0.1:8080", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
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

/// Path of a URL, without a slash at its end: empty for the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlPath(pub(crate) String);

impl Value for UrlPath {
    const KIND: &'static str = "path";

    fn read(text: &str) -> Result<Self, String> {
        let named = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_' | b'~' | b'/');
        if text.starts_with('/') && !text.contains("//") && text.bytes().all(named) {
            return Ok(Self(text.trim_end_matches('/').to_owned()));
        }
        Err(format!("{} is no path, such as /a2a/v1", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(if self.0.is_empty() { "/" } else { &*self.0 }))
    }
}

/// Address of gRPC, as a card has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrpcAddress(pub(crate) String);

impl Value for GrpcAddress {
    const KIND: &'static str = "address of gRPC";

    fn read(text: &str) -> Result<Self, String> {
        if is_grpc_address(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{} is no address of gRPC, such as agent.example:443 or https://agent.example", brief(text)))
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

impl Value for AllowedHost {
    const KIND: &'static str = "host";

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for AllowedOrigin {
    const KIND: &'static str = "origin";

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

/// A string of TOML.
fn quoted(text: &(impl fmt::Display + ?Sized)) -> String {
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
