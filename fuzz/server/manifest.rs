//! Manifests: as TOML from authors, as JSON from the admin API. One that passes its checks is the same after a way through
//! the store.

#![no_main]

use corral_server::deployments::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let json = serde_json::from_str::<Manifest>(text);
    let json = json.ok().filter(|manifest| manifest.check().is_ok());
    for manifest in Manifest::from_toml(text).ok().into_iter().chain(json) {
        let _ = manifest.digests();
        let stored = serde_json::to_vec(&manifest).expect("a manifest has a form in JSON");
        let read: Manifest = serde_json::from_slice(&stored).expect("the store reads it");
        assert_eq!(read, manifest);
        assert!(read.check().is_ok());
    }
});
