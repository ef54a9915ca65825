//! The drafts of one request: proposed by prompt lookup or a draft model, verified after a step.

use crate::Token;
use crate::draft_acceptance::{DraftSource, accepted_drafts};
use crate::request::RequestId;
use crate::scheduler::Scheduler;
use crate::step::Row;

impl Scheduler {
    /// Adds drafts of prompt lookup: tokens that probably follow those of a decoding request. The next step computes
    /// the first few of them, all, or none. They are dropped once the request gains a token.
    pub fn add_lookup_drafts(&mut self, id: RequestId, drafts: &[Token]) {
        debug_assert!(self.is_between_steps(), "add_lookup_drafts during a step");
        let most = drafts.len().min(self.config.max_drafts as usize);
        let running = self.running.get_mut(id);
        if let Some(running) = running.filter(|running| running.is_decoding()) {
            running.drafts.propose(&drafts[..most]);
        }
    }

    /// Adds drafts of the draft model, which stops early where it is unsure: `planned` is the number that
    /// [`plan_drafts`](Scheduler::plan_drafts) planned.
    pub fn add_model_drafts(&mut self, id: RequestId, drafts: &[Token], planned: u32) {
        debug_assert!(self.is_between_steps(), "add_model_drafts during a step");
        let most = drafts.len().min(self.config.max_drafts as usize);
        let common = &mut self.model_drafts.acceptance;
        let running = self.running.get_mut(id);
        if let Some(running) = running.filter(|running| running.is_decoding()) {
            running
                .drafts
                .propose_planned(&drafts[..most], planned, common);
        }
    }

    /// The drafts of a row of the last planned step.
    pub fn drafts_of(&self, row: &Row) -> &[Token] {
        let running = self.running.get(row.request);
        let proposed = running.map_or(&[][..], |running| &running.drafts.tokens);
        &proposed[..proposed.len().min(row.drafts as usize)]
    }

    /// Where the drafts of a request come from.
    pub fn draft_source(&self, id: RequestId) -> DraftSource {
        let running = self.running.get(id);
        running.map_or(DraftSource::default(), |running| running.drafts.source)
    }

    /// Frees the cells of rejected drafts. Returns how many were accepted.
    pub(crate) fn verify_drafts(&mut self, row: &Row, gained: &[(RequestId, Token)]) -> u32 {
        if row.drafts == 0 {
            return 0;
        }
        let own = gained.iter().filter(|(id, _)| *id == row.request);
        let gained: Vec<_> = own.map(|(_, token)| *token).collect();
        let accepted = accepted_drafts(self.drafts_of(row), &gained);
        self.kv.truncate(row.seq, row.known_end() + accepted);
        self.observe_drafts(row, accepted);
        accepted
    }

    /// Drops the drafts of a failed step, which is tried again without.
    pub(crate) fn drop_drafts(&mut self, rows: &[Row]) {
        for row in rows.iter().filter(|row| row.drafts > 0) {
            self.observe_drafts(row, 0);
            if let Some(running) = self.running.get_mut(row.request) {
                running.drafts.tokens.clear();
            }
        }
    }

    fn observe_drafts(&mut self, row: &Row, accepted: u32) {
        let common = &mut self.model_drafts.acceptance;
        if let Some(running) = self.running.get_mut(row.request) {
            running.drafts.observe(row.drafts, accepted, common);
        }
    }
}
