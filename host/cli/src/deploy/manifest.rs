//! From what the command line names to a manifest and the bytes of its components.

use super::arguments::Deploy;
use crate::Error;
use crate::args::{LinkedArg, find_duplicate};
use bytes::Bytes;
use corral_server::deployments::{Digest, Link, Links, Manifest};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest manifest, in bytes.
const MANIFEST: u64 = 1 << 20;

/// A manifest that names its components by digest.
pub(super) struct Prepared {
    pub(super) manifest: Manifest,
    /// Those that the server may not have yet, each once.
    pub(super) parts: Vec<Upload>,
}

/// A component to be uploaded.
pub(super) struct Upload {
    /// The manifest's field that names it.
    pub(super) field: String,
    pub(super) digest: Digest,
    pub(super) bytes: Bytes,
}

/// Reads what is to be deployed.
pub(super) fn prepare(deploy: &Deploy) -> Result<Prepared, Error> {
    // Files that the command line names lie where that says, those of a manifest beside it.
    let (mut manifest, folder) = if is_component(&deploy.file) {
        (from_arguments(deploy)?, PathBuf::new())
    } else {
        if deploy.name.is_some() || !deploy.routes.is_empty() || !deploy.linked.is_empty() {
            return Err(Error::Usage(
                "--name, --route and --linked are for a component (FILE.wasm); a corral.toml says all \
                 of them itself"
                    .to_owned(),
            ));
        }
        from_file(&deploy.file)?
    };
    let mut parts: Vec<Upload> = Vec::new();
    let component = ("component".to_owned(), &mut manifest.component);
    let links = manifest.links.all_mut();
    let links = links.map(|(field, link)| (format!("links.{field}"), &mut link.component));
    for (field, component) in std::iter::once(component).chain(links) {
        if component.parse::<Digest>().is_ok() {
            continue;
        }
        // As it was given: a manifest holds texts, which not every path is.
        let file = match field.as_str() {
            "component" if is_component(&deploy.file) => deploy.file.clone(),
            _ => folder.join(component.as_str()),
        };
        let bytes = fs::read(&file).map_err(Error::context(format!(
            "the component {} cannot be read; build it, or name another file",
            file.display()
        )))?;
        let digest = Digest::of(&bytes);
        *component = digest.to_string();
        if parts.iter().all(|part| part.digest != digest) {
            parts.push(Upload {
                field,
                digest,
                bytes: bytes.into(),
            });
        }
    }
    Ok(Prepared { manifest, parts })
}

/// Whether `corral deploy` is given a component, and not a manifest.
pub(super) fn is_component(file: &Path) -> bool {
    file.extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("wasm"))
}

/// A manifest with what the command line says, and nothing else.
fn from_arguments(deploy: &Deploy) -> Result<Manifest, Error> {
    let stem = deploy.file.file_stem().map(|stem| stem.to_string_lossy());
    let name = match &deploy.name {
        Some(name) => name.clone(),
        None => stem.unwrap_or_default().replace('_', "-").to_lowercase(),
    };
    if deploy.routes.is_empty() {
        return Err(Error::Usage(format!(
            "there is no route; say where it answers: --route /{name}, or write a corral.toml"
        )));
    }
    if let Some(link) = find_duplicate(&deploy.linked) {
        let told = format!("--linked names {link} twice; remove one of them");
        return Err(Error::Usage(told));
    }
    let mut links = Links::default();
    for LinkedArg { sampler, file } in &deploy.linked {
        let link = Link {
            component: file.to_string_lossy().into_owned(),
            inherit: false,
        };
        match sampler {
            Some(name) => {
                links.sampling.insert(name.clone(), link);
            }
            None => links.templating = Some(link),
        }
    }
    let json = serde_json::json!({
        "name": name,
        "component": deploy.file.to_string_lossy(),
        "routes": deploy.routes,
        "links": links,
    });
    let manifest: Manifest =
        serde_json::from_value(json).map_err(|error| Error::Usage(error.to_string()))?;
    manifest.check()?;
    Ok(manifest)
}

/// A manifest, and the folder that it lies in.
fn from_file(path: &Path) -> Result<(Manifest, PathBuf), Error> {
    let path = match path.is_dir() {
        true => path.join("corral.toml"),
        false => path.to_owned(),
    };
    let read = || {
        let mut text = String::new();
        File::open(&path)?
            .take(MANIFEST)
            .read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = read().map_err(Error::context(format!(
        "the manifest {} cannot be read; name a corral.toml or a component: \
         corral deploy FILE.wasm --route /ROUTE",
        path.display()
    )))?;
    let manifest = Manifest::from_toml(&text)
        .map_err(|error| Error::Failed(format!("{}: {error}", path.display()).into()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok((manifest, folder.to_owned()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use clap::Parser;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        deploy: Deploy,
    }

    #[test]
    fn a_component_is_read_whose_path_is_no_text() {
        let folder = std::env::temp_dir().join(format!("corral-path-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("ours");
        let file = folder.join(OsStr::from_bytes(b"\xff.wasm"));
        fs::write(&file, b"it").expect("ours");
        let words = ["deploy", "--name", "a", "--route", "/a"].map(OsStr::new);
        let line = Line::parse_from(words.into_iter().chain([file.as_os_str()]));
        let prepared = prepare(&line.deploy);
        fs::remove_dir_all(&folder).expect("ours");
        let Ok(prepared) = prepared else {
            panic!("it is refused");
        };
        assert_eq!(prepared.manifest.component, Digest::of(b"it").to_string());
        assert_eq!(prepared.parts[0].bytes, "it");
    }
}
