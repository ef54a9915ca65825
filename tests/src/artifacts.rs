//! Where the built things are.
//!
//! `make test` sets `CORRAL_BIN`, `CORRAL_PLUGINS` and `CORRAL_CLIENTS`. Without the first two, and
//! without `CORRAL_MODEL`: the binary beside the tests' own, the folder `plugins` in the target
//! directory, and the model of this checkout, which is where `make` puts them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The binary `corral`.
pub fn binary() -> PathBuf {
    existing("CORRAL_BIN", || profile_folder().join("corral"))
}

/// The component `name`, such as `generate`.
pub fn plugin(name: &str) -> PathBuf {
    let folder = existing("CORRAL_PLUGINS", || target_folder().join("plugins"));
    let file = folder.join(format!("{name}.wasm"));
    assert!(
        file.is_file(),
        "there is no {}: run `make test`, which builds the plugins",
        file.display()
    );
    file
}

/// The demo model.
pub fn model() -> PathBuf {
    existing("CORRAL_MODEL", || {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny/tiny.gguf")
    })
}

/// The demo model, but that it says it was trained on sixteen times the context: what holds a place in a server
/// shall not be at an end before the test is, however fast the machine. What it says beyond its real context makes
/// no sense.
pub fn long_model() -> PathBuf {
    static FILE: LazyLock<PathBuf> = LazyLock::new(write_long_model);
    FILE.clone()
}

fn write_long_model() -> PathBuf {
    const NAME: &[u8] = b"qwen3.context_length";
    const TYPE_U32: [u8; 4] = 4_u32.to_le_bytes();
    let mut bytes = std::fs::read(model()).expect("the model can be read");
    let name = bytes.windows(NAME.len()).position(|some| some == NAME);
    let kind = name.expect("its context stands in its file") + NAME.len();
    let value = kind + TYPE_U32.len();
    assert_eq!(bytes[kind..value], TYPE_U32, "a number of 32 bits");
    let place = bytes[value..].first_chunk_mut().expect("its value");
    *place = (16 * u32::from_le_bytes(*place)).to_le_bytes();
    let file = scratch().join("long.gguf");
    // Test programs run at once: none may see a part of it.
    let new = file.with_extension(std::process::id().to_string());
    std::fs::write(&new, bytes).expect("it can be written");
    std::fs::rename(&new, &file).expect("it can be renamed");
    file
}

/// The demo model's adapter that answers a sum by one more than it is.
pub fn adapter() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny/plus-one.gguf")
}

/// What the official clients run with: `python/bin/python` and `node/node_modules`, from
/// `tests/clients/setup.sh`, which `make test` runs.
pub fn clients() -> PathBuf {
    let folder = std::env::var_os("CORRAL_CLIENTS").map(PathBuf::from);
    folder.filter(|folder| folder.is_dir()).expect(
        "run `make test`, or set CORRAL_CLIENTS to the folder that tests/clients/setup.sh prints",
    )
}

/// A folder in the target directory for what tests write.
pub fn scratch() -> PathBuf {
    let folder = target_folder().join("tests-scratch");
    std::fs::create_dir_all(&folder).expect("the target directory can be written");
    folder
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

/// The folder of the profile that the tests were built in: theirs is `deps` inside it.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("PROFILE/deps/TEST");
    folder.to_owned()
}

fn target_folder() -> PathBuf {
    let profile = profile_folder();
    profile.parent().expect("TARGET/PROFILE").to_owned()
}
