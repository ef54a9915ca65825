//! The limits that can stop a call.

use strum::VariantArray;

/// A limit that can stop a call. Limits of requests and tokens over time are
/// [`QuotaLimit`](crate::QuotaLimit)s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum CallLimit {
    /// [`Limits::memory`](crate::Limits::memory)
    Memory,
    /// [`Limits::cpu`](crate::Limits::cpu)
    Cpu,
    /// [`Limits::time`](crate::Limits::time)
    Time,
    /// [`Limits::request_bytes`](crate::Limits::request_bytes)
    RequestBytes,
    /// [`Limits::response_bytes`](crate::Limits::response_bytes)
    ResponseBytes,
    /// [`Limits::concurrent`](crate::Limits::concurrent), if no call may wait or the call's time ended in the
    /// queue.
    Concurrent,
    /// [`Limits::waiting_calls`](crate::Limits::waiting_calls)
    Queue,
    /// [`Limits::generation_queue_time`](crate::Limits::generation_queue_time)
    QueueTime,
    /// [`Limits::cells_percent`](crate::Limits::cells_percent)
    Cells,
    /// [`RuntimeConfig::instances`](crate::RuntimeConfig::instances), shared by all deployments.
    Pool,
}

impl CallLimit {
    /// All limits.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Its name in manifests and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory-mib",
            Self::Cpu => "cpu-seconds",
            Self::Time => "time-seconds",
            Self::RequestBytes => "request-kib",
            Self::ResponseBytes => "response-kib",
            Self::Concurrent => "concurrent-requests",
            Self::Queue => "queued-requests",
            Self::QueueTime => "queue-time-seconds",
            Self::Cells => "kv-cells-percent",
            Self::Pool => "pool",
        }
    }
}
