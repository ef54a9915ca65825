//! Compiles llama.cpp's parser of GGUF once more for the target `gguf`, with libFuzzer's instrumentation and checks of
//! undefined behavior. The target links it, before llama.cpp's own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Sources of the crate `llama-cpp-sys-2`, which passes no path to crates that depend on it.
fn llama_source() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).expect("cargo sets it");
    let metadata = Command::new(variable("CARGO"))
        .args(["metadata", "--format-version", "1", "--filter-platform"])
        .arg(variable("TARGET"))
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages
        .iter()
        .find(|package| package["name"] == "llama-cpp-sys-2");
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let directory = manifest.and_then(|manifest| Path::new(manifest).parent());
    directory.expect("a dependency").join("llama.cpp/ggml")
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rerun-if-env-changed=CXX");
    let source = llama_source();
    cc::Build::new()
        .cargo_metadata(false)
        .cpp(true)
        .std("c++17")
        .opt_level(1)
        .warnings(false)
        .define("_GLIBCXX_ASSERTIONS", None)
        .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp")
        .flag("-fsanitize=undefined")
        // The parser reads any number as a type, and then checks it.
        .flag("-fno-sanitize=enum,vptr,function")
        .flag("-fsanitize-trap=all")
        .include(source.join("include"))
        .file(source.join("src/gguf.cpp"))
        .compile("instrumented_gguf");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-search=native={out}");
}
