//! Verifies server certificates, for the host's own clients and for `plugins/remote-client`.
//!
//! A server's certificate must lead to a trusted one. A server may also present a certificate of the named file itself:
//! `openssl req -x509` makes CA certificates, which webpki refuses as a server's. Of the file's certificates only CA
//! certificates (`CA:TRUE`) are trusted as issuers.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use std::io;
use std::path::Path;
use std::sync::Arc;
use x509_parser::certificate::X509Certificate;
use x509_parser::time::ASN1Time;

/// Files of trusted certificates by system. Others, and systems without such a file, are left to rustls-native-certs.
const SYSTEM_FILES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// Configures TLS to a server, whose certificate must be in the PEM file `ca` or lead to one there, or to one that the
/// system trusts.
pub fn client_config(ca: Option<&Path>) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(ca, provider.clone())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(config)
}

/// The certificates in the PEM file `ca`, or those that the system trusts; at least one.
pub fn certificates(ca: Option<&Path>) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = match ca.or(system_file()) {
        Some(file) => load_certs_from_paths(Some(file), None),
        None => load_native_certs(),
    };
    let is_empty = found.certs.is_empty();
    let why = match found.errors.first() {
        Some(error) if is_empty || ca.is_some() => error.to_string(),
        _ if is_empty => "there is none; expected -----BEGIN CERTIFICATE-----".to_owned(),
        _ => return Ok(found.certs),
    };
    Err(io::Error::other(match ca {
        Some(file) => format!("cannot read certificates from {}: {why}", file.display()),
        None => format!(
            "cannot read the certificates that this system trusts: {why}; install ca-certificates, or name a file in \
             SSL_CERT_FILE"
        ),
    }))
}

/// The system's file, unless a variable names other certificates. The directory of the file is not read: it also has
/// certificates of this machine's servers, such as `ssl-cert-snakeoil.pem`, which may not sign others.
fn system_file() -> Option<&'static Path> {
    let is_set = |name| std::env::var_os(name).is_some();
    let mut known = SYSTEM_FILES.iter().map(Path::new);
    match is_set("SSL_CERT_FILE") || is_set("SSL_CERT_DIR") {
        true => None,
        false => known.find(|file| file.is_file()),
    }
}

/// Whether this is a CA certificate, which may sign others.
fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let parsed = x509_parser::parse_x509_certificate(certificate);
    parsed.is_ok_and(|(_, parsed)| parsed.is_ca())
}

#[derive(Debug)]
struct Verifier {
    /// Those that a server may present itself.
    accepted: Vec<CertificateDer<'static>>,
    /// `None` if there is no trusted issuer.
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(ca: Option<&Path>, provider: Arc<CryptoProvider>) -> io::Result<Self> {
        let certificates = certificates(ca)?;
        let issuers = certificates
            .iter()
            .filter(|one| ca.is_none() || is_authority(one));
        let mut roots = RootCertStore::empty();
        // Systems trust some that rustls cannot parse.
        roots.add_parsable_certificates(issuers.cloned());
        let accepted = ca.map_or_else(Vec::new, |_| certificates);
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
    use rustls::pki_types::pem::PemObject;

    const KINDS: [(IsCa, bool); 3] = [
        (IsCa::Ca(BasicConstraints::Unconstrained), true),
        (IsCa::ExplicitNoCa, false),
        (IsCa::NoCa, false),
    ];

    /// A certificate for `localhost`, which may sign others or not.
    fn params(is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.is_ca = is_ca;
        params
    }

    fn self_signed(params: CertificateParams) -> CertifiedIssuer<'static, KeyPair> {
        let key = KeyPair::generate().expect("a key");
        CertifiedIssuer::self_signed(params, key).expect("signed")
    }

    /// Whether a client that trusts the certificates in `ca` accepts this one of a server with this name.
    fn accepts(ca: &str, certificate: &CertificateDer<'_>, name: &str) -> bool {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, ca).expect("written");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::new(Some(file.path()), provider).expect("a certificate");
        let name = ServerName::try_from(name).expect("a name");
        let verified = verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
        verified.is_ok()
    }

    #[test]
    fn only_authorities_are_issuers() {
        for (is_ca, signs) in KINDS {
            let issuer = self_signed(params(is_ca));
            let key = KeyPair::generate().expect("a key");
            let signed = params(IsCa::NoCa).signed_by(&key, &issuer);
            let signed = signed.expect("signed");
            let accepted = accepts(&issuer.pem(), signed.der(), "localhost");
            assert_eq!(accepted, signs, "{is_ca:?}");
        }
    }

    #[test]
    fn trusted_certificate_may_be_the_own_one() {
        for (is_ca, _) in KINDS {
            let accepts = |params: CertificateParams, name| {
                let pem = self_signed(params).pem();
                let own = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
                accepts(&pem, &own, name)
            };
            assert!(accepts(params(is_ca), "localhost"), "{is_ca:?}");
            assert!(!accepts(params(is_ca), "elsewhere"), "{is_ca:?}");
            let mut expired = params(is_ca);
            expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
            assert!(!accepts(expired, "localhost"), "{is_ca:?}");
        }
    }

    #[test]
    fn file_without_certificates_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for file in [file.path(), Path::new("/nowhere.pem")] {
            let error = certificates(Some(file)).expect_err("nothing to trust");
            let expected = format!("cannot read certificates from {}: ", file.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
