//! Makes the config and the image manifest of an artifact.

use crate::Error;
use corral_server::deployments::artifact::{
    CONFIG_TYPE, Descriptor, IMAGE_MANIFEST_TYPE, ImageManifest, LAYER_TYPE, MANIFEST_ANNOTATION,
};
use corral_server::deployments::{Digest, Manifest};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use wit_bindgen_core::wit_parser::{PackageId, Resolve};
use wit_component::DecodedWasm;

/// Annotation of a layer with the name of its file, for other tools.
const TITLE: &str = "org.opencontainers.image.title";
/// The first bytes of a component, or of a WIT package as one.
const COMPONENT_MAGIC: &[u8] = b"\0asm\x0d\0\x01\0";

/// A component with the name of its file.
pub(super) struct NamedComponent<'a> {
    pub(super) file: String,
    pub(super) bytes: &'a [u8],
}

/// The config and the image manifest of an artifact with these components, as bytes. The same parts give the same bytes.
pub(super) fn image(
    components: &[NamedComponent<'_>],
    manifest: Option<&Manifest>,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let layers = components.iter().map(|component| Descriptor {
        media_type: LAYER_TYPE.to_owned(),
        digest: Digest::of(component.bytes),
        size: component.bytes.len() as u64,
        annotations: BTreeMap::from([(TITLE.to_owned(), component.file.clone())]),
    });
    let layers = Vec::from_iter(layers);
    let first = components.first();
    let first = first.ok_or_else(|| Error::failed("an artifact has a component"))?;
    let digests = layers.iter().map(|layer| layer.digest.to_string());
    let config = json!({
        // Not the time of the push, which would change the digest.
        "created": "1970-01-01T00:00:00Z",
        "architecture": "wasm",
        "os": "wasip2",
        "layerDigests": Vec::from_iter(digests),
        "component": interfaces(first.bytes),
    });
    let config = serde_json::to_vec(&config)?;
    let mut annotations = BTreeMap::new();
    if let Some(manifest) = manifest {
        annotations.insert(
            MANIFEST_ANNOTATION.to_owned(),
            serde_json::to_string(manifest)?,
        );
    }
    let image = ImageManifest {
        schema_version: 2,
        media_type: Some(IMAGE_MANIFEST_TYPE.to_owned()),
        config: Descriptor {
            media_type: CONFIG_TYPE.to_owned(),
            digest: Digest::of(&config),
            size: config.len() as u64,
            annotations: BTreeMap::new(),
        },
        layers,
        annotations,
    };
    Ok((config, serde_json::to_vec(&image)?))
}

/// Refuses bytes that are no component.
pub(super) fn check_component(bytes: &[u8], file: &str) -> Result<(), Error> {
    match bytes.starts_with(COMPONENT_MAGIC) {
        true => Ok(()),
        false => Err(Error::failed(format!(
            "{file} is no WebAssembly component; build it with 'corral build'"
        ))),
    }
}

/// The interfaces of a component or a WIT package, for catalogs of registries.
fn interfaces(component: &[u8]) -> Value {
    let (imports, exports) = match wit_component::decode(component) {
        Ok(DecodedWasm::Component(resolve, world)) => {
            let world = &resolve.worlds[world];
            let names = |keys: Vec<_>| -> BTreeSet<String> {
                keys.into_iter()
                    .map(|key| resolve.name_world_key(key))
                    .collect()
            };
            let imports = names(world.imports.keys().collect());
            (imports, names(world.exports.keys().collect()))
        }
        Ok(DecodedWasm::WitPackage(resolve, package)) => {
            (BTreeSet::new(), package_names(&resolve, package))
        }
        // The server says what is wrong with it.
        Err(_) => Default::default(),
    };
    json!({"imports": imports, "exports": exports, "target": null})
}

/// The interfaces and worlds of a package.
fn package_names(resolve: &Resolve, package: PackageId) -> BTreeSet<String> {
    let package = &resolve.packages[package];
    let interfaces = package.interfaces.keys();
    let names = interfaces.chain(package.worlds.keys());
    names.map(|name| package.name.interface_id(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_parts_give_same_digest() {
        let bytes = [COMPONENT_MAGIC, b"rest"].concat();
        let component = || NamedComponent {
            file: "a.wasm".to_owned(),
            bytes: &bytes,
        };
        let digest = Digest::of(&bytes);
        let manifest = format!("name = 'a'\ncomponent = '{digest}'\nroutes = ['/a']");
        let manifest = Manifest::from_toml(&manifest).expect("good");
        let make = |manifest| image(&[component()], manifest).expect("it has a component");
        assert_eq!(make(Some(&manifest)), make(Some(&manifest)));
        let (config, bytes) = make(Some(&manifest));
        let read = ImageManifest::read(&bytes).expect("its own");
        assert_eq!(read.config.digest, Digest::of(&config));
        let (layers, own) = read.contents().expect("one of Corral's");
        assert_eq!((layers.len(), own), (1, Some(manifest.clone())));
        let (_, plain) = make(None);
        let plain = ImageManifest::read(&plain).expect("its own");
        assert_eq!(plain.contents().expect("plain").1, None);
        assert!(check_component(b"\0asm\x01\0\0\0", "m.wasm").is_err());
    }
}
