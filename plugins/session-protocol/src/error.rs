//! Errors of calls.

use serde::{Deserialize, Serialize};

/// An error of the WIT: its case, and what the case holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "see the case of the same name in the WIT")]
pub enum Error {
    Invalid { detail: String },
    NotFound { detail: String },
    NotGranted { detail: String },
    ContextFull { needed: u32, limit: u32 },
    Refused { detail: String, retry_after_ms: u32 },
    Deadline,
    Cancelled,
    Failed { detail: String },
}
