//! `a2a token`: makes, lists and revokes the tokens of a token file.

use std::{path::PathBuf, time::SystemTime};

use anyhow::{Context as _, bail};
use jiff::{Timestamp, Unit};

use super::{
    audited,
    config::{self, LoadedConfig},
    log::LogFormat,
    say, start_audit_log,
};
use crate::service::auth::{NewToken, TokenSource, add_token, list_tokens, revoke_token};

/// Makes, lists and revokes the tokens with which callers authenticate. A running server notices changes within a second.
#[derive(Debug, clap::Args)]
pub(super) struct Token {
    /// Token file. Defaults to `auth.tokens` of the configuration.
    #[arg(long, value_name = "PATH", global = true)]
    file: Option<PathBuf>,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Makes a token and prints its secret, which is stored nowhere. Creates the file if it does not exist.
    New(New),
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
    /// Can be repeated. By default, all.
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<String>,
    /// Time until the token expires, such as `30d`.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    expires: Option<std::time::Duration>,
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

/// Known scopes. Another one is a mistake.
const SCOPES: [&str; 5] = ["tasks:read", "tasks:write", "push:write", "card:extended", "admin"];

pub(super) fn run(arguments: Token) -> anyhow::Result<()> {
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
            if let Some(unknown) = scopes.iter().find(|scope| !SCOPES.contains(&scope.as_str()) && !has_prefix(scope)) {
                bail!("{unknown} is not a scope; use one of {}, agent:NAME or skill:ID", SCOPES.join(", "));
            }
            let now = SystemTime::now();
            let expires = expires.map(|after| now.checked_add(after).context("--expires is too long")).transpose()?;
            let expires = expires.map(|time| Timestamp::try_from(time).and_then(|time| time.round(Unit::Second)));
            let expires = expires.transpose().context("--expires is too long")?;
            let scopes = (!scopes.is_empty()).then(|| scopes.into_iter().collect());
            let mut token = NewToken::new(&name);
            (token.source, token.owner, token.tenant, token.scopes) = (place.source(), owner, tenant, scopes);
            token.expires = expires;
            let secret = add_token(&file, token, now)?;
            audited("token new", name.as_str(), 1);
            say(&format!("{secret}\n"))?;
        }
        TokenCommand::List => {
            for entry in list_tokens(&file)? {
                let scopes =
                    entry.scopes.map_or("all".to_owned(), |scopes| scopes.into_iter().collect::<Vec<_>>().join(" "));
                let owner = entry.owner.as_ref().unwrap_or(&entry.name);
                let tenant = entry.tenant.map(|tenant| format!("  tenant {tenant}")).unwrap_or_default();
                let expires = entry.expires.map_or("never".to_owned(), |time| time.to_string());
                say(&format!(
                    "{}  {}  owner {owner}{tenant}  scopes {scopes}  created {}  expires {expires}\n",
                    entry.name, entry.source, entry.created
                ))?;
            }
        }
        TokenCommand::Revoke { name } => {
            revoke_token(&file, &name)?;
            audited("token revoke", name.as_str(), 1);
        }
    }
    Ok(())
}

/// Returns true for the scope of a skill or of an agent.
fn has_prefix(scope: &str) -> bool {
    ["skill:", "agent:"].iter().any(|prefix| scope.strip_prefix(prefix).is_some_and(|name| !name.is_empty()))
}
