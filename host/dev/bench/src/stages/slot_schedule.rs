//! The plan of a raw loop: the tokens of each `llama_decode`, as by a server without a scheduler.
//!
//! There is at most one request in each slot. A free slot takes the next request that has arrived. Its prompt is
//! prefilled whole, or as far as the step has room, in the order of slots, beside decode rows. Requests of one length
//! that exist from the start stay in step: they prefill, decode and end together.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Seed of the lengths of responses.
const SEED: u64 = 1;

/// The length of a request in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) prompt: u32,
    /// At least one.
    pub(super) output: u32,
}

/// A request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) slot: usize,
    pub(super) request: usize,
    /// The position of its first token.
    pub(super) start: u32,
    pub(super) tokens: u32,
    /// Whether its last token has an output.
    pub(super) output: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) rows: Vec<Row>,
    /// Slots and numbers of the requests that end with this step.
    pub(super) ended: Vec<(usize, usize)>,
}

/// Plans steps.
pub(super) struct SlotSchedule {
    requests: Vec<Length>,
    slots: Vec<Option<Running>>,
    step_tokens: u32,
    /// Whether decoding waits until no prompt is left to prefill.
    in_step: bool,
}

struct Running {
    request: usize,
    /// Computed tokens.
    computed: u32,
    /// Tokens left to generate.
    remaining: u32,
}

impl SlotSchedule {
    /// For `slots` requests at once and steps of at most `step_tokens` tokens, which is more than `slots`.
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

    /// The next step; none if no request runs or arrives. `next` returns a request that has arrived, if any; it may
    /// wait for one if its argument says that no request runs.
    pub(super) fn step(&mut self, mut next: impl FnMut(bool) -> Option<usize>) -> Option<Step> {
        let mut idle = self.slots.iter().all(Option::is_none);
        for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
            let Some(request) = next(idle) else {
                break;
            };
            let output = self.requests.get(request)?.output;
            *slot = Some(Running {
                request,
                computed: 0,
                remaining: output,
            });
            idle = false;
        }
        let mut step = Step::default();
        let mut room = self.step_tokens;
        let prompt = |request: usize| self.requests.get(request).map_or(0, |length| length.prompt);
        let prefills = |running: &Running| running.computed < prompt(running.request);
        let any_prefill = self.slots.iter().flatten().any(prefills);
        // Decode rows first.
        for prefill in [false, true] {
            if !prefill && self.in_step && any_prefill {
                continue;
            }
            for (slot, content) in self.slots.iter_mut().enumerate() {
                let running = content
                    .as_mut()
                    .filter(|running| prefills(running) == prefill);
                let Some(running) = running else {
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
                    start: running.computed,
                    tokens,
                    output,
                });
                room -= tokens;
                running.computed += tokens;
                running.remaining -= u32::from(output);
                if running.remaining == 0 {
                    step.ended.push((slot, running.request));
                    *content = None;
                }
            }
        }
        (!step.rows.is_empty()).then_some(step)
    }
}

/// Lengths of responses from half of `output` to half as much again; the same in every run.
pub(super) fn uneven_lengths(output: u32, requests: usize) -> Vec<u32> {
    let min = (output / 2).max(1);
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    (0..requests)
        .map(|_| rng.random_range(min..=min + output))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All steps of requests that exist from the start.
    fn all_steps(mut schedule: SlotSchedule) -> Vec<Step> {
        let mut numbers = 0..schedule.requests.len();
        std::iter::from_fn(|| schedule.step(|_| numbers.next())).collect()
    }

    fn lengths(prompt: u32, outputs: &[u32]) -> Vec<Length> {
        let length = |&output| Length { prompt, output };
        outputs.iter().map(length).collect()
    }

    /// The request and the tokens of each row of each step.
    fn shape(steps: &[Step]) -> Vec<Vec<(usize, u32)>> {
        let rows = |step: &Step| step.rows.iter().map(|r| (r.request, r.tokens)).collect();
        steps.iter().map(rows).collect()
    }

    #[test]
    fn equal_requests_stay_in_step() {
        let steps = all_steps(SlotSchedule::new(lengths(5, &[3; 4]), 2, 512, true));
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
    fn decoding_in_step_waits_for_prefills() {
        let in_step = all_steps(SlotSchedule::new(lengths(5, &[2; 2]), 2, 7, true));
        let expected = [vec![(0, 5), (1, 2)], vec![(1, 3)], vec![(0, 1), (1, 1)]];
        assert_eq!(shape(&in_step), expected);
        let free = all_steps(SlotSchedule::new(lengths(5, &[2; 2]), 2, 7, false));
        let expected = [vec![(0, 5), (1, 2)], vec![(0, 1), (1, 3)], vec![(1, 1)]];
        assert_eq!(shape(&free), expected);
    }

    #[test]
    fn free_slot_takes_next_request() {
        let steps = all_steps(SlotSchedule::new(lengths(4, &[1, 3, 2]), 2, 512, false));
        let expected = [
            vec![(0, 4), (1, 4)],
            // The decode row is first.
            vec![(1, 1), (2, 4)],
            vec![(1, 1), (2, 1)],
        ];
        // Decode rows are in the order of slots.
        let mut shapes = shape(&steps);
        shapes.iter_mut().for_each(|step| step.sort_unstable());
        assert_eq!(shapes, expected);
        assert_eq!(steps[0].ended, [(0, 0)]);
        assert_eq!(steps[2].ended.len(), 2);
    }

    #[test]
    fn only_idle_schedule_waits_for_arrivals() {
        let mut schedule = SlotSchedule::new(lengths(4, &[2; 3]), 2, 512, false);
        let mut waited = Vec::new();
        let mut step = |arrival: Option<usize>| {
            let mut arrivals = arrival.into_iter();
            let step = schedule.step(|idle| {
                waited.push(idle);
                arrivals.next()
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
    fn every_position_is_computed_once() {
        let outputs = uneven_lengths(9, 30);
        let requests = lengths(11, &outputs);
        let steps = all_steps(SlotSchedule::new(requests, 4, 16, false));
        let mut computed = vec![0; outputs.len()];
        let mut generated = vec![0; outputs.len()];
        for row in steps.iter().flat_map(|step| &step.rows) {
            assert_eq!(row.start, computed[row.request]);
            computed[row.request] += row.tokens;
            generated[row.request] += u32::from(row.output);
        }
        assert_eq!(generated, outputs);
        // The last token is not computed.
        let expected: Vec<_> = outputs.iter().map(|count| 11 + count - 1).collect();
        assert_eq!(computed, expected);
        let tokens = steps
            .iter()
            .map(|s| s.rows.iter().map(|r| r.tokens).sum::<u32>());
        assert!(tokens.max() <= Some(16));
    }

    #[test]
    fn uneven_lengths_vary_by_half() {
        let lengths = uneven_lengths(50, 40);
        assert!(lengths.iter().all(|length| (25..=75).contains(length)));
        assert!(lengths.iter().any(|length| *length != lengths[0]));
        assert_eq!(lengths, uneven_lengths(50, 40));
        assert_eq!(uneven_lengths(2, 3).len(), 3);
    }
}
