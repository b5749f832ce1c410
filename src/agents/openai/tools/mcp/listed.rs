//! Tools of MCP servers: requested until their servers have listed them, and named for the model.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{Approval, Connection, MAX_TOOLS, McpServer, RESTARTS, check};
use crate::{
    agents::openai::tools::{Tool, ToolKind, Tools},
    base::{
        dependency::{Dependency, OutboundResult},
        stderr::is_hidden,
    },
    engine::agent::Error,
};

/// Maximum size of the definitions of all tools in bytes.
const MAX_DEFINITION_BYTES: usize = 1 << 20;

/// Maximum length of the name of a tool, which is that of `OpenAI`.
const MAX_NAME: usize = 64;

/// Time that an agent waits at its start for its servers.
const START: Duration = Duration::from_secs(5);

/// Servers of an agent, and their tools so far.
#[derive(Default)]
pub(in crate::agents::openai) struct Servers {
    connections: Vec<Arc<Connection>>,
    lists: watch::Sender<Vec<Listing>>,
}

/// Tools of a server, or why it has listed none. `None`: it is asked for the first time.
type Listing = Option<Result<Vec<rmcp::model::Tool>, String>>;

impl Servers {
    pub(in crate::agents::openai) fn get(&self, position: usize) -> Option<&Connection> {
        self.connections.get(position).map(|connection| &**connection)
    }

    pub(in crate::agents::openai) fn dependencies(&self) -> Vec<Dependency> {
        self.connections.iter().map(|connection| connection.dependency.clone()).collect()
    }

    /// Requests the tools of a server, with backoff until it has listed them or the agent is dropped.
    async fn request_list(servers: Weak<Self>, position: usize) {
        for attempt in 0.. {
            let Some(servers) = servers.upgrade() else { return };
            let Some(connection) = servers.get(position) else { return };
            let (name, listed) = (&connection.server.name, connection.list().await);
            match &listed {
                Ok(tools) => tracing::info!(mcp.server = name, tools = tools.len(), "MCP server available"),
                Err(error) => {
                    tracing::warn!(mcp.server = name, error.cause = %error, "MCP server not available; retrying");
                }
            }
            let (is_listed, dependency) = (listed.is_ok(), connection.dependency.clone());
            // A model answers without the tools that it has, but not without those that it should have.
            dependency.set_optional(is_listed);
            servers.lists.send_modify(|lists| {
                if let Some(list) = lists.get_mut(position) {
                    *list = Some(listed.map_err(|error| error.to_string()));
                }
            });
            if is_listed {
                return;
            }
            drop(servers);
            let was_unreachable = matches!(dependency.state().last_error, Some((OutboundResult::Connect, _)));
            tokio::select! {
                () = sleep_until(Instant::now() + RESTARTS.without_jitter(attempt)) => {}
                // A probe has found it.
                () = dependency.wait_until_up(), if was_unreachable => {}
            }
        }
    }
}

impl Tools {
    /// Starts servers, and adds the tools that are listed soon.
    pub(in crate::agents::openai) async fn connect(self, servers: Vec<McpServer>) -> io::Result<Self> {
        for server in &servers {
            check(server).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", server.name)))?;
        }
        let lists = watch::Sender::new(vec![None; servers.len()]);
        let connections = servers.into_iter().map(Connection::new).collect();
        let servers = Arc::new(Servers { connections, lists });
        for position in 0..servers.connections.len() {
            tokio::spawn(Servers::request_list(Arc::downgrade(&servers), position));
        }
        let mut lists = servers.lists.subscribe();
        // A slow server does not delay the start.
        _ = timeout(START, lists.wait_for(|lists| lists.iter().all(Option::is_some))).await;
        let listed = lists.borrow().clone();
        Self { servers, ..self }.with_lists(&listed)
    }

    /// Returns the state of each server, for the startup message: its name, and the number of its tools or why it has listed none.
    pub(in crate::agents::openai) fn states(&self) -> Vec<(String, Result<usize, String>)> {
        let lists = self.servers.lists.borrow();
        let state = |list: &Listing| match list {
            Some(list) => list.as_ref().map(Vec::len).map_err(String::clone),
            None => Err("it has not responded yet".to_owned()),
        };
        let connections = self.servers.connections.iter();
        connections.zip(lists.iter()).map(|(connection, list)| (connection.server.name.clone(), state(list))).collect()
    }

    /// Returns these tools with those of the servers that were not available before.
    ///
    /// # Errors
    /// A server has not listed its tools. A turn without them would answer as if they did not exist.
    pub(in crate::agents::openai) async fn with_missing(&self) -> Result<Self, Error> {
        let mut lists = self.servers.lists.subscribe();
        // The sender is not dropped before.
        _ = lists.wait_for(|lists| lists.iter().all(Option::is_some)).await;
        // The tools of a server that a probe has just found are requested.
        let is_known = |(connection, list): (&Arc<Connection>, &Listing)| {
            matches!(list, Some(Ok(_))) || connection.dependency.state().is_down()
        };
        let connections = &self.servers.connections;
        _ = timeout(START, lists.wait_for(|lists| connections.iter().zip(lists).all(is_known))).await;
        let lists = lists.borrow().clone();
        let is_missing = |list: &Listing| !matches!(list, Some(Ok(_)));
        if let Some((connection, _)) = self.servers.connections.iter().zip(&lists).find(|(_, list)| is_missing(list)) {
            let name = visible(&connection.server.name);
            let text = format!("The tools of the MCP server {name} are not available. Send the message again later.");
            return Err(Error::public(text).because_of("unavailable"));
        }
        let failure = |error| Error::public("The tools of the MCP servers can't be used.").caused_by(error);
        self.with_lists(&lists).map_err(failure)
    }

    /// Returns the tools of the agent with those of servers.
    fn with_lists(&self, listed: &[Listing]) -> io::Result<Self> {
        let lists = listed.iter().map(|list| list.as_ref().and_then(|list| list.as_deref().ok()).unwrap_or_default());
        let lists: Vec<&[rmcp::model::Tool]> = lists.collect();
        let mut tools: Vec<Tool> = self.tools.iter().filter(|tool| tool.is_question()).cloned().collect();
        let mut names: BTreeSet<String> = tools.iter().map(|tool| tool.name.clone()).collect();
        let mut counts: HashMap<String, usize> = names.iter().map(|name| (name.clone(), 1)).collect();
        for tool in lists.iter().copied().flatten() {
            *counts.entry(tool.name.to_string()).or_default() += 1;
        }
        let servers = self.servers.connections.iter().map(|connection| &connection.server);
        for (position, (server, list)) in servers.zip(lists).enumerate() {
            if let Approval::Tools(approved) = &server.approval
                && matches!(listed.get(position), Some(Some(Ok(_))))
                && let Some(unknown) = approved.iter().find(|name| list.iter().all(|tool| tool.name != name.as_str()))
            {
                // A misspelled name would let the tool run without an approval.
                let known = list.iter().map(|tool| visible(&tool.name)).collect::<Vec<_>>().join(", ");
                let why = format!("{}: approve: there is no tool `{unknown}`; the server has {known}", server.name);
                return Err(io::Error::other(why));
            }
            for tool in list {
                if tool.name.trim().is_empty() {
                    return Err(io::Error::other(format!("{}: a tool has no name", server.name)));
                }
                let is_unique = counts.get(&*tool.name) == Some(&1);
                let full = if is_unique { tool.name.to_string() } else { format!("{}_{}", server.name, tool.name) };
                let name = function_name(&full);
                if !names.insert(name.clone()) {
                    tracing::warn!(mcp.server = server.name, "tool ignored: another one has the name {name}");
                    continue;
                }
                let mut schema = Value::Object((*tool.input_schema).clone());
                show_texts(&mut schema);
                tools.push(Tool {
                    name,
                    description: visible(tool.description.as_deref().unwrap_or_default()),
                    schema,
                    kind: ToolKind::Mcp {
                        server: position,
                        own_name: tool.name.to_string(),
                        needs_approval: server.needs_approval(&tool.name),
                    },
                });
            }
        }
        let has_missing = listed.iter().any(|list| !matches!(list, Some(Ok(_))));
        let tools = Self { tools, servers: Arc::clone(&self.servers), has_missing };
        let bytes = tools.definitions().to_string().len();
        if tools.tools.len() > MAX_TOOLS || bytes > MAX_DEFINITION_BYTES {
            let count = tools.tools.len();
            return Err(io::Error::other(format!(
                "{count} tools with {bytes} bytes exceed the limit of {MAX_TOOLS} tools or {MAX_DEFINITION_BYTES} bytes"
            )));
        }
        Ok(tools)
    }
}

/// Removes hidden characters, except for line feeds and tabs: a person would see another text than the model.
fn visible(text: &str) -> String {
    text.replace(|c| is_hidden(c) && !matches!(c, '\n' | '\t'), "")
}

/// Makes the texts for people in a schema [visible].
fn show_texts(schema: &mut Value) {
    if let Value::Object(members) = schema {
        for (name, value) in members {
            show_texts(value);
            if let (Value::String(text), "description" | "title") = (value, &**name) {
                *text = visible(text);
            }
        }
    } else if let Value::Array(values) = schema {
        values.iter_mut().for_each(show_texts);
    }
}

/// Returns a name that the API allows: letters, digits, `_` and `-`.
fn function_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    name.chars().map(allowed).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_limited() {
        assert_eq!(function_name("files.read/all"), "files_read_all");
        assert_eq!(function_name(&"x".repeat(100)).len(), MAX_NAME);
    }

    #[test]
    fn texts_of_tools_have_no_hidden_characters() {
        let mut schema =
            json!({ "title": "a\u{202e}b", "properties": { "c\u{7f}": { "description": "\u{1b}[1md\n\u{200f}" } } });
        let expected = json!({ "title": "ab", "properties": { "c\u{7f}": { "description": "[1md\n" } } });
        show_texts(&mut schema);
        assert_eq!(schema, expected);
    }
}
