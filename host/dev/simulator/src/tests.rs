use super::*;
use corral_scheduler::SeqId;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn steps_predict_and_take_cells_and_time() {
    let size = Size {
        seq_ids: 2,
        cells: 3,
        step_tokens: 4,
        vocabulary: 1000,
    };
    let faults = BTreeMap::from([(1, Fault::Code(-2)), (2, Fault::Slow(10.0))]);
    let mut simulator = SimulatedBackend::new(size, Machine::default(), faults);
    let input = |token, position, output| Input {
        token,
        position,
        seq: SeqId(1),
        output,
    };
    let step = [input(7, 0, false), input(8, 1, true)];
    assert_eq!(simulator.decode(&step), Ok(()));
    assert_eq!(simulator.logits(0), None);
    let row = simulator.logits(1).unwrap();
    assert_eq!((row.len(), row[9], row[8], row[10]), (1000, 10.0, 0.0, 0.0));
    let took = simulator.took();
    let next = [input(9, 2, true)];
    assert_eq!(simulator.decode(&next), Err(DecodeError::Failed(-2)));
    assert_eq!(simulator.decode(&next), Ok(()));
    assert!(simulator.took() > 5 * took);
    let expected = Err(DecodeError::NoRoom);
    assert_eq!(simulator.decode(&[input(1, 3, true)]), expected);
    assert_eq!(simulator.held(SeqId(1)), [7, 8, 9]);
    simulator.clear(SeqId(1));
    assert_eq!((simulator.used(), simulator.length(SeqId(1))), (0, 0));
}

const SIZE: Size = Size {
    seq_ids: 4,
    cells: 10,
    step_tokens: 8,
    vocabulary: 1000,
};

/// Puts tokens behind what a sequence holds.
fn feed(simulator: &mut SimulatedBackend, seq: SeqId, tokens: &[Token]) -> Result<(), DecodeError> {
    let from = simulator.length(seq);
    let input = |(position, &token)| Input {
        token,
        position,
        seq,
        output: false,
    };
    let step: Vec<_> = (from..).zip(tokens).map(input).collect();
    simulator.decode(&step)
}

#[test]
fn shared_cells_free_with_last_holder() {
    let [a, b, c] = [0, 1, 2].map(SeqId);
    let mut simulator = SimulatedBackend::new(SIZE, Machine::default(), BTreeMap::new());
    feed(&mut simulator, a, &[1, 2, 3, 4, 5]).unwrap();
    simulator.share(a, b, 3);
    simulator.share(b, c, 2);
    assert_eq!((simulator.used(), simulator.length(b)), (5, 3));
    feed(&mut simulator, b, &[9]).unwrap();
    let expected = (&[1, 2, 3, 9][..], 4);
    assert_eq!((simulator.held(b), simulator.held(a)[3]), expected);
    simulator.truncate(a, 1);
    assert_eq!((simulator.used(), simulator.held(a)), (4, &[1][..]));
    simulator.clear(b);
    assert_eq!((simulator.used(), simulator.held(c)), (2, &[1, 2][..]));
    // Room is counted by cells: eight are free.
    feed(&mut simulator, b, &[0; 8]).unwrap();
    assert_eq!(feed(&mut simulator, a, &[0]), Err(DecodeError::NoRoom));
    for seq in [a, b, c] {
        simulator.clear(seq);
    }
    assert_eq!(simulator.used(), 0);
}

#[test]
fn saved_state_loads_unless_damaged_or_full() {
    let [a, b] = [0, 1].map(SeqId);
    let faults = BTreeSet::from([1, 3]);
    let mut simulator =
        SimulatedBackend::new(SIZE, Machine::default(), BTreeMap::new()).with_state_faults(faults);
    feed(&mut simulator, a, &[7, 8, 999]).unwrap();
    let state = simulator.save(a, 20).unwrap();
    let bytes = state.len();
    assert_eq!(simulator.save(a, 20), Err(SaveError::NoMemory { bytes }));
    let found = simulator.save(a, 19);
    assert_eq!(found, Err(SaveError::TooLarge { bytes, limit: 19 }));
    assert!(!simulator.load(b, &state), "a fault");
    for damaged in [
        &state[..0],
        &state[..19],
        &state[4..],
        &[state.clone(), vec![0]].concat(),
    ] {
        assert!(!simulator.load(b, damaged));
    }
    let mut damaged = state.clone();
    damaged[17] ^= 0x80;
    assert!(!simulator.load(b, &damaged), "an unknown token");
    assert_eq!((simulator.length(b), simulator.used()), (0, 3));
    assert!(simulator.load(b, &state));
    assert_eq!((simulator.held(b), simulator.used()), (&[7, 8, 999][..], 6));
    feed(&mut simulator, a, &[0, 0]).unwrap();
    assert!(!simulator.load(SeqId(2), &state), "no room for three more");
    simulator.truncate(a, 4);
    assert!(simulator.load(SeqId(2), &state));
}

#[test]
#[should_panic(expected = "as a whole")]
fn memory_without_parts_frees_wholes_only() {
    let mut simulator =
        SimulatedBackend::new(SIZE, Machine::default(), BTreeMap::new()).without_parts();
    feed(&mut simulator, SeqId(0), &[1, 2, 3]).unwrap();
    simulator.share(SeqId(0), SeqId(1), 3);
    simulator.truncate(SeqId(0), 0);
    assert_eq!((simulator.used(), simulator.length(SeqId(1))), (3, 3));
    simulator.truncate(SeqId(1), 2);
}
