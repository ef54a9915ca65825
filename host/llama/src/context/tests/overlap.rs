//! Outputs of a step while an overlapped step is computed: see `overlap.rs`.

use super::*;

/// Tokens of a sequence from a position on, with an output after the last one if `output`.
fn part(seq: SeqId, from: u32, count: u32, output: bool) -> Vec<TokenInput> {
    let input = |position| TokenInput {
        token: 20 + position * 7 % 60 + seq.unsigned_abs(),
        position,
        seq,
        output: output && position + 1 == from + count,
    };
    (from..from + count).map(input).collect()
}

/// Tokens and bits of the logits of each output of a step.
fn outputs(context: &LlamaContext, step: &[TokenInput]) -> Vec<(Vec<Token>, Vec<u32>)> {
    let outputs = (0..step.len()).filter_map(|index| {
        let output = step[index].output.then(|| context.output(index))?;
        let (tokens, logits) = match output.expect("an output") {
            Output::Logits(logits) => (Vec::new(), logits),
            Output::TopK { tokens, logits } => (tokens.to_vec(), logits),
        };
        Some((tokens, logits.iter().map(|logit| logit.to_bits()).collect()))
    });
    outputs.collect()
}

#[test]
fn outputs_survive_an_overlapped_step() {
    let model = model();
    let top_k = DeviceTopK {
        k: K,
        seq_ids: TOP_K_IDS,
    };
    for device_top_k in [None, Some(top_k)] {
        let mut context = context_with(&model, 256, device_top_k);
        let mut plain = context_with(&model, 256, device_top_k);
        // Outputs of ids with device top-k, without, and of both; sequence 7 prefills.
        let groups: [&[SeqId]; 3] = [&[0, 1], &[4, 5], &[1, 4, 6]];
        for (round, ids) in (0..).zip(groups) {
            let mut step = Vec::new();
            for &id in ids {
                step.extend(part(id, context.length(id), 3, true));
            }
            step.extend(part(7, 12 * round, 4, false));
            let overlapped = part(7, 12 * round + 4, 8, false);
            assert_eq!(context.decode(step.iter().copied()), Ok(()));
            context.synchronize();
            assert!(context.can_overlap());
            let before = outputs(&context, &step);
            assert_eq!(before.len(), ids.len());
            let decoded = context.decode_overlapped(overlapped.iter().copied());
            assert_eq!(decoded, Ok(()));
            assert_eq!(outputs(&context, &step), before, "after the start");
            assert!(context.output(step.len() - 1).is_none(), "no output");
            context.synchronize();
            assert_eq!(outputs(&context, &step), before, "after the end");
            assert_eq!(context.copied(), LogitsCopied::default());
            for step in [&step, &overlapped] {
                assert_eq!(plain.decode(step.iter().copied()), Ok(()));
            }
        }
        // The sequence that prefilled in overlapped steps has the same logits.
        let last = part(7, context.length(7), 1, true);
        for context in [&mut context, &mut plain] {
            assert_eq!(context.decode(last.iter().copied()), Ok(()));
        }
        assert_eq!(outputs(&context, &last), outputs(&plain, &last));
    }
}

#[test]
fn overlap_needs_few_outputs_before_it() {
    let model = model();
    let mut context = context(&model, 256);
    assert!(!context.can_overlap(), "no step before");
    let overlapped = part(7, 0, 4, false);
    let failed = context.decode_overlapped(overlapped.into_iter());
    assert_eq!(failed, Err(DecodeError::Failed(-1)));
    let mut drafts = part(0, 0, u32::from(IDS) + 1, false);
    for input in &mut drafts {
        input.output = true;
    }
    assert_eq!(context.decode(drafts), Ok(()));
    assert!(!context.can_overlap(), "more outputs than ids");
    assert_eq!(context.decode(part(1, 0, 3, true)), Ok(()));
    let with_output = part(7, 0, 4, true);
    let failed = context.decode_overlapped(with_output.into_iter());
    assert_eq!(failed, Err(DecodeError::Failed(-1)));
    assert_eq!(context.length(7), 0);
    assert!(context.output(2).is_some(), "the outputs before stay");
}
