//! Recurrent context: one state and the last position of each sequence.

use super::*;

#[test]
fn removing_a_start_silently_does_nothing() {
    let (model, mut context, tokens) = with_20_tokens(&Architecture::Mamba);
    for (from, to) in [(0, 10), (0, 19), (5, 10), (20, -1)] {
        assert!(context.remove(0, from, to), "{from} to {to}");
    }
    assert_eq!(context.span(0), (19, 19));
    assert_continues(&mut context, 0, &model, &tokens);
}

#[test]
fn partial_copy_is_silently_whole() {
    let (model, mut context, tokens) = with_20_tokens(&Architecture::Mamba);
    context.copy(0, 1, 0, 10);
    assert_eq!(context.span(1), (19, 19));
    assert_continues(&mut context, 1, &model, &tokens);
}

#[test]
fn copy_replaces_the_target() {
    let (model, mut context, tokens) = with_20_tokens(&Architecture::Mamba);
    context.feed(1, 0, &test_tokens(5));
    context.copy(0, 1, -1, -1);
    assert_continues(&mut context, 1, &model, &tokens);
    // Even an empty source does.
    context.copy(3, 1, -1, -1);
    assert_eq!(context.span(1), (-1, -1));
}

#[test]
fn state_size_is_constant() {
    let (_, mut context, _) = with_20_tokens(&Architecture::Mamba);
    let short = context.save(0).len();
    context.feed(1, 0, &test_tokens(1));
    assert_eq!(context.save(1).len(), short);
    // More positions than the context has cells: recurrent states need none.
    context.feed(2, 0, &test_tokens(1000));
    assert_eq!(context.span(2), (999, 999));
    assert_eq!(context.save(2).len(), short);
}

#[test]
fn rollback_snapshots_are_unsupported() {
    let model = model(&Architecture::Mamba);
    let mut context = TestContext::with(&model, |params| params.n_rs_seq = 4);
    // SAFETY: the context is alive.
    assert_eq!(unsafe { sys::llama_n_rs_seq(context.context.as_ptr()) }, 0);
    context.feed(0, 0, &test_tokens(20));
    assert!(!context.remove(0, 19, -1));
}
