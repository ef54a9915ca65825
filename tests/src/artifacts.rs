//! Paths of the binary, the components and the model.
//!
//! `make test` sets `CORRAL_BIN`, `CORRAL_PLUGINS`, `CORRAL_CLIENTS`, `CORRAL_CONSOLE`, `CORRAL_LLAMA_SERVER_SUITE`,
//! `CORRAL_PROMTOOL`, `CORRAL_DOCKER_REGISTRY`, `CORRAL_WASMTIME`, `CORRAL_GO`, `CORRAL_NATS_SERVER`, `CORRAL_ZMQ`, `CORRAL_SMG`,
//! `CORRAL_ENVOY`, `CORRAL_HAPROXY` and `CORRAL_KUBERNETES`. The defaults are where `make` puts them: the binary beside the test
//! binaries, `plugins` in the target directory, and the model of this checkout (`CORRAL_MODEL` names another).

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The binary `corral`.
pub fn binary() -> PathBuf {
    existing("CORRAL_BIN", || profile_dir().join("corral"))
}

/// The binary `corral-bench`: `CORRAL_BENCH_BIN`, or beside `corral`.
pub fn bench_binary() -> PathBuf {
    existing("CORRAL_BENCH_BIN", || {
        binary().with_file_name("corral-bench")
    })
}

/// The component `name`, such as `generate`.
pub fn plugin(name: &str) -> PathBuf {
    let dir = existing("CORRAL_PLUGINS", || target_dir().join("plugins"));
    let file = dir.join(format!("{name}.wasm"));
    assert!(
        file.is_file(),
        "there is no {}: run `make test`, which builds the plugins",
        file.display()
    );
    file
}

/// The bytes of the component `name`.
pub fn component(name: &str) -> Vec<u8> {
    std::fs::read(plugin(name)).expect("the component can be read")
}

/// A component without imports that exports nothing that Corral knows.
pub fn unknown_export() -> Vec<u8> {
    parse(
        r#"(component
        (core module $main (func (export "add") (param i32 i32) (result i32) (i32.const 0)))
        (core instance $main (instantiate $main))
        (func (export "add") (param "a" u32) (param "b" u32) (result u32) (canon lift (core func $main "add"))))"#,
    )
}

/// A component whose import Corral does not offer.
pub fn unknown_import() -> Vec<u8> {
    parse(
        r#"(component
        (import "test:unknown-import/unknown@1.0.0" (instance (export "call" (func (result string)))))
        (instance $handler)
        (export "wasi:http/handler@0.3.0" (instance $handler)))"#,
    )
}

fn parse(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("a component")
}

/// The demo model.
pub fn model() -> PathBuf {
    existing("CORRAL_MODEL", || {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny/tiny.gguf")
    })
}

/// The demo model with sixteen times its context length in the metadata. Requests of tests that hold
/// resources must outlast the test on any machine. Output beyond the real context is meaningless.
pub fn long_model() -> PathBuf {
    static FILE: LazyLock<PathBuf> = LazyLock::new(write_long_model);
    FILE.clone()
}

fn write_long_model() -> PathBuf {
    const NAME: &[u8] = b"qwen3.context_length";
    const TYPE_U32: [u8; 4] = 4_u32.to_le_bytes();
    let mut bytes = std::fs::read(model()).expect("the model can be read");
    let name = bytes.windows(NAME.len()).position(|bytes| bytes == NAME);
    let value_type = name.expect("the file has a context length") + NAME.len();
    let value = value_type + TYPE_U32.len();
    assert_eq!(bytes[value_type..value], TYPE_U32, "a u32 value");
    let length = bytes[value..].first_chunk_mut();
    let length = length.expect("a value of four bytes");
    *length = (16 * u32::from_le_bytes(*length)).to_le_bytes();
    let file = scratch().join("long.gguf");
    // Test binaries run concurrently: rename, so that none reads a partial file.
    let new = file.with_extension(std::process::id().to_string());
    std::fs::write(&new, bytes).expect("the scratch directory can be written");
    std::fs::rename(&new, &file).expect("the file can be renamed");
    file
}

/// The draft model of the demo model.
pub fn draft_model() -> PathBuf {
    model().with_file_name("draft.gguf")
}

/// A LoRA adapter of the demo model that adds one to each sum.
pub fn adapter() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny/plus-one.gguf")
}

/// The directory with the clients: `python/bin/python`, `openai_2/bin/python` and `node/node_modules`. `make test` fills
/// it with `tests/clients/setup.sh`.
pub fn clients() -> PathBuf {
    installed("make test", "CORRAL_CLIENTS", "tests/clients/setup.sh")
}

/// The directory with `node_modules` for tests of the web console. `make test` fills it with `tests/console/setup.sh`.
pub fn console() -> PathBuf {
    installed("make test", "CORRAL_CONSOLE", "tests/console/setup.sh")
}

/// The directory with agents and lm-eval. `make soak` fills it with `tests/clients/agents/setup.sh`.
pub fn agents() -> PathBuf {
    installed(
        "make soak",
        "CORRAL_AGENTS",
        "tests/clients/agents/setup.sh",
    )
}

/// The directory with the suite of llama.cpp's server. `make test` fills it with
/// `tests/clients/llama_server/setup.sh`.
pub fn llama_server_suite() -> PathBuf {
    installed(
        "make test",
        "CORRAL_LLAMA_SERVER_SUITE",
        "tests/clients/llama_server/setup.sh",
    )
}

/// `promtool`, which checks metrics. `make test` installs it with `tests/promtool.sh`.
pub fn promtool() -> PathBuf {
    let variable = std::env::var_os("CORRAL_PROMTOOL").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|dir| dir.join("promtool"));
    let found = variable
        .into_iter()
        .chain(in_path)
        .find(|file| file.is_file());
    found.expect("run `make test`, which installs promtool, or name it in CORRAL_PROMTOOL")
}

/// `docker-registry`, an OCI registry. `make test` installs it with `tests/docker-registry.sh`.
pub fn docker_registry() -> PathBuf {
    installed(
        "make test",
        "CORRAL_DOCKER_REGISTRY",
        "tests/docker-registry.sh",
    )
}

/// The program `prometheus`, which `tests/promtool.sh` puts beside `promtool`.
pub fn prometheus() -> PathBuf {
    let file = promtool().with_file_name("prometheus");
    assert!(
        file.is_file(),
        "there is no {}: run `make test`, which installs it",
        file.display()
    );
    file
}

/// The command line of wasmtime. `make test` fetches it with `tests/wasmtime.sh`.
pub fn wasmtime() -> PathBuf {
    installed("make test", "CORRAL_WASMTIME", "tests/wasmtime.sh")
}

/// Go. `make test` fetches it with `tests/go.sh`.
pub fn go() -> PathBuf {
    installed("make test", "CORRAL_GO", "tests/go.sh")
}

/// `nats-server`. `make test` fetches it with `tests/nats-server.sh`.
pub fn nats_server() -> PathBuf {
    installed("make test", "CORRAL_NATS_SERVER", "tests/nats-server.sh")
}

/// The directory with Python's packages for ZeroMQ and MessagePack. `make test` fills it with `tests/zmq.sh`.
pub fn zmq() -> PathBuf {
    installed("make test", "CORRAL_ZMQ", "tests/zmq.sh")
}

/// `smg`, a router. `make test` fetches it with `tests/smg_router.sh`.
pub fn smg() -> PathBuf {
    installed("make test", "CORRAL_SMG", "tests/smg_router.sh")
}

/// `envoy`. `make test` fetches it with `tests/envoy.sh`.
pub fn envoy() -> PathBuf {
    installed("make test", "CORRAL_ENVOY", "tests/envoy.sh")
}

/// `haproxy`. `make test` fetches it with `tests/haproxy.sh`.
pub fn haproxy() -> PathBuf {
    installed("make test", "CORRAL_HAPROXY", "tests/haproxy.sh")
}

/// The directory with `kubectl` and the schemas of Kubernetes. `make test` fills it with `tests/kubernetes/setup.sh`.
pub fn kubernetes() -> PathBuf {
    installed(
        "make test",
        "CORRAL_KUBERNETES",
        "tests/kubernetes/setup.sh",
    )
}

/// A directory in the target directory for files that tests write.
pub fn scratch() -> PathBuf {
    let dir = target_dir().join("tests-scratch");
    std::fs::create_dir_all(&dir).expect("the target directory can be written");
    dir
}

/// The path in a variable, of what a script installs.
fn installed(make: &str, variable: &str, script: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    let path = path.filter(|path| path.exists());
    path.unwrap_or_else(|| {
        panic!("run `{make}`, or set {variable} to the path that {script} prints")
    })
}

fn existing(variable: &str, otherwise: impl FnOnce() -> PathBuf) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(otherwise, PathBuf::from);
    assert!(
        path.exists(),
        "there is no {}: run `make test`, which builds it, or set {variable}",
        path.display()
    );
    path
}

/// The directory of the cargo profile: the tests' binaries lie in `deps` inside it.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let dir = test.ancestors().nth(2).expect("PROFILE/deps/TEST");
    dir.to_owned()
}

fn target_dir() -> PathBuf {
    let profile = profile_dir();
    profile.parent().expect("TARGET/PROFILE").to_owned()
}
