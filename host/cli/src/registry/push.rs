//! `corral push`.

use super::args::RegistryArgs;
use super::client::{Access, RepositoryClient};
use super::default_name;
use super::image::{NamedComponent, check_component, image};
use crate::Error;
use crate::deploy::{ManifestArgs, is_component, prepare};
use crate::terminal::print;
use bytes::Bytes;
use clap::Args;
use corral_server::deployments::artifact::{
    ArtifactReference, ImageManifest, MAX_IMAGE_MANIFEST_BYTES,
};
use corral_server::deployments::{Digest, Manifest, StoreLimits};
use std::fs;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub struct PushArgs {
    /// Where to push: oci://HOST/REPO:TAG
    #[arg(value_name = "REFERENCE")]
    reference: ArtifactReference,
    #[command(flatten)]
    manifest: ManifestArgs,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Pushes an artifact and prints its reference with the digest.
pub(crate) fn push(args: &PushArgs) -> Result<ExitCode, Error> {
    let (Some(tag), None) = (&args.reference.tag, args.reference.digest) else {
        return Err(Error::usage(
            "an artifact is pushed under a tag; write oci://HOST/REPO:TAG without a digest",
        ));
    };
    let (manifest, components) = contents(args)?;
    let limit = StoreLimits::default().max_component_bytes;
    for (file, bytes) in &components {
        check_component(bytes, file)?;
        if bytes.len() as u64 > limit {
            return Err(Error::failed(format!(
                "{file} has {} bytes; a server takes at most {limit}",
                bytes.len()
            )));
        }
    }
    let named = components.iter().map(|(file, bytes)| NamedComponent {
        file: file.clone(),
        bytes,
    });
    let (config, image) = image(&Vec::from_iter(named), manifest.as_ref())?;
    if image.len() as u64 > MAX_IMAGE_MANIFEST_BYTES {
        return Err(Error::failed(format!(
            "the manifest makes an image manifest of {} bytes; registries take at most {MAX_IMAGE_MANIFEST_BYTES}",
            image.len()
        )));
    }
    // What a deploy would refuse.
    let made = ImageManifest::read(&image).map_err(|error| refused(&args.reference, &error))?;
    made.contents()
        .map_err(|error| refused(&args.reference, &error))?;
    let client = RepositoryClient::new(&args.reference, &args.registry, Access::Push)?;
    for (file, bytes) in &components {
        client.push_blob(bytes, file)?;
    }
    client.push_blob(&config, "the config")?;
    client.push_image_manifest(tag, &image)?;
    let pushed = args.reference.pinned(Digest::of(&image));
    print(&format!("{pushed}\n"))
}

/// The error of an artifact.
pub(super) fn refused(reference: &ArtifactReference, error: &dyn std::fmt::Display) -> Error {
    Error::failed(format!("{reference} {error}"))
}

/// The name of a component's file, and its bytes.
type ComponentFile = (String, Bytes);

/// The manifest, and the components with the names of their files, the handler's first.
fn contents(args: &PushArgs) -> Result<(Option<Manifest>, Vec<ComponentFile>), Error> {
    let ManifestArgs {
        file,
        name,
        routes,
        linked,
        configuration,
        middleware,
    } = &args.manifest;
    let is_plain = name.is_none() && routes.is_empty() && configuration.is_empty();
    if is_component(file) && is_plain && linked.is_empty() && middleware.is_empty() {
        let bytes = fs::read(file).map_err(|error| {
            let message = format!("cannot read the component {}: {error}", file.display());
            Error::context(message)(error)
        })?;
        let title = format!("{}.wasm", default_name(&args.reference));
        return Ok((None, vec![(title, bytes.into())]));
    }
    let prepared = prepare(&args.manifest, None)?;
    let manifest = prepared.manifest;
    let digests = manifest
        .digests()
        .map_err(|error| Error::failed(error.to_string()))?;
    let mut components = Vec::new();
    for digest in digests {
        let mut uploads = prepared.uploads.iter();
        let Some(upload) = uploads.find(|upload| upload.digest == digest) else {
            return Err(Error::failed(format!(
                "the manifest names the component {digest}, and an artifact holds the files; name its file instead"
            )));
        };
        let title = file_name(&manifest, &upload.field);
        components.push((title, upload.bytes.clone()));
    }
    Ok((Some(manifest), components))
}

/// The file of a component, after its field of the manifest. Names of deployments have no dot, so no two are the same.
pub(super) fn file_name(manifest: &Manifest, field: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    match field {
        "component" => format!("{}.wasm", manifest.name),
        field => format!("{}.wasm", field.replace(|c| !fits(c), "-")),
    }
}
