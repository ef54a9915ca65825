//! What prompt tokens add to the time of a step, by their number.
//!
//! That is not linear: backends compute in tiles, switch kernels with the size of a batch, and share
//! their cores. On a CPU the first prompt token of a step can cost as much as the next twenty. But
//! prompts are read in few fixed sizes. So what a size adds is learnt for each of them, and how far
//! steps scatter; what is promised rests on what nearly all steps keep, not on the average one.
//!
//! What a size adds that was not tried is taken from the next smaller one that was, in proportion,
//! which is too much rather than too little. So now and then a step tries the next larger size all the
//! same: the rarer, the less likely it fits, so that what does not counts little among a hundred gaps. And one is
//! taken only after the one below it kept its time, and not right after it did not.
//!
//! What nearly all steps with prompts stay within is a multiple of what as many rows take as sequences run
//! as a rule, if that is more than the step has: those that read are about to generate.

use super::ceiling::Ceiling;
use super::cost::{CostModel, StepShape};

/// Sizes of a step's share of prompts, beside what [fills](fill) the tile of its generating rows. The smallest
/// one is a tile; where the machine scatters, each tile more would stretch too many steps too far.
pub const LADDER: [u32; 14] = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// LogitsKind that a CPU multiplies together. llama.cpp's kernels for its repacked quantised weights take a step's
/// tokens by fours, and each of those that are left by itself, which takes nearly as long as four.
const TILE: u32 = 4;
/// What is tried before anything is known of the machine: a place on the ladder.
pub const UNKNOWN: usize = 3;
/// One step of so many tries the next larger size, if most steps of it are expected to fit; of so many more, if
/// it is on the average; and of so many, whatever is expected.
const PROBE_LIKELY: u32 = 64;
const PROBE: u32 = 512;
const PROBE_ALL: u32 = 2048;
/// What the latest step counts for in the number of sequences that usually run.
const LATEST_RUNS: f64 = 1.0 / 64.0;
/// What a smaller number of sequences takes from [`Experience::usual`] in each step; and by how much less than a whole one
/// counts as one.
const FEWER: f64 = 1.0 / 256.0;
const WHOLE: f64 = 0.25;
/// So many times as many rows as were ever computed together may be taken for usual. What more of them take
/// is a guess: as long as few generate, the cost model can't tell rows from what every step takes.
const AHEAD: u32 = 4;
/// What the latest step counts for, in the mean and in the scatter.
const LATEST: f64 = 0.05;
const LATEST_SCATTER: f64 = 0.02;
/// Steps of a size until what it adds is believed.
const ENOUGH: u32 = 3;
/// Standard deviations above the mean within which nearly all steps are. Were they normal, 2.3 would hold 99 of
/// 100; but what holds a step up on a shared machine makes the tail longer.
const NEARLY_ALL: f64 = 2.5;
/// Scatter of a size before it was seen, and the least that is believed.
const SCATTER: f64 = 0.08;
/// A step that took this much longer than expected was held up by something else, and counts as if it
/// had taken so much.
const OUTLIER: f64 = 4.0;

/// Prompt tokens that a step with so many generating rows has for next to nothing: those that make its rows
/// whole tiles. On a GPU, which computes larger ones, they are as good as any.
pub fn fill(rows: u32) -> u32 {
    rows.next_multiple_of(TILE) - rows
}

/// A step's prompt tokens without those that fill its rows' tile.
fn size(shape: StepShape) -> u32 {
    shape.prefill.saturating_sub(fill(shape.rows))
}

/// The smallest place on the ladder that holds so many tokens.
fn place(tokens: u32) -> usize {
    LADDER.partition_point(|&size| size < tokens)
}

/// A mean that follows what it is told, the first few times at once.
fn follow(mean: &mut f64, value: f64, latest: f64, seen: u32) {
    *mean += latest.max(1.0 / f64::from(seen.max(1))) * (value - *mean);
}

/// What is known of a size.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Seconds that it adds to a step, and the cells that attention ran over then. It grows with these, as the
    /// cost model says.
    adds: f64,
    n_kv: f64,
    /// Variance of the logarithm of the time over the expected one.
    variance: f64,
    seen: u32,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            adds: 0.0,
            n_kv: 0.0,
            variance: SCATTER * SCATTER,
            seen: 0,
        }
    }
}

impl Known {
    fn observe(&mut self, adds: f64, n_kv: u32, off: f64) {
        self.seen = self.seen.saturating_add(1);
        follow(&mut self.adds, adds, LATEST, self.seen);
        follow(&mut self.n_kv, f64::from(n_kv), LATEST, self.seen);
        self.variance += LATEST_SCATTER * (off * off - self.variance);
    }

    /// By how much steps stay below the expected time, as a factor: those within so many standard deviations.
    fn margin(&self, deviations: f64) -> f64 {
        (deviations * self.variance.sqrt().max(SCATTER)).exp()
    }
}

/// What was learnt, by size.
#[derive(Clone, Debug)]
pub struct Experience {
    sizes: [Known; LADDER.len()],
    /// The logarithm of the usual time of steps without prompts over what the cost model says: it
    /// tells the mean, and a few steps that are held up move that.
    plain: f64,
    plain_seen: u32,
    /// Sequences that run, as a rule: those that read too, since they are about to generate.
    runs: f64,
    runs_seen: u32,
    /// Most sequences that ran lately, falling slowly.
    most_runs: f64,
    /// Most rows that were computed in a step.
    most_rows: u32,
    ceiling: Ceiling,
    /// Steps with prompts since one was to try the next larger size, and those whose time told something since
    /// one took too long.
    since_probe: u32,
    since_miss: u32,
}

impl Default for Experience {
    fn default() -> Self {
        Self {
            sizes: [Known::default(); LADDER.len()],
            plain: 0.0,
            plain_seen: 0,
            runs: 0.0,
            runs_seen: 0,
            most_runs: 0.0,
            most_rows: 0,
            ceiling: Ceiling::new(UNKNOWN, LADDER.len()),
            since_probe: 0,
            since_miss: 0,
        }
    }
}

impl Experience {
    /// So many sequences ran while a step was computed.
    pub fn ran(&mut self, count: u32) {
        let fewer = f64::from(count) - self.most_runs;
        self.most_runs += fewer.max(fewer * FEWER);
        self.runs_seen = self.runs_seen.saturating_add(1);
        follow(
            &mut self.runs,
            f64::from(count),
            LATEST_RUNS,
            self.runs_seen,
        );
    }

    /// Sequences that lately ran at once when there were most of them.
    pub fn usual(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = (self.most_runs - WHOLE).ceil().max(0.0) as u32;
        usual
    }

    /// A step was computed in so many seconds; `gap` is how much longer it should at most have been than
    /// one without prompts usually is. `cost` has not seen it yet.
    pub fn observe(&mut self, gap: f64, cost: &CostModel, shape: StepShape, seconds: f64) {
        if shape.rows == 0 || !cost.is_fitted() || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        self.most_rows = self.most_rows.max(shape.rows);
        if shape.prefill == 0 {
            self.plain_seen = self.plain_seen.saturating_add(1);
            let expected = cost.predict(shape);
            if expected > 0.0 {
                let off = (seconds / expected).clamp(1.0 / OUTLIER, OUTLIER).ln();
                follow(&mut self.plain, off, LATEST_SCATTER, self.plain_seen);
            }
            return;
        }
        let size = size(shape);
        let place = place(size);
        let kept = seconds <= gap * self.among_all(cost, shape);
        self.since_miss = match kept {
            true => self.since_miss.saturating_add(1),
            false => 0,
        };
        // The last share of a prompt is what is left of it: of no fixed size. The next larger one takes no less; but
        // one below the smallest tells nothing.
        if LADDER.get(place) != Some(&size) {
            if !kept && size > LADDER[0] {
                self.ceiling.tried(place, false);
            }
            return;
        }
        let bare = self.bare(cost, shape);
        let expected = bare + self.adds(place, cost, shape.n_kv);
        if expected > 0.0 {
            let seconds = seconds.min(OUTLIER * expected);
            let adds = (seconds - bare).max(0.0);
            self.sizes[place].observe(adds, shape.n_kv, (seconds / expected).ln());
        }
        self.ceiling.tried(place, kept);
    }

    /// A step is planned whose prompts may have what [`fitting`](Self::fitting) says. If it tries a size, the next
    /// ones do not, whatever becomes of it: there may be less left of the prompts, or the step may tell nothing.
    pub fn plans(&mut self, gap: f64, cost: &CostModel, rows: u32, n_kv: u32) {
        if rows == 0 || !cost.is_fitted() {
            return;
        }
        let shape = Self::bare_shape(rows, n_kv);
        let best = self.best(gap, cost, shape);
        self.since_probe = match self.tries(best, gap, cost, shape) {
            true => 0,
            false => self.since_probe.saturating_add(1),
        };
    }

    /// Seconds that a step without prompts usually takes: with the rows that generate, or with as many as
    /// there are sequences as a rule, if that is more. That is what a sequence waits for its token among so
    /// many, and what is promised of steps with prompts rests on it. If it rested on the rows of the step
    /// alone, then the first of many that come at once would have all others read in the smallest pieces
    /// beside it; few would generate at a time, the machine would be half idle, and it would never come right
    /// again.
    fn among_all(&self, cost: &CostModel, shape: StepShape) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = self.runs as u32;
        let usual = usual.min(self.most_rows.saturating_mul(AHEAD));
        let all = StepShape {
            rows: shape.rows.max(usual),
            ..shape
        };
        self.alone(cost, all)
    }

    /// Seconds that the generating rows of a step usually take by themselves.
    fn alone(&self, cost: &CostModel, shape: StepShape) -> f64 {
        let alone = StepShape { drafts: 0, ..shape };
        self.bare(cost, alone)
    }

    /// Seconds that a step usually takes without its prompts.
    fn bare(&self, cost: &CostModel, shape: StepShape) -> f64 {
        let bare = StepShape {
            prefill: 0,
            ..shape
        };
        cost.predict(bare) * self.plain.exp()
    }

    /// Seconds that a step is expected to take.
    pub fn expected(&self, cost: &CostModel, shape: StepShape) -> f64 {
        let prompts = match size(shape) {
            0 => 0.0,
            tokens => {
                let place = place(tokens).min(LADDER.len() - 1);
                self.adds(place, cost, shape.n_kv)
            }
        };
        self.bare(cost, shape) + prompts
    }

    /// Seconds that a step may be expected to take for its rows' drafts, so that nearly all such steps
    /// stay within `gap` times the time of the rows alone.
    pub fn longest(&self, gap: f64, cost: &CostModel, shape: StepShape) -> f64 {
        gap * self.alone(cost, shape) / Known::default().margin(NEARLY_ALL)
    }

    /// Whether a step stayed within `gap` times the usual time of its rows alone.
    pub fn keeps(&self, gap: f64, cost: &CostModel, shape: StepShape, seconds: f64) -> bool {
        seconds <= gap * self.alone(cost, shape)
    }

    /// Seconds that a size adds.
    fn adds(&self, place: usize, cost: &CostModel, n_kv: u32) -> f64 {
        let known = |place: &usize| self.sizes[*place].seen >= ENOUGH;
        let Some(below) = (0..=place).rev().find(known) else {
            return cost.prompts(LADDER[place], n_kv);
        };
        let (known, tokens) = (&self.sizes[below], LADDER[below]);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let then = cost.prompts(tokens, known.n_kv as u32);
        let now = cost.prompts(tokens, n_kv);
        (known.adds + now - then).max(0.0) * f64::from(LADDER[place]) / f64::from(tokens)
    }

    /// How far so many standard deviations of steps of a size go; of one not seen, as the next smaller one that
    /// was.
    fn margin(&self, place: usize, deviations: f64) -> f64 {
        let seen = |place: &usize| self.sizes[*place].seen >= ENOUGH;
        let place = (0..=place).rev().find(seen).unwrap_or(place);
        self.sizes[place].margin(deviations)
    }

    /// The largest size with which, beside what fills the rows' tile, nearly all steps stay within `gap` times the
    /// usual time of one without prompts; the smallest if none does. Now and then the next larger one.
    pub fn fitting(&self, gap: f64, cost: &CostModel, rows: u32, n_kv: u32) -> u32 {
        let shape = Self::bare_shape(rows, n_kv);
        let best = self.best(gap, cost, shape);
        let tries = usize::from(self.tries(best, gap, cost, shape));
        LADDER[(best + tries).min(LADDER.len() - 1)]
    }

    /// Whether the next step is to try the size above the `best` one.
    fn tries(&self, best: usize, gap: f64, cost: &CostModel, shape: StepShape) -> bool {
        let next = best + 1;
        if next >= LADDER.len() || self.since_miss < PROBE_LIKELY {
            return false;
        }
        let seconds = self.bare(cost, shape) + self.adds(next, cost, shape.n_kv);
        let longest = gap * self.among_all(cost, shape);
        let rest = if seconds * self.margin(next, 1.0) <= longest {
            PROBE_LIKELY
        } else if seconds <= longest {
            PROBE
        } else {
            PROBE_ALL
        };
        self.since_probe >= rest
    }

    /// A step of so many generating rows, and no prompts.
    fn bare_shape(rows: u32, n_kv: u32) -> StepShape {
        StepShape {
            rows,
            n_kv,
            ..StepShape::default()
        }
    }

    /// The place of the largest size of which nearly all steps fit, whatever prompts `shape` has.
    fn best(&self, gap: f64, cost: &CostModel, shape: StepShape) -> usize {
        let (bare, longest) = (self.bare(cost, shape), gap * self.among_all(cost, shape));
        let fits = |&place: &usize| {
            (bare + self.adds(place, cost, shape.n_kv)) * self.margin(place, NEARLY_ALL) <= longest
        };
        (0..=self.ceiling.place()).rev().find(fits).unwrap_or(0)
    }
}

#[cfg(test)]
impl Experience {
    /// With nothing learnt but that all sizes may be tried.
    pub fn daring() -> Self {
        Self {
            ceiling: Ceiling::new(LADDER.len() - 1, LADDER.len()),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose steps double with the first prompt token, then cost little more up to 64.
    fn step(prefill: u32) -> f64 {
        match prefill {
            0 => 0.010,
            1..=64 => 0.014 + 1e-5 * f64::from(prefill),
            _ => 0.014 + 4e-4 * f64::from(prefill),
        }
    }

    fn learnt(scatter: impl Fn(u32) -> f64) -> (Experience, CostModel, Vec<u32>) {
        let (mut experience, mut cost) = (Experience::default(), CostModel::default());
        let mut sizes = Vec::new();
        for number in 0..9_000 {
            let budget = experience.fitting(2.0, &cost, 8, 256);
            let prefill = if number % 3 == 0 || number < 16 {
                0
            } else {
                budget
            };
            sizes.push(prefill);
            if prefill > 0 {
                experience.plans(2.0, &cost, 8, 256);
            }
            let shape = StepShape {
                rows: 8,
                prefill,
                n_kv: 256,
                ..StepShape::default()
            };
            let seconds = step(prefill) * scatter(number);
            experience.observe(2.0, &cost, shape, seconds);
            cost.observe(shape, seconds);
        }
        (experience, cost, sizes)
    }

    #[test]
    fn a_machine_that_is_not_linear_is_learnt_size_by_size() {
        let (experience, cost, _) = learnt(|_| 1.0);
        // 14.6 ms are well within 20; the 52 of the next place are not.
        assert_eq!(experience.fitting(2.0, &cost, 8, 256), 64);
    }

    #[test]
    fn larger_sizes_are_tried_now_and_then_whatever_is_left_of_a_prompt() {
        for left in [u32::MAX, 11] {
            let (mut experience, mut cost) = (Experience::default(), CostModel::default());
            let (mut reading, mut tried) = (0, 0);
            for number in 0..9_000 {
                let mut shape = Experience::bare_shape(8, 256);
                if number >= 16 && number % 3 > 0 {
                    let budget = experience.fitting(2.0, &cost, 8, 256);
                    shape.prefill = budget.min(left);
                    reading += 1;
                    tried += u32::from(budget > LADDER[experience.best(2.0, &cost, shape)]);
                    experience.plans(2.0, &cost, 8, 256);
                }
                let seconds = step(shape.prefill);
                experience.observe(2.0, &cost, shape, seconds);
                cost.observe(shape, seconds);
            }
            let most = reading / PROBE_LIKELY;
            assert!((1..=most).contains(&tried), "{tried}, {left} left");
        }
    }

    #[test]
    fn what_is_left_of_a_prompt_tells_of_the_size_above_it() {
        let (mut experience, cost, _) = learnt(|_| 1.0);
        let shape = StepShape {
            prefill: 50,
            ..Experience::bare_shape(8, 256)
        };
        experience.observe(2.0, &cost, shape, 0.021);
        assert_eq!(experience.fitting(2.0, &cost, 8, 256), 48);
    }

    #[test]
    fn steps_that_scatter_make_it_careful() {
        // Every tenth step takes 1.9 times as long: even the smallest size then passes 2.
        let (experience, cost, sizes) = learnt(|number| if number % 10 == 4 { 1.9 } else { 1.0 });
        assert!(experience.fitting(2.0, &cost, 8, 256) <= 12, "{sizes:?}");
    }

    #[test]
    fn one_row_among_many_sequences_waits_as_long_as_many_rows_do() {
        // Eight rows take 16 ms and one takes 9; each prompt token adds half a millisecond.
        let step = |rows, prefill| 0.008 + 0.001 * f64::from(rows) + 5e-4 * f64::from(prefill);
        let (mut experience, mut cost) = (Experience::daring(), CostModel::default());
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
                experience.ran(rows);
                experience.observe(2.0, &cost, shape, seconds);
                cost.observe(shape, seconds);
            }
            experience.fitting(2.0, &cost, 1, 256)
        };
        // Within 18 ms, of which nearly all of the scatter is kept free.
        let alone = fitting(1, 400);
        // Within 32 ms.
        let among_many = fitting(8, 400);
        assert!(alone <= 12, "{alone}");
        assert!((24..=32).contains(&among_many), "{among_many}");
        // A while later it is alone.
        let again = fitting(1, 600);
        assert!(again <= 12, "{again}");
    }

    #[test]
    fn many_sequences_do_not_make_up_for_rows_that_were_never_computed() {
        // A row takes 1 ms and a step 8 more, but only steps of two rows were seen.
        let (mut experience, mut cost) = (Experience::daring(), CostModel::default());
        for number in 0..400_u32 {
            let shape = StepShape {
                rows: 2,
                prefill: [0, 4, 8, 16][(number % 4) as usize],
                n_kv: 256,
                ..StepShape::default()
            };
            let seconds = 0.010 + 5e-4 * f64::from(shape.prefill);
            experience.ran(64);
            experience.observe(2.0, &cost, shape, seconds);
            cost.observe(shape, seconds);
        }
        // Eight rows take 40 ms at most. If 64 were believed, the prompts would fill any step.
        let budget = experience.fitting(2.0, &cost, 2, 256);
        assert!(budget <= 128, "{budget}");
    }

    #[test]
    fn what_fills_the_rows_tile_is_no_part_of_a_size() {
        assert_eq!([1, 4, 6, 7, 8].map(fill), [3, 0, 2, 1, 0]);
        // Tiles of four take 10 ms each, whatever is in them, and a step 32 more.
        let seconds =
            |rows: u32, prefill: u32| 0.032 + 0.010 * f64::from((rows + prefill).div_ceil(4));
        let (mut experience, mut cost) = (Experience::default(), CostModel::default());
        for number in 0..4_000_u32 {
            let rows = 5 + number / 2 % 4;
            let prefill = match number < 16 || number % 2 == 0 {
                true => 0,
                false => experience.fitting(2.0, &cost, rows, 256) + fill(rows),
            };
            if prefill > 0 {
                experience.plans(2.0, &cost, rows, 256);
            }
            let shape = StepShape {
                rows,
                prefill,
                n_kv: 256,
                ..StepShape::default()
            };
            let seconds = seconds(rows, prefill);
            experience.ran(8);
            experience.observe(2.0, &cost, shape, seconds);
            cost.observe(shape, seconds);
        }
        // Each of the 1,992 steps with prompts is of a size, whatever rows it has.
        let learnt: u32 = experience.sizes.iter().map(|known| known.seen).sum();
        assert!(learnt > 1_900, "{learnt}");
        // 52 ms without prompts; three tiles more take 82, and four 92: too much, with what steps may scatter by.
        for rows in 5..=8 {
            let shape = StepShape {
                rows,
                n_kv: 256,
                ..StepShape::default()
            };
            assert_eq!(
                LADDER[experience.best(2.0, &cost, shape)],
                12,
                "{rows} rows"
            );
        }
    }

    #[test]
    fn most_that_ran_lately_are_usual() {
        let mut experience = Experience::default();
        let mut ran = |counts: &[u32]| {
            counts.iter().for_each(|count| experience.ran(*count));
            experience.usual()
        };
        assert_eq!(ran(&[1]), 1);
        // The last of a round end one after the other.
        assert_eq!(ran(&[8, 8, 7, 6, 5, 4, 3, 2, 1]), 8);
        assert_eq!(ran(&[4; 1_500]), 4);
        assert_eq!(ran(&[1; 1_500]), 1);
    }

    #[test]
    fn a_size_that_fails_is_not_taken_for_good() {
        let (mut experience, cost, _) = learnt(|_| 1.0);
        let shape = StepShape {
            rows: 8,
            prefill: 64,
            n_kv: 256,
            ..StepShape::default()
        };
        experience.observe(2.0, &cost, shape, 0.021);
        assert_eq!(experience.fitting(2.0, &cost, 8, 256), 48);
        let smaller = StepShape {
            prefill: 48,
            ..shape
        };
        experience.observe(2.0, &cost, smaller, step(48));
        assert_eq!(experience.fitting(2.0, &cost, 8, 256), 64);
    }
}
