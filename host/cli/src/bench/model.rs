//! `corral bench model`: a model to measure with where none can be fetched.
//!
//! Its weights are random, so it says nothing sensible, but it is as large and as slow as a real one of
//! its shape.

use crate::arguments::{ModelBench, ModelShape};
use crate::complaint::Complaint;
use corral_engine::random_model::{Qwen3, Shape, write_random};
use std::time::Instant;

/// What the weights follow from, so that everyone measures with the same file.
const SEED: u64 = 1;

/// Writes the model, unless the file is there.
pub(super) fn write(arguments: &ModelBench) -> Result<(), Complaint> {
    let out = &arguments.out;
    if out.exists() && !arguments.force {
        println!("{} is there already; --force writes it anew", out.display());
        return Ok(());
    }
    let shape = match arguments.shape {
        ModelShape::Qwen3_0_6b => Qwen3::qwen3_0_6b(),
        ModelShape::Tiny => Qwen3::tiny(),
    };
    let began = Instant::now();
    write_random(&Shape::Qwen3(shape), &arguments.vocabulary, out, SEED)?;
    println!(
        "{}: {} MB in {:.1} s",
        out.display(),
        out.metadata().map_or(0, |about| about.len()) / 1_000_000,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
