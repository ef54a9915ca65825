//! Those whose tokens somebody else chooses.

use super::*;
use crate::external_sampler::{
    ExternalSampler, ExternalSamplerFactory, SamplingReply, SamplingRequest, SamplingRequestOptions,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// What a chooser answers.
type Rule = fn(&SamplingRequest) -> Result<Token, Error>;

/// ExternalSamplerFactory with a thread each, which checks what it is shown.
#[derive(Debug)]
struct Threads {
    rule: Rule,
    wanted: SamplingRequestOptions,
    /// How long each answer takes.
    takes: Duration,
    started: AtomicUsize,
}

struct Questions(Sender<(SamplingRequest, SamplingReply)>);

impl ExternalSampler for Questions {
    fn sample(&mut self, request: SamplingRequest, reply: SamplingReply) {
        let _ = self.0.send((request, reply));
    }
}

impl ExternalSamplerFactory for Threads {
    fn request_options(&self) -> SamplingRequestOptions {
        self.wanted
    }

    fn start(&self, _: u64) -> Box<dyn ExternalSampler> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let (questions, asked) = channel::<(SamplingRequest, SamplingReply)>();
        let (rule, takes) = (self.rule, self.takes);
        std::thread::spawn(move || {
            let mut text: Option<(u32, Token)> = None;
            for (shown, choice) in asked {
                if let Some((position, chosen)) = text {
                    // Without a grammar nothing is added but what was chosen.
                    assert_eq!(shown.new_tokens, [chosen]);
                    assert_eq!(shown.position, position + 1);
                }
                std::thread::sleep(takes);
                let answer = rule(&shown);
                if let Ok(token) = answer {
                    text = Some((shown.position, token));
                }
                choice.send(answer);
            }
        });
        Box::new(Questions(questions))
    }
}

fn likeliest(shown: &SamplingRequest) -> Result<Token, Error> {
    Ok(shown.candidates[0].0)
}

fn threads(rule: Rule, takes: Duration) -> Arc<Threads> {
    Arc::new(Threads {
        rule,
        wanted: SamplingRequestOptions {
            candidates: 3,
            statistics: true,
            history: 2,
        },
        takes,
        started: AtomicUsize::new(0),
    })
}

fn chosen(max_tokens: u32, choosers: &Arc<Threads>) -> GenerateOptions {
    GenerateOptions {
        external_sampler: Some(Arc::clone(choosers) as Arc<dyn ExternalSamplerFactory>),
        ..limit(max_tokens)
    }
}

#[test]
fn what_is_chosen_is_generated_as_if_it_were_sampled() {
    let bench = Bench::start();
    let choosers = threads(likeliest, Duration::ZERO);
    let running: Vec<_> = (0..40_u32)
        .map(|n| {
            let options = match n % 2 {
                0 => chosen(1 + n % 9, &choosers),
                _ => limit(1 + n % 9),
            };
            (n, bench.submit((n..n + 1 + n % 30).collect(), options))
        })
        .collect();
    for (n, generation) in running {
        let (chunk, outcome) = read(generation);
        let first = n + 1 + n % 30;
        assert_eq!(chunk.tokens, (first..=first + n % 9).collect::<Vec<_>>());
        assert_eq!(outcome.unwrap().generated_tokens, 1 + n % 9);
    }
    let counters = bench.end();
    assert_eq!(choosers.started.load(Ordering::Relaxed), 20);
    let asked: u32 = (0..40).step_by(2).map(|n| 1 + n % 9).sum();
    assert_eq!(value(&counters.external_sampler_calls), u64::from(asked));
    assert_eq!(value(&counters.cells_leaked), 0);
    assert_eq!(value(&counters.sequence_ids_used), 0);
    identity(&counters);
}

#[test]
fn slow_choosers_hold_up_nobody_and_give_way_where_others_need_the_room() {
    let bench = Bench::slow(Duration::from_micros(200));
    let choosers = threads(likeliest, Duration::from_millis(3));
    // Together they need more cells than there are, so some have to give way and read again.
    let running: Vec<_> = (0..12_u32)
        .map(|n| {
            let options = match n % 3 {
                0 => limit(60),
                _ => chosen(30, &choosers),
            };
            let first = 5 * n;
            bench.submit((first..first + 30).collect(), options)
        })
        .collect();
    for (n, generation) in (0..).zip(running) {
        let (chunk, outcome) = read(generation);
        let (first, most) = (5 * n + 30, if n % 3 == 0 { 60 } else { 30 });
        assert_eq!(chunk.tokens, (first..first + most).collect::<Vec<_>>());
        assert!(outcome.is_ok());
    }
    let counters = bench.end();
    assert_eq!(
        value(&counters.external_sampler_calls),
        8 * 30,
        "each is asked once"
    );
    assert_eq!(value(&counters.skipped_rows), 0);
    assert_eq!(value(&counters.cells_leaked), 0);
    identity(&counters);
}

#[test]
fn a_chooser_that_goes_wrong_ends_its_own_generation() {
    let bench = Bench::start();
    let rules: [(Rule, &str); 3] = [
        (|_| Ok(500), "token 500 was chosen"),
        (|_| Err(Error::Failed("no idea".into())), "no idea"),
        (|_| panic!("as some do"), "ended before it sampled"),
    ];
    for (rule, expected) in rules {
        let choosers = threads(rule, Duration::ZERO);
        let good = bench.submit(vec![7], limit(20));
        let bad = bench.submit(vec![1, 2, 3], chosen(5, &choosers));
        match read(bad).1 {
            Err(Error::Failed(text)) => assert!(text.contains(expected), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(read(good).0.tokens.len(), 20);
    }
    let counters = bench.end();
    assert_eq!(value(&counters.failed), 3);
    assert_eq!(value(&counters.cells_leaked), 0);
    identity(&counters);
}

/// Keeps what it is asked.
#[derive(Debug, Default)]
struct Keeps(Arc<Mutex<Vec<(SamplingRequest, SamplingReply)>>>);

impl ExternalSampler for Keeps {
    fn sample(&mut self, request: SamplingRequest, reply: SamplingReply) {
        self.0.lock().unwrap().push((request, reply));
    }
}

impl ExternalSamplerFactory for Keeps {
    fn request_options(&self) -> SamplingRequestOptions {
        SamplingRequestOptions {
            candidates: 2,
            statistics: false,
            history: 2,
        }
    }

    fn start(&self, _: u64) -> Box<dyn ExternalSampler> {
        Box::new(Self(Arc::clone(&self.0)))
    }
}

/// Waits until so many questions were asked.
fn asked(keeps: &Keeps, count: usize) -> Vec<(SamplingRequest, SamplingReply)> {
    for _ in 0..5_000 {
        let mut kept = keeps.0.lock().unwrap();
        if kept.len() >= count {
            return kept.drain(..).collect();
        }
        drop(kept);
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nobody is asked");
}

#[test]
fn who_leaves_while_everyone_waits_for_an_answer_leaves_at_once() {
    let bench = Bench::start();
    let keeps = Arc::new(Keeps::default());
    let options = GenerateOptions {
        external_sampler: Some(Arc::clone(&keeps) as Arc<dyn ExternalSamplerFactory>),
        ..limit(5)
    };
    let generation = bench.submit(vec![1, 2, 3], options);
    let unanswered = asked(&keeps, 1);
    drop(generation);
    let ended = (0..5_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        value(&bench.counters.cancelled) == 1
    });
    assert!(ended, "nothing of it stays");
    drop(unanswered);
    assert_eq!(value(&bench.end().cells_leaked), 0);
}

#[test]
fn a_reader_that_goes_away_while_a_token_is_chosen_leaves_nothing() {
    let bench = Bench::start();
    let keeps = Arc::new(Keeps::default());
    let options = || GenerateOptions {
        external_sampler: Some(Arc::clone(&keeps) as Arc<dyn ExternalSamplerFactory>),
        ..limit(5)
    };
    let gone = bench.submit(vec![1, 2, 3], options());
    let stays = bench.submit(vec![5, 6], options());
    let mut questions = asked(&keeps, 2);
    drop(gone);
    questions.sort_by_key(|(shown, _)| shown.new_tokens[0]);
    assert_eq!(
        questions[0].0.new_tokens,
        [2, 3],
        "the last ones, as many as wanted"
    );
    let (shown, late) = questions.remove(0);
    assert_eq!(shown.candidates[0].0, 4);
    // The other one gets on; the answer for the one that is gone comes in between.
    let mut next = questions.remove(0);
    for token in 7..12 {
        assert_eq!(next.0.candidates[0].0, token);
        next.1.send(Ok(token));
        if token < 11 {
            next = asked(&keeps, 1).remove(0);
        } else {
            break;
        }
    }
    late.send(Ok(4));
    assert_eq!(read(stays).0.tokens, [7, 8, 9, 10, 11]);
    let counters = bench.end();
    assert_eq!(value(&counters.cancelled), 1);
    assert_eq!(value(&counters.cells_leaked), 0);
    identity(&counters);
}
