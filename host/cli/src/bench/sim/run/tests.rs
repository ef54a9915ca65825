use super::*;

const SETUP: Setup = Setup {
    chats: 40,
    tenants: 5,
    ids: 4,
    cells: LONGEST,
    queue: 16,
    spill: 100_000,
    step: 0.040,
    time: Time::from_secs(300),
    steps: 4_000,
    faults: 100,
    seed: 1,
};

fn found(setup: &Setup, rate: f64) -> Found {
    match run(setup, rate) {
        Ok(found) => found,
        Err(complaint) => panic!("{}", complaint.text(true)),
    }
}

#[test]
fn every_request_ends_once_and_the_counts_add_up() {
    let Found { counts, hit, .. } = found(&SETUP, 0.2);
    assert!(counts.arrived > 15, "{counts:?}");
    assert_eq!(counts.ended(), counts.arrived, "{counts:?}");
    assert!(counts.admitted >= counts.finished, "{counts:?}");
    assert!(counts.finished > counts.arrived / 2, "{counts:?}");
    assert!(
        counts.cached > 0 && counts.cached < counts.prompt,
        "{counts:?}"
    );
    assert!(counts.failed_steps > 0 && counts.checks > counts.steps);
    assert!(counts.rows >= counts.steps, "{counts:?}");
    assert!(!hit.contains_key(&Bound::Queue), "{hit:?}");
}

#[test]
fn the_same_seed_finds_the_same() {
    let [one, other] = [(); 2].map(|()| found(&SETUP, 0.5));
    assert_eq!(one.counts, other.counts);
    assert_eq!(one.tally, other.tally);
    assert_eq!(one.time, other.time);
    assert_eq!(one.hit, other.hit);
    let virtually = |found: &Found| {
        let Found {
            queue,
            first,
            gaps,
            steps,
            ..
        } = found.clone();
        [queue, first, gaps, steps]
    };
    assert_eq!(virtually(&one), virtually(&other));
    let seed = Setup { seed: 2, ..SETUP };
    assert_ne!(found(&seed, 0.5).counts, one.counts);
}

/// Ten requests a second are more than a host serves that computes some two hundred tokens in one.
#[test]
fn too_many_requests_break_it_and_none_is_lost_for_that() {
    let found = found(&SETUP, 10.0);
    let (counts, hit) = (found.counts, &found.hit);
    assert!(found.breaks() && counts.turned_away() > 0, "{counts:?}");
    assert_eq!(counts.ended(), counts.arrived, "{counts:?}");
    let full = counts.queue_full + counts.tenant_full;
    let told = hit.contains_key(&Bound::Queue) || hit.contains_key(&Bound::TenantQueue);
    assert!(full > 0 && told, "{counts:?}");
    // Somebody waited for an id or for cells: else the queue would not be full.
    let waited = hit.contains_key(&Bound::Ids) || hit.contains_key(&Bound::Cells);
    assert!(waited, "{hit:?}");
}

#[test]
fn states_that_find_no_room_are_lost_and_computed_again() {
    let setup = Setup {
        spill: 5_000,
        ..SETUP
    };
    let Found { counts, hit, .. } = found(&setup, 0.2);
    assert!(counts.forgotten > 0 && counts.aside <= 5_000, "{counts:?}");
    assert_eq!(hit.get(&Bound::Spill), Some(&Time::ZERO), "{hit:?}");
    assert_eq!(counts.ended(), counts.arrived, "{counts:?}");
}
