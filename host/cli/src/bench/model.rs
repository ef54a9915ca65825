//! `corral bench model`: a model to measure with where none can be fetched.
//!
//! Its weights are random, so it says nothing sensible, but it is as large and as slow as a real one of
//! its shape, and it reads text as words and parts of words. It is made once: the file says how.

use crate::arguments::{ModelBench, ModelQuant, ModelShape};
use crate::complaint::Complaint;
use crate::house;
use corral_random_model::{Quant, Qwen3, Recipe, Stage};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::time::{Duration, Instant};

/// What the weights follow from, so that everyone measures with the same file.
const SEED: u64 = 1;

/// Makes the model, unless it is there.
pub(super) fn write(arguments: &ModelBench) -> Result<(), Complaint> {
    let out = &arguments.out;
    let recipe = recipe(arguments);
    if !arguments.force {
        if recipe.made(out) {
            tell(arguments, None);
            return Ok(());
        }
        // A link that leads nowhere is something too.
        if out.symlink_metadata().is_ok() {
            return Err(Complaint::Failed(
                format!(
                    "{} is there and something else than is asked for; name another file, or put this one in \
                     its place with --force",
                    out.display()
                )
                .into(),
            ));
        }
    }
    let began = Instant::now();
    let bar = bar();
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
    let runtime = house::tokio_runtime(1)?;
    let made = runtime.block_on(async {
        tokio::select! {
            made = tokio::task::spawn_blocking(move || recipe.write(&path, watch)) => Some(made),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    bar.finish_and_clear();
    let Some(made) = made else {
        // llama.cpp can't be stopped: it goes with the process, and what it writes goes before.
        runtime.shutdown_background();
        for file in Recipe::beside(out) {
            let _ = std::fs::remove_file(file);
        }
        return Err(Complaint::Failed(
            format!("stopped; {} was not made", out.display()).into(),
        ));
    };
    made??;
    tell(arguments, Some(began.elapsed()));
    Ok(())
}

/// Says what is there, and how long it took unless it was there already.
fn tell(arguments: &ModelBench, took: Option<Duration>) {
    let out = &arguments.out;
    let bytes = out.metadata().map_or(0, |about| about.len());
    if arguments.json {
        let name = out.file_name().map(|name| name.to_string_lossy());
        println!(
            "{}",
            json!({
                "bench": "model", "model": name, "file": out, "bytes": bytes,
                "made_in_s": took.map(|took| took.as_secs_f64()),
            })
        );
        return;
    }
    let out = out.display();
    match took {
        None => println!("{out} is there already; --force makes it anew"),
        Some(took) => println!(
            "{out}: {} MB in {:.1} s",
            bytes / 1_000_000,
            took.as_secs_f64()
        ),
    }
}

fn recipe(arguments: &ModelBench) -> Recipe {
    let (name, shape, tokens) = match arguments.shape {
        ModelShape::Qwen3_0_6b => ("qwen3-0.6b", Qwen3::qwen3_0_6b(), 151_936),
        ModelShape::Tiny => ("tiny", Qwen3::tiny(), 4096),
        ModelShape::Wide => ("wide", Qwen3::tiny(), 151_936),
    };
    Recipe {
        name,
        shape,
        tokens,
        quant: match arguments.quant {
            ModelQuant::F16 => Quant::F16,
            ModelQuant::Q8_0 => Quant::Q8_0,
            ModelQuant::Q6K => Quant::Q6K,
            ModelQuant::Q5Km => Quant::Q5Km,
            ModelQuant::Q4Km => Quant::Q4Km,
            ModelQuant::Q4_0 => Quant::Q4_0,
        },
        seed: SEED,
    }
}

/// A bar on a terminal; elsewhere nothing is seen of it.
fn bar() -> ProgressBar {
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

    fn made(out: &Path, quant: ModelQuant, force: bool) -> Result<(), Complaint> {
        write(&ModelBench {
            shape: ModelShape::Tiny,
            quant,
            force,
            json: false,
            out: out.to_owned(),
        })
    }

    /// A path in the temporary folder, and what lies there goes in the end.
    struct Place(PathBuf);

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_model_is_made_once_and_put_in_place_of_another_only_by_force() {
        let name = format!("corral-bench-model-{}.gguf", std::process::id());
        let place = Place(std::env::temp_dir().join(name));
        let out = &place.0;
        made(out, ModelQuant::Q8_0, false).unwrap();
        let bytes = std::fs::read(out).unwrap();
        let first = out.metadata().unwrap().modified().unwrap();
        made(out, ModelQuant::Q8_0, false).unwrap();
        assert_eq!(out.metadata().unwrap().modified().unwrap(), first);
        let refused = made(out, ModelQuant::Q4Km, false).unwrap_err();
        assert!(refused.text(false).contains("--force"));
        assert!(std::fs::read(out).unwrap() == bytes);
        made(out, ModelQuant::Q4Km, true).unwrap();
        assert!(std::fs::read(out).unwrap() != bytes);
        std::fs::write(out, "notes").unwrap();
        assert!(made(out, ModelQuant::Q4Km, false).is_err());
        assert_eq!(std::fs::read_to_string(out).unwrap(), "notes");
    }
}
