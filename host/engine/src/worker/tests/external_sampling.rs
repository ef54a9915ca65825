//! External samplers: one per generation, each on a thread of its own or answered by the test.

use super::support::*;
use crate::external_sampler::{
    ExternalSampler, ExternalSamplerFactory, SamplingReply, SamplingRequest, SamplingRequestOptions,
};
use crate::metrics::get;
use crate::{Error, GenerateOptions, Token};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Rule = fn(&SamplingRequest) -> Result<Token, Error>;

/// Samplers that answer by a rule, and check that they receive each token once.
#[derive(Debug)]
struct ThreadSamplers {
    rule: Rule,
    answer_time: Duration,
}

struct ThreadSampler(Sender<(SamplingRequest, SamplingReply)>);

impl ExternalSampler for ThreadSampler {
    fn sample(&mut self, request: SamplingRequest, reply: SamplingReply) {
        let _ = self.0.send((request, reply));
    }
}

impl ExternalSamplerFactory for ThreadSamplers {
    fn request_options(&self) -> SamplingRequestOptions {
        SamplingRequestOptions {
            candidates: 3,
            statistics: true,
            history: 2,
        }
    }

    fn start(&self, _: u64) -> Box<dyn ExternalSampler> {
        let (sender, requests) = channel::<(SamplingRequest, SamplingReply)>();
        let (rule, answer_time) = (self.rule, self.answer_time);
        std::thread::spawn(move || {
            let mut last: Option<(u32, Token)> = None;
            for (request, reply) in requests {
                if let Some((position, token)) = last {
                    assert_eq!(request.new_tokens, [token]);
                    assert_eq!(request.position, position + 1);
                }
                std::thread::sleep(answer_time);
                let answer = rule(&request);
                if let Ok(token) = answer {
                    last = Some((request.position, token));
                }
                reply.send(answer);
            }
        });
        Box::new(ThreadSampler(sender))
    }
}

fn likeliest(request: &SamplingRequest) -> Result<Token, Error> {
    Ok(request.candidates[0].0)
}

fn thread_samplers(rule: Rule, answer_time: Duration) -> Arc<ThreadSamplers> {
    Arc::new(ThreadSamplers { rule, answer_time })
}

fn sampled_by<S: ExternalSamplerFactory + 'static>(
    samplers: &Arc<S>,
    max_tokens: u32,
) -> GenerateOptions {
    GenerateOptions {
        external_sampler: Some(samplers.clone()),
        ..limit(max_tokens)
    }
}

#[test]
fn slow_samplers_delay_no_other_and_are_preempted() {
    let engine = TestEngine::slow(Duration::from_micros(200));
    let samplers = thread_samplers(likeliest, Duration::from_millis(3));
    // Together the requests need more cells than exist, so some are preempted and recomputed.
    let max_tokens = |n| if n % 3 == 0 { 60 } else { 30 };
    let generations: Vec<_> = (0..12_u32)
        .map(|n| {
            let options = match n % 3 {
                0 => limit(max_tokens(n)),
                _ => sampled_by(&samplers, max_tokens(n)),
            };
            engine.generate((5 * n..5 * n + 30).collect(), options)
        })
        .collect();
    for (n, generation) in (0..).zip(generations) {
        read_tokens(generation, 5 * n + 30..5 * n + 30 + max_tokens(n));
    }
    let metrics = engine.end();
    let calls = get(&metrics.external_sampler_calls);
    assert_eq!(calls, 8 * 30, "one call per token");
    assert_eq!(get(&metrics.skipped_rows), 0);
}

#[test]
fn failing_sampler_fails_its_own_generation() {
    let engine = TestEngine::start();
    let rules: [(Rule, &str); 3] = [
        (|_| Ok(500), "chose token 500"),
        (|_| Err(Error::Failed("no idea".into())), "no idea"),
        (|_| panic!("on purpose"), "ended before it sampled"),
    ];
    for (rule, expected) in rules {
        let samplers = thread_samplers(rule, Duration::ZERO);
        let good = engine.generate(vec![7], limit(20));
        let bad = engine.generate(vec![1, 2, 3], sampled_by(&samplers, 5));
        match read(bad).1 {
            Err(Error::Failed(text)) => assert!(text.contains(expected), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(read(good).0.tokens.len(), 20);
    }
    assert_eq!(get(&engine.end().failed), 3);
}

/// Samplers whose requests the test answers.
#[derive(Clone, Debug, Default)]
struct ManualSamplers(Arc<Mutex<Vec<(SamplingRequest, SamplingReply)>>>);

impl ExternalSampler for ManualSamplers {
    fn sample(&mut self, request: SamplingRequest, reply: SamplingReply) {
        self.0.lock().unwrap().push((request, reply));
    }
}

impl ExternalSamplerFactory for ManualSamplers {
    fn request_options(&self) -> SamplingRequestOptions {
        SamplingRequestOptions {
            candidates: 2,
            statistics: false,
            history: 2,
        }
    }

    fn start(&self, _: u64) -> Box<dyn ExternalSampler> {
        Box::new(self.clone())
    }
}

impl ManualSamplers {
    /// Waits for this many requests.
    fn receive(&self, count: usize) -> Vec<(SamplingRequest, SamplingReply)> {
        wait_until(|| self.0.lock().unwrap().len() >= count);
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[test]
fn answer_for_a_canceled_generation_is_ignored() {
    let engine = TestEngine::start();
    let samplers = Arc::new(ManualSamplers::default());
    let canceled = engine.generate(vec![1, 2, 3], sampled_by(&samplers, 5));
    let stays = engine.generate(vec![5, 6], sampled_by(&samplers, 5));
    let mut requests = samplers.receive(2);
    drop(canceled);
    requests.sort_by_key(|(request, _)| request.new_tokens[0]);
    let (request, late_reply) = requests.remove(0);
    assert_eq!(request.new_tokens, [2, 3], "the end of the prompt");
    assert_eq!(request.candidates[0].0, 4);
    for token in 7..12 {
        let (request, reply) = requests.remove(0);
        assert_eq!(request.candidates[0].0, token);
        reply.send(Ok(token));
        if token < 11 {
            requests = samplers.receive(1);
        }
    }
    late_reply.send(Ok(4));
    read_tokens(stays, 7..12);
    assert_eq!(get(&engine.end().canceled), 1);
}
