//! A sequence that holds an id.

use super::words::{AdapterId, EntryId, Request, RequestId, RequestProgress, Row, SeqId, length};
use super::{recovery::Strikes, speculation::Guess};
use crate::Token;

/// Tokens that may be certain and not computed beside the one that was sampled, for a sequence that
/// generates. One with more of them reads.
const FEW: u32 = 8;

/// What a sequence waits for before it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing.
    None,
    /// Another one that is reading the same beginning, until it has read so many tokens.
    Follows { leader: RequestId, length: u32 },
    /// The first so many tokens, which were put aside.
    Fetches { entry: EntryId, length: u32 },
    /// The token after its last one, which is chosen elsewhere.
    Chosen,
}

/// One of them. Its tokens stand in its request.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub request: Request,
    pub seq: SeqId,
    /// Tokens whose cells are filled.
    pub computed: u32,
    /// Tokens it had when it was admitted.
    pub begun: u32,
    /// For how many tokens there was to be room then.
    pub reserved: u32,
    pub wait: Wait,
    /// Rises with each admission.
    pub admission: u64,
    pub strikes: Strikes,
    /// The furthest place where it failed, in a memory that can't go back, and has not got past since. It is
    /// alone in the step that tries again.
    pub failed_at: Option<u32>,
    /// What may come after its tokens.
    pub guess: Guess,
    /// Its tokens are chosen elsewhere.
    pub asks: bool,
    /// What it began with is a prefix that was put aside, and brought back for it: there is no other copy.
    pub fetched: bool,
}

impl Running {
    pub fn key(&self) -> RequestId {
        self.request.id
    }

    /// What it is computed with.
    pub fn adapter(&self) -> AdapterId {
        self.request.scope.adapter()
    }

    /// Whether it shares cells with this group.
    pub fn is_of(&self, group: u32) -> bool {
        self.request.quota.is_some_and(|share| share.group == group)
    }

    pub fn tokens(&self) -> &[Token] {
        &self.request.tokens
    }

    pub fn pending(&self) -> u32 {
        length(self.tokens()) - self.computed
    }

    pub fn is_ready(&self) -> bool {
        self.wait == Wait::None
    }

    /// Whether what comes next is chosen by somebody who has to be waited for: its caller, or whoever
    /// chooses its tokens.
    pub fn is_guided(&self) -> bool {
        self.request.looks() || self.asks
    }

    /// Whether it is past its prompt, and what it generated is computed but for the last tokens. Of one
    /// that looks nobody says where its prompt ended: what is computed of it is taken for that.
    pub fn generates(&self) -> bool {
        let begun = match self.request.looks() {
            true => self.computed > 0,
            false => self.request.progress.generated > 0,
        };
        self.is_ready() && begun && self.pending() <= 1 + FEW
    }

    /// Whether a part of a prompt is left to read, or of what was generated: after a preemption, or
    /// where much was certain at once.
    pub fn reads(&self) -> bool {
        self.is_ready() && !self.generates()
    }

    /// Tokens that may be read in the next step, beside the one that a generating sequence always
    /// gets.
    pub fn readable(&self) -> u32 {
        match self.is_ready() {
            true => self.pending() - u32::from(self.generates()),
            false => 0,
        }
    }

    /// Cells that were promised to it and that it does not have yet.
    pub fn promised(&self) -> u32 {
        let shared = match self.wait {
            Wait::Follows { length, .. } => length,
            Wait::None | Wait::Fetches { .. } | Wait::Chosen => 0,
        };
        let target = self.reserved.max(length(self.tokens()));
        target.saturating_sub(self.computed.max(shared))
    }

    /// So many tokens are computed now.
    pub fn gets_on(&mut self, to: u32) {
        self.computed = to;
        // To have read again what it had read before excuses nothing.
        if self.failed_at.is_none_or(|failed_at| to > failed_at) {
            self.failed_at = None;
            self.strikes.reset();
        }
    }

    /// What it matters beside others: whoever has the least gives way first.
    pub fn importance(&self) -> impl Ord + use<> {
        let request = &self.request;
        let latest = std::cmp::Reverse((request.arrived_at, request.id));
        (request.priority, latest)
    }

    pub fn row(&self, tokens: u32) -> Row {
        Row {
            request: self.key(),
            seq: self.seq,
            from: self.computed,
            to: self.computed + tokens,
            output: tokens == self.pending(),
            drafts: 0,
        }
    }

    /// It is settled where it starts: the first `length` tokens are there already.
    pub fn starts_at(&mut self, length: u32) {
        self.wait = Wait::None;
        self.computed = length;
        self.request.continues = None;
        let progress = &mut self.request.progress;
        progress.recomputed += progress.reached.saturating_sub(length);
        progress.cached += length.saturating_sub(progress.reached);
        progress.reached = progress.reached.max(length);
    }

    /// What it had of the backend until now.
    pub fn progress(&self) -> RequestProgress {
        let mut progress = self.request.progress.clone();
        if matches!(self.wait, Wait::None | Wait::Chosen) {
            // That much was not computed again yet.
            progress.recomputed -= progress.reached.saturating_sub(self.computed);
        }
        progress.reached = progress.reached.max(self.computed);
        progress
    }

    /// What it had of the backend is noted, and gone.
    pub fn stops(&mut self) {
        self.request.progress = self.progress();
    }
}

impl Request {
    /// A sequence of it, nothing of which is computed.
    pub(super) fn run(self, seq: SeqId, reserved: u32, admission: u64) -> Running {
        Running {
            begun: length(&self.tokens),
            request: self,
            seq,
            computed: 0,
            reserved,
            wait: Wait::None,
            admission,
            strikes: Strikes::default(),
            failed_at: None,
            guess: Guess::default(),
            asks: false,
            fetched: false,
        }
    }
}
