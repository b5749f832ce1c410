//! Checks of the way to an agent: name, port and TLS.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use reqwest::tls::TlsInfo;
use tokio::net::TcpStream;
use url::{Host, Url};
use x509_cert::{Certificate, der::Decode as _};

use super::{Finding, Outcome, Report, Status};
use crate::{
    base::{name_lookup, network::is_loopback_host},
    cli::connection::Connection,
    protocol::error::chain,
};

/// Remaining validity of a certificate below which there is a warning.
const EXPIRES_SOON: Duration = Duration::from_hours(14 * 24);

/// Makes the checks. Returns whether the agent can be reached.
pub(super) async fn check(url: &Url, connection: &Connection, report: &mut Report) -> anyhow::Result<bool> {
    let mut addresses = Vec::new();
    report.check("dns", resolve(url, &mut addresses)).await?;
    if addresses.is_empty() || report.check("tcp", connect(&addresses)).await? == Status::Failed {
        return Ok(false);
    }
    if url.scheme() != "https" {
        let why = "the URL has http: everybody in between can read and change the calls";
        let is_here = is_local(url).then(|| Finding::skipped("not used on this machine"));
        report.add("tls", is_here.unwrap_or_else(|| Finding::warning(why, "serve the agent with TLS")))?;
        return Ok(true);
    }
    Ok(report.check("tls", certificate(url, connection)).await? != Status::Failed)
}

async fn resolve(url: &Url, addresses: &mut Vec<SocketAddr>) -> Outcome {
    let port = url.port_or_known_default().unwrap_or_default();
    let ip: IpAddr = match url.host() {
        Some(Host::Domain(name)) => {
            let remedy = "check the spelling of the host, and its DNS records";
            let found = name_lookup::resolve(name, port).await;
            addresses
                .extend(found.map_err(|error| Finding::failed(format!("{name} does not resolve: {error}"), remedy))?);
            let ips: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
            if ips.is_empty() {
                return Err(Finding::failed(format!("{name} has no address"), remedy));
            }
            return Ok(Finding::ok(format!("{name} is {}", ips.join(", "))));
        }
        Some(Host::Ipv4(ip)) => ip.into(),
        Some(Host::Ipv6(ip)) => ip.into(),
        None => return Err(Finding::failed("the URL has no host", "give the URL of the agent")),
    };
    addresses.push((ip, port).into());
    Ok(Finding::skipped(format!("{ip} is an address")))
}

async fn connect(addresses: &[SocketAddr]) -> Outcome {
    let mut failures = Vec::new();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(_) if failures.is_empty() => return Ok(Finding::ok(format!("{address} accepts connections"))),
            Ok(_) => {
                let why = format!("only {address} accepts connections; {}", failures.join(", "));
                let remedy = "listen at all addresses of the name, or remove the others from DNS";
                return Ok(Finding::warning(why, remedy));
            }
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    Err(Finding::failed(failures.join(", "), "start the agent, check its port, and the firewalls in between"))
}

/// Returns true for hosts of this machine.
pub(in crate::cli) fn is_local(url: &Url) -> bool {
    url.host_str().is_some_and(|host| is_loopback_host(host) || host.ends_with(".localhost"))
}

async fn certificate(url: &Url, connection: &Connection) -> Outcome {
    let remedy = "install a certificate for this host with its whole chain; --ca adds a root certificate";
    let http = connection.builder().and_then(|builder| Ok(builder.diagnostic_http(url.as_str())?));
    let http = http.map_err(|error| Finding::failed(error, remedy))?;
    let response = http.get(url.clone()).send().await.map_err(|error| Finding::failed(chain(&error), remedy))?;
    if connection.insecure_tls {
        return Ok(Finding::skipped("the certificate is not verified"));
    }
    let info = response.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate);
    let Some(certificate) = info.and_then(|der| Certificate::from_der(der).ok()) else {
        return Ok(Finding::ok("the certificate is valid"));
    };
    let end = certificate.tbs_certificate.validity.not_after.to_unix_duration();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = end.saturating_sub(now);
    let days = left.as_secs() / 86400;
    if left < EXPIRES_SOON {
        return Ok(Finding::warning(format!("the certificate expires in {days} days"), "renew the certificate"));
    }
    Ok(Finding::ok(format!("the certificate is valid for {days} days")))
}
