//! TLS to an admin listener.

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

/// Names a file of trusted certificates, as for OpenSSL.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Files of trusted certificates by system.
const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Starts TLS with this host, whose certificate must lead to one in `ca`, or to one that the system trusts.
pub(super) async fn connect(
    stream: TcpStream,
    authority: &Authority,
    ca: Option<&Path>,
) -> io::Result<TlsStream<TcpStream>> {
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let name = ServerName::try_from(address.unwrap_or(host).to_owned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(root_certificates(ca)?)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector
        .connect(name.map_err(io::Error::other)?, stream)
        .await
}

/// The certificates in `ca`, or those that the system trusts, and the file they are from.
pub(crate) fn certificates(
    ca: Option<&Path>,
) -> io::Result<(PathBuf, Vec<CertificateDer<'static>>)> {
    let no_file = || {
        io::Error::other(format!(
            "this system has no file of trusted certificates; install ca-certificates, or name one in {VARIABLE}"
        ))
    };
    let file = ca.map(Path::to_owned).or_else(system_file);
    let file = file.ok_or_else(no_file)?;
    let certificates = CertificateDer::pem_file_iter(&file).map_err(io::Error::other)?;
    let certificates = certificates
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    Ok((file, certificates))
}

fn root_certificates(ca: Option<&Path>) -> io::Result<RootCertStore> {
    let (file, certificates) = certificates(ca)?;
    let mut roots = RootCertStore::empty();
    // System files contain some that rustls cannot parse.
    let (added, _) = roots.add_parsable_certificates(certificates);
    match added {
        0 => Err(io::Error::other(format!(
            "there is no certificate in {}",
            file.display()
        ))),
        _ => Ok(roots),
    }
}

fn system_file() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let known = || SYSTEM_FILES.into_iter().map(PathBuf::from);
    named.or_else(|| known().find(|path| path.is_file()))
}
