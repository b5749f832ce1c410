//! Certificate of a client, which TLS has verified.

use std::sync::Arc;

/// Certificate with which a client has authenticated its connection.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate(Arc<Names>);

#[derive(Clone, PartialEq, Eq)]
struct Names {
    der: Box<[u8]>,
    dns: Vec<String>,
    uri: Vec<String>,
    subject: Option<String>,
}

impl ClientCertificate {
    /// Creates the certificate from its DER encoding and its subject alternative names (RFC 5280, 4.2.1.6).
    pub fn new<T: Into<String>>(
        der: impl Into<Box<[u8]>>,
        dns: impl IntoIterator<Item = T>,
        uri: impl IntoIterator<Item = T>,
    ) -> Self {
        let (dns, uri) = (dns.into_iter().map(Into::into), uri.into_iter().map(Into::into));
        Self(Arc::new(Names { der: der.into(), dns: dns.collect(), uri: uri.collect(), subject: None }))
    }

    /// Sets the subject, as a distinguished name in text (RFC 4514).
    #[must_use]
    pub fn with_subject(mut self, subject: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.0).subject = Some(subject.into());
        self
    }

    /// DER encoding.
    pub fn der(&self) -> &[u8] {
        &self.0.der
    }

    /// DNS names, in the order of the certificate.
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.0.dns.iter().map(String::as_str)
    }

    /// Subject as a distinguished name in text (RFC 4514), such as `CN=agent,O=Example`. `None` if it is empty.
    pub fn subject(&self) -> Option<&str> {
        self.0.subject.as_deref().filter(|subject| !subject.is_empty())
    }

    /// URIs, such as SPIFFE ids, in the order of the certificate.
    pub fn uris(&self) -> impl Iterator<Item = &str> {
        self.0.uri.iter().map(String::as_str)
    }
}

debug_fields!(ClientCertificate { dns: 0.dns, uri: 0.uri });
