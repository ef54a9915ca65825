//! Which tenants the next step leaves out, so that one with many requests does not slow down the tokens of the others.
//!
//! All rows of a step wait for each other. A tenant is *large* if a step of its decode rows alone takes more than
//! [`MIN_STRETCH`] times as long as a step of all tenants with fewer rows, as the [cost model](crate::cost_model)
//! predicts. *Short steps* leave out the requests of large tenants, and alternate with full steps. Where a step takes
//! nearly the same time whatever its rows, no tenant is large. With a single tenant, or where the smallest runs nearly as
//! many requests as the largest, the planner looks no further.
//!
//! Short steps follow a full step until they have taken the time that the next full step is expected to take, or until
//! [`MAX_SHORT_STEPS`] of the adapter have passed. So while small tenants compute without a pause, both kinds get equal
//! parts of the time: a large tenant keeps at least half of its throughput.
//!
//! A short step delays no request of higher priority than one that it computes: then the tenant is not left out. Prompts
//! make no tenant large, since the [prefill budget](crate::prefill_budget) bounds them; but a short step leaves out the
//! prompts of large tenants as well. All times include sampling, of which a short step has only its own rows.

use crate::request::{AdapterId, Priority, Tenant};
use crate::running::{RunningRequest, RunningRequests};
use crate::scheduler::Scheduler;
use crate::step::StepShape;
use std::collections::BTreeMap;

/// A tenant is large if its rows alone take more than this many times as long as all smaller tenants. Below that, a
/// token takes at most four times as long as without the tenant, which is not worth half of its throughput.
const MIN_STRETCH: f64 = 3.0;
/// Most short steps between two full steps of an adapter.
const MAX_SHORT_STEPS: u32 = 64;

/// The short steps since the last full step of each adapter.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantSchedule {
    /// At most one for each adapter.
    phases: Vec<ShortPhase>,
    /// The adapter of the planned step, if that is short.
    planned: Option<AdapterId>,
}

/// Short steps of an adapter.
#[derive(Clone, Debug)]
struct ShortPhase {
    adapter: AdapterId,
    steps: u32,
    seconds: f64,
}

/// The tenants without rows in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    tenants: Vec<Tenant>,
    rows: u32,
}

impl LeftOut {
    /// Whether a request has no row.
    pub fn contains(&self, running: &RunningRequest) -> bool {
        self.tenants.contains(&running.request.tenant)
    }

    /// The decode rows that are left out.
    pub fn rows(&self) -> u32 {
        self.rows
    }
}

/// What the ready requests of a tenant, or of several, can add to a step.
#[derive(Clone, Copy, Debug)]
struct Demand {
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
    /// Expected seconds of a short step.
    seconds: f64,
}

impl Division {
    /// Leaves out as few tenants as possible. `None` if no tenant is large. `seconds` of rows and prompt tokens.
    fn of(demands: &[(Tenant, Demand)], seconds: impl Fn(u32, u32) -> f64) -> Option<Self> {
        let (mut division, mut smaller) = (None, Demand::NONE);
        for (index, (_, next)) in demands.iter().enumerate() {
            let short = seconds(smaller.rows, smaller.prefill);
            let larger = &demands[index..];
            if smaller.rows + smaller.prefill > 0
                && seconds(next.rows, 0) > MIN_STRETCH * short
                && larger.iter().all(|(_, one)| one.highest <= smaller.lowest)
            {
                division = Some(Self {
                    small: index,
                    seconds: short,
                });
            }
            smaller.add(next);
        }
        division
    }
}

impl TenantSchedule {
    /// The tenants that the next step of an adapter leaves out. `seconds` of rows and prompt tokens.
    fn next(
        &mut self,
        adapter: AdapterId,
        mut demands: Vec<(Tenant, Demand)>,
        seconds: impl Fn(u32, u32) -> f64,
    ) -> LeftOut {
        demands.sort_by_key(|(tenant, demand)| (demand.rows, *tenant));
        let phase = self.phases.iter().find(|phase| phase.adapter == adapter);
        let (steps, taken) = phase.map_or((0, 0.0), |phase| (phase.steps, phase.seconds));
        let mut all = Demand::NONE;
        demands.iter().for_each(|(_, demand)| all.add(demand));
        let short = Division::of(&demands, &seconds).filter(|division| {
            let full = seconds(all.rows, all.prefill);
            steps < MAX_SHORT_STEPS && taken + division.seconds <= full
        });
        let Some(division) = short else {
            self.phases.retain(|phase| phase.adapter != adapter);
            return LeftOut::default();
        };
        self.planned = Some(adapter);
        match self.phases.iter_mut().find(|one| one.adapter == adapter) {
            Some(phase) => phase.steps += 1,
            None => self.phases.push(ShortPhase {
                adapter,
                steps: 1,
                seconds: 0.0,
            }),
        }
        let large = demands.split_off(division.small);
        LeftOut {
            rows: large.iter().map(|(_, demand)| demand.rows).sum(),
            tenants: large.into_iter().map(|(tenant, _)| tenant).collect(),
        }
    }

    /// Records a computed step.
    pub fn step_done(&mut self, seconds: f64) {
        if let Some(adapter) = self.planned.take()
            && let Some(phase) = self.phases.iter_mut().find(|one| one.adapter == adapter)
        {
            phase.seconds += seconds;
        }
    }

    /// Records a failed step.
    pub fn step_failed(&mut self) {
        self.planned = None;
    }
}

/// What the tenants can add to a step of an adapter with this prefill budget.
fn demands(running: &RunningRequests, adapter: AdapterId, budget: u32) -> Vec<(Tenant, Demand)> {
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

impl Scheduler {
    /// The tenants that the next step of an adapter leaves out. The others have a row if `budget`, the prompt tokens for
    /// which there is room, is above 0 wherever a request is in prefill.
    pub(crate) fn leave_out_tenants(&mut self, adapter: AdapterId, budget: u32) -> LeftOut {
        let (costs, n_kv) = (&self.costs, self.kv.cells.n_kv());
        let seconds = |rows, prefill: u32| {
            costs.step_seconds(StepShape {
                decode_rows: rows,
                prefill: prefill.min(budget),
                n_kv,
                ..StepShape::default()
            })
        };
        // Usually the numbers of running requests tell at little cost that no tenant is large.
        let may_be_large = costs.is_fitted()
            && self
                .queue
                .running_range()
                .is_some_and(|(fewest, most)| seconds(most, 0) > MIN_STRETCH * seconds(fewest, 0));
        let demands = match may_be_large {
            true => demands(&self.running, adapter, budget),
            false => Vec::new(),
        };
        self.tenants.next(adapter, demands, seconds)
    }
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
        let mut schedule = TenantSchedule::default();
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
        // One request of the large tenant is enough.
        let mut mixed = of(1, 64, 0);
        mixed.1.highest = Priority(1);
        assert!(left_out(&[of(0, 1, 0), mixed], 1).is_empty());
    }

    #[test]
    fn prompt_tokens_make_steps_long() {
        let mut prompt = of(0, 0, 0);
        for (tokens, large) in [(4, &[1][..]), (60, &[])] {
            prompt.1.prefill = tokens;
            assert_eq!(left_out(&[prompt, of(1, 64, 0)], 1), large);
        }
    }

    /// The lengths of runs of short steps that take `took` seconds each.
    fn runs(schedule: &mut TenantSchedule, took: Option<f64>, steps: u32) -> Vec<u32> {
        let mut runs = vec![0];
        for _ in 0..steps {
            let demands = vec![of(0, 1, 0), of(1, 64, 0)];
            match schedule.next(ADAPTER, demands, seconds(1)).rows() {
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
    fn full_step_of_another_adapter_changes_nothing() {
        let (mut schedule, mut short) = (TenantSchedule::default(), 0);
        for _ in 0..200 {
            let demands = vec![of(0, 1, 0), of(1, 64, 0)];
            short += u32::from(schedule.next(ADAPTER, demands, seconds(1)).rows() > 0);
            schedule.step_done(0.010);
            let other = schedule.next(AdapterId(1), vec![of(0, 1, 0)], seconds(1));
            assert_eq!(other, LeftOut::default());
            schedule.step_done(0.001);
        }
        // Seven of eight.
        assert_eq!(short, 175);
    }
}
