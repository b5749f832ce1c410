//! Flags of all commands that call an agent: binding, version, credentials, TLS, time limit and output.

use std::{fs, path::PathBuf, sync::Once, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser},
};
use tokio::runtime;

use super::{
    Interrupted, Usage, config,
    debug::DEBUG,
    failure, log, report,
    show::{OutputFormat, safe, shell_command},
    warn,
};
use crate::{
    base::trace::{MAX_STATE, TraceContext},
    client::{CatalogEntry, Client, ClientBuilder, Retry, complete_url, shown_url},
    protocol::{
        call::Binding,
        error::{Error, ErrorKind, without_sentence},
        message::hops,
        pb::v1::AgentCard,
        version::Version,
    },
};

/// Heading of the flags that select how an agent is called.
const CONNECTION: &str = "Connection";

/// Values of `--binding`.
const BINDINGS: [(&str, Binding); 3] =
    [("rest", Binding::Rest), ("jsonrpc", Binding::JsonRpc), ("grpc", Binding::Grpc)];

/// Heading of the flags with credentials.
const CREDENTIALS: &str = "Credentials";

/// Heading of the flags that select what is printed and written.
pub(super) const OUTPUT: &str = "Output";

/// Time limit of a call that does not wait for an agent.
pub(super) const SHORT: Option<Duration> = Some(Duration::from_secs(30));

/// Time limit for the request of a card.
const CARD: Duration = Duration::from_secs(10);

/// Options of all commands that call an agent.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Args)]
#[command(next_help_heading = CONNECTION)]
pub(super) struct Connection {
    /// Binding to use. Defaults to the first interface of the agent's card.
    #[arg(long, visible_alias = "transport", value_name = "BINDING", value_parser = PossibleValuesParser::new(BINDINGS.map(|(name, _)| name)))]
    binding: Option<String>,
    /// Protocol version to use. Defaults to that of the first interface of the agent's card.
    #[arg(long, value_name = "VERSION", hide_short_help = true, value_parser = PossibleValuesParser::new([PossibleValue::new("1.0").alias("latest"), PossibleValue::new("0.3")]))]
    protocol: Option<String>,
    /// Tenant of all requests. Defaults to that of the interface.
    #[arg(long, hide_short_help = true)]
    tenant: Option<String>,
    /// Time limit for a call with its retries, such as `30s`.
    ///
    /// Streams, `send` and `chat` have none unless this is given.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(super) timeout: Option<Duration>,
    /// PEM file with further TLS root certificates.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Accepts any TLS certificate of the server. For tests only, and not over gRPC.
    ///
    /// An attacker in the network can read and change all calls.
    #[arg(long)]
    pub(super) insecure_tls: bool,
    /// Accepted for scripts of the official command line: gRPC without TLS. The scheme of the URL decides.
    #[arg(long, hide = true)]
    insecure: bool,
    /// Bearer token. Other users of the machine can see arguments: prefer `A2A_CLIENT_TOKEN`.
    #[arg(long, env = config::CLIENT_TOKEN_VARIABLE, hide_env_values = true, help_heading = CREDENTIALS)]
    token: Option<String>,
    /// Value of the header `Authorization`, such as `Bearer TOKEN`. Takes precedence over `--token`.
    #[arg(long, value_name = "CREDENTIALS", help_heading = CREDENTIALS, hide_short_help = true)]
    auth: Option<String>,
    /// API key, which is sent where the agent's card declares it: `KEY`, or `SCHEME=KEY` for one of several schemes. May be
    /// repeated. Other users of the machine can see arguments: prefer `A2A_CLIENT_API_KEY`.
    #[arg(
        long, value_name = "KEY", env = config::CLIENT_API_KEY_VARIABLE, hide_env_values = true, help_heading = CREDENTIALS,
        hide_short_help = true
    )]
    api_key: Vec<String>,
    /// Id of an OAuth client, with which access tokens are requested (client credentials grant).
    #[arg(long, value_name = "ID", requires = "client_secret", help_heading = CREDENTIALS, hide_short_help = true)]
    client_id: Option<String>,
    /// Secret of the OAuth client. Other users of the machine can see arguments: prefer `A2A_CLIENT_SECRET`.
    #[arg(
        long, value_name = "SECRET", env = config::CLIENT_SECRET_VARIABLE, hide_env_values = true, help_heading = CREDENTIALS,
        hide_short_help = true
    )]
    client_secret: Option<String>,
    /// Token endpoint for the OAuth client. Defaults to that of the agent's card.
    #[arg(long, value_name = "URL", requires = "client_id", help_heading = CREDENTIALS, hide_short_help = true)]
    token_url: Option<String>,
    /// Scopes of access tokens, separated by spaces. Defaults to those that the agent's card requires.
    #[arg(long, value_name = "SCOPES", requires = "client_id", help_heading = CREDENTIALS, hide_short_help = true)]
    scopes: Option<String>,
    /// PEM file with the certificate of the client, for agents that require one (mutual TLS).
    #[arg(long, value_name = "FILE", requires = "client_key", help_heading = CREDENTIALS, hide_short_help = true)]
    client_cert: Option<PathBuf>,
    /// PEM file with the private key of the client's certificate.
    #[arg(long, value_name = "FILE", requires = "client_cert", help_heading = CREDENTIALS, hide_short_help = true)]
    client_key: Option<PathBuf>,
    /// Header of all requests. May be repeated.
    #[arg(long, value_name = "NAME: VALUE", help_heading = CREDENTIALS)]
    header: Vec<String>,
    /// Service parameter of all requests, which is a header. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = CREDENTIALS, hide_short_help = true)]
    svc_param: Vec<String>,
    /// Sends credentials to interfaces of this origin too, if the card names it. May be repeated.
    #[arg(long, value_name = "URL", help_heading = CREDENTIALS, hide_short_help = true)]
    trust_origin: Vec<String>,
    /// Output format, also of errors. `--json` is `-o json`.
    #[arg(short, long, default_value = "text", value_name = "FORMAT", help_heading = OUTPUT)]
    pub(super) output: OutputFormat,
    /// Prints the interface that is used, and the cursors of events, to stderr.
    #[arg(short, long, help_heading = OUTPUT)]
    pub(super) verbose: bool,
    /// Prints a line for each request and response to stderr, without secrets.
    #[arg(long, help_heading = OUTPUT, hide_short_help = true)]
    debug: bool,
}

/// Agent and options of a command.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// URL of the agent or of its card. `http://` is added for hosts of this machine, else `https://`.
    pub(super) url: String,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Agent and task of a command.
#[derive(Debug, Args)]
pub(super) struct TaskOf {
    /// URL of the agent or of its card.
    pub(super) url: String,
    /// Id of the task.
    #[arg(value_name = "TASK")]
    pub(super) task_id: String,
    #[command(flatten)]
    pub(super) connection: Connection,
}

impl Connection {
    /// Formats a command that goes on with the same agent, in the same way. Secrets, and headers, which may have some, are left
    /// out. `words` are the name of the command and its operands; `flags` are its own.
    pub(super) fn next_command(&self, words: &[&str], flags: &[(&str, &str)]) -> String {
        let path = |file: &Option<PathBuf>| file.as_ref().map(|file| file.to_string_lossy().into_owned());
        let of_connection = [
            ("--binding", self.binding.clone()),
            ("--protocol", self.protocol.clone()),
            ("--tenant", self.tenant.clone()),
            ("--ca", path(&self.ca)),
            ("--client-cert", path(&self.client_cert)),
            ("--client-key", path(&self.client_key)),
        ];
        let of_connection = of_connection.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        let origins = self.trust_origin.iter().map(|origin| ("--trust-origin", origin.clone()));
        let own = flags.iter().map(|&(flag, value)| (flag, value.to_owned()));
        // Agents choose ids. One that begins with a hyphen would be read as a flag.
        let is_flag = |text: &str| text.starts_with('-');
        let end = words.iter().position(|word| is_flag(word)).unwrap_or(words.len());
        let (words, late) = words.split_at(end);
        let mut command: Vec<_> = ["a2a"].iter().chain(words).map(|&word| word.to_owned()).collect();
        for (flag, value) in own.chain(of_connection).chain(origins) {
            if is_flag(&value) {
                command.push(format!("{flag}={value}"));
            } else {
                command.extend([flag.to_owned(), value]);
            }
        }
        if self.insecure_tls {
            command.push("--insecure-tls".to_owned());
        }
        if !late.is_empty() {
            command.extend(["--"].iter().chain(late).map(|&word| word.to_owned()));
        }
        shell_command(&command.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns true if a flag or variable has the value of `Authorization`.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some() || self.auth.is_some()
    }

    /// Returns the options of a client, without a time limit.
    pub(super) fn builder(&self) -> anyhow::Result<ClientBuilder> {
        // An error of the flags, not of an agent.
        self.configured().map_err(|error| error.downcast().map_or_else(|error| error, usage))
    }

    fn configured(&self) -> anyhow::Result<ClientBuilder> {
        log::init_client();
        let mut builder = Client::builder();
        if let Some(token) = &self.token {
            builder = builder.bearer(token)?;
        }
        if let Some(credentials) = &self.auth {
            builder = builder.authorization(credentials)?;
        }
        for key in &self.api_key {
            builder = match key.split_once('=') {
                // A key may end with `=`.
                Some((scheme, key)) if !key.trim_matches('=').is_empty() => builder.api_key_for(scheme, key),
                _ => builder.api_key(key),
            };
        }
        if let (Some(id), Some(secret)) = (&self.client_id, &self.client_secret) {
            builder = builder.client_credentials(id, secret)?;
            if let Some(url) = &self.token_url {
                builder = builder.token_url(url)?;
            }
            if let Some(scopes) = &self.scopes {
                builder = builder.scopes(scopes);
            }
        }
        let read = |path: &PathBuf| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        if let (Some(certificate), Some(key)) = (&self.client_cert, &self.client_key) {
            builder = builder.client_certificate(&read(certificate)?, &read(key)?)?;
        }
        let pair =
            |text: &str, separator| text.split_once(separator).map(|(a, b)| (a.trim().to_owned(), b.trim().to_owned()));
        for (flag, headers, separator) in [("--header", &self.header, ':'), ("--svc-param", &self.svc_param, '=')] {
            for text in headers {
                // The argument may be a secret, so that it is not printed.
                let (name, value) =
                    pair(text, separator).ok_or_else(|| Usage(format!("{flag}: expected NAME{separator}VALUE")))?;
                builder = builder.header(&name, &value)?;
            }
        }
        for origin in &self.trust_origin {
            builder = builder.trust_origin(origin)?;
        }
        if let Some(path) = &self.ca {
            builder = builder.roots(&read(path)?)?;
        }
        if self.insecure_tls {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| warn("--insecure-tls: the certificate of the server is not verified"));
            builder = builder.danger_accept_invalid_certs(true);
        }
        if self.debug {
            builder = builder.observer(DEBUG);
        }
        if let Some(tenant) = &self.tenant {
            builder = builder.tenant(tenant);
        }
        if let Some((_, binding)) = BINDINGS.into_iter().find(|(name, _)| self.binding.as_deref() == Some(*name)) {
            builder = builder.binding(binding);
        }
        if let Some(version) = &self.protocol {
            // The name of the newest version is `latest`.
            builder = builder.version(Version::from_text(version).unwrap_or_default());
        }
        Ok(builder)
    }

    /// Returns true if only interfaces of one binding or version are used.
    pub(super) fn selects_interfaces(&self) -> bool {
        self.binding.is_some() || self.protocol.is_some()
    }

    /// Returns true if stderr is free for a progress line.
    pub(super) fn shows_progress(&self) -> bool {
        self.output == OutputFormat::Text && !self.verbose && !self.debug
    }

    /// Connects to the agent at a URL.
    pub(super) async fn connect(&self, url: &str, limit: Option<Duration>) -> anyhow::Result<Client> {
        let connected = self.limited(limit)?.connect(url).await;
        let client = connected.map_err(|error| with_url(error, url))?;
        if let (true, Some(interface)) = (self.verbose, client.interface()) {
            let binding = match interface.binding {
                Binding::Rest => "HTTP+JSON",
                Binding::JsonRpc => "JSONRPC",
                Binding::Grpc => "GRPC",
                Binding::InProcess => "in process",
            };
            report(&format!("{binding} {} at {}\n", interface.version.as_str(), safe(&shown_url(&interface.url))));
        }
        // The trace of the program that runs this one.
        let variable = |name| std::env::var(name).ok();
        let Some(trace) = variable("TRACEPARENT").and_then(|trace| TraceContext::parse(&trace)) else {
            return Ok(client);
        };
        if self.verbose {
            report(&format!("trace {}\n", trace.trace_id()));
        }
        let state = variable("TRACESTATE").filter(|state| (1..=MAX_STATE).contains(&state.len()));
        Ok(client.with_trace(trace.to_header(), state))
    }

    /// Downloads the card of the agent at a URL, once.
    pub(super) async fn card_document(&self, url: &str) -> anyhow::Result<Bytes> {
        let builder = self.limited(Some(CARD))?.retry(Retry::never());
        let found = match complete_url(url) {
            Ok(url) => builder.card_document(&url).await,
            Err(error) => Err(error),
        };
        Ok(found.map_err(|error| with_url(error, url))?.json)
    }

    /// Reads the catalog of agents at a URL.
    pub(super) async fn catalog(&self, url: &str) -> anyhow::Result<Vec<CatalogEntry>> {
        let entries = self.limited(SHORT)?.catalog(url).await;
        entries.map_err(|error| with_url(error, url))
    }

    /// Returns a client of an agent with a known card that makes each call once, and resumes no stream.
    pub(super) fn without_retries(&self, card: &AgentCard, url: &str) -> anyhow::Result<Client> {
        Ok(self.limited(None)?.retry(Retry::never()).with_card(card.clone(), Some(url))?)
    }

    /// Explains the error of a call whose task may go on. Its id may be empty.
    pub(super) fn unfinished(&self, error: Error, url: &str, task_id: &str) -> anyhow::Error {
        let words = if task_id.is_empty() { &["list", "tasks", url][..] } else { &["subscribe", url, task_id] };
        let is_lost = !task_id.is_empty() && error.to_string().contains("(Connect)");
        match complete_url(url) {
            Ok(url) if is_lost || error.kind() == ErrorKind::DeadlineExceeded => {
                failure::explained(error, &url, &format!("\nthen: {}", self.next_command(words, &[])))
            }
            Ok(_) | Err(_) => error.into(),
        }
    }

    /// Returns the options of a client with a time limit.
    pub(super) fn limited(&self, limit: Option<Duration>) -> anyhow::Result<ClientBuilder> {
        let builder = self.builder()?;
        Ok(if let Some(limit) = self.timeout.or(limit) { builder.timeout(limit) } else { builder })
    }
}

/// Explains the error of an agent that can't be reached, or of a URL that is none.
fn with_url(error: Error, url: &str) -> anyhow::Error {
    complete_url(url).map_or_else(usage, |url| failure::explained(error, &url, ""))
}

/// Converts an error of a flag or an argument.
#[expect(clippy::needless_pass_by_value, reason = "the signature fits `map_or_else`")]
fn usage(error: Error) -> anyhow::Error {
    Usage(without_sentence(error.kind(), &error.to_string()).to_owned()).into()
}

/// Waits for a result. Ctrl-C ends the wait.
pub(super) async fn interruptible<T>(result: impl Future<Output = T>) -> Result<T, Interrupted> {
    tokio::select! {
        result = result => Ok(result),
        _ = tokio::signal::ctrl_c() => Err(Interrupted),
    }
}

/// Runs a command on a runtime of its own.
pub(super) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let result = match config::hops() {
        Some(count) => runtime.block_on(hops::turn(count, command)),
        None => runtime.block_on(command),
    };
    // Work that blocks does not delay the end.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn next_command_repeats_flags_without_credentials() {
        #[derive(Parser)]
        struct Arguments {
            #[command(flatten)]
            connection: Connection,
        }
        let parsed = |flags: &[&str]| Arguments::try_parse_from([&["a2a"], flags].concat()).unwrap().connection;
        let next = |flags: &[&str]| parsed(flags).next_command(&["chat", "localhost:8080"], &[]);
        assert_eq!(next(&["--token", "s3cret", "--timeout", "3s"]), "a2a chat localhost:8080");
        let flags = ["--binding", "grpc", "--protocol", "0.3", "--tenant", "a b", "--insecure-tls"];
        let flags = [&flags[..], &["--trust-origin", "https://b.test"]].concat();
        let expected = "a2a chat localhost:8080 --binding grpc --protocol 0.3 --tenant 'a b' --trust-origin \
                        https://b.test --insecure-tls";
        assert_eq!(next(&flags), expected);
        assert_eq!(next(&["--tenant=-a"]), "a2a chat localhost:8080 '--tenant=-a'");
        let connection = parsed(&["--tenant", "a"]);
        let send = connection.next_command(&["send", "localhost"], &[("--task", "-1")]);
        assert_eq!(send, "a2a send localhost '--task=-1' --tenant a");
        assert_eq!(
            connection.next_command(&["subscribe", "localhost", "-1"], &[]),
            "a2a subscribe localhost --tenant a -- -1"
        );
    }
}
