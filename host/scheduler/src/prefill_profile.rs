//! What prefill tokens add to the time of a step, learned for each chunk size.
//!
//! This is not linear: backends compute in tiles, switch kernels with the batch size, and share their cores. On a CPU
//! the first prefill token of a step can cost as much as the next twenty. But prompts are computed in few fixed sizes,
//! so the profile learns for each size what it adds and how far its steps scatter. The target rests on what nearly all
//! steps keep, not on the mean.
//!
//! An untried size is estimated from the next smaller one that was tried, in proportion, which is too high rather than
//! too low. So now and then a step *probes* the next larger size: the less likely it fits, the more rarely, so that
//! misses are a small part of the steps. A size is used only after the one below it kept its time.
//!
//! The target is a multiple of the time of as many decode rows as requests usually run, if those are more than the
//! step has: requests in prefill are about to decode.
//!
//! This holds the figures that the simulator checks: the p99 of a step's time stays within 2.1 times that of its rows
//! (3.0 at most) on machines that scatter by 15 %, and at most one step in sixty probes.
//! Two probe intervals instead of three, of 64 and 2048 steps, lose the p99.

use crate::cost_model::CostModel;
use crate::size_ceiling::SizeCeiling;
use crate::step::StepShape;

/// Chunk sizes, without the tokens that [fill the tile](tile_fill) of the decode rows. The smallest is a tile.
pub const CHUNK_SIZES: [u32; 14] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Rows that a CPU multiplies together: llama.cpp's kernels for repacked quantized weights take the tokens of a step by
/// fours, and the rest one by one, each in nearly the time of four.
const TILE: u32 = 4;
/// Index of the size to try before anything is known of the machine.
pub(crate) const INITIAL_SIZE: usize = 3;
/// Steps with prompts between two probes of a size that most steps are expected to keep, that the mean step is, and
/// that is expected to miss.
const PROBE_LIKELY: u32 = 64;
const PROBE_MEAN: u32 = 512;
const PROBE_UNLIKELY: u32 = 2048;
/// Weight of the newest step in the mean of running requests.
const NEWEST_RUNNING: f64 = 1.0 / 64.0;
/// Decay per step of the recent maximum of running requests, and the fraction that rounds up to one.
const MAXIMUM_DECAY: f64 = 1.0 / 256.0;
const ROUND_UP: f64 = 0.25;
/// At most so many times the rows that were ever computed together count as usual. The cost of more rows is a guess:
/// while few decode, the cost model can't separate rows from the fixed cost.
const MAX_EXTRAPOLATION: u32 = 4;
/// Weight of the newest step in the mean, and in the scatter.
const NEWEST: f64 = 0.05;
const NEWEST_SCATTER: f64 = 0.02;
/// Steps of a size until its mean counts.
const MIN_STEPS: u32 = 3;
/// Standard deviations above the mean within which nearly all steps are. For a normal distribution 2.3 would hold 99 of
/// 100; delays on a shared machine make the tail longer.
const NEARLY_ALL: f64 = 2.5;
/// Scatter of an untried size, and the least that is assumed.
const SCATTER: f64 = 0.08;
/// A step that took more than so many times the expected time was delayed by something else. It counts as if it had
/// taken so many times.
const OUTLIER: f64 = 4.0;

/// Prefill tokens that fill the tile of so many decode rows. They cost next to nothing. A GPU has larger tiles; there
/// these tokens are as good as any.
pub(crate) fn tile_fill(rows: u32) -> u32 {
    rows.next_multiple_of(TILE) - rows
}

/// A step's chunk size: its prefill tokens without those that fill the tile.
fn chunk_of(shape: StepShape) -> u32 {
    shape.prefill.saturating_sub(tile_fill(shape.rows))
}

/// Index of the smallest size that holds so many tokens.
fn size_index(tokens: u32) -> usize {
    CHUNK_SIZES.partition_point(|&size| size < tokens)
}

/// Moves an exponential mean; the first values count fully.
fn follow(mean: &mut f64, value: f64, weight: f64, count: u32) {
    *mean += weight.max(1.0 / f64::from(count.max(1))) * (value - *mean);
}

/// The steps of one size.
#[derive(Clone, Copy, Debug)]
struct SizeProfile {
    /// Mean seconds that the size adds, and mean cells that attention ran over. The cost model says how the former
    /// grows with the latter.
    added: f64,
    n_kv: f64,
    /// Variance of the logarithm of the time over the expected time.
    variance: f64,
    steps: u32,
}

impl Default for SizeProfile {
    fn default() -> Self {
        Self {
            added: 0.0,
            n_kv: 0.0,
            variance: SCATTER * SCATTER,
            steps: 0,
        }
    }
}

impl SizeProfile {
    fn observe(&mut self, added: f64, n_kv: u32, log_error: f64) {
        self.steps = self.steps.saturating_add(1);
        follow(&mut self.added, added, NEWEST, self.steps);
        follow(&mut self.n_kv, f64::from(n_kv), NEWEST, self.steps);
        self.variance += NEWEST_SCATTER * (log_error * log_error - self.variance);
    }

    /// The factor that steps within so many standard deviations stay below.
    fn margin(&self, deviations: f64) -> f64 {
        (deviations * self.variance.sqrt().max(SCATTER)).exp()
    }
}

/// The profile of a machine.
#[derive(Clone, Debug)]
pub(crate) struct PrefillProfile {
    sizes: [SizeProfile; CHUNK_SIZES.len()],
    /// Mean logarithm of the time of steps without prompts over the cost model's prediction, which delayed steps raise.
    decode_bias: f64,
    decode_steps: u32,
    /// Mean of running requests: also those in prefill, which are about to decode.
    mean_running: f64,
    running_steps: u32,
    /// Recent maximum of running requests.
    max_running: f64,
    /// Most rows of a step.
    max_rows: u32,
    ceiling: SizeCeiling,
    /// Steps with prompts since the last probe, and since the last miss.
    since_probe: u32,
    since_miss: u32,
}

impl Default for PrefillProfile {
    fn default() -> Self {
        Self {
            sizes: [SizeProfile::default(); CHUNK_SIZES.len()],
            decode_bias: 0.0,
            decode_steps: 0,
            mean_running: 0.0,
            running_steps: 0,
            max_running: 0.0,
            max_rows: 0,
            ceiling: SizeCeiling::new(INITIAL_SIZE, CHUNK_SIZES.len()),
            since_probe: 0,
            since_miss: 0,
        }
    }
}

impl PrefillProfile {
    /// Records how many requests ran during a step.
    pub fn count_running(&mut self, count: u32) {
        let below = f64::from(count) - self.max_running;
        self.max_running += below.max(below * MAXIMUM_DECAY);
        self.running_steps = self.running_steps.saturating_add(1);
        follow(
            &mut self.mean_running,
            f64::from(count),
            NEWEST_RUNNING,
            self.running_steps,
        );
    }

    /// The recent maximum of running requests.
    pub fn usual_running(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = (self.max_running - ROUND_UP).ceil().max(0.0) as u32;
        usual
    }

    /// Learns from a step whose time should be at most `max_step_stretch` times that of a step without prompts. `costs`
    /// has not learned from it yet.
    pub fn observe(
        &mut self,
        max_step_stretch: f64,
        costs: &CostModel,
        shape: StepShape,
        seconds: f64,
    ) {
        if shape.rows == 0 || !costs.is_fitted() || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        self.max_rows = self.max_rows.max(shape.rows);
        if shape.prefill == 0 {
            self.decode_steps = self.decode_steps.saturating_add(1);
            let expected = costs.predict(shape);
            if expected > 0.0 {
                let error = (seconds / expected).clamp(1.0 / OUTLIER, OUTLIER).ln();
                let count = self.decode_steps;
                follow(&mut self.decode_bias, error, NEWEST_SCATTER, count);
            }
            return;
        }
        let chunk = chunk_of(shape);
        let index = size_index(chunk);
        let kept = seconds <= max_step_stretch * self.usual_decode_seconds(costs, shape);
        self.since_miss = match kept {
            true => self.since_miss.saturating_add(1),
            false => 0,
        };
        // The last chunk of a prompt has no fixed size. If it misses, so would the next larger size; but a chunk below
        // the smallest size says nothing.
        if CHUNK_SIZES.get(index) != Some(&chunk) {
            if !kept && chunk > CHUNK_SIZES[0] {
                self.ceiling.tried(index, false);
            }
            return;
        }
        let without = self.seconds_without_prefill(costs, shape);
        let expected = without + self.added(index, costs, shape.n_kv);
        if expected > 0.0 {
            let seconds = seconds.min(OUTLIER * expected);
            let added = (seconds - without).max(0.0);
            self.sizes[index].observe(added, shape.n_kv, (seconds / expected).ln());
        }
        self.ceiling.tried(index, kept);
    }

    /// The largest chunk with which nearly all steps stay within `max_step_stretch` times the time without prompts; at
    /// least the smallest size. Now and then the next larger size.
    pub fn chunk(&self, max_step_stretch: f64, costs: &CostModel, rows: u32, n_kv: u32) -> u32 {
        let shape = decode_shape(rows, n_kv);
        let best = self.best_size(max_step_stretch, costs, shape);
        let probe = usize::from(self.is_probe_due(best, max_step_stretch, costs, shape));
        CHUNK_SIZES[(best + probe).min(CHUNK_SIZES.len() - 1)]
    }

    /// Records that a step with prompts was planned with [`PrefillProfile::chunk`]. A probe counts whatever becomes of
    /// it: the rest of a prompt may be shorter, or the step may say nothing.
    pub fn planned(&mut self, max_step_stretch: f64, costs: &CostModel, rows: u32, n_kv: u32) {
        if rows == 0 || !costs.is_fitted() {
            return;
        }
        let shape = decode_shape(rows, n_kv);
        let best = self.best_size(max_step_stretch, costs, shape);
        self.since_probe = match self.is_probe_due(best, max_step_stretch, costs, shape) {
            true => 0,
            false => self.since_probe.saturating_add(1),
        };
    }

    /// Seconds of a step.
    pub fn step_seconds(&self, costs: &CostModel, shape: StepShape) -> f64 {
        let prefill = match chunk_of(shape) {
            0 => 0.0,
            tokens => {
                let index = size_index(tokens).min(CHUNK_SIZES.len() - 1);
                self.added(index, costs, shape.n_kv)
            }
        };
        self.seconds_without_prefill(costs, shape) + prefill
    }

    /// The most seconds that a step with drafts may be expected to take, so that nearly all such steps stay within
    /// `max_step_stretch` times the time of the rows alone.
    pub fn max_draft_seconds(
        &self,
        max_step_stretch: f64,
        costs: &CostModel,
        shape: StepShape,
    ) -> f64 {
        max_step_stretch * self.decode_seconds(costs, shape)
            / SizeProfile::default().margin(NEARLY_ALL)
    }

    /// Whether a step with drafts stayed within `max_step_stretch` times the time of its rows alone.
    pub fn is_within_stretch(
        &self,
        max_step_stretch: f64,
        costs: &CostModel,
        shape: StepShape,
        seconds: f64,
    ) -> bool {
        seconds <= max_step_stretch * self.decode_seconds(costs, shape)
    }

    /// Seconds of a step without prompts: with its own rows, or with as many as requests usually run if those are more.
    /// That is how long a request waits for its token among so many. If the target rested on the step's own rows, the
    /// first of many requests that arrive together would confine the others to the smallest chunks; few would decode at
    /// a time, and that would never change.
    fn usual_decode_seconds(&self, costs: &CostModel, shape: StepShape) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = self.mean_running as u32;
        let usual = usual.min(self.max_rows.saturating_mul(MAX_EXTRAPOLATION));
        let rows = shape.rows.max(usual);
        self.decode_seconds(costs, StepShape { rows, ..shape })
    }

    /// Seconds of a step's decode rows alone.
    fn decode_seconds(&self, costs: &CostModel, shape: StepShape) -> f64 {
        self.seconds_without_prefill(costs, StepShape { drafts: 0, ..shape })
    }

    /// Seconds of a step without its prompts.
    fn seconds_without_prefill(&self, costs: &CostModel, shape: StepShape) -> f64 {
        costs.predict(StepShape {
            prefill: 0,
            ..shape
        }) * self.decode_bias.exp()
    }

    /// Seconds that a size adds.
    fn added(&self, index: usize, costs: &CostModel, n_kv: u32) -> f64 {
        let Some(known) = self.known_size(index) else {
            return costs.prefill(CHUNK_SIZES[index], n_kv);
        };
        let (profile, tokens) = (&self.sizes[known], CHUNK_SIZES[known]);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let then = costs.prefill(tokens, profile.n_kv as u32);
        let now = costs.prefill(tokens, n_kv);
        let ratio = f64::from(CHUNK_SIZES[index]) / f64::from(tokens);
        (profile.added + now - then).max(0.0) * ratio
    }

    /// The largest known size up to `index`.
    fn known_size(&self, index: usize) -> Option<usize> {
        (0..=index)
            .rev()
            .find(|&index| self.sizes[index].steps >= MIN_STEPS)
    }

    /// The factor that steps of a size within so many standard deviations stay below.
    fn margin(&self, index: usize, deviations: f64) -> f64 {
        let known = self.known_size(index).unwrap_or(index);
        self.sizes[known].margin(deviations)
    }

    /// Whether the next step probes the size above `best`.
    fn is_probe_due(
        &self,
        best: usize,
        max_step_stretch: f64,
        costs: &CostModel,
        shape: StepShape,
    ) -> bool {
        let next = best + 1;
        if next >= CHUNK_SIZES.len() || self.since_miss < PROBE_LIKELY {
            return false;
        }
        let seconds =
            self.seconds_without_prefill(costs, shape) + self.added(next, costs, shape.n_kv);
        let target = max_step_stretch * self.usual_decode_seconds(costs, shape);
        let interval = if seconds * self.margin(next, 1.0) <= target {
            PROBE_LIKELY
        } else if seconds <= target {
            PROBE_MEAN
        } else {
            PROBE_UNLIKELY
        };
        self.since_probe >= interval
    }

    /// The index of the largest size that nearly all steps keep.
    fn best_size(&self, max_step_stretch: f64, costs: &CostModel, shape: StepShape) -> usize {
        let without = self.seconds_without_prefill(costs, shape);
        let target = max_step_stretch * self.usual_decode_seconds(costs, shape);
        let fits = |&index: &usize| {
            let seconds = without + self.added(index, costs, shape.n_kv);
            seconds * self.margin(index, NEARLY_ALL) <= target
        };
        (0..=self.ceiling.index()).rev().find(fits).unwrap_or(0)
    }
}

/// A step of decode rows alone.
fn decode_shape(rows: u32, n_kv: u32) -> StepShape {
    StepShape {
        rows,
        n_kv,
        ..StepShape::default()
    }
}

#[cfg(test)]
impl PrefillProfile {
    /// A profile that has learned nothing and may use all sizes.
    pub fn with_open_ceiling() -> Self {
        Self {
            ceiling: SizeCeiling::new(CHUNK_SIZES.len() - 1, CHUNK_SIZES.len()),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose steps double with the first prompt token, then grow little up to 64.
    fn step(prefill: u32) -> f64 {
        match prefill {
            0 => 0.010,
            1..=64 => 0.014 + 1e-5 * f64::from(prefill),
            _ => 0.014 + 4e-4 * f64::from(prefill),
        }
    }

    fn learned(scatter: impl Fn(u32) -> f64) -> (PrefillProfile, CostModel, Vec<u32>) {
        let (mut profile, mut costs) = (PrefillProfile::default(), CostModel::default());
        let mut sizes = Vec::new();
        for number in 0..9_000 {
            let budget = profile.chunk(2.0, &costs, 8, 256);
            let prefill = if number % 3 == 0 || number < 16 {
                0
            } else {
                budget
            };
            sizes.push(prefill);
            if prefill > 0 {
                profile.planned(2.0, &costs, 8, 256);
            }
            let shape = StepShape {
                rows: 8,
                prefill,
                n_kv: 256,
                ..StepShape::default()
            };
            let seconds = step(prefill) * scatter(number);
            profile.observe(2.0, &costs, shape, seconds);
            costs.observe(shape, seconds);
        }
        (profile, costs, sizes)
    }

    #[test]
    fn nonlinear_machine_is_learned_by_size() {
        let (profile, costs, _) = learned(|_| 1.0);
        // 14.6 ms are well within 20; the 52 of the next size are not.
        assert_eq!(profile.chunk(2.0, &costs, 8, 256), 64);
    }

    #[test]
    fn larger_sizes_are_probed_rarely() {
        for left in [u32::MAX, 11] {
            let (mut profile, mut costs) = (PrefillProfile::default(), CostModel::default());
            let (mut reading, mut tried) = (0, 0);
            for number in 0..9_000 {
                let mut shape = decode_shape(8, 256);
                if number >= 16 && number % 3 > 0 {
                    let budget = profile.chunk(2.0, &costs, 8, 256);
                    shape.prefill = budget.min(left);
                    reading += 1;
                    tried += u32::from(budget > CHUNK_SIZES[profile.best_size(2.0, &costs, shape)]);
                    profile.planned(2.0, &costs, 8, 256);
                }
                let seconds = step(shape.prefill);
                profile.observe(2.0, &costs, shape, seconds);
                costs.observe(shape, seconds);
            }
            let most = reading / PROBE_LIKELY;
            assert!((1..=most).contains(&tried), "{tried} with {left} left");
        }
    }

    #[test]
    fn partial_chunk_counts_for_next_size() {
        let (mut profile, costs, _) = learned(|_| 1.0);
        let shape = StepShape {
            prefill: 50,
            ..decode_shape(8, 256)
        };
        profile.observe(2.0, &costs, shape, 0.021);
        assert_eq!(profile.chunk(2.0, &costs, 8, 256), 48);
    }

    #[test]
    fn scatter_lowers_the_chunk() {
        // Every tenth step takes 1.9 times as long: even the smallest size then passes 2.
        let (profile, costs, sizes) = learned(|number| if number % 10 == 4 { 1.9 } else { 1.0 });
        assert!(profile.chunk(2.0, &costs, 8, 256) <= 12, "{sizes:?}");
    }

    #[test]
    fn usual_running_raises_the_chunk() {
        // Eight rows take 16 ms and one takes 9; each prompt token adds half a millisecond.
        let step = |rows, prefill| 0.008 + 0.001 * f64::from(rows) + 5e-4 * f64::from(prefill);
        let (mut profile, mut costs) = (PrefillProfile::with_open_ceiling(), CostModel::default());
        let mut fitting = |rows: u32, steps: u32| {
            for number in 0..steps {
                let prefill = [0, 4, 8, 16][(number % 4) as usize];
                let shape = StepShape {
                    rows,
                    prefill,
                    n_kv: 256,
                    ..StepShape::default()
                };
                let seconds = step(rows, prefill);
                profile.count_running(rows);
                profile.observe(2.0, &costs, shape, seconds);
                costs.observe(shape, seconds);
            }
            profile.chunk(2.0, &costs, 1, 256)
        };
        // Within 18 ms, less the margin for scatter.
        let alone = fitting(1, 400);
        // Within 32 ms.
        let among_many = fitting(8, 400);
        assert!(alone <= 12, "{alone}");
        assert!((24..=32).contains(&among_many), "{among_many}");
        // Later it is alone again.
        let again = fitting(1, 600);
        assert!(again <= 12, "{again}");
    }

    #[test]
    fn unseen_rows_limit_the_chunk() {
        // A row takes 1 ms and a step 8 more, but only steps of two rows were seen.
        let (mut profile, mut costs) = (PrefillProfile::with_open_ceiling(), CostModel::default());
        for number in 0..400_u32 {
            let shape = StepShape {
                rows: 2,
                prefill: [0, 4, 8, 16][(number % 4) as usize],
                n_kv: 256,
                ..StepShape::default()
            };
            let seconds = 0.010 + 5e-4 * f64::from(shape.prefill);
            profile.count_running(64);
            profile.observe(2.0, &costs, shape, seconds);
            costs.observe(shape, seconds);
        }
        // Eight rows take 40 ms at most. With 64 rows, the prompts would fill any step.
        let budget = profile.chunk(2.0, &costs, 2, 256);
        assert!(budget <= 128, "{budget}");
    }

    #[test]
    fn tile_fill_is_not_part_of_a_size() {
        assert_eq!([1, 4, 6, 7, 8].map(tile_fill), [3, 0, 2, 1, 0]);
        // Tiles of four take 10 ms each, full or not, and a step 32 more.
        let seconds =
            |rows: u32, prefill: u32| 0.032 + 0.010 * f64::from((rows + prefill).div_ceil(4));
        let (mut profile, mut costs) = (PrefillProfile::default(), CostModel::default());
        for number in 0..4_000_u32 {
            let rows = 5 + number / 2 % 4;
            let prefill = match number < 16 || number % 2 == 0 {
                true => 0,
                false => profile.chunk(2.0, &costs, rows, 256) + tile_fill(rows),
            };
            if prefill > 0 {
                profile.planned(2.0, &costs, rows, 256);
            }
            let shape = StepShape {
                rows,
                prefill,
                n_kv: 256,
                ..StepShape::default()
            };
            let seconds = seconds(rows, prefill);
            profile.count_running(8);
            profile.observe(2.0, &costs, shape, seconds);
            costs.observe(shape, seconds);
        }
        // Each of the 1,992 steps with prompts has a size of the ladder.
        let learned: u32 = profile.sizes.iter().map(|known| known.steps).sum();
        assert!(learned > 1_900, "{learned}");
        // 52 ms without prompts; three tiles more take 82, and four 92: too much with the margin.
        for rows in 5..=8 {
            let shape = StepShape {
                rows,
                n_kv: 256,
                ..StepShape::default()
            };
            assert_eq!(
                CHUNK_SIZES[profile.best_size(2.0, &costs, shape)],
                12,
                "{rows} rows"
            );
        }
    }

    #[test]
    fn usual_running_is_recent_maximum() {
        let mut profile = PrefillProfile::default();
        let mut ran = |counts: &[u32]| {
            counts
                .iter()
                .for_each(|count| profile.count_running(*count));
            profile.usual_running()
        };
        assert_eq!(ran(&[1]), 1);
        // The last requests of a round end one after the other.
        assert_eq!(ran(&[8, 8, 7, 6, 5, 4, 3, 2, 1]), 8);
        assert_eq!(ran(&[4; 1_500]), 4);
        assert_eq!(ran(&[1; 1_500]), 1);
    }

    #[test]
    fn failed_size_is_retried_from_below() {
        let (mut profile, costs, _) = learned(|_| 1.0);
        let shape = StepShape {
            rows: 8,
            prefill: 64,
            n_kv: 256,
            ..StepShape::default()
        };
        profile.observe(2.0, &costs, shape, 0.021);
        assert_eq!(profile.chunk(2.0, &costs, 8, 256), 48);
        let smaller = StepShape {
            prefill: 48,
            ..shape
        };
        profile.observe(2.0, &costs, smaller, step(48));
        assert_eq!(profile.chunk(2.0, &costs, 8, 256), 64);
    }
}
