//! What packages have: their files, allowed licenses, the texts of these, a bill of materials, and a wheel.

use corral_tests::{RunOutput, artifacts, run_command, scratch_dir};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Limit of a script, which may wait for another cargo. Far above what it takes, because machines are busy.
const LIMIT: Duration = Duration::from_secs(900);

/// The files of the tarball without the wheel, the man pages and the guides. `make dist` adds further libraries and backends.
const FILES: &str = "\
bin/corral
lib/corral/backends/libggml-cpu.so
lib/corral/corral
lib/corral/libllama.so
lib/corral/libllama.so.0
lib/systemd/system/corral.service
lib/systemd/system/corral.socket
share/bash-completion/completions/corral
share/corral/corral.default
share/corral/models/tiny.gguf
share/corral/plugins/chat.toml
share/corral/plugins/chat.wasm
share/corral/plugins/chatml.wasm
share/corral/plugins/corral-mock.wasm
share/corral/plugins/corral-remote-sync.wasm
share/corral/plugins/corral-remote.wasm
share/corral/plugins/generate.toml
share/corral/plugins/generate.wasm
share/corral/plugins/hello.toml
share/corral/plugins/hello.wasm
share/corral/plugins/min-p.wasm
share/corral/plugins/mirostat.wasm
share/corral/plugins/ollama.toml
share/corral/plugins/ollama.wasm
share/corral/plugins/openai.toml
share/corral/plugins/openai.wasm
share/corral/plugins/sessions.wasm
share/corral/server.schema.json
share/corral/server.toml
share/doc/corral/CHANGELOG.md
share/doc/corral/LICENSE
share/doc/corral/README.md
share/doc/corral/THIRD-PARTY-LICENSES.txt
share/doc/corral/sbom.cdx.json
share/fish/vendor_completions.d/corral.fish
share/zsh/site-functions/_corral
";

/// Commands of the shell that list a package's files.
const TAR: &str = "tar --list --file \"$0\"";
const DEB: &str = "dpkg-deb --fsys-tarfile \"$0\" | tar --list";

fn succeeds(command: &mut Command) -> RunOutput {
    let ended = run_command(command, LIMIT);
    assert_eq!(ended.code, Some(0), "{command:?}: {ended:?}");
    ended
}

/// What `host/dist.sh` makes, with small files: compression of the real ones takes a minute. The program starts the real one.
fn small_build(dir: &Path) {
    std::fs::create_dir_all(dir.join("backends")).expect("own directory");
    let source = dir.with_extension("c");
    let main = format!(
        "#include <unistd.h>\nint main(int count, char **words) {{ return count ? execv({:?}, words) : 1; }}\n",
        artifacts::binary()
    );
    std::fs::write(&source, main).expect("own directory");
    for name in ["corral", "libllama.so.0", "backends/libggml-cpu.so"] {
        let file = dir.join(name);
        succeeds(Command::new("cc").arg(&source).arg("-o").arg(&file));
        std::fs::write(dir.join(format!("{name}.debug")), "").expect("own directory");
    }
    symlink("libllama.so.0", dir.join("libllama.so")).expect("own directory");
}

/// The paths of a package's files, without its first directory.
fn listed(command: &str, file: &Path) -> BTreeSet<String> {
    let ended = succeeds(Command::new("sh").args(["-c", command]).arg(file));
    let files = ended.stdout.lines().filter(|path| !path.ends_with('/'));
    let below = files.filter_map(|path| path.split_once('/'));
    below.map(|(_, path)| path.to_owned()).collect()
}

#[test]
fn packages_have_their_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = scratch_dir();
    let (build, out) = (dir.join("build"), dir.join("out"));
    small_build(&build);
    let plugins = artifacts::plugin("generate");
    let plugins = plugins.parent().expect("a directory");
    // Python of the clients is new enough.
    let python = artifacts::clients().join("python/bin");
    let path = std::env::var("PATH").expect("a search path");
    let mut package = Command::new(root.join("packaging/package.sh"));
    package.env("PATH", format!("{}:{path}", python.display()));
    succeeds(package.arg(&build).arg(plugins).arg(&out));

    let mut check = Command::new("sha256sum");
    check.args(["--check", "SHA256SUMS"]).current_dir(&out);
    let checked = succeeds(&mut check).stdout;
    assert_eq!(checked.lines().count(), 3, "{checked}");
    // Of two names with this ending the shorter one.
    let package = |ending: &str| {
        let names = checked.lines().filter_map(|line| line.strip_suffix(": OK"));
        let names = names.filter(|name| name.ends_with(ending));
        let name = names.min_by_key(|name| name.len());
        out.join(name.unwrap_or_else(|| panic!("no {ending} in {checked}")))
    };
    let symbols = listed(TAR, &package("-symbols.tar.xz"));
    let expected = [
        "backends/libggml-cpu.so.debug",
        "corral.debug",
        "libllama.so.0.debug",
    ];
    assert_eq!(symbols, BTreeSet::from(expected.map(str::to_owned)));
    let files = listed(TAR, &package(".tar.xz"));
    check_tarball(&files, &root);

    // The .deb has the same files, at the places that Debian gives them.
    let expected = files.iter().map(|path| match path.as_str() {
        "share/corral/corral.default" => "etc/default/corral".to_owned(),
        "share/doc/corral/LICENSE" => "usr/share/doc/corral/copyright".to_owned(),
        "share/doc/corral/CHANGELOG.md" | "share/doc/corral/THIRD-PARTY-LICENSES.txt" => {
            format!("usr/{path}.gz")
        }
        _ => format!("usr/{path}"),
    });
    let expected: BTreeSet<String> = expected.collect();
    assert_eq!(listed(DEB, &package(".deb")), expected);
}

fn check_tarball(files: &BTreeSet<String>, root: &Path) {
    let below = |folder: &str| -> Vec<String> {
        let names = files.iter().filter_map(|path| path.strip_prefix(folder));
        names.map(str::to_owned).collect()
    };
    const PAGES: &str = "share/man/man1/";
    const GUIDES: &str = "share/doc/corral/docs/";
    const WHEELS: &str = "share/corral/python/";
    let pages = below(PAGES);
    for page in ["corral.1.gz", "corral-serve.1.gz", "corral-deploy.1.gz"] {
        assert!(pages.iter().any(|name| name == page), "{page}: {pages:?}");
    }
    let guides = below(GUIDES);
    for entry in std::fs::read_dir(root.join("docs")).expect("docs") {
        let name = entry.expect("readable").file_name();
        let name = name.to_str().expect("UTF-8");
        let is_there = guides.iter().any(|guide| guide.starts_with(name));
        assert!(is_there, "{name}: {guides:?}");
    }
    let wheels = below(WHEELS);
    let is_wheel = |name: &String| name.ends_with("-py3-none-any.whl");
    assert!(wheels.len() == 1 && is_wheel(&wheels[0]), "{wheels:?}");
    let is_other = |path: &&str| {
        ![PAGES, GUIDES, WHEELS]
            .iter()
            .any(|dir| path.starts_with(dir))
    };
    let others: Vec<&str> = files.iter().map(String::as_str).filter(is_other).collect();
    assert_eq!(others, FILES.lines().collect::<Vec<_>>());
}

/// The crates that `cargo tree` lists for these arguments, with their features.
fn crates(arguments: &[&str]) -> BTreeSet<String> {
    let mut tree = Command::new("cargo");
    tree.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["tree", "--locked", "--edges=normal,build", "--prefix=none"])
        .args(["--format={p} {f}"])
        .args(arguments);
    let listed = succeeds(&mut tree).stdout;
    let lines = listed.lines().map(|line| line.trim_end_matches(" (*)"));
    lines.map(str::to_owned).collect()
}

/// `make check-install` runs `cargo install`, which takes minutes. This shows that it builds the crates of `make build` with the
/// same features, except for those here.
#[test]
fn install_builds_the_same_crates() {
    let alone = crates(&["--package=corral-cli"]);
    let together = crates(&["--workspace"]);
    assert!(alone.len() > 100, "{alone:?}");
    let others: Vec<_> = alone.difference(&together).collect();
    let names = others.iter().filter_map(|line| line.split(' ').next());
    let names: Vec<_> = names.collect();
    let run = "run `make check-install`, and if it works, name the crates here";
    assert_eq!(
        names,
        ["hyper-util", "opentelemetry-proto"],
        "{others:?}: {run}"
    );
}

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
    let ended = succeeds(Command::new(&python).arg(script).arg(&dir));
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-index", "--target"]);
    install.args([dir.join("installed"), dir.join(ended.stdout.trim())]);
    succeeds(&mut install);
    let mut import = Command::new(&python);
    import.env("PYTHONPATH", dir.join("installed"));
    import.args(["-c", "import corral_remote; print(corral_remote.__file__)"]);
    let ended = succeeds(&mut import);
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
    succeeds(Command::new(python).arg(script).arg(&dir));
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
