//! MCP servers in the configuration: a list of tables, whose secrets are not printed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize, Serializer};
use toml::{
    Spanned,
    de::{DeValue, ValueDeserializer},
};

use super::{
    secret::{SECRET_FILE, Secret},
    value::{ByteSize, HIDDEN, Value, inline},
};
use crate::agents::{Approval, McpServer, McpTransport};

/// MCP servers whose tools a model can call.
#[derive(Clone, Debug, Default)]
pub(crate) struct McpServers(Vec<ServerConfig>);

/// MCP server: a command, or a URL.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ServerConfig {
    name: String,
    command: Option<Vec<String>>,
    #[serde(default, serialize_with = "names", skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    url: Option<String>,
    token: Option<Secret>,
    timeout: Option<String>,
    result_bytes: Option<ByteCount>,
    approve: Option<Approve>,
}

/// Size: a number of bytes, or text with a unit.
#[derive(Clone, Deserialize, Serialize)]
#[serde(untagged)]
enum ByteCount {
    Number(usize),
    Text(String),
}

/// Tools that need an approval: their names, or all.
#[derive(Clone, Deserialize, Serialize)]
#[serde(untagged)]
enum Approve {
    Tools(BTreeSet<String>),
    All(String),
}

/// Serializes variables without their values.
fn names<S: Serializer>(variables: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(variables.keys().map(|name| (name, HIDDEN)))
}

// Omits arguments, variables and tokens, which may be secret.
debug_fields!(ServerConfig { name });

impl ServerConfig {
    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        const FORM: &str = "write { name = \"…\", command = [\"…\"] } or { name = \"…\", url = \"…\" }";
        if value.get_ref().as_table().is_none() {
            return Err(format!("{} is not a table; {FORM}", value.get_ref().type_str()));
        }
        let config = Self::deserialize(ValueDeserializer::from(value.clone()));
        // Messages about types quote values, which may be secret.
        let config = config.map_err(|error| match error.message() {
            message
                if ["unknown field", "missing field", SECRET_FILE].iter().any(|start| message.starts_with(start)) =>
            {
                message.to_owned()
            }
            _ => format!("a value has the wrong type; {FORM}"),
        })?;
        if config.name.is_empty() {
            return Err("name must not be empty".to_owned());
        }
        config.server().map_err(|why| format!("{}: {why}", config.name))?;
        Ok(config)
    }

    /// Creates the server.
    fn server(&self) -> Result<McpServer, &'static str> {
        let transport = match (&self.command, &self.url) {
            (Some(command), None) if command.first().is_none_or(String::is_empty) => {
                return Err("the command is empty");
            }
            (Some(_), None) if self.token.is_some() => return Err("token needs url"),
            (None, Some(_)) if !self.env.is_empty() => return Err("env needs command"),
            (Some(command), None) => McpTransport::Command(command.clone(), self.env.clone()),
            (None, Some(url)) => {
                McpTransport::Url(url.clone(), self.token.as_ref().map(|token| token.expose().to_owned()))
            }
            _ => return Err("set either command or url"),
        };
        let mut server = McpServer::new(&self.name, transport);
        if let Some(timeout) = &self.timeout {
            let timeout = Duration::read(timeout).ok().filter(|timeout| !timeout.is_zero());
            server = server.timeout(timeout.ok_or("timeout is not a duration; write 30s or 5m")?);
        }
        if let Some(size) = &self.result_bytes {
            let bytes = match size {
                ByteCount::Number(bytes) => Some(*bytes),
                ByteCount::Text(text) => ByteSize::read(text).ok().map(|size| size.0),
            };
            server = server.result_bytes(bytes.ok_or("result_bytes is not a size; write 65536 or 64KiB")?);
        }
        match &self.approve {
            Some(Approve::Tools(tools)) => Ok(server.approval(Approval::Tools(tools.clone()))),
            Some(Approve::All(text)) if text == "all" => Ok(server.approval(Approval::All)),
            Some(Approve::All(_)) => Err("approve: write a list of tools, or \"all\""),
            None => Ok(server),
        }
    }
}

impl McpServers {
    /// Returns the tokens of all servers.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.0.iter().filter_map(|server| server.token.as_ref())
    }

    /// Returns true if there are no servers.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Creates the servers.
    ///
    /// # Errors
    /// An option is invalid.
    pub(crate) fn servers(&self) -> Result<Vec<McpServer>, &'static str> {
        self.0.iter().map(ServerConfig::server).collect()
    }
}

impl Value for McpServers {
    const KIND: &'static str = "secret TOML";
    const SECRET: bool = true;

    fn read(text: &str) -> Result<Self, String> {
        const EXAMPLE: &str = r#"[{ name = "files", command = ["mcp-server", "/srv"] }]"#;
        // The error of the parser may contain a secret.
        Self::from_toml(&DeValue::parse(text).map_err(|_| format!("not a list of TOML tables; write {EXAMPLE}"))?)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let list = value.get_ref().as_array();
        let list = list.ok_or_else(|| format!("{} is not a list of servers", value.get_ref().type_str()))?;
        let servers: Vec<_> = list.iter().map(ServerConfig::read).collect::<Result<_, _>>()?;
        let names: BTreeSet<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        if names.len() < servers.len() {
            return Err("several servers have the same name".to_owned());
        }
        Ok(Self(servers))
    }

    fn show(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| inline(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let command = r#"name = "files", command = ["mcp", "/srv"], env = { KEY = "SECRET" }"#;
        let url = r#"name = "web", url = "https://e.example/mcp", token = "SECRET", timeout = "30s""#;
        let limits = r#"result_bytes = "1KiB", approve = ["a", "b"]"#;
        let text = format!(r#"[{{ {command}, approve = "all" }}, {{ {url}, {limits} }}]"#);
        let read = McpServers::read(&text.replace("SECRET", "hunter2")).unwrap();
        let printed = read.show().unwrap();
        assert_eq!(printed, text.replace("SECRET", "(hidden)"));
        assert!(McpServers::read(&printed).is_ok() && !format!("{read:?}").contains("hunter"));
        let servers = read.servers().unwrap();
        assert_eq!((servers[0].approval.clone(), servers[1].timeout), (Approval::All, Duration::from_secs(30)));
        assert_eq!(servers[1].result_bytes, 1024);
        assert_eq!(McpServers::default().show(), None);
    }

    #[test]
    fn invalid_servers_are_rejected_without_their_secrets() {
        for (text, expected) in [
            ("hunter2", "not a list of TOML tables"),
            ("'hunter2'", "string is not a list of servers"),
            ("['hunter2']", "string is not a table"),
            ("[{}]", "missing field `name`"),
            ("[{ name = 'a', tokn = 'hunter2' }]", "unknown field `tokn`"),
            ("[{ name = 'a', command = 'hunter2' }]", "a value has the wrong type"),
            ("[{ name = 'a', url = 'b', token = { file = '/none/token' } }]", "secret file /none/token: "),
            ("[{ name = '', url = 'hunter2' }]", "name must not be empty"),
            ("[{ name = 'a' }]", "a: set either command or url"),
            ("[{ name = 'a', command = [] }]", "a: the command is empty"),
            ("[{ name = 'a', command = ['b'], token = 'hunter2' }]", "a: token needs url"),
            ("[{ name = 'a', url = 'b', env = { A = 'hunter2' } }]", "a: env needs command"),
            ("[{ name = 'a', url = 'b', timeout = 'soon' }]", "a: timeout is not a duration"),
            ("[{ name = 'a', url = 'b', result_bytes = 'few' }]", "a: result_bytes is not a size"),
            ("[{ name = 'a', url = 'b', approve = 'some' }]", "a: approve: write a list"),
            ("[{ name = 'a', url = 'b' }, { name = 'a', url = 'c' }]", "several servers have the same name"),
        ] {
            let error = McpServers::read(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter"), "{text}: {error}");
        }
    }
}
