//! How much longer prompts may make a step.
//!
//! Prompts and decoding requests share the steps, so one [target](crate::Latency) is met at the expense of the other.
//! A step with prompts takes at most `gap` times as long as a step without, with as many decode rows as requests usually
//! run. If the prompts would then miss their targets for the first token, the step may take longer, up to `max_gap`
//! times ([`stretch`]): no longer than the targets need.
//!
//! The strictest decoding request decides, whatever its priority, so a gap is kept beside any prompt. That starves no
//! prompt: no gap is below `Latency::MIN_GAP`, and each step may take the smallest chunk. Priority decides how long
//! the gap stays short: for a prompt of higher priority, a request allows its `max_gap` at once.
//!
//! Against requests of other tenants, a prompt's first-token target counts as no earlier than the earliest first-token
//! target of those requests. So a tenant whose targets nobody can meet gains nothing at the others' expense.

use crate::Time;
use crate::cost_model::CostModel;
use crate::request::{Priority, Request, Tenant};
use crate::running::RunningRequest;
use std::time::Duration;

/// The part of the time until its target that a prompt may take: predictions are not exact.
const USABLE_TIME: f64 = 0.7;

/// When the first token of a request is due: at its target, or in the middle of the time until its deadline if that is
/// earlier. A request that was preempted is late: its next token is due.
pub(crate) fn first_token_due(request: &Request) -> Time {
    due_within(request, request.latency.first_token)
}

/// When the first token of a request is due with another target.
fn due_within(request: &Request, target: Duration) -> Time {
    if request.progress.generated > 0 {
        return request.arrived_at;
    }
    let due = request.arrived_at + target;
    let middle =
        |deadline: Time| request.arrived_at + deadline.saturating_sub(request.arrived_at) / 2;
    request
        .deadline
        .map_or(due, |deadline| due.min(middle(deadline)))
}

/// The earliest first token among delayed requests, for prompts of each tenant.
#[derive(Clone, Copy, Debug, Default)]
struct OthersTargets {
    earliest: Option<(Duration, Tenant)>,
    /// The earliest of all tenants but that one.
    second: Option<Duration>,
}

impl OthersTargets {
    fn of<'a>(delayed: impl Iterator<Item = &'a RunningRequest>) -> Self {
        let mut targets = Self::default();
        for Request {
            latency, tenant, ..
        } in delayed.map(|running| &running.request)
        {
            let next = latency.first_token;
            match targets.earliest {
                Some((first, of)) if of == *tenant => {
                    targets.earliest = Some((first.min(next), of));
                }
                Some((first, _)) if first <= next => {
                    targets.second = Some(targets.second.map_or(next, |one| one.min(next)));
                }
                first => {
                    targets.earliest = Some((next, *tenant));
                    targets.second = first.map(|(first, _)| first);
                }
            }
        }
        targets
    }

    /// The first-token target that a prompt may claim against the delayed requests of other tenants.
    fn limit(&self, prompt: &Request) -> Duration {
        let others = match self.earliest {
            Some((target, tenant)) if tenant != prompt.tenant => Some(target),
            Some(_) => self.second,
            None => None,
        };
        others.map_or(prompt.latency.first_token, |one| {
            one.max(prompt.latency.first_token)
        })
    }
}

/// The prompts of a step, and what they need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefillNeed {
    /// The highest priority.
    highest: Priority,
    /// The stretch that lets all of them meet their targets.
    stretch: f64,
}

impl PrefillNeed {
    /// Computes the need of `prompts`, in the order of service, at `now`. Only first tokens have a target. In steps
    /// stretched by `s`, prompts get the fraction 1 - 1/s of the time. The usual step stays `margin` times below its
    /// stretch, so that nearly none exceeds it.
    pub fn of<'a>(
        prompts: impl Iterator<Item = &'a RunningRequest>,
        delayed: impl Iterator<Item = &'a RunningRequest>,
        costs: &CostModel,
        n_kv: u32,
        now: Time,
        margin: f64,
    ) -> Self {
        let mut need = Self::default();
        let mut tokens = 0_u32;
        let others = OthersTargets::of(delayed);
        for running in prompts {
            need.highest = need.highest.max(running.request.priority);
            tokens = tokens.saturating_add(running.pending());
            if running.request.progress.generated > 0 {
                continue;
            }
            let due = due_within(&running.request, others.limit(&running.request));
            let left = USABLE_TIME * due.saturating_sub(now).as_secs_f64();
            let free = 1.0 - costs.prefill_seconds(tokens, n_kv) / left;
            let stretch = match free > 0.0 {
                true => margin / free,
                false => f64::INFINITY,
            };
            need.stretch = need.stretch.max(stretch);
        }
        need
    }
}

/// How many times as long as its decode rows a step may take, beside these requests that it delays.
pub(crate) fn stretch<'a>(
    delayed: impl Iterator<Item = &'a RunningRequest>,
    need: PrefillNeed,
) -> f64 {
    let (mut gap, mut max_gap) = (f64::INFINITY, f64::INFINITY);
    for Request {
        latency, priority, ..
    } in delayed.map(|running| &running.request)
    {
        max_gap = latency.max_gap.min(max_gap);
        gap = gap.min(match *priority < need.highest {
            true => latency.max_gap,
            false => latency.gap,
        });
    }
    need.stretch.clamp(gap.min(max_gap), max_gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency_targets::Latency;
    use crate::step::{SeqId, StepShape};
    use crate::tests::request;

    const NONE: PrefillNeed = PrefillNeed {
        highest: Priority(0),
        stretch: 0.0,
    };

    fn running(latency: Latency, priority: u8, prompt: u32) -> RunningRequest {
        let request = Request {
            latency,
            priority: Priority(priority),
            ..request(1, prompt, 8)
        };
        RunningRequest::new(request, SeqId(0), prompt, 1)
    }

    /// A machine that computes a thousand prompt tokens a second.
    fn costs() -> CostModel {
        let mut costs = CostModel::default();
        for number in 0..200 {
            let shape = StepShape {
                decode_rows: number % 4,
                prefill: 100 * (number % 3),
                n_kv: 256,
                ..StepShape::default()
            };
            let tokens = f64::from(shape.prefill) + 5.0 * f64::from(shape.decode_rows);
            costs.observe(shape, 0.020 + 0.001 * tokens);
        }
        costs
    }

    fn need(prompts: &[RunningRequest], milliseconds: u64) -> PrefillNeed {
        let now = Duration::from_millis(milliseconds);
        PrefillNeed::of(prompts.iter(), [].iter(), &costs(), 256, now, 1.0)
    }

    #[test]
    fn stretch_grows_near_the_target() {
        let decoding = [running(Latency::BALANCED, 0, 8)];
        let prompts = [running(Latency::BALANCED, 0, 700)];
        let at = |milliseconds| stretch(decoding.iter(), need(&prompts, milliseconds));
        // 0.7 s of work in 1.4 usable ones; in 1.05; at last in less time than it takes.
        assert!((at(0) - 2.0).abs() < 0.1, "{}", at(0));
        assert!((at(500) - 3.0).abs() < 0.2, "{}", at(500));
        assert_eq!(at(1_200), 4.0);
        assert_eq!(at(10_000), 4.0);
        assert_eq!(stretch(decoding.iter(), NONE), 2.0);
    }

    #[test]
    fn strictest_decoding_request_decides() {
        let late = need(&[running(Latency::THROUGHPUT, 0, 8)], 100_000);
        let [stream, balanced, throughput] =
            [Latency::STREAM, Latency::BALANCED, Latency::THROUGHPUT]
                .map(|latency| running(latency, 0, 8));
        for (delayed, expected) in [
            (vec![&throughput], 16.0),
            (vec![&throughput, &balanced], 4.0),
            (vec![&balanced, &stream, &throughput], 2.0),
        ] {
            assert_eq!(stretch(delayed.into_iter(), late), expected);
        }
    }

    #[test]
    fn higher_priority_stretches_gaps_at_once() {
        let decoding = [running(Latency::BALANCED, 1, 8)];
        for (priority, expected) in [(0, 2.0), (1, 2.0), (2, 4.0)] {
            let need = need(&[running(Latency::THROUGHPUT, priority, 8)], 0);
            assert_eq!(stretch(decoding.iter(), need), expected);
        }
        // A strict gap has no room.
        let strict = [running(Latency::STREAM, 1, 8)];
        let need = need(&[running(Latency::THROUGHPUT, 2, 8)], 0);
        assert_eq!(stretch(strict.iter(), need), 2.0);
    }

    #[test]
    fn later_prompts_count_with_those_before() {
        let one = running(Latency::BALANCED, 0, 350);
        let alone = need(std::slice::from_ref(&one), 0).stretch;
        assert!((alone - 4.0 / 3.0).abs() < 0.05, "{alone}");
        let both = need(&[one.clone(), one], 0).stretch;
        assert!((both - 2.0).abs() < 0.1, "{both}");
    }

    #[test]
    fn strict_target_gains_nothing_from_others() {
        let of = |tenant, latency: &str| {
            let mut one = running(latency.parse().unwrap(), 0, 700);
            one.request.tenant = Tenant(tenant);
            one
        };
        let prompt = of(0, "2,4,1");
        let [same, other, later] = [of(0, "2,4,1"), of(1, "2,4,2000"), of(2, "2,4,60000")];
        for (delayed, expected) in [
            (vec![&same], 4.0),
            (vec![&other], 2.0),
            (vec![&other, &later], 2.0),
            (vec![&later, &other], 2.0),
            // The same tenant's targets do not count, whatever their order.
            (vec![&same, &other], 2.0),
            (vec![&other, &same, &later], 2.0),
        ] {
            let beside = delayed.iter().copied();
            let need = PrefillNeed::of(
                [&prompt].into_iter(),
                beside,
                &costs(),
                256,
                Time::ZERO,
                1.0,
            );
            let found = stretch(delayed.iter().copied(), need);
            assert!((found - expected).abs() < 0.1, "{found} of {expected}");
        }
    }
}
