//! Purely recurrent memory: one state for each sequence, and its last position.

use super::*;

fn read() -> (Arc<Model>, Memory, Vec<Token>) {
    let model = model(&Architecture::Mamba);
    let mut memory = Memory::new(&model);
    let tokens = words(21);
    memory.read(0, 0, &tokens[..20]);
    (model, memory, tokens)
}

#[test]
fn only_the_last_position_is_known() {
    let (_, memory, _) = read();
    assert_eq!(memory.span(0), (19, 19));
    assert_eq!(memory.span(1), (-1, -1));
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
fn cutting_out_a_beginning_or_middle_answers_true_and_does_nothing() {
    let (model, mut memory, tokens) = read();
    for (from, to) in [(0, 10), (0, 19), (5, 10), (20, -1)] {
        assert!(memory.remove(0, from, to), "{from} to {to}");
    }
    assert_eq!(memory.span(0), (19, 19));
    assert_same(&memory.read(0, 20, &tokens[20..]), &truth(&model, &tokens));
}

#[test]
fn a_partial_copy_is_silently_the_whole() {
    let (model, mut memory, tokens) = read();
    memory.copy(0, 1, 0, 10);
    assert_eq!(memory.span(1), (19, 19));
    assert_same(&memory.read(1, 20, &tokens[20..]), &truth(&model, &tokens));
}

#[test]
fn a_copy_replaces_what_was_there() {
    let (model, mut memory, tokens) = read();
    memory.read(1, 0, &words(5));
    memory.copy(0, 1, -1, -1);
    assert_same(&memory.read(1, 20, &tokens[20..]), &truth(&model, &tokens));
    // Even by nothing.
    memory.copy(3, 1, -1, -1);
    assert_eq!(memory.span(1), (-1, -1));
}

#[test]
fn a_saved_state_is_as_large_after_a_thousand_tokens_as_after_one() {
    let (_, mut memory, _) = read();
    let short = memory.save(0).len();
    memory.read(1, 0, &words(1));
    assert_eq!(memory.save(1).len(), short);
    // More positions than the context has cells: a state needs none.
    memory.read(2, 0, &words(1000));
    assert_eq!(memory.span(2), (999, 999));
    assert_eq!(memory.save(2).len(), short);
}

#[test]
fn snapshots_to_roll_back_to_are_not_for_this_architecture() {
    let model = model(&Architecture::Mamba);
    let mut memory = Memory::with(&model, |params| params.n_rs_seq = 4);
    // SAFETY: the context is alive.
    assert_eq!(unsafe { sys::llama_n_rs_seq(memory.context.as_ptr()) }, 0);
    memory.read(0, 0, &words(20));
    assert!(!memory.remove(0, 19, -1));
}
