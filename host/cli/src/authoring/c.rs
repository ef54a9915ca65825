//! Projects in C: `plugin.c`, all C files beside it, and the SDK's copy in the project, compiled by clang or zig.
//!
//! This program makes the bindings and the component; their world is `corral:inference/handler-sync`.

use super::bindings;
use super::build::BuiltComponent;
use super::component_encoding::from_core_module;
use super::process::{find_in_path, query, run_to_file};
use super::project::component_file;
use super::toolchain::Tool;
use super::wit::{cache_dir, sync_interface_dir};
use crate::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use wit_bindgen_core::Files;

/// The file that tells a project in C, usually with the handler.
const SOURCE: &str = "plugin.c";
/// In the project's directory.
const SDK: &str = "corral-sdk";
const DEBIAN_PACKAGES: &str = "clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32";
/// Versions of clang, the latest first.
const CLANGS: std::ops::RangeInclusive<u32> = 16..=40;
/// zig, and its name in the package of PyPI.
const ZIGS: [&str; 2] = ["zig", "python-zig"];
/// Bytes of a stack. A large one would count as memory of each request.
const STACK: &str = "-Wl,-z,stack-size=262144";

/// A compiler for WebAssembly with a standard library.
#[derive(Debug, PartialEq, Eq)]
enum Compiler {
    /// Debian's.
    Clang(PathBuf),
    /// Of any system.
    Zig(PathBuf),
}

/// A project with a `plugin.c`.
#[derive(Debug)]
pub(super) struct CProject {
    /// Absolute.
    pub(super) dir: PathBuf,
    compiler: Compiler,
}

impl CProject {
    /// Whether the directory has such a project.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(SOURCE).is_file()
    }

    pub(super) fn open(dir: PathBuf) -> Result<Self, Error> {
        let compiler = Compiler::find()
            .ok_or_else(|| Error::failed(format!("cannot find a C compiler; {}", hint())))?;
        match dir.join(SDK).join("corral.h").is_file() {
            true => Ok(Self { dir, compiler }),
            false => Err(Error::failed(format!(
                "there is no {SDK}/corral.h in {}; copy the SDK there, as 'corral new NAME --lang c' does",
                dir.display()
            ))),
        }
    }

    pub(super) async fn build(&self) -> Result<Vec<BuiltComponent>, Error> {
        let file = component_file(&self.dir)?;
        let bindings = bindings_dir()?;
        let mut command = self.compiler.command();
        command
            .current_dir(&self.dir)
            .args([
                "-mexec-model=reactor",
                "-std=c11",
                "-Os",
                "-Wall",
                "-Wextra",
            ])
            // The names of functions stay, for messages of traps.
            .args([STACK, "-Wl,--strip-debug", "-I", SDK, "-I"])
            .arg(&bindings)
            .args(sources(&self.dir, "")?)
            .args(sources(&self.dir.join(SDK), SDK)?)
            .arg(bindings.join("handler_sync.c"))
            .arg(bindings.join("handler_sync_component_type.o"))
            .args(["-lm", "-o"]);
        let failure = "the build failed; the compiler shows why above";
        let module = run_to_file(&mut command, &file, failure).await?;
        Ok(vec![BuiltComponent::write(
            file,
            &from_core_module(&module)?,
        )?])
    }
}

impl Compiler {
    fn find() -> Option<Self> {
        let clangs = CLANGS.rev().map(|version| format!("clang-{version}"));
        let mut clangs = clangs
            .chain(["clang".to_owned()])
            .filter_map(|name| find_in_path(&name));
        let clang = clangs.find(|clang| is_complete(clang)).map(Compiler::Clang);
        let zig = || ZIGS.into_iter().find_map(find_in_path);
        clang.or_else(|| zig().map(Compiler::Zig))
    }

    fn command(&self) -> Command {
        match self {
            Compiler::Clang(program) => {
                let mut command = Command::new(program);
                command.args(["--target=wasm32-wasi", "--sysroot=/usr"]);
                // Before all data, so that an overflow traps. zig has no such option.
                command.arg("-Wl,--stack-first");
                command
            }
            Compiler::Zig(program) => {
                let mut command = Command::new(program);
                command.args(["cc", "-target", "wasm32-wasi"]);
                command
            }
        }
    }
}

/// Whether a clang finds its linker, its builtins and Debian's C library.
fn is_complete(clang: &Path) -> bool {
    let path_of = |question: &str| {
        let mut command = Command::new(clang);
        command.args(["--target=wasm32-wasi", "--sysroot=/usr", question]);
        query(&mut command).map(|path| PathBuf::from(path.trim()))
    };
    let exists =
        |path: Option<PathBuf>| path.is_some_and(|path| path.is_absolute() && path.exists());
    exists(path_of("-print-libgcc-file-name"))
        && exists(path_of("-print-prog-name=wasm-ld"))
        && Path::new("/usr/lib/wasm32-wasi/libc.a").exists()
}

fn hint() -> String {
    format!(
        "on Debian 'apt-get install {DEBIAN_PACKAGES}', elsewhere put zig into PATH, for example by 'pip install ziglang'"
    )
}

/// The C files of a directory in alphabetical order, with `name` in place of it.
fn sources(dir: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(dir)?
        .flatten()
        .map(|entry| Path::new(name).join(entry.file_name()));
    let mut files: Vec<_> = entries
        .filter(|file| file.extension().is_some_and(|ending| ending == "c"))
        .collect();
    files.sort();
    Ok(files)
}

/// The directory of the bindings in the user's cache.
fn bindings_dir() -> Result<PathBuf, Error> {
    let files = generate(&sync_interface_dir()?)?;
    let source: Vec<u8> = files.iter().flat_map(|(_, bytes)| bytes).copied().collect();
    cache_dir("c", &source, files.iter())
}

fn generate(wit: &Path) -> Result<Files, Error> {
    let options = wit_bindgen_c::Opts {
        autodrop_borrows: wit_bindgen_c::Enabled::Yes,
        ..Default::default()
    };
    bindings::generate(&mut *options.build(), wit)
}

/// The compiler, for `corral doctor`.
pub(super) fn tool() -> Tool {
    let found = Compiler::find().map(|compiler| match compiler {
        Compiler::Clang(program) => format!("{} with wasi-libc", program.display()),
        Compiler::Zig(program) => program.display().to_string(),
    });
    Tool {
        name: "C",
        found,
        hint: hint(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authoring::wit::sync_files;

    #[test]
    fn bindings_have_what_the_sdk_includes() {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, text) in sync_files() {
            crate::authoring::new::write(&dir.path().join(path), text).expect("written");
        }
        let files = generate(dir.path()).map_err(|error| error.message(true));
        let files = files.expect("bindings");
        let names: Vec<_> = files.iter().map(|(name, _)| name).collect();
        for name in [
            "handler_sync.c",
            "handler_sync.h",
            "handler_sync_component_type.o",
        ] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        // Names without versions: of each package of WASI there is one.
        let mut header = files.iter().filter(|(name, _)| name.ends_with(".h"));
        let header = String::from_utf8_lossy(header.next().expect("a header").1);
        assert!(header.contains("exports_wasi_http_incoming_handler_own_incoming_request_t"));
    }

    #[test]
    fn sources_are_sorted_c_files() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["b.c", "a.c", "a.h", "c.cpp"] {
            fs::write(dir.path().join(name), "").expect("written");
        }
        let found = sources(dir.path(), "x").map_err(|error| error.message(true));
        let expected = ["x/a.c", "x/b.c"].map(PathBuf::from);
        assert_eq!(found.expect("readable"), expected);
    }
}
