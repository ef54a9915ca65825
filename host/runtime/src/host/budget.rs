//! `corral:inference/budget`.

use super::bindings::corral::inference::budget::{Host, RemainingBudget};
use crate::clocks::StoppedClocks;
use crate::state::State;
use std::time::Instant;

impl Host for State {
    fn remaining(&mut self) -> wasmtime::Result<RemainingBudget> {
        let stopped = self.stopped_clocks.as_ref();
        let now = stopped.map_or_else(Instant::now, StoppedClocks::instant);
        let time = self.caller.deadline.map_or(u64::MAX, |deadline| {
            let left = deadline.saturating_duration_since(now).as_nanos();
            u64::try_from(left).unwrap_or(u64::MAX)
        });
        let permit = self.quota_permit.as_ref();
        Ok(RemainingBudget {
            tokens: permit.and_then(|permit| permit.tokens_left()),
            time,
        })
    }
}
