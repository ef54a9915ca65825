//! The raw loops, which give the steps of a [`SlotSchedule`] to llama.cpp and do nothing else. Every generated token is
//! the same, as in llama.cpp's own benches.
//!
//! In one loop all requests exist from the start and run in step. In the other they come from clients like those of
//! the stages above.

use super::clients::{Client, run_clients};
use super::cpu_time::{self, LoadOutcome, Measurement, in_thread};
use super::prompts::Prompt;
use super::slot_schedule::{Row, SlotSchedule};
use corral_cli::Error;
use corral_engine::SeqId;
use corral_engine::testing::{BenchmarkContext, TokenInput};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

/// The name of the thread that calls llama.cpp.
const CALLER_THREAD: &str = "bench-raw";

/// Measures all steps of `schedule`, whose requests exist from the start. The context is empty before and after.
pub(super) fn measure(
    raw: &mut BenchmarkContext,
    schedule: SlotSchedule,
    prompts: &[Prompt],
) -> Result<Measurement, Error> {
    let mut numbers = 0..prompts.len();
    let work = || run(raw, schedule, prompts, |_| numbers.next(), |_| ());
    in_thread(CALLER_THREAD, || cpu_time::measure(work))?
}

/// The number of a request, and the channel that reports its end.
type RawRequest = (usize, oneshot::Sender<()>);

/// A client of the loop, which gets whole responses.
struct RawClient {
    requests: mpsc::Sender<RawRequest>,
    /// Tokens of each response.
    output_tokens: Arc<[u32]>,
}

impl Client for RawClient {
    async fn ask(&mut self, number: usize) -> Result<u64, Error> {
        let (sender, receiver) = oneshot::channel();
        let ended = || Error::failed("the raw loop ended before its clients");
        let sent = self.requests.send((number, sender)).await;
        sent.map_err(|_| ended())?;
        receiver.await.map_err(|_| ended())?;
        Ok(self.output_tokens.get(number).copied().map_or(0, u64::from))
    }
}

/// Measures the loop with `concurrency` clients, which run in `clients`.
pub(super) fn measure_clients(
    raw: &mut BenchmarkContext,
    schedule: SlotSchedule,
    prompts: &[Prompt],
    (clients, concurrency): (&Runtime, usize),
    output_tokens: &Arc<[u32]>,
) -> Result<Measurement, Error> {
    let (sender, mut requests) = mpsc::channel(concurrency);
    let client = |_| RawClient {
        requests: sender.clone(),
        output_tokens: output_tokens.clone(),
    };
    let raw_clients: Vec<_> = (0..concurrency).map(client).collect();
    // The loop ends with the last client.
    drop(sender);
    let work = || -> Result<LoadOutcome, Error> {
        let running = clients.spawn(run_clients(raw_clients, prompts.len()));
        let waiting = RefCell::new(BTreeMap::new());
        let next = |idle: bool| {
            let request = match idle {
                true => requests.blocking_recv(),
                false => requests.try_recv().ok(),
            };
            let (number, sender) = request?;
            waiting.borrow_mut().insert(number, sender);
            Some(number)
        };
        let ended = |number: usize| {
            let sender: Option<oneshot::Sender<()>> = waiting.borrow_mut().remove(&number);
            // Fails only if the client has ended with an error.
            let _ = sender.map(|sender| sender.send(()));
        };
        let mut outcome = run(raw, schedule, prompts, next, ended)?;
        let tokens = clients.block_on(running);
        outcome.tokens = tokens.map_err(Error::context("the clients crashed"))??;
        Ok(outcome)
    };
    in_thread(CALLER_THREAD, || cpu_time::measure(work))?
}

/// Computes steps until no request is left. Calls `ended` with the number of each request that ends.
fn run(
    raw: &mut BenchmarkContext,
    mut schedule: SlotSchedule,
    prompts: &[Prompt],
    mut next: impl FnMut(bool) -> Option<usize>,
    mut ended: impl FnMut(usize),
) -> Result<LoadOutcome, Error> {
    let (mut tokens, mut steps, decode_before) = (0, 0, raw.decode_cpu_time());
    let mut inputs = Vec::new();
    while let Some(step) = schedule.step(&mut next) {
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
        for &(slot, request) in &step.ended {
            raw.clear(sequence(slot));
            ended(request);
        }
    }
    Ok(LoadOutcome {
        tokens,
        steps,
        decode_cpu: (raw.decode_cpu_time() - decode_before).as_secs_f64(),
    })
}

/// The inputs of a row. After the prompt, its first token repeats.
fn row_inputs(row: &Row, prompt: &[u32]) -> impl Iterator<Item = TokenInput> {
    let last = row.start + row.tokens - 1;
    (row.start..=last).map(move |position| {
        let token = usize::try_from(position).ok().and_then(|at| prompt.get(at));
        TokenInput {
            token: token.or(prompt.first()).copied().unwrap_or(0),
            position,
            seq: sequence(row.slot),
            output: row.output && position == last,
        }
    })
}

/// The sequence of a slot, of which there are fewer than ids.
fn sequence(slot: usize) -> SeqId {
    SeqId(u16::try_from(slot).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_token_of_row_has_output() {
        let row = Row {
            slot: 3,
            request: 0,
            start: 1,
            tokens: 3,
            output: true,
        };
        let fields: Vec<_> = row_inputs(&row, &[7, 8, 9])
            .map(|input| (input.token, input.position, input.seq, input.output))
            .collect();
        let seq = SeqId(3);
        let expected = [(8, 1, seq, false), (9, 2, seq, false), (7, 3, seq, true)];
        assert_eq!(fields, expected);
    }
}
