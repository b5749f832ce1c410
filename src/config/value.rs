//! Types of configuration values: parsing from text and from TOML, and formatting as TOML.

use std::{fmt, fmt::Write as _, net::SocketAddr};

use http::Uri;
use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeValue, ValueDeserializer},
};
use tracing_subscriber::EnvFilter;

pub(crate) use self::{
    choices::{Agent, StorePath},
    units::{ByteSize, OptionalTimeout},
};
use crate::{
    auth::Token,
    card::{Network, is_grpc_address},
    protocol::{Protocols, Version},
    transport::{AllowedHost, AllowedOrigin},
};

mod choices;
mod units;

/// Type of a configuration value.
pub(crate) trait Value: Sized {
    /// Name of the type in the reference and in errors.
    const KIND: &'static str;
    /// The value is redacted wherever it is printed.
    const SECRET: bool = false;
    /// Value of a flag without an argument. `None` if it needs one.
    const WITHOUT_ARGUMENT: Option<&'static str> = None;

    /// Parses the text of a variable or flag.
    ///
    /// # Errors
    /// The text is invalid. The message says what is valid, and does not contain a secret.
    fn read(text: &str) -> Result<Self, String>;

    /// Parses a value of the file. By default from a string, an integer or a boolean, as text.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        match value.get_ref() {
            DeValue::String(text) => Self::read(text),
            DeValue::Integer(number) => Self::read(&number.to_string()),
            DeValue::Boolean(value) => Self::read(&value.to_string()),
            other @ (DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_)) => {
                Err(format!("{} is not {}", other.type_str(), with_article(Self::KIND)))
            }
        }
    }

    /// Formats the value as TOML. Returns `None` if it is not set.
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
        text.map(str::to_owned).ok_or_else(|| format!("{} is not text; put it in quotes", value.get_ref().type_str()))
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

impl Value for SocketAddr {
    const KIND: &'static str = "address";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{} is not an address with a port; write 127.0.0.1:8080", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

/// Base URL of a server: `http` or `https`, without a query and a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl(pub(crate) String);

impl Value for BaseUrl {
    const KIND: &'static str = "URL";

    fn read(text: &str) -> Result<Self, String> {
        let uri: Option<Uri> = text.parse().ok();
        let is_base = uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() && uri.query().is_none()
        });
        let error = || format!("{} is not the URL of a server; write https://agent.example", brief(text));
        if is_base && !text.contains('#') { Ok(Self(text.to_owned())) } else { Err(error()) }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.0))
    }
}

/// Path of a URL without a trailing slash; empty for the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlPath(pub(crate) String);

impl Value for UrlPath {
    const KIND: &'static str = "path";

    fn read(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/');
        if text.starts_with('/') && !text.contains("//") && text.bytes().all(is_allowed) {
            return Ok(Self(text.trim_end_matches('/').to_owned()));
        }
        Err(format!("{} is not a path; write /a2a/v1", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(if self.0.is_empty() { "/" } else { &*self.0 }))
    }
}

/// gRPC address for the agent card: `host:port`, optionally after `dns:///`, or a URL without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrpcAddress(pub(crate) String);

impl Value for GrpcAddress {
    const KIND: &'static str = "gRPC address";

    fn read(text: &str) -> Result<Self, String> {
        if is_grpc_address(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{} is not a gRPC address; write agent.example:443 or https://agent.example", brief(text)))
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

/// Log filter: directives of `tracing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter(String);

impl Filter {
    /// Default filter: warnings of all crates, and info of this one.
    pub(crate) fn standard() -> Self {
        Self("warn,a2a_service=info".to_owned())
    }

    /// Converts to the filter of `tracing`. The text was validated when it was parsed.
    pub(crate) fn to_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl Value for Filter {
    const KIND: &'static str = "log filter";

    fn read(text: &str) -> Result<Self, String> {
        let parsed = EnvFilter::builder().parse(text);
        parsed.map(|_| Self(text.to_owned())).map_err(|_| {
            format!("{} is not a log filter; write directives such as warn,a2a_service=debug", brief(text))
        })
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
            .ok_or_else(|| format!("{} is not a supported protocol version; write 1.0 or 0.3", brief(text)))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.as_str()))
    }
}

impl Value for Protocols {
    const KIND: &'static str = <Vec<Version>>::KIND;

    fn read(text: &str) -> Result<Self, String> {
        non_empty(<Vec<Version>>::read(text)?)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        non_empty(<Vec<Version>>::from_toml(value)?)
    }

    fn show(&self) -> Option<String> {
        self.iter().collect::<Vec<_>>().show()
    }
}

/// Rejects an empty list: such a server could not be called.
fn non_empty(versions: Vec<Version>) -> Result<Protocols, String> {
    if versions.is_empty() {
        return Err("the list of protocol versions is empty; write 1.0, 0.3 or both".to_owned());
    }
    Ok(versions.into_iter().collect())
}

/// List of values: an array in TOML, separated by commas in text.
impl<T: Value> Value for Vec<T> {
    const KIND: &'static str = "list";

    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(T::read).collect()
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let items = value.get_ref().as_array();
        let items = items.ok_or_else(|| format!("{} is not a list of type {}", value.get_ref().type_str(), T::KIND))?;
        items.iter().map(T::from_toml).collect()
    }

    fn show(&self) -> Option<String> {
        Some(format!("[{}]", self.iter().filter_map(T::show).collect::<Vec<_>>().join(", ")))
    }
}

/// Structured value, such as a table or a list of tables: TOML in the file, and the TOML syntax in text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structure<T> {
    pub(crate) value: T,
    /// TOML on one line.
    text: String,
}

impl<T: DeserializeOwned> Value for Structure<T> {
    const KIND: &'static str = "TOML";

    fn read(text: &str) -> Result<Self, String> {
        Self::from_toml(&DeValue::parse(text).map_err(|error| error.message().to_owned())?)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let parsed = T::deserialize(ValueDeserializer::from(value.clone()));
        let text = inline(value.get_ref());
        parsed.map(|value| Self { value, text }).map_err(|error| error.message().to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

/// Formats a TOML value on one line.
fn inline(value: &DeValue<'_>) -> String {
    let joined = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => format!("[{}]", joined(&mut items.iter().map(|item| inline(item.get_ref())))),
        DeValue::Table(table) => {
            let member = |(name, value): (&Spanned<_>, &Spanned<_>)| {
                format!("{} = {}", quoted(name.get_ref()), inline(value.get_ref()))
            };
            format!("{{ {} }}", joined(&mut table.iter().map(member)))
        }
    }
}

/// Formats a TOML string.
fn quoted(text: &(impl fmt::Display + ?Sized)) -> String {
    let mut quoted = String::from('"');
    for c in text.to_string().chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => _ = write!(quoted, "\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Quotes and escapes the text of a value for an error message, up to 80 characters.
fn brief(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let end = text.char_indices().nth(MAX_CHARS).map_or(text.len(), |(offset, _)| offset);
    let ellipsis = if end < text.len() { "…" } else { "" };
    format!("`{}{ellipsis}`", text[..end].escape_debug())
}

/// Puts the indefinite article before the name of a type.
fn with_article(kind: &str) -> String {
    if kind.starts_with('`') {
        return kind.to_owned();
    }
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

#[cfg(test)]
mod tests;
