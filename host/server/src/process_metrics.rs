//! The metrics that Prometheus's client libraries export for every process, from `/proc`.
//!
//! Values that the system does not report are left out.

use crate::clock::now;
use crate::prometheus::MetricFamilies;
use corral_engine::{MetricKind, heap_usage};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::sync::LazyLock;

/// Seconds since 1970 at the first use.
static START: LazyLock<f64> = LazyLock::new(|| now().as_secs_f64());

/// Records the time as the start of the process.
pub(crate) fn record_start() {
    LazyLock::force(&START);
}

/// Milliseconds since 1970 at the start of the process.
pub(crate) fn started_milliseconds() -> u64 {
    (*START * 1e3) as u64
}

/// Resident memory of the process.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = field(&status, "VmRSS:")?.strip_suffix("kB")?.trim_end();
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

/// Writes the metrics of this process.
pub(crate) fn write(families: &mut MetricFamilies) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kibibytes = |name| Some(field(&status, name)?.strip_suffix("kB")?.trim_end());
    let bytes = |name| Some(kibibytes(name)?.parse::<f64>().ok()? * 1024.0);
    let heap = heap_usage();
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    for (name, help, kind, value) in [
        (
            "corral_heap_allocated_bytes",
            "Allocated blocks of the C library's heap, which Rust and llama.cpp use. A leak raises it, fragmentation doesn't.",
            MetricKind::Gauge,
            heap.map(|heap| heap.allocated as f64),
        ),
        (
            "corral_heap_free_bytes",
            "Free blocks of this heap. Whole free pages may have been returned to the system already.",
            MetricKind::Gauge,
            heap.map(|heap| heap.free as f64),
        ),
        (
            "process_cpu_seconds_total",
            "CPU time of the process, in user and system mode.",
            MetricKind::Counter,
            Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9),
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory of the process.",
            MetricKind::Gauge,
            bytes("VmRSS:"),
        ),
        (
            "process_virtual_memory_bytes",
            "Address space of the process; plugins reserve much of it without using it.",
            MetricKind::Gauge,
            bytes("VmSize:"),
        ),
        (
            "process_threads",
            "Threads of the process.",
            MetricKind::Gauge,
            field(&status, "Threads:").and_then(|threads| threads.parse().ok()),
        ),
        (
            "process_open_fds",
            "Open file descriptors.",
            MetricKind::Gauge,
            // One of them reads the directory.
            std::fs::read_dir("/proc/self/fd")
                .ok()
                .map(|open| open.count().saturating_sub(1) as f64),
        ),
        (
            "process_max_fds",
            "Most open file descriptors that the process may have.",
            MetricKind::Gauge,
            getrlimit(Resource::Nofile)
                .current
                .map(|limit| limit as f64),
        ),
        (
            "process_start_time_seconds",
            "Start of the process, in seconds since 1970.",
            MetricKind::Gauge,
            Some(*START),
        ),
    ] {
        if let Some(value) = value {
            families.sample(name, help, kind, &[], value);
        }
    }
}

/// The value of a line of `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_reports_every_metric() {
        let mut families = MetricFamilies::default();
        write(&mut families);
        let text = families.text();
        let value = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.expect(name).parse::<f64>().expect(name)
        };
        assert!((1e6..1e12).contains(&value("process_resident_memory_bytes")));
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!((1e4..1e12).contains(&value("corral_heap_allocated_bytes")));
        assert!(value("corral_heap_free_bytes") >= 0.0);
        assert!(value("process_cpu_seconds_total") > 0.0);
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_open_fds") >= 1.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_start_time_seconds") > 1.6e9);
    }
}
