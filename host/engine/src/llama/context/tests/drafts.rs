//! What is left of tokens that were guessed wrongly: nothing.

use super::*;

const SEQ: SeqId = SeqId(3);

/// A text is computed; then its next token with these drafts behind it, which are cut off; then one more.
/// Returns the logits after the last two.
fn computed(model: &Arc<Model>, drafts: &[Token]) -> [Vec<f32>; 2] {
    let text = model.tokenize("repeat: Blue owls, 7!\nBlue owls", true);
    let text = text.expect("a short text");
    let mut context = context(model, 256);
    let (next, before) = text.split_last().expect("it is not empty");
    let (certain, before) = before.split_last().expect("nor is what is before");
    let mut step = |position: usize, tokens: &[Token]| {
        let inputs: Vec<_> = (position..)
            .zip(tokens)
            .map(|(position, &token)| Input {
                token,
                position: u32::try_from(position).unwrap(),
                seq: SEQ,
                output: true,
            })
            .collect();
        assert_eq!(context.decode(&inputs), Ok(()));
        let logits = context.logits(0).expect("an output").to_vec();
        context.truncate(SEQ, u32::try_from(position + 1).unwrap());
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
fn what_was_guessed_leaves_no_trace() {
    let model = model();
    let one = computed(&model, &[40, 41, 42]);
    let other = computed(&model, &[90, 7, 100]);
    assert_eq!(one, other, "to the last bit");
    // The shape of a step decides how numbers are rounded, and nothing else does.
    let none = computed(&model, &[]);
    let pairs = one.iter().flatten().zip(none.iter().flatten());
    let furthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("furthest from the logits without drafts: {furthest}");
    assert!(furthest < 0.1, "{furthest}");
}
