//! Arguments of the commands for registries.

use crate::Error;
use clap::Args;
use std::path::PathBuf;

/// How to reach a registry.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct RegistryArgs {
    /// User of the registry [default: docker's login, from config.json in DOCKER_CONFIG or ~/.docker]
    #[arg(
        long,
        value_name = "NAME",
        requires = "registry_password_file",
        help_heading = "Registry"
    )]
    pub(super) registry_user: Option<String>,
    /// File with the password or token of the registry's user; - for standard input
    #[arg(
        long,
        value_name = "FILE",
        requires = "registry_user",
        help_heading = "Registry"
    )]
    pub(super) registry_password_file: Option<PathBuf>,
    /// PEM certificate of the issuer of the registry's certificate [default: those that the system trusts]
    #[arg(long, value_name = "FILE", help_heading = "Registry")]
    pub(super) registry_ca: Option<PathBuf>,
    /// Use HTTP without TLS, also for a registry on another machine
    #[arg(long, conflicts_with = "registry_ca", help_heading = "Registry")]
    pub(super) registry_http: bool,
}

/// How to get an artifact.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ArtifactArgs {
    #[command(flatten)]
    pub(super) registry: RegistryArgs,
    /// Refuse an artifact that this public key has not signed (PEM, ECDSA P-256), as 'cosign sign --key' does
    #[arg(long, value_name = "FILE", help_heading = "Registry")]
    pub(super) verify_key: Option<PathBuf>,
}

impl ArtifactArgs {
    /// Refuses options of registries in a command without a registry.
    pub(crate) fn check_unused(&self) -> Result<(), Error> {
        let registry = &self.registry;
        let given = [
            ("--registry-user", registry.registry_user.is_some()),
            ("--registry-ca", registry.registry_ca.is_some()),
            ("--registry-http", registry.registry_http),
            ("--verify-key", self.verify_key.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Error::usage(format!(
                "{option} is for an artifact, oci://HOST/REPO:TAG; remove it, or name an artifact"
            ))),
            None => Ok(()),
        }
    }
}
