//! `corral-bench model`: writes a model with random weights, or pads a model.
//!
//! The model is as large and as slow as a real one of its shape, and its vocabulary has words and parts of words. Its
//! output means nothing. The file states how it was made, so that a second run keeps it.

use clap::{Args, ValueEnum};
use corral_cli::Error;
use corral_random_model::{PaddedModel, Quant, Qwen3, RandomModel};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Seed of the weights: the file is the same everywhere.
const SEED: u64 = 1;

#[derive(Args, Debug)]
pub(crate) struct ModelArgs {
    /// Layers and their sizes: those of Qwen3-0.6B; two small ones; or these with 151,936 tokens
    #[arg(long, value_enum, default_value_t = Shape::Qwen3_0_6b)]
    shape: Shape,
    /// Pad this model, in place of random weights: the same answers, but slow as a larger model
    #[arg(long, value_name = "FILE", conflicts_with = "shape")]
    pad: Option<PathBuf>,
    /// Layers of the padded model
    #[arg(long, value_name = "N", default_value_t = 80, requires = "pad",
          value_parser = clap::value_parser!(u32).range(1..=500))]
    layers: u32,
    /// Length of its feed-forward layers
    #[arg(long, value_name = "N", default_value_t = 4096, requires = "pad",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    feed_forward: u32,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Output file; kept if it is the requested model already
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    // 28 layers of width 1024, 151,936 tokens.
    #[value(name = "qwen3-0.6b")]
    Qwen3_0_6b,
    // Two layers of width 64, 4096 tokens.
    Tiny,
    // Two layers of width 64, 151,936 tokens: short steps with long rows of logits.
    Wide,
}

/// Writes the model unless the file already is it.
pub(crate) fn write(args: &ModelArgs) -> Result<(), Error> {
    let out = &args.out;
    let random = random_model(args.shape);
    let padded = args.pad.clone().map(|source| PaddedModel {
        source,
        layers: args.layers,
        feed_forward: args.feed_forward,
        seed: SEED,
    });
    if !args.force {
        let matches = match &padded {
            Some(padded) => padded.matches(out),
            None => random.matches(out),
        };
        if matches {
            report(args, None);
            return Ok(());
        }
        // A dangling link counts as a file too.
        if out.symlink_metadata().is_ok() {
            return Err(Error::failed(format!(
                "{} is another file; name a different one, or replace it with --force",
                out.display()
            )));
        }
    }
    eprintln!(
        "writing {}, which takes minutes for a large model",
        out.display()
    );
    let start = Instant::now();
    match &padded {
        Some(padded) => padded.write(out)?,
        None => random.write(out)?,
    }
    report(args, Some(start.elapsed()));
    Ok(())
}

/// Prints the file, its size, and the time if it was written now.
fn report(args: &ModelArgs, time: Option<Duration>) {
    let out = &args.out;
    let bytes = out.metadata().map_or(0, |metadata| metadata.len());
    if args.json {
        let name = out.file_name().map(|name| name.to_string_lossy());
        let report = json!({
            "bench": "model",
            "model": name,
            "file": out,
            "bytes": bytes,
            "made_in_s": time.map(|time| time.as_secs_f64()),
        });
        println!("{report}");
        return;
    }
    let out = out.display();
    match time {
        None => println!("{out} exists already; --force writes it again"),
        Some(time) => println!(
            "{out}: {} MB in {:.1} s",
            bytes / 1_000_000,
            time.as_secs_f64()
        ),
    }
}

fn random_model(shape: Shape) -> RandomModel {
    let (name, sizes, tokens) = match shape {
        Shape::Qwen3_0_6b => ("qwen3-0.6b", Qwen3::qwen3_0_6b(), 151_936),
        Shape::Tiny => ("tiny", Qwen3::tiny(), 4096),
        Shape::Wide => ("wide", Qwen3::tiny(), 151_936),
    };
    RandomModel {
        name,
        sizes,
        tokens,
        quant: Quant::Q4Km,
        seed: SEED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_force_replaces_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("model.gguf");
        let write_tiny = |force| {
            write(&ModelArgs {
                shape: Shape::Tiny,
                pad: None,
                layers: 80,
                feed_forward: 4096,
                force,
                json: false,
                out: out.clone(),
            })
        };
        write_tiny(false).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        let first = out.metadata().unwrap().modified().unwrap();
        write_tiny(false).unwrap();
        assert_eq!(out.metadata().unwrap().modified().unwrap(), first);
        std::fs::write(&out, "notes").unwrap();
        let refused = write_tiny(false).unwrap_err();
        assert!(refused.message(false).contains("--force"));
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "notes");
        write_tiny(true).unwrap();
        assert!(std::fs::read(&out).unwrap() == bytes);
    }
}
