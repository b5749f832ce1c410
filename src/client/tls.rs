//! TLS root certificates of the client: those of the system, and those that [`Client::roots`](super::Client) adds.
//!
//! TLS is the crate feature `tls`, because it needs a C library. Without it, an `https://` URL is rejected when the client
//! is created, not at the first call.

#[cfg(feature = "tls")]
pub(super) use self::with::RootCertificates;
#[cfg(not(feature = "tls"))]
pub(super) use self::without::RootCertificates;

/// Returns true for a URL with TLS.
pub(super) fn is_secure(url: &str) -> bool {
    url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
}

#[cfg(feature = "tls")]
mod with {
    use reqwest::ClientBuilder;
    use tonic::transport::{self, ClientTlsConfig, Endpoint};

    use super::is_secure;
    use crate::error::Error;

    /// Additional root certificates: bundles in PEM.
    #[derive(Clone, Debug, Default)]
    pub(in crate::client) struct RootCertificates(Vec<Vec<u8>>);

    impl RootCertificates {
        pub(in crate::client) fn add(&mut self, pem: &[u8]) -> Result<(), Error> {
            if certificates(pem)?.is_empty() {
                return Err(Error::invalid_field("roots", "must contain at least one certificate in PEM"));
            }
            self.0.push(pem.to_owned());
            Ok(())
        }

        pub(in crate::client) fn http(&self, builder: ClientBuilder, url: &str) -> Result<ClientBuilder, Error> {
            if !is_secure(url) {
                // Skips reading the system's root certificates, which is slow.
                return Ok(builder.tls_certs_only([]));
            }
            let mut roots = Vec::new();
            for pem in &self.0 {
                roots.extend(certificates(pem)?);
            }
            Ok(builder.https_only(true).tls_certs_merge(roots))
        }

        pub(in crate::client) fn grpc(&self, endpoint: Endpoint, url: &str) -> Result<Endpoint, Error> {
            if !is_secure(url) {
                return Ok(endpoint);
            }
            let roots = self.0.iter().map(transport::Certificate::from_pem);
            let config = ClientTlsConfig::new().with_native_roots().ca_certificates(roots);
            endpoint.tls_config(config).map_err(Error::internal)
        }
    }

    fn certificates(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, Error> {
        let invalid = |_| Error::invalid_field("roots", "must be valid PEM");
        reqwest::Certificate::from_pem_bundle(pem).map_err(invalid)
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use reqwest::ClientBuilder;
    use tonic::transport::Endpoint;

    use super::is_secure;
    use crate::error::{Error, ErrorKind};

    #[derive(Clone, Debug, Default)]
    pub(in crate::client) struct RootCertificates;

    impl RootCertificates {
        #[expect(clippy::unused_self, reason = "the signature of the variant with TLS")]
        pub(in crate::client) fn http(&self, builder: ClientBuilder, url: &str) -> Result<ClientBuilder, Error> {
            reject_https(url).map(|()| builder)
        }

        #[expect(clippy::unused_self, reason = "the signature of the variant with TLS")]
        pub(in crate::client) fn grpc(&self, endpoint: Endpoint, url: &str) -> Result<Endpoint, Error> {
            reject_https(url).map(|()| endpoint)
        }
    }

    fn reject_https(url: &str) -> Result<(), Error> {
        if is_secure(url) {
            let reason = format!("`{url}` needs TLS; build with the crate feature `tls` or use http://");
            return Err(ErrorKind::InvalidParams.because(reason));
        }
        Ok(())
    }
}
