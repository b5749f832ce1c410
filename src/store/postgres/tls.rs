//! TLS of connections to PostgreSQL, with rustls.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream as ClientStream,
    rustls::{
        CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
        client::{
            WebPkiServerVerifier,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    },
};

use super::{
    Error,
    options::{Settings, Verify},
};

/// Creates the TLS streams of connections.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the root certificates.
    pub(super) fn new(settings: &Settings) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| failed(&error))?;
        let roots = match settings.verify {
            Verify::Nothing => None,
            Verify::Root | Verify::Host => {
                let mut roots = RootCertStore::empty();
                if let Some(path) = &settings.root_file {
                    let at_path = |error: &dyn std::fmt::Display| Error::Tls(format!("{}: {error}", path.display()));
                    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| at_path(&error))? {
                        let certificate = certificate.map_err(|error| at_path(&error))?;
                        roots.add(certificate).map_err(|error| at_path(&error))?;
                    }
                } else {
                    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                }
                let roots = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
                Some(roots.build().map_err(|error| failed(&error))?)
            }
        };
        let verifier: Arc<dyn ServerCertVerifier> = match (roots, settings.verify) {
            (Some(roots), Verify::Host) => roots,
            (roots, _) => Arc::new(AnyHost { roots, provider }),
        };
        let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// Verifier that accepts the certificates of all hosts: those with a trusted root, or any without `roots`.
#[derive(Debug)]
struct AnyHost {
    roots: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is checked last.
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Error = io::Error;
    type Stream = Stream<S>;
    type TlsConnect = Connect;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connect> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Connect { tls: self.clone(), name })
    }
}

/// Connects to one host.
pub(super) struct Connect {
    tls: Tls,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect {
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;
    type Stream = Stream<S>;

    fn connect(self, stream: S) -> Self::Future {
        let connecting = TlsConnector::from(self.tls.0).connect(self.name, stream);
        Box::pin(async move { connecting.await.map(Stream) })
    }
}

/// Encrypted stream.
pub(super) struct Stream<S>(ClientStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
