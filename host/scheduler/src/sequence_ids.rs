//! The backend's sequence ids and which of them are free.
//!
//! The first [`SchedulerConfig::top_k_seq_ids`] ids are of the kind [`LogitsKind::TopK`], the others of the
//! kind [`LogitsKind::All`]. The kind of an id never changes. The lowest free id of a kind is taken first.

use crate::config::SchedulerConfig;
use crate::request::LogitsKind;
use crate::step::SeqId;

/// The free ids.
#[derive(Clone, Debug)]
pub(crate) struct SequenceIds {
    /// Sorted, highest first.
    free: Vec<SeqId>,
    total: u16,
    top_k: u16,
}

impl SequenceIds {
    /// All ids are free.
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            free: (0..config.seq_ids).rev().map(SeqId).collect(),
            total: config.seq_ids,
            top_k: config.top_k_seq_ids,
        }
    }

    /// Takes the lowest free id of a kind.
    pub fn take(&mut self, kind: LogitsKind) -> Option<SeqId> {
        let top_k = self.top_k;
        let all = self.free.partition_point(|seq| seq.0 >= top_k);
        match kind {
            LogitsKind::TopK if self.free.len() > all => self.free.pop(),
            LogitsKind::TopK => None,
            LogitsKind::All => Some(self.free.remove(all.checked_sub(1)?)),
        }
    }

    /// Returns an id.
    pub fn release(&mut self, seq: SeqId) {
        let index = self.free.partition_point(|other| *other > seq);
        debug_assert!(self.free.get(index) != Some(&seq), "{seq:?} is free");
        self.free.insert(index, seq);
    }

    /// Whether no id is free.
    pub fn is_exhausted(&self) -> bool {
        self.free.is_empty()
    }

    /// Number of ids in use.
    pub fn used(&self) -> usize {
        usize::from(self.total) - self.free.len()
    }

    /// The kind to prefer for a request: without ids of the kind [`LogitsKind::TopK`] always the other.
    pub fn preferred(&self, needed: LogitsKind) -> LogitsKind {
        match self.top_k {
            0 => LogitsKind::All,
            _ => needed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::CONFIG;

    #[test]
    fn lowest_id_of_a_kind_is_taken_first() {
        let mut ids = SequenceIds::new(&SchedulerConfig {
            seq_ids: 4,
            top_k_seq_ids: 2,
            ..CONFIG
        });
        let taken = [LogitsKind::All, LogitsKind::TopK, LogitsKind::All];
        assert_eq!(
            taken.map(|kind| ids.take(kind)),
            [2, 0, 3].map(|id| Some(SeqId(id)))
        );
        assert_eq!((ids.take(LogitsKind::All), ids.used()), (None, 3));
        ids.release(SeqId(0));
        assert_eq!(ids.take(LogitsKind::TopK), Some(SeqId(0)));
        assert_eq!(ids.take(LogitsKind::TopK), Some(SeqId(1)));
        assert!(ids.is_exhausted());
        ids.release(SeqId(3));
        assert_eq!(ids.take(LogitsKind::TopK), None);
    }

    #[test]
    fn all_logits_are_preferred_without_top_k_ids() {
        let ids = SequenceIds::new(&CONFIG);
        assert_eq!(ids.preferred(LogitsKind::TopK), LogitsKind::All);
    }
}
