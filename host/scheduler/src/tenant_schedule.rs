//! Which tenants the next step leaves out, so that one with many requests does not slow down the tokens of the others.
//!
//! All rows of a step wait for each other. A tenant is *large* if a step of its decode rows alone takes more than
//! [`MIN_STRETCH`] times as long as a step of all tenants with fewer rows, as the [cost model](crate::cost_model)
//! predicts. *Short steps* leave out the requests of large tenants, and alternate with full steps. Where a step takes
//! nearly the same time whatever its rows, no tenant is large. With a single tenant, or where the smallest runs nearly as
//! many requests as the largest, the planner looks no further ([`Queue::running_range`](crate::queue::Queue)). It misses
//! a tenant that runs many requests of which few decode now: the others are in prefill, wait, or use another adapter.
//!
//! Short steps follow a full step of their adapter until as much time has passed as the next full step is expected to
//! take, or until [`MAX_SHORT_STEPS`] of the adapter have passed. So while small tenants compute without a pause, both
//! kinds get equal parts of the time: a large tenant keeps at least half of its throughput. Steps of other adapters
//! count too, because the large tenant waits for them as well.
//!
//! The prediction is wrong for long if the engine's first steps were slow for another reason and all later ones have many
//! rows. So every [`PROBE_STEPS`] full steps a short one is tried where the rows alone would make a tenant large.
//!
//! A short step delays no request of higher priority than one that it computes: then the tenant is not left out. Prompts
//! make no tenant large, since the [prefill budget](crate::prefill_budget) bounds them; but a short step leaves out the
//! prompts of large tenants as well. Of the others' prompts it takes only as many tokens as keep it short beside their
//! decode rows; full steps take the rest. All times include sampling, of which a short step has only its own rows.

use crate::prefill_profile::CHUNK_SIZES;
use crate::request::{AdapterId, Priority, Tenant};
use crate::running::{RunningRequest, RunningRequests};
use std::collections::BTreeMap;

/// A tenant is large if its rows alone take more than this many times as long as all smaller tenants. Below that, a
/// token takes at most four times as long as without the tenant, which is not worth half of its throughput.
pub(crate) const MIN_STRETCH: f64 = 3.0;
/// Most short steps between two full steps of an adapter.
pub const MAX_SHORT_STEPS: u32 = 64;
/// Full steps of an adapter until a short step is tried against the prediction.
const PROBE_STEPS: u32 = 32;

/// The short steps since the last full step of each adapter.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantSchedule {
    /// One for each adapter that had steps.
    phases: Vec<ShortPhase>,
    /// Seconds of all computed steps.
    clock: f64,
    /// The adapter of the planned step, if that is full.
    planned_full: Option<AdapterId>,
}

/// What followed the last full step of an adapter.
#[derive(Clone, Debug)]
struct ShortPhase {
    adapter: AdapterId,
    /// Short steps of the adapter since then.
    short_steps: u32,
    /// Full steps of the adapter since the last short one.
    full_steps: u32,
    /// The clock at the end of the full step.
    began: f64,
}

/// The tenants whose rows a step leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOutTenants {
    tenants: Vec<Tenant>,
    rows: u32,
    /// Most prompt tokens of the step, if it is short.
    prefill: Option<u32>,
}

impl LeftOutTenants {
    /// Whether a request has no row.
    pub fn contains(&self, running: &RunningRequest) -> bool {
        self.tenants.contains(&running.request.tenant)
    }

    /// The decode rows that are left out.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The part of a prefill budget that the step may use.
    pub fn limit_prefill(&self, budget: u32) -> u32 {
        self.prefill.map_or(budget, |most| most.min(budget))
    }

    fn is_short(&self) -> bool {
        self.prefill.is_some()
    }
}

/// What the ready requests of a tenant, or of several, can add to a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    rows: u32,
    prefill: u32,
    lowest: Priority,
    highest: Priority,
}

impl Demand {
    const NONE: Self = Self {
        rows: 0,
        prefill: 0,
        lowest: Priority(u8::MAX),
        highest: Priority(0),
    };

    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.prefill = self.prefill.saturating_add(other.prefill);
        self.lowest = self.lowest.min(other.lowest);
        self.highest = self.highest.max(other.highest);
    }
}

/// Tenants in the order of their decode rows. The first `small` of them are small.
struct Division {
    small: usize,
    /// Most prompt tokens of a short step.
    prefill: u32,
    /// Expected seconds of a short step.
    seconds: f64,
}

impl Division {
    /// Leaves out as few tenants as possible. `None` if no tenant is large. `seconds` of rows and prompt tokens.
    fn of(demands: &[(Tenant, Demand)], seconds: impl Fn(u32, u32) -> f64) -> Option<Self> {
        let (mut division, mut smaller) = (None, Demand::NONE);
        for (index, (_, next)) in demands.iter().enumerate() {
            let most = seconds(next.rows, 0) / MIN_STRETCH;
            let larger = &demands[index..];
            if let Some((prefill, seconds)) = smaller.prefill_within(most, &seconds)
                // A part of a prompt must not wait for rows of lower priority.
                && (prefill >= smaller.prefill || smaller.highest == smaller.lowest)
                && larger.iter().all(|(_, one)| one.highest <= smaller.lowest)
            {
                division = Some(Self {
                    small: index,
                    prefill,
                    seconds,
                });
            }
            smaller.add(next);
        }
        division
    }
}

impl Demand {
    /// The prompt tokens with which a step of these requests takes less than `most` seconds, and its time. Where none
    /// decodes, all of them or none: a part of a prompt gains nothing.
    fn prefill_within(&self, most: f64, seconds: impl Fn(u32, u32) -> f64) -> Option<(u32, f64)> {
        let within = |prefill: u32| {
            let seconds = seconds(self.rows, prefill);
            (seconds < most).then_some((prefill, seconds))
        };
        if self.rows == 0 && self.prefill == 0 {
            return None;
        }
        let sizes = CHUNK_SIZES.iter().rev().chain(&[0]);
        let mut smaller = sizes.filter(|size| self.rows > 0 && **size < self.prefill);
        within(self.prefill).or_else(|| smaller.find_map(|size| within(*size)))
    }
}

impl TenantSchedule {
    /// The tenants that the next step of an adapter leaves out. `seconds` of rows and prompt tokens.
    pub fn next(
        &self,
        adapter: AdapterId,
        mut demands: Vec<(Tenant, Demand)>,
        seconds: impl Fn(u32, u32) -> f64,
    ) -> LeftOutTenants {
        demands.sort_by_key(|(tenant, demand)| (demand.rows, *tenant));
        let phase = self.phases.iter().find(|phase| phase.adapter == adapter);
        let (steps, taken) =
            phase.map_or((0, 0.0), |one| (one.short_steps, self.clock - one.began));
        let mut all = Demand::NONE;
        demands.iter().for_each(|(_, demand)| all.add(demand));
        let short = Division::of(&demands, &seconds).filter(|division| {
            let full = seconds(all.rows, all.prefill);
            steps < MAX_SHORT_STEPS && taken + division.seconds <= full
        });
        let Some(division) = short else {
            return LeftOutTenants::default();
        };
        let large = demands.split_off(division.small);
        LeftOutTenants {
            rows: large.iter().map(|(_, demand)| demand.rows).sum(),
            tenants: large.into_iter().map(|(tenant, _)| tenant).collect(),
            prefill: Some(division.prefill),
        }
    }

    /// Whether to try a short step of an adapter although the cost model predicts no large tenant. The first steps of an
    /// engine can make rows look cheap, and as long as all steps have many rows, none corrects that.
    pub fn is_probe_due(&self, adapter: AdapterId) -> bool {
        let phase = self.phases.iter().find(|phase| phase.adapter == adapter);
        phase.is_some_and(|phase| phase.full_steps >= PROBE_STEPS)
    }

    /// The next step computes with `adapter`, without these tenants.
    pub fn begin_step(&mut self, adapter: AdapterId, left_out: &LeftOutTenants) {
        let phase = self.phase(adapter);
        if left_out.is_short() {
            phase.short_steps += 1;
            phase.full_steps = 0;
        } else {
            phase.short_steps = 0;
            phase.full_steps = phase.full_steps.saturating_add(1);
            self.planned_full = Some(adapter);
        }
    }

    /// Whether the planned step is full.
    pub fn plans_full(&self) -> bool {
        self.planned_full.is_some()
    }

    /// Records a computed step.
    pub fn step_done(&mut self, seconds: f64) {
        self.clock += seconds;
        let clock = self.clock;
        if let Some(adapter) = self.planned_full.take() {
            self.phase(adapter).began = clock;
        }
    }

    /// Records a failed step.
    pub fn step_failed(&mut self) {
        self.step_done(0.0);
    }

    fn phase(&mut self, adapter: AdapterId) -> &mut ShortPhase {
        let known = self.phases.iter().position(|one| one.adapter == adapter);
        let index = known.unwrap_or_else(|| {
            self.phases.push(ShortPhase {
                adapter,
                short_steps: 0,
                full_steps: 0,
                began: self.clock,
            });
            self.phases.len() - 1
        });
        &mut self.phases[index]
    }
}

/// What the tenants can add to a step of an adapter with this prefill budget.
pub(crate) fn demands(
    running: &RunningRequests,
    adapter: AdapterId,
    budget: u32,
) -> Vec<(Tenant, Demand)> {
    let mut demands = BTreeMap::new();
    let ready = running.iter().filter(|running| running.is_ready());
    for running in ready.filter(|running| running.adapter() == adapter) {
        let priority = running.request.priority;
        let demand = match running.is_decoding() {
            true => (1, 0),
            false => (0, running.pending().min(budget)),
        };
        let of_tenant = demands.entry(running.request.tenant);
        of_tenant.or_insert(Demand::NONE).add(&Demand {
            rows: demand.0,
            prefill: demand.1,
            lowest: priority,
            highest: priority,
        });
    }
    demands.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTER: AdapterId = AdapterId::NONE;

    fn of(tenant: u32, rows: u32, priority: u8) -> (Tenant, Demand) {
        let priority = Priority(priority);
        let demand = Demand {
            rows,
            prefill: 0,
            lowest: priority,
            highest: priority,
        };
        (Tenant(tenant), demand)
    }

    /// Milliseconds for each row, and a few for each step.
    fn seconds(fixed: u32) -> impl Fn(u32, u32) -> f64 {
        move |rows, prefill| 0.001 * f64::from(fixed + rows + prefill)
    }

    /// The tenants that the first step leaves out.
    fn left_out(demands: &[(Tenant, Demand)], fixed: u32) -> Vec<u32> {
        let schedule = TenantSchedule::default();
        let left_out = schedule.next(ADAPTER, demands.to_vec(), seconds(fixed));
        left_out.tenants.iter().map(|tenant| tenant.0).collect()
    }

    #[test]
    fn tenants_that_stretch_steps_are_left_out() {
        for (rows, fixed, large) in [
            (&[64][..], 1, &[][..]),
            (&[1, 64], 1, &[1]),
            (&[64, 1], 1, &[0]),
            (&[1, 64, 64], 1, &[1, 2]),
            (&[1, 16, 128], 1, &[2]),
            (&[32, 32], 1, &[]),
            (&[1; 64], 1, &[]),
            (&[1, 5], 1, &[]),
            // Steps take nearly the same time whatever their rows.
            (&[1, 64], 40, &[]),
            // Only the second tenant has something to compute.
            (&[0, 64], 1, &[]),
        ] {
            let demands: Vec<_> = (0..).zip(rows).map(|(i, &rows)| of(i, rows, 0)).collect();
            assert_eq!(left_out(&demands, fixed), large, "{rows:?} {fixed}");
        }
    }

    #[test]
    fn higher_priority_is_not_left_out() {
        for (small, large, is_left_out) in [(0, 0, true), (1, 0, true), (0, 1, false)] {
            let demands = [of(0, 1, small), of(1, 64, large)];
            assert_eq!(!left_out(&demands, 1).is_empty(), is_left_out);
        }
        // The cut prompt of a small tenant must not wait for rows of another one.
        for (priority, is_left_out) in [(0, true), (5, false)] {
            let mut prompt = of(1, 0, priority);
            prompt.1.prefill = 500;
            let demands = [prompt, of(0, 1, 0), of(2, 64, 0)];
            assert_eq!(!left_out(&demands, 1).is_empty(), is_left_out);
        }
        // One request of the large tenant is enough.
        let mut mixed = of(1, 64, 0);
        mixed.1.highest = Priority(1);
        assert!(left_out(&[of(0, 1, 0), mixed], 1).is_empty());
    }

    #[test]
    fn short_steps_take_part_of_prompts_beside_rows() {
        // A step of 64 rows takes 65 ms; a short one must take less than a third of that.
        for (rows, prefill, most) in [
            (0, 4, Some(4)),
            (0, 60, None),
            (1, 19, Some(19)),
            (1, 20, Some(16)),
            (1, 500, Some(16)),
            (20, 500, Some(0)),
            (21, 500, None),
        ] {
            let mut small = of(0, rows, 0);
            small.1.prefill = prefill;
            let demands = vec![small, of(1, 64, 0)];
            let left_out = TenantSchedule::default().next(ADAPTER, demands, seconds(1));
            assert_eq!(left_out.prefill, most, "{rows} {prefill}");
            let expected = most.map_or(600, |most| most.min(600));
            assert_eq!(left_out.limit_prefill(600), expected);
        }
    }

    /// Plans the next step of a tenant with one row beside one with 64. Returns how many rows it leaves out.
    fn plan(schedule: &mut TenantSchedule, adapter: AdapterId, large: u32) -> u32 {
        let demands = vec![of(0, 1, 0), of(1, large, 0)];
        let left_out = schedule.next(adapter, demands, seconds(1));
        schedule.begin_step(adapter, &left_out);
        left_out.rows()
    }

    /// The lengths of runs of short steps that take `took` seconds each.
    fn runs(schedule: &mut TenantSchedule, took: Option<f64>, steps: u32) -> Vec<u32> {
        let mut runs = vec![0];
        for _ in 0..steps {
            match plan(schedule, ADAPTER, 64) {
                0 => runs.push(0),
                rows => {
                    assert_eq!(rows, 64);
                    *runs.last_mut().unwrap() += 1;
                }
            }
            match took {
                Some(took) => schedule.step_done(took),
                None => schedule.step_failed(),
            }
        }
        runs.pop();
        runs
    }

    #[test]
    fn short_steps_take_time_of_full_step() {
        // A full step takes 66 ms and a short one 2; the last must be expected to end in time.
        for (took, steps) in [(Some(0.003), 22), (Some(0.010), 7), (Some(1.0), 1)] {
            let runs = runs(&mut TenantSchedule::default(), took, 200);
            assert!(
                runs.len() > 5 && runs.iter().all(|&run| run == steps),
                "{runs:?}"
            );
        }
        // Whatever they take.
        for took in [Some(0.0), None] {
            let runs = runs(&mut TenantSchedule::default(), took, 200);
            assert_eq!(runs, [MAX_SHORT_STEPS; 3]);
        }
    }

    #[test]
    fn steps_of_other_adapters_count() {
        // A full step takes 66 ms, a short one 2.
        for (other, runs) in [(0.0, 7), (0.001, 6), (0.020, 2), (0.060, 1), (0.065, 0)] {
            let (mut schedule, mut short) = (TenantSchedule::default(), 0);
            plan(&mut schedule, ADAPTER, 0);
            for _ in 0..10 * (runs + 1) {
                schedule.step_done(0.010);
                // Full, whatever its length.
                assert_eq!(plan(&mut schedule, AdapterId(1), 0), 0);
                schedule.step_done(other);
                short += u32::from(plan(&mut schedule, ADAPTER, 64) > 0);
            }
            assert_eq!(short, 10 * runs, "{other}");
        }
    }
}
