//! Sliding-window attention in some layers. llama.cpp keeps one cache for layers with full attention and one for those
//! with a window, and answers queries from the latter.

use super::*;

const W: u32 = WINDOW;

/// Converts a position to llama.cpp's type.
fn pos(position: u32) -> i32 {
    i32::try_from(position).expect("positions are small")
}

fn with_tokens(tokens: &[Token]) -> (Arc<Model>, TestContext) {
    let model = model(&Architecture::SlidingWindow);
    let mut context = TestContext::new(&model);
    context.feed(0, 0, tokens);
    (model, context)
}

/// Decodes a token of sequences 0 and 1 in each step, so that their cells alternate.
fn feed_alternating(context: &mut TestContext, tokens: &[Token]) {
    for (position, &token) in (0..).zip(tokens) {
        let row = |seq| (seq, position, std::slice::from_ref(&token));
        context
            .step(&[row(0), row(1)])
            .expect("the step is computed");
    }
}

#[test]
fn cache_is_full_size_by_default() {
    let model = model(&Architecture::SlidingWindow);
    // SAFETY: the model is alive; no arguments and a plain struct out.
    unsafe {
        assert_eq!(sys::llama_model_n_swa(model.as_ptr()), pos(W));
        assert!(sys::llama_context_default_params().swa_full);
    }
}

#[test]
fn single_sequence_can_be_cut_and_shared_anywhere() {
    let tokens = test_tokens(10 * W);
    let (model, mut context) = with_tokens(&tokens);
    assert_eq!(context.span(0), (0, pos(10 * W) - 1));
    for cut in [8 * W, 3 * W, W, 5] {
        let right = expected(&model, &tokens[..cut as usize + 1]);
        let next = &tokens[cut as usize..][..1];
        context.copy(0, 1, 0, pos(cut));
        assert_eq!(context.span(1), (0, pos(cut) - 1));
        assert_same(&context.feed(1, cut, next), &right);
        assert!(context.remove(1, -1, -1));
        assert!(context.remove(0, pos(cut), -1));
        assert_eq!(context.span(0), (0, pos(cut) - 1));
        assert_same(&context.feed(0, cut, next), &right);
        assert!(context.remove(0, pos(cut), -1));
    }
}

#[test]
fn sequence_reuses_its_cells_behind_the_window() {
    let model = model(&Architecture::SlidingWindow);
    let mut context = TestContext::new(&model);
    let tokens = test_tokens(5 * W);
    feed_alternating(&mut context, &tokens);
    assert_eq!(context.span(0), (0, pos(5 * W) - 1));
    // The search restarts at the first freed cell. The cells between the freed ones belong to sequence 0, which takes
    // them although there is room elsewhere.
    assert!(context.remove(1, -1, -1));
    context.feed(0, 5 * W, &test_tokens(4));
    let (first, last) = context.span(0);
    assert_eq!(last, pos(5 * W) + 3);
    assert!(first > 0, "it kept all positions");
    // Its own window is complete, so its logits are right.
    let mut all = tokens.clone();
    all.extend(test_tokens(4));
    all.push(9);
    assert_same(&context.feed(0, 5 * W + 4, &[9]), &expected(&model, &all));
}

#[test]
fn idle_sequence_loses_cells_behind_its_window() {
    let model = model(&Architecture::SlidingWindow);
    let mut context = TestContext::new(&model);
    let tokens = test_tokens(5 * W);
    feed_alternating(&mut context, &tokens);
    assert!(context.remove(1, -1, -1));
    context.feed(2, 0, &test_tokens(6 * W));
    let (first, last) = context.span(0);
    assert!(first > 0 && last == pos(5 * W) - 1, "{first} to {last}");
    // It still continues from its end.
    let mut all = tokens.clone();
    all.push(9);
    assert_same(&context.feed(0, 5 * W, &[9]), &expected(&model, &all));
}

#[test]
fn shared_cells_are_kept() {
    let model = model(&Architecture::SlidingWindow);
    let mut context = TestContext::new(&model);
    let tokens = test_tokens(5 * W);
    feed_alternating(&mut context, &tokens);
    context.copy(0, 3, -1, -1);
    assert!(context.remove(1, -1, -1));
    context.feed(2, 0, &test_tokens(6 * W));
    assert_eq!(context.span(0), (0, pos(5 * W) - 1));
    assert_eq!(context.span(3), (0, pos(5 * W) - 1));
}

#[test]
fn saved_state_contains_only_the_window() {
    let tokens = test_tokens(5 * W);
    let (_, mut context) = with_tokens(&tokens);
    let state = context.save(0);
    context.load(1, &state);
    assert_eq!(context.span(0), (0, pos(5 * W) - 1));
    assert_eq!(context.span(1), (pos(4 * W), pos(5 * W) - 1));
}

/// A sequence of five windows whose first position is `4 * W`.
fn with_lost_start(tokens: &[Token]) -> (Arc<Model>, TestContext) {
    let (model, mut context) = with_tokens(tokens);
    let state = context.save(0);
    context.load(0, &state);
    assert_eq!(context.span(0).0, pos(4 * W));
    (model, context)
}

/// Cut to `n` positions, the next token attends to the positions after `n - WINDOW`, so the first remaining position may
/// be at most `n - WINDOW + 1`.
#[test]
fn cut_is_right_if_its_window_remains() {
    let tokens = test_tokens(5 * W);
    let (model, mut context) = with_lost_start(&tokens);
    let cut = 5 * W - 1;
    assert_eq!(context.span(0).0, pos(cut - W + 1));
    assert!(context.remove(0, pos(cut), -1));
    let next = &tokens[cut as usize..][..1];
    let right = expected(&model, &tokens[..cut as usize + 1]);
    assert_same(&context.feed(0, cut, next), &right);
}

#[test]
fn cut_beyond_the_window_is_silently_wrong() {
    let tokens = test_tokens(5 * W);
    let (model, mut context) = with_lost_start(&tokens);
    let cut = 4 * W + 4;
    assert!(context.remove(0, pos(cut), -1));
    assert_eq!(context.span(0), (pos(4 * W), pos(cut) - 1));
    let next = &tokens[cut as usize..][..1];
    let right = expected(&model, &tokens[..cut as usize + 1]);
    assert_different(&context.feed(0, cut, next), &right);
}

#[test]
fn cut_before_the_first_position_leaves_hidden_cells() {
    let tokens = test_tokens(5 * W);
    let (model, mut context) = with_lost_start(&tokens);
    let cut = 2 * W;
    assert!(context.remove(0, pos(cut), -1));
    // The window cache is empty, but the other still has `cut` positions, so new tokens from position 0 attend to them.
    assert_eq!(context.span(0), (-1, -1));
    let others = &test_tokens(60)[50..];
    let right = expected(&model, others);
    assert_different(&context.feed(0, 0, others), &right);
    // Clearing clears both.
    assert!(context.remove(0, -1, -1));
    assert_same(&context.feed(0, 0, others), &right);
}

#[test]
fn shared_part_before_first_position_is_wrong() {
    let tokens = test_tokens(5 * W);
    let (model, mut context) = with_lost_start(&tokens);
    let cut = 3 * W;
    context.copy(0, 1, 0, pos(cut));
    assert_eq!(context.span(1), (-1, -1));
    let next = &tokens[cut as usize..][..1];
    let right = expected(&model, &tokens[..cut as usize + 1]);
    assert_different(&context.feed(1, cut, next), &right);
}

#[test]
fn small_cache_drops_old_positions_when_full() {
    let model = model(&Architecture::SlidingWindow);
    let mut context = TestContext::with(&model, |params| params.swa_full = false);
    // The cache has 16 positions for each of 4 ids plus a step of 64, rounded up to 256 cells.
    let tokens = test_tokens(257);
    context.feed(0, 0, &tokens[..256]);
    assert_eq!(context.span(0), (0, 255));
    let next = context.feed(0, 256, &tokens[256..]);
    assert!(context.span(0).0 > 0);
    assert_same(&next, &expected(&model, &tokens));
}
