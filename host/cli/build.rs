//! Embeds the SDKs of all languages and the templates of `corral new`. With `dynamic-backends` the binary finds llama.cpp's
//! libraries in its own directory, and the linker gets the argument that `host/dist.sh` gives (`make dist`).

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    embed_files();
    if env::var_os("CARGO_FEATURE_DYNAMIC_BACKENDS").is_none() {
        return;
    }
    let dir = match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        // Windows does so by default.
        Ok("windows") => return,
        Ok("macos") => "@executable_path",
        _ => "$ORIGIN",
    };
    println!("cargo::rustc-link-arg-bins=-Wl,-rpath,{dir}");
    println!("cargo::rerun-if-env-changed=CORRAL_LINK_ARGUMENT");
    if let Ok(argument) = env::var("CORRAL_LINK_ARGUMENT")
        && !argument.is_empty()
    {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}

/// Writes `embedded.rs`: the SDK's version, and the paths and texts of all files.
fn embed_files() {
    let cli = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let root = cli.join("../..");
    let mut files = Vec::new();
    for (dir, name) in [
        (cli.join("templates"), "templates"),
        (root.join("plugins/sdk/src"), "sdk/src"),
        (root.join("wit"), "sdk/wit"),
        (root.join("plugins/c"), "c"),
        (root.join("plugins/go"), "go"),
        (root.join("plugins/javascript"), "javascript"),
        (root.join("plugins/python/corral_sdk"), "python/corral_sdk"),
    ] {
        // A directory, so that cargo also notices new files.
        println!("cargo::rerun-if-changed={}", dir.display());
        collect(&dir, name, &mut files);
    }
    files.sort();
    let workspace = read(&root.join("plugins/Cargo.toml"));
    let sdk = read(&root.join("plugins/sdk/Cargo.toml"));
    let mut text = format!(
        "pub(super) const SDK_VERSION: &str = {:?};\npub(super) const FILES: &[(&str, &str)] = &[\n",
        version(&workspace)
    );
    let mut add = |name: &str, contents: &str| {
        writeln!(text, "({name:?}, {contents:?}),").expect("a String takes all");
    };
    for (name, file) in files {
        let contents = read(&file);
        match name.as_str() {
            // The copy has the WIT beside its `src`.
            "sdk/src/bindings.rs" => {
                add(&name, &replace(&contents, "\"../../wit\"", "\"wit\""));
            }
            _ => add(&name, &contents),
        }
    }
    add("sdk/Cargo.toml", &sdk_manifest(&sdk, &workspace));
    add(
        "Cargo.lock",
        &registry_packages(&read(&root.join("plugins/Cargo.lock"))),
    );
    text += "];\n";
    let out = Path::new(&variable("OUT_DIR")).join("embedded.rs");
    fs::write(out, text).expect("the output directory can be written");
}

/// Adds all files below `dir` to `files`, with `name` in place of `dir`. Skips build outputs, tests, and the READMEs of SDKs, which
/// name files of a checkout.
fn collect(dir: &Path, name: &str, files: &mut Vec<(String, PathBuf)>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for entry in entries {
        let path = entry.expect("a readable directory").path();
        let file_name = path.file_name().expect("an entry").to_string_lossy();
        let name = format!("{name}/{file_name}");
        match path.is_dir() {
            true if ["__pycache__", "node_modules", "tests"].contains(&&*file_name) => {}
            false if ["c/README.md", "go/README.md", "javascript/README.md"].contains(&&*name) => {}
            true => collect(&path, &name, files),
            false => files.push((name, path)),
        }
    }
}

/// The SDK's manifest without its benches, as a workspace of its own.
fn sdk_manifest(sdk: &str, workspace: &str) -> String {
    let (package, _) = sdk
        .split_once("[dev-dependencies]")
        .expect("plugins/sdk/Cargo.toml has [dev-dependencies] after all dependencies");
    let (_, shared) = workspace
        .split_once("[workspace.package]")
        .expect("plugins/Cargo.toml has [workspace.package]");
    let (shared, _) = shared
        .split_once("[profile.release]")
        .expect("plugins/Cargo.toml has [profile.release] after the dependencies");
    let shared = shared
        .lines()
        .filter(|line| !line.starts_with("corral-sdk"));
    let shared = shared.collect::<Vec<_>>().join("\n");
    format!("{package}[workspace]\n\n[workspace.package]{shared}\n")
}

/// The packages of a Cargo.lock that come from a registry. Cargo adds the project's own.
fn registry_packages(lock: &str) -> String {
    let mut parts = lock.split("[[package]]\n");
    let head = parts.next().unwrap_or_default().to_owned();
    let packages = parts.filter(|package| package.contains("\nsource = "));
    packages.fold(head, |text, package| text + "[[package]]\n" + package)
}

fn version(workspace: &str) -> &str {
    let line = workspace
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    line.expect("plugins/Cargo.toml has a version")
        .trim_matches('"')
}

fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is not in the SDK's bindings");
    text.replace(from, to)
}

fn read(file: &Path) -> String {
    println!("cargo::rerun-if-changed={}", file.display());
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
