//! Arguments that benches share.

use clap::Args;
use corral_cli::Error;
use corral_cli::args::DeviceArgs;
use std::path::PathBuf;

/// The measured model.
#[derive(Args, Debug)]
pub(crate) struct EngineArgs {
    /// GGUF file
    #[arg(long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Compute with all threads even while others keep the cores busy
    #[arg(long)]
    pub(crate) fixed_threads: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Refuses options for one of several models.
pub(crate) fn check_devices(devices: &DeviceArgs) -> Result<(), Error> {
    match devices.models().first() {
        None => Ok(()),
        Some((option, model)) => Err(Error::usage(format!(
            "{option} names a model, and a bench has only one; remove '{model}='"
        ))),
    }
}

/// Refuses a list that contains a number twice.
pub(crate) fn check_distinct<T: PartialEq>(option: &str, numbers: &[T]) -> Result<(), Error> {
    let is_repeated = |(at, number): (usize, &T)| numbers[..at].contains(number);
    match numbers.iter().enumerate().any(is_repeated) {
        true => Err(Error::usage(format!(
            "{option} names a number twice; give each once"
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Parses the arguments of a bench.
    pub(crate) fn parse<A: Args>(line: &str) -> Result<A, String> {
        let command = A::augment_args(clap::Command::new("bench").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace());
        let args = matches.and_then(|matches| A::from_arg_matches(&matches));
        args.map_err(|error| error.to_string())
    }

    #[test]
    fn options_of_named_models_are_refused() {
        let args: EngineArgs = parse("--model x.gguf --kv-type y=f16").expect("valid arguments");
        let error = check_devices(&args.devices).expect_err("a named model");
        let message = error.message(false);
        assert!(message.contains("remove 'y='"), "{message}");
    }
}
