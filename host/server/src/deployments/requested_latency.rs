//! The latency of a manifest, in the form of the command line.

use corral_engine::Latency;
use serde::{Deserialize, Serialize};

/// A name, or three numbers with commas.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestedLatency(pub Latency);

impl TryFrom<String> for RequestedLatency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let latency = text.parse().map_err(|error| format!("'{text}': {error}"))?;
        Ok(Self(latency))
    }
}

impl From<RequestedLatency> for String {
    fn from(latency: RequestedLatency) -> Self {
        latency.0.to_string()
    }
}
