//! Agent that the configuration selects: the demo, a command, an HTTP endpoint, a model, or another A2A agent.

use std::{io::Read as _, path::Path, sync::Arc};

use anyhow::Context as _;

#[cfg(unix)]
use crate::{
    adapter::{Exec, ExecOptions, Format, process_guard::own_program},
    config::CommandFormat,
};
use crate::{
    adapter::{HttpEndpoint, HttpOptions, Openai, OpenaiOptions},
    agent::{DynAgent, demo::Demo},
    auth::Token,
    base::secret_file::read_secret,
    cli::{show, upstream::Gateway},
    client::complete_url,
    config::{self, AgentUrl, CommandLine, Config, FilePath},
    pb::v1::AgentCard,
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
    /// The keys of several agents are set, or the one of `agent` is missing.
    pub(super) fn of(config: &'a Config) -> Result<Self, config::Error> {
        let error = |why: &str| Err(config::Error::new(why.to_owned()));
        match (&config.exec_command, &config.http_url, &config.openai_url, &config.upstream_url) {
            (Some(command), None, None, None) => Ok(Self::Exec(command)),
            (None, Some(url), None, None) => Ok(Self::Http(url)),
            (None, None, Some(url), None) => Ok(Self::Openai(url)),
            (None, None, None, Some(url)) => Ok(Self::Upstream(url)),
            (None, None, None, None) => match config.agent {
                config::Agent::Demo => Ok(Self::Demo),
                config::Agent::Exec => error("exec.command: is missing; the agent `exec` needs a command"),
                config::Agent::Http => error("http.url: is missing; the agent `http` needs a URL"),
                config::Agent::Openai => error("openai.url: is missing; the agent `openai` needs a URL"),
                config::Agent::Upstream => error("upstream.url: is missing; the agent `upstream` needs a URL"),
            },
            _ => {
                let keys = "exec.command, http.url, openai.url and upstream.url";
                error(&format!("agent: several of {keys} are set; remove all but one of them"))
            }
        }
    }

    /// Returns true for the demo agent.
    pub(super) fn is_demo(self) -> bool {
        matches!(self, Self::Demo)
    }

    /// Describes the agent for the startup message, without arguments and paths, which may have secrets.
    pub(super) fn description(self, config: &Config) -> String {
        let origin =
            |url: &AgentUrl| complete_url(&url.0).map(|url| url.origin().ascii_serialization()).unwrap_or_default();
        match self {
            Self::Demo => "the demo".to_owned(),
            Self::Exec(command) => format!("the command {}", command.words.first().map_or("", String::as_str)),
            Self::Http(url) => format!("the endpoint at {}", origin(url)),
            Self::Openai(url) => {
                let model = config.openai_model.as_deref().unwrap_or_default();
                format!("the model {} at {}", show::safe(model), origin(url))
            }
            Self::Upstream(url) => format!("the A2A agent at {}", origin(url)),
        }
    }

    /// Creates the agent, and the gateway if it is one. `store` is the file of the tasks.
    pub(super) async fn create(
        self,
        config: &Config,
        store: Option<&Path>,
    ) -> anyhow::Result<(Arc<dyn DynAgent>, Option<Gateway>)> {
        let agent: Arc<dyn DynAgent> = match self {
            Self::Demo => Arc::new(Demo),
            Self::Exec(command) => exec(command, config)?,
            Self::Http(url) => endpoint(&url.0, config)?,
            Self::Openai(url) => openai(&url.0, config).await?,
            Self::Upstream(url) => {
                let gateway = Gateway::connect(&url.0, store, config).await?;
                return Ok((Arc::new(gateway.agent.clone()), Some(gateway)));
            }
        };
        Ok((agent, None))
    }
}

/// Creates the agent that is an HTTP endpoint.
fn endpoint(url: &str, config: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    let text = |secret: &Option<Token>| secret.as_ref().map(|secret| secret.expose().to_owned());
    let options = HttpOptions::default()
        .token(text(&config.http_token))
        .secret(text(&config.http_secret))
        .idempotent(config.http_idempotent)
        .timeout(config.http_timeout.0)
        .output_bytes(config.http_output_bytes.0)
        .card(AgentCard::new("Endpoint").describe("Passes each message to an HTTP endpoint."));
    Ok(Arc::new(HttpEndpoint::new(url, options).context("http.url")?))
}

/// Maximum size of a file with a key or a system prompt, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Creates the agent that is a model with a chat completions API, and starts its MCP servers.
async fn openai(url: &str, config: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    let error = |why: &str| config::Error::new(why.to_owned());
    let model = config.openai_model.clone().filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| error("openai.model: is missing; name the model with --model"))?;
    let key = match (&config.openai_key, &config.openai_key_file) {
        (Some(_), Some(_)) => return Err(error("openai.key_file: openai.key is set too; remove one of them").into()),
        (Some(key), None) => Some(key.expose().to_owned()),
        (None, Some(FilePath(path))) => {
            let text = read_secret(path, MAX_FILE)
                .with_context(|| format!("can't read {} in openai.key_file", path.display()))?;
            let key = Token::new(text.trim()).map_err(|why| error(&format!("openai.key_file: {why}")))?;
            Some(key.expose().to_owned())
        }
        (None, None) => None,
    };
    let system = match (&config.openai_system, &config.openai_system_file) {
        (Some(_), Some(_)) => {
            return Err(error("openai.system_file: openai.system is set too; remove one of them").into());
        }
        (Some(text), None) => Some(text.clone()),
        (None, Some(FilePath(path))) => {
            let mut text = String::new();
            let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
            let length = read.with_context(|| format!("can't read {} in openai.system_file", path.display()))?;
            if u64::try_from(length)? > MAX_FILE {
                return Err(error(&format!("openai.system_file: the file is larger than {MAX_FILE} bytes")).into());
            }
            Some(text)
        }
        (None, None) => None,
    };
    let parameters = config.openai_parameters.as_ref().map(|parameters| parameters.value.clone());
    let options = OpenaiOptions::default()
        .key(key)
        .system(system)
        .parameters(parameters.unwrap_or_default())
        .timeout(config.openai_timeout.0)
        .idle_timeout(config.openai_idle_timeout)
        .output_bytes(config.openai_output_bytes.0)
        .history(config.openai_history)
        .history_bytes(config.openai_history_bytes.0)
        .image_urls(config.openai_image_urls)
        .ask(config.openai_ask)
        .tool_rounds(config.openai_tool_rounds)
        .card(AgentCard::new(&*model).describe("Answers with a language model."));
    let agent = Openai::new(url, model, options).map_err(|why| error(&format!("openai: {why}")))?;
    if config.openai_mcp.is_empty() {
        return Ok(Arc::new(agent));
    }
    let servers = config.openai_mcp.servers().map_err(|why| error(&format!("openai.mcp: {why}")))?;
    #[cfg(unix)]
    let servers = {
        let guard = own_program()?;
        servers.into_iter().map(|server| server.guard(Some(guard.clone()))).collect()
    };
    Ok(Arc::new(agent.with_mcp(servers).await.context("can't use the tools of an MCP server (openai.mcp)")?))
}

/// Operators of a shell, which would be arguments of a command without one.
#[cfg(unix)]
const SHELL_OPERATORS: [&str; 8] = ["|", "||", "&&", "&", ";", "<", ">", ">>"];

/// Creates the agent that is a command.
#[cfg(unix)]
fn exec(command: &CommandLine, config: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    let words = if config.exec_shell {
        vec!["/bin/sh".to_owned(), "-c".to_owned(), command.text.clone()]
    } else {
        if let Some(operator) = command.words.iter().find(|word| SHELL_OPERATORS.contains(&word.as_str())) {
            let why = format!("exec.command: `{operator}` needs a shell; set exec.shell (--exec-shell)");
            return Err(config::Error::new(why).into());
        }
        command.words.clone()
    };
    let program = words.first().map(|program| program.rsplit('/').next().unwrap_or(program).to_owned());
    let name = if config.exec_shell { "Command".to_owned() } else { program.unwrap_or_default() };
    let format = match config.exec_format {
        CommandFormat::Text => Format::Text,
        CommandFormat::JsonLines => Format::JsonLines,
    };
    let options = ExecOptions::default()
        .format(format)
        .chunk(config.exec_chunk.as_ref().map(|text| text.replace("\\n", "\n").replace("\\t", "\t")))
        .persistent(config.exec_persistent)
        .workspace(config.exec_workspace.as_ref().map(|directory| directory.0.clone()))
        .env(config.exec_env.as_ref().map(|env| env.value.clone()).unwrap_or_default())
        .concurrency(config.exec_concurrency)
        .timeout(config.exec_timeout.0)
        .output_bytes(config.exec_output_bytes.0)
        .memory(config.exec_memory.map(|size| size.0.try_into()).transpose()?)
        .cpu_time(config.exec_cpu_time)
        .processes(config.exec_processes)
        .grace(config.cancel_grace)
        .resumable(config.exec_resumable)
        .guard(Some(own_program()?))
        .card(AgentCard::new(name).describe("Runs a command for each message."));
    let agent = Exec::new(words, options);
    Ok(Arc::new(agent.map_err(|error| config::Error::new(format!("exec.command: {error}")))?))
}

#[cfg(not(unix))]
fn exec(_: &CommandLine, _: &Config) -> anyhow::Result<Arc<dyn DynAgent>> {
    Err(config::Error::new("exec.command: commands are supported on Unix only".to_owned()).into())
}
