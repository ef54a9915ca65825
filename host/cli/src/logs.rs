//! Logs go to stderr; how many is up to `RUST_LOG`, else `--verbose`, else the command.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// What `--verbose` shows: our own decisions and llama.cpp's, not every library's.
const VERBOSE: &str = "info,corral=debug,corral_engine=debug,corral_runtime=debug,\
                       corral_server=debug,llama=debug";

/// Starts logging for the process.
pub(crate) fn start(verbose: bool, default: &str) {
    let asked = std::env::var("RUST_LOG")
        .ok()
        .filter(|filter| !filter.is_empty());
    let directives = match &asked {
        Some(filter) => filter.as_str(),
        None if verbose => VERBOSE,
        None => default,
    };
    let filter = EnvFilter::try_new(directives).unwrap_or_else(|error| {
        eprintln!("corral: RUST_LOG is ignored: {error}");
        EnvFilter::new(default)
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
