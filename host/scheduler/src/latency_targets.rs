//! Latency targets of a request: the gap between its tokens, and the time of its first token.
//!
//! Prompts and decoding requests share the steps, so one target is met at the expense of the other:
//! [`prefill_slowdown`](crate::prefill_slowdown).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The targets of a request. Gaps are multiples of the time that a step takes without prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    pub(crate) gap: f64,
    pub(crate) max_gap: f64,
    pub(crate) first_token: Duration,
}

/// Invalid targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyError {
    /// A text that is neither a name nor three numbers.
    Unknown,
    /// A gap that leaves prompts no time, or so large that it bounds nothing.
    Gap,
    /// The largest gap is below the usual one.
    MaxGap,
    /// A first token at once, or after more than an hour.
    FirstToken,
}

impl Latency {
    /// The least gap: prompts get about a fifth of the time where steps scatter little.
    pub const MIN_GAP: f64 = 1.5;
    /// The largest gap.
    pub const MAX_GAP: f64 = 1000.0;
    /// The latest target for the first token.
    pub const MAX_FIRST_TOKEN: Duration = Duration::from_secs(3600);
    /// Tokens come evenly, however long prompts wait.
    pub const STREAM: Self = Self::of(2.0, 2.0, 2_000);
    /// Tokens come evenly, and less so while prompts wait too long.
    pub const BALANCED: Self = Self::of(2.0, 4.0, 2_000);
    /// Prompts fill the steps.
    pub const THROUGHPUT: Self = Self::of(16.0, 16.0, 60_000);

    const fn of(gap: f64, max_gap: f64, milliseconds: u64) -> Self {
        Self {
            gap,
            max_gap,
            first_token: Duration::from_millis(milliseconds),
        }
    }

    /// Checks targets: the usual and the largest gap, in decode steps, and the time of the first token after the
    /// arrival.
    ///
    /// # Errors
    ///
    /// If the numbers contradict each other or are out of range.
    pub fn new(gap: f64, max_gap: f64, first_token: Duration) -> Result<Self, LatencyError> {
        if !(Self::MIN_GAP..=Self::MAX_GAP).contains(&gap) || !(..=Self::MAX_GAP).contains(&max_gap)
        {
            return Err(LatencyError::Gap);
        }
        if max_gap < gap {
            return Err(LatencyError::MaxGap);
        }
        if first_token.is_zero() || first_token > Self::MAX_FIRST_TOKEN {
            return Err(LatencyError::FirstToken);
        }
        Ok(Self {
            gap,
            max_gap,
            first_token,
        })
    }

    /// The same gaps with an earlier target for the first token, of at least a millisecond.
    #[must_use]
    pub fn with_first_token(self, time: Duration) -> Self {
        let time = time.max(Duration::from_millis(1));
        Self {
            first_token: self.first_token.min(time),
            ..self
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::BALANCED
    }
}

impl FromStr for Latency {
    type Err = LatencyError;

    /// A name, or three numbers with commas: the gap, the largest gap, and milliseconds until the first token.
    fn from_str(text: &str) -> Result<Self, LatencyError> {
        match text {
            "stream" => return Ok(Self::STREAM),
            "balanced" => return Ok(Self::BALANCED),
            "throughput" => return Ok(Self::THROUGHPUT),
            _ => {}
        }
        let numbers = text.split(',').map(str::trim).collect::<Vec<_>>();
        let [gap, max_gap, milliseconds] = numbers[..] else {
            return Err(LatencyError::Unknown);
        };
        let gap_of = |text: &str| text.parse().map_err(|_| LatencyError::Unknown);
        let milliseconds = milliseconds.parse().map_err(|_| LatencyError::Unknown)?;
        Self::new(
            gap_of(gap)?,
            gap_of(max_gap)?,
            Duration::from_millis(milliseconds),
        )
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::STREAM => "stream",
            Self::BALANCED => "balanced",
            Self::THROUGHPUT => "throughput",
            Self {
                gap,
                max_gap,
                first_token,
            } => return write!(formatter, "{gap},{max_gap},{}", first_token.as_millis()),
        };
        formatter.write_str(name)
    }
}

impl fmt::Display for LatencyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unknown => {
                "expected 'stream', 'balanced', 'throughput', or three numbers: the gap and the largest gap in \
                 decode steps, and milliseconds until the first token, for example 2,4,2000"
            }
            Self::Gap => "a gap must be from 1.5 to 1000 decode steps",
            Self::MaxGap => "the largest gap is below the gap; give at least as many decode steps",
            Self::FirstToken => "the first token must be due after 1 to 3,600,000 milliseconds",
        })
    }
}

impl std::error::Error for LatencyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_targets() {
        for text in ["stream", "balanced", "throughput", "1.5,1000,3600000"] {
            assert_eq!(text.parse::<Latency>().unwrap().to_string(), text);
        }
        assert_eq!("2, 4, 2000".parse(), Ok(Latency::BALANCED));
        for (text, error) in [
            ("", LatencyError::Unknown),
            ("fast", LatencyError::Unknown),
            ("2,4", LatencyError::Unknown),
            ("2,4,0.5", LatencyError::Unknown),
            ("1.4,4,2000", LatencyError::Gap),
            ("NaN,4,2000", LatencyError::Gap),
            ("2,NaN,2000", LatencyError::Gap),
            ("2,inf,2000", LatencyError::Gap),
            ("4,2,2000", LatencyError::MaxGap),
            ("2,4,0", LatencyError::FirstToken),
            ("2,4,3600001", LatencyError::FirstToken),
        ] {
            assert_eq!(text.parse::<Latency>(), Err(error), "{text}");
        }
    }
}
