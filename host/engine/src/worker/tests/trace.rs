//! Records of traced generations.

use super::support::*;
use super::*;
use crate::request_observer::RequestObserver;
use crate::{GenerationRecord, GenerationSink};
use std::sync::Mutex;

#[derive(Debug, Default)]
pub(super) struct Records(Mutex<Vec<GenerationRecord>>);

impl GenerationSink for Records {
    fn generation_ended(&self, record: GenerationRecord) {
        self.0.lock().expect("no panic").push(record);
    }
}

/// Options of a generation whose record goes to `records`.
pub(super) fn traced(records: &Arc<Records>, max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        observer: Some(RequestObserver {
            metrics: Arc::default(),
            usage: Arc::default(),
            trace: Some(GenerationTrace::new(records.clone(), "tiny", max_tokens)),
        }),
        ..limit(max_tokens)
    }
}

pub(super) fn only(records: &Records) -> GenerationRecord {
    let records = records.0.lock().expect("no panic");
    assert_eq!(records.len(), 1);
    records[0].clone()
}

#[test]
fn record_agrees_with_outcome() {
    let engine = TestEngine::start();
    read_tokens(engine.generate(vec![1, 2, 3], limit(1)), 4..=4);
    let records = Arc::new(Records::default());
    let generation = engine.generate(vec![1, 2, 3], traced(&records, 4));
    let outcome = read_tokens(generation, 4..=7);
    engine.end();
    let record = only(&records);
    assert_eq!(record.end, Some(Ok(FinishReason::Length)));
    assert_eq!(record.prompt_tokens, outcome.prompt_tokens);
    assert_eq!(record.cached_tokens, outcome.cached_tokens);
    assert_eq!(record.generated_tokens, outcome.generated_tokens);
    let [admitted, first, ended] = [record.admitted, record.first_token, record.ended]
        .map(|time| time.expect("all phases were reached"));
    assert_eq!(admitted - record.arrived, outcome.queue_time);
    assert_eq!(first - admitted, outcome.prefill_time);
    assert_eq!(ended - first, outcome.decode_time);
}

#[test]
fn record_says_why_a_generation_failed() {
    let engine = TestEngine::slow(Duration::from_millis(1));
    let canceled = Arc::new(Records::default());
    let generation = engine.generate(vec![1, 2, 3], traced(&canceled, 200));
    drop(generation);
    let poisoned = Arc::new(Records::default());
    let generation = engine.generate(vec![1, POISON], traced(&poisoned, 4));
    assert!(read(generation).1.is_err());
    engine.end();
    assert_eq!(only(&canceled).end, Some(Err("canceled")));
    let record = only(&poisoned);
    assert_eq!(record.end, Some(Err("failed")));
    assert_eq!(record.first_token, None);
    assert!(record.ended.is_some());
}
