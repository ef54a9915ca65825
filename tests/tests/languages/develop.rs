//! `corral serve --develop`: what compiles does not hold up what serves, errors say what the plugin wrote to standard
//! error, and an edit of a Python project compiles nothing.
//!
//! `tests/clients/setup.sh` installs componentize-py beside the clients.

use corral_tests::{
    Corral, KilledOnDrop, RELIABLE_SUMS, Response, artifacts, run_command, scratch_dir, wait_for,
    wait_until,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest build. Far above what it takes, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(900);
const PANIC: &str = "misbehave panics on request";

/// `ROUTE=FILE`.
fn plugin(route: &str, file: &Path) -> String {
    format!("{route}={}", file.display())
}

/// The answer of a route that may still be compiled.
fn compiled(corral: &Corral, path: &str, body: &str) -> Response {
    wait_for(path, || {
        let answer = corral.post(path, body);
        let compiling = answer.status == 503 && answer.body.contains("\"compiling\"");
        (!compiling).then_some(answer)
    })
}

/// A pipe in place of a file: the server waits until it has the component.
fn pipe() -> PathBuf {
    let file = scratch_dir().join("slow.wasm");
    let made = run_command(Command::new("mkfifo").arg(&file), TIMEOUT);
    assert_eq!(made.code, Some(0), "{made:?}");
    file
}

#[test]
fn ready_plugins_serve_while_others_compile() {
    let (slow, broken) = (pipe(), scratch_dir().join("broken.wasm"));
    std::fs::write(&broken, "no component").expect("written");
    let corral = Corral::start_with(&[
        "--develop",
        "--plugin",
        &plugin("/slow", &slow),
        "--error-format",
        "/slow=openai",
        "--plugin",
        &plugin("/broken", &broken),
    ]);
    let sum = RELIABLE_SUMS[0];
    let expected = sum.answer();
    assert_eq!(compiled(&corral, "/hello", &sum.question()).body, expected);
    assert_eq!(corral.get("/readyz").status, 200);

    let answer = corral.post("/slow", "");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "compiling", "{answer:?}");

    // A component that does not compile ends nothing.
    let answer = compiled(&corral, "/broken", "");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.json()["code"], "deployment-failed", "{answer:?}");
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("does not start"), "{detail}");

    std::fs::write(&slow, artifacts::component("hello")).expect("the server reads it");
    let answer = wait_for("the slow plugin", || {
        let answer = corral.post("/slow", sum.question());
        (answer.status != 503).then_some(answer)
    });
    assert_eq!((answer.status, answer.body), (200, sum.answer()));
}

#[test]
fn fast_code_keeps_all_limits() {
    let corral = Corral::start_with(&["--develop", "--cpu-limit", "2"]);
    for (behavior, status, code) in [
        ("ok", 200, None),
        ("spin", 504, Some("cpu-time")),
        ("hog", 500, Some("memory")),
        ("trap", 500, Some("trapped")),
    ] {
        let answer = compiled(&corral, &format!("/misbehave/{behavior}"), "");
        assert_eq!(answer.status, status, "{answer:?}");
        if let Some(code) = code {
            assert_eq!(answer.json()["code"], code, "{answer:?}");
        }
    }
}

#[test]
fn errors_quote_stderr_only_while_developing() {
    for (arguments, quoted) in [(&["--develop"][..], true), (&[], false)] {
        let corral = Corral::start_with(arguments);
        let answer = compiled(&corral, "/misbehave/panic", "");
        assert_eq!(answer.status, 500, "{answer:?}");
        assert_eq!(answer.json()["code"], "trapped", "{answer:?}");
        let detail = answer.json()["detail"].to_string();
        assert_eq!(detail.contains(PANIC), quoted, "{detail}");
    }
}

/// `corral` with the tools of the Python environment in `PATH`.
fn corral(dir: &Path, arguments: &[&str]) -> Command {
    let tools = artifacts::clients().join("python/bin");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(artifacts::binary());
    command
        .current_dir(dir)
        .args(arguments)
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("XDG_CACHE_HOME", artifacts::scratch().join("python"));
    command
}

#[test]
fn python_edit_compiles_nothing() {
    let dir = scratch_dir();
    let created = run_command(
        &mut corral(&dir, &["new", "shout", "--lang", "python"]),
        TIMEOUT,
    );
    assert_eq!(created.code, Some(0), "{created:?}");
    let project = dir.join("shout");
    let server = Corral::start_with_store(&["--develop"]);
    for route in ["/generate", "/hello", "/misbehave/ok", "/wasi-p2-handler"] {
        compiled(&server, route, "");
    }
    let mut watch = corral(&project, &["watch", "--admin", server.admin()]);
    watch.env("CORRAL_ADMIN_TOKEN", server.token().expect("a store"));
    let watch = watch.stdout(Stdio::null()).spawn();
    let _watch = KilledOnDrop(watch.expect("the binary starts"));
    let sum = RELIABLE_SUMS[0];
    let ask = || server.post("/shout", sum.question());
    wait_for("the first revision", || {
        let answer = ask();
        (answer.status == 200).then(|| assert_eq!(answer.body, sum.answer()))
    });
    let compilations = || server.metrics().get("corral_child_processes_started_total");
    let before = compilations();

    // Several modules, one of which is new, with a module of the standard library that the project did not import.
    let app = project.join("app.py");
    let good = std::fs::read_to_string(&app).expect("readable");
    let save = |module: &str, text: &str| {
        std::fs::write(project.join(module), text).expect("written");
    };
    save(
        "louder.py",
        "import textwrap\n\n\ndef louder(text):\n    return textwrap.dedent(f'  = {text}')\n",
    );
    let edited = good
        .replace(
            "from corral_sdk",
            "from louder import louder\nfrom corral_sdk",
        )
        .replace("Response.text(await", "Response.text(louder(await")
        .replace("64).text())", "64).text()))");
    assert_ne!(edited, good);
    save("app.py", &edited);
    let expected = format!("= {}", sum.answer());
    wait_until("the edit", || ask().body == expected);

    // A module that fails says so in the answer.
    save("louder.py", "raise ValueError('too loud')\n");
    let answer = wait_for("the failing module", || {
        Some(ask()).filter(|answer| answer.status != 200)
    });
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(answer.json()["code"], "plugin-failed", "{answer:?}");
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("ValueError: too loud"), "{detail}");
    assert_eq!(compilations(), before, "the interpreter is compiled once");
}
