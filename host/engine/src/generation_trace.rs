//! Records when a traced generation reached each phase, and how it ended.
//!
//! Only generations of sampled requests and jobs have a [`GenerationTrace`]. All others have `None`, which costs one
//! check per token. The engine thread and the reader share the trace. The last of them to drop it reports the record,
//! so that a generation that is canceled is reported too.

use crate::{Error, FinishReason};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most swap-ins in the record of one generation.
const MAX_SWAP_INS: usize = 8;

/// Receives the records of the generations of one HTTP request.
pub trait GenerationSink: std::fmt::Debug + Send + Sync {
    /// Takes the record of a generation that has ended. Called from the engine thread or the reader's; must not wait.
    fn generation_ended(&self, record: GenerationRecord);
}

/// The times and tokens of one generation.
#[derive(Clone, Debug)]
pub struct GenerationRecord {
    /// Name of the model.
    pub model: String,
    /// Most tokens that it could generate.
    pub max_tokens: u32,
    /// When it arrived.
    pub arrived: Instant,
    /// When the scheduler admitted it first.
    pub admitted: Option<Instant>,
    /// When its first token was sampled.
    pub first_token: Option<Instant>,
    /// When the engine ended it.
    pub ended: Option<Instant>,
    /// When its reader had read all of it, or canceled it.
    pub delivered: Option<Instant>,
    /// Reads of swapped-out states, from the request to the end of the load.
    pub swap_ins: Vec<(Instant, Option<Instant>)>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Tokens computed more than once.
    pub recomputed_tokens: u32,
    /// How often it lost its cells to another request.
    pub preemptions: u32,
    /// How it ended: the reason, or the kind of error. `None` if the engine is gone.
    pub end: Option<Result<FinishReason, &'static str>>,
}

/// A generation that is recorded. Dropping the last clone of its `Arc` reports it.
#[derive(Debug)]
pub struct GenerationTrace {
    record: Mutex<GenerationRecord>,
    sink: Arc<dyn GenerationSink>,
}

impl GenerationTrace {
    /// The record of a generation that arrives now.
    pub fn new(sink: Arc<dyn GenerationSink>, model: &str, max_tokens: u32) -> Arc<Self> {
        let record = GenerationRecord {
            model: model.to_owned(),
            max_tokens,
            arrived: Instant::now(),
            admitted: None,
            first_token: None,
            ended: None,
            delivered: None,
            swap_ins: Vec::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            recomputed_tokens: 0,
            preemptions: 0,
            end: None,
        };
        Arc::new(Self {
            record: Mutex::new(record),
            sink,
        })
    }

    /// The reader has read everything, or has canceled the generation. The first call counts.
    pub fn delivered(&self) {
        self.update(|record| {
            record.delivered.get_or_insert_with(Instant::now);
        });
    }

    /// It failed. The first end counts.
    pub fn failed(&self, error: &Error) {
        self.update(|record| {
            record.ended.get_or_insert_with(Instant::now);
            record.end.get_or_insert(Err(error.kind()));
        });
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut GenerationRecord)) {
        // No change panics midway.
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn swap_in_began(&self) {
        self.update(|record| {
            if record.swap_ins.len() < MAX_SWAP_INS {
                record.swap_ins.push((Instant::now(), None));
            }
        });
    }

    pub(crate) fn swap_in_ended(&self) {
        self.update(|record| {
            if let Some((_, end @ None)) = record.swap_ins.last_mut() {
                *end = Some(Instant::now());
            }
        });
    }
}

impl Drop for GenerationTrace {
    fn drop(&mut self) {
        let record = self
            .record
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        self.sink.generation_ended(record.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Sink(Mutex<Vec<GenerationRecord>>);

    impl GenerationSink for Sink {
        fn generation_ended(&self, record: GenerationRecord) {
            self.0.lock().expect("no panic").push(record);
        }
    }

    #[test]
    fn last_holder_reports_record_once() {
        let sink = Arc::new(Sink::default());
        let engine = GenerationTrace::new(sink.clone(), "tiny", 5);
        let reader = Arc::clone(&engine);
        reader.delivered();
        drop(reader);
        engine.failed(&Error::Canceled);
        engine.failed(&Error::DeadlineExceeded);
        assert!(sink.0.lock().expect("no panic").is_empty());
        drop(engine);
        let records = sink.0.lock().expect("no panic");
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].end, Some(Err("canceled")));
        assert!(records[0].delivered.is_some());
    }

    #[test]
    fn swap_ins_are_bounded() {
        let sink = Arc::new(Sink::default());
        let trace = GenerationTrace::new(sink.clone(), "tiny", 5);
        for _ in 0..2 * MAX_SWAP_INS {
            trace.swap_in_began();
            trace.swap_in_ended();
        }
        drop(trace);
        let records = sink.0.lock().expect("no panic");
        assert_eq!(records[0].swap_ins.len(), MAX_SWAP_INS);
        assert!(
            records[0]
                .swap_ins
                .iter()
                .all(|(began, end)| end >= &Some(*began))
        );
    }
}
