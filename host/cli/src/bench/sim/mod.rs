//! `corral bench sim`: what breaks first, in virtual time and without a model.
//!
//! The scheduler runs over the engine's simulator, as in its tests, with the load of days: chats that come
//! back, most of which are idle and put aside, requests that share their tenant's beginning, callers that
//! go away, steps that fail. The rate doubles until somebody is not served, or planning a step takes longer
//! than the step. Hosts share nothing; so many of them are this one, with what chance gives it of all
//! requests ([`fleet`]).

mod chance;
mod fleet;
mod found;
mod histogram;
mod report;
mod run;
mod store;
mod workload;

use crate::arguments::SimBench;
use crate::complaint::Complaint;
use fleet::Fleet;
use found::Found;
use run::{Setup, run};
use serde_json::json;
use std::time::Duration;

/// Requests a second with which doubling begins, for steps of [`USUAL`] seconds.
const FIRST: f64 = 0.125;
const USUAL: f64 = 0.040;
/// Most rates that are tried.
const RATES: u32 = 16;
/// Requests that may wait, as on a host where nobody says otherwise.
const QUEUE: usize = 1024;
/// One in so many steps, and moves of states, goes wrong.
const FAULTS: u64 = 2000;
/// Bytes of a token's state: 28 layers of 8 heads with 128 halves each, keys and values (Qwen3-0.6B).
const TOKEN_BYTES: f64 = 114_688.0;

/// Simulates and prints.
pub(super) fn measure(arguments: &SimBench) -> Result<(), Complaint> {
    let setup = Setup {
        chats: usize::try_from(arguments.sequences).unwrap_or(usize::MAX),
        tenants: arguments.tenants,
        ids: arguments.ids,
        cells: arguments.cells,
        queue: QUEUE,
        spill: arguments.spill,
        step: arguments.step_ms / 1e3,
        time: Duration::from_secs_f64(86_400.0 * arguments.days),
        steps: arguments.steps,
        faults: FAULTS,
        seed: arguments.seed,
    };
    let mut all = Vec::new();
    for rate in rates(arguments.rate, setup.step) {
        eprintln!("{rate} requests a second");
        let found = run(&setup, rate)?;
        let breaks = found.breaks();
        all.push(found);
        if breaks {
            break;
        }
    }
    let held = all.iter().filter(|found| !found.breaks());
    let held = held.map(|found| found.rate).max_by(f64::total_cmp);
    let fleet = Fleet::draw(arguments.seed, arguments.hosts, arguments.tenants);
    let rows: Vec<_> = all.iter().map(report::row).collect();
    let about = json!({
        "bench": "sim",
        "sequences": arguments.sequences,
        "days": arguments.days,
        "most_steps": arguments.steps,
        "ids": arguments.ids,
        "cells": arguments.cells,
        "tenants": arguments.tenants,
        "spill_tokens": arguments.spill,
        "step_ms": arguments.step_ms,
        "seed": arguments.seed,
        "fleet": report::fleet(&fleet, held),
    });
    #[allow(clippy::cast_precision_loss)]
    let gigabytes = arguments.spill as f64 * TOKEN_BYTES / 1e9;
    let title = format!(
        "{} sequences of {} tenants, {} ids, {} cells, steps of {} ms and more; room for the states of {} \
         tokens ({gigabytes:.0} GB for Qwen3-0.6B); at each rate {} days or {} steps; {}",
        arguments.sequences,
        arguments.tenants,
        arguments.ids,
        arguments.cells,
        arguments.step_ms,
        arguments.spill,
        arguments.days,
        arguments.steps,
        verdict(&all),
    );
    report::print(arguments.json, about, &title, &rows);
    Ok(())
}

/// What is tried: one rate, or more and more.
fn rates(wanted: Option<f64>, step: f64) -> Vec<f64> {
    match wanted {
        Some(rate) => vec![rate],
        None => (0..RATES)
            .map(|doubled| FIRST * USUAL / step * f64::from(1u32 << doubled))
            .collect(),
    }
}

/// What broke first.
fn verdict(all: &[Found]) -> String {
    let Some(broken) = all.iter().find(|found| found.breaks()) else {
        return "nothing broke".to_owned();
    };
    let first = broken.hit.iter().min_by_key(|(_, time)| **time);
    let first = match first {
        Some((bound, _)) if broken.counts.turned_away() > 0 => bound.name(),
        _ => "the time that planning takes",
    };
    format!(
        "{} requests a second are too many: first it came up against {first}",
        broken.rate
    )
}

#[cfg(test)]
mod tests {
    use super::{Setup, rates, run, verdict};
    use std::time::Duration;

    #[test]
    fn rates_double_from_what_the_machine_can_do() {
        assert_eq!(rates(Some(3.0), 0.040), [3.0]);
        let all = rates(None, 0.010);
        assert_eq!((all[0], all[1], all[15]), (0.5, 1.0, 16_384.0));
    }

    #[test]
    fn the_verdict_names_what_was_met_first() {
        assert_eq!(verdict(&[]), "nothing broke");
        let setup = Setup {
            chats: 0,
            tenants: 3,
            ids: 1,
            cells: 4096,
            queue: 4,
            spill: 0,
            step: 0.040,
            time: Duration::from_secs(60),
            steps: 1_000,
            faults: 1_000_000,
            seed: 1,
        };
        let found = run(&setup, 5.0).unwrap_or_else(|broken| panic!("{}", broken.text(true)));
        let told = verdict(&[found]);
        let expected = "5 requests a second are too many: first it came up against ";
        assert!(told.starts_with(expected), "{told}");
    }
}
