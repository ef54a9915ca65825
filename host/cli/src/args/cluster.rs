//! Arguments for a cluster of hosts.

use crate::{Error, text_file};
use clap::Args;
use corral_client_tls::client_config;
use corral_server::deployments::{ClusterConfig, ClusterServers};
use std::path::{Path, PathBuf};

/// Largest credentials file.
const MAX_CREDENTIALS_BYTES: u64 = 64 << 10;

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// NATS of a cluster of hosts that serve the same deployments: nats://HOST:PORT; needs --store
    #[arg(long, value_name = "URL")]
    pub(crate) cluster: Option<ClusterServers>,
    /// Credentials file for NATS, with a JWT and the seed of a key
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_creds: Option<PathBuf>,
    /// PEM certificate of NATS or its issuer, which enforces TLS [default: those that the system trusts]
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_ca: Option<PathBuf>,
}

impl ClusterArgs {
    /// Finds errors that need no file access.
    pub(crate) fn check(&self, has_store: bool) -> Result<(), Error> {
        let files = [
            ("--cluster-creds", &self.cluster_creds),
            ("--cluster-ca", &self.cluster_ca),
        ];
        match &self.cluster {
            Some(_) if !has_store => Err(Error::usage(
                "--cluster needs --store DIR, where this host keeps a copy of the deployments",
            )),
            Some(_) => Ok(()),
            None => match files.iter().find(|(_, file)| file.is_some()) {
                Some((option, _)) => Err(Error::usage(format!(
                    "{option} has no effect without --cluster URL; give both, or remove it"
                ))),
                None => Ok(()),
            },
        }
    }

    /// How to connect to the cluster, if there is one. Reads the files.
    pub(crate) fn read(&self) -> Result<Option<ClusterConfig>, Error> {
        let Some(servers) = &self.cluster else {
            return Ok(None);
        };
        let credentials = self.cluster_creds.as_deref().map(read_credentials);
        let tls = client_config(self.cluster_ca.as_deref());
        let tls = match (tls, &self.cluster_ca) {
            (Ok(tls), _) => Some(tls),
            (Err(error), Some(file)) => {
                return Err(Error::context(format!(
                    "cannot use the certificates in {}",
                    file.display()
                ))(error));
            }
            // Only a connection with TLS needs those of the system.
            (Err(_), None) => None,
        };
        Ok(Some(ClusterConfig {
            servers: servers.clone(),
            credentials: credentials.transpose()?,
            tls,
            require_tls: self.cluster_ca.is_some(),
        }))
    }
}

fn read_credentials(file: &Path) -> Result<String, Error> {
    let text = text_file::read(file, MAX_CREDENTIALS_BYTES);
    text.map_err(Error::context(format!(
        "cannot read the credentials for NATS from {}; name a file that this user can read",
        file.display()
    )))
}

#[cfg(test)]
mod tests {
    use crate::args::tests::parse_serve;

    #[test]
    fn cluster_needs_store() {
        let model = "--model a.gguf";
        let error = |more: &str| parse_serve(&format!("{model} {more}")).expect_err(more);
        for (more, expected) in [
            ("--cluster nats://a", "needs --store"),
            ("--cluster-ca a.pem", "without --cluster"),
            ("--cluster http://a --store b", "write nats://HOST:PORT"),
        ] {
            let error = error(more);
            assert!(error.contains(expected), "{error}");
        }
        let args = parse_serve(&format!("{model} --store b --cluster nats://a,b:9"));
        let cluster = args.expect("valid").cluster.cluster.expect("given");
        assert_eq!(cluster.to_string(), "nats://a:4222,nats://b:9");
    }
}
