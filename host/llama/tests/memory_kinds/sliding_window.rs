//! Attention over a sliding window in some layers. llama.cpp keeps two caches: one for the layers
//! that see everything, one for those with a window. What is asked of both is answered from the
//! latter.

use super::*;

const W: u32 = WINDOW;

/// Position as llama.cpp has it.
fn at(position: u32) -> i32 {
    i32::try_from(position).expect("positions are small")
}

fn read(tokens: &[Token]) -> (Arc<Model>, Memory) {
    let model = model(&Architecture::SlidingWindow);
    let mut memory = Memory::new(&model);
    memory.read(0, 0, tokens);
    (model, memory)
}

/// Reads by turns into sequences 0 and 1, a token a step; their cells alternate.
fn by_turns(memory: &mut Memory, tokens: &[Token]) {
    for (position, &token) in (0..).zip(tokens) {
        let row = |seq| (seq, position, std::slice::from_ref(&token));
        memory
            .step(&[row(0), row(1)])
            .expect("the step is computed");
    }
}

#[test]
fn llama_cpp_knows_the_window_and_has_a_full_cache_by_default() {
    let model = model(&Architecture::SlidingWindow);
    // SAFETY: the model is alive; no arguments and a plain struct out.
    unsafe {
        assert_eq!(sys::llama_model_n_swa(model.as_ptr()), at(W));
        assert!(sys::llama_context_default_params().swa_full);
    }
}

#[test]
fn alone_with_a_full_cache_it_can_be_cut_and_shared_anywhere() {
    let tokens = words(10 * W);
    let (model, mut memory) = read(&tokens);
    assert_eq!(memory.span(0), (0, at(10 * W) - 1));
    for cut in [8 * W, 3 * W, W, 5] {
        let right = truth(&model, &tokens[..cut as usize + 1]);
        let next = &tokens[cut as usize..][..1];
        memory.copy(0, 1, 0, at(cut));
        assert_eq!(memory.span(1), (0, at(cut) - 1));
        assert_same(&memory.read(1, cut, next), &right);
        assert!(memory.remove(1, -1, -1));
        assert!(memory.remove(0, at(cut), -1));
        assert_eq!(memory.span(0), (0, at(cut) - 1));
        assert_same(&memory.read(0, cut, next), &right);
        assert!(memory.remove(0, at(cut), -1));
    }
}

#[test]
fn with_a_full_cache_too_cells_behind_the_window_are_taken_when_the_search_comes_by() {
    let model = model(&Architecture::SlidingWindow);
    let mut memory = Memory::new(&model);
    let tokens = words(5 * W);
    by_turns(&mut memory, &tokens);
    assert_eq!(memory.span(0), (0, at(5 * W) - 1));
    // The search begins again at the first of the cells that become free. Those between them are
    // sequence 0's own, and it takes them though there is room for all elsewhere.
    assert!(memory.remove(1, -1, -1));
    memory.read(0, 5 * W, &words(4));
    let (first, last) = memory.span(0);
    assert_eq!(last, at(5 * W) + 3);
    assert!(first > 0, "nothing was lost");
    // What it says itself is right: its window is whole.
    let mut read = tokens.clone();
    read.extend(words(4));
    read.push(9);
    assert_same(&memory.read(0, 5 * W + 4, &[9]), &truth(&model, &read));
}

#[test]
fn a_sequence_that_only_waits_loses_what_is_behind_its_window_to_others() {
    let model = model(&Architecture::SlidingWindow);
    let mut memory = Memory::new(&model);
    let tokens = words(5 * W);
    by_turns(&mut memory, &tokens);
    assert!(memory.remove(1, -1, -1));
    memory.read(2, 0, &words(6 * W));
    let (first, last) = memory.span(0);
    assert!(first > 0 && last == at(5 * W) - 1, "{first} to {last}");
    // At its end it goes on as ever.
    let mut read = tokens.clone();
    read.push(9);
    assert_same(&memory.read(0, 5 * W, &[9]), &truth(&model, &read));
}

#[test]
fn shared_cells_are_not_taken() {
    let model = model(&Architecture::SlidingWindow);
    let mut memory = Memory::new(&model);
    let tokens = words(5 * W);
    by_turns(&mut memory, &tokens);
    memory.copy(0, 3, -1, -1);
    assert!(memory.remove(1, -1, -1));
    memory.read(2, 0, &words(6 * W));
    assert_eq!(memory.span(0), (0, at(5 * W) - 1));
    assert_eq!(memory.span(3), (0, at(5 * W) - 1));
}

#[test]
fn a_saved_sequence_keeps_its_window_only() {
    let tokens = words(5 * W);
    let (_, mut memory) = read(&tokens);
    let state = memory.save(0);
    memory.load(1, &state);
    assert_eq!(memory.span(0), (0, at(5 * W) - 1));
    assert_eq!(memory.span(1), (at(4 * W), at(5 * W) - 1));
}

/// A sequence of five windows whose first position is `4 * W`.
fn with_a_lost_beginning(tokens: &[Token]) -> (Arc<Model>, Memory) {
    let (model, mut memory) = read(tokens);
    let state = memory.save(0);
    memory.load(0, &state);
    assert_eq!(memory.span(0).0, at(4 * W));
    (model, memory)
}

/// The rule: cut to `n` positions, the next token sees the positions after `n - WINDOW`, so the
/// first that is left may be at most `n - WINDOW + 1`.
#[test]
fn a_cut_is_right_as_long_as_the_window_before_it_is_left() {
    let tokens = words(5 * W);
    let (model, mut memory) = with_a_lost_beginning(&tokens);
    let cut = 5 * W - 1;
    assert_eq!(memory.span(0).0, at(cut - W + 1));
    assert!(memory.remove(0, at(cut), -1));
    let next = &tokens[cut as usize..][..1];
    let right = truth(&model, &tokens[..cut as usize + 1]);
    assert_same(&memory.read(0, cut, next), &right);
}

#[test]
fn a_cut_further_back_answers_true_and_is_wrong_without_a_word() {
    let tokens = words(5 * W);
    let (model, mut memory) = with_a_lost_beginning(&tokens);
    let cut = 4 * W + 4;
    assert!(memory.remove(0, at(cut), -1));
    assert_eq!(memory.span(0), (at(4 * W), at(cut) - 1));
    let next = &tokens[cut as usize..][..1];
    let right = truth(&model, &tokens[..cut as usize + 1]);
    assert_other(&memory.read(0, cut, next), &right);
}

#[test]
fn a_cut_before_the_first_position_seems_to_leave_nothing_but_does() {
    let tokens = words(5 * W);
    let (model, mut memory) = with_a_lost_beginning(&tokens);
    let cut = 2 * W;
    assert!(memory.remove(0, at(cut), -1));
    // Said from the windows' cache, which is empty; the other still has `cut` positions, so what
    // is read from the start is beside them and wrong.
    assert_eq!(memory.span(0), (-1, -1));
    let others = &words(60)[50..];
    let right = truth(&model, others);
    assert_other(&memory.read(0, 0, others), &right);
    // Clearing clears both.
    assert!(memory.remove(0, -1, -1));
    assert_same(&memory.read(0, 0, others), &right);
}

#[test]
fn a_shared_part_before_the_first_position_is_wrong_without_a_word() {
    let tokens = words(5 * W);
    let (model, mut memory) = with_a_lost_beginning(&tokens);
    let cut = 3 * W;
    memory.copy(0, 1, 0, at(cut));
    assert_eq!(memory.span(1), (-1, -1));
    let next = &tokens[cut as usize..][..1];
    let right = truth(&model, &tokens[..cut as usize + 1]);
    assert_other(&memory.read(1, cut, next), &right);
}

#[test]
fn without_a_full_cache_the_beginning_goes_when_the_small_one_is_full() {
    let model = model(&Architecture::SlidingWindow);
    let mut memory = Memory::with(&model, |params| params.swa_full = false);
    // 16 positions for each of 4 ids and a step of 64, rounded up to 256 cells.
    let tokens = words(257);
    memory.read(0, 0, &tokens[..256]);
    assert_eq!(memory.span(0), (0, 255));
    let next = memory.read(0, 256, &tokens[256..]);
    assert!(memory.span(0).0 > 0);
    assert_same(&next, &truth(&model, &tokens));
}
