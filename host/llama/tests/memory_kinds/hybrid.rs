//! Hybrid context: some layers are recurrent, the others have attention. Operations can affect the two differently.

use super::*;

#[test]
fn removing_a_start_corrupts_the_sequence() {
    for (from, to) in [(0, 10), (5, 15)] {
        let (model, mut context, tokens) = with_20_tokens(&Architecture::Hybrid);
        assert!(context.remove(0, from, to));
        // Nothing shows it: the attention has lost the positions, the state has not.
        assert_eq!(context.span(0), (19, 19));
        assert_different(
            &context.feed(0, 20, &tokens[20..]),
            &expected(&model, &tokens),
        );
    }
}

#[test]
fn partial_copy_shares_the_whole_state() {
    let (model, mut context, tokens) = with_20_tokens(&Architecture::Hybrid);
    context.copy(0, 1, 0, 10);
    // The only sign: it starts after its end.
    assert_eq!(context.span(1), (19, 9));
    // It continues after the end of the attention, with wrong logits.
    assert_different(
        &context.feed(1, 10, &tokens[10..11]),
        &expected(&model, &tokens[..11]),
    );
}

#[test]
fn removing_an_absent_end_succeeds() {
    let (model, mut context, tokens) = with_20_tokens(&Architecture::Hybrid);
    assert!(context.remove(0, 20, -1));
    assert_continues(&mut context, 0, &model, &tokens);
}
