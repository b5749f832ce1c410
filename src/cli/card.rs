//! `a2a card`: signs agent cards and verifies their signatures.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use url::Url;

use super::{read_file, say, warn};
use crate::{
    card::{WELL_KNOWN, signature},
    jose::{MAX_KEY_FILE, PublicKeys, SigningKey},
};

/// Maximum size of a card or key set, in bytes.
const MAX_DOCUMENT: usize = 4 << 20;

/// Time limit for the request of a card or key set.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Commands of `a2a card`.
#[derive(Debug, Subcommand)]
pub(super) enum Card {
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

/// Runs an `a2a card` command.
pub(super) fn run(command: &Card) -> anyhow::Result<()> {
    match command {
        Card::Sign(arguments) => sign(arguments),
        Card::Verify(arguments) => verify(arguments),
    }
}

fn sign(arguments: &Sign) -> anyhow::Result<()> {
    let key = SigningKey::read(&arguments.key).with_context(|| arguments.key.display().to_string())?;
    let key = match &arguments.kid {
        Some(id) => key.with_id(id),
        None => key,
    };
    let card = read_file(&arguments.file, MAX_DOCUMENT)?;
    let signed = signature::sign(&card, &key).with_context(|| arguments.file.display().to_string())?;
    let signed: serde_json::Value = serde_json::from_slice(&signed)?;
    say(&format!("{}\n", serde_json::to_string_pretty(&signed)?));
    Ok(())
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
    match signature::verify(&card, &keys) {
        Ok(verified) => {
            if let Some(version) = unsigned_version(&card, verified) {
                warn(&format!("{}: the members of protocol {version} are not signed", arguments.card));
            }
            say("verified\n");
            Ok(())
        }
        Err(error @ signature::VerifyError::NotCard(_)) => Err(error).with_context(|| arguments.card.clone()),
        Err(error @ (signature::VerifyError::Unsigned | signature::VerifyError::Invalid(_))) => {
            bail!("{}: {error}", arguments.card)
        }
    }
}

/// Returns the version whose members a verified card has unsigned, if any.
fn unsigned_version(card: &[u8], verified: signature::Verified) -> Option<&'static str> {
    let card: serde_json::Value = serde_json::from_slice(card).ok()?;
    let unsigned = [("supportedInterfaces", verified.v1, "1.0"), ("url", verified.v03, "0.3")];
    let unsigned = unsigned.into_iter().find(|(member, is_signed, _)| card.get(member).is_some() && !is_signed);
    unsigned.map(|(_, _, version)| version)
}

/// Reads a file, or requests a URL. `default_path` replaces the path of a URL that has none.
fn load(source: &str, default_path: &str) -> anyhow::Result<Vec<u8>> {
    match Url::parse(source) {
        Ok(mut url) if matches!(url.scheme(), "http" | "https") => {
            if url.path() == "/" && !default_path.is_empty() {
                url.set_path(default_path);
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(request(url)).with_context(|| source.to_owned())
        }
        _ => read_file(Path::new(source), MAX_DOCUMENT),
    }
}

/// Requests a document. Redirects are errors: the document would be that of another server.
async fn request(url: Url) -> anyhow::Result<Vec<u8>> {
    let policy = reqwest::redirect::Policy::none();
    let client = reqwest::Client::builder().timeout(TIMEOUT).redirect(policy).build()?;
    let mut response = client.get(url).send().await?;
    if response.status() != http::StatusCode::OK {
        bail!("the server returned {}", response.status().as_u16());
    }
    let mut content = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if content.len() + chunk.len() > MAX_DOCUMENT {
            bail!("the document is larger than {MAX_DOCUMENT} bytes");
        }
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}
