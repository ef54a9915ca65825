//! What a simulation found, for programs and for people.

use super::fleet::{Fleet, Load};
use super::found::Found;
use crate::bench::table::{Column, Unit, tell};
use serde_json::{Value, json};

/// What became of requests.
const REQUESTS: [Column; 11] = [
    ("rate /s", "rate", Unit::Plain),
    ("hours", "hours", Unit::Ratio),
    ("came", "arrived", Unit::Plain),
    ("admitted", "admitted", Unit::Plain),
    ("finished", "finished", Unit::Plain),
    ("queue full", "refused_queue_full", Unit::Plain),
    (
        "tenant's part full",
        "refused_tenant_queue_full",
        Unit::Plain,
    ),
    ("lost patience", "expired_in_queue", Unit::Plain),
    ("past deadline", "expired_deadline", Unit::Plain),
    ("left", "left", Unit::Plain),
    ("given up", "given_up", Unit::Plain),
];

/// How quickly, in virtual time.
const SPEED: [Column; 11] = [
    ("rate /s", "rate", Unit::Plain),
    ("busy", "busy", Unit::Percent),
    ("steps", "steps", Unit::Plain),
    ("failed", "failed_steps", Unit::Plain),
    ("rows a step", "rows_per_step", Unit::Ratio),
    ("step", "step_p50_s", Unit::Milliseconds),
    ("queue p50", "queue_p50_s", Unit::Milliseconds),
    ("queue p99", "queue_p99_s", Unit::Milliseconds),
    ("first token p50", "first_token_p50_s", Unit::Milliseconds),
    ("gap p99", "gap_p99_s", Unit::Milliseconds),
    ("from cache", "cached", Unit::Percent),
];

/// What was done about memory.
const MEMORY: [Column; 9] = [
    ("rate /s", "rate", Unit::Plain),
    ("most waited", "most_waiting", Unit::Plain),
    ("most put aside", "most_aside_tokens", Unit::Plain),
    ("spilled", "spilled", Unit::Plain),
    ("restored", "restored", Unit::Plain),
    ("no room", "forgotten", Unit::Plain),
    ("preempted", "preempted", Unit::Plain),
    ("evicted", "evicted", Unit::Plain),
    ("moved down", "relocated", Unit::Plain),
];

/// What the scheduler itself took, in real time.
const PLAN: [Column; 8] = [
    ("rate /s", "rate", Unit::Plain),
    ("plan mean", "plan_mean_s", Unit::Microseconds),
    ("p50", "plan_p50_s", Unit::Microseconds),
    ("p99", "plan_p99_s", Unit::Microseconds),
    ("longest", "plan_max_s", Unit::Microseconds),
    ("after a step, mean", "applied_mean_s", Unit::Microseconds),
    ("p99/step", "plan_p99_to_step", Unit::Thousandths),
    ("came up against", "came_up_against", Unit::Plain),
];

/// The row of a rate.
pub(super) fn row(found: &Found) -> Value {
    let parts = [requests(found), speed(found), memory(found), plan(found)];
    let members = parts.into_iter().filter_map(|part| match part {
        Value::Object(members) => Some(members),
        _ => None,
    });
    Value::Object(members.flatten().collect())
}

fn requests(found: &Found) -> Value {
    let counts = &found.counts;
    json!({
        "rate": found.rate,
        "hours": hours(found.time.as_secs_f64()),
        "arrived": counts.arrived,
        "admitted": counts.admitted,
        "finished": counts.finished,
        "refused_queue_full": counts.queue_full,
        "refused_tenant_queue_full": counts.tenant_full,
        "refused_otherwise": counts.refused,
        "expired_in_queue": counts.impatient,
        "expired_deadline": counts.deadline,
        "left": counts.left,
        "given_up": counts.given_up,
        "checks": counts.checks,
    })
}

fn speed(found: &Found) -> Value {
    let counts = &found.counts;
    json!({
        "busy": found.steps.sum() / found.time.as_secs_f64().max(f64::MIN_POSITIVE),
        "steps": counts.steps,
        "failed_steps": counts.failed_steps,
        "rows_per_step": part(counts.rows, counts.steps),
        "step_p50_s": found.steps.quantile(0.5),
        "queue_p50_s": found.queue.quantile(0.5),
        "queue_p99_s": found.queue.quantile(0.99),
        "first_token_p50_s": found.first.quantile(0.5),
        "first_token_p99_s": found.first.quantile(0.99),
        "gap_p50_s": found.gaps.quantile(0.5),
        "gap_p99_s": found.gaps.quantile(0.99),
        "gap_max_s": found.gaps.longest(),
        "cached": part(counts.cached, counts.prompt),
    })
}

fn memory(found: &Found) -> Value {
    let (counts, tally) = (&found.counts, &found.tally);
    json!({
        "recomputed_tokens": counts.recomputed,
        "most_waiting": counts.waiting,
        "most_aside_tokens": counts.aside,
        "spilled": tally.spilled,
        "restored": tally.restored,
        "lost": tally.lost,
        "forgotten": counts.forgotten,
        "preempted": tally.preempted,
        "evicted": tally.evicted,
        "relocated": tally.relocated,
    })
}

fn plan(found: &Found) -> Value {
    let mut hit: Vec<_> = found.hit.iter().collect();
    // Of those at one moment the first is the one that stands first in `Bound`.
    hit.sort_by_key(|(_, time)| **time);
    let hit = hit.into_iter();
    let hit: Vec<_> = hit
        .map(|(bound, time)| (bound.name(), hours(time.as_secs_f64())))
        .collect();
    let bounds: Vec<_> = hit
        .iter()
        .map(|(bound, hours)| json!({"bound": bound, "hours": hours}))
        .collect();
    let mut against: Vec<_> = hit
        .iter()
        .map(|(bound, hours)| format!("{bound} ({hours:.2} h)"))
        .collect();
    if found.plan_is_slow() {
        against.push("plan longer than a step".to_owned());
    }
    let against = match against.is_empty() {
        true => "nothing".to_owned(),
        false => against.join(", "),
    };
    let step = found.steps.quantile(0.5).max(f64::MIN_POSITIVE);
    json!({
        "plan_mean_s": found.plan.mean(),
        "plan_p50_s": found.plan.quantile(0.5),
        "plan_p99_s": found.plan.quantile(0.99),
        "plan_max_s": found.plan.longest(),
        "applied_mean_s": found.applied.mean(),
        "plan_p99_to_step": found.plan.quantile(0.99) / step,
        "plan_is_slow": found.plan_is_slow(),
        "bounds": bounds,
        "came_up_against": against,
        "breaks": found.breaks(),
    })
}

/// What many hosts have of one rate each: `held` is the highest at which a host did not break.
pub(super) fn fleet(fleet: &Fleet, held: Option<f64>) -> Value {
    let load = |load: Load| {
        json!({
            "most": load.most,
            "p99": load.p99,
            "idle": load.idle,
            "total_rate": held.map(|rate| rate * count(fleet.hosts) / load.most.max(f64::MIN_POSITIVE)),
        })
    };
    json!({
        "hosts": fleet.hosts,
        "tenants": fleet.tenants,
        "requests": fleet.requests,
        "held_rate": held,
        "random": load(fleet.random),
        "by_tenant": load(fleet.hashed),
    })
}

/// Prints all of it.
pub(super) fn print(as_json: bool, setup: Value, title: &str, rows: &[Value]) {
    if as_json {
        tell(true, setup, title, &[], rows);
        return;
    }
    println!("{title}\n");
    let table = |title: &str, columns: &[Column]| {
        tell(false, Value::Null, title, columns, rows);
        println!();
    };
    table("what became of requests", &REQUESTS);
    table(
        "virtual time, ms; waiting of those that were admitted",
        &SPEED,
    );
    table("memory: sequences, and tokens put aside", &MEMORY);
    table("real time that the scheduler took, µs", &PLAN);
    let checks: u64 = rows.iter().filter_map(|row| row["checks"].as_u64()).sum();
    println!(
        "{checks} invariants held: every request ended once, nothing was left at the end of any rate"
    );
    print_fleet(&setup["fleet"]);
}

fn print_fleet(fleet: &Value) {
    println!(
        "on paper, {} hosts with {} tenants, {} requests:",
        fleet["hosts"], fleet["tenants"], fleet["requests"]
    );
    for (key, how) in [
        ("random", "by chance"),
        ("by_tenant", "by the hash of the tenant"),
    ] {
        let number = |name: &str| fleet[key][name].as_f64().unwrap_or(0.0);
        let total = match fleet[key]["total_rate"].as_f64() {
            Some(total) => format!("; so all hosts together hold {total:.0} requests a second"),
            None => String::new(),
        };
        println!(
            "  {how}: the most loaded host has {:.2} times the mean, the 99th percentile {:.2}, \
             and {:.1} % have nothing{total}",
            number("most"),
            number("p99"),
            100.0 * number("idle"),
        );
    }
}

fn hours(seconds: f64) -> f64 {
    seconds / 3600.0
}

#[allow(clippy::cast_precision_loss)]
fn count(number: u64) -> f64 {
    number as f64
}

fn part(some: u64, all: u64) -> f64 {
    count(some) / count(all.max(1))
}
