//! Logging to stderr. `RUST_LOG` sets the filter, else `--verbose`, else the command.
//!
//! `RUST_LOG` takes levels by target, such as `warn,llama=debug`, and nothing else.

use std::sync::OnceLock;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// The filter of `--verbose`: Corral's own crates and llama.cpp in detail, other libraries at `info`.
const VERBOSE: &str = "info,corral=debug,corral_engine=debug,corral_runtime=debug,\
                       corral_server=debug,llama=debug";

/// The filter in use, and the command's own.
static FILTER: OnceLock<(reload::Handle<Targets, Registry>, String)> = OnceLock::new();

/// Starts logging for the process.
pub fn start(verbose: bool, default: &str) {
    let (filter, handle) = reload::Layer::new(filter(verbose, default));
    // No colors: most logs are read from files.
    let output = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry()
        .with(filter)
        .with(output)
        .init();
    FILTER.get_or_init(|| (handle, default.to_owned()));
}

/// Sets the filter as `--verbose` does, or as its absence.
pub(crate) fn set_verbose(verbose: bool) {
    if let Some((handle, default)) = FILTER.get() {
        // Fails only without a subscriber.
        let _ = handle.reload(filter(verbose, default));
    }
}

fn filter(verbose: bool, default: &str) -> Targets {
    let variable = std::env::var("RUST_LOG").ok();
    let directives = match variable.as_deref().filter(|filter| !filter.is_empty()) {
        Some(filter) => filter,
        None if verbose => VERBOSE,
        None => default,
    };
    directives.parse::<Targets>().unwrap_or_else(|error| {
        eprintln!("corral: RUST_LOG is ignored: {error}; write e.g. RUST_LOG=warn,llama=debug");
        // A test parses every default.
        default.parse().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbose_filter_parses() {
        let filter: Targets = VERBOSE.parse().expect("a valid filter");
        assert!(filter.would_enable("llama", &tracing::Level::DEBUG));
        assert!(!filter.would_enable("hyper", &tracing::Level::DEBUG));
    }
}
