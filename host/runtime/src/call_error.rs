//! Why a call failed: a text for the client, a stable code for programs, and an HTTP status.
//!
//! The texts never show causes inside the host; those go to the log.

use crate::counters::CallLimit;
use crate::cpu_meter::Meter;
use crate::random::RandomDenied;
use std::time::Duration;
use strum::{IntoStaticStr, VariantNames};
use wasmtime::{PoolConcurrencyLimitError, Trap};
use wasmtime_wasi::I32Exit;

/// `Retry-After` of a call that finds wasmtime's pool used up.
const POOL_RETRY: Duration = Duration::from_secs(1);
/// What `wasmtime_wasi_http` reports for a 0.2 handler that returned without a response.
const OUTPARAM_UNUSED: &str = "guest never invoked `response-outparam::set`";

/// Why a plugin's call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum CallError {
    /// The queue is full, or the call's time ended in the queue.
    #[error("too many requests are waiting for {}; try again in {} s", busy_part(*limit), retry_after.as_secs_f32().ceil())]
    Busy {
        /// The limit that keeps the call from running.
        limit: CallLimit,
        /// Estimated wait.
        retry_after: Duration,
    },
    /// The response body is too large.
    #[error(
        "the plugin's response is larger than its limit of {limit} bytes; ask for less, or raise the response limit"
    )]
    ResponseTooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// The call ran out of wall time.
    #[error("the plugin exceeded its time limit of {} s; ask for less, or raise the limit", time.as_millis() as f64 / 1e3)]
    Deadline {
        /// Time the call had.
        time: Duration,
    },
    /// The call ran out of CPU time.
    #[error("the plugin exceeded its CPU limit of {} s; check it for an endless loop, or raise the limit", cpu.as_secs_f32())]
    CpuTime {
        /// CPU time the call had.
        cpu: Duration,
    },
    /// The plugin ran out of memory and trapped.
    #[error("the plugin needs more memory than its {} MiB; ask for less, or raise its memory limit", limit >> 20)]
    Memory {
        /// Bytes allowed.
        limit: usize,
    },
    /// The plugin trapped.
    #[error("the plugin crashed: {message}; its log says more")]
    Trapped {
        /// WebAssembly's name of the reason.
        message: String,
    },
    /// The plugin returned without a response.
    #[error("the plugin returned without a response; this is a bug in the plugin")]
    NoResponse,
    /// The plugin returned an error instead of a response.
    #[error("the plugin failed with the error {message}")]
    ReturnedError {
        /// The `wasi:http` error code, or what was wrong with the response.
        message: String,
    },
    /// The plugin lacks the export that the call needs.
    #[error(
        "the plugin does not export {interface}, only {}; call it through that, or build it with the missing export",
        exports.join(" and ")
    )]
    MissingExport {
        /// The interface that the call needs.
        interface: &'static str,
        /// The interfaces through which it can be called.
        exports: Vec<&'static str>,
    },
    /// An operator canceled the request.
    #[error("an operator of the server canceled this request")]
    #[strum(serialize = "cancelled")]
    Canceled,
    /// The host failed or is shutting down.
    #[error("the host stopped this call; its log says why")]
    Internal,
}

impl CallError {
    /// All codes.
    pub const CODES: &'static [&'static str] = Self::VARIANTS;

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            // There is nothing to call. Clients do not repeat a request after it.
            Self::MissingExport { .. } => 404,
            Self::Busy { .. } => 503,
            Self::Deadline { .. } | Self::CpuTime { .. } => 504,
            Self::Memory { .. }
            | Self::Trapped { .. }
            | Self::NoResponse
            | Self::ReturnedError { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Internal => 500,
            // Clients do not repeat a request after it, unlike 503.
            Self::Canceled => 499,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        self.into()
    }

    /// How long to wait before a retry, if a retry makes sense.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// The limit that stopped the call, if one did.
    pub fn limit(&self) -> Option<CallLimit> {
        match self {
            Self::Busy { limit, .. } => Some(*limit),
            Self::ResponseTooLarge { .. } => Some(CallLimit::ResponseBytes),
            Self::Deadline { .. } => Some(CallLimit::Time),
            Self::CpuTime { .. } => Some(CallLimit::Cpu),
            Self::Memory { .. } => Some(CallLimit::Memory),
            Self::Trapped { .. }
            | Self::NoResponse
            | Self::ReturnedError { .. }
            | Self::MissingExport { .. }
            | Self::Canceled
            | Self::Internal => None,
        }
    }

    /// Index into [`Self::CODES`].
    pub(crate) fn code_index(&self) -> usize {
        let codes = Self::CODES.iter();
        codes.take_while(|code| **code != self.code()).count()
    }

    /// Converts an error of wasmtime, and logs what only the operator may see. `memory` is the call's limit.
    pub(crate) fn from_wasmtime(error: &wasmtime::Error, meter: &Meter, memory: usize) -> Self {
        use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
        if let Some(code) = error.downcast_ref::<ErrorCode>() {
            return Self::ReturnedError {
                message: printable(&format!("{code:?}")),
            };
        }
        if let Some(code) = error.downcast_ref::<wasmtime_wasi_http::Error>() {
            return Self::ReturnedError {
                message: printable(&code.to_string()),
            };
        }
        if error.is::<PoolConcurrencyLimitError>() {
            return Self::Busy {
                limit: CallLimit::Pool,
                retry_after: POOL_RETRY,
            };
        }
        tracing::warn!(error = format!("{error:?}"), "the plugin failed");
        if let Some(exit) = error.downcast_ref::<I32Exit>() {
            return Self::Trapped {
                message: format!("it called exit({})", exit.0),
            };
        }
        if error.to_string().contains(OUTPARAM_UNUSED) {
            return Self::NoResponse;
        }
        if meter.memory_refused() {
            return Self::Memory { limit: memory };
        }
        if let Some(denied) = error.downcast_ref::<RandomDenied>() {
            return Self::Trapped {
                message: denied.to_string(),
            };
        }
        let message = match error.downcast_ref::<Trap>() {
            Some(trap) => trap
                .to_string()
                .trim_start_matches("wasm trap: ")
                .to_owned(),
            None => "a host call failed".to_owned(),
        };
        Self::Trapped { message }
    }
}

/// What the waiting requests wait for.
fn busy_part(limit: CallLimit) -> &'static str {
    match limit {
        CallLimit::Pool => "a plugin instance of this server",
        _ => "this plugin",
    }
}

/// A guest's text without characters that would break a header or a log line.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(256)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_own_code() {
        let all = [
            CallError::Busy {
                limit: CallLimit::Queue,
                retry_after: Duration::from_millis(1500),
            },
            CallError::ResponseTooLarge { limit: 1 },
            CallError::Deadline {
                time: Duration::from_secs(1),
            },
            CallError::CpuTime {
                cpu: Duration::from_secs(1),
            },
            CallError::Memory { limit: 1 << 20 },
            CallError::Trapped {
                message: "unreachable".into(),
            },
            CallError::NoResponse,
            CallError::ReturnedError {
                message: "x".into(),
            },
            CallError::MissingExport {
                interface: "x",
                exports: vec!["y", "z"],
            },
            CallError::Canceled,
            CallError::Internal,
        ];
        assert_eq!(all.len(), CallError::CODES.len());
        for (index, error) in all.iter().enumerate() {
            assert_eq!(error.code_index(), index);
            assert!((400..600).contains(&error.status()));
        }
        assert_eq!(
            all[8].to_string(),
            "the plugin does not export x, only y and z; call it through that, or build it with the missing export"
        );
        assert_eq!(all[0].code(), "busy");
        assert!(all[0].to_string().ends_with("try again in 2 s"));
        assert_eq!(all[0].retry_after(), Some(Duration::from_millis(1500)));
    }
}
