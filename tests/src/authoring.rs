//! Projects of authors in languages other than Rust.

use crate::{Corral, RELIABLE_SUMS, RunOutput, Watch, run_command, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest suite or build. Far above what they take, because machines are busy.
pub const BUILD_TIMEOUT: Duration = Duration::from_secs(900);

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a suite or a build, which must succeed.
pub fn succeeds(mut command: Command) -> RunOutput {
    let ended = run_command(&mut command, BUILD_TIMEOUT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

/// Deploys the project `shout`, which answers sums. Returns the server.
pub fn deploy_shout(project: &Path) -> Corral {
    let server = Corral::start_with_store(&[]);
    server.cli_output(&["deploy", project.to_str().expect("a path in UTF-8")]);
    for sum in RELIABLE_SUMS {
        assert_eq!(server.post("/shout", sum.question()).body, sum.answer());
    }
    server
}

/// Changes a file of `shout` from `old` to `new`, and runs `watch` until the server answers a sum with `expected`.
pub fn check_saved_change(
    watch: Command,
    server: &Corral,
    file: &Path,
    [old, new]: [&str; 2],
    expected: &str,
) {
    let source = std::fs::read_to_string(file).expect("readable");
    let changed = source.replace(old, new);
    assert_ne!(changed, source);
    std::fs::write(file, changed).expect("written");
    let watch = Watch::start(watch, server);
    // Waits as long as a build may take.
    watch.wait_for("deployed revision 2", 1);
    wait_for("the changed answer", || {
        let answer = server.post("/shout", RELIABLE_SUMS[0].question());
        (answer.body == expected).then_some(())
    });
}
