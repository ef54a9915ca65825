//! The command line: output and errors.

use corral_tests::{Ended, artifacts, run, scratch_dir};
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

fn named(name: &str, file: &Path) -> OsString {
    let mut argument = OsString::from(name);
    argument.push("=");
    argument.push(file);
    argument
}

/// `corral run generate.wasm --model MODEL -- ARGUMENTS`.
fn generate(arguments: &[&str]) -> Ended {
    run_plugin(&artifacts::plugin("generate"), arguments)
}

fn run_plugin(plugin: &Path, arguments: &[&str]) -> Ended {
    let mut line: Vec<OsString> = vec!["run".into(), plugin.into(), "--model".into()];
    line.push(named("tiny", &artifacts::model()));
    // See `Corral::start_with`.
    line.extend(["--threads".into(), "1".into(), "--cache-dir".into()]);
    line.push(artifacts::scratch().join("compiled").into());
    line.push("--".into());
    line.extend(arguments.iter().map(OsString::from));
    run(line)
}

/// `corral serve` on free ports with the demo model and `arguments`.
fn serve(arguments: &[OsString]) -> Ended {
    let mut line: Vec<OsString> = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        .map(OsString::from)
        .into();
    line.extend_from_slice(arguments);
    run(line)
}

/// Asserts that the command printed one line on stderr that contains `expected`, and nothing on stdout. Notes
/// of `serve` about loading models may precede that line.
fn assert_error(ended: &Ended, code: i32, expected: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
    let lines: Vec<_> = ended
        .stderr
        .lines()
        .filter(|line| {
            !line.starts_with("corral: loading model ")
                && !line.starts_with("corral: loaded model ")
        })
        .collect();
    assert_eq!(lines.len(), 1, "one line: {ended:?}");
    assert!(lines[0].starts_with("corral: "), "{ended:?}");
    for text in expected {
        assert!(lines[0].contains(text), "{text:?} in {ended:?}");
    }
}

#[test]
fn run_answers_without_server() {
    let ended = generate(&["1+1="]);
    assert_eq!(ended.stdout, "2\n", "{ended:?}");
    assert_eq!(ended.stderr, "", "{ended:?}");
    assert_eq!(ended.code, Some(0));
    let ended = generate(&["--chat", "What", "is", "12+7?"]);
    assert_eq!(ended.stdout, "19\n", "{ended:?}");
    let ended = generate(&["--max-tokens", "4", "repeat: Blue owls, 7!\n"]);
    assert_eq!(ended.stdout, "Blue\n", "{ended:?}");
}

#[test]
fn run_returns_exit_code_of_plugin() {
    let ended = generate(&["--nope"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("--nope is not an option"),
        "{ended:?}"
    );
    assert_eq!(ended.stdout, "");
    let ended = generate(&["--model", "other", "1+1="]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("tiny"), "{ended:?}");
}

#[test]
fn run_refuses_plugin_without_command_role() {
    let ended = run_plugin(&artifacts::plugin("misbehave"), &[]);
    assert_error(
        &ended,
        1,
        &["misbehave.wasm", "wasi:cli/run", "corral serve"],
    );
}

#[test]
fn help_and_version_exit_with_0() {
    for argument in ["--help", "help"] {
        let ended = run([argument]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("serve"), "{ended:?}");
        assert_eq!(ended.stderr, "");
    }
    let ended = run(["serve", "--help"]);
    assert!(ended.stdout.contains("--plugin <ROUTE=FILE>"), "{ended:?}");
    let ended = run(["--version"]);
    assert_eq!(
        ended.stdout,
        format!("corral {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn unloadable_model_is_one_line_error() {
    let dir = scratch_dir();
    let whole = std::fs::read(artifacts::model()).expect("the model can be read");
    let written = |name: &str, bytes: &[u8]| -> PathBuf {
        let file = dir.join(name);
        std::fs::write(&file, bytes).expect("the scratch directory can be written");
        file
    };
    for (file, expected) in [
        (dir.join("missing.gguf"), ["missing.gguf", "cannot read"]),
        (dir.clone(), ["cannot read", "give"]),
        (
            written("empty.gguf", b""),
            ["empty.gguf", "not a GGUF model"],
        ),
        (
            written("text.gguf", b"once upon a time"),
            ["text.gguf", "not a GGUF model"],
        ),
        (
            written("magic.gguf", b"GGUF"),
            ["magic.gguf", "cannot be loaded"],
        ),
        (
            written("head.gguf", &whole[..5000]),
            ["head.gguf", "cannot be loaded"],
        ),
        (
            written("half.gguf", &whole[..whole.len() / 2]),
            ["half.gguf", "cannot be loaded"],
        ),
        (
            written("last.gguf", &whole[..whole.len() - 100_000]),
            ["last.gguf", "cannot be loaded"],
        ),
    ] {
        let ended = serve(&["--model".into(), file.clone().into()]);
        assert_error(&ended, 1, &expected);
        let ended = run([
            OsString::from("run"),
            artifacts::plugin("generate").into(),
            "--model".into(),
            file.into(),
        ]);
        assert_error(&ended, 1, &expected);
    }
    std::fs::remove_dir_all(dir).expect("it is ours");
}

#[test]
fn port_in_use_is_one_line_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    for option in ["--listen", "--admin"] {
        // A repeated option would be refused, so the whole command line is written here.
        let other = if option == "--listen" {
            "--admin"
        } else {
            "--listen"
        };
        let ended = run([
            OsString::from("serve"),
            "--model".into(),
            artifacts::model().into(),
            option.into(),
            address.clone().into(),
            other.into(),
            "127.0.0.1:0".into(),
        ]);
        assert_error(&ended, 1, &[&address, "in use", "choose another"]);
    }
    let ended = run([
        OsString::from("serve"),
        "--model".into(),
        artifacts::model().into(),
        "--listen".into(),
        "nonsense".into(),
    ]);
    assert_error(&ended, 1, &["nonsense", "HOST:PORT"]);
}

#[test]
fn invalid_plugin_file_is_one_line_error() {
    let dir = scratch_dir();
    let written = |name: &str, bytes: &[u8]| -> PathBuf {
        let file = dir.join(name);
        std::fs::write(&file, bytes).expect("the scratch directory can be written");
        file
    };
    let generate = std::fs::read(artifacts::plugin("generate")).expect("it can be read");
    for (file, expected) in [
        (
            dir.join("missing.wasm"),
            vec!["missing.wasm", "cannot read"],
        ),
        (
            written("empty.wasm", b""),
            vec!["not a WebAssembly component"],
        ),
        (
            written("text.wasm", b"once upon a time"),
            vec!["not a WebAssembly component"],
        ),
        (
            written("core.wasm", b"\0asm\x01\0\0\0"),
            vec!["core WebAssembly module", "wasm32-wasip2"],
        ),
        (
            written("half.wasm", &generate[..generate.len() / 2]),
            vec!["half"],
        ),
        (
            artifacts::plugin("unknown-import"),
            vec![
                "imports what this host does not offer",
                "test:unknown-import/unknown",
            ],
        ),
        (
            artifacts::plugin("unknown-export"),
            vec!["exports no role", "wasi:http/handler"],
        ),
    ] {
        let ended = serve(&[
            "--model".into(),
            artifacts::model().into(),
            "--plugin".into(),
            named("/x", &file),
        ]);
        let expected: Vec<&str> = expected
            .into_iter()
            // `serve` names a plugin by its route.
            .filter(|text| *text != "half")
            .collect();
        assert_error(&ended, 1, &expected);
        let ended = run_plugin(&file, &[]);
        assert_error(&ended, 1, &expected);
    }
    std::fs::remove_dir_all(dir).expect("it is ours");
}

#[test]
fn usage_error_is_one_line_and_exits_2() {
    for (line, expected) in [
        ("", "see 'corral --help'"),
        ("fly", "'fly'"),
        ("serve", "--model"),
        ("serve --model x.gguf --fast", "--fast"),
        ("serve --model x.gguf --plugin g.wasm", "write ROUTE=FILE"),
        ("serve --model x.gguf --plugin g=g.wasm", "write '/g'"),
        ("serve --model x.gguf --plugin /g/=g.wasm", "ends with '/'"),
        (
            "serve --model x.gguf --plugin /healthz=g.wasm",
            "choose another",
        ),
        (
            "serve --model x.gguf --plugin /g=a.wasm --plugin /g=b.wasm",
            "two plugins have the route '/g'",
        ),
        (
            "serve --model a/x.gguf --model b/x.gguf",
            "two models are named 'x'",
        ),
        (
            "serve --model x=a.gguf --model x=b.gguf",
            "two models are named 'x'",
        ),
        ("serve --model x.gguf --time-limit never", "write seconds"),
        ("run --model x.gguf", "PLUGIN.wasm"),
        ("run p.wasm", "--model"),
    ] {
        let ended = run(line.split_terminator(' '));
        assert_error(&ended, 2, &[expected]);
    }
}

#[test]
fn context_beyond_model_is_one_line_error() {
    let ended = serve(&[
        "--model".into(),
        artifacts::model().into(),
        "--context".into(),
        "5000".into(),
    ]);
    assert_error(&ended, 1, &["5000", "4096"]);
}

#[test]
fn verbose_shows_causes() {
    let missing = scratch_dir().join("missing.gguf");
    let ended = serve(&["--verbose".into(), "--model".into(), missing.into()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("corral: cannot read"), "{ended:?}");
    let ended = run([
        OsString::from("run"),
        artifacts::plugin("generate").into(),
        "--verbose".into(),
        "--model".into(),
        artifacts::model().into(),
        "--".into(),
        "1+1=".into(),
    ]);
    assert_eq!(ended.stdout, "2\n", "{ended:?}");
    assert!(ended.stderr.contains("llama"), "its log: {ended:?}");
}

#[test]
fn too_many_calls_are_refused_at_startup() {
    let arguments = [
        "--model".into(),
        artifacts::model().into(),
        "--preload".into(),
        "none".into(),
        "--max-calls".into(),
        "225".into(),
    ];
    assert_error(
        &serve(&arguments),
        2,
        &["--max-calls is 225", "at most 224"],
    );
}
