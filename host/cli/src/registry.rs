//! `corral push`, `corral pull` and `corral deploy oci://`: deployments as artifacts of OCI registries.
//!
//! The command line talks to the registry, the server never does. It checks every byte against the digest of the image
//! manifest, uploads the components as for a deploy of files, and sends the image manifest and its signatures along, so that
//! the server can record and check where a revision comes from.

mod challenge;
mod client;
mod credentials;
mod fetch;
mod image;
mod pull;
mod push;

pub(crate) use fetch::{Deployable, fetch_to_deploy};
pub(crate) use pull::{PullArgs, pull};
pub(crate) use push::{PushArgs, push};

use crate::Error;
use clap::Args;
use corral_server::deployments::artifact::{ArtifactReference, VerifyKey};
use std::fs;
use std::path::{Path, PathBuf};

/// How to reach a registry.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RegistryArgs {
    /// User of the registry [default: docker's login, from config.json in DOCKER_CONFIG or ~/.docker]
    #[arg(
        long,
        value_name = "NAME",
        requires = "registry_password_file",
        help_heading = "Registry"
    )]
    registry_user: Option<String>,
    /// File with the password or token of the registry's user; - for standard input
    #[arg(
        long,
        value_name = "FILE",
        requires = "registry_user",
        help_heading = "Registry"
    )]
    registry_password_file: Option<PathBuf>,
    /// PEM certificate of the issuer of the registry's certificate [default: those that the system trusts]
    #[arg(long, value_name = "FILE", help_heading = "Registry")]
    registry_ca: Option<PathBuf>,
    /// Use HTTP without TLS, also for a registry on another machine
    #[arg(long, conflicts_with = "registry_ca", help_heading = "Registry")]
    registry_http: bool,
}

/// How to get an artifact.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ArtifactArgs {
    #[command(flatten)]
    registry: RegistryArgs,
    /// Refuse an artifact that this public key has not signed (PEM, ECDSA P-256), as 'cosign sign --key' does
    #[arg(long, value_name = "FILE", help_heading = "Registry")]
    verify_key: Option<PathBuf>,
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

/// The reference that an argument is, unless it is the path of a file.
pub(crate) fn reference(argument: &Path) -> Result<Option<ArtifactReference>, Error> {
    match argument.to_str() {
        Some(text) if ArtifactReference::is_reference(text) => {
            let reference = text.parse::<ArtifactReference>();
            let reference = reference.map_err(|error| Error::usage(error.to_string()))?;
            Ok(Some(reference))
        }
        _ => Ok(None),
    }
}

/// Reads the public key of `--verify-key`.
pub(crate) fn read_verify_key(file: &Path) -> Result<VerifyKey, Error> {
    let shown = file.display();
    let pem = fs::read(file)
        .map_err(|error| Error::context(format!("cannot read the key {shown}: {error}"))(error))?;
    VerifyKey::from_pem(&pem).map_err(|error| Error::failed(format!("{shown} {error}")))
}

/// The name of a deployment that a repository suggests.
fn default_name(reference: &ArtifactReference) -> String {
    let last = reference.repository.rsplit('/').next().unwrap_or_default();
    last.replace(['_', '.'], "-")
}
