//! Tools that a model can call.

#[cfg(feature = "mcp")]
use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{Error, completion::ToolCall};
#[cfg(feature = "mcp")]
use crate::base::stderr::escaped;
use crate::{base::dependency::Dependency, protocol::pb::v1::AgentSkill};

#[cfg(feature = "mcp")]
pub(super) mod mcp;
#[cfg(feature = "mcp")]
mod tool_result;

/// Name of the tool with which the model asks the client.
pub(super) const ASK_USER: &str = "ask_user";

/// Tool that a model can call.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    /// Unique name, by which the model calls the tool.
    pub(super) name: String,
    pub(super) description: String,
    /// JSON Schema of the arguments.
    pub(super) schema: Value,
    pub(super) kind: ToolKind,
}

/// Kind of a tool: what a call of it does.
#[derive(Clone, Debug)]
pub(super) enum ToolKind {
    /// Asks the client, whose next message is the result.
    Question,
    /// Calls a tool of an MCP server.
    #[cfg(feature = "mcp")]
    Mcp {
        /// Position of the server.
        server: usize,
        /// Name of the tool at its server.
        own_name: String,
        /// The client has to approve each call.
        needs_approval: bool,
    },
}

impl Tool {
    /// Returns the tool with which the model asks the client.
    pub(super) fn question() -> Self {
        Self {
            name: ASK_USER.to_owned(),
            description: "Asks the user a question, and waits for the answer. Call it only if you can't go on without the answer."
                .to_owned(),
            schema: json!({
                "type": "object",
                "properties": { "question": { "type": "string" } },
                "required": ["question"],
            }),
            kind: ToolKind::Question,
        }
    }

    pub(super) fn is_question(&self) -> bool {
        matches!(self.kind, ToolKind::Question)
    }

    /// Returns the text with which a call asks the client: the question of the model, or whether the call is approved. `None`: it
    /// does not ask.
    ///
    /// # Errors
    /// The call has no question. The error is the result of the call for the model.
    pub(super) fn prompt(&self, call: &ToolCall) -> Result<Option<String>, String> {
        match &self.kind {
            ToolKind::Question => {
                let question = call.arguments()["question"].as_str().unwrap_or_default().trim().to_owned();
                if question.is_empty() { Err("Error: `question` is missing.".to_owned()) } else { Ok(Some(question)) }
            }
            #[cfg(feature = "mcp")]
            ToolKind::Mcp { needs_approval: true, .. } => {
                let arguments = escaped(&call.arguments().to_string());
                Ok(Some(format!("The model wants to call {} with {arguments}. Answer yes or no.", call.name)))
            }
            #[cfg(feature = "mcp")]
            ToolKind::Mcp { needs_approval: false, .. } => Ok(None),
        }
    }
}

/// Tools of an agent, with the servers that run them.
#[derive(Clone, Default)]
#[cfg_attr(feature = "mcp", expect(clippy::struct_field_names, reason = "no other name is clearer"))]
pub(super) struct Tools {
    pub(super) tools: Vec<Tool>,
    #[cfg(feature = "mcp")]
    servers: Arc<mcp::Servers>,
    /// A server has not listed its tools yet.
    #[cfg(feature = "mcp")]
    has_missing: bool,
}

impl Tools {
    /// Returns the tools of an agent without MCP servers.
    pub(super) fn new(can_ask: bool) -> Self {
        Self { tools: if can_ask { vec![Tool::question()] } else { Vec::new() }, ..Self::default() }
    }

    /// Returns the tools with those of servers that were not available before. `None`: there are no others.
    ///
    /// # Errors
    /// A server is not available.
    #[cfg_attr(not(feature = "mcp"), expect(clippy::unused_async, reason = "no tool has a server"))]
    pub(super) async fn completed(&self) -> Result<Option<Self>, Error> {
        #[cfg(feature = "mcp")]
        if self.has_missing {
            return self.with_missing().await.map(Some);
        }
        Ok(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Returns the tool with a name.
    pub(super) fn find(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Returns the names of the tools.
    pub(super) fn names(&self) -> Vec<&str> {
        self.tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    /// Returns the tools in the form of the API.
    pub(super) fn definitions(&self) -> Value {
        let function =
            |tool: &Tool| json!({ "name": tool.name, "description": tool.description, "parameters": tool.schema });
        self.tools.iter().map(|tool| json!({ "type": "function", "function": function(tool) })).collect()
    }

    /// Returns the tools of MCP servers as skills of an agent card.
    pub(super) fn skills(&self) -> Vec<AgentSkill> {
        let skill = |tool: &Tool| AgentSkill {
            id: tool.name.clone(),
            name: tool.name.clone(),
            description: tool.description.clone(),
            tags: vec!["tool".to_owned()],
            ..AgentSkill::default()
        };
        self.tools.iter().filter(|tool| !tool.is_question()).map(skill).collect()
    }

    /// Returns the servers of the tools as dependencies.
    pub(super) fn dependencies(&self) -> Vec<Dependency> {
        #[cfg(feature = "mcp")]
        return self.servers.dependencies();
        #[cfg(not(feature = "mcp"))]
        Vec::new()
    }

    /// Counts a call that the client has declined. Returns the result for the model.
    #[cfg_attr(not(feature = "mcp"), expect(unused_variables, reason = "no tool has a server"))]
    pub(super) fn decline(&self, tool: &Tool) -> String {
        #[cfg(feature = "mcp")]
        if let ToolKind::Mcp { server, .. } = &tool.kind
            && let Some(server) = self.servers.get(*server)
        {
            server.count("denied", Duration::ZERO);
        }
        "Error: the user has declined this call.".to_owned()
    }

    /// Calls a tool with arguments in JSON. Returns the result for the model, also if the call fails.
    #[cfg_attr(not(feature = "mcp"), expect(clippy::unused_async, unused_variables, reason = "no tool has a server"))]
    pub(super) async fn call(&self, tool: &Tool, arguments: &str) -> String {
        #[cfg(feature = "mcp")]
        if let ToolKind::Mcp { server, own_name, .. } = &tool.kind
            && let Some(server) = self.servers.get(*server)
        {
            return server.call(own_name, arguments).await;
        }
        format!("Error: there is no tool {}.", tool.name)
    }
}
