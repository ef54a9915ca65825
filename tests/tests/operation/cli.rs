//! The command line: output and errors. The unit tests of `corral-cli` have all usage errors.

use corral_tests::{Corral, artifacts, run, run_plugin, run_with, scratch_dir, serve, utf8};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// Writes a file into the directory.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, bytes).expect("written");
    file
}

#[test]
fn run_answers_without_server() {
    let generate = |arguments: &[&str]| run_plugin(&artifacts::plugin("generate"), &[], arguments);
    let ended = generate(&["1+1="]);
    let printed = (ended.code, &*ended.stdout, &*ended.stderr);
    assert_eq!(printed, (Some(0), "2\n", ""));
    let ended = generate(&["--chat", "What", "is", "12+7?"]);
    assert_eq!(ended.stdout, "19\n", "{ended:?}");
    let ended = generate(&["--max-tokens", "4", "repeat: Blue owls, 7!\n"]);
    assert_eq!(ended.stdout, "Blue\n", "{ended:?}");
    // The exit code and the error are the plugin's.
    for (arguments, expected) in [
        (&["--nope"][..], "--nope is not an option"),
        (&["--model", "other", "1+1="], "tiny"),
    ] {
        let ended = generate(arguments);
        assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
}

#[test]
fn run_refuses_plugin_without_command_role() {
    let ended = run_plugin(&artifacts::plugin("misbehave"), &[], &[]);
    ended.check_error(1, &["misbehave.wasm", "wasi:cli/run", "corral serve"]);
}

#[test]
fn help_and_version_exit_with_0() {
    for argument in ["--help", "help"] {
        let ended = run([argument]);
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{ended:?}");
        assert!(ended.stdout.contains("serve"), "{ended:?}");
    }
    let ended = run(["serve", "--help"]);
    assert!(ended.stdout.contains("--plugin <ROUTE=FILE>"), "{ended:?}");
    let version = format!("corral {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(["--version"]).stdout, version);
}

#[test]
fn help_fits_the_terminal_under_headings() {
    let help = |command: &str| run_with(&[("COLUMNS", "80")], [command, "--help"]).stdout;
    for command in [
        "serve", "run", "top", "deploy", "list", "invoke", "logs", "doctor",
    ] {
        for line in help(command).lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
    let serve = help("serve");
    for heading in [
        "Plugins", "Model", "Memory", "Devices", "Network", "Security", "Limits", "Advanced",
    ] {
        let count = serve.matches(&format!("\n{heading}:\n")).count();
        assert_eq!(count, 1, "{heading}: {serve}");
    }
    let words: Vec<_> = serve.split_whitespace().collect();
    let defaults = words.join(" ");
    for default in [
        "[default: 127.0.0.1:8080]",
        "[default: 1024]",
        "[default: one for each core]",
    ] {
        assert!(defaults.contains(default), "{default}: {serve}");
    }
}

#[test]
fn cells_by_default_are_explained_at_start() {
    let mut corral = Corral::start();
    let stderr = corral.wait_for_stderr("a quarter of the memory");
    for text in ["KV cells of f16", "--kv-cells N"] {
        assert!(stderr.contains(text), "{stderr}");
    }
    corral.shut_down();
    let corral = Corral::start_with(&["--kv-cells", "16384"]);
    let text = corral.stderr();
    assert!(!text.contains("--kv-cells"), "{text}");
}

#[test]
fn unloadable_model_is_one_line_error() {
    let dir = scratch_dir();
    let model = std::fs::read(artifacts::model()).expect("readable");
    for (file, expected) in [
        (dir.join("missing.gguf"), ["missing.gguf", "cannot read"]),
        (dir.clone(), ["cannot read", "give"]),
        (
            write(&dir, "text.gguf", b"once upon a time"),
            ["text.gguf", "not a GGUF model"],
        ),
        (
            write(&dir, "magic.gguf", b"GGUF"),
            ["magic.gguf", "cannot be loaded"],
        ),
        (
            write(&dir, "head.gguf", &model[..5000]),
            ["head.gguf", "cannot be loaded"],
        ),
        (
            write(&dir, "last.gguf", &model[..model.len() - 100_000]),
            ["last.gguf", "cannot be loaded"],
        ),
    ] {
        serve(&["--model", utf8(&file)]).check_error(1, &expected);
        let generate = artifacts::plugin("generate");
        run(["run", utf8(&generate), "--model", utf8(&file)]).check_error(1, &expected);
    }
}

#[test]
fn port_in_use_is_one_line_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    for option in ["--listen", "--admin"] {
        let ended = serve(&[option, &address]);
        ended.check_error(1, &[&address, "in use", "choose another"]);
    }
    serve(&["--listen", "nonsense"]).check_error(1, &["nonsense", "HOST:PORT"]);
}

#[test]
fn invalid_plugin_file_is_one_line_error() {
    let dir = scratch_dir();
    let generate = artifacts::component("generate");
    for (file, expected) in [
        (
            dir.join("missing.wasm"),
            &["missing.wasm", "cannot read"][..],
        ),
        (
            write(&dir, "text.wasm", b"once upon a time"),
            &["not a WebAssembly component"],
        ),
        (
            write(&dir, "core.wasm", b"\0asm\x01\0\0\0"),
            &["core WebAssembly module", "wasm32-wasip2"],
        ),
        (
            write(&dir, "half.wasm", &generate[..generate.len() / 2]),
            &[],
        ),
        (
            write(&dir, "import.wasm", &artifacts::unknown_import()),
            &[
                "imports what this host does not offer",
                "test:unknown-import/unknown",
            ],
        ),
        (
            write(&dir, "export.wasm", &artifacts::unknown_export()),
            &["exports nothing that Corral can call", "wasi:http/handler"],
        ),
    ] {
        let plugin = format!("/x={}", utf8(&file));
        let ended = serve(&["--plugin", &plugin]);
        ended.check_error(1, expected);
        assert!(!ended.stderr.contains("loading model"), "{ended:?}");
        run_plugin(&file, &[], &[]).check_error(1, expected);
    }
}

#[test]
fn usage_error_is_one_line_and_exits_2() {
    let none: [&str; 0] = [];
    run(none).check_error(2, &["see 'corral --help'"]);
    run(["fly"]).check_error(2, &["'fly'"]);
    let meant = ["did you mean 'deploy'?", "See 'corral --help'"];
    run(["depoly"]).check_error(2, &meant);
    let meant = ["did you mean '--plugin'?", "See 'corral serve --help'"];
    serve(&["--plugn", "/x=y.wasm"]).check_error(2, &meant);
    run(["run", "p.wasm"]).check_error(2, &["--model"]);
    serve(&["--max-calls", "225"]).check_error(2, &["--max-calls is 225", "at most 224"]);
    serve(&["--context", "5000"]).check_error(1, &["5000", "4096"]);
}

#[test]
fn verbose_shows_causes() {
    let missing = scratch_dir().join("missing.gguf");
    let ended = serve(&["--verbose", "--model", utf8(&missing)]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("corral: cannot read"), "{ended:?}");
    let ended = run_plugin(&artifacts::plugin("generate"), &["--verbose"], &["1+1="]);
    assert_eq!(ended.stdout, "2\n", "{ended:?}");
    assert!(
        ended.stderr.contains("llama"),
        "no log of llama.cpp: {ended:?}"
    );
}
