//! The drafts of one request: proposed by its caller, verified after a step.

use crate::Token;
use crate::draft_acceptance::accepted_drafts;
use crate::request::RequestId;
use crate::scheduler::Scheduler;
use crate::step::Row;

impl Scheduler {
    /// Proposes drafts: tokens that probably follow those of a decoding request. The next step computes some, from the
    /// first one on, or none. They are dropped once the request gains a token.
    pub fn propose_draft(&mut self, id: RequestId, draft: &[Token]) {
        debug_assert!(self.is_between_steps(), "propose_draft during a step");
        let most = draft.len().min(self.config.max_drafts as usize);
        let running = self.running.get_mut(id);
        if let Some(running) = running.filter(|running| running.is_decoding()) {
            running.drafts.tokens.clear();
            running.drafts.tokens.extend_from_slice(&draft[..most]);
        }
    }

    /// The drafts of a row of the last planned step.
    pub fn draft(&self, row: &Row) -> &[Token] {
        let running = self.running.get(row.request);
        let draft = running.map_or(&[][..], |running| &running.drafts.tokens);
        &draft[..draft.len().min(row.drafts as usize)]
    }

    /// Frees the cells of rejected drafts. Returns how many were accepted.
    pub(crate) fn verify_drafts(&mut self, row: &Row, gained: &[(RequestId, Token)]) -> u32 {
        if row.drafts == 0 {
            return 0;
        }
        let own = gained.iter().filter(|(id, _)| *id == row.request);
        let gained: Vec<_> = own.map(|(_, token)| *token).collect();
        let accepted = accepted_drafts(self.draft(row), &gained);
        self.kv.truncate(row.seq, row.known_end() + accepted);
        if let Some(running) = self.running.get_mut(row.request) {
            running.drafts.observe(row.drafts, accepted);
        }
        accepted
    }

    /// Drops the drafts of a failed step, which is tried again without.
    pub(crate) fn drop_drafts(&mut self, rows: &[Row]) {
        for row in rows.iter().filter(|row| row.drafts > 0) {
            if let Some(running) = self.running.get_mut(row.request) {
                running.drafts.tokens.clear();
                running.drafts.observe(row.drafts, 0);
            }
        }
    }
}
