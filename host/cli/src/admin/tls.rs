//! Whom the command line takes for a server that it was told of by name.

use http::uri::Authority;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Names a file with the certificates that are trusted, as for OpenSSL.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Where systems have theirs.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Encrypts a connection to the host named so, whose certificate has to lead to one of those in `file`, or
/// that the system trusts.
pub(super) async fn shake_hands(
    stream: TcpStream,
    named: &Authority,
    file: Option<&Path>,
) -> io::Result<TlsStream<TcpStream>> {
    let host = named.host();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let name = ServerName::try_from(bare.unwrap_or(host).to_owned()).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots(file)?)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await
}

fn roots(file: Option<&Path>) -> io::Result<RootCertStore> {
    let file = match file {
        Some(file) => file.to_owned(),
        None => system().ok_or_else(|| io::Error::other("this system names no certificates"))?,
    };
    let certificates = CertificateDer::pem_file_iter(&file).map_err(io::Error::other)?;
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    let mut roots = RootCertStore::empty();
    // Systems have some that are too old to be understood.
    let (good, _) = roots.add_parsable_certificates(certificates);
    match good {
        0 => Err(io::Error::other(format!(
            "there is no certificate in {}",
            file.display()
        ))),
        _ => Ok(roots),
    }
}

fn system() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let known = || SYSTEM.into_iter().map(PathBuf::from);
    named.or_else(|| known().find(|path| path.is_file()))
}
