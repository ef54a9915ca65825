//! What packages need: allowed licences, their texts, and a bill of materials.

use corral_tests::scratch_dir;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn licences_of_dependencies_are_allowed() {
    let dir = scratch_dir();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/licenses.py");
    let ended = Command::new("python3").arg(script).arg(&dir).output();
    let ended = ended.expect("python3 is there");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stderr}");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect(name);
    let texts = read("THIRD-PARTY-LICENSES.txt");
    let bill: Value = serde_json::from_str(&read("sbom.cdx.json")).expect("JSON");
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let components = bill["components"].as_array().expect("a list");
    let mut names: Vec<_> = components
        .iter()
        .filter_map(|c| c["name"].as_str())
        .collect();
    names.dedup();
    for name in ["wasmtime", "llama-cpp-sys-2", "tokio", "sd-notify"] {
        assert!(names.contains(&name), "{name}");
    }
    for component in components {
        let (name, version) = (&component["name"], &component["version"]);
        let label = format!(
            "\n{} {} (",
            name.as_str().unwrap(),
            version.as_str().unwrap()
        );
        assert!(texts.contains(&label), "no licence of {label}");
    }
    // A library within a package.
    assert!(texts.contains("The ggml authors"));
    assert!(!names.contains(&"divan"), "only used by benches");
}
