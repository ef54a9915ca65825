//! `corral bench all` with the demo model in the place of each model: whatever is promised has its figure.

use corral_tests::benches::{bench, model, object};
use corral_tests::{Corral, artefacts};

/// The one target for which the bench has no figure, wherever it runs.
const ELSEWHERE: &str = "GPU, 0.6b, 64 streams: HTTP over TCP / raw loop (tests/gpu)";

/// A bench that calls its members otherwise would lose its target in silence.
#[test]
fn every_target_has_its_figure() {
    // Corral is its own peer, of both kinds.
    let peer = Corral::start_with_routes(&[("/", "classic"), ("/v1", "openai")], &[]);
    let url = format!("http://{}", peer.public());
    let (tiny, openai) = (artefacts::model(), artefacts::plugin("openai"));
    let folder = openai.parent().expect("a folder of plugins");
    let words = format!(
        "all --rounds 1 --json --small {tiny} --wide {tiny} --plugins {folder} --vs {url} --vs-openai {url}",
        tiny = tiny.display(),
        folder = folder.display(),
    );
    let ended = bench(&words, &[model()]);
    let found = object(&words, &ended);
    for part in found["benches"].as_array().expect("benches") {
        assert!(part["problem"].is_null(), "{part}");
    }
    let targets = found["targets"].as_array().expect("targets");
    let without: Vec<_> = targets
        .iter()
        .filter(|target| target["figure"].is_null())
        .map(|target| target["target"].as_str().expect("a text"))
        .collect();
    assert_eq!(without, [ELSEWHERE], "{ended:?}");
    for target in targets {
        let [least, figure, most] = ["least", "figure", "most"].map(|end| target[end].as_f64());
        if least.is_some() {
            assert!(least <= figure && figure <= most, "{target}");
        }
    }
    // Those of rounds have their ends.
    let with_ends = targets.iter().filter(|target| !target["least"].is_null());
    assert!(with_ends.count() >= 20, "{targets:#?}");
}
