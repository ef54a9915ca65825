//! Hybrid memory: some layers have a state, the others attention. What is done to both parts is
//! not always the same.

use super::*;

fn read() -> (Arc<Model>, Memory, Vec<Token>) {
    let model = model(&Architecture::Hybrid);
    let mut memory = Memory::new(&model);
    let tokens = words(21);
    memory.read(0, 0, &tokens[..20]);
    (model, memory, tokens)
}

#[test]
fn only_the_last_position_is_known() {
    let (_, memory, _) = read();
    assert_eq!(memory.span(0), (19, 19));
}

#[test]
fn an_end_cannot_be_cut_off_which_is_said_and_harms_nothing() {
    let (model, mut memory, tokens) = read();
    for from in [1, 10, 19] {
        assert!(!memory.remove(0, from, -1));
    }
    assert_eq!(memory.span(0), (19, 19));
    assert_same(&memory.read(0, 20, &tokens[20..]), &truth(&model, &tokens));
}

#[test]
fn cutting_out_a_beginning_or_middle_answers_true_and_spoils_the_sequence() {
    for (from, to) in [(0, 10), (5, 15)] {
        let (model, mut memory, tokens) = read();
        assert!(memory.remove(0, from, to));
        // Nothing shows: the attention's positions are gone, the state is as it was.
        assert_eq!(memory.span(0), (19, 19));
        assert_other(&memory.read(0, 20, &tokens[20..]), &truth(&model, &tokens));
    }
}

#[test]
fn a_partial_copy_is_part_of_the_attention_and_all_of_the_state() {
    let (model, mut memory, tokens) = read();
    memory.copy(0, 1, 0, 10);
    // The one thing that shows: it begins after its end.
    assert_eq!(memory.span(1), (19, 9));
    // It goes on after the attention's end without a word, and wrongly.
    assert_other(
        &memory.read(1, 10, &tokens[10..11]),
        &truth(&model, &tokens[..11]),
    );
}

#[test]
fn an_end_that_is_not_there_can_be_cut_off() {
    let (model, mut memory, tokens) = read();
    assert!(memory.remove(0, 20, -1));
    assert_same(&memory.read(0, 20, &tokens[20..]), &truth(&model, &tokens));
}
