//! The raw loops: what a [`Replay`] plans, given to llama.cpp as it stands. A token that is always the same
//! follows each prompt, as in llama.cpp's own benches: what the model says is nobody's business there.

use super::processor::{Done, Took, in_thread, timed};
use super::prompts::Prompt;
use super::replay::{Replay, Row};
use crate::complaint::Complaint;
use corral_engine::scheduler::SeqId;
use corral_engine::{Input, Raw};

/// The name of the thread that calls llama.cpp here.
const CALLER: &str = "bench-raw";

/// Measures all of the steps of `replay`. The context is empty before and after.
pub(super) fn measure(
    raw: &mut Raw,
    replay: Replay,
    prompts: &[Prompt],
) -> Result<Took, Complaint> {
    in_thread(CALLER, || timed(|| run(raw, replay, prompts)))?
}

fn run(raw: &mut Raw, mut replay: Replay, prompts: &[Prompt]) -> Result<Done, Complaint> {
    let (mut tokens, mut steps, before) = (0, 0, raw.decode_time());
    let mut inputs = Vec::new();
    while let Some(step) = replay.step() {
        inputs.clear();
        for row in &step.rows {
            let prompt = prompts.get(row.request);
            inputs.extend(row_inputs(
                row,
                prompt.map_or(&[][..], |prompt| prompt.tokens.as_slice()),
            ));
            tokens += u64::from(row.output);
        }
        raw.decode(&inputs)?;
        steps += 1;
        for &slot in &step.ended {
            raw.clear(sequence(slot));
        }
    }
    Ok(Done {
        tokens,
        steps,
        decoding: (raw.decode_time() - before).as_secs_f64(),
    })
}

/// What a row gives to llama.cpp. What comes after the prompt is its first token, over and over.
fn row_inputs(row: &Row, prompt: &[u32]) -> impl Iterator<Item = Input> {
    let last = row.from + row.tokens - 1;
    (row.from..=last).map(move |position| {
        let token = usize::try_from(position).ok().and_then(|at| prompt.get(at));
        Input {
            token: token.or(prompt.first()).copied().unwrap_or(0),
            position,
            seq: sequence(row.slot),
            output: row.output && position == last,
        }
    })
}

/// A slot's sequence; there are fewer slots than ids.
fn sequence(slot: usize) -> SeqId {
    SeqId(u16::try_from(slot).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_token_of_a_row_has_an_output_and_the_first_one_goes_on() {
        let row = Row {
            slot: 3,
            request: 0,
            from: 1,
            tokens: 3,
            output: true,
        };
        let told: Vec<_> = row_inputs(&row, &[7, 8, 9])
            .map(|input| (input.token, input.position, input.seq, input.output))
            .collect();
        let seq = SeqId(3);
        let expected = [(8, 1, seq, false), (9, 2, seq, false), (7, 3, seq, true)];
        assert_eq!(told, expected);
    }
}
