//! `a2a card`: downloads and validates agent cards, signs them, and verifies their signatures.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use url::Url;

use super::{
    connection::{Connection, block_on},
    read_file, read_limited,
    remote::{self, Discover},
    say,
    show::{self, OutputFormat, safe},
    terminal::{GREEN, RED, YELLOW, paint},
    warn,
};
use crate::{
    base::{
        jwks,
        jws::{MAX_KEY_FILE, PublicKeys, SigningKey},
        surrogates::repaired,
    },
    protocol::card_signature,
    service::card::{
        WELL_KNOWN,
        review::{Problem, Review, review},
    },
};

/// Maximum size of a card or key set, in bytes.
const MAX_DOCUMENT: usize = 4 << 20;

/// Commands of `a2a card`.
#[derive(Debug, Subcommand)]
pub(super) enum Card {
    /// Prints the card of an agent, as `a2a discover`.
    Get(Box<Discover>),
    /// Checks a card against the rules of both protocol versions. Exits with 0 if it is valid, else with 1.
    Validate(Box<Validate>),
    /// Prints a card with signatures for a private key. Those of other keys are kept.
    Sign(Sign),
    /// Verifies the signatures of a card. Exits with 0 if one is valid, else with 1.
    Verify(Verify),
}

/// Arguments of `a2a card sign`.
#[derive(Debug, Args)]
pub(super) struct Sign {
    /// Card in JSON.
    file: PathBuf,
    /// File with the private key in PKCS#8 PEM: P-256 (ES256), Ed25519 (`EdDSA`) or RSA (RS256).
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Key id in the signature. Defaults to the thumbprint of the public key (RFC 7638).
    #[arg(long, value_name = "ID")]
    kid: Option<String>,
}

/// Arguments of `a2a card verify`.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Card in JSON: a file, or a URL. A URL without a path is that of a server.
    #[arg(value_name = "FILE|URL")]
    card: String,
    /// File with public keys in PEM.
    #[arg(long, value_name = "FILE", required_unless_present = "jwks", conflicts_with = "jwks")]
    key: Option<PathBuf>,
    /// JSON Web Key Set: a file, or a URL such as `https://agent.example/.well-known/jwks.json`.
    #[arg(long, value_name = "FILE|URL")]
    jwks: Option<String>,
}

/// Arguments of `a2a card validate`.
#[derive(Debug, Args)]
pub(super) struct Validate {
    /// Card in JSON: a file, the URL of an agent or of its card, or `-` for stdin. A file takes precedence over a URL without a
    /// scheme.
    #[arg(value_name = "URL|FILE|-")]
    card: String,
    #[command(flatten)]
    connection: Connection,
}

/// Runs an `a2a card` command.
pub(super) fn run(command: &Card) -> anyhow::Result<()> {
    match command {
        Card::Get(arguments) => block_on(remote::discover(arguments)),
        Card::Validate(arguments) => validate(arguments),
        Card::Sign(arguments) => sign(arguments),
        Card::Verify(arguments) => verify(arguments),
    }
}

fn validate(arguments: &Validate) -> anyhow::Result<()> {
    let Validate { card: source, connection } = arguments;
    let json = if source == "-" {
        read_limited(std::io::stdin().lock(), MAX_DOCUMENT, "stdin")?.into()
    } else if !source.contains("://") && Path::new(source).exists() {
        read_file(Path::new(source), MAX_DOCUMENT)?.into()
    } else {
        let found = block_on(connection.card_document(source));
        let is_url = source.contains("://");
        if is_url { found? } else { found.with_context(|| format!("`{source}` is no file, and as a URL"))? }
    };
    let repaired = repaired(&json);
    let card = serde_json::from_slice(repaired.as_deref().unwrap_or(&json))
        .with_context(|| format!("{source} is not JSON"))?;
    let review = review(&card);
    let count = review.problems.len();
    say(&show::formatted(&review, connection.output, || review_text(source, &review))?)?;
    if count > 0 {
        bail!("{source}: the card has {count} {}", if count == 1 { "problem" } else { "problems" });
    }
    Ok(())
}

fn review_text(source: &str, review: &Review) -> String {
    let versions = review.versions.join(" and ");
    let mut text = if review.problems.is_empty() {
        format!("{} {}: card of {versions}\n", paint(GREEN, "valid"), safe(source))
    } else {
        String::new()
    };
    let problems = review.problems.iter().map(|problem| (RED, problem, ""));
    let warnings = review.warnings.iter().map(|warning| (YELLOW, warning, "; clients take the card"));
    for (color, Problem { versions, path, reason, remedy }, note) in problems.chain(warnings) {
        let path = if path.is_empty() { "the card" } else { path };
        let (path, reason) = (paint(color, safe(path)), safe(reason));
        _ = writeln!(text, "{path} {reason} ({}){note}\n  -> {}", versions.join(" and "), safe(remedy));
    }
    text
}

fn sign(arguments: &Sign) -> anyhow::Result<()> {
    let key = SigningKey::read(&arguments.key)?;
    let key = match &arguments.kid {
        Some(id) => key.with_id(id),
        None => key,
    };
    let card = read_file(&arguments.file, MAX_DOCUMENT)?;
    let signed = card_signature::sign(&card, &key).with_context(|| arguments.file.display().to_string())?;
    let signed: serde_json::Value = serde_json::from_slice(&signed)?;
    Ok(say(&show::json(&signed, OutputFormat::Json)?)?)
}

fn verify(arguments: &Verify) -> anyhow::Result<()> {
    let keys = match (&arguments.key, &arguments.jwks) {
        (Some(file), _) => {
            let pem = String::from_utf8(read_file(file, usize::try_from(MAX_KEY_FILE)?)?)?;
            PublicKeys::from_pem(&pem).with_context(|| file.display().to_string())?
        }
        (None, Some(source)) => PublicKeys::from_jwks(&load(source, "")?).with_context(|| source.clone())?,
        (None, None) => bail!("--key or --jwks: one of them is required"),
    };
    let card = load(&arguments.card, WELL_KNOWN)?;
    let verified = card_signature::verify(&card, &keys).with_context(|| arguments.card.clone())?;
    if let Some(version) = unsigned_version(&card, verified) {
        warn(&format!("{}: the members of protocol {version} are not signed", arguments.card));
    }
    Ok(say("verified\n")?)
}

/// Returns the version whose members a verified card has unsigned, if any.
fn unsigned_version(card: &[u8], verified: card_signature::Verified) -> Option<&'static str> {
    let card: serde_json::Value = serde_json::from_slice(card).ok()?;
    let unsigned = [("supportedInterfaces", verified.v1, "1.0"), ("url", verified.v03, "0.3")];
    let unsigned = unsigned.into_iter().find(|(member, is_signed, _)| card.get(member).is_some() && !is_signed);
    unsigned.map(|(_, _, version)| version)
}

/// Reads a file, or requests a URL. `default_path` replaces the path of a URL that has none.
fn load(source: &str, default_path: &str) -> anyhow::Result<Bytes> {
    match Url::parse(source) {
        Ok(mut url) if matches!(url.scheme(), "http" | "https") => {
            if url.path() == "/" && !default_path.is_empty() {
                url.set_path(default_path);
            }
            // Redirects are errors: the document would be that of another server.
            let found = async { jwks::request(url.as_str()).await.map_err(anyhow::Error::msg) };
            block_on(found).with_context(|| source.to_owned())
        }
        _ => Ok(read_file(Path::new(source), MAX_DOCUMENT)?.into()),
    }
}
