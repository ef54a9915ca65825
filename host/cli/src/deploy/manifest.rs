//! Turns arguments or a corral.toml into a manifest and the components to upload.

use super::args::ManifestArgs;
use crate::args::{LinkedArg, check_linked};
use crate::{Error, text_file};
use bytes::Bytes;
use corral_server::deployments::{Digest, LinkedComponent, LinkedComponents, Manifest};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// A manifest with digests of components, and the components.
pub(crate) struct PreparedManifest {
    pub(crate) manifest: Manifest,
    /// Each component once.
    pub(crate) uploads: Vec<Upload>,
}

pub(crate) struct Upload {
    /// The field of the manifest that names it.
    pub(crate) field: String,
    pub(crate) digest: Digest,
    pub(crate) bytes: Bytes,
}

/// Takes the place of the component that a manifest names.
pub(crate) struct Replacement {
    pub(crate) component: PathBuf,
    /// Further entries of its configuration.
    pub(crate) configuration: BTreeMap<String, String>,
}

/// Reads the manifest and its components.
pub(crate) fn prepare(
    args: &ManifestArgs,
    replacement: Option<&Replacement>,
) -> Result<PreparedManifest, Error> {
    // Paths of arguments are relative to the working directory, those of a manifest to its directory.
    let (mut manifest, dir) = if is_component(&args.file) {
        (from_arguments(args)?, PathBuf::new())
    } else {
        let has_links = !args.linked.is_empty() || !args.middleware.is_empty();
        if args.name.is_some() || !args.routes.is_empty() || has_links {
            return Err(Error::usage(
                "--name, --route, --linked and --middleware are for a component (FILE.wasm); put them into the corral.toml",
            ));
        }
        from_file(&args.file)?
    };
    if let Some(replacement) = replacement {
        manifest
            .configuration
            .extend(replacement.configuration.clone());
    }
    for (name, value) in &args.configuration {
        manifest.configuration.insert(name.clone(), value.clone());
    }
    manifest
        .check()
        .map_err(|error| Error::failed(error.to_string()))?;
    let mut uploads: Vec<Upload> = Vec::new();
    for (field, component) in manifest.components_mut() {
        let replaced = replacement.filter(|_| field == "component");
        if component.parse::<Digest>().is_ok() && replaced.is_none() {
            continue;
        }
        // The path itself, since a manifest contains only text and not every path is text.
        let file = match (replaced, field.as_str()) {
            (Some(replaced), _) => replaced.component.clone(),
            (None, "component") if is_component(&args.file) => args.file.clone(),
            _ => dir.join(component.as_str()),
        };
        let bytes = fs::read(&file).map_err(|error| {
            let hint = match dir.join("Cargo.toml").is_file() && !is_component(&args.file) {
                true if dir.as_os_str().is_empty() => "build it: corral build".to_owned(),
                true => format!("build it: corral build {}", dir.display()),
                false => "build it, or name another file".to_owned(),
            };
            let file = file.display();
            Error::context(format!("cannot read the component {file}; {hint}"))(error)
        })?;
        let digest = Digest::of(&bytes);
        *component = digest.to_string();
        if uploads.iter().all(|upload| upload.digest != digest) {
            uploads.push(Upload {
                field,
                digest,
                bytes: bytes.into(),
            });
        }
    }
    Ok(PreparedManifest { manifest, uploads })
}

/// Whether the argument is a component, not a manifest.
pub(crate) fn is_component(file: &Path) -> bool {
    file.extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("wasm"))
}

/// A manifest from arguments alone.
fn from_arguments(args: &ManifestArgs) -> Result<Manifest, Error> {
    let stem = args.file.file_stem().map(|stem| stem.to_string_lossy());
    let name = stem.unwrap_or_default().replace('_', "-").to_lowercase();
    plain_manifest(args, &name, &args.file.to_string_lossy())
}

/// The manifest of a component, whose name and routes the arguments give.
pub(crate) fn plain_manifest(
    args: &ManifestArgs,
    default_name: &str,
    component: &str,
) -> Result<Manifest, Error> {
    let name = args.name.as_deref().unwrap_or(default_name);
    if args.routes.is_empty() {
        return Err(Error::usage(format!(
            "there is no route; give --route /{name}, or write a corral.toml"
        )));
    }
    check_linked(&args.linked)?;
    let bare = |file: &PathBuf| LinkedComponent {
        component: file.to_string_lossy().into_owned(),
        inherit: false,
    };
    let mut linked = LinkedComponents {
        middleware: args.middleware.iter().map(bare).collect(),
        ..LinkedComponents::default()
    };
    for LinkedArg { sampler, file } in &args.linked {
        let component = bare(file);
        match sampler {
            Some(name) => {
                linked.sampling.insert(name.clone(), component);
            }
            None => linked.templating = Some(component),
        }
    }
    let json = serde_json::json!({
        "name": name,
        "component": component,
        "routes": args.routes,
        "linked": linked,
    });
    let manifest: Manifest =
        serde_json::from_value(json).map_err(|error| Error::Usage(error.to_string()))?;
    manifest.check()?;
    Ok(manifest)
}

/// A manifest and its directory.
fn from_file(path: &Path) -> Result<(Manifest, PathBuf), Error> {
    let path = match path.is_dir() {
        true => path.join("corral.toml"),
        false => path.to_owned(),
    };
    let text = text_file::read(&path, MAX_MANIFEST_BYTES);
    let text = text.map_err(Error::context(format!(
        "cannot read the manifest {}; name a corral.toml or a component: \
         corral deploy FILE.wasm --route /ROUTE",
        path.display()
    )))?;
    let manifest = Manifest::from_toml(&text)
        .map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
    let dir = path.parent().unwrap_or(Path::new(""));
    Ok((manifest, dir.to_owned()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use clap::Parser;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        manifest: ManifestArgs,
    }

    #[test]
    fn component_path_need_not_be_text() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(OsStr::from_bytes(b"\xff.wasm"));
        fs::write(&file, b"it").expect("own directory");
        let words = ["deploy", "--name", "a", "--route", "/a"].map(OsStr::new);
        let line = CommandLine::parse_from(words.into_iter().chain([file.as_os_str()]));
        let prepared = prepare(&line.manifest, None)
            .map_err(|error| error.message(true))
            .expect("valid");
        assert_eq!(prepared.manifest.component, Digest::of(b"it").to_string());
        assert_eq!(prepared.uploads[0].bytes, "it");
    }
}
