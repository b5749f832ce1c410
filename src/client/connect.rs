//! Construction of clients: the client of a card, and the service over its interfaces.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    io,
    sync::Arc,
    time::Duration,
};

use http::{Response, StatusCode};
use hyper_util::client::legacy::connect::{HttpConnector, dns::Name};
use parking_lot::RwLock;
use reqwest::Url;
use tonic::{
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::{service_fn, util::MapResponse};

use super::{
    A2aService, AgentCard, Binding, Call, Client, Error, ErrorKind, Version,
    builder::ClientBuilder,
    card::{self, Document, Interface},
    credentials::AgentCredentials,
    http::{CONNECT, Http, JsonRpc, RestBinding, complete_url, shown_url},
    retry_policy::{Retry, RetryBudget},
    retrying::Retrying,
    tls::is_secure,
    traced::Traced,
    v03::{self, V03Client, V03RpcClient},
};
use crate::{
    base::name_lookup,
    protocol::{
        pb::v1::a2a_service_client::A2aServiceClient,
        rpc::Remote,
        v03::{
            card::{Flows, all_flows},
            pb::a2a_service_client::A2aServiceClient as V03ServiceClient,
        },
    },
};

/// Interval between HTTP/2 keep-alive pings over gRPC, and the timeout for their acknowledgement.
const PING: Duration = Duration::from_secs(20);

impl ClientBuilder {
    /// Reads the card of the agent at a URL, and selects one of its interfaces. See [`Client::connect`].
    ///
    /// # Errors
    /// As [`Client::connect`]. With [`extended_card`](Self::extended_card), also those of its download.
    pub async fn connect(&self, url: &str) -> Result<Client, Error> {
        let Document { content, url, json, .. } = card::fetch(self, url).await?;
        self.connected(content, &json, &url).await
    }

    /// Returns the client of the agent with this card.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), except for those of the download.
    #[cfg(feature = "cli")]
    pub(crate) async fn connect_to(&self, stored: &card::StoredCard) -> Result<Client, Error> {
        let url = super::http::parse(&stored.url)?;
        let card = crate::protocol::v03::card::from_json(stored.card.as_bytes());
        let card = card.map_err(|error| card::none_at(&url, "agent card", &error.to_string()))?;
        self.connected(card, stored.card.as_bytes(), &url).await
    }

    /// Returns the client for a card that was downloaded as `json`. `base` is its URL, or that of its catalog.
    pub(super) async fn connected(&self, card: AgentCard, json: &[u8], base: &Url) -> Result<Client, Error> {
        let flows = all_flows(&serde_json::from_slice(json).unwrap_or_default());
        let client = self.client(card, Some(base), flows)?;
        let declares_extended = client.card().capabilities.as_ref().and_then(|declared| declared.extended_agent_card);
        if self.extended_card && declares_extended == Some(true) && self.has_credentials() {
            client.extended_card().await?;
        }
        Ok(client)
    }

    /// Returns a client of the agent with this card, for example one that was read from a file. `base` is the URL of the
    /// card, against which relative URLs are resolved. Without it, credentials are sent to all interfaces of the card.
    ///
    /// # Errors
    /// `UnsupportedOperation` if the card has no interface that can be called.
    pub fn with_card(&self, card: AgentCard, base: Option<&str>) -> Result<Client, Error> {
        let base = base.map(complete_url).transpose()?;
        let flows = all_flows(&serde_json::to_value(&card).map_err(Error::internal)?);
        self.client(card, base.as_ref(), flows)
    }

    fn client(&self, card: AgentCard, base: Option<&Url>, flows: BTreeMap<String, Flows>) -> Result<Client, Error> {
        let all = card::interfaces(&card, base);
        let selected = self.select(&card, &all, base)?;
        let Some(first) = selected.first() else {
            return Err(Error::internal("no interface is selected"));
        };
        let tenant = self.tenant.clone().unwrap_or_else(|| first.tenant.clone());
        // Requests have the tenant of the first interface, so the others must have the same.
        let urls = selected.iter().filter(|interface| interface.tenant == first.tenant);
        let urls: Vec<_> = urls.map(|found| (found.binding, found.version, found.url.as_str())).collect();
        let credentials = AgentCredentials::new(self, Some(&card), base, &flows)?;
        Ok(Client {
            agent: self.service(&urls, credentials)?,
            interface: Some(Interface::clone(first)),
            tenant,
            timeout: self.timeout,
            context: Call::default(),
            flows: flows.into(),
            card: Arc::new(RwLock::new(Arc::new(card))),
        })
    }

    /// Returns a remote agent that is called over HTTP+JSON. `url` is the base URL of its routes.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub fn rest(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        self.service_at(Binding::Rest, url)
    }

    /// Returns a remote agent that is called over JSON-RPC at `url`.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub fn json_rpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        self.service_at(Binding::JsonRpc, url)
    }

    /// Returns a remote agent that is called over gRPC. The connection is established at the first call, by the tokio
    /// runtime in which this function is called.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn grpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        self.service_at(Binding::Grpc, url)
    }

    /// Adds retries and resumed streams to another implementation of the service.
    pub fn around(&self, agent: Arc<dyn A2aService>) -> Arc<dyn A2aService> {
        let credentials = AgentCredentials { headers: self.headers.clone(), ..AgentCredentials::default() };
        Traced::wrap(self.wrap(vec![agent], credentials, true, false), &self.tracing, None)
    }

    fn service_at(&self, binding: Binding, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        let credentials = AgentCredentials::new(self, None, None, &BTreeMap::new())?;
        self.service(&[(binding, self.version.unwrap_or_default(), url)], credentials)
    }

    /// Returns a remote agent that is called over the first of these interfaces to which a connection can be established.
    pub(super) fn service(
        &self,
        interfaces: &[(Binding, Version, &str)],
        credentials: AgentCredentials,
    ) -> Result<Arc<dyn A2aService>, Error> {
        // Each HTTP client reads the root certificates of the system, so one serves all interfaces of a scheme.
        let mut clients: HashMap<bool, Http> = HashMap::new();
        let mut http = |url: &str| match clients.entry(is_secure(url)) {
            Entry::Occupied(client) => Ok(client.get().clone()),
            Entry::Vacant(client) => {
                let http = Http { query: Arc::clone(&credentials.query), ..self.http(url, true)? };
                Ok(client.insert(http).clone())
            }
        };
        let agents =
            interfaces.iter().map(|(binding, version, url)| self.interface(*binding, *version, url, &mut http));
        let requests_cursors = interfaces.iter().any(|(binding, ..)| *binding == Binding::Grpc);
        let outlasts_turns = interfaces.iter().all(|(_, version, _)| *version == Version::V1_0);
        let agents = agents.collect::<Result<_, _>>()?;
        let agent = self.wrap(agents, credentials, requests_cursors, outlasts_turns);
        Ok(Traced::wrap(agent, &self.tracing, interfaces.first().map(|(.., url)| *url)))
    }

    fn interface(
        &self,
        binding: Binding,
        version: Version,
        url: &str,
        mut http: impl FnMut(&str) -> Result<Http, Error>,
    ) -> Result<Arc<dyn A2aService>, Error> {
        Ok(match (binding, version) {
            (Binding::Rest, Version::V1_0) => Arc::new(Remote(RestBinding::new(http(url)?, url, version)?)),
            (Binding::Rest, Version::V0_3) => v03::rest(RestBinding::new(http(url)?, url, version)?),
            (Binding::JsonRpc, Version::V1_0) => Arc::new(Remote(JsonRpc::new(http(url)?, url, version)?)),
            (Binding::JsonRpc, Version::V0_3) => Arc::new(V03RpcClient(JsonRpc::new(http(url)?, url, version)?)),
            (Binding::Grpc, version) => {
                let shown = shown_url(url);
                let invalid = |e| ErrorKind::InvalidParams.because(format!("`{shown}` is not a valid agent URL: {e}"));
                let endpoint = Endpoint::from_shared(url.to_owned()).map_err(invalid)?.connect_timeout(CONNECT);
                let endpoint = self.tls.grpc(endpoint, url)?;
                // A stream may be idle for a long time; only a ping detects a lost peer.
                let endpoint = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING);
                let (channel, limit) = (channel(&endpoint), self.limits.response);
                match version {
                    Version::V1_0 => {
                        let client = Arc::new(A2aServiceClient::new(channel).max_decoding_message_size(limit));
                        #[cfg(feature = "cli")]
                        if let Some(observer) = &self.observer {
                            return Ok((observer.grpc)(url, client));
                        }
                        client
                    }
                    Version::V0_3 => {
                        let client = Arc::new(V03ServiceClient::new(channel).max_decoding_message_size(limit));
                        #[cfg(feature = "cli")]
                        if let Some(observer) = &self.observer {
                            return Ok(Arc::new(V03Client((observer.grpc_v03)(url, client))));
                        }
                        Arc::new(V03Client(client))
                    }
                }
            }
            (Binding::InProcess, _) => {
                return Err(Error::invalid_field("binding", "must be gRPC, HTTP+JSON or JSON-RPC"));
            }
        })
    }

    /// Adds retries and resumed streams. `requests_cursors` adds the extension `resume`, for bindings without event ids.
    /// `outlasts_turns` states that subscriptions end with their task, so that one that ends while its task waits was
    /// interrupted.
    fn wrap(
        &self,
        mut agents: Vec<Arc<dyn A2aService>>,
        credentials: AgentCredentials,
        requests_cursors: bool,
        outlasts_turns: bool,
    ) -> Arc<dyn A2aService> {
        let is_plain = self.retry == Retry::never() && credentials.is_empty() && agents.len() == 1;
        if let Some(agent) = agents.pop_if(|_| is_plain) {
            return agent;
        }
        let retry = self.retry.clone();
        let (interfaces, budget) = (agents.into(), Arc::new(RetryBudget::new(&retry)));
        let (credentials, keys, changes) = (Arc::new(credentials), Arc::default(), Arc::default());
        Arc::new(Retrying { interfaces, changes, retry, budget, credentials, keys, requests_cursors, outlasts_turns })
    }
}

/// Discards the body of a response with an error of HTTP, such as the page of a proxy that reaches no server: it is not a message, and
/// the status determines the error.
fn without_page(response: Response<Body>) -> Response<Body> {
    if response.status() == StatusCode::OK { response } else { response.map(|_| Body::empty()) }
}

/// Channel whose responses are passed through a function.
type MappedChannel = MapResponse<Channel, fn(Response<Body>) -> Response<Body>>;

/// Returns the channel of a gRPC endpoint, which adds TLS to the connections of its connector.
fn channel(endpoint: &Endpoint) -> MappedChannel {
    let resolver = service_fn(|name: Name| async move {
        // The connector sets the port.
        io::Result::Ok(name_lookup::resolve(name.as_str(), 0).await?.into_iter())
    });
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    MapResponse::new(endpoint.connect_with_connector_lazy(connector), without_page)
}
