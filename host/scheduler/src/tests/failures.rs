//! Steps that fail: who is to blame is found, and nobody else pays for it.

use super::*;

/// One is bad, and another is met each time by the moment of the device that follows: the first is given up, and the
/// other gets on. If that one is bad as well, it is soon found where nobody fails before it.
#[test]
fn who_fails_right_after_a_bad_one_is_not_taken_for_it() {
    let given_up = |second_is_bad: bool| {
        let mut scheduler = Scheduler::new(CONFIG);
        for key in 1..=3 {
            enqueue(&mut scheduler, key, 1, 30);
        }
        let mut ended = Vec::new();
        for moment in 0..20 {
            // Beyond the longest pause.
            let now = moment * Duration::from_millis(250);
            let step = scheduler.plan(now);
            let has = |key: u64| step.rows.iter().any(|row| row.request == RequestId(key));
            let others = !second_is_bad && !ended.is_empty();
            if has(1) || (has(2) && !others) {
                let found = scheduler.applied(StepResult::Failed { now });
                ended.extend(found.map(|key| (moment, key.0)));
            } else {
                computed(&mut scheduler, &step, &[]);
            }
        }
        ended
    };
    // The first step has all three. Each time these two fail alone, the third gets on, and a step of two fails. Without
    // the first, the second fails alone again right away, which still counts half, and then twice by itself.
    assert_eq!(given_up(false), [(9, 1)]);
    assert_eq!(given_up(true), [(9, 1), (16, 2)]);
}
