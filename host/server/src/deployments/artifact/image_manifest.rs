//! The image manifest of an artifact.

use super::super::digest::Digest;
use super::super::manifest::Manifest;
use super::error::ArtifactError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest image manifest, as registries limit it.
pub const MAX_IMAGE_MANIFEST_BYTES: u64 = 4 << 20;
/// Most layers: a deployment with the maximum of linked components has fewer.
const MAX_LAYERS: usize = 256;
/// Media type of an image manifest.
pub const IMAGE_MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media types of image manifests, of OCI and of Docker.
pub const IMAGE_MANIFEST_TYPES: [&str; 2] = [
    IMAGE_MANIFEST_TYPE,
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// Media types of an index of images, of OCI and of Docker.
pub const IMAGE_INDEX_TYPES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// Media type of the config of a Wasm artifact.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// Media type of a component.
pub const LAYER_TYPE: &str = "application/wasm";
/// The same in older artifacts of Spin.
const OLD_LAYER_TYPE: &str = "application/vnd.wasm.content.layer.v1+wasm";
/// Annotation of the image manifest with the deployment's manifest, as JSON.
pub const MANIFEST_ANNOTATION: &str = "corral.manifest.v1";

/// A part of an artifact, by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Number of its bytes.
    pub size: u64,
    /// What the author says about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The image manifest of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageManifest {
    /// Always 2.
    pub schema_version: u32,
    /// [`IMAGE_MANIFEST_TYPE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The config.
    pub config: Descriptor,
    /// The layers.
    pub layers: Vec<Descriptor>,
    /// What the author says about the artifact.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// Whether it is a component.
    pub fn is_component(&self) -> bool {
        self.media_type == LAYER_TYPE || self.media_type == OLD_LAYER_TYPE
    }
}

impl ImageManifest {
    /// Reads an image manifest.
    ///
    /// # Errors
    /// If the bytes are something else, such as an index of images.
    pub fn read(bytes: &[u8]) -> Result<Self, ArtifactError> {
        if bytes.len() as u64 > MAX_IMAGE_MANIFEST_BYTES {
            return Err(ArtifactError::TooLarge(MAX_IMAGE_MANIFEST_BYTES));
        }
        let invalid = |error: serde_json::Error| ArtifactError::NotAManifest(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(invalid)?;
        if value.get("manifests").is_some() {
            return Err(ArtifactError::Index);
        }
        let image: ImageManifest = serde_json::from_value(value).map_err(invalid)?;
        match image.layers.len() {
            0..=MAX_LAYERS => Ok(image),
            count => Err(ArtifactError::NotAManifest(format!(
                "it has {count} layers, more than {MAX_LAYERS}"
            ))),
        }
    }

    /// The components, and the deployment's manifest unless the artifact is a plain component.
    ///
    /// # Errors
    /// If it is not an artifact that can be deployed.
    pub fn contents(&self) -> Result<(Vec<&Descriptor>, Option<Manifest>), ArtifactError> {
        let layers = self.layers.iter().filter(|layer| layer.is_component());
        let components = Vec::from_iter(layers);
        if components.is_empty() {
            let kind = self.layers.first().unwrap_or(&self.config);
            let kind = kind.media_type.chars().take(200).collect();
            return Err(ArtifactError::NotWasm(kind));
        }
        let Some(text) = self.annotations.get(MANIFEST_ANNOTATION) else {
            return match components.len() {
                1 => Ok((components, None)),
                count => Err(ArtifactError::NoManifest(count)),
            };
        };
        let manifest: Manifest = serde_json::from_str(text)
            .map_err(|error| ArtifactError::Manifest(error.to_string()))?;
        manifest.check()?;
        check_components(&manifest, &components)?;
        Ok((components, Some(manifest)))
    }
}

/// Checks that an artifact with these components holds all that its deployment's manifest names.
pub(super) fn check_components(
    manifest: &Manifest,
    components: &[&Descriptor],
) -> Result<(), ArtifactError> {
    let named = manifest
        .digests()
        .map_err(|error| ArtifactError::Manifest(error.to_string()))?;
    let is_missing = |digest: &Digest| !components.iter().any(|layer| layer.digest == *digest);
    match named.into_iter().find(is_missing) {
        Some(digest) => Err(ArtifactError::MissingComponent(digest)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn digest(number: u8) -> String {
        Digest::of(&[number]).to_string()
    }

    fn layer(kind: &str, number: u8) -> Value {
        json!({"mediaType": kind, "digest": digest(number), "size": 1})
    }

    fn image(layers: &[Value], annotation: Option<&Value>) -> Value {
        let mut image = json!({
            "schemaVersion": 2, "mediaType": IMAGE_MANIFEST_TYPE, "config": layer(CONFIG_TYPE, 0),
            "layers": layers,
        });
        if let Some(manifest) = annotation {
            image["annotations"] = json!({MANIFEST_ANNOTATION: manifest.to_string()});
        }
        image
    }

    fn read(image: &Value) -> Result<(usize, Option<String>), String> {
        let image = ImageManifest::read(image.to_string().as_bytes());
        let image = image.map_err(|error| error.to_string())?;
        let contents = image.contents().map_err(|error| error.to_string());
        contents.map(|(layers, manifest)| {
            let name = manifest.map(|manifest| manifest.name.to_string());
            (layers.len(), name)
        })
    }

    fn manifest() -> Value {
        json!({"name": "a", "component": digest(1), "routes": ["/a"],
               "linked": {"templating": digest(2)}})
    }

    #[test]
    fn artifacts_with_and_without_manifest_are_read() {
        let two = [layer(LAYER_TYPE, 1), layer(LAYER_TYPE, 2)];
        let whole = image(&two, Some(&manifest()));
        assert_eq!(read(&whole), Ok((2, Some("a".to_owned()))));
        for kind in [LAYER_TYPE, OLD_LAYER_TYPE] {
            assert_eq!(read(&image(&[layer(kind, 1)], None)), Ok((1, None)));
        }
    }

    #[test]
    fn other_images_are_refused() {
        let gzip = "application/vnd.oci.image.layer.v1.tar+gzip";
        let one = layer(LAYER_TYPE, 1);
        let mut unknown = manifest();
        unknown["colour"] = json!(1);
        for (image, expected) in [
            (json!({"schemaVersion": 2, "manifests": []}), "is an index"),
            (json!([]), "is no OCI image manifest"),
            (json!({"schemaVersion": 2}), "is no OCI image manifest"),
            (image(&[layer(gzip, 1)], None), "e.g. a container image"),
            (image(&[], None), "holds no WebAssembly component"),
            (
                image(&[one.clone(), layer(LAYER_TYPE, 2)], None),
                "holds 2 components and no manifest",
            ),
            (
                image(std::slice::from_ref(&one), Some(&manifest())),
                "and does not hold it",
            ),
            (
                image(std::slice::from_ref(&one), Some(&unknown)),
                "unknown field `colour`",
            ),
            (
                image(&vec![one; 257], None),
                "it has 257 layers, more than 256",
            ),
        ] {
            let error = read(&image).expect_err("not one of Corral's");
            assert!(error.contains(expected), "{error}");
        }
        let large = vec![b' '; (4 << 20) + 1];
        let error = ImageManifest::read(&large).expect_err("too large");
        assert!(error.to_string().contains("more than 4 MiB"), "{error}");
    }
}
