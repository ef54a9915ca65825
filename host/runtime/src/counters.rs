//! Counters, one store for each level: [`ProcessCounters`] for all plugins together, and
//! [`DeploymentCounters`] for all revisions of one deployment.
//!
//! Quotas count their own usage, since several deployments and keys may share one.

/// Defines a struct of counters from a table: help, field, kind and name of each metric. `/ 1e9` exports nanoseconds as
/// seconds. The fields in braces are not part of the table.
macro_rules! counters {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$other_doc:meta])* $other:ident: $other_type:ty,)* }
        $(
            $(#[doc = $help:literal])+
            $visibility:vis $field:ident: $kind:ident = $metric:literal $(/ $scale:literal)?,
        )*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $name {
            $($(#[$other_doc])* $other: $other_type,)*
            $($(#[doc = $help])+ $visibility $field: $crate::counters::Counter,)*
        }

        impl $name {
            /// The metrics of the table, in its order.
            fn table_metrics(&self) -> Vec<corral_engine::Metric> {
                vec![$(corral_engine::Metric::new(
                    $metric,
                    concat!($($help),+).trim_ascii(),
                    corral_engine::MetricKind::$kind,
                    self.$field.get() as f64 $(/ $scale)?,
                ),)*]
            }
        }
    };
}

mod call_limit;
mod child_processes;
mod deployment;
mod process;
mod resource_counts;

pub use call_limit::CallLimit;
pub(crate) use child_processes::child_metrics;
pub(crate) use deployment::{DeploymentCounters, OutboundRefusal, ResourceKind};
pub(crate) use process::{CallEnd, ProcessCounters};
pub(crate) use resource_counts::ResourceCounts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter or gauge. Relaxed: each value stands alone and is read for display only.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `count` and returns the sum.
    pub(crate) fn add(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Ordering::Relaxed) + count
    }

    pub(crate) fn increment(&self) -> u64 {
        self.add(1)
    }

    pub(crate) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self) {
        self.subtract(1);
    }

    /// Adds a time in nanoseconds.
    pub(crate) fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Raises the value to at least `value`.
    pub(crate) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
