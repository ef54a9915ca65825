//! Bindings of wit-bindgen to the world `handler-sync`, for languages whose compilers make core modules.

use crate::Error;
use std::fmt::Display;
use std::path::Path;
use wit_bindgen_core::wit_parser::{Resolve, WorldId};
use wit_bindgen_core::{Files, WorldGenerator};

const WORLD: &str = "handler-sync";

/// The world in a directory of WIT.
pub(super) fn world(wit: &Path) -> Result<(Resolve, WorldId), Error> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit).map_err(|error| failed(&error))?;
    let world = resolve.select_world(&[package], Some(WORLD));
    let world = world.map_err(|error| failed(&error))?;
    Ok((resolve, world))
}

/// The files that a generator makes for the world in a directory of WIT.
pub(super) fn generate(generator: &mut dyn WorldGenerator, wit: &Path) -> Result<Files, Error> {
    let (mut resolve, world) = world(wit)?;
    let mut files = Files::default();
    let generated = generator.generate(&mut resolve, world, &mut files);
    generated.map_err(|error| failed(&error))?;
    Ok(files)
}

fn failed(error: &dyn Display) -> Error {
    Error::failed(format!("cannot make bindings of the interface: {error:#}"))
}
