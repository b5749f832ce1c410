//! Checks of the agent card: where it is, its form, and its URLs.

use serde_json::Value;
use url::Url;

use super::{Finding, Outcome, Report, Status, network::is_local};
use crate::{
    client::{ClientBuilder, Document, Retry},
    protocol::{
        error::{ErrorKind, without_sentence},
        pb::v1::{AgentCard, AgentInterface},
        v03,
    },
    service::card::review::{Problem, Review, review},
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
    let card = v03::card::from_json(&json).map_err(|error| {
        Finding::failed(error, "give each member of the card the type that the specification defines")
    });
    let has_interface = |card: AgentCard| {
        let remedy = "list each binding and protocol version in supportedInterfaces";
        let is_empty = card.supported_interfaces.is_empty();
        if is_empty { Err(Finding::failed("the card has no interface", remedy)) } else { Ok(card) }
    };
    let card = match card.and_then(has_interface) {
        Ok(card) => card,
        Err(finding) => return report.add("card: schema", finding).map(|_| None),
    };
    report.add("card: schema", schema(&serde_json::from_slice(&json).unwrap_or_default()))?;
    report.add("card: urls", urls(&card, url))?;
    Ok(Some(FoundCard { card, url: at }))
}

/// Downloads the card.
async fn download(url: &Url, builder: &ClientBuilder, document: &mut Option<Document<()>>) -> Outcome {
    let found = builder.clone().retry(Retry::never()).card_document(url).await.map_err(|error| {
        let remedy = if error.kind() == ErrorKind::Unauthenticated {
            "give credentials, such as --token"
        } else {
            "serve the card at /.well-known/agent-card.json, also to callers without credentials"
        };
        Finding::failed(without_sentence(error.kind(), &error.to_string()), remedy)
    })?;
    let found = document.insert(found);
    let essence = found.media_type.split(';').next().unwrap_or_default().trim();
    if essence != "application/json" && !essence.ends_with("+json") {
        let why = format!("{} has the content type `{}`", found.url, found.media_type);
        return Ok(Finding::warning(why, "set the content type application/json, which some clients require"));
    }
    Ok(Finding::ok(&found.url))
}

/// Checks the members that the versions of the protocol require that the card is for.
fn schema(card: &Value) -> Finding {
    let Review { versions, problems, warnings } = review(card);
    let line = |problem: &Problem| format!("{} {} ({})", problem.path, problem.reason, problem.versions.join(" and "));
    if let (Some(Problem { remedy, .. }), []) = (warnings.first(), &*problems) {
        return Finding::warning(warnings.iter().map(line).collect::<Vec<_>>().join("; "), remedy.clone());
    }
    let Some(Problem { remedy, .. }) = problems.first() else {
        let only_1_0 = versions == ["1.0"];
        return Finding::ok(if only_1_0 {
            "1.0; clients of 0.3 can't read it".to_owned()
        } else {
            versions.join(" and ")
        });
    };
    let remedy = if problems.len() == 1 { remedy.clone() } else { "see `a2a card validate`".to_owned() };
    Finding::failed(problems.iter().map(line).collect::<Vec<_>>().join("; "), remedy)
}

/// Checks the URLs of the interfaces against that of the card.
fn urls(card: &AgentCard, url: &Url) -> Finding {
    let finding = |interface: &AgentInterface| {
        let absolute = Url::parse(&interface.url).ok().filter(Url::has_host)?;
        let named = |why: &str| format!("{} {why}", interface.url);
        if is_local(&absolute) && !is_local(url) {
            let remedy = "configure the public URL of the agent, which the card then names";
            Some(Finding::failed(named("can be reached only on the machine of the agent"), remedy))
        } else if url.scheme() == "https" && absolute.scheme() == "http" {
            Some(Finding::failed(named("has no TLS, although the card has"), "name https URLs on the card"))
        } else if absolute.origin() != url.origin() && interface.protocol_binding != "GRPC" {
            let remedy = "clients send credentials there only if they trust that origin";
            Some(Finding::warning(named("is not at the origin of the card"), remedy))
        } else {
            None
        }
    };
    let mut findings: Vec<_> = card.supported_interfaces.iter().filter_map(finding).collect();
    let worst = findings.iter().position(|finding| finding.status == Status::Failed).unwrap_or_default();
    if findings.is_empty() { Finding::ok("match the URL of the card") } else { findings.swap_remove(worst) }
}
