//! The deploy of an artifact: what the client sends, and its checks.

use super::super::digest::Digest;
use super::super::manifest::Manifest;
use super::super::name::DeploymentName;
use super::error::ArtifactError;
use super::image_manifest::{ImageManifest, check_components};
use super::reference::ArtifactReference;
use super::signature::{ArtifactSignature, VerifyKey};
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

/// An artifact to deploy, whose components are uploaded.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArtifactRequest {
    /// Where it is from, with the digest of its image manifest.
    pub source: ArtifactReference,
    /// The image manifest, in base64.
    pub image_manifest: String,
    /// The manifest of an artifact without one, which is a plain component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
    /// Its signatures; at most 16 are looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<ArtifactSignature>,
}

impl ArtifactRequest {
    /// Checks that the source, the image manifest and the deployment's manifest belong together, and with `key` that they are
    /// signed. Returns the deployment's manifest.
    pub fn check(
        &self,
        name: &DeploymentName,
        key: Option<&VerifyKey>,
    ) -> Result<Manifest, ArtifactError> {
        let Some(expected) = self.source.digest else {
            return Err(ArtifactError::NotPinned(self.source.to_string()));
        };
        let bytes = BASE64
            .decode(self.image_manifest.as_bytes())
            .map_err(|error| ArtifactError::NotAManifest(error.to_string()))?;
        let found = Digest::of(&bytes);
        if found != expected {
            return Err(ArtifactError::WrongDigest { found, expected });
        }
        if let Some(key) = key {
            key.check(&self.signatures, expected)?;
        }
        let image = ImageManifest::read(&bytes)?;
        let (components, own) = image.contents()?;
        let manifest = match (own, &self.manifest) {
            (Some(own), None) => own,
            (None, Some(given)) => given.clone(),
            (Some(_), Some(_)) => return Err(ArtifactError::SecondManifest),
            (None, None) => return Err(ArtifactError::ManifestNeeded),
        };
        if manifest.name != *name {
            return Err(ArtifactError::NameMismatch {
                manifest: manifest.name,
                path: name.clone(),
            });
        }
        // What the artifact says about its origin holds for all of the deployment.
        check_components(&manifest, &components)?;
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::image_manifest::{CONFIG_TYPE, LAYER_TYPE, MANIFEST_ANNOTATION};
    use super::super::signature::tests::{key_pair, sign};
    use super::*;
    use serde_json::{Value, json};

    fn request(annotation: bool, given: Option<Value>) -> ArtifactRequest {
        let component = Digest::of(b"component").to_string();
        let layer = |kind| json!({"mediaType": kind, "digest": component, "size": 9});
        let mut image = json!({"schemaVersion": 2, "config": layer(CONFIG_TYPE), "layers": [layer(LAYER_TYPE)]});
        if annotation {
            let manifest = json!({"name": "a", "component": component, "routes": ["/a"]});
            image["annotations"] = json!({MANIFEST_ANNOTATION: manifest.to_string()});
        }
        let image = image.to_string();
        let digest = Digest::of(image.as_bytes());
        let given = given.map(|given| serde_json::from_value(given).expect("a manifest"));
        ArtifactRequest {
            source: format!("oci://r.example/a:1@{digest}")
                .parse()
                .expect("good"),
            image_manifest: BASE64.encode(image.as_bytes()),
            manifest: given,
            signatures: Vec::new(),
        }
    }

    fn error(request: &ArtifactRequest) -> String {
        let name = "a".parse().expect("a name");
        let error = request.check(&name, None).expect_err("does not fit");
        error.to_string()
    }

    #[test]
    fn parts_must_belong_together() {
        let name = "a".parse().expect("a name");
        let component = Digest::of(b"component").to_string();
        let given =
            |component: &str| json!({"name": "a", "component": component, "routes": ["/b"]});
        let own = request(true, None).check(&name, None).expect("good");
        assert_eq!(own.routes[0].as_str(), "/a");
        let plain = request(false, Some(given(&component)));
        let plain = plain.check(&name, None).expect("good");
        assert_eq!(plain.routes[0].as_str(), "/b");

        let other = given(&Digest::of(b"another").to_string());
        assert!(error(&request(false, Some(other))).contains("does not hold it"));
        let mut linked = given(&component);
        linked["linked"] = json!({"templating": "x.wasm"});
        assert!(error(&request(false, Some(linked))).contains("'x.wasm' is not the digest"));
        assert!(error(&request(true, Some(given(&component)))).contains("of its own"));
        assert!(error(&request(false, None)).contains("give a name and routes"));
        let mut moved = request(true, None);
        moved.source.digest = Some(Digest::of(b"moved"));
        assert!(error(&moved).contains("is not what was asked for"));
        moved.source.digest = None;
        assert!(error(&moved).contains("has no digest"));
        let mut changed = request(true, None);
        changed.image_manifest = "%".to_owned();
        assert!(error(&changed).contains("is no OCI image manifest"));
        let wrong = "b".parse().expect("a name");
        let mismatch = request(true, None).check(&wrong, None);
        assert!(mismatch.expect_err("b").to_string().contains("'a'"));
    }

    #[test]
    fn key_demands_signature() {
        let name = "a".parse().expect("a name");
        let (pair, key) = key_pair();
        let mut request = request(true, None);
        let unsigned = request.check(&name, Some(&key)).expect_err("none");
        assert!(unsigned.to_string().contains("is not signed"));
        let digest = request.source.digest.expect("pinned").to_string();
        request.signatures = vec![sign(&pair, &digest)];
        request.check(&name, Some(&key)).expect("signed");
    }
}
