//! `corral wit`: the written directory resolves, has the named worlds, and with `--sync` nothing that is async. A C++ compiler
//! takes the bindings of wit-bindgen; `tests/clients/setup.sh` installs it.

use corral_tests::authoring::{root, succeeds};
use corral_tests::{Corral, RELIABLE_SUMS, artifacts, run_command, scratch_dir};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wit_bindgen_core::{Files, WorldGenerator, wit_parser as generator_parser};
use wit_component::ComponentEncoder;
use wit_parser::{
    PackageId, Resolve, SourceMap, Type, TypeDefKind, TypeId, UnresolvedPackageGroup, WorldId,
    WorldItem, WorldKey,
};

/// Worlds that every form has.
const SYNC_WORLDS: [&str; 4] = ["handler-sync", "command-sync", "templating", "sampling"];
const ASYNC_WORLDS: [&str; 4] = ["handler", "message-handler", "command", "middleware"];

/// Runs `corral wit` and returns the written directory.
fn write(dir: &Path, more: &[&str]) -> PathBuf {
    let out = dir.join("wit");
    let mut command = Command::new(artifacts::binary());
    command.arg("wit").arg("--out").arg(&out).args(more);
    let ended = run_command(&mut command, Duration::from_secs(60));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for name in SYNC_WORLDS {
        assert!(ended.stdout.contains(name), "{ended:?}");
    }
    out
}

/// The WIT files of a directory.
fn wit_files(dir: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(dir).expect("written");
    let files = files.map(|file| file.expect("readable").path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "wit"));
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).expect("readable");
        (file.display().to_string(), text)
    };
    files.map(read).collect()
}

fn parse(files: impl IntoIterator<Item = (String, String)>) -> UnresolvedPackageGroup {
    let mut source = SourceMap::default();
    for (name, text) in files {
        source.push_str(&name, text);
    }
    source
        .parse()
        .map_err(|(_, error)| error)
        .expect("valid WIT")
}

/// Reads a directory as tools do: its files are one package, and each file of `deps` is another one.
fn resolve(dir: &Path) -> (Resolve, PackageId) {
    let dependencies = wit_files(&dir.join("deps")).into_iter();
    let dependencies = dependencies.map(|file| parse([file])).collect();
    let mut resolve = Resolve::default();
    let package = resolve.push_groups(parse(wit_files(dir)), dependencies);
    (resolve, package.expect("the package resolves"))
}

fn world(resolve: &Resolve, package: PackageId, name: &str) -> Option<WorldId> {
    resolve.packages[package].worlds.get(name).copied()
}

/// Names of the interfaces that a world imports and exports.
fn interfaces(resolve: &Resolve, world: WorldId) -> (BTreeSet<String>, BTreeSet<String>) {
    let names = |items: &mut dyn Iterator<Item = &WorldKey>| {
        items.map(|key| resolve.name_world_key(key)).collect()
    };
    let world = &resolve.worlds[world];
    (
        names(&mut world.imports.keys()),
        names(&mut world.exports.keys()),
    )
}

/// The functions and types of a world's interfaces that are async.
fn async_items(resolve: &Resolve, world: WorldId) -> Vec<String> {
    let world = &resolve.worlds[world];
    let mut found = Vec::new();
    for item in world.imports.values().chain(world.exports.values()) {
        let WorldItem::Interface { id, .. } = item else {
            panic!("a world has interfaces only");
        };
        for (name, function) in &resolve.interfaces[*id].functions {
            let types = function.params.iter().map(|parameter| parameter.ty);
            let mut types = types.chain(function.result);
            if function.kind.is_async() || types.any(|ty| is_async(resolve, ty)) {
                found.push(name.clone());
            }
        }
        for (name, &ty) in &resolve.interfaces[*id].types {
            if is_async_definition(resolve, ty) {
                found.push(name.clone());
            }
        }
    }
    found
}

fn is_async(resolve: &Resolve, ty: Type) -> bool {
    matches!(ty, Type::Id(id) if is_async_definition(resolve, id))
}

/// Whether a type contains a stream or a future.
fn is_async_definition(resolve: &Resolve, id: TypeId) -> bool {
    let is_async = |ty: &Type| is_async(resolve, *ty);
    match &resolve.types[id].kind {
        TypeDefKind::Stream(_) | TypeDefKind::Future(_) => true,
        TypeDefKind::Record(record) => record.fields.iter().any(|field| is_async(&field.ty)),
        TypeDefKind::Tuple(tuple) => tuple.types.iter().any(is_async),
        TypeDefKind::Variant(variant) => {
            let mut types = variant.cases.iter().filter_map(|case| case.ty.as_ref());
            types.any(is_async)
        }
        TypeDefKind::Result(result) => result.ok.iter().chain(&result.err).any(is_async),
        TypeDefKind::Option(ty) | TypeDefKind::List(ty) | TypeDefKind::Type(ty) => is_async(ty),
        TypeDefKind::FixedLengthList(ty, _) => is_async(ty),
        TypeDefKind::Map(key, value) => is_async(key) || is_async(value),
        TypeDefKind::Resource
        | TypeDefKind::Handle(_)
        | TypeDefKind::Flags(_)
        | TypeDefKind::Enum(_)
        | TypeDefKind::Unknown => false,
    }
}

/// Worlds, an import of each, if it has one, and an export.
const WORLDS: &str = "
handler corral:inference/inference-async@0.1.0 wasi:http/handler@0.3.0
message-handler wasmcloud:messaging/consumer@0.3.0 wasmcloud:messaging/handler@0.3.0
handler-sync corral:inference/inference-sync@0.1.0 wasi:http/incoming-handler@0.2.12
command corral:inference/inference-async@0.1.0 wasi:cli/run@0.3.0
command-sync corral:inference/inference-sync@0.1.0 wasi:cli/run@0.2.12
middleware wasi:http/handler@0.3.0 wasi:http/handler@0.3.0
templating - corral:plugin/templating@0.1.0
sampling - corral:plugin/sampling@0.1.0
";

#[test]
fn every_named_world_exists() {
    let (resolve, package) = resolve(&write(&scratch_dir(), &[]));
    let name = resolve.packages[package].name.to_string();
    assert_eq!(name, "corral:inference@0.1.0");
    for line in WORLDS.trim().lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [name, import, export] = words[..] else {
            panic!("three words: {line}");
        };
        let world = world(&resolve, package, name).unwrap_or_else(|| panic!("no world {name}"));
        let (imports, exports) = interfaces(&resolve, world);
        let has_import = import == "-" || imports.contains(import);
        assert!(has_import, "{name}: {imports:?}");
        assert!(exports.contains(export), "{name}: {exports:?}");
    }
}

#[test]
fn sync_worlds_have_nothing_async() {
    let dir = scratch_dir();
    let (all, package) = resolve(&write(&dir, &[]));
    let found = |name: &str| {
        let world = world(&all, package, name).expect("a world");
        async_items(&all, world)
    };
    for name in SYNC_WORLDS {
        assert_eq!(found(name), Vec::<String>::new(), "{name}");
    }
    // The check finds what is async elsewhere.
    let handler = found("handler");
    for name in ["next", "generate", "frame", "handle"] {
        assert!(
            handler.iter().any(|found| found == name),
            "{name}: {handler:?}"
        );
    }

    // In the same directory: files of the other form go away.
    let out = write(&dir, &["--sync"]);
    let (sync, package) = resolve(&out);
    for name in SYNC_WORLDS {
        assert!(world(&sync, package, name).is_some(), "{name}");
    }
    for name in ASYNC_WORLDS {
        assert!(world(&sync, package, name).is_none(), "{name}");
    }
    for (file, text) in wit_files(&out) {
        for word in ["async", "stream", "future"] {
            assert!(!text.contains(word), "{word} in {file}");
        }
    }
}

/// Writes a generator's bindings of the world `handler-sync` into a new directory.
fn bindings(generator: &mut dyn WorldGenerator) -> PathBuf {
    let dir = scratch_dir();
    let mut resolve = generator_parser::Resolve::default();
    let (package, _) = resolve
        .push_path(write(&dir, &["--sync"]))
        .expect("the package resolves");
    let world = resolve.select_world(&[package], Some("handler-sync"));
    let mut files = Files::default();
    let generated = generator.generate(&mut resolve, world.expect("a world"), &mut files);
    generated.expect("bindings");
    for (name, bytes) in files.iter() {
        std::fs::write(dir.join(name), bytes).expect("written");
    }
    dir
}

/// The bindings for C++, compiled with a handler by Debian's clang. Plugins in other languages are built elsewhere.
#[test]
fn cpp_bindings_make_a_handler() {
    let dir = bindings(&mut *wit_bindgen_cpp::Opts::default().build(None));
    let mut compiler = Command::new("clang++-19");
    compiler
        .current_dir(&dir)
        .args(["--target=wasm32-wasi", "--sysroot=/usr"])
        .args(["-mexec-model=reactor", "-std=c++23", "-fno-exceptions"])
        .args([
            "-Os",
            "-Wl,--strip-all",
            "-Wl,--stack-first",
            "-Wl,-z,stack-size=262144",
        ])
        .arg("-I.")
        .arg(root().join("tests/tests/languages/wit/handler.cpp"))
        .args(["handler_sync.cpp", "handler_sync_component_type.o"])
        .args(["-o", "core.wasm"]);
    succeeds(compiler);
    let module = std::fs::read(dir.join("core.wasm")).expect("built");
    let component = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| {
            encoder.adapter(
                WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
                WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
            )
        })
        .and_then(|encoder| encoder.encode())
        .expect("a component");
    let file = dir.join("cpp.wasm");
    std::fs::write(&file, component).expect("written");

    let server = Corral::start_with(&["--plugin", &format!("/cpp={}", file.display())]);
    for sum in RELIABLE_SUMS {
        let answer = server.post("/cpp", sum.question());
        assert_eq!((answer.status, answer.body), (200, sum.answer()));
    }
    // Nothing to continue, which the host refuses as `invalid`.
    assert_eq!(server.post("/cpp", "").status, 400);
}

#[test]
fn unwritable_directory_is_an_error() {
    let file = scratch_dir().join("file");
    std::fs::write(&file, "").expect("written");
    let mut command = Command::new(artifacts::binary());
    command.arg("wit").arg("--out").arg(&file);
    let ended = run_command(&mut command, Duration::from_secs(60));
    ended.check_error(1, &["cannot be written"]);
}
