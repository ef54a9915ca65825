//! From what the command line names to a manifest and its component's bytes.

use super::arguments::Deploy;
use crate::complaint::Complaint;
use bytes::Bytes;
use corral_server::deployments::{Digest, Manifest};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest manifest, in bytes.
const MANIFEST: u64 = 1 << 20;

/// A manifest that names its component by digest, and the component's bytes unless the server has them
/// already.
pub(super) struct Prepared {
    pub(super) manifest: Manifest,
    pub(super) digest: Digest,
    pub(super) component: Option<Bytes>,
}

/// Reads what is to be deployed.
pub(super) fn prepare(deploy: &Deploy) -> Result<Prepared, Complaint> {
    let is_component = deploy
        .file
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("wasm"));
    let (mut manifest, file) = if is_component {
        let manifest = from_arguments(deploy)?;
        (manifest, Some(deploy.file.clone()))
    } else {
        if deploy.name.is_some() || !deploy.routes.is_empty() {
            return Err(Complaint::Usage(
                "--name and --route are for a component (FILE.wasm); a corral.toml says both itself"
                    .to_owned(),
            ));
        }
        from_file(&deploy.file)?
    };
    let Some(file) = file else {
        let digest = manifest.component.parse()?;
        return Ok(Prepared {
            manifest,
            digest,
            component: None,
        });
    };
    let bytes = fs::read(&file).map_err(Complaint::telling(&format!(
        "the component {} cannot be read; build it, or name another file",
        file.display()
    )))?;
    let digest = Digest::of(&bytes);
    manifest.component = digest.to_string();
    Ok(Prepared {
        manifest,
        digest,
        component: Some(bytes.into()),
    })
}

/// A manifest with what the command line says, and nothing else.
fn from_arguments(deploy: &Deploy) -> Result<Manifest, Complaint> {
    let stem = deploy.file.file_stem().map(|stem| stem.to_string_lossy());
    let name = match &deploy.name {
        Some(name) => name.clone(),
        None => stem.unwrap_or_default().replace('_', "-").to_lowercase(),
    };
    if deploy.routes.is_empty() {
        return Err(Complaint::Usage(format!(
            "there is no route; say where it answers: --route /{name}, or write a corral.toml"
        )));
    }
    let json = serde_json::json!({
        "name": name,
        "component": deploy.file.to_string_lossy(),
        "routes": deploy.routes,
    });
    let manifest: Manifest =
        serde_json::from_value(json).map_err(|error| Complaint::Usage(error.to_string()))?;
    manifest.check()?;
    Ok(manifest)
}

/// A manifest, and the file of its component unless it names a digest.
fn from_file(path: &Path) -> Result<(Manifest, Option<PathBuf>), Complaint> {
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
    let text = read().map_err(Complaint::telling(&format!(
        "the manifest {} cannot be read; name a corral.toml or a component: \
         corral deploy FILE.wasm --route /ROUTE",
        path.display()
    )))?;
    let manifest = Manifest::from_toml(&text)
        .map_err(|error| Complaint::Failed(format!("{}: {error}", path.display()).into()))?;
    if manifest.component.parse::<Digest>().is_ok() {
        return Ok((manifest, None));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = folder.join(&manifest.component);
    Ok((manifest, Some(file)))
}
