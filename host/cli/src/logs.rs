//! Logging to stderr: one line for each event, as text or JSON.
//!
//! `--log-level` sets the filter, else `RUST_LOG`, else `--verbose`, else the command. A filter is a level, or levels by
//! target such as `warn,llama=debug`. The server's lines pass through a [queue], so that a slow reader of stderr
//! delays no request; other commands write directly.

mod json;
mod otlp;
mod queue;

use clap::{Args, ValueEnum};
use corral_server::Telemetry;
use json::{JsonEvents, JsonFields};
use otlp::OtlpEvents;
use queue::{LogQueue, QueueWriter};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The filter of `--verbose`: Corral's own crates and llama.cpp in detail, other libraries at `info`.
const VERBOSE: &str = "info,corral=debug,llama=debug";
/// The filter of `corral serve`: what Corral does, and warnings of libraries.
pub(crate) const SERVE: &str = "warn,corral=info";
/// How long [`flush`] waits for the reader of stderr.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The queue of this process, if it is a server.
static QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// The filter in use.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Arguments for the log of `corral serve`.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Format of the log on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log_format: LogFormat,
    /// Level, or levels by target, e.g. 'info,corral::access=off' [default: RUST_LOG, else info]
    #[arg(long, value_name = "LEVEL", value_parser = parse_filter)]
    pub(crate) log_level: Option<Targets>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    // One line of text for each event.
    #[default]
    Text,
    // One JSON object for each event.
    Json,
}

/// Starts logging for a command that writes to stderr itself.
pub fn start(verbose: bool, default: &str) {
    let filter = environment_filter(verbose, default);
    init(
        filter,
        LogFormat::Text,
        verbose,
        BoxMakeWriter::new(io::stderr),
        None,
    );
}

/// Starts logging for a server; telemetry gets the same events.
pub(crate) fn start_server(verbose: bool, args: &LogArgs, telemetry: Option<&Arc<Telemetry>>) {
    let filter = server_filter(verbose, args);
    let writer = match LogQueue::start(io::stderr()) {
        Ok(queue) => {
            let queue = Arc::clone(QUEUE.get_or_init(|| queue));
            BoxMakeWriter::new(QueueWriter(queue))
        }
        // Without the thread, each line may block; that is better than no log.
        Err(_) => BoxMakeWriter::new(io::stderr),
    };
    init(filter, args.log_format, verbose, writer, telemetry);
}

/// Starts the log of a process that measures a server with its access log and without: as that of a server, but without
/// the access log until [`set_access_log`] turns it on.
pub fn start_without_access_log(verbose: bool) {
    start_server(verbose, &LogArgs::default(), None);
    set_access_log(false);
}

/// Turns the access log on, with the default filter of a server, or off. Has no effect in a process that does not log as a
/// server.
pub fn set_access_log(is_on: bool) {
    if QUEUE.get().is_none() {
        return;
    }
    let filter = match is_on {
        true => SERVE.to_owned(),
        false => format!("{SERVE},corral::access=off"),
    };
    if let (Some(handle), Ok(filter)) = (FILTER.get(), filter.parse::<Targets>()) {
        // Fails only without a subscriber.
        let _ = handle.reload(filter);
    }
}

/// Replaces the filter of a server by that of these arguments.
pub(crate) fn set_server_filter(verbose: bool, args: &LogArgs) {
    if let Some(filter) = FILTER.get() {
        // Fails only without a subscriber.
        let _ = filter.reload(server_filter(verbose, args));
    }
}

fn server_filter(verbose: bool, args: &LogArgs) -> Targets {
    match &args.log_level {
        Some(filter) => filter.clone(),
        None => environment_filter(verbose, SERVE),
    }
}

/// Lines that the server lost, because the reader of stderr was too slow.
pub(crate) fn lost_lines() -> Arc<AtomicU64> {
    QUEUE.get().map(|queue| queue.lost()).unwrap_or_default()
}

/// Waits until all lines are written, within bounds.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIME);
    }
}

fn init(
    filter: Targets,
    format: LogFormat,
    verbose: bool,
    writer: BoxMakeWriter,
    telemetry: Option<&Arc<Telemetry>>,
) {
    // No colors: most logs are read from files.
    let layer = fmt::layer().with_writer(writer).with_ansi(false);
    let layer = match format {
        LogFormat::Text => layer.with_timer(Clock).with_target(verbose).boxed(),
        LogFormat::Json => layer
            .fmt_fields(JsonFields)
            .event_format(JsonEvents)
            .boxed(),
    };
    let telemetry = telemetry.filter(|telemetry| telemetry.sends_logs());
    let events = telemetry.map(|telemetry| OtlpEvents(Arc::clone(telemetry)));
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .with(events)
        .init();
    FILTER.get_or_init(|| handle);
}

/// The filter of `RUST_LOG`, else of `--verbose`, else of the command.
fn environment_filter(verbose: bool, default: &str) -> Targets {
    let variable = std::env::var("RUST_LOG").ok();
    let directives = match variable.as_deref().filter(|filter| !filter.is_empty()) {
        Some(filter) => filter,
        None if verbose => VERBOSE,
        None => default,
    };
    directives.parse().unwrap_or_else(|error| {
        eprintln!("corral: RUST_LOG is ignored: {error}; write e.g. RUST_LOG=warn,llama=debug");
        // A test parses every default.
        default.parse().unwrap_or_default()
    })
}

/// Parses `--log-level`. A level alone is for Corral, since libraries say little of use.
fn parse_filter(text: &str) -> Result<Targets, String> {
    let directives = match text {
        "info" => SERVE,
        "debug" => VERBOSE,
        "trace" => "info,corral=trace,llama=trace",
        other => other,
    };
    let invalid = |error| {
        format!(
            "{error}; write error, warn, info, debug or trace, or levels by target, e.g. \
             info,corral::access=off"
        )
    };
    // `Targets` takes a word that is no level for a target, with all its levels.
    let words = directives.split(',');
    let unknown = |word: &&str| !word.contains('=') && word.parse::<tracing::Level>().is_err();
    match words.filter(|word| *word != "off").find(unknown) {
        Some(word) => Err(invalid(format!("'{word}' is no level"))),
        None => directives
            .parse::<Targets>()
            .map_err(|error| invalid(error.to_string())),
    }
}

/// The time now, as all lines show it: RFC 3339 in UTC.
fn time_now() -> humantime::Rfc3339Timestamp {
    #[expect(clippy::disallowed_methods, reason = "for people who read it")]
    let now = SystemTime::now();
    humantime::format_rfc3339_millis(now)
}

struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{}", time_now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn default_filters_parse() {
        let filter: Targets = VERBOSE.parse().expect("a valid filter");
        assert!(filter.would_enable("llama", &Level::DEBUG));
        assert!(filter.would_enable("corral_engine::worker", &Level::DEBUG));
        assert!(!filter.would_enable("hyper", &Level::DEBUG));
        let filter: Targets = SERVE.parse().expect("a valid filter");
        assert!(filter.would_enable("corral::access", &Level::INFO));
        assert!(filter.would_enable("corral_server::tls", &Level::INFO));
        assert!(!filter.would_enable("hyper", &Level::INFO));
    }

    #[test]
    fn levels_parse() {
        let enables = |text: &str, target: &str, level: &Level| {
            let filter = parse_filter(text).expect(text);
            filter.would_enable(target, level)
        };
        assert!(!enables("warn", "corral::access", &Level::INFO));
        assert!(enables("info", "corral::access", &Level::INFO));
        assert!(!enables("info", "corral", &Level::DEBUG));
        assert!(enables("debug", "llama", &Level::DEBUG));
        assert!(!enables("off", "corral", &Level::ERROR));
        let without = "info,corral::access=off";
        assert!(!enables(without, "corral::access", &Level::INFO));
        assert!(enables(without, "corral::audit", &Level::INFO));
        for text in ["", "loud", "info,loud", "corral=loud"] {
            let error = parse_filter(text).expect_err(text);
            assert!(error.contains("write error, warn, info"), "{error}");
        }
    }
}
