//! `corral pull`.

use super::fetch::{FetchedArtifact, fetch};
use super::push::file_name;
use super::{ArtifactArgs, default_name};
use crate::Error;
use crate::terminal::{note, print};
use clap::Args;
use corral_server::deployments::artifact::ArtifactReference;
use corral_server::deployments::{Digest, Manifest};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args, Debug)]
pub struct PullArgs {
    /// Artifact: oci://HOST/REPO:TAG or oci://HOST/REPO@sha256:DIGEST
    #[arg(value_name = "REFERENCE")]
    reference: ArtifactReference,
    /// Directory to write; files of the same names are replaced [default: the deployment's name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    artifact: ArtifactArgs,
}

/// Writes an artifact's corral.toml and components, and prints its reference with the digest.
pub(crate) fn pull(args: &PullArgs) -> Result<ExitCode, Error> {
    let fetched = fetch(&args.reference, &args.artifact)?;
    let source = fetched.source.clone();
    let (name, files) = files(fetched)?;
    let dir = args.out.clone().unwrap_or_else(|| PathBuf::from(name));
    let write = |file: &str, bytes: &[u8]| {
        let path = dir.join(file);
        fs::write(&path, bytes).map_err(|error| cannot_write(&path, error))
    };
    fs::create_dir_all(&dir).map_err(|error| cannot_write(&dir, error))?;
    for (file, bytes) in &files {
        write(file, bytes)?;
    }
    let names = files.iter().map(|(file, _)| file.as_str());
    note(format!(
        "wrote {} to {}",
        Vec::from_iter(names).join(", "),
        dir.display()
    ));
    print(&format!("{source}\n"))
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::context(format!("'{}' cannot be written: {error}", path.display()))(error)
}

/// A name and the bytes.
type NamedFile = (String, Vec<u8>);

/// The name of the deployment, and its files.
fn files(fetched: FetchedArtifact) -> Result<(String, Vec<NamedFile>), Error> {
    let bytes_of = |digest: &str| {
        let mut components = fetched.components.iter();
        let found = components.find(|(known, _)| known.to_string() == digest);
        found.map(|(_, bytes)| bytes.to_vec()).unwrap_or_default()
    };
    let Some(mut manifest) = fetched.manifest else {
        let name = default_name(&fetched.source);
        let digest = fetched.components.first().map(|(digest, _)| digest);
        let digest = digest.map(Digest::to_string).unwrap_or_default();
        let file = (format!("{name}.wasm"), bytes_of(&digest));
        return Ok((name, vec![file]));
    };
    let of = manifest.clone();
    let mut files = Vec::new();
    for (field, component) in manifest.components_mut() {
        let file = file_name(&of, &field);
        files.push((file.clone(), bytes_of(component)));
        *component = file;
    }
    files.push(("corral.toml".to_owned(), to_toml(&manifest)?.into_bytes()));
    Ok((manifest.name.to_string(), files))
}

fn to_toml(manifest: &Manifest) -> Result<String, Error> {
    toml::to_string_pretty(manifest).map_err(Error::context(
        "the artifact's manifest cannot be written as TOML",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn pulled_files_make_the_same_deployment() {
        let [handler, template, sampler] = [&b"h"[..], b"t", b"s"].map(Digest::of);
        let text = format!(
            "name = 'a'\ncomponent = '{handler}'\nroutes = ['/a']\nlatency = 'stream'\n\
             [linked]\ntemplating = {{ component = '{template}', inherit = true }}\n\
             [linked.sampling]\nmin-p = '{sampler}'\n[limits]\ncpu-seconds = 0.5\n\
             [[grants.outbound]]\nurl = 'https://a.example'\nmethods = ['GET']\n\
             [configuration]\nGREETING = \"a 'b'\\n\"\n"
        );
        let manifest = Manifest::from_toml(&text).expect("good");
        let parts = [&b"h"[..], b"t", b"s"];
        let fetched = FetchedArtifact {
            source: "oci://r.example/x/y_z:1".parse().expect("good"),
            image: Vec::new(),
            signatures: Vec::new(),
            manifest: Some(manifest.clone()),
            components: parts
                .map(|bytes| (Digest::of(bytes), Bytes::from_static(bytes)))
                .to_vec(),
        };
        let (name, files) = super::files(fetched).expect("files");
        assert_eq!(name, "a");
        let file = |name: &str| {
            let found = files.iter().find(|(file, _)| file == name);
            found.expect(name).1.clone()
        };
        assert_eq!(file("a.wasm"), b"h");
        assert_eq!(file("linked.templating.wasm"), b"t");
        assert_eq!(file("linked.sampling.min-p.wasm"), b"s");
        let text = String::from_utf8(file("corral.toml")).expect("text");
        let mut read = Manifest::from_toml(&text).expect("its own");
        read.component.clone_from(&manifest.component);
        for ((_, ours), (_, theirs)) in read.linked.all_mut().zip(manifest.linked.all()) {
            ours.component.clone_from(&theirs.component);
        }
        assert_eq!(read, manifest);
    }
}
