//! With `dynamic-backends` the binary finds llama.cpp's libraries in its own directory (`make dist`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_DYNAMIC_BACKENDS").is_none() {
        return;
    }
    let dir = match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        // Windows does so by default.
        Ok("windows") => return,
        Ok("macos") => "@executable_path",
        _ => "$ORIGIN",
    };
    println!("cargo::rustc-link-arg-bins=-Wl,-rpath,{dir}");
}
