//! Gateway mode of `a2a serve`: connects to the upstream agent, falls back to its stored card at the start, and refreshes the
//! card.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use tempfile::NamedTempFile;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

use super::{config::Config, read_file};
use crate::{
    agents::Upstream,
    base::clock::after,
    client::{Client, ClientBuilder, StoredCard},
    engine::agent::Agent as _,
    protocol::{error::ErrorKind, pb::v1::AgentCard},
};

/// Maximum size of the file of a card in bytes: that of a card, which may be escaped.
const MAX_FILE: usize = 16 << 20;

/// Interval between downloads of the card.
const INTERVAL: Duration = Duration::from_mins(5);

/// Interval between downloads of the card until the first one succeeds, after a start without the agent.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Gateway of another agent.
pub(super) struct Gateway {
    pub(super) agent: Upstream,
    /// Updates of the card.
    pub(super) updates: watch::Receiver<AgentCard>,
    refresh: Refresh,
}

/// Downloads of the card in the background.
struct Refresh {
    builder: ClientBuilder,
    agent: Upstream,
    file: Option<CardFile>,
    card: StoredCard,
    updates: watch::Sender<AgentCard>,
    /// The agent could be reached.
    is_reached: bool,
}

impl Gateway {
    /// Connects to the agent at a URL. If it can't be reached, its stored card is used. `store` is the file of the tasks.
    pub(super) async fn connect(url: &str, store: Option<&Path>, config: &Config) -> anyhow::Result<Self> {
        let mut builder = Client::builder().call_credentials(!config.upstream.forward.is_empty());
        if let Some(token) = &config.upstream.token {
            builder = builder.bearer(token.value.expose())?;
        }
        let failed = || format!("can't use the agent at {url} (upstream.url)");
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
        let agent = Upstream::new(builder.connect_to(&card).await.with_context(failed)?);
        let (sender, updates) = watch::channel(agent.card());
        let refresh = Refresh { builder, agent: agent.clone(), file, card, updates: sender, is_reached };
        if is_reached {
            refresh.store().await;
        }
        Ok(Self { agent, updates, refresh })
    }

    /// Downloads the card from time to time, until the runtime ends.
    pub(super) fn spawn_refresh(self) {
        tokio::spawn(self.refresh.run());
    }
}

impl Refresh {
    async fn run(mut self) {
        loop {
            let interval = if self.is_reached { INTERVAL } else { RETRY_INTERVAL };
            sleep_until(after(Instant::now(), interval)).await;
            match self.builder.download(&self.card.upstream).await {
                Ok(card) if card == self.card => self.is_reached = true,
                Ok(card) => {
                    self.is_reached = true;
                    self.replace(card).await;
                }
                Err(error) => tracing::debug!(error.cause = %error, "upstream agent card not downloaded"),
            }
        }
    }

    /// Uses another card from now on, unless it has no interface that can be called.
    async fn replace(&mut self, card: StoredCard) {
        match self.builder.connect_to(&card).await {
            Ok(client) => {
                tracing::info!("upstream agent card changed");
                self.agent.set_client(client);
                // Fails if the server has ended.
                _ = self.updates.send(self.agent.card());
                self.card = card;
                self.store().await;
            }
            Err(error) => tracing::warn!(error.cause = %error, "changed card of the upstream agent not used"),
        }
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

/// File with the card of the upstream agent.
#[derive(Clone, Debug)]
struct CardFile(PathBuf);

impl CardFile {
    /// Returns the file next to that of the tasks.
    fn beside(store: &Path) -> Self {
        let mut path = store.as_os_str().to_owned();
        path.push(".upstream.json");
        Self(path.into())
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
        let directory = self.0.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(card)?)?;
        file.persist(&self.0)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
