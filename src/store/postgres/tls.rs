//! TLS of connections to PostgreSQL, with rustls.

use std::sync::Arc;

use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use super::{
    Error,
    options::{Settings, Verify},
};

/// Creates the TLS connector, for which it reads the root certificates.
pub(super) fn connector(settings: &Settings) -> Result<MakeRustlsConnect, Error> {
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
    Ok(MakeRustlsConnect::new(config))
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
