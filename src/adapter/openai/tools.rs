//! Tools that a model can call.

#[cfg(feature = "mcp")]
use std::sync::Arc;

use serde_json::{Value, json};

use crate::pb::v1::AgentSkill;

/// Tool that a model can call.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    /// Unique name, by which the model calls the tool.
    pub(super) name: String,
    pub(super) description: String,
    /// JSON Schema of the arguments.
    pub(super) schema: Value,
    /// The client has to approve each call.
    pub(super) needs_approval: bool,
    /// Position of the server of the tool.
    #[cfg(feature = "mcp")]
    pub(super) server: usize,
    /// Name of the tool at its server.
    #[cfg(feature = "mcp")]
    pub(super) own_name: String,
}

/// Tools of an agent, with the servers that run them.
#[derive(Clone, Default)]
pub(super) struct Tools {
    pub(super) tools: Vec<Tool>,
    #[cfg(feature = "mcp")]
    pub(super) servers: Arc<[super::mcp::Connection]>,
}

impl Tools {
    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Returns the tool with a name.
    pub(super) fn find(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Returns the tools in the form of the API.
    pub(super) fn definitions(&self) -> Value {
        let function =
            |tool: &Tool| json!({ "name": tool.name, "description": tool.description, "parameters": tool.schema });
        self.tools.iter().map(|tool| json!({ "type": "function", "function": function(tool) })).collect()
    }

    /// Returns the tools as skills of an agent card.
    pub(super) fn skills(&self) -> Vec<AgentSkill> {
        let skill = |tool: &Tool| AgentSkill {
            id: tool.name.clone(),
            name: tool.name.clone(),
            description: tool.description.clone(),
            tags: vec!["tool".to_owned()],
            ..AgentSkill::default()
        };
        self.tools.iter().map(skill).collect()
    }

    /// Calls a tool with arguments in JSON. Returns the result for the model, also if the call fails.
    #[cfg(feature = "mcp")]
    pub(super) async fn call(&self, tool: &Tool, arguments: &str) -> String {
        match self.servers.get(tool.server) {
            Some(server) => server.call(&tool.own_name, arguments).await,
            None => format!("Error: there is no tool {}.", tool.name),
        }
    }

    /// Returns an error for the model: there are no tools without the crate feature `mcp`.
    #[cfg(not(feature = "mcp"))]
    #[expect(clippy::unused_async, reason = "awaits the server of the tool with the crate feature mcp")]
    pub(super) async fn call(&self, tool: &Tool, _: &str) -> String {
        format!("Error: there is no tool {}.", tool.name)
    }
}
