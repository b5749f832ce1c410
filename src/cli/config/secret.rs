//! Secrets and texts, which may be in a file: `"…"`, or `{ file = "…" }`.

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};
use toml::{Spanned, de::DeValue};

use super::{
    Config,
    value::{HIDDEN, MAX_FILE, Value, quoted},
};
use crate::{
    base::{credential::Credential, secret_file::read_secret},
    service::auth::Token,
};

/// Beginning of the errors of a file with a [`Secret`], which do not have its content.
pub(super) const SECRET_FILE: &str = "secret file";

/// Value, with the path of its file if it is in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    file: Option<String>,
}

impl<T> Sourced<T> {
    /// Returns the path of the file.
    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

/// Minimum length of a token that other machines could guess.
pub(crate) const MIN_TOKEN: usize = 16;

impl Sourced<Token> {
    /// Returns the credential, which is read again when its file changes.
    pub(crate) fn credential(&self) -> Credential {
        watched(self.file(), self.value.expose(), read_token)
    }

    /// Returns the credential of callers. A change of its file to a token that could be guessed is rejected, unless it is short already.
    pub(crate) fn credential_of_callers(&self) -> Credential {
        let is_short = self.value.expose().len() < MIN_TOKEN;
        watched(self.file(), self.value.expose(), if is_short { read_token } else { read_long_token })
    }
}

fn read_token(path: &Path) -> Result<String, String> {
    Token::from_file(path).map(|token| token.expose().to_owned())
}

fn read_long_token(path: &Path) -> Result<String, String> {
    let token = read_token(path)?;
    let is_short = token.len() < MIN_TOKEN;
    if is_short { Err(format!("the token is shorter than {MIN_TOKEN} characters")) } else { Ok(token) }
}

/// Returns the credential in a file, or the one of the configuration if there is no file, or it has become unreadable.
fn watched(file: Option<&str>, value: &str, read: fn(&Path) -> Result<String, String>) -> Credential {
    let Some(path) = file else { return value.into() };
    Credential::in_file(path, read).unwrap_or_else(|reason| {
        tracing::error!(path, reason, "credential can't be read; the one before stays in use until a restart");
        value.into()
    })
}

impl Config {
    /// Logs a warning for each file with a secret that other users can read. The log did not exist when the files were read.
    pub(crate) fn warn_of_shared_files(&self) {
        let Self { token, http, openai, upstream, push, .. } = self;
        let tokens = [token, &http.token, &http.secret, &openai.key, &upstream.token].into_iter().flatten();
        let secrets = push.credentials.secrets().chain(openai.mcp.secrets()).filter_map(|secret| secret.0.file());
        for path in tokens.filter_map(Sourced::file).chain(secrets) {
            drop(read_secret(Path::new(path), MAX_FILE));
        }
    }
}

impl<T: Value> Value for Sourced<T> {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;
    const FROM_FILE: bool = true;

    fn read(text: &str) -> Result<Self, String> {
        Ok(Self { value: T::read(text)?, file: None })
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let Some(table) = value.get_ref().as_table() else {
            return Ok(Self { value: T::from_toml(value)?, file: None });
        };
        let path = table.get("file").filter(|_| table.len() == 1).and_then(|path| path.get_ref().as_str());
        Self::from_file(Path::new(path.ok_or("write a text, or { file = \"/run/secrets/name\" }")?))
    }

    fn from_file(path: &Path) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            return Err("the path of the file is empty".to_owned());
        }
        let file = path.display().to_string();
        let value = T::from_file(path).map_err(|error| format!("{file}: {error}"))?;
        Ok(Self { value, file: Some(file) })
    }

    fn show(&self) -> Option<String> {
        match &self.file {
            Some(path) => Some(format!("{{ file = {} }}", quoted(path))),
            None => self.value.show(),
        }
    }
}

/// Secret within a table. It is not printed, not even in an error.
#[derive(Clone, PartialEq)]
pub(super) struct Secret(Sourced<String>);

impl Secret {
    pub(super) fn expose(&self) -> &str {
        &self.0.value
    }

    /// Returns the credential, which is read again when its file changes.
    pub(super) fn credential(&self) -> Credential {
        watched(self.0.file(), self.expose(), read_text)
    }
}

/// Without its text.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0.file {
            Some(path) => serializer.collect_map([("file", path)]),
            None => serializer.serialize_str(HIDDEN),
        }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Input {
            Text(String),
            File { file: String },
            Other(IgnoredAny),
        }
        let error = |why: String| Err(serde::de::Error::custom(why));
        match Input::deserialize(deserializer)? {
            Input::Text(text) if !text.is_empty() => Ok(Self(Sourced { value: text, file: None })),
            Input::File { file } => match read_text(Path::new(&file)) {
                Err(why) => error(format!("{SECRET_FILE} {file}{why}")),
                Ok(value) => Ok(Self(Sourced { value, file: Some(file) })),
            },
            Input::Text(_) | Input::Other(_) => {
                error("a secret must be a text that is not empty, or { file = \"…\" }".to_owned())
            }
        }
    }
}

/// Reads a secret. The error follows the path.
fn read_text(path: &Path) -> Result<String, String> {
    let text = read_secret(path, MAX_FILE).map_err(|error| format!(": {error}"))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err(" is empty".to_owned()) } else { Ok(text.to_owned()) }
}

debug_fields!(Secret {});

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::load::tests::load_from, *};

    #[test]
    fn values_may_be_in_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        fs::write(path("token"), "hunter2\n").unwrap();
        fs::write(path("prompt"), "Be brief.\n").unwrap();
        let (token, prompt) = (path("token"), path("prompt"));
        let text = format!("token = {{ file = '{token}' }}\nopenai.system = {{ file = '{prompt}' }}");
        let loaded = load_from(&text, &[("A2A_HTTP_TOKEN_FILE", &token)], &[]).unwrap();
        let config = &loaded.config;
        assert_eq!(config.token.as_ref().unwrap().value.expose(), "hunter2");
        assert_eq!(config.http.token.as_ref().unwrap().value.expose(), "hunter2");
        assert_eq!(config.openai.system.as_ref().unwrap().value, "Be brief.\n");
        let printed = loaded.print();
        assert!(printed.contains(&format!("token = {{ file = {} }}", quoted(&token))), "{printed}");
        assert!(!printed.contains("hunter"), "{printed}");
    }

    #[test]
    fn errors_of_files_name_the_key_and_not_the_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token").display().to_string();
        let load = |variables: &[(&str, &str)]| load_from("", variables, &[]).unwrap_err();
        let error = load(&[("A2A_TOKEN_FILE", &path)]);
        assert!(error.starts_with(&format!("A2A_TOKEN_FILE: {path}: ")), "{error}");
        fs::write(&path, "hunter 2").unwrap();
        let error = load(&[("A2A_TOKEN_FILE", &path)]);
        assert!(error.contains("visible ASCII") && !error.contains("hunter"), "{error}");
        let error = load(&[("A2A_TOKEN_FILE", "")]);
        assert_eq!(error, "A2A_TOKEN_FILE: the path of the file is empty");
        fs::write(&path, "b").unwrap();
        let error = load(&[("A2A_TOKEN", "a"), ("A2A_TOKEN_FILE", &path)]);
        assert!(error.contains("sets the same key"), "{error}");
        for text in ["token = { path = 'a' }", "token = { file = 1 }", "token = { file = 'a', x = 1 }", "token = {}"] {
            let error = load_from(text, &[], &[]).unwrap_err();
            assert!(error.contains("token: write a text, or { file = "), "{text}: {error}");
        }
    }
}
