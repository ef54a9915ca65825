//! Arguments of `corral bench load`.

use crate::Error;
use crate::args::{seconds, whole};
use crate::bench::rounds::{RoundArgs, WithinArgs};
use crate::bench::url::Url;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Most measured times of a run, all of which are in memory until its round ends.
pub const MAX_SAMPLES: u64 = 50_000_000;

#[derive(Args, Debug)]
pub struct LoadArgs {
    /// Endpoints, http://HOST:PORT or http://HOST:PORT/v1; each is compared with the first
    #[arg(value_name = "URL", required = true, num_args = 1..=8)]
    pub urls: Vec<Url>,

    /// Clients; each sends its next request after its response
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(1..=4096), conflicts_with = "rate",
          help_heading = "Load")]
    pub concurrency: u64,
    /// Requests a second at random times, in place of clients that wait
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Load")]
    pub rate: Option<f64>,
    /// Requests in flight with --rate; further ones are not sent [default: 256]
    #[arg(long, value_name = "N", requires = "rate", value_parser = whole(1..=16_384), help_heading = "Load")]
    pub max_in_flight: Option<u64>,
    /// Requests of each round
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = whole(1..=1_000_000), help_heading = "Load")]
    pub requests: u64,
    /// Rounds, in which the URLs take turns [default: 5, or 1 for a single URL]
    #[arg(long, value_name = "N", value_parser = whole(1..=1000), help_heading = "Load")]
    rounds: Option<u64>,
    #[command(flatten, next_help_heading = "Load")]
    within: WithinArgs,

    /// Words of each prompt, about as many tokens; prompts differ
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(1..=200_000),
          conflicts_with = "prompt_file", help_heading = "Requests")]
    pub prompt_words: u64,
    /// Text file with a prompt on each line, in place of random words
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub prompt_file: Option<PathBuf>,
    /// Tokens of each response
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole(1..=100_000), help_heading = "Requests")]
    pub output_tokens: u64,
    /// Vary the lengths of prompts and responses from half to one and a half
    #[arg(long, help_heading = "Requests")]
    pub mixed_lengths: bool,
    /// Use /v1/chat/completions instead of /v1/completions
    #[arg(long, help_heading = "Requests")]
    pub chat: bool,
    /// Ask for whole responses instead of streams
    #[arg(long, help_heading = "Requests")]
    pub no_stream: bool,
    /// Omit `ignore_eos`, which some servers refuse; responses may then be shorter
    #[arg(long, help_heading = "Requests")]
    pub no_ignore_eos: bool,
    /// Model name in requests; once, or once for each URL
    #[arg(long = "model", value_name = "NAME", help_heading = "Requests")]
    pub models: Vec<String>,
    /// API key; once, or once for each URL
    #[arg(long = "api-key", value_name = "KEY", help_heading = "Requests")]
    pub api_keys: Vec<String>,
    /// Timeout of a response in seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = "Requests")]
    pub timeout: Duration,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let counts = [
            ("--model", self.models.len()),
            ("--api-key", self.api_keys.len()),
        ];
        for (option, count) in counts {
            if count > 1 && count != self.urls.len() {
                return Err(Error::usage(format!(
                    "{option} is given {count} times for {} URLs; give it once, or once for each of them",
                    self.urls.len()
                )));
            }
        }
        let responses = self.requests.saturating_mul(self.rounds().count);
        let tokens = responses.saturating_mul(self.urls.len() as u64 * self.output_tokens);
        if tokens > MAX_SAMPLES {
            return Err(Error::usage(format!(
                "the responses would have {tokens} tokens, and at most {MAX_SAMPLES} can be measured; \
                 lower --requests, --output-tokens or --rounds"
            )));
        }
        Ok(())
    }

    pub(super) fn rounds(&self) -> RoundArgs {
        let default = if self.urls.len() > 1 { 5 } else { 1 };
        RoundArgs {
            count: self.rounds.unwrap_or(default),
            within: self.within,
        }
    }
}

/// The value for the URL at this index: values are given once, or once for each URL.
pub(super) fn for_url(values: &[String], url: usize) -> Option<&str> {
    values.get(url).or(values.first()).map(String::as_str)
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok();
    let rate = rate.filter(|rate| (0.001..=1e6).contains(rate));
    rate.ok_or_else(|| "write requests a second, e.g. 10 or 0.5".to_owned())
}
