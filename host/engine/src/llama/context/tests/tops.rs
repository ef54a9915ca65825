//! What llama.cpp gives for ids with a chain, beside what it gives without: see `llama/chains.rs`.

use super::*;
use corral_sampling::{Logits, Scratch, TopLogits, most_likely};

/// Some tokens of each of these sequences, with an output after the last of each.
fn step(model: &Model, context: &LlamaContext, ids: &[u16], seed: u64) -> Vec<Input> {
    let mut step = Vec::new();
    for &id in ids {
        let seq = SeqId(id);
        let length = 2 + usize::from(id % 3);
        let tokens = tokens(model, length, seed + u64::from(id));
        for (place, (position, token)) in (context.length(seq)..).zip(tokens).enumerate() {
            step.push(Input {
                token,
                position,
                seq,
                output: place + 1 == length,
            });
        }
    }
    step
}

/// The highest of a whole row, in their order.
fn highest(row: &[f32]) -> Vec<(Token, f32)> {
    most_likely(row, None, K as usize, &mut Scratch::default())
}

fn in_order(given: TopLogits<'_>) -> Vec<(Token, f32)> {
    let mut pairs: Vec<_> = given
        .tokens
        .iter()
        .copied()
        .zip(given.logits.iter().copied())
        .collect();
    pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    pairs
}

#[test]
fn ids_with_a_chain_give_the_highest_logits_bit_for_bit_and_others_all() {
    let model = model();
    let chains = DeviceTop { k: K, ids: TOP_IDS };
    let mut plain = with_chains(&model, None);
    let mut context = with_chains(&model, Some(chains));
    assert_eq!(
        context.device_top(),
        Some(chains),
        "the CPU has the operation"
    );
    assert_eq!((context.top_k(), plain.top_k()), (Some(K), None));
    let row = 4 * model.vocabulary_size() as u64;
    let groups: [&[u16]; 7] = [&[0], &[0, 1], &[5], &[1, 5], &[0, 1, 2, 3], &[4, 0], &[1]];
    for (round, ids) in groups.iter().cycle().take(21).enumerate() {
        let step = step(&model, &plain, ids, 100 * round as u64);
        assert_eq!(plain.decode(&step), Ok(()));
        assert_eq!(context.decode(&step), Ok(()));
        let (mut tops, mut outputs) = (0, 0);
        for (index, input) in step.iter().enumerate().filter(|(_, input)| input.output) {
            outputs += 1;
            let all = plain.logits(index).expect("an output");
            match context.output(index).expect("an output") {
                Logits::TopK(given) => {
                    tops += 1;
                    assert!(input.seq.0 < TOP_IDS);
                    assert_eq!(given.vocabulary, all.len());
                    assert_eq!(in_order(given), highest(all), "round {round}");
                    assert_eq!(context.logits(index), None, "they are no row");
                }
                Logits::Full(given) => {
                    assert!(input.seq.0 >= TOP_IDS);
                    assert_eq!(given, all, "round {round}");
                    assert_eq!(context.logits(index), Some(all));
                }
            }
        }
        // One that has none brings them all along.
        let whole = if tops < outputs { outputs * row } else { 0 };
        let copied = context.copied();
        assert_eq!((copied.top, copied.whole), (tops * 8 * u64::from(K), whole));
        let copied = plain.copied();
        assert_eq!((copied.top, copied.whole), (0, outputs * row));
    }
}

/// The scheduler never asks for it.
#[test]
fn a_second_output_of_an_id_with_a_chain_fails_and_changes_nothing() {
    let model = model();
    let chains = DeviceTop { k: K, ids: TOP_IDS };
    let mut context = with_chains(&model, Some(chains));
    let twice = |seq| {
        let input = |position| Input {
            token: 20 + position,
            position,
            seq: SeqId(seq),
            output: true,
        };
        [input(0), input(1)]
    };
    assert_eq!(context.decode(&twice(0)), Err(DecodeError::Failed(-1)));
    assert_eq!(context.length(SeqId(0)), 0);
    assert_eq!(context.decode(&twice(TOP_IDS)), Ok(()));
    assert!(context.logits(0).is_some() && context.logits(1).is_some());
}

/// What was computed under one id is good under any other.
#[test]
fn a_state_does_not_know_whether_its_id_has_a_chain() {
    let model = model();
    let chains = DeviceTop { k: K, ids: TOP_IDS };
    let mut context = with_chains(&model, Some(chains));
    let text = tokens(&model, 30, 3);
    let (last, before) = text.split_last().expect("thirty");
    let (top, whole) = (SeqId(0), SeqId(4));
    let step: Vec<_> = (0..)
        .zip(before)
        .map(|(position, &token)| Input {
            token,
            position,
            seq: top,
            output: false,
        })
        .collect();
    assert_eq!(context.decode(&step), Ok(()));
    context.share(top, whole, 29);
    let next = |seq| Input {
        token: *last,
        position: 29,
        seq,
        output: true,
    };
    assert_eq!(context.decode(&[next(whole)]), Ok(()));
    let row = context.logits(0).expect("an output").to_vec();
    context.truncate(whole, 29);
    assert_eq!(context.decode(&[next(top)]), Ok(()));
    let Some(Logits::TopK(given)) = context.output(0) else {
        panic!("the id has a chain");
    };
    assert_eq!(in_order(given), highest(&row));
}
