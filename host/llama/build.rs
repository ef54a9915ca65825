//! Compiles `src/log.cpp`, which receives llama.cpp's log, and `src/attention/hook.cpp`, which replaces ggml's attention on the
//! CPU by `corral-attention`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(own_attention)");
    compile("src/log.cpp", "corral_log");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let features = variable("CARGO_CFG_TARGET_FEATURE");
    let has = |feature: &str| features.split(',').any(|other| other == feature);
    let is_supported = variable("CARGO_CFG_TARGET_ARCH") == "x86_64"
        && ["avx2", "f16c", "fma"].into_iter().all(has);
    // The hook links with the CPU backend, which a dynamic build loads at run time.
    let is_dynamic = std::env::var_os("CARGO_FEATURE_DYNAMIC_BACKENDS").is_some();
    if !is_supported || is_dynamic {
        return;
    }
    println!("cargo::rustc-cfg=own_attention");
    compile("src/attention/hook.cpp", "corral_attention");
}

fn compile(file: &str, library: &str) {
    println!("cargo::rerun-if-changed={file}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file(file)
        .compile(library);
}
