//! Artifacts of registries: their addresses, image manifests, and deploys of the admin API. A deployment's manifest that comes
//! out has passed its checks.

#![no_main]

use corral_server::deployments::artifact::{ArtifactReference, ArtifactRequest, ImageManifest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(image) = ImageManifest::read(data)
        && let Ok((components, manifest)) = image.contents()
    {
        assert!(!components.is_empty());
        if let Some(manifest) = manifest {
            assert!(manifest.check().is_ok() && manifest.digests().is_ok());
        }
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(reference) = text.parse::<ArtifactReference>() {
        assert_eq!(reference.to_string(), text);
    }
    if let Ok(request) = serde_json::from_str::<ArtifactRequest>(text) {
        let name = "a".parse().expect("a name");
        if let Ok(manifest) = request.check(&name, None) {
            assert_eq!(manifest.name, name);
        }
    }
});
