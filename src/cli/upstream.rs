//! Gateway mode of `a2a serve`: connects to the upstream agent, falls back to its stored card at the start, and refreshes the
//! card. An upstream agent that is this server is rejected.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use url::Url;

use super::{
    config::{self, Config, Sourced},
    read_file,
};
use crate::{
    agents::Upstream,
    base::{clock::after, credential::Credential, name_lookup::resolve, secret_file::replace_secret},
    client::{Client, ClientBuilder, StoredCard, complete_url, shown_url},
    engine::agent::Agent as _,
    protocol::{error::ErrorKind, pb::v1::AgentCard},
    service::card::{JSON_RPC, WELL_KNOWN, WELL_KNOWN_BEFORE},
};

/// Maximum size of the file of a card in bytes: that of a card, which may be escaped.
const MAX_FILE: usize = 16 << 20;

/// Interval between downloads of the card.
const INTERVAL: Duration = Duration::from_mins(5);

/// Interval between downloads of the card until the first one succeeds, after a start without the agent.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between checks of the file with the token.
const TOKEN_INTERVAL: Duration = Duration::from_secs(1);

/// Gateway of another agent, whose card is downloaded in the background.
pub(super) struct Gateway {
    builder: ClientBuilder,
    /// Token for the agent, which may be in a file, and its text in use.
    token: Option<(Credential, Arc<String>)>,
    own: OwnAddresses,
    pub(super) agent: Upstream,
    file: Option<CardFile>,
    card: StoredCard,
    /// Updates of the card.
    pub(super) updates: watch::Sender<AgentCard>,
    /// The agent could be reached.
    is_reached: bool,
}

impl Gateway {
    /// Connects to the agent at a URL. If it can't be reached, its stored card is used. `store` is the file of the tasks.
    pub(super) async fn connect(url: &str, store: Option<&Path>, config: &Config) -> anyhow::Result<Self> {
        let public = config.public_url.as_ref().and_then(|url| Url::parse(&url.0).ok());
        let own = OwnAddresses { listen: config.listen.0.clone(), public };
        own.reject(url).await?;
        let mut builder = Client::builder().call_credentials(!config.upstream.forward.is_empty());
        let mut token = None;
        if let Some(credential) = config.upstream.token.as_ref().map(Sourced::credential) {
            let text = credential.current().await;
            builder = builder.bearer(&text)?;
            token = Some((credential, text));
        }
        let failed = || format!("can't use the agent at {} (upstream.url)", shown_url(url));
        let file = store.map(CardFile::beside);
        let stored = match file.clone() {
            Some(file) => {
                let url = url.to_owned();
                spawn_blocking(move || file.read(&url)).await?
            }
            None => None,
        };
        if let Some(card) = &stored {
            builder.cache(card);
        }
        let (card, is_reached) = match builder.download(url).await {
            Ok(card) => (card, true),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded) => {
                let Some(card) = stored else { return Err(error).with_context(failed) };
                tracing::warn!(error.cause = %error, "upstream agent unavailable; its stored card is used");
                (card, false)
            }
            Err(error) => return Err(error).with_context(failed),
        };
        let client = builder.connect_to(&card).await.with_context(failed)?;
        own.reject_client(&client).await?;
        let agent = Upstream::new(client);
        if !is_reached {
            agent.record::<()>(&Err(ErrorKind::Unavailable.error().unsent()));
        }
        let updates = watch::Sender::new(agent.card());
        let gateway = Self { builder, token, own, agent, file, card, updates, is_reached };
        if is_reached {
            gateway.store().await;
        }
        Ok(gateway)
    }

    /// Downloads the card from time to time, until the runtime ends. The server listens at `bound`.
    pub(super) fn spawn_refresh(mut self, bound: SocketAddr) {
        self.own.listen.push(bound);
        tokio::spawn(self.run());
    }

    async fn run(mut self) {
        loop {
            let interval = if self.is_reached { INTERVAL } else { RETRY_INTERVAL };
            let due = after(Instant::now(), interval);
            while Instant::now() < due {
                sleep_until(due.min(after(Instant::now(), TOKEN_INTERVAL))).await;
                if let Err(error) = self.renew_token().await {
                    tracing::warn!(error.cause = %error, "new token for the upstream agent not used");
                }
            }
            let downloaded = self.builder.download(&self.card.upstream).await;
            self.agent.record(&downloaded);
            match downloaded {
                Ok(card) => {
                    self.is_reached = true;
                    if let Err(error) = self.replace(card).await {
                        tracing::warn!(error.cause = %error, "card of the upstream agent not used");
                    }
                }
                Err(error) => tracing::debug!(error.cause = %error, "upstream agent card not downloaded"),
            }
        }
    }

    /// Uses the token in its file if it has changed.
    async fn renew_token(&mut self) -> anyhow::Result<()> {
        let Some((credential, used)) = &mut self.token else { return Ok(()) };
        let current = credential.current().await;
        if current != *used {
            used.clone_from(&current);
            self.builder = self.builder.clone().bearer(&current)?;
            self.agent.set_client(self.builder.connect_to(&self.card).await?);
        }
        Ok(())
    }

    /// Uses a card from now on, unless it has no interface that can be called, or is that of this server.
    async fn replace(&mut self, card: StoredCard) -> anyhow::Result<()> {
        let client = self.builder.connect_to(&card).await?;
        self.own.reject_client(&client).await?;
        if card != self.card {
            tracing::info!("upstream agent card changed");
            self.agent.set_client(client);
            // Fails if the server has ended.
            _ = self.updates.send(self.agent.card());
            self.card = card;
            self.store().await;
        }
        Ok(())
    }

    /// Stores the card in its file, if there is one.
    async fn store(&self) {
        let Some(file) = self.file.clone() else { return };
        let card = self.card.clone();
        let written = spawn_blocking(move || file.write(&card)).await;
        if let Err(error) = written.map_err(io::Error::other).flatten() {
            tracing::warn!(error.cause = %error, "card of the upstream agent not stored");
        }
    }
}

/// Addresses of this server.
struct OwnAddresses {
    listen: Vec<SocketAddr>,
    public: Option<Url>,
}

impl OwnAddresses {
    /// Rejects an agent whose card names an interface of this server.
    async fn reject_client(&self, client: &Client) -> Result<(), config::Error> {
        let (card, own) = (client.card(), client.interface());
        let urls = card.supported_interfaces.iter().map(|interface| &interface.url);
        for url in urls.chain(own.map(|interface| &interface.url)) {
            self.reject(url).await?;
        }
        Ok(())
    }

    /// Rejects the URL of an agent, of its card or of an interface that is one of this server.
    async fn reject(&self, url: &str) -> Result<(), config::Error> {
        let Ok(url) = complete_url(url) else { return Ok(()) };
        if self.public.as_ref().is_some_and(|public| base(public) == base(&url)) || self.is_listening_at(&url).await {
            let at = url.origin().ascii_serialization();
            let why = "is this server, which would pass its messages on to itself; name another agent";
            return Err(config::Error::new(format!("upstream.url: the agent at {at} {why}")));
        }
        Ok(())
    }

    async fn is_listening_at(&self, url: &Url) -> bool {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return false };
        if self.listen.iter().all(|own| own.port() != port) {
            return false;
        }
        let found = resolve(host.trim_matches(['[', ']']), port).await.unwrap_or_default();
        found.iter().any(|addr| self.listen.iter().any(|own| accepts(*own, *addr)))
    }
}

/// Returns true if a server that listens at `own` accepts connections to `addr`.
fn accepts(own: SocketAddr, addr: SocketAddr) -> bool {
    let (own_ip, ip) = (own.ip().to_canonical(), addr.ip().to_canonical());
    // Only an address of this machine can be bound.
    let is_of_any = (own_ip.is_unspecified() || ip.is_unspecified()) && UdpSocket::bind((ip, 0)).is_ok();
    own.port() == addr.port() && (own_ip == ip || is_of_any)
}

/// Returns host, port and base path of a URL: without the path of a card or of JSON-RPC.
fn base(url: &Url) -> (Option<&str>, Option<u16>, &str) {
    let path = url.path().trim_end_matches('/');
    let path = [WELL_KNOWN, WELL_KNOWN_BEFORE, JSON_RPC].iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path);
    (url.host_str(), url.port(), path)
}

/// File with the card of the upstream agent.
#[derive(Clone, Debug)]
struct CardFile(PathBuf);

impl CardFile {
    /// Returns the file next to that of the tasks.
    fn beside(store: &Path) -> Self {
        Self(store.with_added_extension("upstream.json"))
    }

    /// Reads the card of the agent at a URL, which blocks. `None` without a valid file for that URL.
    fn read(&self, url: &str) -> Option<StoredCard> {
        let read = || -> anyhow::Result<StoredCard> { Ok(serde_json::from_slice(&read_file(&self.0, MAX_FILE)?)?) };
        match read() {
            Ok(card) => Some(card).filter(|card| card.upstream == url),
            Err(error) => {
                let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
                if !error.downcast_ref().is_some_and(is_missing) {
                    tracing::warn!(path = %self.0.display(), error.cause = %format_args!("{error:#}"), "stored card ignored");
                }
                None
            }
        }
    }

    /// Writes the card of an agent, which blocks. A reader never sees a part of it.
    fn write(&self, card: &StoredCard) -> io::Result<()> {
        replace_secret(&self.0, &serde_json::to_vec(card)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn own_addresses_are_recognized() {
        let own = OwnAddresses {
            listen: vec!["0.0.0.0:8080".parse().unwrap(), "127.0.0.1:9".parse().unwrap()],
            public: Url::parse("https://agents.example/geo/").ok(),
        };
        for url in [
            "http://127.0.0.1:8080",
            "http://localhost:8080/rpc",
            "127.0.0.1:8080/any/path",
            "http://[::ffff:127.0.0.1]:8080",
            "http://0.0.0.0:8080",
            "http://127.0.0.1:9",
            "https://agents.example/geo",
            "https://AGENTS.example:443/geo/rpc",
            "agents.example/geo/.well-known/agent-card.json",
        ] {
            let error = own.reject(url).await.unwrap_err().to_string();
            assert!(error.starts_with("upstream.url: the agent at ") && error.contains("is this server"), "{error}");
        }
        for url in [
            "http://127.0.0.1:8081",
            "http://127.0.0.2:9",
            "http://192.0.2.1:8080",
            "https://agents.example",
            "https://agents.example/other",
            "https://agents.example:8443/geo",
            "https://geo.example/geo",
        ] {
            assert!(own.reject(url).await.is_ok(), "{url}");
        }
    }

    #[test]
    fn stored_card_is_that_of_its_agent() {
        let directory = tempfile::tempdir().unwrap();
        let file = CardFile::beside(&directory.path().join("a2a.db"));
        assert_eq!(file.read("https://agent.example"), None);
        let url = "https://agent.example/.well-known/agent-card.json";
        let json = serde_json::json!({
            "upstream": "https://agent.example", "url": url, "tag": "\"1\"", "card": "{\"name\":\"Geo\"}"
        });
        let card: StoredCard = serde_json::from_value(json).unwrap();
        file.write(&card).unwrap();
        assert_eq!(file.read("https://agent.example"), Some(card));
        assert_eq!(file.read("https://other.example"), None);
        std::fs::write(&file.0, "{").unwrap();
        assert_eq!(file.read("https://agent.example"), None);
    }

    /// A card that names this server is used neither at the start nor later.
    #[tokio::test]
    async fn card_of_this_server_is_not_used() {
        use std::sync::Arc;

        use axum::{Router, routing::get};
        use parking_lot::Mutex;

        let card = |url: &str| {
            let interface = serde_json::json!({"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
            serde_json::json!({"name": "Geo", "supportedInterfaces": [interface]})
        };
        let served = Arc::new(Mutex::new(card("http://127.0.0.1:9/rpc")));
        let current = Arc::clone(&served);
        let respond = get(async move || current.lock().to_string());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route(WELL_KNOWN, respond);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut config = Config::default();
        config.listen.0 = vec!["127.0.0.1:9".parse().unwrap()];
        let refused = Gateway::connect(&url, None, &config).await.err().unwrap();
        assert!(refused.to_string().contains("is this server"), "{refused}");
        let mut second = card("http://192.0.2.1/rpc");
        second["supportedInterfaces"].as_array_mut().unwrap().push(served.lock()["supportedInterfaces"][0].clone());
        *served.lock() = second;
        let refused = Gateway::connect(&url, None, &config).await.err().unwrap();
        assert!(refused.to_string().contains("is this server"), "{refused}");
        *served.lock() = card("http://192.0.2.1/rpc");
        let mut refresh = Gateway::connect(&url, None, &config).await.unwrap();
        let used = refresh.card.clone();
        *served.lock() = card("http://127.0.0.1:9/rpc");
        let changed = refresh.builder.download(&url).await.unwrap();
        assert!(refresh.replace(changed.clone()).await.unwrap_err().to_string().contains("is this server"));
        assert!(refresh.card == used && changed != used);
        *served.lock() = card("http://192.0.2.2/rpc");
        let other = refresh.builder.download(&url).await.unwrap();
        refresh.replace(other.clone()).await.unwrap();
        assert_eq!(refresh.card, other);
    }

    /// The card is only validated if the agent still has the stored one.
    #[tokio::test]
    async fn stored_card_is_validated_by_its_entity_tag() {
        use axum::{Router, body::Body, response::Response};
        use http::{HeaderMap, StatusCode, header};

        let validate = async |headers: HeaderMap| {
            let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|tag| tag == "\"1\"");
            let status = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::INTERNAL_SERVER_ERROR };
            Response::builder().status(status).body(Body::empty()).unwrap()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(validate)).await });
        let json = serde_json::json!({
            "upstream": url, "url": format!("{url}/.well-known/agent-card.json"), "tag": "\"1\"", "card": "{\"name\":\"Geo\"}"
        });
        let card: StoredCard = serde_json::from_value(json).unwrap();
        let builder = Client::builder();
        builder.cache(&card);
        assert_eq!(builder.download(&url).await.unwrap(), card);
    }
}
