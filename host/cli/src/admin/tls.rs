//! TLS to a listener of a server.
//!
//! A server's certificate must lead to a trusted one. A certificate of `--admin-ca` is also accepted itself, whatever
//! it may sign: `openssl req -x509` makes certificates of an authority, which webpki refuses as a server's.

use http::uri::Authority;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::certificate::X509Certificate;
use x509_parser::time::ASN1Time;

/// Names a file of trusted certificates, as for OpenSSL.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Files of trusted certificates by system.
const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Starts TLS with this host, whose certificate must be in `ca` or lead to one there, or to one that the system trusts.
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
    let (roots, accepted) = trusted(ca)?;
    let chain = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
    let verifier = Verifier {
        accepted,
        chain: chain.build().map_err(io::Error::other)?,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector
        .connect(name.map_err(io::Error::other)?, stream)
        .await
}

/// The trusted roots, and the certificates of `ca`, which are accepted themselves.
fn trusted(ca: Option<&Path>) -> io::Result<(RootCertStore, Vec<CertificateDer<'static>>)> {
    let no_file = || io::Error::other("this system has no file of trusted certificates");
    let file = ca.map(Path::to_owned).or_else(system_file);
    let file = file.ok_or_else(no_file)?;
    let certificates = CertificateDer::pem_file_iter(&file).map_err(io::Error::other)?;
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    let mut roots = RootCertStore::empty();
    // System files contain some that rustls cannot parse.
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    match added {
        0 => Err(io::Error::other(format!(
            "there is no certificate in {}",
            file.display()
        ))),
        _ if ca.is_some() => Ok((roots, certificates)),
        _ => Ok((roots, Vec::new())),
    }
}

fn system_file() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let known = || SYSTEM_FILES.into_iter().map(PathBuf::from);
    named.or_else(|| known().find(|path| path.is_file()))
}

#[derive(Debug)]
struct Verifier {
    accepted: Vec<CertificateDer<'static>>,
    chain: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.accepted.iter().any(|accepted| accepted == certificate) {
            check_accepted(certificate, name, now)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.chain
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Checks the validity and the name of a certificate that needs no issuer.
fn check_accepted(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let now = ASN1Time::from_timestamp(seconds)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    if now < parsed.validity().not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after {
        return Err(CertificateError::Expired.into());
    }
    let named =
        rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name);
    match named {
        Err(_) if is_common_name(&parsed, name) => Ok(()),
        named => named,
    }
}

/// Whether the certificate has no alternative names, as those made by `openssl req -x509 -subj /CN=HOST`, and the
/// subject is this host.
fn is_common_name(certificate: &X509Certificate<'_>, name: &ServerName<'_>) -> bool {
    let host = name.to_str();
    let mut subjects = certificate.subject().iter_common_name();
    matches!(certificate.subject_alternative_name(), Ok(None))
        && subjects.any(|subject| {
            subject
                .as_str()
                .is_ok_and(|subject| subject.eq_ignore_ascii_case(&host))
        })
}
