//! What packages need: allowed licenses, their texts, a bill of materials, and a wheel.

use corral_tests::{artifacts, run_command, scratch_dir};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Limit of the script, which may wait for another cargo. Far above what it takes, because machines are busy.
const LIMIT: Duration = Duration::from_secs(900);

#[test]
fn packages_serve_the_same_apis() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in [
        "packaging/server.toml",
        "packaging/corral.default",
        "compose.yaml",
        "Dockerfile",
    ] {
        let text = std::fs::read_to_string(root.join(name)).expect(name);
        // Words of a command line, of a list in YAML, or of one in TOML or JSON.
        let separates = |char: char| char.is_whitespace() || "[]\",".contains(char);
        let words: Vec<_> = text.split(separates).collect();
        let has = |word: &str| words.iter().any(|other| other.ends_with(word));
        for (route, plugin) in [("/", "openai"), ("/api", "ollama")] {
            let file = words.iter().find_map(|word| {
                let (before, file) = word
                    .split_once("/plugins/")
                    .or(word.split_once("=plugins/"))?;
                let file = file.strip_suffix(".wasm")?;
                let at = before.trim_start_matches("--plugin=").split('=').next()?;
                (at == route).then_some(file)
            });
            assert_eq!(file, Some(plugin), "{name}: {route}");
            assert!(has(&format!("{route}={plugin}")), "{name}: {route}");
        }
    }
    let package = std::fs::read_to_string(root.join("packaging/package.sh")).expect("it is there");
    let mut lines = package.lines();
    let shipped = lines.find(|line| line.starts_with("readonly shipped_plugins"));
    assert!(
        shipped.is_some_and(|line| line.contains(" openai ollama ")),
        "{shipped:?}"
    );
}

#[test]
fn wheel_has_the_python_packages() {
    let dir = scratch_dir();
    let python = artifacts::clients().join("python/bin/python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/wheel.py");
    let ended = run_command(Command::new(&python).arg(script).arg(&dir), LIMIT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-index", "--target"]);
    install.args([dir.join("installed"), dir.join(ended.stdout.trim())]);
    let ended = run_command(&mut install, LIMIT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut import = Command::new(&python);
    import.env("PYTHONPATH", dir.join("installed"));
    import.args(["-c", "import corral_remote; print(corral_remote.__file__)"]);
    let ended = run_command(&mut import, LIMIT);
    assert!(
        ended.stdout.contains("/installed/corral_remote/"),
        "{ended:?}"
    );
}

#[test]
fn licenses_of_dependencies_are_allowed() {
    let dir = scratch_dir();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/licenses.py");
    // That of the clients is new enough.
    let python = artifacts::clients().join("python/bin/python");
    let ended = run_command(Command::new(python).arg(script).arg(&dir), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect(name);
    let texts = read("THIRD-PARTY-LICENSES.txt");
    let bill: Value = serde_json::from_str(&read("sbom.cdx.json")).expect("JSON");
    assert_eq!(bill["bomFormat"], "CycloneDX");
    let components = bill["components"].as_array().expect("a list");
    let names = components.iter().filter_map(|c| c["name"].as_str());
    let mut names: Vec<_> = names.collect();
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
        assert!(texts.contains(&label), "no license of {label}");
    }
    // A library within a package.
    assert!(texts.contains("The ggml authors"));
    assert!(!names.contains(&"divan"), "only used by benches");
    let foreign = names.iter().find(|name| name.starts_with("windows"));
    assert_eq!(foreign, None, "for another system");
}
