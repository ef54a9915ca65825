//! `corral bench sim`, small: what it tells programs of the scheduler in virtual time.

use corral_tests::benches::{
    bench, check_members, check_positive, check_refused, check_rising, count, measure, number, rows,
};
use serde_json::{Value, json};

/// A host of four sequences at once and five minutes, or less where those have many steps.
const SMALL: &str = "sim --sequences 40 --tenants 5 --hosts 10 --ids 4 --cells 4096 \
                     --days 0.0035 --steps 4000";

/// Requests end in one of these ways.
const ENDS: [&str; 8] = [
    "finished",
    "refused_queue_full",
    "refused_tenant_queue_full",
    "refused_otherwise",
    "expired_in_queue",
    "expired_deadline",
    "left",
    "given_up",
];
/// Those that break a host.
const TURNED_AWAY: [&str; 4] = [
    "refused_queue_full",
    "refused_tenant_queue_full",
    "refused_otherwise",
    "expired_in_queue",
];
/// What is counted beside that.
const COUNTS: [&str; 10] = [
    "recomputed_tokens",
    "most_waiting",
    "most_aside_tokens",
    "spilled",
    "restored",
    "lost",
    "forgotten",
    "preempted",
    "evicted",
    "relocated",
];
/// What is measured by a real clock, and what follows from that.
const REAL: [&str; 9] = [
    "plan_mean_s",
    "plan_p50_s",
    "plan_p99_s",
    "plan_max_s",
    "applied_mean_s",
    "plan_p99_to_step",
    "plan_is_slow",
    "came_up_against",
    "breaks",
];

fn sum(row: &Value, members: &[&str]) -> u64 {
    members.iter().map(|member| count(row, member)).sum()
}

fn breaks(row: &Value) -> bool {
    row["breaks"].as_bool().expect("yes or no")
}

/// Checks what holds of every rate.
fn check_row(row: &Value) {
    assert_eq!(sum(row, &ENDS), count(row, "arrived"), "{row}");
    assert!(
        count(row, "admitted") >= count(row, "finished") && count(row, "finished") > 0,
        "{row}"
    );
    // Of each step several things are checked.
    assert!(count(row, "checks") > count(row, "steps"), "{row}");
    assert!(count(row, "failed_steps") < count(row, "steps"), "{row}");
    for counted in COUNTS {
        count(row, counted);
    }
    let times = [
        "hours",
        "busy",
        "step_p50_s",
        "first_token_p50_s",
        "gap_p50_s",
        "plan_mean_s",
        "plan_p50_s",
        "applied_mean_s",
        "plan_p99_to_step",
    ];
    check_positive(row, &times);
    check_rising(row, &["queue_p50_s", "queue_p99_s"]);
    check_rising(row, &["first_token_p50_s", "first_token_p99_s"]);
    check_rising(row, &["gap_p50_s", "gap_p99_s", "gap_max_s"]);
    check_rising(row, &["plan_p50_s", "plan_p99_s", "plan_max_s"]);
    assert!(number(row, "busy") <= 1.0, "{row}");
    assert!((1.0..=4.0).contains(&number(row, "rows_per_step")), "{row}");
    assert!(number(row, "cached") >= 0.0, "{row}");
    let slow = row["plan_is_slow"].as_bool().expect("yes or no");
    assert_eq!(breaks(row), sum(row, &TURNED_AWAY) > 0 || slow, "{row}");
    let bounds = row["bounds"].as_array().expect("a list");
    for met in bounds {
        let name = met["bound"].as_str().expect("a name");
        let all = 0.0..=number(row, "hours");
        assert!(all.contains(&number(met, "hours")), "{met}");
        let told = row["came_up_against"].as_str().expect("a text");
        assert!(told.contains(name), "{name} in {row}");
    }
}

/// Checks what holds of hosts on paper, of which each holds `held` requests a second.
fn check_fleet(found: &Value, held: Option<f64>) {
    let fleet = &found["fleet"];
    let expected = json!({"hosts": 10, "tenants": 50, "requests": 2000, "held_rate": held});
    check_members(fleet, &expected);
    for how in ["random", "by_tenant"] {
        let load = &fleet[how];
        check_rising(load, &["p99", "most"]);
        assert!(number(load, "most") >= 1.0, "{fleet}");
        assert!((0.0..1.0).contains(&number(load, "idle")), "{fleet}");
        let total = load["total_rate"].as_f64();
        let expected = held.map(|held| held * 10.0 / number(load, "most"));
        let near = |(one, other): (f64, f64)| (one / other - 1.0).abs() < 1e-9;
        assert_eq!(total.is_some(), expected.is_some(), "{fleet}");
        assert!(total.zip(expected).is_none_or(near), "{fleet}");
    }
}

#[test]
fn every_request_ends_once_and_all_that_is_promised_is_told() {
    let found = measure(&format!("{SMALL} --spill 100000 --rate 0.2"), &[]);
    let setup = json!({
        "sequences": 40,
        "days": 0.0035,
        "most_steps": 4000,
        "ids": 4,
        "cells": 4096,
        "tenants": 5,
        "spill_tokens": 100_000,
        "step_ms": 40.0,
        "seed": 1,
    });
    check_members(&found, &setup);
    let [row] = rows(&found) else {
        panic!("one row in {found}");
    };
    check_row(row);
    assert_eq!(row["rate"], 0.2, "{row}");
    assert!(count(row, "arrived") > 15, "{row}");
    assert!(count(row, "finished") > count(row, "arrived") / 2, "{row}");
    // Chats are gone on with, and their states are put aside.
    let cached = number(row, "cached");
    assert!(cached > 0.0 && cached < 1.0, "{row}");
    let aside = count(row, "most_aside_tokens");
    assert!((1..=100_000).contains(&aside), "{row}");
    assert!(count(row, "restored") > 0, "{row}");
    check_fleet(&found, (!breaks(row)).then_some(0.2));
}

#[test]
fn without_room_for_states_none_is_put_aside() {
    let found = measure(&format!("{SMALL} --spill 0 --rate 0.2"), &[]);
    assert_eq!(found["spill_tokens"], 0, "{found}");
    let row = &rows(&found)[0];
    check_row(row);
    let none = json!({"most_aside_tokens": 0, "spilled": 0, "restored": 0, "forgotten": 0});
    check_members(row, &none);
}

/// What follows from the seed alone.
fn virtually(mut found: Value) -> Value {
    let mut take = |at: &str, member: &str| {
        let object = found.pointer_mut(at).and_then(Value::as_object_mut);
        let taken = object.and_then(|object| object.remove(member));
        assert!(taken.is_some(), "{member:?} at {at:?}");
    };
    for member in REAL {
        take("/rows/0", member);
    }
    take("/fleet", "held_rate");
    take("/fleet/random", "total_rate");
    take("/fleet/by_tenant", "total_rate");
    found
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let [one, other, another] = [7, 7, 8].map(|seed| {
        let line = format!("{SMALL} --spill 5000 --rate 0.5 --seed {seed}");
        virtually(measure(&line, &[]))
    });
    assert_eq!(one, other);
    assert_eq!(one["seed"], 7, "{one}");
    assert_ne!(one["rows"], another["rows"]);
    assert_ne!(one["fleet"], another["fleet"]);
}

#[test]
fn the_rate_doubles_until_something_breaks() {
    let found = measure(&format!("{SMALL} --spill 100000"), &[]);
    let rows = rows(&found);
    assert!(rows.len() >= 2, "{found}");
    let mut rate = 0.125;
    for row in rows {
        check_row(row);
        assert_eq!(row["rate"], rate, "{row}");
        rate *= 2.0;
    }
    let broken: Vec<_> = rows.iter().map(breaks).collect();
    let mut expected = vec![false; rows.len()];
    expected[rows.len() - 1] = true;
    assert_eq!(broken, expected, "{found}");
    let last = &rows[rows.len() - 1];
    assert_ne!(last["bounds"], json!([]), "{last}");
    check_fleet(&found, Some(rate / 4.0));

    // Longer steps begin at a lower rate. What people are told says what was checked.
    let ended = bench(&format!("{SMALL} --step-ms 80 --rate 0.1"), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for text in ["steps of 80 ms", "invariants held", "on paper, 10 hosts"] {
        assert!(ended.stdout.contains(text), "{text:?} in {ended:?}");
    }
}

#[test]
fn numbers_that_make_no_sense_are_refused_with_what_would() {
    const NUMBER: &str = "write a number from 0.0001 to 1000000";
    for (line, expected) in [
        ("--rate 0", NUMBER),
        ("--rate=-1", NUMBER),
        ("--rate nan", NUMBER),
        ("--rate 1e9", NUMBER),
        ("--days inf", NUMBER),
        ("--step-ms 0", NUMBER),
        ("--sequences 0", "0 is not in 1..=100000"),
        ("--ids 0", "0 is not in 1..=16384"),
        ("--cells 100", "100 is not in 4096..=4194304"),
        ("--steps 10", "10 is not in 100..=100000000"),
        ("--hosts 0", "0 is not in 1..=100000"),
        ("--seed x", "'x'"),
    ] {
        let option = line.split([' ', '=']).next().unwrap_or_default();
        let ended = bench(&format!("sim {line}"), &[]);
        check_refused(&ended, 2, &[option, expected]);
    }
}
