//! `corral-bench model`: writes a model with random weights.
//!
//! The model is as large and as slow as a real one of its shape, and its vocabulary has words and parts of words. Its
//! output means nothing. The file states how it was made, so that a second run keeps it.

use crate::args::{ModelArgs, Quantization, Shape};
use corral_cli::{Error, startup};
use corral_random_model::{Quant, Qwen3, Recipe, Stage};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::time::{Duration, Instant};

/// Seed of the weights: the file is the same everywhere.
const SEED: u64 = 1;

/// Writes the model unless the file already is it.
pub(crate) fn write(args: &ModelArgs) -> Result<(), Error> {
    let out = &args.out;
    let recipe = recipe(args);
    if !args.force {
        if recipe.matches(out) {
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
    let start = Instant::now();
    let bar = progress_bar();
    let watched = bar.clone();
    let watch = move |stage, done, all| {
        if watched.length() != Some(all) {
            watched.set_length(all);
            watched.reset_eta();
            watched.set_message(match stage {
                Stage::Writing => "writing weights",
                Stage::Quantizing => "quantizing",
            });
        }
        watched.set_position(done);
    };
    let path = out.clone();
    let runtime = startup::tokio_runtime(1)?;
    let written = runtime.block_on(async {
        tokio::select! {
            written = tokio::task::spawn_blocking(move || recipe.write(&path, watch)) => Some(written),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    bar.finish_and_clear();
    let Some(written) = written else {
        // llama.cpp cannot be interrupted: it ends with the process. Remove its files now.
        runtime.shutdown_background();
        for file in Recipe::temporary_files(out) {
            let _ = std::fs::remove_file(file);
        }
        return Err(Error::failed(format!(
            "interrupted; {} was not written",
            out.display()
        )));
    };
    written??;
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

fn recipe(args: &ModelArgs) -> Recipe {
    let (name, sizes, tokens) = match args.shape {
        Shape::Qwen3_0_6b => ("qwen3-0.6b", Qwen3::qwen3_0_6b(), 151_936),
        Shape::Tiny => ("tiny", Qwen3::tiny(), 4096),
        Shape::Wide => ("wide", Qwen3::tiny(), 151_936),
    };
    Recipe {
        name,
        sizes,
        tokens,
        quant: match args.quant {
            Quantization::F16 => Quant::F16,
            Quantization::Q8_0 => Quant::Q8_0,
            Quantization::Q6K => Quant::Q6K,
            Quantization::Q5Km => Quant::Q5Km,
            Quantization::Q4Km => Quant::Q4Km,
            Quantization::Q4_0 => Quant::Q4_0,
        },
        seed: SEED,
    }
}

/// A progress bar, visible on terminals only.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {percent}% {eta}") {
        bar.set_style(style);
    }
    bar.set_message("making a vocabulary");
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn write_tiny(out: &Path, quant: Quantization, force: bool) -> Result<(), Error> {
        write(&ModelArgs {
            shape: Shape::Tiny,
            quant,
            force,
            json: false,
            out: out.to_owned(),
        })
    }

    /// A file in the temporary directory, removed on drop.
    struct TempFile(PathBuf);

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn only_force_replaces_another_file() {
        let name = format!("corral-bench-model-{}.gguf", std::process::id());
        let file = TempFile(std::env::temp_dir().join(name));
        let out = &file.0;
        write_tiny(out, Quantization::Q8_0, false).unwrap();
        let bytes = std::fs::read(out).unwrap();
        let first = out.metadata().unwrap().modified().unwrap();
        write_tiny(out, Quantization::Q8_0, false).unwrap();
        assert_eq!(out.metadata().unwrap().modified().unwrap(), first);
        let refused = write_tiny(out, Quantization::Q4Km, false).unwrap_err();
        assert!(refused.message(false).contains("--force"));
        assert!(std::fs::read(out).unwrap() == bytes);
        write_tiny(out, Quantization::Q4Km, true).unwrap();
        assert!(std::fs::read(out).unwrap() != bytes);
        std::fs::write(out, "notes").unwrap();
        assert!(write_tiny(out, Quantization::Q4Km, false).is_err());
        assert_eq!(std::fs::read_to_string(out).unwrap(), "notes");
    }
}
