//! `corral-bench agents`: conversations that grow with each turn, as agents have them, on servers of OpenAI's API.
//!
//! All agents run at once. A turn sends the whole conversation with `/v1/completions`, reads the answer as a stream, and
//! pauses as if a tool ran. A server that keeps each conversation computes the new text alone: that is the ideal, to which
//! the computed prompt tokens are compared. The server says how many it took from its cache. Start it with fewer cells than
//! the conversations need. Servers take turns; each round has texts of its own.
//!
//! A text must give the same tokens wherever it stands, as with the demo model, which has a token for each character.
//! With other models a conversation may continue with other tokens than were generated, and the cache ends there.

use crate::requests::{post, read_events};
use clap::Args;
use corral_cli::Error;
use corral_cli::args::whole;
use corral_cli::bench::connection::Connection;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{Quantiles, float, median};
use corral_cli::bench::table::{self, Column, Unit};
use corral_cli::bench::url::Url;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

#[derive(Args, Debug)]
pub(crate) struct AgentsArgs {
    /// Servers with the same model, such as Corral's and llama.cpp's
    #[arg(required = true, value_name = "URL")]
    servers: Vec<Url>,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Agents at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1..=1000))]
    agents: u64,
    /// Turns of each
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole(2..=1000))]
    turns: u64,
    /// Characters that each turn adds to the conversation
    #[arg(long, value_name = "N", default_value_t = 370, value_parser = whole(10..=100_000))]
    characters: u64,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = whole(1..=10_000))]
    output_tokens: u64,
    /// Longest pause between two turns of an agent, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = whole(0..=600_000))]
    pause: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const WORDS: [&str; 12] = [
    "owl", "river", "stone", "quiet", "lamp", "winter", "paper", "green", "seven", "train", "door",
    "salt",
];

const COLUMNS: [Column; 8] = [
    ("server", "server", Unit::Plain),
    ("computed tokens", "computed_tokens", Unit::Plain),
    ("ideal", "ideal_tokens", Unit::Plain),
    ("to ideal", "ideal_ratio", Unit::Ratio),
    ("first token p50", "first_token_p50_s", Unit::Milliseconds),
    ("p99", "first_token_p99_s", Unit::Milliseconds),
    ("max", "first_token_max_s", Unit::Milliseconds),
    ("s", "seconds", Unit::Plain),
];

/// A server and its figures.
struct Measured {
    url: Url,
    first_token: Quantiles,
    computed: Vec<f64>,
    ideal: Vec<f64>,
    seconds: Vec<f64>,
}

/// What one agent needed.
#[derive(Default)]
struct AgentTotals {
    computed: u64,
    ideal: u64,
    first_tokens: Vec<f64>,
}

/// One answer.
struct Answer {
    text: String,
    first_token: Duration,
    prompt_tokens: u64,
    computed: u64,
}

/// Measures and prints the figures.
pub(crate) async fn measure(args: &AgentsArgs) -> Result<(), Error> {
    let mut servers: Vec<_> = args.servers.iter().cloned().map(Measured::new).collect();
    let mut rounds = Rounds::with_warmup_if_several(args.rounds);
    for round in rounds.by_ref() {
        for server in &mut servers {
            server.measure(args, round, round > 0).await?;
        }
    }
    let rounds = rounds.measured();
    let rows: Vec<_> = servers.iter().map(Measured::report).collect();
    let setup = json!({
        "bench": "agents",
        "agents": args.agents,
        "turns": args.turns,
        "output_tokens": args.output_tokens,
        "rounds": rounds,
    });
    let title = format!(
        "{} agents of {} turns; medians of {rounds} rounds",
        args.agents, args.turns
    );
    table::print(args.json, setup, &title, &COLUMNS, &rows);
    Ok(())
}

impl Measured {
    fn new(url: Url) -> Self {
        Self {
            url,
            first_token: Quantiles::default(),
            computed: Vec::new(),
            ideal: Vec::new(),
            seconds: Vec::new(),
        }
    }

    async fn measure(&mut self, args: &AgentsArgs, round: u64, counts: bool) -> Result<(), Error> {
        let started = Instant::now();
        let mut agents = JoinSet::new();
        for number in 0..args.agents {
            let agent = Agent {
                url: self.url.clone(),
                random: ChaCha8Rng::seed_from_u64(round * args.agents + number),
                turns: args.turns,
                characters: usize::try_from(args.characters).unwrap_or(usize::MAX),
                output_tokens: args.output_tokens,
                pause: args.pause,
            };
            agents.spawn(agent.run(format!("agent {number} of round {round}\n")));
        }
        let mut all = AgentTotals::default();
        while let Some(agent) = agents.join_next().await {
            let totals = agent.map_err(Error::context("an agent crashed"))??;
            all.computed += totals.computed;
            all.ideal += totals.ideal;
            all.first_tokens.extend(totals.first_tokens);
        }
        if counts {
            self.first_token.extend(all.first_tokens);
            self.computed.push(float(all.computed));
            self.ideal.push(float(all.ideal));
            self.seconds.push(started.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn report(&self) -> Value {
        let of = |values: &[f64]| median(values.iter().copied());
        let (computed, ideal) = (of(&self.computed), of(&self.ideal));
        json!({
            "server": self.url.to_string(),
            "computed_tokens": computed,
            "ideal_tokens": ideal,
            "ideal_ratio": computed / ideal,
            "first_token_p50_s": self.first_token.at(0.5),
            "first_token_p99_s": self.first_token.at(0.99),
            "first_token_max_s": self.first_token.at(1.0),
            "seconds": of(&self.seconds).round(),
        })
    }
}

struct Agent {
    url: Url,
    random: ChaCha8Rng,
    turns: u64,
    characters: usize,
    output_tokens: u64,
    pause: u64,
}

impl Agent {
    async fn run(mut self, begin: String) -> Result<AgentTotals, Error> {
        let mut connection = Connection::new(&self.url);
        let (mut conversation, mut totals, mut known) = (begin, AgentTotals::default(), 0);
        for _ in 0..self.turns {
            conversation += &self.words();
            let answer = ask(
                &mut connection,
                &self.url,
                &conversation,
                self.output_tokens,
            )
            .await?;
            totals.first_tokens.push(answer.first_token.as_secs_f64());
            totals.computed += answer.computed;
            totals.ideal += answer.prompt_tokens.saturating_sub(known);
            // All but the last token of the answer were computed when it was generated.
            known = answer.prompt_tokens + self.output_tokens - 1;
            conversation += &answer.text;
            let pause = self.random.random_range(0..=self.pause);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Ok(totals)
    }

    /// What the user, or a tool, says next.
    fn words(&mut self) -> String {
        let mut text = String::from("\n");
        while text.len() < self.characters {
            text += WORDS.choose(&mut self.random).unwrap_or(&"owl");
            text.push(' ');
        }
        text
    }
}

/// Sends a conversation and reads the answer.
async fn ask(
    connection: &mut Connection,
    url: &Url,
    conversation: &str,
    output_tokens: u64,
) -> Result<Answer, Error> {
    let body = json!({
        "model": "",
        "prompt": conversation,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
        "cache_prompt": true,
    });
    let path = url.openai("/v1/completions");
    let sent = Instant::now();
    let response = post(connection, url, &path, &body).await?;
    let (mut text, mut first_token, mut usage, mut timings) =
        (String::new(), None, Value::Null, Value::Null);
    read_events(url, response, |data| {
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        let piece = event["choices"][0]["text"].as_str().unwrap_or_default();
        if !piece.is_empty() {
            first_token.get_or_insert_with(|| sent.elapsed());
            text += piece;
        }
        for (found, key) in [(&mut usage, "usage"), (&mut timings, "timings")] {
            if event[key].is_object() {
                *found = event[key].clone();
            }
        }
    })
    .await?;
    let prompt_tokens = usage["prompt_tokens"].as_u64();
    let (Some(first_token), Some(prompt_tokens)) = (first_token, prompt_tokens) else {
        return Err(Error::failed(format!(
            "{url} answered without text or 'usage' in its stream of /v1/completions; see its log"
        )));
    };
    Ok(Answer {
        text,
        first_token,
        prompt_tokens,
        computed: computed(prompt_tokens, &usage, &timings),
    })
}

/// The prompt tokens that were not cached. llama.cpp's server counts them in `timings`.
fn computed(prompt_tokens: u64, usage: &Value, timings: &Value) -> u64 {
    timings["prompt_n"].as_u64().unwrap_or_else(|| {
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        prompt_tokens.saturating_sub(cached.unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_tokens_come_from_timings_or_usage() {
        let usage = json!({"prompt_tokens_details": {"cached_tokens": 90}});
        assert_eq!(computed(100, &usage, &Value::Null), 10);
        assert_eq!(computed(100, &usage, &json!({"prompt_n": 12})), 12);
        assert_eq!(computed(100, &Value::Null, &Value::Null), 100);
    }
}
