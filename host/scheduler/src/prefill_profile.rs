//! How long steps with prompts take, learned for each chunk size.
//!
//! The [cost model](crate::cost_model) is linear. Real machines are not: backends compute in tiles, switch kernels with
//! the batch size, and share their cores. On a CPU the first prefill token of a step can cost as much as the next
//! twenty. But prompts are computed in few fixed sizes. So the profile learns a *correction* of the model for each
//! size, and how far steps scatter. The target must hold for nearly all steps, not on average.
//!
//! An untried size has the correction of the next smaller one. A size is used only after the one below it met the
//! target. Now and then a step *probes* the next larger size even if that is expected to miss, so rarely that misses
//! are a small part of the steps.
//!
//! The target is a multiple of the time of as many decode rows as requests usually run, if those are more than the
//! step has: requests in prefill are about to decode.
//!
//! Bounds that the simulator's tests check with a stretch of 2: the p99 of a step's time stays within 2.1 times that of
//! its rows (3.0 at most) on machines that scatter by 15 %, and at most one step in sixty probes.

use crate::cost_model::CostModel;
use crate::step::StepShape;
use crate::step_size_limit::StepSizeLimit;

/// Chunk sizes, without the tokens that [fill the tile](tile_fill) of the decode rows. The smallest is a tile.
pub const CHUNK_SIZES: [u32; 14] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Rows that a CPU multiplies together: llama.cpp's kernels for repacked quantized weights take the tokens of a step by
/// fours, and the rest one by one, each in nearly the time of four.
const TILE: u32 = 4;
/// Index of the size to try before anything is known of the machine.
const INITIAL_SIZE: usize = 3;
/// The stretch before the first step.
const INITIAL_STRETCH: f64 = 2.0;
/// Steps with prompts between two probes.
const PROBE_INTERVAL: u32 = 128;
/// Weight of the newest step in the mean of running requests.
const NEWEST_RUNNING: f64 = 1.0 / 64.0;
/// At most this many times the rows that were ever computed together count as usual. The cost of more rows is a guess:
/// while few decode, the cost model can't separate rows from the fixed cost.
const MAX_EXTRAPOLATION: u32 = 4;
/// Weight of the newest step in a correction, and in the scatter.
const NEWEST: f64 = 0.05;
const NEWEST_SCATTER: f64 = 0.02;
/// Standard deviations above the mean within which nearly all steps are. For a normal distribution 2.3 would hold 99 of
/// 100; delays on a shared machine make the tail longer.
const NEARLY_ALL: f64 = 2.5;
/// The least scatter that is assumed.
const MIN_SCATTER: f64 = 0.08;
/// A step that took more than this many times the expected time was delayed by something else. It counts as if it had
/// taken this many times.
const OUTLIER: f64 = 4.0;

/// Prefill tokens that fill the tile of this many decode rows. They cost next to nothing. A GPU has larger tiles; there
/// these tokens are as good as any.
pub(crate) fn tile_fill(rows: u32) -> u32 {
    rows.next_multiple_of(TILE) - rows
}

/// A step's chunk: its prefill tokens without those that fill the tile.
fn chunk_of(shape: StepShape) -> u32 {
    shape.prefill.saturating_sub(tile_fill(shape.decode_rows))
}

/// Index of the smallest size that holds this many tokens.
fn size_index(tokens: u32) -> usize {
    CHUNK_SIZES.partition_point(|&size| size < tokens)
}

/// An exponential mean; the first values count fully.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    fn observe(&mut self, value: f64, weight: f64) {
        self.count = self.count.saturating_add(1);
        self.value += weight.max(1.0 / f64::from(self.count)) * (value - self.value);
    }
}

/// The profile of a machine.
#[derive(Clone, Debug)]
pub(crate) struct PrefillProfile {
    /// The most that prefill may stretch the planned step.
    pub max_step_stretch: f64,
    /// Mean logarithm of the time over the cost model's prediction: of steps without prompts, and of each size.
    decode: Mean,
    sizes: [Mean; CHUNK_SIZES.len()],
    /// Variance of that logarithm around its mean, in steps with prompts.
    variance: f64,
    /// Running requests, also those in prefill, which are about to decode.
    running: Mean,
    /// Most rows of a step.
    max_rows: u32,
    size_limit: StepSizeLimit,
    /// Steps with prompts since the last probe, and since the last miss.
    since_probe: u32,
    since_miss: u32,
}

impl PrefillProfile {
    /// Nothing is learned yet.
    pub fn new() -> Self {
        Self {
            max_step_stretch: INITIAL_STRETCH,
            decode: Mean::default(),
            sizes: [Mean::default(); CHUNK_SIZES.len()],
            variance: MIN_SCATTER * MIN_SCATTER,
            running: Mean::default(),
            max_rows: 0,
            size_limit: StepSizeLimit::new(INITIAL_SIZE, CHUNK_SIZES.len()),
            since_probe: 0,
            since_miss: 0,
        }
    }

    /// Learns from a step during which this many requests ran. `costs` has not learned from it yet.
    pub fn observe(&mut self, costs: &CostModel, running: u32, shape: StepShape, seconds: f64) {
        self.running.observe(f64::from(running), NEWEST_RUNNING);
        let expected = costs.step_seconds(shape);
        if shape.decode_rows == 0 || !costs.is_fitted() || !seconds.is_finite() || expected <= 0.0 {
            return;
        }
        self.max_rows = self.max_rows.max(shape.decode_rows);
        let chunk = chunk_of(shape);
        let error = (seconds / expected).clamp(1.0 / OUTLIER, OUTLIER).ln();
        if shape.prefill == 0 {
            self.decode.observe(error, NEWEST_SCATTER);
            return;
        }
        let (index, met) = (size_index(chunk), self.meets_target(costs, shape, seconds));
        self.since_miss = match met {
            true => self.since_miss.saturating_add(1),
            false => 0,
        };
        // The last chunk of a prompt has no fixed size. If it misses, so would the next larger size.
        let has_fixed_size = CHUNK_SIZES.get(index) == Some(&chunk);
        if has_fixed_size {
            let scatter = error - self.correction(index);
            self.variance += NEWEST_SCATTER * (scatter * scatter - self.variance);
            self.sizes[index].observe(error, NEWEST);
        }
        if has_fixed_size || !met {
            self.size_limit.observe(index, met);
        }
    }

    /// The largest chunk with which nearly all steps meet the target; at least the smallest size. Now and then the next
    /// larger size: then the second is true.
    pub fn chunk(&self, costs: &CostModel, rows: u32, n_kv: u32) -> (u32, bool) {
        if !costs.is_fitted() {
            return (CHUNK_SIZES[INITIAL_SIZE], false);
        }
        let shape = StepShape {
            decode_rows: rows,
            n_kv,
            ..StepShape::default()
        };
        let best = self.best_size(costs, shape);
        let is_due = self.since_probe.min(self.since_miss) >= PROBE_INTERVAL;
        match CHUNK_SIZES.get(best + 1) {
            Some(&next) if is_due => (next, true),
            _ => (CHUNK_SIZES[best], false),
        }
    }

    /// Records that a step with prompts was planned. A probe counts even if the rest of the prompt is shorter.
    pub fn planned(&mut self, is_probe: bool) {
        self.since_probe = match is_probe {
            true => 0,
            false => self.since_probe.saturating_add(1),
        };
    }

    /// Expected seconds of a step.
    pub fn seconds(&self, costs: &CostModel, shape: StepShape) -> f64 {
        let correction = match chunk_of(shape) {
            0 => self.decode.value,
            chunk => self.correction(size_index(chunk)),
        };
        costs.step_seconds(shape) * correction.exp()
    }

    /// Whether a step meets the target with this time.
    pub fn meets_target(&self, costs: &CostModel, shape: StepShape, seconds: f64) -> bool {
        seconds <= self.target(costs, shape)
    }

    /// The most seconds that a step may be expected to take, so that nearly all such steps meet it.
    pub fn max_seconds(&self, costs: &CostModel, shape: StepShape) -> f64 {
        self.target(costs, shape) / self.margin()
    }

    /// How many times as long as expected nearly all steps take at most.
    pub fn margin(&self) -> f64 {
        (NEARLY_ALL * self.variance.sqrt().max(MIN_SCATTER)).exp()
    }

    /// The most seconds that a step should take. A multiple of the time of a step with only max(its decode rows, usual
    /// running requests) rows. If it were a multiple of the time of the step's own rows, the first of many requests
    /// that arrive together would confine the others to the smallest chunks; few would decode at a time, and that would
    /// never change.
    fn target(&self, costs: &CostModel, shape: StepShape) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = self.running.value as u32;
        let usual = usual.min(self.max_rows.saturating_mul(MAX_EXTRAPOLATION));
        let rows = shape.decode_rows.max(usual);
        let alone = StepShape {
            decode_rows: rows,
            drafts: 0,
            prefill: 0,
            ..shape
        };
        self.max_step_stretch * self.seconds(costs, alone)
    }

    /// The correction of a size: its own or that of the next smaller one that was tried.
    fn correction(&self, index: usize) -> f64 {
        let up_to = &self.sizes[..=index.min(CHUNK_SIZES.len() - 1)];
        let known = up_to.iter().rev().find(|size| size.count > 0);
        known.unwrap_or(&self.decode).value
    }

    /// The index of the largest size with which nearly all steps meet the target.
    fn best_size(&self, costs: &CostModel, shape: StepShape) -> usize {
        let most = self.max_seconds(costs, shape);
        let fits = |&index: &usize| {
            let prefill = CHUNK_SIZES[index] + tile_fill(shape.decode_rows);
            self.seconds(costs, StepShape { prefill, ..shape }) <= most
        };
        (0..=self.size_limit.index()).rev().find(fits).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile that learns from steps, and the cost model that learns after it.
    struct Learner {
        profile: PrefillProfile,
        costs: CostModel,
    }

    fn decode_shape(rows: u32) -> StepShape {
        StepShape {
            decode_rows: rows,
            n_kv: 256,
            ..StepShape::default()
        }
    }

    impl Learner {
        fn new() -> Self {
            Self {
                profile: PrefillProfile::new(),
                costs: CostModel::default(),
            }
        }

        fn best(&self, rows: u32) -> u32 {
            CHUNK_SIZES[self.profile.best_size(&self.costs, decode_shape(rows))]
        }

        fn observe(&mut self, running: u32, rows: u32, prefill: u32, seconds: f64) {
            let shape = StepShape {
                prefill,
                ..decode_shape(rows)
            };
            self.profile.observe(&self.costs, running, shape, seconds);
            self.costs.observe(shape, seconds);
        }

        /// Two of three steps take the chunk that the profile wants, at most `left` tokens. Returns how many had
        /// prompts, and how many of these probed a size.
        fn run(&mut self, rows: u32, left: u32, seconds: impl Fn(u32, u32) -> f64) -> (u32, u32) {
            let (mut steps, mut probes) = (0, 0);
            for number in 0..9_000 {
                let mut prefill = 0;
                if number >= 16 && number % 3 > 0 {
                    let (chunk, is_probe) = self.profile.chunk(&self.costs, rows, 256);
                    self.profile.planned(is_probe);
                    prefill = chunk.min(left) + tile_fill(rows);
                    steps += 1;
                    probes += u32::from(is_probe);
                }
                self.observe(rows, rows, prefill, seconds(number, prefill));
            }
            (steps, probes)
        }
    }

    /// A machine whose steps of 8 rows take 10 ms, 14 with the first prompt token, then little more up to 64.
    fn jump(prefill: u32) -> f64 {
        match prefill {
            0 => 0.010,
            1..=64 => 0.014 + 1e-5 * f64::from(prefill),
            _ => 0.014 + 4e-4 * f64::from(prefill),
        }
    }

    fn after_jumps() -> Learner {
        let mut learner = Learner::new();
        learner.run(8, u32::MAX, |_, prefill| jump(prefill));
        learner
    }

    #[test]
    fn nonlinear_machine_is_learned_by_size() {
        // 14.6 ms are well within 20; the 52 of the next size are not.
        assert_eq!(after_jumps().best(8), 64);
    }

    #[test]
    fn larger_sizes_are_probed_rarely() {
        for left in [u32::MAX, 11] {
            let (steps, probes) = Learner::new().run(8, left, |_, prefill| jump(prefill));
            let most = steps / PROBE_INTERVAL;
            assert!((1..=most).contains(&probes), "{probes} with {left} left");
        }
    }

    #[test]
    fn missed_chunk_lowers_the_size_for_a_while() {
        let learned = after_jumps();
        // Also a part of the size that misses.
        for missed in [50, 64] {
            let mut profile = learned.profile.clone();
            let mut observe = |prefill, seconds| {
                let shape = StepShape {
                    prefill,
                    ..decode_shape(8)
                };
                profile.observe(&learned.costs, 8, shape, seconds);
                profile.chunk(&learned.costs, 8, 256).0
            };
            assert_eq!(observe(missed, 0.021), 48);
            let after = (0..50).map(|_| observe(48, jump(48))).last();
            assert_eq!(after, Some(64));
        }
    }

    #[test]
    fn scatter_lowers_the_chunk() {
        // Every tenth step takes 1.9 times as long: even the smallest size then passes 2.
        let mut learner = Learner::new();
        let delay = |number| if number % 10 == 4 { 1.9 } else { 1.0 };
        learner.run(8, u32::MAX, |number, prefill| jump(prefill) * delay(number));
        assert!(learner.best(8) <= 12, "{}", learner.best(8));
    }

    #[test]
    fn usual_running_raises_the_chunk() {
        // Eight rows take 16 ms and one takes 9; each prompt token adds half a millisecond.
        let seconds = |rows, prefill| 0.008 + 0.001 * f64::from(rows) + 5e-4 * f64::from(prefill);
        let mut learner = Learner::new();
        // Within 18 ms, less the margin for scatter; then within 32 ms; then one request is alone again.
        for (rows, steps, sizes) in [(1, 400, 4..=12), (8, 400, 24..=32), (1, 600, 4..=12)] {
            for number in 0..steps {
                let prefill = [0, 4, 8, 16][number % 4];
                learner.observe(rows, rows, prefill, seconds(rows, prefill));
            }
            learner.profile.size_limit = StepSizeLimit::new(13, CHUNK_SIZES.len());
            assert!(sizes.contains(&learner.best(1)), "{}", learner.best(1));
        }
    }

    #[test]
    fn unseen_rows_limit_the_chunk() {
        // A row takes 1 ms and a step 8 more, but only steps of two rows were seen.
        let mut learner = Learner::new();
        for number in 0..400 {
            let prefill = [0, 4, 8, 16][number % 4];
            learner.observe(64, 2, prefill, 0.010 + 5e-4 * f64::from(prefill));
        }
        learner.profile.size_limit = StepSizeLimit::new(13, CHUNK_SIZES.len());
        // Eight rows take 40 ms at most. With 64 rows, the prompts would fill any step.
        assert!(learner.best(2) <= 128, "{}", learner.best(2));
    }

    #[test]
    fn tile_fill_is_not_part_of_a_size() {
        assert_eq!([1, 4, 6, 7, 8].map(tile_fill), [3, 0, 2, 1, 0]);
        // Tiles of four take 10 ms each, full or not, and a step 32 more.
        let seconds = |tokens: u32| 0.032 + 0.010 * f64::from(tokens.div_ceil(4));
        let mut learner = Learner::new();
        for number in 0..4_000 {
            let rows = 5 + number / 2 % 4;
            let prefill = match number < 16 || number % 2 == 0 {
                true => 0,
                false => learner.best(rows) + tile_fill(rows),
            };
            learner.observe(8, rows, prefill, seconds(rows + prefill));
        }
        // Each of the 1,992 steps with prompts has one of the sizes.
        let learned: u32 = learner.profile.sizes.iter().map(|size| size.count).sum();
        assert!(learned > 1_900, "{learned}");
        // 52 ms without prompts; three tiles more take 82, and four 92: too much with the margin.
        for rows in 5..=8 {
            assert_eq!(learner.best(rows), 12, "{rows} rows");
        }
    }
}
