//! Why an artifact is refused.

use super::super::digest::Digest;
use super::super::manifest_error::ManifestError;
use super::super::name::DeploymentName;

/// Why an artifact cannot be deployed. Messages follow the name of the artifact.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The text is not a reference.
    #[error(
        "'{}' is not the address of an artifact; write oci://HOST/REPOSITORY:TAG, or oci://HOST/REPOSITORY@sha256:DIGEST",
        .0.escape_debug()
    )]
    Reference(String),
    /// The reference of a deploy names no digest.
    #[error("the source '{0}' has no digest; write oci://HOST/REPOSITORY:TAG@sha256:DIGEST")]
    NotPinned(String),
    /// The bytes are not an image manifest.
    #[error("is no OCI image manifest ({0}); name an artifact that 'corral push' made")]
    NotAManifest(String),
    /// The image manifest is larger than allowed.
    #[error("has an image manifest of more than {} MiB; name another artifact", .0 >> 20)]
    TooLarge(u64),
    /// The bytes have another digest than the reference.
    #[error("is not what was asked for: its image manifest has the digest {found}, not {expected}")]
    WrongDigest {
        /// The digest of the bytes.
        found: Digest,
        /// The digest in the reference.
        expected: Digest,
    },
    /// An index of several images.
    #[error(
        "is an index of images for several platforms, as of a container; name an artifact that 'corral push' made, or a Wasm component"
    )]
    Index,
    /// No layer is a component.
    #[error(
        "holds no WebAssembly component but '{}', e.g. a container image; name an artifact that 'corral push' made, or a Wasm component",
        .0.escape_debug()
    )]
    NotWasm(String),
    /// Several components, and no manifest.
    #[error(
        "holds {0} components and no manifest of Corral; push it with 'corral push', which adds corral.toml"
    )]
    NoManifest(usize),
    /// The deployment's manifest in the artifact is invalid.
    #[error("has an invalid manifest of Corral: {0}")]
    Manifest(String),
    /// The manifest names a component that the artifact does not hold.
    #[error("names the component {0} and does not hold it; push it again with 'corral push'")]
    MissingComponent(Digest),
    /// The client gives a manifest for an artifact that has one.
    #[error("has a manifest of its own, which says the name and the routes; give no other")]
    SecondManifest,
    /// A plain artifact needs a manifest.
    #[error("has no manifest of Corral; give a name and routes")]
    ManifestNeeded,
    /// The artifact is for another deployment.
    #[error("is the deployment '{manifest}', and the request's path names '{path}'; use one name")]
    NameMismatch {
        /// The name in the artifact.
        manifest: DeploymentName,
        /// The name in the path.
        path: DeploymentName,
    },
    /// No signature fits.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

impl From<ManifestError> for ArtifactError {
    fn from(error: ManifestError) -> Self {
        ArtifactError::Manifest(error.to_string())
    }
}

/// Why a signature is refused. Messages follow the name of the artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The text is no key.
    #[error(
        "holds no public key to verify signatures with ({0}); give an ECDSA P-256 key in PEM, as cosign.pub of 'cosign generate-key-pair'"
    )]
    Key(String),
    /// There is no signature.
    #[error("is not signed; sign it with 'cosign sign --key', or deploy one that is signed")]
    Missing,
    /// No signature was made with the key.
    #[error(
        "has no signature by this key; sign it with the key's private half, or verify with another key"
    )]
    WrongKey,
    /// The signature is of another artifact.
    #[error("has a signature that is for {found}, not for {expected}; sign this artifact")]
    OtherDigest {
        /// The digest that was signed.
        found: String,
        /// The digest of the artifact.
        expected: Digest,
    },
    /// The signed text is not cosign's.
    #[error(
        "has a signature of a text that is not cosign's simple signing; sign it with 'cosign sign --key'"
    )]
    Payload,
}
