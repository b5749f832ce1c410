//! Checks of the way to an agent: name, port and TLS.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use reqwest::tls::TlsInfo;
use tokio::net::{TcpStream, lookup_host};
use url::{Host, Url};
use x509_cert::{Certificate, der::Decode as _};

use super::{Finding, Report, Status};
use crate::{client::ClientBuilder, error::chain};

/// Remaining validity of a certificate below which there is a warning.
const EXPIRES_SOON: Duration = Duration::from_hours(14 * 24);

/// Makes the checks. Returns whether the agent can be reached.
pub(super) async fn check(url: &Url, builder: &ClientBuilder, report: &mut Report) -> anyhow::Result<bool> {
    let mut addresses = Vec::new();
    report.check("dns", resolve(url, &mut addresses)).await?;
    if addresses.is_empty() || report.check("tcp", connect(&addresses)).await? == Status::Failed {
        return Ok(false);
    }
    if url.scheme() != "https" {
        report.add("tls", plain_text(url))?;
        return Ok(true);
    }
    Ok(report.check("tls", certificate(url, builder)).await? != Status::Failed)
}

async fn resolve(url: &Url, addresses: &mut Vec<SocketAddr>) -> Finding {
    let port = url.port_or_known_default().unwrap_or_default();
    let name = match url.host() {
        Some(Host::Domain(name)) => name,
        Some(Host::Ipv4(ip)) => {
            addresses.push((ip, port).into());
            return Finding::skipped(format!("{ip} is an address"));
        }
        Some(Host::Ipv6(ip)) => {
            addresses.push((ip, port).into());
            return Finding::skipped(format!("{ip} is an address"));
        }
        None => return Finding::failed("the URL has no host", "give the URL of the agent"),
    };
    let remedy = "check the spelling of the host, and its DNS records";
    match lookup_host((name, port)).await {
        Ok(found) => addresses.extend(found),
        Err(error) => return Finding::failed(format!("{name} does not resolve: {error}"), remedy),
    }
    let ips: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
    if ips.is_empty() {
        return Finding::failed(format!("{name} has no address"), remedy);
    }
    Finding::ok(format!("{name} is {}", ips.join(", ")))
}

async fn connect(addresses: &[SocketAddr]) -> Finding {
    let mut failures = Vec::new();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(_) if failures.is_empty() => return Finding::ok(format!("{address} accepts connections")),
            Ok(_) => {
                let why = format!("only {address} accepts connections; {}", failures.join(", "));
                return Finding::warning(why, "listen at all addresses of the name, or remove the others from DNS");
            }
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    Finding::failed(failures.join(", "), "start the agent, check its port, and the firewalls in between")
}

/// Finding for an agent without TLS.
fn plain_text(url: &Url) -> Finding {
    if is_local(url) {
        return Finding::skipped("not used on this machine");
    }
    Finding::warning("the URL has http: everybody in between can read and change the calls", "serve the agent with TLS")
}

/// Returns true for hosts of this machine.
pub(super) fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.to_canonical().is_loopback(),
        None => false,
    }
}

async fn certificate(url: &Url, builder: &ClientBuilder) -> Finding {
    let remedy = "install a certificate for this host with its whole chain; --ca adds a root certificate";
    let http = match builder.diagnostic_http(url.as_str()) {
        Ok(http) => http,
        Err(error) => return Finding::failed(error.to_string(), remedy),
    };
    let response = match http.get(url.clone()).send().await {
        Ok(response) => response,
        Err(error) => return Finding::failed(chain(&error), remedy),
    };
    let info = response.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate);
    let Some(certificate) = info.and_then(|der| Certificate::from_der(der).ok()) else {
        return Finding::ok("the certificate is valid");
    };
    let end = certificate.tbs_certificate.validity.not_after.to_unix_duration();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = end.saturating_sub(now);
    let days = left.as_secs() / 86400;
    if left < EXPIRES_SOON {
        return Finding::warning(format!("the certificate expires in {days} days"), "renew the certificate");
    }
    Finding::ok(format!("the certificate is valid for {days} days"))
}
