//! Device top-k: sequence ids for which the backend computes only the highest logits, which is less to copy.
//!
//! A request says which logits it needs ([`LogitsKind`]). One for which the highest usually suffice runs with such an
//! id where one is available. If they do not suffice after all, it continues with an id of the other kind for the rest
//! of its life, and only its last token is computed again. [`KvCache`](crate::kv_cache) says why an id is always
//! available.

use crate::request::{LogitsKind, RequestId};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Lets requests continue with all logits. Where a sequence can't be truncated, they start again.
    pub(crate) fn retry_with_all_logits(&mut self, requests: &[RequestId]) {
        let can_reuse_part = self.config.can_reuse_part();
        for &id in requests {
            let Some(running) = self.running.get_mut(id) else {
                continue;
            };
            running.request.logits = LogitsKind::All;
            running.save_progress();
            let (seq, computed) = (running.seq, running.computed);
            let kept = match can_reuse_part {
                true => computed.saturating_sub(1),
                false => 0,
            };
            let other = match self.kv.may_use(seq, LogitsKind::All) {
                true => None,
                false => self.kv.take_id(LogitsKind::All, None),
            };
            let seq = match other {
                Some(other) => {
                    self.kv.cells.pin(other);
                    if kept > 0 {
                        self.kv.share(seq, other, kept);
                    }
                    self.kv.release(seq);
                    other
                }
                None => {
                    debug_assert!(self.kv.may_use(seq, LogitsKind::All), "no id available");
                    self.kv.truncate(seq, kept);
                    seq
                }
            };
            if let Some(running) = self.running.get_mut(id) {
                running.seq = seq;
                running.start_at(kept);
            }
            self.top_k_retries += 1;
        }
    }
}
