//! Signatures of artifacts, in cosign's format of simple signing.
//!
//! cosign signs a JSON text that names the digest of the image manifest, with ECDSA over the curve P-256 and SHA-256. It
//! stores text and signature in the same repository, under the tag `sha256-DIGEST.sig`. Certificates and transparency logs
//! are not looked at: the key is the only trust. See SIGNATURE_SPEC.md of cosign.

use super::super::digest::Digest;
use super::error::SignatureError;
use data_encoding::BASE64;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Media type of a signed text.
pub const SIGNATURE_LAYER_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Annotation of a signed text with its signature.
pub const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// Longest signed text.
pub const MAX_PAYLOAD_BYTES: u64 = 64 << 10;
/// Most signatures of an artifact that are looked at.
pub const MAX_SIGNATURES: usize = 16;
/// Longest signature, in base64.
const MAX_SIGNATURE_CHARS: usize = 1024;

/// A signed text and its signature.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArtifactSignature {
    /// The text that is signed, in base64.
    pub payload: String,
    /// The signature, in base64.
    pub signature: String,
}

/// A public key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyKey(Vec<u8>);

/// The parts of cosign's text that matter.
#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

impl VerifyKey {
    /// Reads a public key in PEM.
    ///
    /// # Errors
    /// If it is none, or of another kind than ECDSA P-256.
    pub fn from_pem(pem: &[u8]) -> Result<Self, SignatureError> {
        let invalid = |problem: &str| SignatureError::Key(problem.to_owned());
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem)
            .map_err(|error| SignatureError::Key(error.to_string()))?;
        let (_, key) =
            SubjectPublicKeyInfo::from_der(&der).map_err(|_| invalid("its content is damaged"))?;
        let curve = key.algorithm.parameters.as_ref();
        let curve = curve.and_then(|curve| curve.as_oid().ok());
        let is_p256 =
            key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256);
        match is_p256 {
            true => Ok(VerifyKey(key.subject_public_key.data.into_owned())),
            false => Err(invalid("it is of another kind")),
        }
    }

    /// Checks that one of the signatures is by this key and for the artifact with this digest.
    ///
    /// # Errors
    /// Why none is.
    pub fn check(
        &self,
        signatures: &[ArtifactSignature],
        artifact: Digest,
    ) -> Result<(), SignatureError> {
        let mut worst = SignatureError::Missing;
        for signature in signatures.iter().take(MAX_SIGNATURES) {
            match self.check_one(signature, artifact) {
                Ok(()) => return Ok(()),
                // One by this key says more than one by another.
                Err(SignatureError::WrongKey) if worst != SignatureError::Missing => {}
                Err(error) => worst = error,
            }
        }
        Err(worst)
    }

    fn check_one(
        &self,
        signature: &ArtifactSignature,
        artifact: Digest,
    ) -> Result<(), SignatureError> {
        let is_short = signature.signature.len() <= MAX_SIGNATURE_CHARS
            && signature.payload.len() as u64 <= MAX_PAYLOAD_BYTES * 2;
        let decode = |text: &str| {
            let bytes = is_short.then(|| BASE64.decode(text.as_bytes()).ok());
            bytes.flatten().ok_or(SignatureError::WrongKey)
        };
        let payload = decode(&signature.payload)?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.0);
        key.verify(&payload, &decode(&signature.signature)?)
            .map_err(|_| SignatureError::WrongKey)?;
        let payload: Payload =
            serde_json::from_slice(&payload).map_err(|_| SignatureError::Payload)?;
        if payload.critical.kind != "cosign container image signature" {
            return Err(SignatureError::Payload);
        }
        let found = payload.critical.image.docker_manifest_digest;
        match found.parse::<Digest>() {
            Ok(digest) if digest == artifact => Ok(()),
            _ => Err(SignatureError::OtherDigest {
                found: found.chars().take(100).collect(),
                expected: artifact,
            }),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rcgen::{KeyPair, PublicKeyData, SigningKey};

    /// A new key pair, and its public half.
    pub(in super::super) fn key_pair() -> (KeyPair, VerifyKey) {
        let pair = KeyPair::generate().expect("a key");
        let key = VerifyKey::from_pem(pair.public_key_pem().as_bytes()).expect("its public half");
        (pair, key)
    }

    /// A signature by `pair`, as cosign makes it.
    pub(in super::super) fn sign(pair: &KeyPair, digest: &str) -> ArtifactSignature {
        sign_text(pair, &payload(digest))
    }

    fn payload(digest: &str) -> String {
        let critical = serde_json::json!({
            "identity": {"docker-reference": "r.example/a"},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        });
        serde_json::json!({"critical": critical, "optional": null}).to_string()
    }

    fn sign_text(pair: &KeyPair, text: &str) -> ArtifactSignature {
        ArtifactSignature {
            payload: BASE64.encode(text.as_bytes()),
            signature: BASE64.encode(&pair.sign(text.as_bytes()).expect("signed")),
        }
    }

    #[test]
    fn only_fitting_signatures_pass() {
        let (pair, key) = key_pair();
        let (other, _) = key_pair();
        let digest = Digest::of(b"it");
        let good = sign(&pair, &digest.to_string());
        let foreign = sign(&other, &digest.to_string());
        assert_eq!(key.check(&[foreign.clone(), good.clone()], digest), Ok(()));
        assert_eq!(key.check(&[], digest), Err(SignatureError::Missing));
        assert_eq!(
            key.check(std::slice::from_ref(&foreign), digest),
            Err(SignatureError::WrongKey)
        );
        let elsewhere = sign(&pair, &Digest::of(b"other").to_string());
        let error = key.check(&[elsewhere, foreign], digest);
        assert!(matches!(error, Err(SignatureError::OtherDigest { .. })));
        // The text of one signature with another text's signature.
        let mixed = ArtifactSignature {
            payload: BASE64.encode(payload(&Digest::of(b"x").to_string()).as_bytes()),
            signature: good.signature,
        };
        assert_eq!(key.check(&[mixed], digest), Err(SignatureError::WrongKey));
        for text in ["{}", "it", &payload("").replace("cosign container", "some")] {
            let error = key.check(&[sign_text(&pair, text)], digest);
            assert_eq!(error, Err(SignatureError::Payload), "{text}");
        }
    }

    #[test]
    fn keys_of_other_kinds_are_refused() {
        let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
        let private = KeyPair::generate().expect("a key");
        assert_eq!(private.der_bytes().len(), 65);
        for pem in [
            ed25519.public_key_pem(),
            p384.public_key_pem(),
            private.serialize_pem(),
            "it".to_owned(),
        ] {
            let error = VerifyKey::from_pem(pem.as_bytes()).expect_err("no key of ours");
            assert!(error.to_string().contains("ECDSA P-256"), "{error}");
        }
    }
}
