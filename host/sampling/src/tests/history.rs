//! Samplers that depend on the history.

use super::*;

#[test]
fn penalties_look_back_and_affect_greedy_choice() {
    let row = [2.0, 1.9, -1.0, 0.0];
    let after = |sampler: Sampler, history: &[Token]| {
        let left = candidates(&[sampler], &row, history);
        left.iter().map(|(_, logit)| *logit).collect::<Vec<_>>()
    };
    assert_eq!(
        after(penalties(2.0, 0.0, 0.0), &[0, 2]),
        [1.0, 1.9, -2.0, 0.0]
    );
    assert_eq!(
        after(penalties(1.0, 0.5, 0.0), &[0, 0, 1]),
        [1.0, 1.4, -1.0, 0.0]
    );
    assert_eq!(
        after(penalties(1.0, 0.0, 0.5), &[0, 0, 0]),
        [1.5, 1.9, -1.0, 0.0]
    );
    // Only the last four tokens count; tokens outside the vocabulary do not.
    assert_eq!(
        after(penalties(1.0, 1.0, 0.0), &[0, 3, 3, 9, 3]),
        [2.0, 1.9, -1.0, -3.0]
    );

    let greedy = Sampler::Temperature(0.0);
    assert_eq!(sample(vec![greedy.clone()], &row, &[0]), Some(0));
    let chain = vec![penalties(1.0, 0.0, 0.5), greedy.clone()];
    assert_eq!(sample(chain, &row, &[0]), Some(1));
    let chain = vec![Sampler::LogitBias(vec![(3, 5.0)]), greedy.clone()];
    assert_eq!(sample(chain, &row, &[]), Some(3));
    let banned = Sampler::LogitBias(vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)]);
    assert_eq!(sample(vec![banned, greedy], &row, &[]), Some(3));
}

#[test]
fn output_penalties_ignore_the_prompt() {
    let row = [2.0, 1.9, -1.0, 0.0];
    let Sampler::Penalties(settings) = penalties(1.0, 0.5, 0.0) else {
        unreachable!()
    };
    let chain = SamplerChain::new(
        vec![
            Sampler::OutputPenalties(settings),
            Sampler::Temperature(0.0),
        ],
        1,
    );
    let drawn = |prompt, history: &[Token]| {
        let mut chain = chain.clone().with_prompt_length(prompt);
        draw(&mut chain, &row, history, &mut Scratch::default())
    };
    assert_eq!(drawn(0, &[0, 0]), Some(1));
    assert_eq!(drawn(2, &[0, 0]), Some(0));
    assert_eq!(drawn(2, &[1, 1, 0]), Some(1));
    // The prompt does not count within `last_n` either.
    assert_eq!(drawn(2, &[0, 0, 1]), Some(0));
}

#[test]
fn dry_lowers_continuations_of_repetitions() {
    let row = [0.0; 8];
    let lowered = |sampler: Sampler, history: &[Token]| -> Vec<(Token, f32)> {
        let mut left = candidates(&[sampler], &row, history);
        left.retain(|(_, logit)| *logit != 0.0);
        left
    };
    // 1 2 3 occurred before, followed by 4; 3 alone was also followed by 5.
    let history = [1, 2, 3, 4, 3, 5, 1, 2, 3];
    assert_eq!(
        lowered(dry(1.0, 1, &[]), &history),
        [(4, -1.75_f32.powi(2)), (5, -1.0)]
    );
    assert_eq!(lowered(dry(1.0, 2, &[]), &history), [(4, -1.75)]);
    assert_eq!(lowered(dry(1.0, 4, &[]), &history), []);
    assert_eq!(lowered(dry(0.0, 1, &[]), &history), []);
    // A breaker shortens the repetition, and is never lowered itself.
    assert_eq!(
        lowered(dry(1.0, 1, &[&[2]]), &history),
        [(4, -1.0), (5, -1.0)]
    );
    assert_eq!(
        lowered(dry(1.0, 1, &[&[1, 2]]), &history),
        [(4, -1.0), (5, -1.0)]
    );
    assert_eq!(lowered(dry(1.0, 1, &[&[4]]), &history), [(5, -1.0)]);
    // Infinite loss removes the token.
    assert_eq!(lowered(dry(f32::MAX, 1, &[]), &[6; 90]), []);
}
