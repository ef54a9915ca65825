//! A raw loop's plan: which tokens of which requests it gives to each `llama_decode`.
//!
//! As many requests as there are slots are under way at most. A slot that is free takes the next request that
//! has come, and its prompt is read whole as far as there is room, in the order of the slots, beside those that
//! generate: what is left of a server without a scheduler. Where all requests are there from the start and have
//! one length, all slots stay in step: they read together, generate together and end together.

/// How long a request is, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) prompt: u32,
    /// At least one.
    pub(super) generate: u32,
}

/// A request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) slot: usize,
    pub(super) request: usize,
    /// The position of its first token.
    pub(super) from: u32,
    pub(super) tokens: u32,
    /// Whether a token is generated after its last one.
    pub(super) output: bool,
}

/// A step.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) rows: Vec<Row>,
    /// Slots whose requests end with it, and these requests.
    pub(super) ended: Vec<(usize, usize)>,
}

/// All steps, one after the other.
pub(super) struct Replay {
    requests: Vec<Length>,
    slots: Vec<Option<Running>>,
    step_tokens: u32,
    /// Whether nobody generates while others still read.
    in_step: bool,
}

struct Running {
    request: usize,
    /// Tokens that were computed.
    computed: u32,
    /// Tokens that are still to be generated.
    left: u32,
}

impl Replay {
    /// For `slots` requests at once and steps of at most `step_tokens`, of which there are more than slots.
    pub(super) fn new(
        requests: Vec<Length>,
        slots: usize,
        step_tokens: u32,
        in_step: bool,
    ) -> Self {
        Self {
            requests,
            slots: (0..slots).map(|_| None).collect(),
            step_tokens,
            in_step,
        }
    }

    /// The next step; none when nobody runs and nobody comes. `next` tells which request has come and was not
    /// told before, if one has; it may wait for one where it is told that nobody runs.
    pub(super) fn step(&mut self, mut next: impl FnMut(bool) -> Option<usize>) -> Option<Step> {
        let mut idle = self.slots.iter().all(Option::is_none);
        for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
            let Some(request) = next(idle) else {
                break;
            };
            let generate = self.requests.get(request)?.generate;
            *slot = Some(Running {
                request,
                computed: 0,
                left: generate,
            });
            idle = false;
        }
        let mut step = Step::default();
        let mut room = self.step_tokens;
        let prompt = |request: usize| self.requests.get(request).map_or(0, |one| one.prompt);
        let reads = |running: &Running| running.computed < prompt(running.request);
        let somebody_reads = self.slots.iter().flatten().any(reads);
        // Those that generate go first.
        for reading in [false, true] {
            if !reading && self.in_step && somebody_reads {
                continue;
            }
            for (slot, place) in self.slots.iter_mut().enumerate() {
                let Some(running) = place.as_mut().filter(|one| reads(one) == reading) else {
                    continue;
                };
                let missing = prompt(running.request).saturating_sub(running.computed);
                let tokens = missing.max(1).min(room);
                if tokens == 0 {
                    continue;
                }
                let output = tokens >= missing;
                step.rows.push(Row {
                    slot,
                    request: running.request,
                    from: running.computed,
                    tokens,
                    output,
                });
                room -= tokens;
                running.computed += tokens;
                running.left -= u32::from(output);
                if running.left == 0 {
                    step.ended.push((slot, running.request));
                    *place = None;
                }
            }
        }
        (!step.rows.is_empty()).then_some(step)
    }
}

/// Lengths of the answers of requests that do not stay in step: from half of `generate` to half as much
/// again, and the same each time.
pub(super) fn uneven(generate: u32, requests: usize) -> Vec<u32> {
    let (least, span) = ((generate / 2).max(1), u64::from(generate) + 1);
    let mut state = 0x5DEE_CE66_u64;
    let mut next = || {
        // Knuth's constants (MMIX); the upper bits are the random ones.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((state >> 33) % span).unwrap_or(0)
    };
    (0..requests).map(|_| least + next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps where all requests are there from the start.
    fn all(mut replay: Replay) -> Vec<Step> {
        let mut numbers = 0..replay.requests.len();
        std::iter::from_fn(|| replay.step(|_| numbers.next())).collect()
    }

    fn lengths(prompt: u32, generate: &[u32]) -> Vec<Length> {
        let length = |&generate| Length { prompt, generate };
        generate.iter().map(length).collect()
    }

    /// Tokens of each row of each step, with the request it is of.
    fn shape(steps: &[Step]) -> Vec<Vec<(usize, u32)>> {
        let rows = |step: &Step| step.rows.iter().map(|r| (r.request, r.tokens)).collect();
        steps.iter().map(rows).collect()
    }

    #[test]
    fn requests_of_one_length_stay_in_step() {
        let steps = all(Replay::new(lengths(5, &[3; 4]), 2, 512, true));
        let wave = |a, b| {
            vec![
                vec![(a, 5), (b, 5)],
                vec![(a, 1), (b, 1)],
                vec![(a, 1), (b, 1)],
            ]
        };
        assert_eq!(shape(&steps), [wave(0, 1), wave(2, 3)].concat());
        let ended: Vec<_> = steps.iter().map(|step| step.ended.len()).collect();
        assert_eq!(ended, [0, 0, 2, 0, 0, 2]);
    }

    #[test]
    fn prompts_that_do_not_fit_into_one_step_are_read_before_anyone_goes_on() {
        let in_step = all(Replay::new(lengths(5, &[2; 2]), 2, 7, true));
        let expected = [vec![(0, 5), (1, 2)], vec![(1, 3)], vec![(0, 1), (1, 1)]];
        assert_eq!(shape(&in_step), expected);
        let free = all(Replay::new(lengths(5, &[2; 2]), 2, 7, false));
        let expected = [vec![(0, 5), (1, 2)], vec![(0, 1), (1, 3)], vec![(1, 1)]];
        assert_eq!(shape(&free), expected);
    }

    #[test]
    fn a_slot_that_gets_free_takes_the_next_request_beside_those_that_generate() {
        let steps = all(Replay::new(lengths(4, &[1, 3, 2]), 2, 512, false));
        let expected = [
            vec![(0, 4), (1, 4)],
            // The generating one goes first.
            vec![(1, 1), (2, 4)],
            vec![(1, 1), (2, 1)],
        ];
        // Slot 0 comes before slot 1 where both generate.
        let mut shapes = shape(&steps);
        shapes.iter_mut().for_each(|step| step.sort_unstable());
        assert_eq!(shapes, expected);
        assert_eq!(steps[0].ended, [(0, 0)]);
        assert_eq!(steps[2].ended.len(), 2);
    }

    #[test]
    fn who_comes_later_joins_and_only_where_nobody_runs_is_anyone_waited_for() {
        let mut replay = Replay::new(lengths(4, &[2; 3]), 2, 512, false);
        let mut waited = Vec::new();
        let mut step = |come: Option<usize>| {
            let mut come = come.into_iter();
            let step = replay.step(|idle| {
                waited.push(idle);
                come.next()
            });
            step.map(|step| shape(&[step]).concat())
        };
        assert_eq!(step(Some(0)), Some(vec![(0, 4)]));
        assert_eq!(step(Some(2)), Some(vec![(0, 1), (2, 4)]));
        assert_eq!(step(None), Some(vec![(2, 1)]));
        assert_eq!(step(None), None);
        assert_eq!(waited, [true, false, false, false, true]);
    }

    #[test]
    fn every_position_is_computed_once_and_every_token_generated() {
        let generate = uneven(9, 30);
        let requests = lengths(11, &generate);
        let steps = all(Replay::new(requests, 4, 16, false));
        let mut computed = vec![0; generate.len()];
        let mut told = vec![0; generate.len()];
        for row in steps.iter().flat_map(|step| &step.rows) {
            assert_eq!(row.from, computed[row.request]);
            computed[row.request] += row.tokens;
            told[row.request] += u32::from(row.output);
        }
        assert_eq!(told, generate);
        // What comes after the last one does not matter.
        let expected: Vec<_> = generate.iter().map(|count| 11 + count - 1).collect();
        assert_eq!(computed, expected);
        let most = steps
            .iter()
            .map(|s| s.rows.iter().map(|r| r.tokens).sum::<u32>());
        assert!(most.max() <= Some(16));
    }

    #[test]
    fn uneven_answers_are_within_half_of_what_was_asked_and_not_all_alike() {
        let lengths = uneven(50, 40);
        assert!(lengths.iter().all(|length| (25..=75).contains(length)));
        assert!(lengths.iter().any(|length| *length != lengths[0]));
        assert_eq!(lengths, uneven(50, 40));
        assert_eq!(uneven(2, 3).len(), 3);
    }
}
