//! What a step left, while another one without outputs is computed: see `llama/ahead.rs`.

use super::*;
use corral_sampling::Logits;

/// So many tokens of an id, from this position on. After the last one there is an output, if there is to be one.
fn part(id: u16, from: u32, count: u32, output: bool) -> Vec<Input> {
    let input = |position| Input {
        token: 20 + position * 7 % 60 + u32::from(id),
        position,
        seq: SeqId(id),
        output: output && position + 1 == from + count,
    };
    (from..from + count).map(input).collect()
}

/// The numbers of each output of a step: the tokens whose they are, and their logits' bits.
fn outputs(context: &LlamaContext, step: &[Input]) -> Vec<(Vec<Token>, Vec<u32>)> {
    let given = (0..step.len()).filter_map(|index| {
        let output = step[index].output.then(|| context.output(index))?;
        let (tokens, logits) = match output.expect("an output") {
            Logits::Full(logits) => (Vec::new(), logits),
            Logits::TopK(top) => (top.tokens.to_vec(), top.logits),
        };
        Some((tokens, logits.iter().map(|logit| logit.to_bits()).collect()))
    });
    given.collect()
}

#[test]
fn outputs_stay_as_they_were_and_what_went_ahead_counts() {
    let model = model();
    for device_top in [None, Some(DeviceTop { k: K, ids: TOP_IDS })] {
        let mut context = with_chains(&model, device_top);
        let mut plain = with_chains(&model, device_top);
        // Outputs of ids with a chain alone, without, and of both; one more is read on.
        let groups: [&[u16]; 3] = [&[0, 1], &[4, 5], &[1, 4, 6]];
        for (round, ids) in (0..).zip(groups) {
            let mut step = Vec::new();
            for &id in ids {
                step.extend(part(id, context.length(SeqId(id)), 3, true));
            }
            step.extend(part(7, 12 * round, 4, false));
            let ahead = part(7, 12 * round + 4, 8, false);
            assert_eq!(context.decode(&step), Ok(()));
            context.wait();
            assert!(context.can_go_ahead());
            let before = outputs(&context, &step);
            assert_eq!(before.len(), ids.len());
            assert_eq!(context.decode_ahead(&ahead), Ok(()));
            assert_eq!(outputs(&context, &step), before, "at once");
            assert!(context.output(step.len() - 1).is_none(), "no output");
            context.wait();
            assert_eq!(outputs(&context, &step), before, "and when it is computed");
            assert_eq!((context.copied().top, context.copied().whole), (0, 0));
            for step in [&step, &ahead] {
                assert_eq!(plain.decode(step), Ok(()));
            }
        }
        // The one that was read on says what it says elsewhere.
        let last = part(7, context.length(SeqId(7)), 1, true);
        for context in [&mut context, &mut plain] {
            assert_eq!(context.decode(&last), Ok(()));
        }
        assert_eq!(outputs(&context, &last), outputs(&plain, &last));
    }
}

#[test]
fn nothing_goes_ahead_with_outputs_or_after_more_of_them_than_there_are_ids() {
    let model = model();
    let mut context = with_chains(&model, None);
    assert!(!context.can_go_ahead(), "there was no step");
    let ahead = part(7, 0, 4, false);
    assert_eq!(context.decode_ahead(&ahead), Err(DecodeError::Failed(-1)));
    let mut drafts = part(0, 0, u32::from(IDS) + 1, false);
    for input in &mut drafts {
        input.output = true;
    }
    assert_eq!(context.decode(&drafts), Ok(()));
    assert!(!context.can_go_ahead());
    assert_eq!(context.decode(&part(1, 0, 3, true)), Ok(()));
    let with_output = part(7, 0, 4, true);
    assert_eq!(
        context.decode_ahead(&with_output),
        Err(DecodeError::Failed(-1))
    );
    assert_eq!(context.length(SeqId(7)), 0);
    assert!(context.output(2).is_some(), "what there was is there");
}
