//! Built with `dynamic-backends`, the binary looks for llama.cpp's libraries in the folder that it lies in itself,
//! wherever somebody put that (`make dist`). Without, they are part of it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_DYNAMIC_BACKENDS").is_none() {
        return;
    }
    let folder = match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        // Windows looks there anyway.
        Ok("windows") => return,
        Ok("macos") => "@executable_path",
        _ => "$ORIGIN",
    };
    println!("cargo::rustc-link-arg-bins=-Wl,-rpath,{folder}");
}
