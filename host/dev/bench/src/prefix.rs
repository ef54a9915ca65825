//! `corral-bench prefix`: the cost of a prompt with a cached prefix, and of a fork.
//!
//! Every prompt ends in a tail of its own. Its prefix is in a held sequence, in the prefix cache (computed for another
//! tenant), or nowhere. All variants start from the same cells and attention covers as many of them, so the difference
//! between a cached prefix and the held sequence is the cost of lookup and reuse. HTTP has no held sequence: there the
//! reference is the held sequence plus what an uncached prompt of the same length takes over HTTP outside of
//! llama_decode.

use crate::args::EngineArgs;
use crate::local_server;
use crate::workload::{
    check_context, config, count, exactly, finish, metric, random_digits, status,
};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::{Caller, Engine, Generation, Latency, Sequence, Tenant, Token};
use corral_server::Server;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
pub(crate) struct PrefixArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// The plugin `generate`
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// Tokens of the shared prefix
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole(16..=100_000))]
    prefix_tokens: u64,
}

/// Tokens of a tail.
const TAIL_TOKENS: u64 = 32;
/// Measurements of each variant in a round.
const TURNS: usize = 4;
/// Measured forks.
const FORKS: usize = 1000;
/// Pause before a measurement, in which the engine's thread goes to sleep.
const PAUSE: Duration = Duration::from_millis(3);
/// The metric of tokens given to llama_decode.
const DECODED_TOKENS: &str = "corral_engine_computed_tokens_total";

/// Two tenants that share prefixes, in the group of plugins that share.
const FIRST: Caller = sharing(Tenant(1001));
const SECOND: Caller = sharing(Tenant(1002));

const fn sharing(tenant: Tenant) -> Caller {
    Caller {
        tenant,
        prefix_owner: None,
        prefix_group: Some(0),
        cell_share: None,
        priority: corral_engine::Priority(0),
        latency: Latency::BALANCED,
        queue_time: None,
        deadline: None,
    }
}

/// The location of a prompt's prefix, and the interface.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    /// In a held sequence.
    Held,
    /// In a fork of a held sequence.
    Fork,
    /// In the prefix cache.
    Cached,
    CachedHttp,
    /// Nowhere.
    WholeHttp,
}

impl Variant {
    const ALL: [Self; 5] = [
        Variant::Held,
        Variant::Fork,
        Variant::Cached,
        Variant::CachedHttp,
        Variant::WholeHttp,
    ];

    fn name(self) -> &'static str {
        match self {
            Variant::Held => "held",
            Variant::Fork => "fork",
            Variant::Cached | Variant::CachedHttp => "cached",
            Variant::WholeHttp => "whole",
        }
    }

    fn is_http(self) -> bool {
        matches!(self, Variant::CachedHttp | Variant::WholeHttp)
    }
}

/// A variant and its requests.
struct Row {
    variant: Variant,
    requests: Vec<RequestTimes>,
}

/// Times of a request, in seconds, and its tokens.
struct RequestTimes {
    first_token: f64,
    /// The part inside of llama_decode.
    compute: f64,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Tokens given to llama_decode.
    decoded_tokens: u64,
}

impl RequestTimes {
    /// The part outside of llama_decode.
    fn other(&self) -> f64 {
        self.first_token - self.compute
    }
}

/// A prompt as tokens and as text.
struct Prompt {
    tokens: Vec<Token>,
    text: String,
}

struct Bench {
    engine: Engine,
    server: Server,
    /// Tokens of the prefix.
    prefix_tokens: u64,
    /// Prompts made so far, all different.
    prompts: u64,
    rows: [Row; 5],
}

const COLUMNS: [Column; 12] = [
    ("prefix", "prefix", Unit::Plain),
    ("interface", "interface", Unit::Plain),
    ("requests", "requests", Unit::Plain),
    ("first token", "first_token_s", Unit::Milliseconds),
    ("llama_decode", "compute_s", Unit::Milliseconds),
    ("rest", "other_s", Unit::Milliseconds),
    ("to held", "ratio_to_held", Unit::Ratio),
    ("min", "ratio_to_held_min", Unit::Ratio),
    ("max", "ratio_to_held_max", Unit::Ratio),
    ("prompt", "prompt_tokens", Unit::Plain),
    ("min cached", "cached_tokens_min", Unit::Plain),
    ("max decoded", "decoded_tokens_max", Unit::Plain),
];

/// Measures and prints the figures.
pub(crate) async fn measure(args: &PrefixArgs) -> Result<(), Error> {
    let length = args.prefix_tokens;
    let cells = 2 * (length + TAIL_TOKENS + 1);
    let mut config = config(&args.engine, cells)?;
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    let context = engine.info().context;
    check_context(context, "--prefix-tokens", length, TAIL_TOKENS + 1)?;
    let mut bench = Bench {
        server: local_server::start(&engine, &args.plugin).await?,
        engine,
        prefix_tokens: length,
        prompts: 0,
        rows: Variant::ALL.map(|variant| Row {
            variant,
            requests: Vec::new(),
        }),
    };
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        bench.round(round > 0).await?;
    }
    let rounds = rounds.measured();
    let fork = bench.measure_forks().await?;
    let rows: Vec<_> = bench.rows.iter().map(|row| bench.report(row)).collect();
    bench.engine.shutdown();
    let micros = |key: &str| 1e6 * fork[key].as_f64().unwrap_or(0.0);
    let title = format!(
        "prompts with a prefix of {length} tokens and a tail of {TAIL_TOKENS}: time to first token by the location of \
         the prefix; medians of {rounds} rounds with {TURNS} turns each, ms; ratios turn by turn\n\
         fork of {length} tokens, {FORKS} times: median {:.1} µs, p99 {:.1} µs, max {:.1} µs; {} tokens decoded meanwhile",
        micros("p50_s"),
        micros("p99_s"),
        micros("max_s"),
        fork["tokens_decoded"],
    );
    let setup = json!({
        "bench": "prefix",
        "prefix_tokens": length,
        "tail_tokens": TAIL_TOKENS,
        "rounds": rounds,
        "fork": fork,
    });
    table::print(args.engine.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

impl Bench {
    /// Measures all variants in turns; records the figures if the round counts.
    async fn round(&mut self, counts: bool) -> Result<(), Error> {
        let prefix = self.prompt("", self.prefix_tokens)?;
        let prompt_tokens = self.prefix_tokens + TAIL_TOKENS;
        // The last prompt leaves the prefix that later ones find, computed over HTTP.
        for turn in 1..=TURNS {
            self.warm_up().await?;
            let prefix = if turn == TURNS { &prefix.text } else { "" };
            let prompt = self.prompt(prefix, prompt_tokens)?;
            let times = self.ask(Variant::WholeHttp, None, &prompt).await?;
            self.record(Variant::WholeHttp, times, counts);
        }
        let mut variants = [
            Variant::Held,
            Variant::Fork,
            Variant::Cached,
            Variant::CachedHttp,
        ];
        let mut held = None;
        for _ in 0..TURNS {
            for &variant in &variants {
                // All variants find the same cells: this sequence is held until the next one exists.
                let sequence = held.insert(self.create_sequence(&prefix).await?);
                self.settle().await?;
                let whole = self.prompt(&prefix.text, prompt_tokens)?;
                let times = self.ask(variant, Some(sequence), &whole).await?;
                self.record(variant, times, counts);
            }
            variants.rotate_left(1);
        }
        Ok(())
    }

    fn record(&mut self, variant: Variant, times: RequestTimes, counts: bool) {
        let row = self.rows.iter_mut().find(|row| row.variant == variant);
        if let Some(row) = row.filter(|_| counts) {
            row.requests.push(times);
        }
    }

    /// Generates one token after `prompt`, whose prefix is in `held`.
    async fn ask(
        &self,
        variant: Variant,
        held: Option<&mut Sequence>,
        prompt: &Prompt,
    ) -> Result<RequestTimes, Error> {
        let compute = || metric(&self.engine, "corral_engine_compute_seconds_total");
        let decoded_before = metric(&self.engine, DECODED_TOKENS);
        let compute_before = compute();
        let (tokens, start) = (prompt.tokens.clone(), Instant::now());
        let (first, prompt_tokens, cached_tokens) = match (variant, held) {
            (Variant::CachedHttp | Variant::WholeHttp, _) => {
                let address = self.server.public_address();
                let response = local_server::complete(address, &prompt.text).await?;
                let first = Instant::now();
                let number = |key: &str| response[key].as_u64().unwrap_or(0);
                (first, number("prompt_tokens"), number("cached_tokens"))
            }
            (Variant::Held | Variant::Fork, Some(held)) => {
                let mut fork = (variant == Variant::Fork).then(|| held.fork());
                let sequence = fork.as_mut().unwrap_or(held);
                let tail = tokens.get(sequence.tokens().len()..).unwrap_or_default();
                sequence.append(tail)?;
                first_token(sequence.generate(exactly(1))?).await?
            }
            _ => {
                let generation = self.engine.generate(tokens, exactly(1), SECOND)?;
                first_token(generation).await?
            }
        };
        Ok(RequestTimes {
            first_token: (first - start).as_secs_f64(),
            compute: compute() - compute_before,
            prompt_tokens,
            cached_tokens,
            decoded_tokens: count(metric(&self.engine, DECODED_TOKENS) - decoded_before),
        })
    }

    /// A sequence that has computed all of `prefix` and nothing else.
    async fn create_sequence(&self, prefix: &Prompt) -> Result<Sequence, Error> {
        let mut sequence = Sequence::new(self.engine.clone(), FIRST);
        sequence.append(&prefix.tokens)?;
        finish(sequence.generate(exactly(1))?).await?;
        Ok(sequence)
    }

    /// Empties the cells after a step like that of [`Bench::create_sequence`], so that every measurement follows a
    /// step of the same kind.
    async fn warm_up(&self) -> Result<(), Error> {
        self.engine.clear_prefix_cache()?;
        finish(self.engine.generate(vec![0], exactly(1), FIRST)?).await?;
        self.settle().await
    }

    /// Lets the engine drop unused sequences and go to sleep.
    async fn settle(&self) -> Result<(), Error> {
        self.engine.clear_prefix_cache()?;
        status(&self.engine).await?;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// A new prompt of exactly `length` tokens: `prefix`, and random digits.
    fn prompt(&mut self, prefix: &str, length: u64) -> Result<Prompt, Error> {
        self.prompts += 1;
        // Some vocabularies have tokens of three digits.
        let digits = random_digits(self.prompts, 3 * length);
        // As the plugin does: the model's begin token precedes a text.
        let begin = self.engine.info().begin;
        let mut tokens = self.engine.tokenize(&format!("{prefix}{digits}"), true)?;
        let has_begin = begin.is_some() && tokens.first() == begin.as_ref();
        let text = tokens.split_off(usize::from(has_begin));
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        tokens = begin.into_iter().chain(text).take(wanted).collect();
        if tokens.len() < wanted {
            return Err(Error::failed(format!(
                "{} digits are fewer than {length} tokens",
                3 * length
            )));
        }
        let text = &tokens[usize::from(begin.is_some())..];
        let text = String::from_utf8_lossy(&self.engine.detokenize(text, false)?).into_owned();
        Ok(Prompt { tokens, text })
    }

    /// Times of forks of a sequence in the cells, all of which exist at once.
    async fn measure_forks(&mut self) -> Result<Value, Error> {
        let prefix = self.prompt("", self.prefix_tokens)?;
        let held = self.create_sequence(&prefix).await?;
        self.settle().await?;
        let decoded_before = metric(&self.engine, DECODED_TOKENS);
        let (mut forks, mut times) = (Vec::with_capacity(FORKS), Quantiles::default());
        for _ in 0..FORKS {
            let start = Instant::now();
            forks.push(held.fork());
            times.add(start.elapsed().as_secs_f64());
        }
        Ok(json!({
            "forks": forks.len(),
            "p50_s": times.at(0.5),
            "p99_s": times.at(0.99),
            "max_s": times.at(1.0),
            "tokens_decoded": count(metric(&self.engine, DECODED_TOKENS) - decoded_before),
        }))
    }

    fn report(&self, row: &Row) -> Value {
        let of = |value: fn(&RequestTimes) -> f64| median(row.requests.iter().map(value));
        let min = |value: fn(&RequestTimes) -> u64| row.requests.iter().map(value).min();
        let max = |value: fn(&RequestTimes) -> u64| row.requests.iter().map(value).max();
        let (interface, http_cost) = match row.variant.is_http() {
            true => {
                let cost = self.other(Variant::WholeHttp) - self.other(Variant::Held);
                ("HTTP", cost)
            }
            false => ("engine", 0.0),
        };
        let [ratio, ratio_min, ratio_max] = self.ratios(row, http_cost);
        json!({
            "prefix": row.variant.name(),
            "interface": interface,
            "requests": row.requests.len(),
            "first_token_s": of(|times| times.first_token),
            "compute_s": of(|times| times.compute),
            "other_s": of(RequestTimes::other),
            "ratio_to_held": ratio,
            "ratio_to_held_min": ratio_min,
            "ratio_to_held_max": ratio_max,
            "prompt_tokens": max(|times| times.prompt_tokens),
            "cached_tokens_min": min(|times| times.cached_tokens),
            "decoded_tokens_max": max(|times| times.decoded_tokens),
        })
    }

    /// The requests of a variant.
    fn requests(&self, variant: Variant) -> &[RequestTimes] {
        let row = self.rows.iter().find(|row| row.variant == variant);
        row.map_or(&[], |row| &row.requests)
    }

    /// The median time of a variant's requests outside of llama_decode.
    fn other(&self, variant: Variant) -> f64 {
        median(self.requests(variant).iter().map(RequestTimes::other))
    }

    /// Median, minimum and maximum of the ratios of a row's requests to those of the held sequence in the same turns,
    /// to which `extra` seconds are added.
    fn ratios(&self, row: &Row, extra: f64) -> [f64; 3] {
        let pairs = row.requests.iter().zip(self.requests(Variant::Held));
        let ratios = pairs.map(|(own, held)| own.first_token / (held.first_token + extra));
        median_min_max(&ratios.collect::<Vec<_>>())
    }
}

/// When the first token arrived, the tokens of the prompt, and those of them from the cache.
async fn first_token(generation: Generation) -> Result<(Instant, u64, u64), Error> {
    let (times, outcome) = finish(generation).await?;
    let missing = || Error::failed("no token was generated");
    let first = *times.first().ok_or_else(missing)?;
    let (prompt, cached) = (outcome.prompt_tokens, outcome.cached_tokens);
    Ok((first, u64::from(prompt), u64::from(cached)))
}
