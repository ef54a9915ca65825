//! TLS: a certificate and its private key from two files, reloaded when they change.
//!
//! [`file_watcher`](crate::file_watcher) notices changes; [`Tls::reload`] reads the files at once. Files that
//! do not fit together, such as half of a renewal, change nothing: the old pair stays in use, and the log says
//! why. Open connections keep the pair of their handshake.

use crate::file_watcher::{FileWatcher, Reloadable};
use corral_engine::Metric;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;
use x509_parser::time::ASN1Time;

/// ALPN protocol id of HTTP/2.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// Remaining validity below which the operator is warned.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}; give a file in PEM format", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// A file is not in PEM format.
    #[error("{} is not in PEM format: {cause}", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// The syntax error.
        cause: pem::Error,
    },
    /// The file contains no certificate.
    #[error("there is no certificate in {}; expected -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    /// The file contains no private key.
    #[error(
        "there is no private key in {}; expected an unencrypted -----BEGIN PRIVATE KEY-----",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The key does not belong to the certificate.
    #[error("the key in {} does not belong to the certificate in {}; give a pair", key.display(), certificate.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// rustls rejects the certificate or the key.
    #[error("the certificate in {} or its key cannot be used: {cause}", certificate.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// Error of rustls.
        cause: rustls::Error,
    },
}

/// A certificate and its key, reloaded when their files change.
#[derive(Debug)]
pub struct Tls {
    pair: RwLock<CertifiedPair>,
    /// Locked during a reload, so that the pair is always the one of the files that were named last.
    reloading: Mutex<()>,
    watcher: FileWatcher,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
}

#[derive(Clone, Debug)]
struct CertifiedPair {
    certificate: PathBuf,
    key: PathBuf,
    config: Arc<ServerConfig>,
    validity: Option<Validity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Validity {
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Tls {
    /// Reads a certificate with its chain, and its key, both in PEM format.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        // Created before the files are read, so that a write in between counts as a change.
        let watcher = FileWatcher::new(&[certificate, key]);
        Ok(Tls {
            pair: RwLock::new(read(certificate, key)?),
            reloading: Mutex::default(),
            watcher,
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
        })
    }

    /// Reads both files again, for new connections.
    ///
    /// # Errors
    /// If the files are not a usable pair; the old pair stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let _reloading = self.start_reload();
        let CertifiedPair {
            certificate, key, ..
        } = self.pair();
        self.load(&certificate, &key)
    }

    /// Reads a certificate and its key from these files, and watches them from now on.
    ///
    /// # Errors
    /// If the files are not a usable pair; the old pair and its files stay in use.
    pub fn reload_from(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        let _reloading = self.start_reload();
        let watcher = FileWatcher::new(&[certificate, key]);
        self.load(certificate, key)?;
        self.watcher.replace(watcher);
        Ok(())
    }

    fn start_reload(&self) -> MutexGuard<'_, ()> {
        self.reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        match read(certificate, key) {
            Ok(pair) => {
                *self.pair.write().unwrap_or_else(PoisonError::into_inner) = pair;
                self.reloads.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                self.failed_reloads.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// A warning for the operator: the certificate has expired, expires soon, or is not valid yet.
    pub fn warning(&self) -> Option<String> {
        let pair = self.pair();
        let (validity, file) = (pair.validity?, pair.certificate.display());
        let days = |time: Duration| time.as_secs() / (24 * 3600);
        #[expect(clippy::disallowed_methods, reason = "certificates have dates")]
        let now = SystemTime::now();
        if let Ok(left) = validity.not_after.duration_since(now) {
            if validity.not_before > now {
                return Some(format!("the certificate in {file} is not valid yet"));
            }
            return (left < EXPIRY_WARNING).then(|| {
                format!(
                    "the certificate in {file} expires in {} days; renew it",
                    days(left)
                )
            });
        }
        let over = now.duration_since(validity.not_after).unwrap_or_default();
        Some(format!(
            "the certificate in {file} expired {} days ago; clients will refuse it",
            days(over)
        ))
    }

    /// Metrics of reloads and of the certificate's expiry.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::counter(
                "corral_tls_reloads_total",
                "Successful reloads of the certificate.",
                self.reloads.load(Ordering::Relaxed),
            ),
            Metric::counter(
                "corral_tls_reload_failures_total",
                "Reloads of the certificate that failed; the old one stayed in use.",
                self.failed_reloads.load(Ordering::Relaxed),
            ),
        ];
        let expiry = self.pair().validity.map(|validity| validity.not_after);
        if let Some(since) = expiry.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            metrics.push(Metric::gauge(
                "corral_tls_certificate_expiry_timestamp_seconds",
                "Expiry of the certificate, in seconds since 1970.",
                since.as_secs_f64(),
            ));
        }
        metrics
    }

    /// The acceptor for the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let pair = self.pair.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&pair.config))
    }

    fn pair(&self) -> CertifiedPair {
        self.pair
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Reloadable for Tls {
    fn watcher(&self) -> &FileWatcher {
        &self.watcher
    }

    fn reload_and_log(&self) {
        match self.reload() {
            Ok(()) => tracing::info!("certificate reloaded"),
            Err(error) => {
                tracing::warn!(%error, "certificate not reloaded; the old one stays in use");
            }
        }
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedPair, TlsError> {
    let bytes = |path: &Path| {
        std::fs::read(path).map_err(|cause| TlsError::Unreadable {
            path: path.to_owned(),
            cause,
        })
    };
    let chain = CertificateDer::pem_slice_iter(&bytes(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| TlsError::NotPem {
            path: certificate.to_owned(),
            cause,
        })?;
    let Some(first) = chain.first() else {
        return Err(TlsError::NoCertificate(certificate.to_owned()));
    };
    let validity = validity(first);
    let private = PrivateKeyDer::from_pem_slice(&bytes(key)?).map_err(|cause| match cause {
        pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
        cause => TlsError::NotPem {
            path: key.to_owned(),
            cause,
        },
    })?;
    let unusable = |cause| match cause {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        },
        cause => TlsError::Unusable {
            certificate: certificate.to_owned(),
            cause,
        },
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(CertifiedPair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        config: Arc::new(config),
        validity,
    })
}

/// The validity of a certificate in DER. `None` only costs warnings: rustls validates the certificate.
fn validity(certificate: &[u8]) -> Option<Validity> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let time = |time: ASN1Time| {
        // Times before 1970 count as 1970.
        let since_1970 = Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0));
        SystemTime::UNIX_EPOCH.checked_add(since_1970)
    };
    let validity = certificate.validity();
    Some(Validity {
        not_before: time(validity.not_before)?,
        not_after: time(validity.not_after)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn validity_is_read_from_both_time_formats() {
        let key = KeyPair::generate().expect("a key");
        let days = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400);
        // Years from 2050 on use GeneralizedTime, earlier ones UTCTime.
        for (year, not_after) in [(2049, 29_219), (2050, 29_584)] {
            let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
            params.not_before = date_time_ymd(2000, 2, 29);
            params.not_after = date_time_ymd(year, 12, 31);
            let certificate = params.self_signed(&key).expect("signed");
            let expected = Validity {
                not_before: days(11_016),
                not_after: days(not_after),
            };
            assert_eq!(validity(certificate.der()), Some(expected));
            let truncated = &certificate.der()[..certificate.der().len() - 1];
            assert_eq!(validity(truncated), None);
        }
    }

    fn pair(until_year: i32) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2020, 1, 2);
        params.not_after = date_time_ymd(until_year, 3, 4);
        let certificate = params.self_signed(&key).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn unusable_files_say_why() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let ((one, one_key), (_, other_key)) = (pair(2090), pair(2090));
        let (certificate, key) = (write("a.crt", &one), write("a.key", &one_key));
        assert!(
            Tls::open(&certificate, &key)
                .expect("a pair")
                .warning()
                .is_none()
        );
        let both = write("both.pem", &format!("{one_key}{one}"));
        Tls::open(&both, &both).expect("both in one file");
        let missing = dir.path().join("missing");
        let text = write("text", "no PEM at all");
        let broken = write("broken", &one.replace("-----END", "---END"));
        let other_key = write("b.key", &other_key);
        let noise = write(
            "noise",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        for (certificate, key, expected) in [
            (&missing, &key, "cannot read"),
            (&certificate, &missing, "cannot read"),
            (&text, &key, "there is no certificate in"),
            (&certificate, &text, "there is no private key in"),
            (&key, &key, "there is no certificate in"),
            (&certificate, &certificate, "there is no private key in"),
            (&broken, &key, "is not in PEM format"),
            (
                &certificate,
                &other_key,
                "does not belong to the certificate",
            ),
            (&noise, &key, "cannot be used"),
        ] {
            let error = Tls::open(certificate, key).expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn failed_reload_from_other_files_keeps_old_pair() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let ((old, old_key), (new, new_key)) = (pair(2024), pair(2090));
        let (old, old_key) = (write("old.crt", &old), write("old.key", &old_key));
        let (new, new_key) = (write("new.crt", &new), write("new.key", &new_key));
        let tls = Tls::open(&old, &old_key).expect("a pair");
        tls.reload_from(&new, &old_key).expect_err("no pair");
        assert!(
            tls.warning()
                .is_some_and(|warning| warning.contains("old.crt"))
        );
        tls.reload_from(&new, &new_key).expect("a pair");
        assert_eq!(tls.warning(), None);
        std::fs::remove_file(&old).expect("there");
        tls.reload().expect("the new files");
    }

    #[test]
    fn expired_certificate_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let (certificate, key) = pair(2024);
        let paths = ["crt", "key"].map(|name| dir.path().join(name));
        std::fs::write(&paths[0], certificate).expect("written");
        std::fs::write(&paths[1], key).expect("written");
        let tls = Tls::open(&paths[0], &paths[1]).expect("still a pair");
        let warning = tls.warning().expect("expired");
        assert!(warning.contains("expired "), "{warning}");
        // A failed reload keeps the old pair.
        std::fs::write(&paths[1], "gone").expect("written");
        tls.reload().expect_err("half a pair");
        assert!(tls.warning().is_some());
        let failed = tls
            .metrics()
            .into_iter()
            .find(|metric| metric.name.contains("failures"));
        assert_eq!(failed.expect("it is counted").value, 1.0);
    }
}
