//! `corral-bench latency`: first tokens, gaps and tokens a second under each latency policy.
//!
//! Clients send one request after the other; every fourth prompt is long. A round measures each policy, and a peer's
//! server if one is named, with the same requests. Before them it measures the decode step, the median gap while all
//! clients only decode: gaps are multiples of it, also those of the peer.

use crate::args::EngineArgs;
use crate::requests::{post, read_events};
use crate::workload::{check_context, config, exactly, generate, prompt};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::connection::{Connection, closed_loop};
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, median};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::bench::url::Url;
use corral_engine::{Caller, Engine, Latency, Token};
use serde_json::{Value, json};
use std::time::Instant;
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Clients; each sends its next request after its response
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=64))]
    clients: u64,
    /// Requests of a round, for each policy
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(1..=10_000))]
    requests: u64,
    /// Tokens of every fourth prompt; the others have 32
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = whole(1..=100_000))]
    prompt_tokens: u64,
    /// Tokens of each response
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(2..=10_000))]
    output_tokens: u64,
    /// Policy to measure; repeatable [default: stream, balanced and throughput]
    #[arg(long = "latency", value_name = "POLICY")]
    policies: Vec<Latency>,
    /// Server of OpenAI's API with the same model file, to compare with, such as llama.cpp's
    #[arg(long, value_name = "URL")]
    openai_peer: Option<Url>,
}

/// Tokens of a short prompt.
const SHORT_PROMPT: u64 = 32;
/// Tokens of each client that only decodes.
const DECODE_TOKENS: u64 = 48;
/// Its first gaps, during which others compute their prompts.
const SKIPPED_GAPS: usize = 16;

const COLUMNS: [Column; 11] = [
    ("policy", "policy", Unit::Plain),
    ("first token p50", "first_token_p50_s", Unit::Milliseconds),
    ("p99", "first_token_p99_s", Unit::Milliseconds),
    ("max", "first_token_max_s", Unit::Milliseconds),
    ("gap p50/step", "gap_p50_ratio", Unit::Ratio),
    ("p99/step", "gap_p99_ratio", Unit::Ratio),
    ("gap p99", "gap_p99_s", Unit::Milliseconds),
    ("max", "gap_max_s", Unit::Milliseconds),
    ("tok/s", "tokens_per_second", Unit::Tenths),
    (
        "first token p99/peer",
        "first_token_p99_peer_ratio",
        Unit::Ratio,
    ),
    ("tok/s / peer", "tokens_per_second_peer_ratio", Unit::Ratio),
];

/// What computes the requests.
#[derive(Clone)]
enum Server {
    Own(Engine, Latency),
    Peer(Url),
}

/// A server's figures.
struct Variant {
    name: String,
    server: Server,
    first_token: Quantiles,
    gaps: Quantiles,
    /// The same as multiples of the decode step of their round.
    gap_ratios: Quantiles,
    /// Of each round.
    tokens_per_second: Vec<f64>,
}

/// Measures and prints the figures.
pub(crate) async fn measure(args: &LatencyArgs) -> Result<(), Error> {
    let longest = args.prompt_tokens.max(SHORT_PROMPT) + args.output_tokens.max(DECODE_TOKENS);
    let engine = Engine::load(config(&args.engine, args.clients * longest)?)?;
    let context = engine.info().context;
    check_context(
        context,
        "--prompt-tokens",
        args.prompt_tokens,
        args.output_tokens,
    )?;
    let mut variants = variants(args, &engine);
    let mut rounds = Rounds::with_warmup(args.rounds);
    for (at, number) in (0..).zip(rounds.by_ref()) {
        let step = decode_step(&engine, args.clients).await?;
        for variant in &mut variants {
            eprintln!("latency: {}", variant.name);
            variant.measure(args, &engine, at, step, number > 0).await?;
        }
        variants.rotate_left(1);
    }
    let rounds = rounds.measured();
    variants.sort_by_key(|variant| order(args, &variant.name));
    let is_peer = |variant: &&Variant| matches!(variant.server, Server::Peer(_));
    let peer = variants.iter().find(is_peer);
    let rows: Vec<_> = variants.iter().map(|one| one.report(peer)).collect();
    engine.shutdown();
    let setup = json!({
        "bench": "latency",
        "clients": args.clients,
        "requests": args.requests,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "rounds": rounds,
    });
    let title = format!(
        "{} clients, every fourth prompt of {} tokens, the others of {SHORT_PROMPT}; {} tokens out; {rounds} rounds \
         of {} requests, times in ms",
        args.clients, args.prompt_tokens, args.output_tokens, args.requests
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

/// The policies to measure.
fn policies(args: &LatencyArgs) -> Vec<Latency> {
    match args.policies.is_empty() {
        true => vec![Latency::STREAM, Latency::BALANCED, Latency::THROUGHPUT],
        false => args.policies.clone(),
    }
}

/// The row of a variant in the table: the peer is last.
fn order(args: &LatencyArgs, name: &str) -> usize {
    let mut names = policies(args).into_iter().map(|one| one.to_string());
    names.position(|one| one == name).unwrap_or(usize::MAX)
}

fn variants(args: &LatencyArgs, engine: &Engine) -> Vec<Variant> {
    let own = policies(args).into_iter().map(|latency| {
        let server = Server::Own(engine.clone(), latency);
        (latency.to_string(), server)
    });
    let peer = args.openai_peer.clone();
    let peer = peer.map(|url| (url.to_string(), Server::Peer(url)));
    own.chain(peer)
        .map(|(name, server)| Variant {
            name,
            server,
            first_token: Quantiles::default(),
            gaps: Quantiles::default(),
            gap_ratios: Quantiles::default(),
            tokens_per_second: Vec::new(),
        })
        .collect()
}

/// The median gap of `clients` requests that decode together, in seconds.
async fn decode_step(engine: &Engine, clients: u64) -> Result<f64, Error> {
    let mut streams = JoinSet::new();
    for number in 0..clients {
        let engine = engine.clone();
        let prompt = prompt(&engine, 10_000_000 + number, SHORT_PROMPT);
        streams.spawn(async move { generate(&engine, prompt, DECODE_TOKENS).await });
    }
    let mut gaps = Vec::new();
    while let Some(times) = streams.join_next().await {
        let times = times.map_err(Error::context("a client crashed"))??;
        gaps.extend(gaps_of(&times).into_iter().skip(SKIPPED_GAPS));
    }
    Ok(median(gaps))
}

fn gaps_of(times: &[Instant]) -> Vec<f64> {
    let pairs = times.windows(2);
    pairs
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect()
}

impl Server {
    /// Sends a request; returns when its tokens arrived.
    async fn ask(&self, prompt: Vec<Token>, tokens: u64) -> Result<Vec<Instant>, Error> {
        match self {
            Server::Own(engine, latency) => {
                let caller = Caller {
                    latency: *latency,
                    ..Caller::default()
                };
                let generation = engine.generate(prompt, exactly(tokens), caller)?;
                Ok(crate::workload::finish(generation).await?.0)
            }
            Server::Peer(url) => ask_peer(url, &prompt, tokens).await,
        }
    }
}

/// Reads a stream of `/v1/completions`; returns when its events with a choice arrived.
async fn ask_peer(url: &Url, prompt: &[Token], tokens: u64) -> Result<Vec<Instant>, Error> {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens, "stream": true, "temperature": 0, "ignore_eos": true,
        "cache_prompt": false,
    });
    let path = url.openai("/v1/completions");
    let response = post(&mut Connection::new(url), url, &path, &body).await?;
    let mut times = Vec::new();
    let take = |data: &str| times.extend(has_text(data).then(Instant::now));
    read_events(url, response, take).await?;
    match times.len() as u64 > tokens + 1 || times.is_empty() {
        true => Err(Error::failed(format!(
            "{url} sent {} events with text for {tokens} tokens",
            times.len()
        ))),
        false => Ok(times),
    }
}

fn has_text(data: &str) -> bool {
    let value: Value = serde_json::from_str(data).unwrap_or_default();
    let text = value["choices"][0]["text"].as_str();
    text.is_some_and(|text| !text.is_empty())
}

impl Variant {
    /// Measures round `at`, and keeps its figures if it `counts`.
    async fn measure(
        &mut self,
        args: &LatencyArgs,
        engine: &Engine,
        at: u64,
        step: f64,
        counts: bool,
    ) -> Result<(), Error> {
        let (requests, output) = (args.requests, args.output_tokens);
        let long = args.prompt_tokens;
        let start = Instant::now();
        let clients = (0..args.clients).map(|_| (engine.clone(), self.server.clone()));
        let ask = move |(engine, server): (Engine, Server), number: u64| async move {
            let length = match number % 4 {
                0 => long,
                _ => SHORT_PROMPT,
            };
            let prompt = prompt(&engine, at * requests + number, length);
            let sent = Instant::now();
            let times = server.ask(prompt, output).await?;
            Ok::<_, Error>(((engine, server), (sent, times)))
        };
        let results = closed_loop(clients, 0..requests, ask).await?;
        if counts {
            self.add(&results, step);
            let tokens = requests * output;
            #[allow(clippy::cast_precision_loss)]
            let rate = tokens as f64 / start.elapsed().as_secs_f64();
            self.tokens_per_second.push(rate);
        }
        Ok(())
    }

    /// Adds when requests were sent, and when their tokens arrived.
    fn add(&mut self, results: &[(Instant, Vec<Instant>)], step: f64) {
        for (sent, times) in results {
            let first = times.first().map(|first| (*first - *sent).as_secs_f64());
            self.first_token.extend(first);
            let gaps = gaps_of(times);
            self.gap_ratios.extend(gaps.iter().map(|gap| gap / step));
            self.gaps.extend(gaps);
        }
    }

    fn tokens_per_second(&self) -> f64 {
        median(self.tokens_per_second.iter().copied())
    }

    fn report(&self, peer: Option<&Self>) -> Value {
        let first_token = |one: &Self| one.first_token.at(0.99);
        let ratio = |of: &dyn Fn(&Self) -> f64| peer.map(|peer| of(self) / of(peer));
        json!({
            "policy": self.name,
            "first_token_p50_s": self.first_token.at(0.5),
            "first_token_p99_s": first_token(self),
            "first_token_p99_peer_ratio": ratio(&first_token),
            "first_token_max_s": self.first_token.at(1.0),
            "gap_p50_ratio": self.gap_ratios.at(0.5),
            "gap_p99_ratio": self.gap_ratios.at(0.99),
            "gap_p99_s": self.gaps.at(0.99),
            "gap_max_s": self.gaps.at(1.0),
            "tokens_per_second": self.tokens_per_second(),
            "tokens_per_second_peer_ratio": ratio(&Self::tokens_per_second),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;
    use std::time::Duration;

    #[test]
    fn policies_are_read_and_checked() {
        let parsed = parse::<LatencyArgs>("--model x.gguf --latency 2,3,500 --latency stream");
        let policies = policies(&parsed.expect("valid arguments"));
        let expected = ["2,3,500".parse().expect("valid"), Latency::STREAM];
        assert_eq!(policies, expected);
        let error = parse::<LatencyArgs>("--model x.gguf --latency 1,1,1").expect_err("too strict");
        assert!(error.contains("from 1.5 to 1000"), "{error}");
    }

    #[test]
    fn gaps_are_multiples_of_the_decode_step() {
        let url: Url = "http://127.0.0.1:1".parse().expect("a URL");
        let mut variant = Variant {
            name: url.to_string(),
            server: Server::Peer(url),
            first_token: Quantiles::default(),
            gaps: Quantiles::default(),
            gap_ratios: Quantiles::default(),
            tokens_per_second: vec![10.0],
        };
        let sent = Instant::now();
        let at = |millis| sent + Duration::from_millis(millis);
        variant.add(&[(sent, vec![at(100), at(110), at(140)])], 0.010);
        let report = variant.report(None);
        let near = |key: &str, value: f64| {
            let found = report[key].as_f64().expect("a number");
            assert!((found / value - 1.0).abs() < 0.01, "{key}: {found}");
        };
        near("first_token_p99_s", 0.1);
        near("gap_p50_ratio", 1.0);
        near("gap_p99_ratio", 3.0);
        near("gap_max_s", 0.030);
    }

    #[test]
    fn only_events_with_text_count() {
        for (data, expected) in [
            (r#"{"choices":[{"text":"a"}]}"#, true),
            (r#"{"choices":[{"text":""}]}"#, false),
            (r#"{"choices":[]}"#, false),
            ("[DONE]", false),
        ] {
            assert_eq!(has_text(data), expected, "{data}");
        }
    }
}
