//! What an endpoint is asked: the same of everyone that is compared, and in every run.

use super::arrivals::Random;
use crate::arguments::LoadBench;
use crate::complaint::Complaint;
use serde_json::{Value, json};

/// What lengths and words follow from.
const SEED: u64 = 1;
/// The most bytes of a file with prompts.
const MOST: u64 = 64 << 20;

/// Words that are one token each for most models, with the blank before them.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "was", "on", "are", "with", "as", "his",
    "they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what",
    "all", "were", "when", "we", "there", "can", "an", "your", "which", "their", "said", "if",
    "do", "will", "each", "about", "how", "up", "out", "them", "then", "she", "many", "some", "so",
    "these", "would", "other", "into", "has", "more", "her", "two", "like", "him", "see", "time",
];

/// What all requests of a run are made of.
#[derive(Clone, Debug)]
pub(super) struct Work {
    prompts: Prompts,
    generate: u64,
    /// Whether lengths differ, from half to one and a half of what is said.
    mixed: bool,
    chat: bool,
    pub(super) stream: bool,
    ignore_end: bool,
}

#[derive(Clone, Debug)]
enum Prompts {
    /// So many words.
    Words(u64),
    /// These, in turn.
    Texts(Vec<String>),
}

impl Work {
    /// Reads the prompts, where they are in a file.
    pub(super) fn new(arguments: &LoadBench) -> Result<Self, Complaint> {
        let prompts = match &arguments.prompt_file {
            None => Prompts::Words(arguments.prompt),
            Some(file) => {
                let name = file.display();
                let length = std::fs::metadata(file).map(|file| file.len());
                let text = match length {
                    Ok(length) if length > MOST => Err(std::io::Error::other("it is too large")),
                    _ => std::fs::read_to_string(file),
                };
                let text = text.map_err(Complaint::telling(&format!(
                    "the prompts in {name} cannot be read; name a text file of at most {} MiB with --prompt-file",
                    MOST >> 20
                )))?;
                let lines = text.lines().filter(|line| !line.trim().is_empty());
                let texts: Vec<_> = lines.map(str::to_owned).collect();
                if texts.is_empty() {
                    let empty = format!("there is no prompt in {name}; write one on each line");
                    return Err(Complaint::Failed(empty.into()));
                }
                Prompts::Texts(texts)
            }
        };
        Ok(Work {
            prompts,
            generate: arguments.generate,
            mixed: arguments.mixed,
            chat: arguments.chat,
            stream: !arguments.no_stream,
            ignore_end: !arguments.no_ignore_eos,
        })
    }

    /// Where it is asked for, below the URL.
    pub(super) fn path(&self) -> &'static str {
        match self.chat {
            true => "/v1/chat/completions",
            false => "/v1/completions",
        }
    }

    /// The request of this number, of the model of this name, and how many tokens it asks for.
    pub(super) fn request(&self, number: u64, model: Option<&str>) -> (Value, u64) {
        // Neighbouring numbers have nothing in common.
        let mut random = Random::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ SEED);
        let mut length = |said| match self.mixed {
            true => random.around(said),
            false => said,
        };
        let generate = length(self.generate);
        let prompt = match &self.prompts {
            Prompts::Words(words) => {
                let words = length(*words);
                text(&mut random, words)
            }
            Prompts::Texts(texts) => {
                let count = texts.len() as u64;
                let at = usize::try_from(number % count).unwrap_or(0);
                texts.get(at).cloned().unwrap_or_default()
            }
        };
        let mut body = json!({"max_tokens": generate, "temperature": 0, "stream": self.stream});
        if self.chat {
            body["messages"] = json!([{"role": "user", "content": prompt}]);
        } else {
            body["prompt"] = prompt.into();
        }
        if self.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if self.ignore_end {
            body["ignore_eos"] = true.into();
        }
        if let Some(model) = model {
            body["model"] = model.into();
        }
        (body, generate)
    }

    /// The same with a few tokens at most: only to see whether there is an answer.
    pub(super) fn for_a_look(&self) -> Self {
        Work {
            generate: self.generate.min(4),
            mixed: false,
            ..self.clone()
        }
    }
}

/// Words that mean nothing together.
fn text(random: &mut Random, words: u64) -> String {
    let mut text = String::new();
    for _ in 0..words {
        let at = usize::try_from(random.below(WORDS.len() as u64)).unwrap_or(0);
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(WORDS[at]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(prompts: Prompts) -> Work {
        Work {
            prompts,
            generate: 8,
            mixed: true,
            chat: false,
            stream: true,
            ignore_end: true,
        }
    }

    #[test]
    fn requests_are_the_same_in_every_run_and_differ_from_each_other() {
        let work = work(Prompts::Words(10));
        assert_eq!(work.request(3, None), work.request(3, None));
        let all: Vec<_> = (0..500).map(|number| work.request(number, None)).collect();
        for (body, generate) in &all {
            let words = body["prompt"].as_str().expect("a text").split(' ').count();
            assert!((5..=15).contains(&words), "{body}");
            assert!((4..=12).contains(generate), "{body}");
            assert_eq!(body["max_tokens"], *generate);
            assert_eq!(all.iter().filter(|(other, _)| other == body).count(), 1);
        }
        let lengths = |least| all.iter().any(|(_, generate)| *generate == least);
        assert!(lengths(4) && lengths(12));
    }

    #[test]
    fn requests_say_what_was_asked_for() {
        let (body, _) = work(Prompts::Words(2)).request(0, Some("m"));
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["ignore_eos"], true);
        assert_eq!(body["model"], "m");
        let plain = Work {
            chat: true,
            stream: false,
            ignore_end: false,
            mixed: false,
            ..work(Prompts::Texts(vec!["a b".to_owned(), "c".to_owned()]))
        };
        let expected = json!({
            "max_tokens": 8,
            "temperature": 0,
            "stream": false,
            "messages": [{"role": "user", "content": "c"}],
        });
        assert_eq!(plain.request(5, None), (expected, 8));
        assert_eq!(plain.path(), "/v1/chat/completions");
        assert_eq!(plain.for_a_look().request(0, None).1, 4);
    }
}
