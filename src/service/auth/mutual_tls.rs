//! Client certificates as authentication (mutual TLS).

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{AuthRequest, Authenticator, CREDENTIALS, ClientCertificate, MISSING, Principal, SCHEME, Scopes};
use crate::protocol::{
    error::{Error, ErrorKind},
    pb::v1::{AgentCard, MutualTlsSecurityScheme, security_scheme::Scheme},
};

/// Name of the security scheme on the card.
pub(super) const NAME: &str = "mutualTls";

/// Challenge of a request without a certificate. HTTP has no registered scheme for it.
const CHALLENGE: &str = "Mutual-TLS realm=\"a2a\"";

/// Name of a certificate that identifies its client: a subject alternative name (RFC 5280, 4.2.1.6), or the subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateName {
    /// The first URI, such as a SPIFFE id.
    #[default]
    Uri,
    /// The first DNS name.
    Dns,
    /// The subject as a distinguished name in text (RFC 4514), such as `CN=agent,O=Example`.
    Subject,
}

impl CertificateName {
    fn of(self, certificate: &ClientCertificate) -> Option<&str> {
        match self {
            Self::Uri => certificate.uris().next(),
            Self::Dns => certificate.dns_names().next(),
            Self::Subject => certificate.subject(),
        }
    }
}

/// Authentication by client certificates, which [`Tls`](crate::server::Tls) has to request and verify.
///
/// The principal, and the owner of its tasks, is a name of the certificate.
///
/// ```no_run
/// use a2a_service::{
///     agent::demo::Demo,
///     auth::{CertificateName, MutualTls},
///     server::{ClientAuth, Server, Tls},
/// };
///
/// let tls = Tls::from_files("server.pem", "server.key")?.client_auth("clients.pem", ClientAuth::Required)?;
/// let schemes = MutualTls::new(CertificateName::Uri).names(["spiffe://example.org/agent"]);
/// let server = Server::new(Demo).tls(tls).authenticator(schemes);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MutualTls {
    name: CertificateName,
    /// Accepted names. `None`: all.
    names: Option<BTreeSet<String>>,
    scopes: Scopes,
}

impl MutualTls {
    /// Accepts each verified certificate that has this name. Its principal has all scopes.
    pub fn new(name: CertificateName) -> Self {
        Self { name, names: None, scopes: Scopes::All }
    }

    /// Accepts only these names.
    #[must_use]
    pub fn names<T: Into<String>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { names: Some(names.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the scopes of the principals.
    #[must_use]
    pub fn scopes(self, scopes: Scopes) -> Self {
        Self { scopes, ..self }
    }
}

#[async_trait]
impl Authenticator for MutualTls {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let rejected = |why: String| ErrorKind::Unauthenticated.because(why).challenge(CHALLENGE);
        let Some(certificate) = request.certificate else {
            return Err(rejected("a client certificate is required".to_owned()).with(CREDENTIALS, MISSING));
        };
        let Some(name) = self.name.of(certificate) else {
            let name = match self.name {
                CertificateName::Subject => "subject",
                CertificateName::Uri => "subject alternative name of type uri",
                CertificateName::Dns => "subject alternative name of type dns",
            };
            return Err(rejected(format!("the client certificate has no {name}")).with(SCHEME, NAME));
        };
        if self.names.as_ref().is_some_and(|names| !names.contains(name)) {
            return Err(rejected("the name of the client certificate is not accepted".to_owned()).with(SCHEME, NAME));
        }
        Ok(Some(Principal::new(name).owner(name).scopes(self.scopes.clone())))
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card.any_scheme([(NAME, Scheme::MtlsSecurityScheme(MutualTlsSecurityScheme::default()))])
    }
}
