//! TLS of the listeners: certificates that are read again when their files change, client certificates, and connections with or
//! without TLS.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
        server::WebPkiClientVerifier,
        version::{TLS12, TLS13},
    },
    server::TlsStream,
};
use tokio_util::either::Either;
use webpki::EndEntityCert;
use x509_cert::der::Decode as _;

use crate::{
    base::{
        secret_file::{read_file, read_secret},
        watched_file::WatchedFiles,
    },
    protocol::call::ClientCertificate,
};

/// Maximum size of a file with certificates or the private key, in bytes.
const MAX_KEY_FILE: u64 = 1 << 20;

/// Timeout of the handshake.
pub(in crate::transport) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Use of client certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Not requested.
    #[default]
    Off,
    /// Requested, and verified if the client has one.
    Optional,
    /// Clients without a valid certificate are rejected.
    Required,
}

/// Reason why the certificates of a server can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{}{cause}", path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default())]
pub struct TlsError {
    path: Option<PathBuf>,
    cause: String,
}

impl TlsError {
    fn new(path: Option<&Path>, cause: impl fmt::Display) -> Self {
        Self { path: path.map(Path::to_owned), cause: cause.to_string() }
    }
}

/// Certificate chain and private key, and the authorities of client certificates.
#[derive(Clone, Debug)]
enum Source {
    Files { cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf> },
    SelfSigned { cert: CertificateDer<'static>, key: Arc<PrivateKeyDer<'static>> },
}

/// TLS of a server: TLS 1.2 and 1.3, with HTTP/2 and HTTP/1.1 by ALPN.
///
/// ```no_run
/// use a2a_service::{agent::demo::Demo, server::{Server, Tls}};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::from_files("server.pem", "server.key")?;
/// Server::new(Demo).tls(tls).serve("127.0.0.1:8443").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tls {
    source: Source,
    client_auth: ClientAuth,
    config: WatchedFiles<ServerConfig>,
}

impl Tls {
    /// Uses the certificate chain and the private key of these files in PEM. Changes of the files take effect within a second, for
    /// new connections; files that can't be used leave the certificate as it is. Blocks.
    ///
    /// # Errors
    /// The files can't be read, or don't belong together.
    pub fn from_files(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let source = Source::Files { cert: cert.into(), key: key.into(), client_ca: None };
        Self::load(source, ClientAuth::Off)
    }

    /// Requests certificates of clients that one of the authorities in this file has issued. Blocks.
    ///
    /// # Errors
    /// The file can't be read, or the certificate is self-signed.
    pub fn client_auth(self, authorities: impl Into<PathBuf>, use_of: ClientAuth) -> Result<Self, TlsError> {
        match self.source {
            Source::Files { cert, key, .. } => {
                let client_ca = Some(authorities.into());
                Self::load(Source::Files { cert, key, client_ca }, use_of)
            }
            Source::SelfSigned { .. } => Err(TlsError::new(None, "client certificates need a certificate in a file")),
        }
    }

    /// Generates a certificate for `localhost`, loopback addresses and these names, for development: clients can't verify it.
    ///
    /// # Errors
    /// A name is no DNS name, or the key can't be generated.
    pub fn self_signed(names: impl IntoIterator<Item = String>) -> Result<Self, TlsError> {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into_iter().chain(names);
        let generated = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>());
        let rcgen::CertifiedKey { cert, signing_key } = generated.map_err(|error| TlsError::new(None, error))?;
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).map_err(|error| TlsError::new(None, error))?;
        Self::load(Source::SelfSigned { cert: cert.der().clone(), key: Arc::new(key) }, ClientAuth::Off)
    }

    fn load(source: Source, client_auth: ClientAuth) -> Result<Self, TlsError> {
        let paths = match &source {
            Source::Files { cert, key, client_ca } => [cert, key].into_iter().chain(client_ca).cloned().collect(),
            Source::SelfSigned { .. } => Vec::new(),
        };
        let read = {
            let source = source.clone();
            move || source.config(client_auth)
        };
        let log = |result: Result<&ServerConfig, &str>| match result {
            Ok(_) => tracing::info!("certificate of the server read again"),
            Err(error) => {
                tracing::error!(error, "certificate of the server can't be used; the one read before stays in use");
            }
        };
        Ok(Self { source, client_auth, config: WatchedFiles::open(paths, read, log)? })
    }

    /// Returns true if the certificate in a file is for this host. Blocks.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        let Source::Files { cert, .. } = &self.source else { return false };
        let (chain, name) = (certificates(cert).unwrap_or_default(), ServerName::try_from(host));
        let leaf = chain.first().and_then(|leaf| EndEntityCert::try_from(leaf).ok());
        leaf.zip(name.ok()).is_some_and(|(leaf, name)| leaf.verify_is_valid_for_subject_name(&name).is_ok())
    }

    /// Performs the handshake of a connection.
    ///
    /// # Errors
    /// The handshake fails.
    pub(in crate::transport) async fn accept<I>(&self, io: I) -> io::Result<TlsStream<I>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.config.value().await).accept(io).await
    }
}

impl Source {
    fn config(&self, client_auth: ClientAuth) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let versions = [&TLS13, &TLS12];
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions);
        let builder = builder.map_err(|error| TlsError::new(None, error))?;
        let (chain, key, client_ca) = match self {
            Self::Files { cert, key, client_ca } => (certificates(cert)?, private_key(key)?, client_ca.as_ref()),
            Self::SelfSigned { cert, key } => (vec![cert.clone()], key.clone_key(), None),
        };
        let builder = match client_ca.filter(|_| client_auth != ClientAuth::Off) {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| TlsError::new(Some(path), error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match client_auth {
                    ClientAuth::Optional => verifier.allow_unauthenticated(),
                    ClientAuth::Off | ClientAuth::Required => verifier,
                };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| TlsError::new(Some(path), error))?)
            }
        };
        let path = if let Self::Files { cert, .. } = self { Some(cert.as_path()) } else { None };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| TlsError::new(path, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let (pem, _) = read_file(path, MAX_KEY_FILE).map_err(|error| TlsError::new(Some(path), error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| TlsError::new(Some(path), error))?;
    if chain.is_empty() { Err(TlsError::new(Some(path), "the file has no certificate in PEM")) } else { Ok(chain) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = read_secret(path, MAX_KEY_FILE).map_err(|error| TlsError::new(Some(path), error))?;
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| TlsError::new(Some(path), "the file has no private key in PEM (PKCS#8, PKCS#1 or SEC1)"))
}

debug_fields!(Tls { client_auth });

/// Connection with or without TLS. One type, so that the HTTP server is compiled once.
pub(in crate::transport) type MaybeTls<I> = Either<Box<TlsStream<I>>, I>;

/// Returns the certificate of the client of a connection, if it has sent one.
pub(in crate::transport) fn client_certificate<I>(io: &MaybeTls<I>) -> Option<ClientCertificate> {
    let Either::Left(stream) = io else { return None };
    let (_, connection) = stream.get_ref();
    let certificate = connection.peer_certificates()?.first()?;
    // The verifier has parsed it already.
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let names = ClientCertificate::new(certificate.as_ref(), parsed.valid_dns_names(), parsed.valid_uri_names());
    let decoded = x509_cert::Certificate::from_der(certificate);
    Some(match decoded {
        Ok(decoded) => names.with_subject(decoded.tbs_certificate.subject.to_string()),
        Err(_) => names,
    })
}
