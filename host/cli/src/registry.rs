//! `corral push`, `corral pull` and `corral deploy oci://`: deployments as artifacts of OCI registries.
//!
//! The command line talks to the registry, the server never does. It checks every byte against the digest of the image
//! manifest, uploads the components as for a deploy of files, and sends the image manifest and its signatures along, so that
//! the server can record and check where a revision comes from.

mod args;
mod challenge;
mod client;
mod credentials;
mod fetch;
mod image;
mod pull;
mod push;

pub(crate) use args::ArtifactArgs;
pub(crate) use fetch::{Deployable, fetch_to_deploy};
pub(crate) use pull::{PullArgs, pull};
pub(crate) use push::{PushArgs, push};

use crate::Error;
use corral_server::deployments::artifact::{ArtifactReference, VerifyKey};
use std::fs;
use std::path::Path;

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
