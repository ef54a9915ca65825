//! TLS to a listener of a server.
//!
//! A server's certificate must lead to a trusted one. A server may also present a certificate of `--admin-ca` itself:
//! `openssl req -x509` makes CA certificates, which webpki refuses as a server's. Only CA certificates (`CA:TRUE`) are
//! trusted as issuers.

use http::uri::Authority;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
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
    let connector = TlsConnector::from(Arc::new(collector_config(ca)?));
    connector
        .connect(name.map_err(io::Error::other)?, stream)
        .await
}

/// Configures TLS for requests of plugins: the certificates of servers must lead to one that the system trusts. Sessions
/// are not resumed, since they would tell a server that two deployments are on one host.
pub(crate) fn outbound_config() -> io::Result<ClientConfig> {
    let (roots, _) = trusted(None)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Configures TLS to a collector of telemetry, whose certificate must be in `ca` or lead to one there, or to one that the
/// system trusts.
pub(crate) fn collector_config(ca: Option<&Path>) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (roots, accepted) = trusted(ca)?;
    let verifier = Verifier::new(roots, accepted, provider.clone())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(config)
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

/// The trusted roots, and the certificates of `ca`, which are accepted themselves.
fn trusted(ca: Option<&Path>) -> io::Result<(RootCertStore, Vec<CertificateDer<'static>>)> {
    let (file, certificates) = certificates(ca)?;
    if certificates.is_empty() {
        return Err(io::Error::other(format!(
            "there is no certificate in {}",
            file.display()
        )));
    }
    let mut roots = RootCertStore::empty();
    let issuers = certificates
        .iter()
        .filter(|one| ca.is_none() || is_authority(one));
    // System files contain some that rustls cannot parse.
    roots.add_parsable_certificates(issuers.cloned());
    Ok((roots, ca.map_or_else(Vec::new, |_| certificates)))
}

/// Whether this is a CA certificate, which may sign others.
fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.is_ca())
}

fn system_file() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let known = || SYSTEM_FILES.into_iter().map(PathBuf::from);
    named.or_else(|| known().find(|path| path.is_file()))
}

#[derive(Debug)]
struct Verifier {
    accepted: Vec<CertificateDer<'static>>,
    /// `None` if there is no trusted issuer.
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(
        roots: RootCertStore,
        accepted: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> io::Result<Self> {
        let algorithms = provider.signature_verification_algorithms;
        let chain = match roots.is_empty() {
            true => None,
            false => {
                let chain = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
                Some(chain.build().map_err(io::Error::other)?)
            }
        };
        Ok(Verifier {
            accepted,
            chain,
            algorithms,
        })
    }
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
        match &self.chain {
            Some(chain) => chain.verify_server_cert(certificate, intermediates, name, ocsp, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    /// A self-signed certificate for `localhost`, and one that it has signed.
    fn issuer_and_server(is_ca: IsCa) -> (String, CertificateDer<'static>) {
        let params = || CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let key = || KeyPair::generate().expect("a key");
        let mut issuer = params();
        issuer.is_ca = is_ca;
        let issuer = CertifiedIssuer::self_signed(issuer, key()).expect("signed");
        let server = params().signed_by(&key(), &issuer).expect("signed");
        (issuer.pem(), server.der().clone())
    }

    #[test]
    fn only_authorities_are_issuers() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.pem");
        for (is_ca, signs) in [
            (IsCa::Ca(BasicConstraints::Unconstrained), true),
            (IsCa::ExplicitNoCa, false),
            (IsCa::NoCa, false),
        ] {
            let (issuer, server) = issuer_and_server(is_ca);
            std::fs::write(&file, &issuer).expect("written");
            let (roots, accepted) = trusted(Some(&file)).expect("a certificate");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = Verifier::new(roots, accepted, provider).expect("a verifier");
            let accepts = |certificate: &CertificateDer<'_>| {
                let name = ServerName::try_from("localhost").expect("a name");
                let now = UnixTime::now();
                let verified = verifier.verify_server_cert(certificate, &[], &name, &[], now);
                verified.is_ok()
            };
            let issuer = CertificateDer::from_pem_slice(issuer.as_bytes()).expect("PEM");
            assert!(accepts(&issuer), "{is_ca:?} itself");
            assert_eq!(accepts(&server), signs, "{is_ca:?}");
        }
    }
}
