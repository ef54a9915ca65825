//! Device top-k against the same steps without it: see `device_top_k.rs`.

use super::*;

const TOP_K: DeviceTopK = DeviceTopK {
    k: K,
    seq_ids: TOP_K_IDS,
};

/// Some tokens of each of these sequences, with an output after the last of each.
fn step(model: &Model, context: &LlamaContext, ids: &[SeqId], seed: u64) -> Vec<TokenInput> {
    let mut step = Vec::new();
    for &seq in ids {
        let length = 2 + usize::try_from(seq % 3).expect("an id");
        let tokens = tokens(model, length, seed + u64::from(seq.unsigned_abs()));
        for (index, (position, token)) in (context.length(seq)..).zip(tokens).enumerate() {
            step.push(TokenInput {
                token,
                position,
                seq,
                output: index + 1 == length,
            });
        }
    }
    step
}

fn sorted(mut pairs: Vec<(Token, f32)>) -> Vec<(Token, f32)> {
    pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    pairs
}

/// The highest of a whole row.
fn highest(row: &[f32]) -> Vec<(Token, f32)> {
    let mut all = sorted((0..).zip(row.iter().copied()).collect());
    all.truncate(K as usize);
    all
}

#[test]
fn top_k_equals_the_highest_logits() {
    let model = model();
    let mut plain = context(&model, 256);
    let mut context = context_with(&model, 256, Some(TOP_K));
    let on_cpu = "the CPU has the operation";
    assert_eq!(context.device_top_k(), Some(TOP_K), "{on_cpu}");
    let row = 4 * model.vocabulary_size() as u64;
    let groups: [&[SeqId]; 7] = [&[0], &[0, 1], &[5], &[1, 5], &[0, 1, 2, 3], &[4, 0], &[1]];
    for (round, ids) in groups.iter().cycle().take(21).enumerate() {
        let step = step(&model, &plain, ids, 100 * round as u64);
        assert_eq!(plain.decode(step.iter().copied()), Ok(()));
        assert_eq!(context.decode(step.iter().copied()), Ok(()));
        let (mut top_k_rows, mut rows) = (0, 0);
        for (index, input) in step.iter().enumerate().filter(|(_, input)| input.output) {
            rows += 1;
            let all = plain.logits(index).expect("an output");
            match context.output(index).expect("an output") {
                Output::TopK { tokens, logits } => {
                    top_k_rows += 1;
                    assert!(input.seq < SeqId::from(TOP_K_IDS));
                    let pairs = tokens.iter().copied().zip(logits.iter().copied());
                    assert_eq!(sorted(pairs.collect()), highest(all), "round {round}");
                    assert_eq!(context.logits(index), None, "it has no row");
                }
                Output::Logits(logits) => {
                    assert!(input.seq >= SeqId::from(TOP_K_IDS));
                    assert_eq!(logits, all, "round {round}");
                    assert_eq!(context.logits(index), Some(all));
                }
            }
        }
        // One row without top-k makes llama.cpp copy all rows.
        let whole = if top_k_rows < rows { rows * row } else { 0 };
        let top_k = top_k_rows * 8 * u64::from(K);
        assert_eq!(context.copied(), LogitsCopied { top_k, whole });
        let whole = rows * row;
        assert_eq!(plain.copied(), LogitsCopied { top_k: 0, whole });
    }
}

#[test]
fn second_output_of_a_top_k_id_fails() {
    let model = model();
    let mut context = context_with(&model, 256, Some(TOP_K));
    let two_outputs = |seq| {
        [0, 1].map(|position| TokenInput {
            token: 20 + position,
            position,
            seq,
            output: true,
        })
    };
    let failed = context.decode(two_outputs(0));
    assert_eq!(failed, Err(DecodeError::Failed(-1)));
    assert_eq!(context.length(0), 0);
    assert_eq!(context.decode(two_outputs(TOP_K_IDS.into())), Ok(()));
    assert!(context.logits(0).is_some() && context.logits(1).is_some());
}

#[test]
fn state_moves_between_kinds_of_ids() {
    let model = model();
    let mut context = context_with(&model, 256, Some(TOP_K));
    let text = tokens(&model, 30, 3);
    let (last, before) = text.split_last().expect("thirty tokens");
    let (top_k, whole) = (0, 4);
    let step = (0..).zip(before).map(|(position, &token)| TokenInput {
        token,
        position,
        seq: top_k,
        output: false,
    });
    assert_eq!(context.decode(step), Ok(()));
    context.share(top_k, whole, 29);
    let next = |seq| TokenInput {
        token: *last,
        position: 29,
        seq,
        output: true,
    };
    assert_eq!(context.decode([next(whole)]), Ok(()));
    let row = context.logits(0).expect("an output").to_vec();
    context.truncate(whole, 29);
    assert_eq!(context.decode([next(top_k)]), Ok(()));
    let Some(Output::TopK { tokens, logits }) = context.output(0) else {
        panic!("the id has device top-k");
    };
    let pairs = tokens.iter().copied().zip(logits.iter().copied());
    assert_eq!(sorted(pairs.collect()), highest(&row));
}
