//! `corral doctor`, and the options for devices and KV cell types.

use corral_tests::{Corral, RELIABLE_SUMS, RunOutput, run, scratch_dir, serve};
use serde_json::Value;

fn doctor(arguments: &[&str]) -> RunOutput {
    run(["doctor"].iter().chain(arguments))
}

#[test]
fn doctor_explains_unused_backends() {
    let ended = doctor(&[]).check_success();
    assert_eq!(ended.stderr, "", "{ended:?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    let version = format!("corral {}, built ", env!("CARGO_PKG_VERSION"));
    assert!(lines[0].starts_with(&version), "{ended:?}");
    let line_of = |start: &str| lines.iter().find(|line| line.starts_with(start));
    let processor = line_of("  CPU ").expect("a device");
    assert!(processor.contains(" cpu ") && processor.contains(" MiB free"));
    for backend in ["  CUDA ", "  ROCm ", "  Vulkan ", "  MTL "] {
        let line = line_of(backend).expect(backend);
        let name = backend.trim();
        // A supported backend lists its devices.
        assert!(
            line.contains("not used: ") || line.contains(&format!("{name}0")),
            "{line}"
        );
    }
}

#[test]
fn doctor_json_lists_devices() {
    let ended = doctor(&["--json"]).check_success();
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(found["version"], env!("CARGO_PKG_VERSION"));
    let devices = found["devices"].as_array().expect("a list");
    let processor = devices.iter().find(|device| device["kind"] == "cpu");
    let processor = processor.expect("a CPU");
    assert_eq!(processor["name"], "CPU");
    assert_eq!(processor["backend"], "CPU");
    let total = processor["total_bytes"].as_u64().expect("a number");
    assert!(total >= processor["free_bytes"].as_u64().expect("a number") && total > 1 << 20);
    for backend in found["backends"].as_array().expect("a list") {
        let is_used = backend["devices"] != Value::Array(Vec::new());
        assert_eq!(is_used, backend["problem"].is_null(), "{backend}");
    }
    // The tests run under cargo, and each tool is found or has a hint.
    let tools = found["authoring"].as_array().expect("a list");
    let text = tools[0]["found"].as_str().expect("cargo");
    assert!(text.contains("cargo"), "{found}");
    for tool in tools {
        assert_eq!(tool["found"].is_null(), tool["hint"].is_string(), "{tool}");
    }
    let built_with = found["built_with"].as_array().expect("a list");
    let is_built_with = |feature: &str| built_with.iter().any(|built| built == feature);
    if !is_built_with("dynamic-backends") {
        assert!(found["backend_dir"].is_null(), "{found}");
        let backends = found["backends"].as_array().expect("a list");
        let cuda = backends.iter().find(|backend| backend["name"] == "CUDA");
        let problem = cuda.expect("a known backend")["problem"].as_str();
        if !is_built_with("cuda") {
            let problem = problem.expect("a problem");
            assert!(problem.contains("FEATURES=cuda"), "{problem}");
        }
    }
}

#[test]
fn missing_backends_dir_is_an_error() {
    let missing = scratch_dir().join("missing");
    let missing = missing.to_str().expect("a path in UTF-8");
    let expected = [missing, "cannot read"];
    doctor(&["--backend-dir", missing]).check_error(1, &expected);
    serve(&["--backend-dir", missing]).check_error(1, &expected);
}

#[test]
fn invalid_device_options_list_valid_ones() {
    let ended = serve(&["--device", "nonsense"]);
    ended.check_error(1, &["\"nonsense\"", "CPU", "corral doctor"]);
    serve(&["--kv-type", "q4_0"]).check_error(2, &["write f16 or q8_0"]);
    let ended = serve(&["--device", "cpu", "--gpu-layers", "4"]);
    ended.check_error(1, &["4 GPU layers", "except the CPU"]);
}

#[test]
fn q8_cells_halve_memory_and_stay_right() {
    let start = |kv: &str, expected: &str| {
        let corral = Corral::start_with(&["--device", "cpu", "--kv-type", kv]);
        let stderr = corral.wait_for_stderr("loaded model tiny");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        // Everything is on the CPU, so no other device is mentioned.
        assert!(!stderr.contains("layers on"), "{stderr}");
        corral
    };
    let memory = |corral: &Corral| corral.metrics().get("corral_model_memory_bytes");
    let large = start("f16", "32.0 MiB for 16384 KV cells of f16");
    let small = start("tiny=q8_0", "17.0 MiB for 16384 KV cells of q8_0");
    let less = memory(&large) - memory(&small);
    assert!(less > 12e6, "{less}");
    for sum in RELIABLE_SUMS {
        assert_eq!(small.text(&sum.question_in(100)), sum.answer());
        assert_eq!(small.text(&sum.question()), sum.answer());
    }
    let metrics = small.metrics().samples("corral_model_device_memory_bytes");
    assert!(metrics.is_empty(), "{metrics:?}");
}
