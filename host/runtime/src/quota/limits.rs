//! The limits of a quota.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// Limits of a quota. `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Concurrent requests.
    pub concurrent: Option<u32>,
    /// Requests in any minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens of one request: those that its plugin appends to sequences, and those that it may generate.
    pub tokens_per_request: Option<u64>,
    /// Tokens in any minute.
    pub tokens_per_minute: Option<u64>,
    /// Tokens in any 24 hours.
    pub tokens_per_day: Option<u64>,
}

impl QuotaLimits {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// Names a limit of [`QuotaLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum QuotaLimit {
    /// [`QuotaLimits::concurrent`]
    #[strum(serialize = "concurrent-requests")]
    Concurrent,
    /// [`QuotaLimits::requests_per_minute`]
    RequestsPerMinute,
    /// [`QuotaLimits::tokens_per_request`]
    TokensPerRequest,
    /// [`QuotaLimits::tokens_per_minute`]
    TokensPerMinute,
    /// [`QuotaLimits::tokens_per_day`]
    TokensPerDay,
}

impl QuotaLimit {
    /// All limits.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Its name in files, metrics and messages.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
