//! Gets an artifact from a registry, to deploy it or to write its files.

use super::client::{Access, RepositoryClient};
use super::push::refused;
use super::{ArtifactArgs, default_name, read_verify_key};
use crate::Error;
use crate::deploy::{ManifestArgs, PreparedManifest, Upload, plain_manifest};
use bytes::Bytes;
use corral_server::deployments::artifact::{
    ArtifactReference, ArtifactRequest, ArtifactSignature, Descriptor, ImageManifest,
    MAX_PAYLOAD_BYTES, MAX_SIGNATURES, SIGNATURE_ANNOTATION, SIGNATURE_LAYER_TYPE,
};
use corral_server::deployments::{Digest, Manifest, StoreLimits};
use data_encoding::BASE64;

/// What is deployed: files, or an artifact with what the server checks of it.
pub(crate) struct Deployable {
    pub(crate) prepared: PreparedManifest,
    pub(crate) request: Option<ArtifactRequest>,
}

impl From<PreparedManifest> for Deployable {
    fn from(prepared: PreparedManifest) -> Self {
        Deployable {
            prepared,
            request: None,
        }
    }
}

/// An artifact, all of whose bytes have the digests that its reference implies.
pub(super) struct FetchedArtifact {
    /// With the digest of the image manifest.
    pub(super) source: ArtifactReference,
    /// The image manifest.
    pub(super) image: Vec<u8>,
    pub(super) signatures: Vec<ArtifactSignature>,
    /// The manifest, unless it is a plain component.
    pub(super) manifest: Option<Manifest>,
    /// The components that are deployed, the handler's first.
    pub(super) components: Vec<(Digest, Bytes)>,
}

/// Gets an artifact and checks its signature if the arguments name a key.
pub(super) fn fetch(
    reference: &ArtifactReference,
    args: &ArtifactArgs,
) -> Result<FetchedArtifact, Error> {
    let key = args
        .verify_key
        .as_deref()
        .map(read_verify_key)
        .transpose()?;
    let client = RepositoryClient::new(reference, &args.registry, Access::Pull)?;
    let wanted = match (&reference.digest, &reference.tag) {
        (Some(digest), _) => digest.to_string(),
        (None, tag) => tag.clone().unwrap_or_default(),
    };
    let image = client.image_manifest(&wanted)?.ok_or_else(|| {
        Error::failed(format!(
            "the registry {} has no {}; check the name and the tag",
            reference.host,
            without_host(reference)
        ))
    })?;
    let found = Digest::of(&image);
    if let Some(expected) = reference.digest.filter(|expected| *expected != found) {
        return Err(refused(
            reference,
            &format!(
                "arrived with the digest {found} instead of {expected}: the registry's copy is damaged or was changed"
            ),
        ));
    }
    let source = reference.pinned(found);
    let signatures = match key {
        Some(_) => signatures(&client, found)?,
        // The server may need them; it says so if they are missing.
        None => signatures(&client, found).unwrap_or_default(),
    };
    if let Some(key) = key {
        key.check(&signatures, found)
            .map_err(|error| refused(&source, &error))?;
    }
    let parsed = ImageManifest::read(&image).map_err(|error| refused(&source, &error))?;
    let (layers, manifest) = parsed
        .contents()
        .map_err(|error| refused(&source, &error))?;
    let needed = match &manifest {
        Some(manifest) => manifest
            .digests()
            .map_err(|error| refused(&source, &error))?,
        None => layers.iter().map(|layer| layer.digest).collect(),
    };
    let limit = StoreLimits::default().max_component_bytes;
    let mut components = Vec::new();
    for digest in needed {
        // `contents` has found each of them.
        if let Some(layer) = layers.iter().find(|layer| layer.digest == digest) {
            let name = format!("the component {digest}");
            components.push((digest, client.blob(layer, &name, limit)?));
        }
    }
    Ok(FetchedArtifact {
        source,
        image,
        signatures,
        manifest,
        components,
    })
}

/// Gets an artifact and makes of it what `corral deploy` sends.
pub(crate) fn fetch_to_deploy(
    reference: &ArtifactReference,
    args: &ManifestArgs,
    artifact: &ArtifactArgs,
) -> Result<Deployable, Error> {
    if !args.linked.is_empty() || !args.middleware.is_empty() {
        return Err(Error::usage(
            "--linked and --middleware are for a component (FILE.wasm); name the components in a corral.toml and push \
             that",
        ));
    }
    let fetched = fetch(reference, artifact)?;
    let given = match (&fetched.manifest, fetched.components.first()) {
        (Some(_), _) if args.name.is_some() || !args.routes.is_empty() => {
            return Err(Error::usage(format!(
                "{reference} has a manifest with a name and routes; remove --name and --route"
            )));
        }
        (Some(_), _) if !args.configuration.is_empty() => {
            return Err(Error::usage(format!(
                "{reference} has a manifest, whose configuration is part of the artifact; remove --config, or push \
                 another manifest"
            )));
        }
        (Some(_), _) | (None, None) => None,
        (None, Some((digest, _))) => {
            let name = default_name(reference);
            let mut manifest = plain_manifest(args, &name, &digest.to_string())?;
            for (name, value) in &args.configuration {
                manifest.configuration.insert(name.clone(), value.clone());
            }
            manifest
                .check()
                .map_err(|error| Error::failed(error.to_string()))?;
            Some(manifest)
        }
    };
    let manifest = fetched.manifest.or_else(|| given.clone());
    let manifest = manifest.ok_or_else(|| refused(reference, &"holds no component"))?;
    let uploads = fetched.components.into_iter();
    let uploads = uploads.map(|(digest, bytes)| Upload {
        field: format!("the component {digest}"),
        digest,
        bytes,
    });
    let request = ArtifactRequest {
        source: fetched.source,
        image_manifest: BASE64.encode(&fetched.image),
        manifest: given,
        signatures: fetched.signatures,
    };
    Ok(Deployable {
        prepared: PreparedManifest {
            manifest,
            uploads: uploads.collect(),
        },
        request: Some(request),
    })
}

/// The signatures of an artifact, which cosign stores under a tag after its digest.
fn signatures(
    client: &RepositoryClient,
    artifact: Digest,
) -> Result<Vec<ArtifactSignature>, Error> {
    let tag = format!("sha256-{}.sig", artifact.hex());
    let Some(image) = client.image_manifest(&tag)? else {
        return Ok(Vec::new());
    };
    // Whatever else lies under the tag is no signature.
    let layers = ImageManifest::read(&image).map_or_else(|_| Vec::new(), |image| image.layers);
    let signed = layers.iter().filter_map(|layer| {
        let signature = layer.annotations.get(SIGNATURE_ANNOTATION)?;
        (layer.media_type == SIGNATURE_LAYER_TYPE).then_some((layer, signature))
    });
    let read = |(layer, signature): (&Descriptor, &String)| {
        let payload = client.blob(layer, "the signature", MAX_PAYLOAD_BYTES)?;
        Ok(ArtifactSignature {
            payload: BASE64.encode(&payload),
            signature: signature.clone(),
        })
    };
    signed.take(MAX_SIGNATURES).map(read).collect()
}

fn without_host(reference: &ArtifactReference) -> String {
    let text = reference.to_string();
    let rest = text.trim_start_matches("oci://").split_once('/');
    rest.map_or_else(String::new, |(_, rest)| rest.to_owned())
}
