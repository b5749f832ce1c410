//! Checks of the agent card: where it is, its form, and its URLs.

use serde_json::Value;
use url::Url;

use super::{Finding, Report, Status, network::is_local};
use crate::{
    cli::card::rules::{Problem, Review, review},
    client::{ClientBuilder, Document, Retry},
    error::ErrorKind,
    pb::v1::AgentCard,
    v03,
};

/// Card of the agent, with its URL.
pub(super) struct FoundCard {
    pub(super) card: AgentCard,
    pub(super) url: Url,
}

/// Makes the checks. `None` if there is no card that can be used.
pub(super) async fn check(
    url: &Url,
    builder: &ClientBuilder,
    report: &mut Report,
) -> anyhow::Result<Option<FoundCard>> {
    let mut document = None;
    report.check("card", download(url, builder, &mut document)).await?;
    let Some(Document { url: at, json, .. }) = document else { return Ok(None) };
    let card = match v03::card::from_json(&json) {
        Ok(card) if !card.supported_interfaces.is_empty() => card,
        Ok(_) => {
            let remedy = "list each binding and protocol version in supportedInterfaces";
            report.add("card: schema", Finding::failed("the card has no interface", remedy))?;
            return Ok(None);
        }
        Err(error) => {
            let remedy = "give each member of the card the type that the specification defines";
            report.add("card: schema", Finding::failed(error.to_string(), remedy))?;
            return Ok(None);
        }
    };
    report.add("card: schema", schema(&serde_json::from_slice(&json).unwrap_or_default()))?;
    report.add("card: urls", urls(&card, url))?;
    Ok(Some(FoundCard { card, url: at }))
}

/// Downloads the card.
async fn download(url: &Url, builder: &ClientBuilder, document: &mut Option<Document<()>>) -> Finding {
    let found = match builder.clone().retry(Retry::never()).card_document(url).await {
        Ok(found) => document.insert(found),
        Err(error) if error.kind() == ErrorKind::Unauthenticated => {
            return Finding::failed(error.to_string(), "give credentials, such as --token");
        }
        Err(error) => {
            let remedy = "serve the card at /.well-known/agent-card.json, also to callers without credentials";
            return Finding::failed(error.to_string(), remedy);
        }
    };
    let essence = found.media_type.split(';').next().unwrap_or_default().trim();
    if essence != "application/json" && !essence.ends_with("+json") {
        let why = format!("{} has the content type `{}`", found.url, found.media_type);
        return Finding::warning(why, "set the content type application/json, which some clients require");
    }
    Finding::ok(found.url.to_string())
}

/// Checks the members that the versions of the protocol require that the card is for.
fn schema(card: &Value) -> Finding {
    let Review { versions, problems } = review(card);
    let Some(Problem { remedy, .. }) = problems.first() else {
        return Finding::ok(match &*versions {
            ["1.0"] => "1.0; clients of 0.3 can't read it".to_owned(),
            versions => versions.join(" and "),
        });
    };
    let line = |problem: &Problem| format!("{} {} ({})", problem.path, problem.reason, problem.versions.join(" and "));
    let remedy = if problems.len() == 1 { remedy.clone() } else { "see `a2a card validate`".to_owned() };
    Finding::failed(problems.iter().map(line).collect::<Vec<_>>().join("; "), remedy)
}

/// Checks the URLs of the interfaces against that of the card.
fn urls(card: &AgentCard, url: &Url) -> Finding {
    let mut findings = Vec::new();
    for interface in &card.supported_interfaces {
        let absolute = Url::parse(&interface.url).ok().filter(Url::has_host);
        let Some(absolute) = absolute else { continue };
        if is_local(&absolute) && !is_local(url) {
            let why = format!("{} can be reached only on the machine of the agent", interface.url);
            findings.push(Finding::failed(why, "configure the public URL of the agent, which the card then names"));
        } else if url.scheme() == "https" && absolute.scheme() == "http" {
            let why = format!("{} has no TLS, although the card has", interface.url);
            findings.push(Finding::failed(why, "name https URLs on the card"));
        } else if absolute.origin() != url.origin() && interface.protocol_binding != "GRPC" {
            let why = format!("{} is not at the origin of the card", interface.url);
            findings.push(Finding::warning(why, "clients send credentials there only if they trust that origin"));
        }
    }
    let worst = findings.iter().position(|finding| finding.status == Status::Failed).unwrap_or_default();
    if findings.is_empty() { Finding::ok("match the URL of the card") } else { findings.swap_remove(worst) }
}
