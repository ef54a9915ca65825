//! Rejected drafts leave no trace.

use super::*;

const SEQ: SeqId = 3;

/// Computes a text, then its next token with these drafts behind it, truncates the drafts, and computes one more token.
/// Returns the logits after the last two.
fn logits_with_drafts(model: &Arc<Model>, drafts: &[Token]) -> [Vec<f32>; 2] {
    let text = model.tokenize("repeat: Blue owls, 7!\nBlue owls", true);
    let text = text.expect("a short text");
    let mut context = context(model, 256);
    let [before @ .., certain, next] = &text[..] else {
        panic!("the text has two tokens");
    };
    let mut step = |position: usize, tokens: &[Token]| {
        let position = u32::try_from(position).unwrap();
        let inputs = (position..)
            .zip(tokens)
            .map(|(position, &token)| TokenInput {
                token,
                position,
                seq: SEQ,
                output: true,
            });
        assert_eq!(context.decode(inputs), Ok(()));
        let logits = context.logits(0).expect("an output").to_vec();
        context.truncate(SEQ, position + 1);
        logits
    };
    for (position, token) in before.iter().enumerate() {
        step(position, &[*token]);
    }
    let row: Vec<_> = [&[*certain], drafts].concat();
    let first = step(before.len(), &row);
    [first, step(before.len() + 1, &[*next])]
}

#[test]
fn rejected_drafts_do_not_change_logits() {
    let model = model();
    let one = logits_with_drafts(&model, &[40, 41, 42]);
    let other = logits_with_drafts(&model, &[90, 7, 100]);
    assert_eq!(one, other);
    // The shape of a step changes the rounding, and nothing else.
    let none = logits_with_drafts(&model, &[]);
    let pairs = one.iter().flatten().zip(none.iter().flatten());
    let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest < 0.1, "{largest}");
}
