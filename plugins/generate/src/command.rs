//! The command line: writes the text to standard output while it is generated.

use corral_sdk::{Command, Error};

use crate::arguments::{USAGE, parse};
use crate::generation::Generation;

pub async fn run(command: &mut Command) -> Result<(), String> {
    let request = parse(command.arguments().iter().cloned())
        .map_err(|error| format!("generate: {error}\n{}", USAGE.trim_end()))?;
    let failed = |error: Error| format!("generate: {error}");
    let mut generation = Generation::start(&request).await.map_err(failed)?;
    while let Some(chunk) = generation.next().await.map_err(failed)? {
        command.write(&chunk.text).await.map_err(failed)?;
    }
    command.write("\n").await.map_err(failed)?;
    generation.finish().await.map(drop).map_err(failed)
}
