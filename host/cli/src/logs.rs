//! Logs go to stderr; how many is up to `RUST_LOG`, else `--verbose`, else the command.
//!
//! `RUST_LOG` is read as levels by target, such as `warn,llama=debug`, and no more than that.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

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
    let filter = directives.parse::<Targets>().unwrap_or_else(|error| {
        eprintln!("corral: RUST_LOG is ignored: {error}; write e.g. RUST_LOG=warn,llama=debug");
        // Ours, and tested.
        default.parse().unwrap_or_default()
    });
    // Without colours: logs are mostly read from files.
    let output = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry()
        .with(output)
        .with(filter)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbose_can_be_read() {
        let filter: Targets = VERBOSE.parse().expect("it can");
        assert!(filter.would_enable("llama", &tracing::Level::DEBUG));
        assert!(!filter.would_enable("hyper", &tracing::Level::DEBUG));
    }
}
