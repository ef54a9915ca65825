//! The requests of a run: the same for every endpoint and in every run.

use super::args::LoadArgs;
use super::arrivals::uniform_around;
use crate::Error;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::{Value, json};

/// Seed of lengths and words.
const SEED: u64 = 1;
const MAX_PROMPT_FILE_BYTES: u64 = 64 << 20;

/// Words that most models encode as one token together with the blank before them.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "was", "on", "are", "with", "as", "his",
    "they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what",
    "all", "were", "when", "we", "there", "can", "an", "your", "which", "their", "said", "if",
    "do", "will", "each", "about", "how", "up", "out", "them", "then", "she", "many", "some", "so",
    "these", "would", "other", "into", "has", "more", "her", "two", "like", "him", "see", "time",
];

#[derive(Clone, Debug)]
pub(super) struct Workload {
    prompts: Prompts,
    output_tokens: u64,
    mixed_lengths: bool,
    chat: bool,
    pub(super) stream: bool,
    ignore_eos: bool,
}

#[derive(Clone, Debug)]
enum Prompts {
    /// So many random words.
    Words(u64),
    /// These texts in turn.
    Texts(Vec<String>),
}

impl Workload {
    /// Reads the prompt file, if there is one.
    pub(super) fn new(args: &LoadArgs) -> Result<Self, Error> {
        let prompts = match &args.prompt_file {
            None => Prompts::Words(args.prompt_words),
            Some(file) => {
                let name = file.display();
                let length = std::fs::metadata(file).map(|file| file.len());
                let text = match length {
                    Ok(length) if length > MAX_PROMPT_FILE_BYTES => {
                        Err(std::io::Error::other("the file is too large"))
                    }
                    _ => std::fs::read_to_string(file),
                };
                let text = text.map_err(Error::context(format!(
                    "cannot read the prompts in {name}; give --prompt-file a text file of at most {} MiB",
                    MAX_PROMPT_FILE_BYTES >> 20
                )))?;
                let lines = text.lines().filter(|line| !line.trim().is_empty());
                let texts: Vec<_> = lines.map(str::to_owned).collect();
                if texts.is_empty() {
                    let empty = format!("there is no prompt in {name}; write one on each line");
                    return Err(Error::failed(empty));
                }
                Prompts::Texts(texts)
            }
        };
        Ok(Workload {
            prompts,
            output_tokens: args.output_tokens,
            mixed_lengths: args.mixed_lengths,
            chat: args.chat,
            stream: !args.no_stream,
            ignore_eos: !args.no_ignore_eos,
        })
    }

    /// The path below the endpoint's URL.
    pub(super) fn path(&self) -> &'static str {
        match self.chat {
            true => "/v1/chat/completions",
            false => "/v1/completions",
        }
    }

    /// The body of the request with this number, and the tokens that it asks for.
    pub(super) fn request(&self, number: u64, model: Option<&str>) -> (Value, u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(number ^ (SEED << 32));
        let mut length = |middle| match self.mixed_lengths {
            true => uniform_around(&mut rng, middle),
            false => middle,
        };
        let max_tokens = length(self.output_tokens);
        let prompt = match &self.prompts {
            Prompts::Words(words) => {
                let words = length(*words);
                let words = (0..words).filter_map(|_| WORDS.choose(&mut rng).copied());
                words.collect::<Vec<_>>().join(" ")
            }
            Prompts::Texts(texts) => {
                let count = texts.len() as u64;
                let at = usize::try_from(number % count).unwrap_or(0);
                texts.get(at).cloned().unwrap_or_default()
            }
        };
        let mut body = json!({"max_tokens": max_tokens, "temperature": 0, "stream": self.stream});
        if self.chat {
            body["messages"] = json!([{"role": "user", "content": prompt}]);
        } else {
            body["prompt"] = prompt.into();
        }
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        if let Some(model) = model {
            body["model"] = model.into();
        }
        (body, max_tokens)
    }

    /// The same requests for a few tokens, to see whether the endpoint responds.
    pub(super) fn for_probe(&self) -> Self {
        Workload {
            output_tokens: self.output_tokens.min(4),
            mixed_lengths: false,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(prompts: Prompts) -> Workload {
        Workload {
            prompts,
            output_tokens: 8,
            mixed_lengths: true,
            chat: false,
            stream: true,
            ignore_eos: true,
        }
    }

    #[test]
    fn requests_repeat_between_runs_and_differ_within() {
        let workload = workload(Prompts::Words(10));
        assert_eq!(workload.request(3, None), workload.request(3, None));
        let all: Vec<_> = (0..500)
            .map(|number| workload.request(number, None))
            .collect();
        for (body, max_tokens) in &all {
            let words = body["prompt"].as_str().expect("a text").split(' ').count();
            assert!((5..=15).contains(&words), "{body}");
            assert!((4..=12).contains(max_tokens), "{body}");
            assert_eq!(body["max_tokens"], *max_tokens);
            assert_eq!(all.iter().filter(|(other, _)| other == body).count(), 1);
        }
        let has_length = |length| all.iter().any(|(_, tokens)| *tokens == length);
        assert!(has_length(4) && has_length(12));
    }

    #[test]
    fn options_appear_in_the_body() {
        let (body, _) = workload(Prompts::Words(2)).request(0, Some("m"));
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["ignore_eos"], true);
        assert_eq!(body["model"], "m");
        let plain = Workload {
            chat: true,
            stream: false,
            ignore_eos: false,
            mixed_lengths: false,
            ..workload(Prompts::Texts(vec!["a b".to_owned(), "c".to_owned()]))
        };
        let expected = json!({
            "max_tokens": 8,
            "temperature": 0,
            "stream": false,
            "messages": [{"role": "user", "content": "c"}],
        });
        assert_eq!(plain.request(5, None), (expected, 8));
        assert_eq!(plain.path(), "/v1/chat/completions");
        assert_eq!(plain.for_probe().request(0, None).1, 4);
    }
}
