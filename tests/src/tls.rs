//! Self-signed certificates, and clients that trust them.

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A self-signed certificate for `localhost` and its key, in PEM format.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate in PEM.
    pub certificate: String,
    /// The private key in PEM.
    pub key: String,
}

impl Identity {
    /// Generates a key and a certificate.
    pub fn new() -> Self {
        Self::generate(IsCa::NoCa)
    }

    /// The same with a CA certificate, as `openssl req -x509` makes.
    pub fn authority() -> Self {
        Self::generate(IsCa::Ca(BasicConstraints::Unconstrained))
    }

    fn generate(is_ca: IsCa) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.is_ca = is_ca;
        Identity {
            certificate: params.self_signed(&key).expect("signed").pem(),
            key: key.serialize_pem(),
        }
    }

    /// Writes both to a directory and returns their paths, certificate first. Replaces each file atomically.
    pub fn write(&self, dir: &Path) -> [PathBuf; 2] {
        let files = [("cert.pem", &self.certificate), ("key.pem", &self.key)];
        files.map(|(name, text)| {
            let (path, fresh) = (dir.join(name), dir.join(format!("{name}.new")));
            std::fs::write(&fresh, text).expect("written");
            std::fs::rename(&fresh, &path).expect("renamed");
            path
        })
    }

    /// The side of a server with this certificate, which speaks one of these protocols.
    pub(crate) fn acceptor(&self, protocols: &[&[u8]]) -> TlsAcceptor {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.expect("PEM")], key)
            .expect("a key for this certificate");
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A client configuration that trusts this certificate only.
    pub fn trust(&self) -> TrustedRoot {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.expect("PEM")).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        TrustedRoot(Arc::new(config))
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::new()
    }
}

/// A root certificate that a client trusts.
#[derive(Clone, Debug)]
pub struct TrustedRoot(Arc<ClientConfig>);

impl TrustedRoot {
    /// Performs the handshake and offers these ALPN protocols.
    pub async fn connect(
        &self,
        stream: TcpStream,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }
}
