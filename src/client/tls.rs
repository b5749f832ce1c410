//! TLS of the client: root certificates of the system and of the program, and the client's own certificate.
//!
//! TLS is the crate feature `tls`, because it needs a C library. Without it, an `https://` URL is rejected when the client
//! is created, not at the first call.

use reqwest::ClientBuilder;
use tonic::transport::Endpoint;

use super::Error;

/// Additional root certificates, and the certificate of the client with its key, in PEM.
#[derive(Clone, Default)]
pub(super) struct TlsOptions {
    #[cfg(feature = "tls")]
    roots: Vec<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) accepts_invalid_certs: bool,
}

impl TlsOptions {
    pub(super) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Returns the options without the certificate of the client.
    pub(super) fn without_certificate(&self) -> Self {
        Self { certificate: None, ..self.clone() }
    }
}

/// Returns true for a URL with TLS.
pub(super) fn is_secure(url: &str) -> bool {
    url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
}

#[cfg(feature = "tls")]
impl TlsOptions {
    /// Trusts certificates beside those of the system.
    ///
    /// # Errors
    /// The text has no valid certificate.
    pub(super) fn add_roots(&mut self, pem: &[u8]) -> Result<(), Error> {
        if certificates(pem)?.is_empty() {
            return Err(Error::invalid_field("roots", "must contain at least one certificate in PEM"));
        }
        self.roots.push(pem.to_owned());
        Ok(())
    }

    pub(super) fn set_certificate(&mut self, certificate: &[u8], key: &[u8]) -> Result<(), Error> {
        identity(certificate, key)?;
        self.certificate = Some((certificate.to_owned(), key.to_owned()));
        Ok(())
    }

    pub(super) fn http(&self, builder: ClientBuilder, url: &str) -> Result<ClientBuilder, Error> {
        if !is_secure(url) {
            // Skips reading the system's root certificates, which is slow.
            return Ok(builder.tls_certs_only([]));
        }
        let mut roots = Vec::new();
        for pem in &self.roots {
            roots.extend(certificates(pem)?);
        }
        let builder = builder.tls_danger_accept_invalid_certs(self.accepts_invalid_certs);
        let builder = builder.https_only(true).tls_certs_merge(roots);
        Ok(match &self.certificate {
            Some((certificate, key)) => builder.identity(identity(certificate, key)?),
            None => builder,
        })
    }

    pub(super) fn grpc(&self, endpoint: Endpoint, url: &str) -> Result<Endpoint, Error> {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        if !is_secure(url) {
            return Ok(endpoint);
        }
        let roots = self.roots.iter().map(Certificate::from_pem);
        let mut config = ClientTlsConfig::new().with_native_roots().ca_certificates(roots);
        if let Some((certificate, key)) = &self.certificate {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        endpoint.tls_config(config).map_err(Error::internal)
    }
}

#[cfg(feature = "tls")]
fn identity(certificate: &[u8], key: &[u8]) -> Result<reqwest::Identity, Error> {
    let invalid = |_| Error::invalid_field("client_certificate", "must be a certificate and its private key in PEM");
    reqwest::Identity::from_pem(&[certificate, b"\n", key].concat()).map_err(invalid)
}

#[cfg(feature = "tls")]
fn certificates(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, Error> {
    let invalid = |_| Error::invalid_field("roots", "must be valid PEM");
    reqwest::Certificate::from_pem_bundle(pem).map_err(invalid)
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unused_self, reason = "the signatures of the variant with TLS")]
impl TlsOptions {
    pub(super) fn http(&self, builder: ClientBuilder, url: &str) -> Result<ClientBuilder, Error> {
        reject_https(url).map(|()| builder)
    }

    pub(super) fn grpc(&self, endpoint: Endpoint, url: &str) -> Result<Endpoint, Error> {
        reject_https(url).map(|()| endpoint)
    }
}

#[cfg(not(feature = "tls"))]
fn reject_https(url: &str) -> Result<(), Error> {
    if is_secure(url) {
        let reason = format!("`{url}` needs TLS; build with the crate feature `tls` or use http://");
        return Err(crate::protocol::error::ErrorKind::InvalidParams.because(reason));
    }
    Ok(())
}
