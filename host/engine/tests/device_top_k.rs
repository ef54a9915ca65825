//! Device top-k, here on the CPU: output and distributions are equal bit for bit, and the engine
//! copies a few bytes per token instead of a row.

use corral_engine::sampling::Penalties;
use corral_engine::{
    DeviceTopKMode, Distribution, DistributionPart, Engine, GenerateOptions, Grammar, ModelConfig,
    NextTokenRequest, Sampler, Sequence, Tenant, Token,
};
use support::{
    SURE, answer, block_on, check_empty, exactly, limit, metric, read, sequence, settle,
};

mod support;

const PROMPTS: [&str; 5] = [
    "12+7=",
    "repeat: Blue owls, 7!\n",
    "The quiet owl looks at the river and the stone.\n",
    "reverse: table\n",
    "Ada is 36 years old\n",
];

/// Loads an engine with this many device top-k candidates, or none.
fn engine(k: Option<u32>, change: impl FnOnce(&mut ModelConfig)) -> Engine {
    support::load(|config| {
        config.device_top_k = k.map_or(DeviceTopKMode::Off, |k| DeviceTopKMode::On { k });
        change(config);
    })
}

/// Loads one engine without device top-k and one with it.
fn twins(k: u32) -> [Engine; 2] {
    [None, Some(k)].map(|k| engine(k, |_| {}))
}

fn generate(engine: &Engine, prompt: &str, options: GenerateOptions) -> (Vec<Token>, String) {
    let (chunk, _) = answer(engine, prompt, options);
    (chunk.tokens, chunk.text)
}

/// Copied bytes of candidates and of whole rows.
fn copied(engine: &Engine) -> (f64, f64) {
    settle(engine);
    let metrics = engine.metrics();
    let of = |rows: &str| {
        let mut metrics = metrics.iter();
        let found = metrics.find(|metric| {
            let name = metric.name == "corral_engine_logits_copied_bytes_total";
            name && metric.labels == [("rows", rows.to_owned())]
        });
        found.expect("the metric exists").value
    };
    (of("top"), of("whole"))
}

/// Sampler chains that need only the 32 likeliest tokens.
fn chains() -> Vec<Vec<Sampler>> {
    let penalties = |last| {
        Sampler::Penalties(Penalties {
            last_n: last,
            repeat: 1.3,
            frequency: 0.0,
            presence: 0.2,
        })
    };
    let xtc = Sampler::Xtc {
        probability: 0.5,
        threshold: 0.1,
    };
    vec![
        vec![],
        vec![Sampler::Temperature(0.0)],
        vec![Sampler::TopK(10), Sampler::Temperature(1.5)],
        vec![
            Sampler::Temperature(2.0),
            Sampler::TopK(20),
            Sampler::TopP(0.95),
        ],
        vec![
            Sampler::TopK(20),
            Sampler::MinP(0.02),
            xtc,
            Sampler::Temperature(1.2),
        ],
        vec![Sampler::TopK(5), Sampler::Mirostat { tau: 3.0, eta: 0.2 }],
        vec![penalties(8), Sampler::TopK(12), Sampler::TypicalP(0.9)],
        vec![
            Sampler::LogitBias(vec![(40, -3.0), (41, f32::NEG_INFINITY)]),
            Sampler::TopK(9),
        ],
    ]
}

#[test]
fn device_top_k_does_not_change_seeded_output() {
    let [without, with] = twins(32);
    for (number, samplers) in (0..).zip(chains()) {
        for (seed, prompt) in (100 * number..).zip(PROMPTS) {
            let options = GenerateOptions {
                samplers: samplers.clone(),
                seed: Some(seed),
                ..exactly(30)
            };
            let expected = generate(&without, prompt, options.clone());
            let found = generate(&with, prompt, options);
            assert_eq!(found, expected, "{samplers:?} after {prompt:?}");
        }
    }
    settle(&with);
    assert_eq!(metric(&with, "device_top_k_misses_total"), 0.0);
    // No whole row was copied.
    let tokens = 30.0 * (chains().len() * PROMPTS.len()) as f64;
    assert_eq!(copied(&with), (tokens * 8.0 * 32.0, 0.0));
    let row = 4.0 * f64::from(with.info().vocabulary);
    assert_eq!(copied(&without), (0.0, tokens * row));
    check_empty(&with);
}

fn distribution(sequence: &mut Sequence, part: DistributionPart, statistics: bool) -> Distribution {
    let request = NextTokenRequest {
        statistics,
        ..NextTokenRequest::new(part)
    };
    block_on(sequence.next(request).unwrap()).unwrap()
}

#[test]
fn distributions_are_equal_with_device_top_k() {
    let [without, with] = twins(16);
    for prompt in PROMPTS {
        let mut twins = [&without, &with].map(|engine| sequence(engine, prompt));
        for round in 0..12 {
            let (part, statistics) = match round % 4 {
                0 | 1 => (DistributionPart::Top(8), false),
                2 => (DistributionPart::Logits, false),
                _ => (DistributionPart::Top(8), true),
            };
            let [expected, found] = twins
                .each_mut()
                .map(|sequence| distribution(sequence, part.clone(), statistics));
            assert_eq!(found, expected, "round {round} after {prompt:?}");
            let next = match expected.candidates.first() {
                Some((token, _)) => *token,
                None => 40,
            };
            for sequence in &mut twins {
                sequence.append(&[next]).unwrap();
            }
        }
    }
    settle(&with);
    assert_eq!(metric(&with, "device_top_k_misses_total"), 0.0);
    for engine in [&without, &with] {
        let computed = metric(engine, "computed_tokens_total");
        let requested = metric(engine, "next_token_computed_tokens_total");
        assert_eq!(
            computed, requested,
            "a change of the sequence id recomputes no token"
        );
        check_empty(engine);
    }
    let (top, whole) = copied(&with);
    assert_eq!(top, 5.0 * 6.0 * 8.0 * 16.0);
    assert_eq!(whole, 5.0 * 6.0 * 4.0 * f64::from(with.info().vocabulary));
}

#[test]
fn grammar_reaches_tokens_outside_top_k() {
    let [without, with] = twins(2);
    for (pattern, prompt) in [
        ("[0-9]{1,3}", "45+54="),
        ("(zebra|quartz)", "12+7="),
        ("~[x-z]{3}~", "reverse: table\n"),
    ] {
        let [expected, found] = [&without, &with].map(|engine| {
            let grammar = Grammar::Regex(pattern.into());
            let options = GenerateOptions {
                constraint: Some(
                    engine
                        .compile(Tenant(0), &grammar)
                        .expect("the grammar is valid"),
                ),
                ..limit(12)
            };
            generate(engine, prompt, options)
        });
        assert_eq!(found, expected, "{pattern}");
    }
    settle(&with);
    let misses = metric(&with, "device_top_k_misses_total");
    assert!(
        (1.0..=3.0).contains(&misses),
        "{misses}: at most one per request"
    );
    let (top, whole) = copied(&with);
    assert!(top > 0.0 && whole > 0.0, "{top} and {whole}");
    check_empty(&with);
}

/// More concurrent clients than sequence slots: all sums are right.
#[test]
fn concurrent_mixed_requests_are_correct() {
    let engine = engine(Some(16), |config| {
        config.max_running = 5;
        config.context = Some(512);
        config.cells = Some(1024);
    });
    let digits = engine.compile(Tenant(0), &Grammar::Regex("[0-9]{1,3}".into()));
    let digits = digits.expect("the grammar is valid");
    let greedy = limit(8);
    let ways = [
        greedy.clone(),
        GenerateOptions {
            samplers: vec![Sampler::TopK(12), Sampler::Temperature(0.0)],
            ..greedy.clone()
        },
        GenerateOptions {
            logprobs: Some(3),
            ..greedy.clone()
        },
        GenerateOptions {
            max_draft_tokens: Some(8),
            ..greedy.clone()
        },
        GenerateOptions {
            constraint: Some(digits),
            ..greedy.clone()
        },
        GenerateOptions {
            samplers: vec![Sampler::TopP(0.01), Sampler::Temperature(0.5)],
            ..greedy
        },
    ];
    let line = "The old fox looks at the stone. ".chars().cycle();
    let story = line.take(47).collect::<String>() + "\n";
    std::thread::scope(|scope| {
        for client in 0..24_u32 {
            let (engine, ways, story) = (&engine, &ways, story.as_str());
            scope.spawn(move || {
                for round in 0..6_u32 {
                    let (before, (a, b)) = match round % 2 {
                        0 => ("", (3 * client % 50, 7 * round + client % 5)),
                        _ => (story, SURE[(client + round) as usize % SURE.len()]),
                    };
                    let text = &format!("{before}{a}+{b}=");
                    let expected = (a + b).to_string();
                    // Engine sampling: each option on one sequence, truncated each time.
                    let mut own = sequence(engine, text);
                    let length = own.tokens().len();
                    for step in 0..2 {
                        let way = &ways[(client + round + step) as usize % ways.len()];
                        let (chunk, outcome) = read(own.generate(way.clone()).unwrap());
                        outcome.expect("the generation succeeds");
                        assert_eq!(chunk.text, expected, "{text:?} {way:?}");
                        own.append(&chunk.tokens).unwrap();
                        own.truncate(length).unwrap();
                    }
                    // Guest sampling.
                    let mut fork = own.fork();
                    let mut output = Vec::new();
                    for step in 0..4 {
                        let part = match (client + step) % 3 {
                            0 => DistributionPart::Logits,
                            _ => DistributionPart::Top(4),
                        };
                        let next = distribution(&mut fork, part, false);
                        let best = |best: Option<(Token, f32)>, next: (Token, f32)| match best {
                            Some((_, logit)) if logit >= next.1 => best,
                            _ => Some(next),
                        };
                        let all = (0..).zip(next.logits).chain(next.candidates);
                        let (token, _) = all.fold(None, best).expect("the row has candidates");
                        if engine.info().end_of_generation.contains(&token) {
                            break;
                        }
                        output.push(token);
                        fork.append(&[token]).unwrap();
                    }
                    let output = engine.detokenize(&output, false).unwrap();
                    assert_eq!(String::from_utf8_lossy(&output), expected, "{text:?}");
                }
            });
        }
    });
    check_empty(&engine);
    let (top, whole) = copied(&engine);
    assert!(top > 0.0 && whole > 0.0, "{top} and {whole}");
    assert_eq!(metric(&engine, "requests_failed_total"), 0.0);
}

/// k exceeds the vocabulary: the engine copies whole rows.
#[test]
fn small_vocabulary_copies_whole_rows() {
    let engine = engine(Some(60_000), |_| {});
    assert_eq!(generate(&engine, "12+7=", limit(8)).1, "19");
    let (top, whole) = copied(&engine);
    assert!(top == 0.0 && whole > 0.0);
    check_empty(&engine);
}
