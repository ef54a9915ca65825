//! TLS: a certificate and its key from two files, which are read again when they change.
//!
//! The files are looked at when a connection comes (see [`changes`](crate::changes)), and read when
//! [`Tls::reload`] is called. What does not fit together (half of a renewal, say) changes nothing: the old pair goes on,
//! and the log says why. Connections that are open keep the pair that they began with.

mod certificate;

use crate::changes::{Changes, Follow, follow};
use certificate::Validity;
use corral_engine::{Kind, Metric};
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;

/// What HTTP/2 is called in a handshake.
pub(crate) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// A certificate that ends sooner is worth a word.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Why a certificate or a key is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("cannot read {}: {cause}; give a file in PEM format", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A file is not in PEM format.
    #[error("{} is not in PEM format: {cause}", path.display())]
    NoPem {
        /// The file.
        path: PathBuf,
        /// Where it is not.
        cause: pem::Error,
    },
    /// There is no certificate in the file.
    #[error("there is no certificate in {}; it should hold -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    /// There is no private key in the file.
    #[error(
        "there is no private key in {}; it should hold -----BEGIN PRIVATE KEY-----, not encrypted",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The key is not that of the certificate.
    #[error("the key in {} is not that of the certificate in {}; give a pair", key.display(), certificate.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// rustls takes one of them not.
    #[error("the certificate in {} or its key cannot be used: {cause}", certificate.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// What rustls said.
        cause: rustls::Error,
    },
}

/// A certificate and its key, as they are in their files now.
#[derive(Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    pair: RwLock<Pair>,
    changes: Changes,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
}

#[derive(Clone, Debug)]
struct Pair {
    config: Arc<ServerConfig>,
    validity: Option<Validity>,
}

impl Tls {
    /// Reads a certificate (and the chain that leads to it) and its key, both in PEM format.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        // Looked at before they are read: what changes in between is seen as a change.
        let changes = Changes::of(&[certificate, key]);
        Ok(Tls {
            pair: RwLock::new(read(certificate, key)?),
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            changes,
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
        })
    }

    /// Reads both files again, for connections that come from now on. On failure the old ones go on.
    pub fn reload(&self) -> Result<(), TlsError> {
        match read(&self.certificate, &self.key) {
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

    /// What an operator should know of the certificate: it is over, or will be soon, or is not valid
    /// yet.
    pub fn warning(&self) -> Option<String> {
        let validity = self.pair().validity?;
        let file = self.certificate.display();
        let days = |time: Duration| time.as_secs() / (24 * 3600);
        let now = SystemTime::now();
        if let Ok(left) = validity.until.duration_since(now) {
            if validity.from > now {
                return Some(format!("the certificate in {file} is not valid yet"));
            }
            return (left < SOON).then(|| {
                format!(
                    "the certificate in {file} ends in {} days; renew it",
                    days(left)
                )
            });
        }
        let over = now.duration_since(validity.until).unwrap_or_default();
        Some(format!(
            "the certificate in {file} has been over for {} days; clients will refuse it",
            days(over)
        ))
    }

    /// When the certificate ends, how often the files were read again, and how often that failed.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let metric = |name, help, kind, value| Metric {
            name,
            help,
            kind,
            labels: Vec::new(),
            value,
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let mut metrics = vec![
            metric(
                "corral_tls_reloads_total",
                "Times that the certificate was read again.",
                Kind::Counter,
                count(&self.reloads),
            ),
            metric(
                "corral_tls_reload_failures_total",
                "Times that it could not be used when it was read again, so that the old one went on.",
                Kind::Counter,
                count(&self.failed_reloads),
            ),
        ];
        let until = self.pair().validity.map(|validity| validity.until);
        if let Some(until) = until.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            metrics.push(metric(
                "corral_tls_certificate_expiry_timestamp_seconds",
                "When the certificate ends, in seconds since 1970.",
                Kind::Gauge,
                until.as_secs_f64(),
            ));
        }
        metrics
    }

    /// What shakes hands with the next client.
    pub(crate) async fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        follow(self).await;
        TlsAcceptor::from(self.pair().config)
    }

    fn pair(&self) -> Pair {
        self.pair
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Follow for Tls {
    fn changes(&self) -> &Changes {
        &self.changes
    }

    fn read_again(&self) {
        match self.reload() {
            Ok(()) => tracing::info!("the certificate was read again"),
            Err(error) => tracing::warn!(%error, "the old certificate goes on"),
        }
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Pair, TlsError> {
    let bytes = |path: &Path| {
        std::fs::read(path).map_err(|cause| TlsError::Unreadable {
            path: path.to_owned(),
            cause,
        })
    };
    let chain = CertificateDer::pem_slice_iter(&bytes(certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| TlsError::NoPem {
            path: certificate.to_owned(),
            cause,
        })?;
    let Some(first) = chain.first() else {
        return Err(TlsError::NoCertificate(certificate.to_owned()));
    };
    let validity = certificate::validity(first);
    let private = PrivateKeyDer::from_pem_slice(&bytes(key)?).map_err(|cause| match cause {
        pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
        cause => TlsError::NoPem {
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
    Ok(Pair {
        config: Arc::new(config),
        validity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn pair(until_year: i32) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2020, 1, 2);
        params.not_after = date_time_ymd(until_year, 3, 4);
        let certificate = params.self_signed(&key).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn files_that_are_of_no_use_say_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
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
        let missing = folder.path().join("missing");
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
            (&certificate, &other_key, "is not that of the certificate"),
            (&noise, &key, "cannot be used"),
        ] {
            let error = Tls::open(certificate, key).expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn one_that_is_over_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let (certificate, key) = pair(2024);
        let paths = ["crt", "key"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], certificate).expect("written");
        std::fs::write(&paths[1], key).expect("written");
        let tls = Tls::open(&paths[0], &paths[1]).expect("a pair all the same");
        let warning = tls.warning().expect("it is over");
        assert!(warning.contains("has been over for"), "{warning}");
        // A failed reload leaves what was there.
        std::fs::write(&paths[1], "gone").expect("written");
        tls.reload().expect_err("half a pair");
        assert!(tls.warning().is_some());
        let failed = tls
            .metrics()
            .into_iter()
            .find(|metric| metric.name.contains("failed"));
        assert_eq!(failed.expect("it is counted").value, 1.0);
    }
}
