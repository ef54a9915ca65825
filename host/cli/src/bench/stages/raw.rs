//! The raw loops: what a [`Replay`] plans, given to llama.cpp as it stands. A token that is always the same
//! follows each prompt, as in llama.cpp's own benches: what the model says is nobody's business there.
//!
//! In one all requests are there from the start, and are taken in step. In the next they come from as many
//! clients as ask the stages above, which ask again as soon as they were answered. In the last one they come when
//! they came to a stage.

use super::clients::{Answered, Client, ask_all};
use super::processor::{Done, Took, in_thread, timed};
use super::prompts::Prompt;
use super::replay::{Replay, Row, Step};
use super::visits::{Arrivals, Next, Visit};
use crate::complaint::Complaint;
use corral_engine::SeqId;
use corral_engine::{Raw, TokenInput};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

/// The name of the thread that calls llama.cpp here.
pub(super) const CALLER: &str = "bench-raw";

/// Measures all of the steps of `replay`, all of whose requests are there. The context is empty before and after.
pub(super) fn measure(
    raw: &mut Raw,
    replay: Replay,
    prompts: &[Prompt],
) -> Result<Took, Complaint> {
    let mut numbers = 0..prompts.len();
    let all = || run(raw, replay, prompts, |_| numbers.next(), nothing, |_| ());
    in_thread(CALLER, || timed(all))?
}

/// Who asks the loop: the number of a request, and where the end of its answer is told.
type Asked = (usize, oneshot::Sender<()>);

/// A client of the loop. It gets its answer as a whole.
struct Asks {
    to: mpsc::Sender<Asked>,
    /// Tokens of each answer.
    generate: Arc<[u32]>,
}

impl Client for Asks {
    async fn ask(&mut self, number: usize) -> Result<u64, Complaint> {
        let (tell, told) = oneshot::channel();
        let gone = || Complaint::Failed("the raw loop ended before its clients".into());
        self.to.send((number, tell)).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())?;
        Ok(self.generate.get(number).copied().map_or(0, u64::from))
    }
}

/// Measures the loop with `at_once` clients, which run in `clients`.
pub(super) fn measure_clients(
    raw: &mut Raw,
    replay: Replay,
    prompts: &[Prompt],
    (clients, at_once): (&Runtime, usize),
    generate: &Arc<[u32]>,
) -> Result<Took, Complaint> {
    let (to, mut asked) = mpsc::channel(at_once);
    let client = |to: &mpsc::Sender<Asked>| Asks {
        to: to.clone(),
        generate: generate.clone(),
    };
    let asking: Vec<_> = (0..at_once).map(|_| client(&to)).collect();
    // The loop ends with the last client.
    drop(to);
    let all = || -> Result<Done, Complaint> {
        let answered = clients.spawn(ask_all(asking, prompts.len()));
        let waiting = RefCell::new(BTreeMap::new());
        let next = |idle: bool| {
            let asked = match idle {
                true => asked.blocking_recv(),
                false => asked.try_recv().ok(),
            };
            let (number, tell) = asked?;
            waiting.borrow_mut().insert(number, tell);
            Some(number)
        };
        let ended = |number: usize| {
            let told: Option<oneshot::Sender<()>> = waiting.borrow_mut().remove(&number);
            // One who does not wait any more has said why.
            let _ = told.map(|told| told.send(()));
        };
        let mut done = run(raw, replay, prompts, next, nothing, ended)?;
        let answered = clients.block_on(answered);
        done.answered = answered.map_err(Complaint::telling("the clients crashed"))??;
        Ok(done)
    };
    in_thread(CALLER, || timed(all))?
}

/// Measures the loop with requests that come when they came to a stage.
pub(super) fn measure_arrivals(
    raw: &mut Raw,
    replay: Replay,
    prompts: &[Prompt],
    came: &[Visit],
) -> Result<Took, Complaint> {
    let all = || -> Result<Done, Complaint> {
        let began = Instant::now();
        let mut arrivals = Arrivals::of(came);
        let next = |idle: bool| {
            loop {
                match arrivals.next(began.elapsed()) {
                    Next::Here(number) => return Some(number),
                    Next::In(time) if idle => std::thread::sleep(time),
                    Next::In(_) | Next::Nobody => return None,
                }
            }
        };
        let mut answered = vec![None; came.len()];
        let ended = |number: usize| {
            if let Some(answered) = answered.get_mut(number) {
                *answered = Some(began.elapsed());
            }
        };
        let mut done = run(raw, replay, prompts, next, nothing, ended)?;
        let visits = came.iter().zip(answered).map(|(visit, answered)| {
            let answered = answered?;
            Some(Visit { answered, ..*visit })
        });
        let unanswered = || Complaint::Failed("the raw loop left requests unanswered".into());
        done.answered.visits = visits.collect::<Option<_>>().ok_or_else(unanswered)?;
        Ok(done)
    };
    in_thread(CALLER, || timed(all))?
}

/// What is done after a step where nothing is to be done.
#[allow(clippy::unnecessary_wraps)]
fn nothing(_: &Step) -> Result<(), Complaint> {
    Ok(())
}

/// Computes steps until nobody comes any more. `computed` is told each of them, and `ended` the numbers of requests.
pub(super) fn run(
    raw: &mut Raw,
    mut replay: Replay,
    prompts: &[Prompt],
    mut next: impl FnMut(bool) -> Option<usize>,
    mut computed: impl FnMut(&Step) -> Result<(), Complaint>,
    mut ended: impl FnMut(usize),
) -> Result<Done, Complaint> {
    let (mut tokens, mut steps, before) = (0, 0, raw.decode_time());
    let mut inputs = Vec::new();
    while let Some(step) = replay.step(&mut next) {
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
        computed(&step)?;
        steps += 1;
        for &(slot, request) in &step.ended {
            raw.clear(sequence(slot));
            ended(request);
        }
    }
    let visits = Vec::new();
    Ok(Done {
        answered: Answered { tokens, visits },
        steps,
        decoding: (raw.decode_time() - before).as_secs_f64(),
    })
}

/// What a row gives to llama.cpp. What comes after the prompt is its first token, over and over.
fn row_inputs(row: &Row, prompt: &[u32]) -> impl Iterator<Item = TokenInput> {
    let last = row.from + row.tokens - 1;
    (row.from..=last).map(move |position| {
        let token = usize::try_from(position).ok().and_then(|at| prompt.get(at));
        TokenInput {
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
