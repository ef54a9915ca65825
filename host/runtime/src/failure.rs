//! Why a call did not do what it should have, in words for the client and a code for programs.

use crate::meter::Meter;
use crate::settings::Limits;
use crate::tally::Bound;
use std::time::Duration;
use wasmtime::Trap;
use wasmtime_wasi::I32Exit;

/// What `wasmtime_wasi_http` says of a 0.2 handler that returned without a response.
const OUTPARAM_UNUSED: &str = "guest never invoked `response-outparam::set`";

/// Why a plugin's call failed. What it says is fit for the client: causes inside the host, and
/// backtraces, go to the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Too many calls are running and waiting.
    #[error("too many requests are waiting for this {}; try again in {} s", scarce(*bound), retry_after.as_secs_f32().ceil())]
    Busy {
        /// What there is too little of: the plugin's places, room to wait for them, or the pool's.
        bound: Bound,
        /// A guess of when there is room.
        retry_after: Duration,
    },
    /// The request's body is larger than the deployment allows.
    #[error("the request's body has {bytes} bytes, but this plugin takes {limit}; send less")]
    TooLarge {
        /// Bytes announced.
        bytes: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// The plugin's answer is larger than the deployment allows.
    #[error(
        "the plugin's answer is larger than its {limit} bytes; ask for less, or raise its response limit"
    )]
    ResponseTooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// The wall clock ran out.
    #[error("the plugin was still running at the end of its {} s; ask for less, or raise its time limit", time.as_millis() as f64 / 1e3)]
    Deadline {
        /// The time that the call had.
        time: Duration,
    },
    /// The processor time ran out.
    #[error("the plugin computed for longer than its {} s; it may be looping, else raise its cpu limit", cpu.as_secs_f32())]
    CpuTime {
        /// The processor time that the call had.
        cpu: Duration,
    },
    /// The plugin asked for more memory than it may have, and gave up.
    #[error("the plugin needs more memory than its {} MiB; ask for less, or raise its memory limit", limit >> 20)]
    Memory {
        /// Bytes that it may have.
        limit: usize,
    },
    /// The plugin trapped.
    #[error("the plugin crashed: {message}; its log says more")]
    Trapped {
        /// The reason, as WebAssembly names it.
        message: String,
    },
    /// The plugin ended without a response.
    #[error("the plugin ended without giving a response; this is a mistake in the plugin")]
    NoResponse,
    /// The plugin answered with an error instead of a response.
    #[error("the plugin gave up with the error {message}")]
    GaveUp {
        /// The `wasi:http` error code.
        message: String,
    },
    /// The plugin does not have the role in which it was called.
    #[error("the plugin exports no {interface}, so it cannot be called that way")]
    Role {
        /// The interface that it would have to export.
        interface: &'static str,
    },
    /// The host made a mistake or is shutting down.
    #[error("the host stopped this call; its log says why")]
    Internal,
}

impl Failure {
    /// Every code there is, in no order that means anything.
    pub const CODES: [&'static str; 11] = [
        "busy",
        "request-too-large",
        "deadline",
        "cpu-time",
        "memory",
        "trapped",
        "no-response",
        "gave-up",
        "wrong-role",
        "internal",
        "response-too-large",
    ];

    /// The HTTP status that fits.
    pub fn status(&self) -> u16 {
        match self {
            Self::Busy { .. } => 503,
            Self::TooLarge { .. } => 413,
            Self::Deadline { .. } | Self::CpuTime { .. } => 504,
            Self::Memory { .. }
            | Self::Trapped { .. }
            | Self::NoResponse
            | Self::GaveUp { .. }
            | Self::Role { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Internal => 500,
        }
    }

    /// A name for programs that never changes.
    pub fn code(&self) -> &'static str {
        Self::CODES[self.index()]
    }

    /// When trying again makes sense, if it does.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Which bound on the call it is that was met, if it is one.
    pub fn bound(&self) -> Option<Bound> {
        match self {
            Self::Busy { bound, .. } => Some(*bound),
            Self::TooLarge { .. } => Some(Bound::Request),
            Self::ResponseTooLarge { .. } => Some(Bound::Response),
            Self::Deadline { .. } => Some(Bound::Time),
            Self::CpuTime { .. } => Some(Bound::Cpu),
            Self::Memory { .. } => Some(Bound::Memory),
            Self::Trapped { .. }
            | Self::NoResponse
            | Self::GaveUp { .. }
            | Self::Role { .. }
            | Self::Internal => None,
        }
    }

    /// Position in [`Self::CODES`].
    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Busy { .. } => 0,
            Self::TooLarge { .. } => 1,
            Self::Deadline { .. } => 2,
            Self::CpuTime { .. } => 3,
            Self::Memory { .. } => 4,
            Self::Trapped { .. } => 5,
            Self::NoResponse => 6,
            Self::GaveUp { .. } => 7,
            Self::Role { .. } => 8,
            Self::Internal => 9,
            Self::ResponseTooLarge { .. } => 10,
        }
    }

    /// Reads what wasmtime reports, and logs what only the operator should see.
    pub(crate) fn from_wasmtime(error: &wasmtime::Error, meter: &Meter, limits: &Limits) -> Self {
        use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
        if let Some(code) = error.downcast_ref::<ErrorCode>() {
            return Self::GaveUp {
                message: gave_up(&format!("{code:?}")),
            };
        }
        if let Some(code) = error.downcast_ref::<wasmtime_wasi_http::Error>() {
            return Self::GaveUp {
                message: gave_up(&code.to_string()),
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
            return Self::Memory {
                limit: limits.memory,
            };
        }
        let message = match error.downcast_ref::<Trap>() {
            Some(trap) => trap
                .to_string()
                .trim_start_matches("wasm trap: ")
                .to_owned(),
            None => "a call to the host could not be done".to_owned(),
        };
        Self::Trapped { message }
    }
}

/// Who has too few places.
fn scarce(bound: Bound) -> &'static str {
    match bound {
        Bound::Pool => "server's plugins",
        _ => "plugin",
    }
}

/// A guest's own words, without what would break a header or a log line.
fn gave_up(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(256)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_own_code_and_an_error_status() {
        let all = [
            Failure::Busy {
                bound: Bound::Queue,
                retry_after: Duration::from_millis(1500),
            },
            Failure::TooLarge { bytes: 2, limit: 1 },
            Failure::Deadline {
                time: Duration::from_secs(1),
            },
            Failure::CpuTime {
                cpu: Duration::from_secs(1),
            },
            Failure::Memory { limit: 1 << 20 },
            Failure::Trapped {
                message: "unreachable".into(),
            },
            Failure::NoResponse,
            Failure::GaveUp {
                message: "x".into(),
            },
            Failure::Role { interface: "x" },
            Failure::Internal,
            Failure::ResponseTooLarge { limit: 1 },
        ];
        for (index, failure) in all.iter().enumerate() {
            assert_eq!(failure.index(), index);
            assert!((400..600).contains(&failure.status()));
        }
        assert_eq!(all[0].code(), "busy");
        assert!(all[0].to_string().ends_with("try again in 2 s"));
        assert_eq!(all[0].retry_after(), Some(Duration::from_millis(1500)));
    }
}
