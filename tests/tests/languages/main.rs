//! Projects of authors in each language: `corral new`, `build`, `watch` and `wit`, and the SDKs.

mod authoring;
mod c;
mod develop;
mod go;
mod javascript;
mod python;
mod wit;
