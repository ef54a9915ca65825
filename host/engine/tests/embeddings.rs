//! Embeddings with llama.cpp, against an independent forward pass: `models/tiny/reference_embeddings.py`
//! computed the files in `embeddings/`, and tells how to compute them again.

use corral_engine::{
    Caller, EmbedOptions, Embedding, Engine, Error, GenerateOptions, MAX_EMBED_INPUTS,
    MAX_EMBED_NUMBERS, Pooling, Tenant, Token, Vectors,
};
use corral_random_model::{Architecture, Qwen3, TensorType};
use std::time::{Duration, Instant};
use support::{
    block_on, check_identity, limit, load, metric, random_engine, read, settle, start as generate,
};

mod support;

/// Largest difference to the other forward pass, relative to the vector's length.
const TOLERANCE: f32 = 1e-3;
/// Largest difference between two runs of a model with 32-bit weights.
const SAME: f32 = 1e-4;
/// The same with 16-bit weights: llama.cpp rounds activations, depending on the tokens in a step.
const SAME_ROUNDED: f32 = 5e-4;

fn engine() -> Engine {
    load(|_| {})
}

fn options(pooling: Pooling, normalize: bool) -> EmbedOptions {
    EmbedOptions {
        pooling: Some(pooling),
        normalize: Some(normalize),
    }
}

fn start(engine: &Engine, inputs: &[Vec<Token>], options: EmbedOptions) -> Embedding {
    let embedding = engine.embed(inputs.to_vec(), options, Caller::default());
    embedding.expect("there is room")
}

fn embed(engine: &Engine, inputs: &[Vec<Token>], options: EmbedOptions) -> Vec<Vec<f32>> {
    block_on(start(engine, inputs, options))
        .expect("the embedding succeeds")
        .inputs
}

/// The largest difference between two lists of vectors, relative to the length of the expected ones.
fn apart(got: &[f32], wanted: &[f32], width: usize) -> f32 {
    assert_eq!(got.len(), wanted.len());
    let pairs = got.chunks(width).zip(wanted.chunks(width));
    let apart = pairs.map(|(got, wanted)| {
        let length = wanted.iter().map(|x| x * x).sum::<f32>().sqrt();
        let most = got.iter().zip(wanted).map(|(a, b)| (a - b).abs());
        most.fold(0.0, f32::max) / length
    });
    apart.fold(0.0, f32::max)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// One input of a fixture and its expected vectors.
struct FixtureInput {
    tokens: Vec<Token>,
    rows: Vec<(Pooling, Vec<f32>)>,
}

fn fixture(text: &str) -> Vec<FixtureInput> {
    let mut all: Vec<FixtureInput> = Vec::new();
    for line in text.lines() {
        let (name, numbers) = line.split_once(' ').expect("a name and numbers");
        let pooling = match name {
            "input" => {
                let tokens = numbers.split(' ').map(|t| t.parse().expect("a token"));
                all.push(FixtureInput {
                    tokens: tokens.collect(),
                    rows: Vec::new(),
                });
                continue;
            }
            "cls" => Pooling::Cls,
            "last" => Pooling::Last,
            "mean" => Pooling::Mean,
            "tokens" => Pooling::Tokens,
            "rank" => Pooling::Rank,
            other => panic!("unknown line {other}"),
        };
        let numbers = numbers.split(' ').map(|x| x.parse().expect("a number"));
        let input = all.last_mut().expect("an input comes first");
        input.rows.push((pooling, numbers.collect()));
    }
    assert!(all.len() >= 8);
    all
}

/// Compares all inputs of a fixture at once, pooling by pooling, and each alone.
fn compare(engine: &Engine, text: &str, poolings: &[Pooling]) {
    let wanted = fixture(text);
    let width = engine.embedding_info().width as usize;
    let mut compared = 0;
    let mut worst: f32 = 0.0;
    for &pooling in poolings {
        let inputs: Vec<_> = wanted
            .iter()
            .filter_map(|input| {
                let row = input.rows.iter().find(|(kind, _)| *kind == pooling)?;
                Some((input.tokens.clone(), &row.1))
            })
            .collect();
        let tokens: Vec<_> = inputs.iter().map(|(tokens, _)| tokens.clone()).collect();
        let raw = options(pooling, false);
        let together = embed(engine, &tokens, raw);
        for ((tokens, wanted), got) in inputs.iter().zip(&together) {
            worst = worst.max(apart(got, wanted, width));
            let alone = embed(engine, std::slice::from_ref(tokens), raw);
            worst = worst.max(apart(&alone[0], wanted, width));
            compared += 1;
        }
        // Different inputs have different vectors.
        let (first, other) = (&together[0], &together[3.min(together.len() - 1)]);
        let length = first.len().min(other.len());
        assert!(apart(&first[..length], &other[..length], width) > 10.0 * TOLERANCE);
    }
    println!("{compared} compared, {worst} apart at most");
    assert!(worst <= TOLERANCE, "{worst} apart");
    assert!(compared >= 8);
}

const VECTORS: [Pooling; 4] = [Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Tokens];

#[test]
fn demo_model_matches_reference() {
    let engine = engine();
    assert_eq!(engine.embedding_info().pooling, Pooling::Last);
    compare(&engine, include_str!("embeddings/tiny.txt"), &VECTORS);
}

#[test]
fn encoder_matches_reference() {
    let engine = random_engine(&Architecture::Bert { ranks: false }, "bert");
    assert_eq!(engine.embedding_info().pooling, Pooling::Cls);
    compare(&engine, include_str!("embeddings/bert.txt"), &VECTORS);
}

#[test]
fn reranker_matches_reference_and_has_no_vectors() {
    let engine = random_engine(&Architecture::Bert { ranks: true }, "bert-ranker");
    let info = engine.embedding_info();
    assert_eq!((info.pooling, info.width), (Pooling::Rank, 3));
    let text = include_str!("embeddings/bert-ranker.txt");
    compare(&engine, text, &[Pooling::Rank]);
    let ask = |options| engine.embed(vec![vec![1]], options, Caller::default());
    for pooling in VECTORS {
        let error = ask(options(pooling, false)).expect_err("it has no vectors");
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    }
    let error = ask(options(Pooling::Rank, true)).expect_err("scores have no length");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    // The default is scores without normalization.
    let scores = embed(&engine, &[vec![1, 2]], EmbedOptions::default());
    assert_eq!(
        scores,
        embed(&engine, &[vec![1, 2]], options(Pooling::Rank, false))
    );
}

#[test]
fn encoder_attends_to_later_tokens() {
    let first = |engine: &Engine, tokens: &[Token]| {
        embed(engine, &[tokens.to_vec()], options(Pooling::Cls, true)).remove(0)
    };
    let bert = random_engine(&Architecture::Bert { ranks: false }, "bert-later");
    let moved = apart(&first(&bert, &[5, 6, 7]), &first(&bert, &[5, 6, 8]), 64);
    assert!(moved > 10.0 * TOLERANCE, "{moved}");
    let tiny = engine();
    let moved = apart(&first(&tiny, &[5, 6, 7]), &first(&tiny, &[5, 6, 8]), 128);
    assert!(moved <= SAME, "{moved}");
    assert!(!bert.info().can_generate && tiny.info().can_generate);
    let generate = bert.generate(vec![1], GenerateOptions::default(), Caller::default());
    assert!(matches!(generate, Err(Error::Unsupported(_))));
    // The longest input has all positions of the model.
    let longest = bert.embedding_info().longest;
    assert_eq!(longest, 512);
    first(&bert, &vec![9; 512]);
    bert.shutdown();
}

/// A model whose vectors do not depend on llama.cpp's rounding.
fn exact() -> Architecture {
    Architecture::Qwen3(Qwen3 {
        matrices: TensorType::F32,
        embedding: TensorType::F32,
        ..Qwen3::tiny()
    })
}

fn fox(seed: usize, length: usize) -> Vec<Token> {
    let letters = b"The quick brown fox jumps over the lazy dog. 1+1=2";
    let at = |i: usize| letters[(i * (seed % 7 + 1) + seed) % letters.len()];
    (0..length).map(|i| Token::from(at(i))).collect()
}

#[test]
fn vectors_do_not_depend_on_other_inputs() {
    let check = |engine: &Engine, name: &str, same: f32| {
        let inputs: Vec<_> = (0..31).map(|i| fox(i, 1 + (i * i * 13) % 500)).collect();
        for pooling in VECTORS {
            let together = embed(engine, &inputs, options(pooling, false));
            for (input, got) in inputs.iter().zip(&together) {
                let alone = embed(engine, std::slice::from_ref(input), options(pooling, false));
                let width = engine.embedding_info().width as usize;
                let apart = apart(got, &alone[0], width);
                assert!(apart <= same, "{name} {pooling:?}: {apart}");
            }
        }
    };
    let exact = exact();
    check(&random_engine(&exact, "exact"), "exact", SAME);
    check(&engine(), "tiny", SAME_ROUNDED);
    check(
        &random_engine(&Architecture::Bert { ranks: false }, "bert-beside"),
        "bert",
        SAME_ROUNDED,
    );
}

#[test]
fn recurrent_hybrid_and_windowed_models_embed() {
    for (shape, name) in [
        (Architecture::Mamba, "mamba"),
        (Architecture::Hybrid, "hybrid"),
        (Architecture::SlidingWindow, "sliding-window"),
        (Architecture::Qwen3(Qwen3::tiny()), "qwen3"),
    ] {
        let engine = random_engine(&shape, name);
        let inputs: Vec<_> = (0..12).map(|i| fox(i, 1 + i * 23)).collect();
        let together = embed(&engine, &inputs, EmbedOptions::default());
        for (input, got) in inputs.iter().zip(&together) {
            let alone = embed(
                &engine,
                std::slice::from_ref(input),
                EmbedOptions::default(),
            );
            // Chunks are summed in another order, which a recurrent state carries on.
            let cosine = cosine(got, &alone[0]);
            assert!(cosine > 0.9999, "{name}, {} tokens: {cosine}", input.len());
        }
        assert!(cosine(&together[3], &together[11]) < 0.99, "{name}");
    }
}

#[test]
fn poolings_match_token_vectors() {
    let engine = engine();
    let input = [fox(1, 300)];
    let tokens = embed(&engine, &input, options(Pooling::Tokens, false)).remove(0);
    let rows: Vec<_> = tokens.chunks(128).collect();
    assert_eq!(rows.len(), 300);
    let pooled = |pooling| embed(&engine, &input, options(pooling, false)).remove(0);
    let column = |i: usize| rows.iter().map(|row| row[i]).sum::<f32>() / 300.0;
    let mean: Vec<f32> = (0..128).map(column).collect();
    for (pooling, wanted) in [
        (Pooling::Mean, &mean[..]),
        (Pooling::Cls, rows[0]),
        (Pooling::Last, rows[299]),
    ] {
        let apart = apart(&pooled(pooling), wanted, 128);
        assert!(apart <= SAME, "{pooling:?}: {apart}");
        // Pooled vectors have length 1 by default, and the same direction.
        let by_default = EmbedOptions {
            pooling: Some(pooling),
            normalize: None,
        };
        let unit = embed(&engine, &input, by_default).remove(0);
        let length = unit.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        assert!(cosine(&unit, wanted) > 0.99999);
    }
    let by_default = EmbedOptions {
        pooling: Some(Pooling::Tokens),
        normalize: None,
    };
    assert_eq!(embed(&engine, &input, by_default)[0], tokens);
    assert_eq!(
        embed(&engine, &input, EmbedOptions::default()),
        embed(&engine, &input, options(Pooling::Last, true))
    );
}

#[test]
fn invalid_requests_are_refused() {
    let engine = engine();
    let longest = engine.embedding_info().longest;
    assert_eq!(longest, 2048);
    let ask = |inputs: Vec<Vec<Token>>, pooling| {
        let options = EmbedOptions {
            pooling: Some(pooling),
            normalize: None,
        };
        engine
            .embed(inputs, options, Caller::default())
            .unwrap_err()
    };
    let invalid = |inputs, pooling, word: &str| {
        let error = ask(inputs, pooling);
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    };
    invalid(vec![], Pooling::Last, "0 inputs");
    invalid(
        vec![vec![1]; MAX_EMBED_INPUTS + 1],
        Pooling::Last,
        "2049 inputs",
    );
    invalid(vec![vec![1], vec![]], Pooling::Last, "input 1 is empty");
    invalid(vec![vec![1, 264]], Pooling::Last, "token 264");
    invalid(vec![vec![1; 2048]; 65], Pooling::Last, "133120 tokens");
    let many = usize::try_from(MAX_EMBED_NUMBERS).unwrap() / 128 / 2048 + 1;
    assert_eq!(
        many, 65,
        "the limit on tokens comes first for vectors this short"
    );
    let full = Error::ContextFull {
        needed: longest + 1,
        limit: longest,
    };
    assert_eq!(ask(vec![vec![1; 2049]], Pooling::Mean), full);
    let error = ask(vec![vec![1]], Pooling::Rank);
    assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    // No refused request created a context.
    assert_eq!(metric(&engine, "embedding_contexts"), 0.0);
    let mut config = support::config();
    config.embedding.longest = Some(1_000_000);
    assert!(Engine::load(config).is_err());
}

#[test]
fn full_quota_refuses_with_retry_after() {
    let engine = load(|config| config.embedding.queue = 8);
    let ask = |tenant| {
        let caller = Caller {
            tenant: Tenant(tenant),
            ..Caller::default()
        };
        engine.embed(vec![vec![7; 2000]; 32], EmbedOptions::default(), caller)
    };
    let held = [ask(1), ask(1)];
    let Err(Error::Overloaded { retry_after, .. }) = ask(1) else {
        panic!("a tenant has a quarter");
    };
    assert!((1..=60).contains(&retry_after.as_secs()));
    assert!(ask(2).is_ok());
    assert!(held.iter().all(Result::is_ok));
    drop(held);
    // These two and that of tenant 2 end before the next step.
    let until = Instant::now() + Duration::from_secs(60);
    while metric(&engine, "embedding_requests_canceled_total") < 3.0 {
        assert!(Instant::now() < until, "requests are still open");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(ask(1).is_ok());
    assert_eq!(metric(&engine, "embedding_requests_refused_total"), 1.0);
    engine.shutdown();
    let error = engine.embed(vec![vec![1]], EmbedOptions::default(), Caller::default());
    assert_eq!(error.unwrap_err(), Error::ShuttingDown);
}

fn settle_embeddings(engine: &Engine) {
    let until = Instant::now() + Duration::from_secs(60);
    while metric(engine, "embedding_requests_in_flight") > 0.0 {
        assert!(Instant::now() < until, "requests are still open");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn concurrent_embeddings_and_generations_are_correct() {
    let engine = engine();
    let wanted: Vec<Vec<f32>> = (0..200)
        .map(|i| embed(&engine, &[fox(i, 1 + i % 90)], EmbedOptions::default()).remove(0))
        .collect();
    let before = metric(&engine, "embedding_computed_tokens_total");
    let running: Vec<_> = (0..200)
        .map(|i| start(&engine, &[fox(i, 1 + i % 90)], EmbedOptions::default()))
        .collect();
    let sums: Vec<_> = (1..=40)
        .map(|n| generate(&engine, &format!("{n}+{}=", 41 - n), limit(10)))
        .collect();
    for generation in sums {
        assert_eq!(read(generation).0.text, "41");
    }
    let first = wanted[0].clone();
    let mut distinct = 0;
    for (i, (embedding, wanted)) in running.into_iter().zip(&wanted).enumerate() {
        let Vectors { inputs, tokens, .. } = block_on(embedding).expect("the embedding succeeds");
        assert_eq!(tokens, 1 + i as u64 % 90);
        // Rounding depends on the steps, so only the direction is compared.
        let own = cosine(&inputs[0], wanted);
        assert!(own > 0.999, "{i}: {own}");
        distinct += usize::from(i > 0 && cosine(&inputs[0], &first) < 0.95);
    }
    assert!(distinct > 150, "{distinct}");
    settle(&engine);
    check_identity(&engine);
    settle_embeddings(&engine);
    // Each token is computed once.
    let count = |name: &str| metric(&engine, &format!("embedding_{name}_total"));
    assert_eq!(count("computed_tokens"), count("tokens"));
    assert_eq!(count("computed_tokens") - before, before);
    assert_eq!(count("requests_finished"), 400.0);
    assert!(metric(&engine, "embedding_wakeups_total") <= 400.0);
    // Inputs share steps.
    let steps = count("steps");
    let inputs: Vec<_> = (0..200).map(|i| fox(i, 1 + i % 90)).collect();
    let all = embed(&engine, &inputs, EmbedOptions::default());
    assert_eq!(all.len(), 200);
    assert!(count("steps") - steps < 150.0, "{}", count("steps") - steps);
}
