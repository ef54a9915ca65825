//! The configuration of continuous integration for forks.

use corral_tests::artifacts;
use corral_tests::authoring::{root, succeeds};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn workflow_runs_tests_and_audit() {
    let mut read = Command::new(artifacts::clients().join("python/bin/python"));
    read.args([
        "-c",
        "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))",
    ]);
    read.arg(root().join(".github/workflows/ci.yml"));
    let workflow: Value = serde_json::from_str(&succeeds(read).stdout).expect("JSON");
    let jobs = workflow["jobs"].as_object().expect("jobs");
    let mut targets = BTreeSet::new();
    for (name, job) in jobs {
        assert!(job["timeout-minutes"].is_u64(), "{name}");
        let steps = job["steps"].as_array().expect("steps");
        let commands = steps.iter().filter_map(|step| step["run"].as_str());
        targets.extend(commands.map(|command| command.strip_prefix("make ").expect("make")));
    }
    assert_eq!(targets, BTreeSet::from(["audit", "test"]));
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("readable");
    for target in targets {
        let is_defined = makefile.lines().any(|line| {
            let rest = line.strip_prefix(target);
            rest.is_some_and(|rest| rest.starts_with(':'))
        });
        assert!(is_defined, "{target}");
    }
}
