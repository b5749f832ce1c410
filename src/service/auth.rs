//! Authentication and authorization: the [`Authenticator`] trait, [`Principal`]s with their [`Scopes`], and
//! the [`Policy`] trait.

use std::net::IpAddr;

use async_trait::async_trait;
use http::{HeaderMap, Method, Uri};

pub(crate) mod audit;
pub(crate) mod bearer;
pub(crate) mod combination;
pub(crate) mod failure_limit;
#[cfg(feature = "auth")]
pub(crate) mod jwt;
pub(crate) mod mutual_tls;
#[cfg(feature = "auth")]
pub(crate) mod token_file;

pub use self::{
    bearer::{Bearer, Token},
    combination::{AllOf, AnyOf, all, any},
    mutual_tls::{CertificateName, MutualTls},
};
#[cfg(feature = "auth")]
pub use self::{
    jwt::{Jwt, JwtOptions},
    token_file::{
        NewToken, PreviousSecret, TokenEntry, TokenFile, TokenFileError, TokenSource, add_token, list_tokens,
        revoke_token, rotate_token,
    },
};
pub(crate) use crate::service::auth::failure_limit::{FAILURES, FailureLimit};
pub(crate) use crate::service::wrappers::authorized::{AuthorizedService, require_scope};
use crate::{
    base::dependency::Dependency,
    protocol::{error::Error, pb::v1::AgentCard},
};
pub use crate::{
    protocol::call::{ClientCertificate, Principal, Scopes},
    service::wrappers::authorized::{Operation, Policy},
};

/// Metadata of an error that says whether the request has credentials.
pub(crate) const CREDENTIALS: &str = "credentials";
/// Value of [`CREDENTIALS`] for a request without credentials. Failures with it are not counted as guesses.
pub(crate) const MISSING: &str = "missing";

/// Metadata of an error with the name of the security scheme whose credentials were rejected, as on the card.
pub(crate) const SCHEME: &str = "scheme";

/// Request that is to be authenticated, before its body is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AuthRequest<'a> {
    /// HTTP method.
    pub method: &'a Method,
    /// URI, without the [base path](crate::server::Server::base_path).
    pub uri: &'a Uri,
    /// Headers, or gRPC metadata.
    pub headers: &'a HeaderMap,
    /// Address of the client, as forwarded by [trusted proxies](crate::server::Server::trusted_proxies). `None` if unknown.
    pub peer: Option<IpAddr>,
    /// Certificate of the client, which TLS has verified. `None` without one, and behind a proxy that ends TLS.
    pub certificate: Option<&'a ClientCertificate>,
    /// Name of the RPC, such as `SendMessage`. `None` for JSON-RPC, whose method is in the body, and for requests that are no
    /// calls.
    pub operation: Option<&'static str>,
}

/// Authentication scheme: identifies the caller of a request.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the caller of a request, or `None` for an anonymous one.
    ///
    /// # Errors
    /// [`Unauthenticated`](crate::protocol::error::ErrorKind::Unauthenticated) with a [challenge](Error::challenge) if credentials
    /// are missing or invalid, or [`Unavailable`](crate::protocol::error::ErrorKind::Unavailable) if they can't be checked.
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error>;

    /// Declares the required credentials on the agent card.
    fn describe(&self, card: AgentCard) -> AgentCard;

    /// Issuers of the accepted OAuth 2.0 tokens, as URLs. The server names them in
    /// `/.well-known/oauth-protected-resource` (RFC 9728). None by default.
    fn issuers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns what the check of credentials needs, such as the server of public keys. Nothing by default.
    #[doc(hidden)]
    fn dependencies(&self) -> Vec<Dependency> {
        Vec::new()
    }
}
