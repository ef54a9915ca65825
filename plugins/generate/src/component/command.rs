//! `wasi:cli/run`: the text goes to the standard output as it is made.

use wasip3::cli::types::ErrorCode;
use wasip3::cli::{environment, stdout};
use wasip3::wit_stream;

use super::Generate;
use super::generation::Generation;
use crate::arguments::{USAGE, parse};

impl wasip3::exports::cli::run::Guest for Generate {
    async fn run() -> Result<(), ()> {
        // The first argument is the program's name.
        let arguments = environment::get_arguments().into_iter().skip(1);
        let request = parse(arguments).map_err(|error| eprint!("generate: {error}\n{USAGE}"))?;
        let failed = |problem: crate::problem::Problem| eprintln!("generate: {}", problem.detail);
        let mut generation = Generation::start(&request).await.map_err(failed)?;

        let (mut writer, text) = wit_stream::new();
        let written = stdout::write_via_stream(text);
        let mut closed = false;
        while let Some(piece) = generation.next().await.map_err(failed)? {
            if !writer.write_all(piece.text.into_bytes()).await.is_empty() {
                closed = true; // As under `| head`.
                break;
            }
        }
        writer.write_all(b"\n".to_vec()).await;
        drop(writer);
        match written.await {
            // Not an error of ours, and not worth a word: that reader has what it wanted.
            Ok(()) | Err(ErrorCode::Pipe) => {}
            Err(error) => {
                eprintln!("generate: cannot write the text: {error:?}");
                return Err(());
            }
        }
        if closed {
            return Ok(());
        }
        generation.finish().await.map(drop).map_err(failed)
    }
}
