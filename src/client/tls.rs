//! Whom a client believes at `https://`: what the system trusts, which an operator can change, and what it is told beside.
//!
//! TLS is a feature, `tls`, since it brings a library in C. What comes without says so at once, and not when it is called.

#[cfg(feature = "tls")]
pub(super) use self::with::RootCertificates;
#[cfg(not(feature = "tls"))]
pub(super) use self::without::RootCertificates;

fn is_secure(url: &str) -> bool {
    url.get(..6).is_some_and(|it| it.eq_ignore_ascii_case("https:"))
}

#[cfg(feature = "tls")]
mod with {
    use reqwest::ClientBuilder;
    use tonic::transport::{self, ClientTlsConfig, Endpoint};

    use super::is_secure;
    use crate::error::Error;

    /// Certificates in PEM.
    #[derive(Clone, Debug, Default)]
    pub(in crate::client) struct RootCertificates(Vec<Vec<u8>>);

    impl RootCertificates {
        pub(in crate::client) fn add(&mut self, pem: &[u8]) -> Result<(), Error> {
            if certificates(pem)?.is_empty() {
                return Err(Error::invalid_field("roots", "has no certificate in PEM"));
            }
            self.0.push(pem.to_owned());
            Ok(())
        }

        pub(in crate::client) fn http(&self, builder: ClientBuilder, url: &str) -> Result<ClientBuilder, Error> {
            if !is_secure(url) {
                // What the system trusts takes some time to read, and nobody asks for it.
                return Ok(builder.tls_certs_only([]));
            }
            let mut all = Vec::new();
            for pem in &self.0 {
                all.extend(certificates(pem)?);
            }
            Ok(builder.https_only(true).tls_certs_merge(all))
        }

        pub(in crate::client) fn grpc(&self, endpoint: Endpoint, url: &str) -> Result<Endpoint, Error> {
            if !is_secure(url) {
                return Ok(endpoint);
            }
            let all = self.0.iter().map(transport::Certificate::from_pem);
            let config = ClientTlsConfig::new().with_native_roots().ca_certificates(all);
            endpoint.tls_config(config).map_err(Error::internal)
        }
    }

    fn certificates(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, Error> {
        let invalid = |_| Error::invalid_field("roots", "is not PEM");
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
        #[expect(clippy::unused_self, reason = "with TLS, it has certificates")]
        pub(in crate::client) fn http(&self, builder: ClientBuilder, url: &str) -> Result<ClientBuilder, Error> {
            open(url).map(|()| builder)
        }

        #[expect(clippy::unused_self, reason = "with TLS, it has certificates")]
        pub(in crate::client) fn grpc(&self, endpoint: Endpoint, url: &str) -> Result<Endpoint, Error> {
            open(url).map(|()| endpoint)
        }
    }

    fn open(url: &str) -> Result<(), Error> {
        if is_secure(url) {
            let why = format!("`{url}` is for TLS, which this program was built without (feature `tls`)");
            return Err(ErrorKind::InvalidParams.because(why));
        }
        Ok(())
    }
}
