//! After a step failed: who is to blame, and when it is tried again.
//!
//! A step that fails is halved until it works; a sequence that fails alone, with one token, several
//! times, while others do not, is given up, so that a bad one can't take others with it. When all
//! fail it is the device: nobody is given up for a while, and the pauses between attempts get
//! longer. Who fails when another has just failed alone, and nothing went well since, may be met by the same moment
//! of the device: that counts half, so that nobody who comes after a bad one is taken for bad by a few such moments.
//!
//! A memory that can't go back starts anew after a failure. There those that were in the step read
//! again what they had read together, and then pass the place where it failed one by one. Who fails on the way
//! there, where it was before, is not to blame, unless it never gets there: after a few failures of several
//! together each reads alone.

use super::running::Running;
use super::words::{RequestId, Row};
use super::{Scheduler, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// How often a sequence may fail alone, with one token, while others get on, before it is given up. This and the next
/// two are for one adapter, see [`Strikes::add`].
const MOST: u8 = 3;
/// How often it may fail alone where it was before: a device that fails all steps above some size, or every other
/// one, never lets it come back to its place.
const MOST_EXCUSED: u8 = 16;
/// How long a sequence may fail alone before it is given up, if nothing else gets on either in [`MOST`] steps at least.
const OUTAGE: Duration = Duration::from_secs(3);
/// How often several may fail together, before all is well again, where they start anew.
const MOST_TOGETHER: u8 = 8;
/// Shortest and longest pause after a failure with one token.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// What a sequence's failing alone tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blame {
    /// Nothing yet: it was where it had been before, and had gone well.
    Excused,
    /// Little: another one had failed alone, and nothing went well since.
    Half,
    /// As much as a single time can.
    Whole,
}

/// How often a sequence failed alone since it last got on; failures in one outage count once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strikes {
    /// In halves.
    halves: u8,
    /// How often it did where it had been before.
    excused: u8,
    /// When the first failure was after which nothing went well.
    since: Option<Time>,
    /// How many steps had gone well at the last time.
    before: u64,
    /// The most adapters that took turns at one of these times.
    adapters: u8,
}

impl Strikes {
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Another one. True if it is one too many, where so many adapters take turns: a sequence that is in every third
    /// step only takes three times as long to get on, and meets as many more faults of the moment until then. So the
    /// bound stays that of the most turns since it last got on, also when others are gone. How long nothing goes well
    /// has to do with the turns that there are now.
    fn add(&mut self, now: Time, recovery: &Recovery, adapters: u8, blame: Blame) -> bool {
        let since = match self.since {
            Some(since) if recovery.succeeded == self.before => since,
            _ => {
                let (counted, more) = match blame {
                    Blame::Excused => (&mut self.excused, 1),
                    Blame::Half => (&mut self.halves, 1),
                    Blame::Whole => (&mut self.halves, 2),
                };
                *counted = counted.saturating_add(more);
                self.before = recovery.succeeded;
                *self.since.insert(now)
            }
        };
        self.adapters = self.adapters.max(adapters);
        let lasts = now.saturating_sub(since) >= OUTAGE * u32::from(adapters);
        self.halves >= (2 * MOST).saturating_mul(self.adapters)
            || self.excused >= MOST_EXCUSED.saturating_mul(self.adapters)
            || (lasts && recovery.failed >= MOST)
    }
}

/// How much is tried, and when.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// Tokens that a step has when all is well.
    limit: u32,
    /// Tokens that the next step may have: below the limit only after a failure.
    most: u32,
    /// Steps that went well.
    succeeded: u64,
    /// Steps that failed since the last one that went well.
    failed: u8,
    /// Whether a sequence failed alone since the last one that went well.
    struck: bool,
    /// Steps of several sequences that failed since all was well.
    together: u8,
    /// Nothing is computed until then, and how long the pause is.
    pause: Option<(Time, Duration)>,
}

impl Recovery {
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            most: limit,
            succeeded: 0,
            failed: 0,
            struck: false,
            together: 0,
            pause: None,
        }
    }

    /// Whether steps are small since one failed not long ago.
    pub fn goes_on(&self) -> bool {
        self.most < self.limit
    }

    /// Steps that went well.
    pub fn succeeded(&self) -> u64 {
        self.succeeded
    }

    pub fn most(&self) -> u32 {
        self.most
    }

    /// Whether several failed together so often that each is to be tried alone, where all start anew.
    pub fn one_by_one(&self) -> bool {
        self.together >= MOST_TOGETHER
    }

    /// So many tokens failed together: half of them is tried next.
    pub fn halve(&mut self, tokens: u32) {
        self.most = (tokens / 2).max(1);
    }

    /// Until when nothing is computed.
    pub fn paused_until(&self) -> Option<Time> {
        self.pause.map(|(until, _)| until)
    }
}

impl Scheduler {
    /// A step went well.
    pub(super) fn recover(&mut self, planned: &[Row]) {
        let goes_on = self.is_recovering();
        let recovery = &mut self.recovery;
        recovery.succeeded += 1;
        recovery.failed = 0;
        recovery.struck = false;
        recovery.pause = None;
        if goes_on {
            recovery.most = recovery.most.saturating_mul(2).min(recovery.limit);
            // Let those be tried next that were left out, then try more at once.
            self.running
                .sort_by_key(|running| planned.iter().any(|row| row.request == running.key()));
        } else {
            recovery.together = 0;
        }
    }

    /// A step failed. Returns who is given up.
    pub(super) fn fail(&mut self, planned: &[Row], now: Time) -> Option<RequestId> {
        let recovery = &mut self.recovery;
        recovery.failed = recovery.failed.saturating_add(1);
        let tokens: u32 = planned.iter().map(Row::tokens).sum();
        if tokens > 1 {
            recovery.halve(tokens);
            recovery.together = recovery
                .together
                .saturating_add(u8::from(planned.len() > 1));
            // A memory that can't go back starts anew: it will not come to the same place with
            // fewer tokens, so who stands alone is to blame however many it has.
            let alone = !self.limits.can_truncate && planned.len() == 1;
            return planned
                .first()
                .filter(|_| alone)
                .and_then(|row| self.strike(row, now));
        }
        let pause = recovery.pause.map_or(PAUSES.0, |(_, last)| 2 * last);
        let pause = pause.min(PAUSES.1);
        recovery.pause = Some((now + pause, pause));
        self.strike(planned.first()?, now)
    }

    /// A sequence failed alone. Returns it if it is given up for that.
    fn strike(&mut self, row: &Row, now: Time) -> Option<RequestId> {
        let index = self.running.iter().position(|r| r.key() == row.request)?;
        let adapters: BTreeSet<_> = self.running.iter().map(Running::adapter).collect();
        let adapters = u8::try_from(adapters.len()).unwrap_or(u8::MAX);
        // To the end: the next one is tried alone, which tells whether it is this one's fault.
        let mut running = self.running.remove(index);
        let blame = match std::mem::replace(&mut self.recovery.struck, true) {
            _ if running.failed_at.is_some_and(|at| row.to <= at) => Blame::Excused,
            true => Blame::Half,
            false => Blame::Whole,
        };
        let over = running.strikes.add(now, &self.recovery, adapters, blame);
        self.running.push(running);
        over.then_some(row.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many steps it failed in, each after one that went well and with so many adapters, when it was given up, if
    /// it was.
    fn given_up(failures: impl IntoIterator<Item = (u8, Blame)>) -> Option<usize> {
        let (mut strikes, mut recovery) = (Strikes::default(), Recovery::new(8));
        let mut over = failures.into_iter().map(|(adapters, blame)| {
            recovery.succeeded += 1;
            strikes.add(Time::ZERO, &recovery, adapters, blame)
        });
        over.position(|over| over).map(|before| before + 1)
    }

    #[test]
    fn what_was_met_while_others_took_turns_is_judged_by_that_when_they_are_gone() {
        let whole = |turns: &[u8]| given_up(turns.iter().map(|&turns| (turns, Blame::Whole)));
        assert_eq!(whole(&[1; 20]), Some(3));
        assert_eq!(whole(&[3; 20]), Some(9));
        assert_eq!(whole(&[3, 2, 2, 1]), None);
        assert_eq!(whole(&[[3, 2, 2].as_slice(), &[1; 20]].concat()), Some(9));
    }

    #[test]
    fn what_comes_right_after_anothers_failure_counts_half() {
        use Blame::{Excused, Half, Whole};
        let alone = |blames: &[Blame]| given_up(blames.iter().map(|&blame| (1, blame)));
        assert_eq!(alone(&[Half; 20]), Some(6));
        assert_eq!(alone(&[Half, Whole, Half, Half, Half]), Some(5));
        assert_eq!(alone(&[Whole, Half, Whole, Half]), Some(4));
        assert_eq!(alone(&[Whole, Excused, Half, Excused, Whole]), None);
        assert_eq!(alone(&[Excused; 20]), Some(16));
    }

    #[test]
    fn bounds_of_all_adapters_there_can_be_are_within_what_is_counted() {
        let turns = crate::AdapterId::MOST + 1;
        let most = usize::from(turns) * usize::from(MOST);
        assert_eq!(given_up([(turns, Blame::Whole); 300]), Some(most));
        assert_eq!(given_up([(turns, Blame::Half); 300]), Some(2 * most));
    }
}
