//! Agent that the configuration selects: the demo, a command, an HTTP endpoint, a model, or another A2A agent.

use std::{fmt::Write as _, path::Path, sync::Arc};

use anyhow::Context as _;

#[cfg(unix)]
use crate::{
    agents::{
        Exec, ExecFormat, ExecOptions,
        exec::{
            guard::own_program,
            script::{agent_name, script},
        },
    },
    cli::config::{CommandFormat, ExecConfig},
};
use crate::{
    agents::{HttpEndpoint, HttpOptions, Openai},
    cli::{
        config::{self, AgentUrl, CommandLine, Config, OpenaiConfig, Sourced},
        show,
        upstream::Gateway,
    },
    client::complete_url,
    engine::agent::{DynAgent, demo::Demo},
    protocol::pb::v1::AgentCard,
};

/// Agent of a configuration, with the value of the key that selects it.
#[derive(Clone, Copy)]
pub(super) enum AgentSource<'a> {
    Demo,
    Exec(&'a CommandLine),
    Http(&'a AgentUrl),
    Openai(&'a AgentUrl),
    Upstream(&'a AgentUrl),
}

impl<'a> AgentSource<'a> {
    /// Returns the agent of a configuration.
    ///
    /// # Errors
    /// The keys of several agents are set.
    pub(super) fn of(config: &'a Config) -> Result<Self, config::Error> {
        match (&config.exec.command, &config.http.url, &config.openai.url, &config.upstream.url) {
            (None, None, None, None) => Ok(Self::Demo),
            (Some(command), None, None, None) => Ok(Self::Exec(command)),
            (None, Some(url), None, None) => Ok(Self::Http(url)),
            (None, None, Some(url), None) => Ok(Self::Openai(url)),
            (None, None, None, Some(url)) => Ok(Self::Upstream(url)),
            _ => {
                let keys = "exec.command, http.url, openai.url and upstream.url";
                Err(config::Error::new(format!("several of {keys} are set; remove all but one of them")))
            }
        }
    }

    /// Returns true for the demo agent.
    pub(super) fn is_demo(self) -> bool {
        matches!(self, Self::Demo)
    }

    /// Returns the kind of the agent for its operator.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Exec(_) => "exec",
            Self::Http(_) => "http",
            Self::Openai(_) => "openai",
            Self::Upstream(_) => "upstream",
        }
    }

    /// Describes the agent for the startup message, without arguments other than a script, which may have secrets.
    pub(super) fn description(self, config: &Config) -> String {
        let origin =
            |url: &AgentUrl| complete_url(&url.0).map(|url| url.origin().ascii_serialization()).unwrap_or_default();
        match self {
            Self::Demo => "the demo".to_owned(),
            Self::Exec(command) => {
                let program = command.words.first().map(String::as_str);
                let script = script(&command.words).filter(|script| Some(*script) != program);
                format!("the command {}", program.into_iter().chain(script).collect::<Vec<_>>().join(" "))
            }
            Self::Http(url) => format!("the endpoint at {}", origin(url)),
            Self::Openai(url) => {
                let model = config.openai.model.as_deref().unwrap_or_default();
                format!("the model {} at {}", show::safe(model), origin(url))
            }
            Self::Upstream(url) => format!("the A2A agent at {}", origin(url)),
        }
    }

    /// Creates the agent, and the gateway if it is one, and describes its MCP servers in lines. `store` is the file of the tasks.
    pub(super) async fn create(
        self,
        config: &Config,
        store: Option<&Path>,
    ) -> anyhow::Result<(Arc<dyn DynAgent>, Option<Gateway>, String)> {
        let mut details = String::new();
        let agent: Arc<dyn DynAgent> = match self {
            Self::Demo => Arc::new(Demo),
            Self::Exec(command) => exec(command, config)?,
            Self::Http(url) => endpoint(&url.0, config)?,
            Self::Openai(url) => openai(&url.0, config, &mut details).await?,
            Self::Upstream(url) => {
                let gateway = Gateway::connect(&url.0, store, config).await?;
                return Ok((Arc::new(gateway.agent.clone()), Some(gateway), details));
            }
        };
        Ok((agent, None, details))
    }
}

/// Creates the agent that is an HTTP endpoint.
fn endpoint(url: &str, config: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    let options = HttpOptions::default()
        .token(config.http.token.as_ref().map(Sourced::credential))
        .secret(config.http.secret.as_ref().map(Sourced::credential))
        .idempotent(config.idempotent)
        .output_bytes(config.limits().artifact_bytes)
        .card(AgentCard::new("Endpoint").describe("Passes each message to an HTTP endpoint."));
    Ok(Arc::new(HttpEndpoint::new(url, options).context("http.url")?))
}

/// Creates the agent that is a model with a chat completions API, and starts its MCP servers, which it describes in lines.
async fn openai(url: &str, config: &Config, details: &mut String) -> anyhow::Result<Arc<dyn DynAgent>> {
    let error = |why: &str| config::Error::new(why.to_owned());
    let OpenaiConfig { model, key, system, parameters, mcp, options, .. } = &config.openai;
    let model = model.clone().filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| error("openai.model: is missing; name the model with --model"))?;
    let parameters = parameters.as_ref().map(|parameters| parameters.value.clone());
    let options = options
        .clone()
        .key(key.as_ref().map(Sourced::credential))
        .system(system.as_ref().map(|system| system.value.clone()))
        .parameters(parameters.unwrap_or_default())
        .output_bytes(config.limits().event_bytes)
        .card(AgentCard::new(&*model).describe("Answers with a language model."));
    let agent = Openai::new(url, model, options).map_err(|why| error(&format!("openai: {why}")))?;
    if mcp.is_empty() {
        return Ok(Arc::new(agent));
    }
    let servers = mcp.servers().map_err(|why| error(&format!("openai.mcp: {why}")))?;
    #[cfg(unix)]
    let servers = {
        let guard = own_program()?;
        servers.into_iter().map(|server| server.guard(Some(guard.clone()))).collect()
    };
    let agent = agent.with_mcp(servers).await.context("can't use the tools of an MCP server (openai.mcp)")?;
    for (name, tools) in agent.mcp_states() {
        let name = show::safe(&name);
        _ = match tools {
            Ok(count) => writeln!(details, "MCP server {name}: {count} tools"),
            Err(why) => writeln!(
                details,
                "MCP server {name}: not available, turns fail until a retry succeeds: {}",
                show::safe(&why)
            ),
        };
    }
    Ok(Arc::new(agent))
}

/// Operators of a shell, which would be arguments of a command without one.
#[cfg(unix)]
const SHELL_OPERATORS: [&str; 8] = ["|", "||", "&&", "&", ";", "<", ">", ">>"];

/// Creates the agent that is a command.
#[cfg(unix)]
fn exec(command: &CommandLine, config: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    let ExecConfig { format, workspace, env, memory, .. } = &config.exec;
    let words = &command.words;
    if let Some(operator) = words.iter().find(|word| SHELL_OPERATORS.contains(&word.as_str())) {
        let why = format!("exec.command: `{operator}` needs a shell; write sh -c '…'");
        return Err(config::Error::new(why).into());
    }
    let (format, is_persistent) = match format {
        CommandFormat::Text => (ExecFormat::Text, false),
        CommandFormat::JsonLines => (ExecFormat::JsonLines, false),
        CommandFormat::Persistent => (ExecFormat::JsonLines, true),
    };
    let options = ExecOptions::default()
        .format(format)
        .persistent(is_persistent)
        .workspace(workspace.clone())
        .env(env.as_ref().map(|env| env.value.clone()).unwrap_or_default())
        .output_bytes(config.limits().artifact_bytes)
        .memory(memory.map(|size| size.0.try_into()).transpose()?)
        .resumable(config.idempotent)
        .guard(Some(own_program()?))
        .card(AgentCard::new(agent_name(words)).describe("Runs a command for each message."));
    let agent = Exec::new(words, options);
    Ok(Arc::new(agent.map_err(|error| config::Error::new(format!("exec.command: {error}")))?))
}

#[cfg(not(unix))]
fn exec(_: &CommandLine, _: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    Err(config::Error::new("exec.command: commands are supported on Unix only".to_owned()).into())
}
