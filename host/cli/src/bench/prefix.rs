//! `corral bench prefix`: what a prompt costs whose beginning others have computed, and a fork.
//!
//! Every prompt that is compared ends in a tail of its own. Its beginning is in a sequence that is
//! gone on with, in the prefix cache, where another tenant left it, or nowhere. All begin from the
//! same cells, and attention runs over as many of them; so what a request that finds its beginning
//! in the cache takes more than the held sequence, its twin, is the price of looking for it and of
//! taking it in. Over HTTP there is no sequence to hold, so the twin is the held one and what, beside
//! llama_decode, a prompt as long takes over HTTP of which nothing is cached. The tail alone, in
//! empty cells, is measured for scale, and so is the whole prompt.

use super::load::{check_room, config, metric};
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{http, median, median_and_ends, quantile};
use crate::arguments::PrefixBench;
use crate::complaint::Complaint;
use corral_engine::{Caller, Engine, Error, Generation, Options, Outcome, Sequence, Tenant, Token};
use corral_server::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Tokens of a tail.
const TAIL: u64 = 32;
/// How often a round measures each way, but for the whole prompt without HTTP, which takes long.
const TURNS: usize = 4;
/// Forks that are taken the time of.
const FORKS: usize = 1000;
/// Between what is set up and what is measured: the engine's thread has gone to sleep by then.
const REST: Duration = Duration::from_millis(3);
/// The engine's tokens given to llama_decode.
const DECODED: &str = "corral_engine_computed_tokens_total";

/// Two tenants that share prefixes, in the group that plugins share in too.
const FIRST: Caller = sharing(Tenant(1001));
const SECOND: Caller = sharing(Tenant(1002));

const fn sharing(tenant: Tenant) -> Caller {
    Caller {
        tenant,
        shares: Some(0),
        share: None,
        priority: corral_engine::Priority(0),
        queue_time: None,
        deadline: None,
    }
}

/// Where the beginning of a prompt is, and who asks.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The prompt is a tail and nothing else, in empty cells.
    Tail,
    /// The same, over a connection.
    TailHttp,
    /// In a sequence that is gone on with.
    Held,
    /// In a sequence, and a fork of that is gone on with.
    Fork,
    /// In the cache, where another tenant left it.
    Cached,
    /// The same, over a connection of its own.
    Http,
    /// Nowhere.
    Whole,
    /// Nowhere, over a connection.
    WholeHttp,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Tail | Way::TailHttp => "tail alone",
            Way::Held => "held",
            Way::Fork => "fork",
            Way::Cached | Way::Http => "cached",
            Way::Whole | Way::WholeHttp => "whole",
        }
    }

    fn is_http(self) -> bool {
        matches!(self, Way::TailHttp | Way::Http | Way::WholeHttp)
    }
}

/// One way, and what was found.
struct Row {
    way: Way,
    requests: Vec<Asked>,
}

/// One request. Times are in seconds.
struct Asked {
    first_token: f64,
    /// What of it was inside of llama_decode.
    compute: f64,
    prompt: u64,
    cached: u64,
    /// Tokens given to llama_decode.
    decoded: u64,
}

impl Asked {
    /// What of it was not.
    fn other(&self) -> f64 {
        self.first_token - self.compute
    }
}

/// The same prompt for those who write tokens, and for those who write text.
struct Prompt {
    tokens: Vec<Token>,
    text: String,
}

struct Bench {
    engine: Engine,
    server: Option<Server>,
    length: u64,
    /// Prompts that were made: no two are the same.
    made: u64,
    rows: Vec<Row>,
}

const COLUMNS: [Column; 15] = [
    ("beginning", "beginning", Unit::Plain),
    ("asked over", "asked_over", Unit::Plain),
    ("requests", "requests", Unit::Plain),
    ("first token", "first_token_s", Unit::Milliseconds),
    ("llama_decode", "compute_s", Unit::Milliseconds),
    ("all else", "other_s", Unit::Milliseconds),
    ("to held", "ratio_to_held", Unit::Ratio),
    ("least", "least_to_held", Unit::Ratio),
    ("most", "most_to_held", Unit::Ratio),
    ("to tail alone", "ratio_to_tail", Unit::Ratio),
    ("least", "least_to_tail", Unit::Ratio),
    ("most", "most_to_tail", Unit::Ratio),
    ("prompt", "prompt_tokens", Unit::Plain),
    ("least cached", "least_cached_tokens", Unit::Plain),
    ("most decoded", "most_tokens_decoded", Unit::Plain),
];

/// Measures and prints.
pub(super) async fn measure(arguments: &PrefixBench) -> Result<(), Complaint> {
    let length = arguments.length;
    let cells = 2 * (length + TAIL + 1);
    let mut config = config(&arguments.measuring, arguments.threads, cells)?;
    config.prefix_cache = true;
    let engine = Engine::load(config)?;
    check_room(engine.info().context, "--length", length, TAIL + 1)?;
    let server = match &arguments.plugin {
        Some(plugin) => Some(http::start(&engine, plugin).await?),
        None => None,
    };
    let mut bench = Bench::new(engine, server, length);
    let mut rounds = Rounds::after_one(arguments.measuring.rounds);
    for round in rounds.by_ref() {
        // The first one warms up.
        bench.round(round > 0).await?;
    }
    let rounds = rounds.measured();
    let fork = bench.forks().await?;
    let rows: Vec<_> = bench.rows.iter().map(|row| bench.report(row)).collect();
    bench.engine.shutdown();
    let setup = json!({
        "bench": "prefix",
        "length": length,
        "tail": TAIL,
        "rounds": rounds,
        "fork": fork,
    });
    let title = format!(
        "prompts of {length} tokens and a tail of {TAIL}: time to the first token by where the \
         beginning is; medians of {rounds} rounds with {TURNS} turns each, ms; ratios turn by turn"
    );
    tell(arguments.measuring.json, setup, &title, &COLUMNS, &rows);
    if !arguments.measuring.json {
        let micros = |key: &str| 1e6 * fork[key].as_f64().unwrap_or(0.0);
        println!(
            "fork of {length} tokens, {FORKS} times: median {:.1} µs, p99 {:.1} µs, longest {:.1} µs; \
             {} tokens decoded meanwhile",
            micros("p50_s"),
            micros("p99_s"),
            micros("max_s"),
            fork["tokens_decoded"],
        );
    }
    Ok(())
}

impl Bench {
    fn new(engine: Engine, server: Option<Server>, length: u64) -> Self {
        let mut ways = vec![Way::Tail, Way::Held, Way::Fork, Way::Cached];
        ways.extend(match server {
            Some(_) => [Way::Http, Way::TailHttp, Way::WholeHttp].as_slice(),
            None => [Way::Whole].as_slice(),
        });
        let row = |way| Row {
            way,
            requests: Vec::new(),
        };
        Self {
            engine,
            server,
            length,
            made: 0,
            rows: ways.into_iter().map(row).collect(),
        }
    }

    /// Measures all ways, by turns; it is taken note of if it `counts`.
    async fn round(&mut self, counts: bool) -> Result<(), Complaint> {
        let prefix = self.prompt("", self.length)?;
        let through_http = self.server.is_some();
        for _ in 0..TURNS {
            let all = self.length + TAIL;
            let ways = [
                (Way::Tail, TAIL),
                (Way::TailHttp, TAIL),
                (Way::WholeHttp, all),
            ];
            for (way, length) in ways {
                if through_http || !way.is_http() {
                    self.warm().await?;
                    let prompt = self.prompt("", length)?;
                    let asked = self.ask(way, None, &prompt).await?;
                    self.note(way, asked, counts);
                }
            }
        }
        // It is computed over a connection, where others are to find it over a connection.
        let way = if through_http {
            Way::WholeHttp
        } else {
            Way::Whole
        };
        self.warm().await?;
        let whole = self.prompt(&prefix.text, self.length + TAIL)?;
        let asked = self.ask(way, None, &whole).await?;
        self.note(way, asked, counts);
        let mut ways = vec![Way::Held, Way::Fork, Way::Cached];
        ways.extend(through_http.then_some(Way::Http));
        let mut held = None;
        for _ in 0..TURNS {
            for &way in &ways {
                // Everyone finds the same in the cells: this one, held until the next is there.
                let sequence = held.insert(self.hold(&prefix).await?);
                self.settle().await?;
                let whole = self.prompt(&prefix.text, self.length + TAIL)?;
                let asked = self.ask(way, Some(sequence), &whole).await?;
                self.note(way, asked, counts);
            }
            // Nobody always comes first.
            ways.rotate_left(1);
        }
        Ok(())
    }

    fn note(&mut self, way: Way, asked: Asked, counts: bool) {
        let row = self.rows.iter_mut().find(|row| row.way == way);
        if let Some(row) = row.filter(|_| counts) {
            row.requests.push(asked);
        }
    }

    /// Asks for one token after `prompt`, whose beginning is `held`.
    async fn ask(
        &self,
        way: Way,
        held: Option<&mut Sequence>,
        prompt: &Prompt,
    ) -> Result<Asked, Complaint> {
        let computed = || metric(&self.engine, "corral_engine_compute_seconds_total");
        let (decoded, compute) = (metric(&self.engine, DECODED), computed());
        let (tokens, began) = (prompt.tokens.clone(), Instant::now());
        let (first, prompt, cached) = match (way, held, &self.server) {
            (_, _, Some(server)) if way.is_http() => {
                let answer = http::complete(server.public_address(), &prompt.text).await?;
                let number = |key: &str| answer[key].as_u64().unwrap_or(0);
                let first = Instant::now();
                (first, number("prompt_tokens"), number("cached_tokens"))
            }
            (Way::Held | Way::Fork, Some(held), _) => {
                let mut fork = (way == Way::Fork).then(|| held.fork());
                let sequence = fork.as_mut().unwrap_or(held);
                let tail = tokens.get(sequence.tokens().len()..).unwrap_or_default();
                sequence.append(tail)?;
                read(sequence.generate(one())?).await?
            }
            _ => read(self.engine.generate(tokens, one(), SECOND)?).await?,
        };
        Ok(Asked {
            first_token: (first - began).as_secs_f64(),
            compute: computed() - compute,
            prompt,
            cached,
            decoded: whole_number(metric(&self.engine, DECODED) - decoded),
        })
    }

    /// A sequence that has computed all of `prefix` and nothing else.
    async fn hold(&self, prefix: &Prompt) -> Result<Sequence, Error> {
        let mut sequence = Sequence::new(self.engine.clone(), FIRST);
        sequence.append(&prefix.tokens)?;
        read(sequence.generate(one())?).await?;
        Ok(sequence)
    }

    /// Empties the cells, after a step like that of [`Bench::hold`]: so that the step before what is
    /// measured is always of the same kind.
    async fn warm(&self) -> Result<(), Error> {
        self.engine.clear_cache()?;
        read(self.engine.generate(vec![0], one(), FIRST)?).await?;
        self.settle().await
    }

    /// Lets the engine drop what nobody holds, and come to rest.
    async fn settle(&self) -> Result<(), Error> {
        self.engine.clear_cache()?;
        let (tell, told) = tokio::sync::oneshot::channel();
        // Fails only when nobody listens any more.
        self.engine.view(move |_| tell.send(()).unwrap_or(()))?;
        told.await
            .map_err(|_| Error::Failed("the engine thread has ended".into()))?;
        tokio::time::sleep(REST).await;
        Ok(())
    }

    /// A prompt of exactly `length` tokens: `beginning`, and digits that were not used before.
    fn prompt(&mut self, beginning: &str, length: u64) -> Result<Prompt, Complaint> {
        self.made += 1;
        // Some vocabularies have tokens of three digits.
        let text = format!("{beginning}{}", digits(self.made, 3 * length));
        // As the plugin does: a text begins with the model's token for that.
        let begin = self.engine.info().begin;
        let mut tokens = self.engine.tokenize(&text, true)?;
        let own = usize::from(begin.is_some() && tokens.first() == begin.as_ref());
        let text = tokens.split_off(own);
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        tokens = begin.into_iter().chain(text).take(wanted).collect();
        if tokens.len() < wanted {
            let short = format!("{} digits are fewer than {length} tokens", 3 * length);
            return Err(Complaint::Failed(short.into()));
        }
        let text = &tokens[usize::from(begin.is_some())..];
        let text = String::from_utf8_lossy(&self.engine.detokenize(text, false)?).into_owned();
        Ok(Prompt { tokens, text })
    }

    /// Times of forks of a sequence in the cells, all of them held at once.
    async fn forks(&mut self) -> Result<Value, Complaint> {
        let prefix = self.prompt("", self.length)?;
        let held = self.hold(&prefix).await?;
        self.settle().await?;
        let decoded = metric(&self.engine, DECODED);
        let (mut forks, mut times) = (Vec::with_capacity(FORKS), Vec::with_capacity(FORKS));
        for _ in 0..FORKS {
            let began = Instant::now();
            forks.push(held.fork());
            times.push(began.elapsed().as_secs_f64());
        }
        Ok(json!({
            "forks": forks.len(),
            "p50_s": quantile(&mut times, 0.5),
            "p99_s": quantile(&mut times, 0.99),
            "max_s": quantile(&mut times, 1.0),
            "tokens_decoded": whole_number(metric(&self.engine, DECODED) - decoded),
        }))
    }

    fn report(&self, row: &Row) -> Value {
        let of = |value: fn(&Asked) -> f64| median(row.requests.iter().map(value));
        let least = |value: fn(&Asked) -> u64| row.requests.iter().map(value).min();
        let most = |value: fn(&Asked) -> u64| row.requests.iter().map(value).max();
        let tail = if row.way.is_http() {
            Way::TailHttp
        } else {
            Way::Tail
        };
        let over_http = if row.way.is_http() {
            self.other(Way::WholeHttp) - self.other(Way::Held)
        } else {
            0.0
        };
        let to_held = self.ratios(row, Way::Held, over_http);
        let to_tail = self.ratios(row, tail, 0.0);
        json!({
            "beginning": row.way.name(),
            "asked_over": if row.way.is_http() { "HTTP" } else { "engine" },
            "requests": row.requests.len(),
            "first_token_s": of(|asked| asked.first_token),
            "compute_s": of(|asked| asked.compute),
            "other_s": of(Asked::other),
            "ratio_to_held": to_held[0],
            "least_to_held": to_held[1],
            "most_to_held": to_held[2],
            "ratio_to_tail": to_tail[0],
            "least_to_tail": to_tail[1],
            "most_to_tail": to_tail[2],
            "prompt_tokens": most(|asked| asked.prompt),
            "least_cached_tokens": least(|asked| asked.cached),
            "most_tokens_decoded": most(|asked| asked.decoded),
        })
    }

    /// Seconds of a way's requests that were not inside of llama_decode: the median.
    fn other(&self, way: Way) -> f64 {
        let rows = self.rows.iter().filter(|row| row.way == way);
        let requests = rows.flat_map(|row| &row.requests);
        median(requests.map(Asked::other))
    }

    /// Median, least and most of how much longer a row's requests took than those of `twin` in the
    /// same turns and `more` seconds.
    fn ratios(&self, row: &Row, twin: Way, more: f64) -> [f64; 3] {
        let twins = self.rows.iter().find(|row| row.way == twin);
        let twins = twins.map_or(&[][..], |row| &row.requests);
        // The whole prompt has another number of turns in a round.
        let step = (twins.len() / row.requests.len().max(1)).max(1);
        let pairs = row.requests.iter().zip(twins.iter().step_by(step));
        let ratio = |(own, twin): (&Asked, &Asked)| own.first_token / (twin.first_token + more);
        median_and_ends(&pairs.map(ratio).collect::<Vec<_>>())
    }
}

fn one() -> Options {
    Options {
        max_tokens: 1,
        ignore_end: true,
        ..Options::default()
    }
}

/// When the first token was there, and how many tokens the prompt had, and had in the cache.
async fn read(mut generation: Generation) -> Result<(Instant, u64, u64), Error> {
    let mut first = None;
    while generation.next().await.is_some() {
        first.get_or_insert_with(Instant::now);
    }
    let Outcome {
        prompt_tokens,
        cached_tokens,
        ..
    } = generation.outcome().unwrap_or(Err(Error::Cancelled))?;
    let first = first.ok_or_else(|| Error::Failed("no token came".into()))?;
    Ok((first, u64::from(prompt_tokens), u64::from(cached_tokens)))
}

/// Digits that mean nothing; others for each `number`. (The generator is Knuth's MMIX.)
fn digits(number: u64, length: u64) -> String {
    let mut state = number;
    let mut digit = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + u8::try_from((state >> 33) % 10).unwrap_or(0))
    };
    (0..length).map(&mut digit).collect()
}

/// A counter's value as it was counted.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole_number(value: f64) -> u64 {
    value as u64
}
