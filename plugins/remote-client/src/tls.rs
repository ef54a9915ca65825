//! TLS to a host.
//!
//! The host's certificate must lead to a trusted one. A certificate of [`ConnectOptions::ca_file`] may also be the host's own:
//! `openssl req -x509` makes CA certificates, which webpki refuses as a server's.

use crate::connection::{BoxError, ConnectOptions};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

/// Starts TLS with the host of this name or address.
pub(crate) async fn connect(
    stream: TcpStream,
    host: &str,
    options: &ConnectOptions,
) -> Result<TlsStream<TcpStream>, BoxError> {
    let mut config = match &options.tls {
        Some(config) => config.clone(),
        None => config(options.ca_file.as_deref())?,
    };
    // Both bodies stay open, on a connection of their own.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned())?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connecting.await.map_err(|error| {
        let cause = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            Some(Error::InvalidCertificate(_)) => {
                format!("{error}; ConnectOptions::ca_file names the certificates to trust").into()
            }
            _ => error.into(),
        }
    })
}

fn config(ca_file: Option<&Path>) -> Result<ClientConfig, BoxError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier::new(ca_file)?))
        .with_no_client_auth();
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[derive(Debug)]
struct Verifier {
    /// Certificates that a host may have itself.
    own: Vec<CertificateDer<'static>>,
    chain: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    /// Trusts the certificates in a file, or those that the system trusts.
    fn new(ca_file: Option<&Path>) -> Result<Self, BoxError> {
        let (place, found) = match ca_file {
            Some(file) => (
                file.display().to_string(),
                load_certs_from_paths(ca_file, None),
            ),
            None => ("this system".into(), load_native_certs()),
        };
        let mut roots = RootCertStore::empty();
        // Those of a system contain some that rustls cannot parse.
        let (added, _) = roots.add_parsable_certificates(found.certs.iter().cloned());
        if added == 0 {
            let why = found.errors.first().map(|error| format!(" ({error})"));
            let why = why.unwrap_or_default();
            let what = "name a PEM file in ConnectOptions::ca_file";
            return Err(format!("{place} has no certificate to trust{why}; {what}").into());
        }
        let chain = WebPkiServerVerifier::builder_with_provider(roots.into(), provider());
        let own = ca_file.map_or_else(Vec::new, |_| found.certs);
        let chain = chain.build()?;
        Ok(Verifier { own, chain })
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
        if !self.own.iter().any(|own| own == certificate) {
            return self
                .chain
                .verify_server_cert(certificate, intermediates, name, ocsp, now);
        }
        check_dates(certificate, now)?;
        rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
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

fn check_dates(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let parsed = parse_x509_certificate(certificate);
    let (_, parsed) = parsed.map_err(|_| CertificateError::BadEncoding)?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let now = ASN1Time::from_timestamp(seconds).map_err(|_| CertificateError::BadEncoding)?;
    if now < parsed.validity().not_before {
        return Err(CertificateError::NotValidYet);
    }
    if now > parsed.validity().not_after {
        return Err(CertificateError::Expired);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
    use rustls::pki_types::pem::PemObject;

    /// Whether a program that trusts this self-signed certificate accepts it of a host with this name.
    fn accepts(params: &CertificateParams, name: &str) -> bool {
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, &pem).expect("written");
        let verifier = Verifier::new(Some(file.path())).expect("a certificate");
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM");
        let name = ServerName::try_from(name).expect("a name");
        let verified = verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now());
        verified.is_ok()
    }

    #[test]
    fn trusted_certificate_may_be_the_own_one() {
        let authority = IsCa::Ca(BasicConstraints::Unconstrained);
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa, authority] {
            let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
            params.is_ca = is_ca;
            assert!(accepts(&params, "localhost"), "{:?}", params.is_ca);
            assert!(!accepts(&params, "elsewhere"), "{:?}", params.is_ca);
            params.not_after = date_time_ymd(2020, 1, 1);
            assert!(!accepts(&params, "localhost"), "{:?}", params.is_ca);
        }
    }

    #[test]
    fn file_without_certificates_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for file in [file.path(), Path::new("/nowhere.pem")] {
            let error = Verifier::new(Some(file)).expect_err("nothing to trust");
            let expected = format!("{} has no certificate to trust", file.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
