//! Writes a model with random weights: `write_random_model SHAPE VOCABULARY.gguf OUTPUT.gguf SEED`.

use corral_engine::random_model::{Qwen3, Shape, write_random};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match write(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn write(arguments: &[String]) -> Result<(), String> {
    let [shape, vocabulary, output, seed] = arguments else {
        return Err("usage: write_random_model SHAPE VOCABULARY.gguf OUTPUT.gguf SEED".into());
    };
    let shape = match shape.as_str() {
        "mamba" => Shape::Mamba,
        "hybrid" => Shape::Hybrid,
        "sliding-window" => Shape::SlidingWindow,
        "qwen3" => Shape::Qwen3(Qwen3::tiny()),
        "bert" => Shape::Bert { ranks: false },
        "bert-ranker" => Shape::Bert { ranks: true },
        other => {
            return Err(format!(
                "no shape is called {other}; give mamba, hybrid, sliding-window, qwen3, bert or \
                 bert-ranker"
            ));
        }
    };
    let seed = seed
        .parse()
        .map_err(|_| format!("the seed {seed} is no whole number; give one"))?;
    write_random(&shape, Path::new(vocabulary), Path::new(output), seed)
        .map_err(|error| error.to_string())
}
