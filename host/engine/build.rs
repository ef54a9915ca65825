//! Compiles the few lines of C++ by which the processor's attention is Corral's own.

fn main() {
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rerun-if-changed=build.rs");
    // Backends that are loaded when the process runs can't be linked with.
    let dynamic = std::env::var_os("CARGO_FEATURE_DYNAMIC_BACKENDS").is_some();
    println!("cargo::rustc-check-cfg=cfg(own_attention)");
    let features = of("CARGO_CFG_TARGET_FEATURE");
    let has = |feature: &str| features.split(',').any(|other| other == feature);
    // What corral-attention is for.
    let computes =
        of("CARGO_CFG_TARGET_ARCH") == "x86_64" && ["avx2", "f16c", "fma"].into_iter().all(has);
    if !computes || dynamic {
        return;
    }
    let file = "src/llama/attention/hook.cpp";
    println!("cargo::rerun-if-changed={file}");
    println!("cargo::rustc-cfg=own_attention");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file(file)
        .compile("corral_attention");
}
