//! Artifacts of OCI registries that hold a deployment: what `corral push` makes and `corral deploy oci://` deploys.
//!
//! An artifact is an image manifest with the config of a Wasm artifact and a layer for each component, the handler's first.
//! Its annotation [`MANIFEST_ANNOTATION`] is the deployment's manifest as JSON, with digests for components. Other tools see
//! an ordinary Wasm artifact. An artifact of one component without the annotation is a plain one, whose deployer gives the
//! name and the routes.
//!
//! The digest of the image manifest covers all parts, so one signature of it does. [`ArtifactRequest::check`] needs no
//! registry: the client sends the image manifest and the signatures that it has found. Nothing here talks to a registry.

mod error;
mod image_manifest;
mod reference;
mod request;
mod signature;

pub use error::{ArtifactError, SignatureError};
pub use image_manifest::{
    CONFIG_TYPE, Descriptor, IMAGE_INDEX_TYPES, IMAGE_MANIFEST_TYPE, IMAGE_MANIFEST_TYPES,
    ImageManifest, LAYER_TYPE, MANIFEST_ANNOTATION, MAX_IMAGE_MANIFEST_BYTES,
};
pub use reference::ArtifactReference;
pub use request::ArtifactRequest;
pub use signature::{
    ArtifactSignature, MAX_PAYLOAD_BYTES, MAX_SIGNATURES, SIGNATURE_ANNOTATION,
    SIGNATURE_LAYER_TYPE, VerifyKey,
};
