//! `a2a token`: makes, rotates, lists and revokes the tokens of a token file.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use super::{
    audited,
    config::{self, LoadedConfig},
    log::LogFormat,
    report, say,
    show::{self, OutputFormat},
    start_audit_log,
};
use crate::service::auth::{NewToken, TokenEntry, TokenSource, add_token, list_tokens, revoke_token, rotate_token};

/// Makes, rotates, lists and revokes the tokens with which callers authenticate. A running server notices changes within a second.
#[derive(Debug, clap::Args)]
pub(super) struct Token {
    /// Token file. Defaults to `auth.tokens` of the configuration.
    #[arg(long, value_name = "PATH", global = true)]
    file: Option<PathBuf>,
    /// Format of the output: text, indented JSON, or JSON on one line.
    #[arg(long, short, global = true, value_enum, default_value = "text", hide_default_value = true)]
    output: OutputFormat,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Makes a token and prints its secret, which is stored nowhere. Creates the file if it does not exist.
    New(New),
    /// Replaces the secret of a token, and prints the new one. The old one is still accepted for a while.
    Rotate {
        /// Name of the token.
        name: String,
        /// Time for which the old secret is accepted, such as `1h`. Zero: it is rejected at once.
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "24h")]
        grace: Duration,
    },
    /// Lists the tokens, without their secrets.
    List,
    /// Revokes a token.
    Revoke {
        /// Name of the token.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct New {
    /// Name of the token, unique in the file.
    name: String,
    /// Owner of the tasks that are made with the token. Defaults to its name.
    #[arg(long)]
    owner: Option<String>,
    /// Tenant to which the token is bound.
    #[arg(long)]
    tenant: Option<String>,
    /// Permitted scope: `tasks:read`, `tasks:write`, `push:write`, `card:extended`, `admin`, `agent:NAME` or `skill:ID`.
    /// Can be repeated. `all`: each of them. By default, `tasks:read` and `tasks:write`.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Time until the token expires, such as `30d`.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    expires: Option<Duration>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Place {
    /// Makes a password for HTTP Basic, with the name of the token as the user.
    #[arg(long)]
    basic: bool,
    /// Makes an API key for a header of this name.
    #[arg(long, value_name = "NAME")]
    header: Option<String>,
    /// Makes an API key for a query parameter of this name. URLs are in the logs of proxies: prefer a header.
    #[arg(long, value_name = "NAME")]
    query: Option<String>,
    /// Makes an API key for a cookie of this name.
    #[arg(long, value_name = "NAME")]
    cookie: Option<String>,
}

impl Place {
    fn source(self) -> TokenSource {
        match self {
            Self { header: Some(name), .. } => TokenSource::Header(name.to_ascii_lowercase()),
            Self { query: Some(name), .. } => TokenSource::Query(name),
            Self { cookie: Some(name), .. } => TokenSource::Cookie(name),
            Self { basic: true, .. } => TokenSource::Basic,
            Self { .. } => TokenSource::Bearer,
        }
    }
}

/// Scopes of a token without `--scope`.
const DEFAULT_SCOPES: [&str; 2] = ["tasks:read", "tasks:write"];

/// Value of `--scope` for a token without limits.
const ALL: &str = "all";

/// Known scopes. Another one is a mistake.
const SCOPES: [&str; 5] = ["tasks:read", "tasks:write", "push:write", "card:extended", "admin"];

pub(super) fn run(arguments: Token) -> anyhow::Result<()> {
    let output = arguments.output;
    let (file, format) = if let Some(file) = arguments.file {
        (file, LogFormat::default())
    } else {
        let LoadedConfig { config, .. } = config::load(None, &[])?;
        let file = config
            .auth
            .tokens
            .context("set auth.tokens in a2a.toml (A2A_AUTH_TOKENS), or name the file with --file")?;
        (file, config.log.format)
    };
    if !matches!(arguments.command, TokenCommand::List) {
        start_audit_log(format);
    }
    match arguments.command {
        TokenCommand::New(new) => {
            let New { name, owner, tenant, scopes, expires, place } = new;
            let is_known = |scope: &str| scope == ALL || SCOPES.contains(&scope) || has_prefix(scope);
            if let Some(unknown) = scopes.iter().find(|scope| !is_known(scope)) {
                bail!("{unknown} is not a scope; use one of\n{}, agent:NAME, skill:ID or {ALL}", SCOPES.join(", "));
            }
            let expires = expires.map(|after| end(after).context("--expires is too long")).transpose()?;
            let scopes = if scopes.is_empty() { DEFAULT_SCOPES.map(str::to_owned).into() } else { scopes };
            let scopes = (!scopes.iter().any(|scope| scope == ALL)).then(|| scopes.into_iter().collect());
            let mut token = NewToken::new(&name);
            (token.source, token.owner, token.tenant, token.scopes) = (place.source(), owner, tenant, scopes);
            token.expires = expires;
            let secret = add_token(&file, token, SystemTime::now())?;
            audited("token new", name.as_str(), 1);
            print(output, &json!({"name": name, "token": secret}), &format!("{secret}\n"))?;
        }
        TokenCommand::Rotate { name, grace } => {
            let expires = if grace.is_zero() { Timestamp::try_from(SystemTime::now()).ok() } else { end(grace) };
            let expires = expires.context("--grace is too long")?;
            let secret = rotate_token(&file, &name, expires)?;
            audited("token rotate", name.as_str(), 1);
            print(output, &json!({"name": name, "token": secret}), &format!("{secret}\n"))?;
            let end =
                if grace.is_zero() { "rejected from now on".to_owned() } else { format!("accepted until {expires}") };
            report(&format!("note: the old secret of {name} is {end}\n"));
        }
        TokenCommand::List => {
            let tokens = list_tokens(&file)?;
            if output == OutputFormat::Text {
                let width = tokens.iter().map(|token| token.name.len()).max().unwrap_or_default().clamp(4, 32);
                say(&format!("{:<width$}  {:<12}  {:<10}  {:<12}  SCOPES\n", "NAME", "OWNER", "EXPIRES", "SENT AS"))?;
                tokens.iter().try_for_each(|token| say(&line(token, width)))?;
            } else {
                say(&show::json(&tokens.iter().map(to_json).collect::<Vec<_>>(), output)?)?;
            }
        }
        TokenCommand::Revoke { name } => {
            revoke_token(&file, &name)?;
            audited("token revoke", name.as_str(), 1);
            print(output, &json!({"name": name}), "")?;
        }
    }
    Ok(())
}

/// Returns the time after a duration, in whole seconds.
fn end(after: Duration) -> Option<Timestamp> {
    Timestamp::try_from(SystemTime::now().checked_add(after)?).and_then(|time| time.round(Unit::Second)).ok()
}

/// Prints a result.
fn print(format: OutputFormat, json: &Value, text: &str) -> anyhow::Result<()> {
    Ok(say(&show::formatted(json, format, || text.to_owned())?)?)
}

/// Formats a token as a line of at most 80 columns.
fn line(TokenEntry { name, source, owner, tenant, scopes, expires, .. }: &TokenEntry, width: usize) -> String {
    let tenant = tenant.as_ref().map(|tenant| format!(" ({tenant})")).unwrap_or_default();
    let owner = format!("{}{tenant}", owner.as_ref().unwrap_or(name));
    let expires = expires.map_or_else(|| "never".to_owned(), |time| time.strftime("%F").to_string());
    let scopes = scopes.as_ref().map(|scopes| scopes.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
    let scopes = scopes.unwrap_or_else(|| ALL.to_owned());
    let (name, owner, source) = (show::cut(name, width), show::cut(&owner, 12), source.to_string());
    let line = format!("{name:<width$}  {owner:<12}  {expires:<10}  {source:<12}  {scopes}");
    format!("{}\n", show::cut(&line, 80))
}

fn to_json(token: &TokenEntry) -> Value {
    let mut json = serde_json::to_value(token).unwrap_or_default();
    for secret in ["", "/previous"] {
        json.pointer_mut(secret).and_then(Value::as_object_mut).and_then(|entry| entry.remove("sha256"));
    }
    json
}

/// Returns true for the scope of a skill or of an agent.
fn has_prefix(scope: &str) -> bool {
    ["skill:", "agent:"].iter().any(|prefix| scope.strip_prefix(prefix).is_some_and(|name| !name.is_empty()))
}
