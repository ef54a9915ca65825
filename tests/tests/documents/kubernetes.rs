//! `examples/kubernetes/` as kustomize builds it: each resource is one by the schema of its kind, and mistakes are refused.
//! Options that the pods give exist. There is no cluster: `tests/kubernetes/validate.mjs` validates.

use corral_tests::authoring::{root, succeeds};
use corral_tests::{RunOutput, TIMEOUT, artifacts, run, run_command, scratch_dir};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kinds that the manifests have.
const KINDS: [&str; 9] = [
    "ConfigMap",
    "Deployment",
    "InferencePool",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ScaledObject",
    "Service",
    "ServiceMonitor",
    "StatefulSet",
];

/// Mistakes: a file, a text of it, what replaces it, and a part of the error.
const MISTAKES: [[&str; 4]; 8] = [
    [
        "base/deployment.yaml",
        "terminationGracePeriodSeconds",
        "terminationGracePeriod",
        "the schema has no member /spec/template/spec/terminationGracePeriod",
    ],
    [
        "base/service.yaml",
        "port: 80,",
        "port: http,",
        "data/spec/ports/0/port must be integer",
    ],
    [
        "cluster/join.yaml",
        "/volumes/-",
        "/volume/-",
        "doc is missing path",
    ],
    [
        "cluster/nats.yaml",
        "policyTypes",
        "policyType",
        "the schema has no member /spec/policyType",
    ],
    [
        "routing/inference-pool.yaml",
        "number: 8080",
        "number: '8080'",
        "data/spec/targetPorts/0/number must be integer",
    ],
    [
        "routing/inference-pool.yaml",
        "failureMode",
        "failMode",
        "the schema has no member /spec/endpointPickerRef/failMode",
    ],
    [
        "autoscaling/scaled-object.yaml",
        "threshold: \"32\"",
        "threshold: 32",
        "data/spec/triggers/0/metadata/threshold must be string",
    ],
    [
        "monitoring/service-monitor.yaml",
        "interval",
        "intervals",
        "the schema has no member /spec/endpoints/0/intervals",
    ],
];

fn manifests() -> PathBuf {
    root().join("examples/kubernetes")
}

/// Validates what kustomize builds of the directories.
fn validate(manifests: &Path, directories: &[&str]) -> RunOutput {
    let mut node = Command::new("node");
    node.arg(root().join("tests/kubernetes/validate.mjs"))
        .args(directories)
        .current_dir(manifests)
        .env("CORRAL_KUBERNETES", artifacts::kubernetes());
    run_command(&mut node, TIMEOUT)
}

#[test]
fn manifests_follow_schemas_of_their_kinds() {
    let ended = validate(&manifests(), &["base", "all"]).check_success();
    for kind in KINDS {
        let is_valid = |line: &str| {
            line.starts_with("all: ")
                && line.contains(&format!(" {kind} "))
                && line.ends_with(" is valid")
        };
        assert!(ended.stdout.lines().any(is_valid), "{kind}: {ended:?}");
    }
}

#[test]
fn mistakes_in_manifests_are_refused() {
    for [file, right, wrong, error] in MISTAKES {
        let copy = scratch_dir().join("kubernetes");
        let mut cp = Command::new("cp");
        cp.arg("-r").args([&manifests(), &copy]);
        succeeds(cp);
        let file = copy.join(file);
        let text = std::fs::read_to_string(&file).expect("readable");
        assert!(text.contains(right), "{right} in {}", file.display());
        std::fs::write(&file, text.replace(right, wrong)).expect("own directory");
        let ended = validate(&copy, &["all"]);
        assert_eq!(ended.code, Some(1), "{wrong}: {ended:?}");
        assert!(ended.stderr.contains(error), "{wrong}: {ended:?}");
    }
}

#[test]
fn options_of_pods_exist() {
    let help = run(["serve", "--help"]).stdout;
    let mut count = 0;
    for file in ["base/deployment.yaml", "cluster/join.yaml"] {
        let text = std::fs::read_to_string(manifests().join(file)).expect("readable");
        let arguments = text.lines().filter_map(|line| {
            let line = line.trim_start();
            let argument = line.strip_prefix("- ").or(line.strip_prefix("value: "));
            argument.filter(|argument| argument.starts_with("--"))
        });
        for argument in arguments {
            let option = argument.split('=').next().expect("a part");
            let exists = help.split_whitespace().any(|word| word == option);
            assert!(exists, "{file}: {argument}");
            count += 1;
        }
    }
    assert_eq!(count, 12);
}
