//! Credentials for webhooks in the configuration: a table for each host, whose secret is not printed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::{
    Spanned,
    de::{DeValue, ValueDeserializer},
};

use super::{
    load::Error,
    secret::Secret,
    value::{Value, inline},
};
use crate::service::push::{ClientCredentials, HostCredentials, host_key, token_endpoint};

/// Credentials by the host of a webhook.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WebhookHosts(BTreeMap<String, ClientConfig>);

/// Client of a token endpoint.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ClientConfig {
    token_url: String,
    client_id: String,
    client_secret: Secret,
    scope: Option<String>,
    audience: Option<String>,
    resource: Option<String>,
}

impl ClientConfig {
    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        if value.get_ref().as_table().is_none() {
            return Err(format!("{} is not a table", value.get_ref().type_str()));
        }
        let config = Self::deserialize(ValueDeserializer::from(value.clone()));
        let config = config.map_err(|error| error.message().to_owned())?;
        token_endpoint(&config.token_url).map_err(|error| error.to_string())?;
        if config.client_id.is_empty() {
            return Err("client_id must not be empty".to_owned());
        }
        Ok(config)
    }

    /// Creates the credentials.
    fn credentials(&self) -> Result<ClientCredentials, String> {
        let credentials = ClientCredentials::new(&self.token_url, &self.client_id, self.client_secret.credential());
        let credentials = credentials.map_err(|error| error.to_string())?;
        let parameters = [("scope", &self.scope), ("audience", &self.audience), ("resource", &self.resource)];
        let set = parameters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        Ok(set.fold(credentials, |credentials, (name, value)| credentials.parameter(name, value)))
    }
}

impl WebhookHosts {
    /// Returns the secrets of all clients.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.0.values().map(|client| &client.client_secret)
    }

    /// Creates the credentials of all hosts. `None` if there are none.
    ///
    /// # Errors
    /// The HTTP client can't be created.
    pub(crate) fn credentials(&self) -> Result<Option<HostCredentials>, Error> {
        let mut all = HostCredentials::default();
        for (host, config) in &self.0 {
            let added =
                config.credentials().and_then(|client| all.host(host, client).map_err(|error| error.to_string()));
            all = added.map_err(|error| Error::new(format!("push.credentials: {host}: {error}")))?;
        }
        Ok((!self.0.is_empty()).then_some(all))
    }
}

impl Value for WebhookHosts {
    const KIND: &'static str = "secret TOML";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, String> {
        const EXAMPLE: &str = r#"{ "hooks.example.com" = { token_url = "…", client_id = "…", client_secret = "…" } }"#;
        // The error of the parser may contain a secret.
        Self::from_toml(&DeValue::parse(text).map_err(|_| format!("not a TOML table; write {EXAMPLE}"))?)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let table = value.get_ref().as_table();
        let table = table.ok_or_else(|| format!("{} is not a table of hosts", value.get_ref().type_str()))?;
        let mut hosts = BTreeMap::new();
        for (host, value) in table {
            let name = host.get_ref().to_string();
            host_key(&name).map_err(|error| error.to_string())?;
            let config = ClientConfig::read(value).map_err(|error| format!("{name}: {error}"))?;
            hosts.insert(name, config);
        }
        Ok(Self(hosts))
    }

    fn show(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| inline(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = r#"token_url = "https://login.example/token", client_id = "a2a""#;

    #[test]
    fn secrets_are_not_printed() {
        let read = WebhookHosts::read(&format!(
            r#"{{ "hooks.example" = {{ {CLIENT}, client_secret = "hunter2", scope = "a b" }} }}"#
        ));
        let read = read.unwrap();
        let printed = read.show().unwrap();
        assert_eq!(
            printed,
            format!(r#"{{ "hooks.example" = {{ {CLIENT}, client_secret = "(hidden)", scope = "a b" }} }}"#)
        );
        assert!(!format!("{read:?}").contains("hunter"));
        assert!(WebhookHosts::read(&printed).is_ok());
        assert!(!format!("{:?}", read.credentials().unwrap()).contains("hunter"));
        assert!(WebhookHosts::default().credentials().unwrap().is_none());
    }

    #[test]
    fn invalid_tables_are_rejected_without_their_secrets() {
        let with = |members: &str| format!(r#"{{ "hooks.example" = {{ {members} }} }}"#);
        let client = |members: &str| with(&format!("{CLIENT}, {members}"));
        for (text, expected) in [
            (String::new(), "not a TOML table"),
            ("{ hunter2".to_owned(), "not a TOML table"),
            ("\"hunter2\"".to_owned(), "string is not a table of hosts"),
            (r#"{ "hooks.example" = "hunter2" }"#.to_owned(), "hooks.example: string is not a table"),
            (r#"{ "a/b" = {} }"#.to_owned(), "`a/b` is not a host"),
            (with(""), "missing field `token_url`"),
            (client("client_secret = 7070707"), "a secret must be a text"),
            (client("client_secret = ['hunter2']"), "a secret must be a text"),
            (client("client_secret = ''"), "a secret must be a text that is not empty"),
            (client("scope = 'a'"), "missing field `client_secret`"),
            (client("client_secret = { file = '/none/secret' }"), "secret file /none/secret: "),
            (client("client_secrt = 'hunter2'"), "unknown field `client_secrt`"),
            (
                with("token_url = 'http://login.example/', client_id = 'a', client_secret = 'hunter2'"),
                "token_url: must be a URL with https",
            ),
            (
                with("token_url = 'https://u:hunter2@login.example/', client_id = 'a', client_secret = 'x'"),
                "token_url: must be a URL",
            ),
        ] {
            let error = WebhookHosts::read(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter") && !error.contains("7070707"), "{error}");
        }
    }

    #[test]
    fn secret_may_be_in_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let text = format!(
            r#"{{ "h.example" = {{ {CLIENT}, client_secret = {{ file = {} }} }} }}"#,
            crate::cli::config::value::quoted(&path.display())
        );
        for content in [None, Some(""), Some("\n")] {
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let error = WebhookHosts::read(&text).unwrap_err();
            assert!(error.contains("h.example: ") && error.contains("secret"), "{error}");
        }
        std::fs::write(&path, "hunter2\n").unwrap();
        let read = WebhookHosts::read(&text).unwrap();
        assert!(read.credentials().unwrap().is_some());
        assert_eq!(read.show().unwrap(), text);
    }
}
