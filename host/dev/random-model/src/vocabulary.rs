//! Makes a byte-level BPE vocabulary like those of GPT-2 and Qwen, which encodes any text.
//!
//! The merges come from a list of common words, then from random words of syllables. Each token except control tokens is the
//! encoding of its own text, because a merge joins the first two tokens of a word's encoding and applies after all earlier
//! merges.

use super::Value;
use corral_llama::gguf::GgufError;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

const WORDS: &str = include_str!("words.txt");
/// ChatML with tools.
const CHAT_TEMPLATE: &str = include_str!("../../../../models/tiny/chat_template.jinja");

/// Control tokens; their ids come last.
const CONTROL_TOKENS: [&str; 3] = [END_OF_TEXT, "<|im_start|>", TURN_END];
const END_OF_TEXT: &str = "<|endoftext|>";
const TURN_END: &str = "<|im_end|>";
/// Supported sizes: all bytes and some merges, up to the largest vocabularies of models.
const SIZES: std::ops::RangeInclusive<u32> = 512..=1_000_000;
/// Token types of llama.cpp.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

const ONSETS: [&str; 41] = [
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "y", "z",
    "bl", "br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "pl", "pr", "qu", "sc", "sh", "sl",
    "sm", "sn", "sp", "st", "str", "",
];
const VOWELS: [&str; 11] = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "io", "oo", "ou"];
const CODAS: [&str; 22] = [
    "", "b", "ck", "d", "g", "l", "ll", "m", "n", "nd", "ng", "nt", "p", "r", "rd", "rt", "s",
    "ss", "st", "t", "th", "x",
];

/// Tokens and their merges. A token's id is the rank of its merge: lower ranks apply first. The first 256 are the
/// bytes.
pub(super) struct Vocabulary {
    tokens: Vec<Vec<u8>>,
    /// The two halves of each token after the bytes.
    halves: Vec<(u32, u32)>,
    merges: HashMap<(u32, u32), u32>,
    /// Number of tokens to reach, without [`CONTROL_TOKENS`].
    size: usize,
}

impl Vocabulary {
    /// Makes a vocabulary of exactly `size` tokens, with control tokens. The same seed gives the same vocabulary.
    pub(super) fn new(size: u32, seed: u64) -> Result<Self, GgufError> {
        if !SIZES.contains(&size) {
            return Err(GgufError::Invalid(format!(
                "a vocabulary of {size} tokens is not supported; use {} to {}",
                SIZES.start(),
                SIZES.end()
            )));
        }
        let mut vocabulary = Self {
            tokens: (0..=u8::MAX).map(|byte| vec![byte]).collect(),
            halves: Vec::new(),
            merges: HashMap::new(),
            size: size as usize - CONTROL_TOKENS.len(),
        };
        vocabulary.add_words();
        vocabulary.add_syllables(seed);
        Ok(vocabulary)
    }

    fn is_full(&self) -> bool {
        self.tokens.len() >= self.size
    }

    /// Encodes a piece of the pre-tokenizer: applies the merge of the lowest rank, at its first position, until none
    /// applies.
    fn encode(&self, piece: &[u8]) -> Vec<u32> {
        let mut tokens: Vec<u32> = piece.iter().map(|&byte| u32::from(byte)).collect();
        loop {
            let possible = tokens.windows(2).enumerate().filter_map(|(index, pair)| {
                let token = *self.merges.get(&(pair[0], pair[1]))?;
                Some((token, index))
            });
            let Some((token, index)) = possible.min() else {
                return tokens;
            };
            tokens[index] = token;
            tokens.remove(index + 1);
        }
    }

    /// Adds merges until `piece` is one token, or the vocabulary is full.
    fn add_piece(&mut self, piece: &[u8]) {
        while !self.is_full() {
            let [left, right, ..] = self.encode(piece)[..] else {
                return;
            };
            let text = |token: u32| self.tokens[token as usize].as_slice();
            let (merged, token) = ([text(left), text(right)].concat(), self.tokens.len() as u32);
            self.merges.insert((left, right), token);
            self.halves.push((left, right));
            self.tokens.push(merged);
        }
    }

    /// Adds the words of the list: with and without a leading space, in lower case and capitalized.
    fn add_words(&mut self) {
        let small: Vec<String> = WORDS.split_whitespace().map(str::to_owned).collect();
        let capital = |word: &String| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        };
        let large: Vec<String> = small.iter().map(capital).collect();
        for (space, words) in [(" ", &small), ("", &small), (" ", &large), ("", &large)] {
            for word in words {
                self.add_piece(format!("{space}{word}").as_bytes());
            }
        }
    }

    /// Adds random words of syllables until the vocabulary is full.
    fn add_syllables(&mut self, seed: u64) {
        let mut syllables = Vec::new();
        for onset in ONSETS {
            for vowel in VOWELS {
                syllables.extend(CODAS.map(|coda| format!("{onset}{vowel}{coda}")));
            }
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Ends, because there are far more words of three syllables than tokens.
        while !self.is_full() {
            let mut word = String::from(if random.random() { " " } else { "" });
            for _ in 0..random.random_range(1..=3) {
                word += &syllables[random.random_range(0..syllables.len())];
            }
            self.add_piece(word.as_bytes());
        }
    }

    /// The GGUF metadata, with the chat template.
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        let symbols = symbols();
        let to_text = |token: &Vec<u8>| -> String {
            token
                .iter()
                .map(|&byte| symbols[usize::from(byte)])
                .collect()
        };
        let mut tokens: Vec<String> = self.tokens.iter().map(to_text).collect();
        let merges: Vec<String> = self
            .halves
            .iter()
            .map(|&(left, right)| format!("{} {}", tokens[left as usize], tokens[right as usize]))
            .collect();
        let mut types = vec![NORMAL; tokens.len()];
        types.extend(CONTROL_TOKENS.map(|_| CONTROL));
        tokens.extend(CONTROL_TOKENS.map(str::to_owned));
        let id = |name: &str| {
            let index = tokens.iter().rposition(|token| token == name);
            Value::from(
                index
                    .and_then(|index| u32::try_from(index).ok())
                    .unwrap_or(0),
            )
        };
        let (end_of_text, turn_end) = (id(END_OF_TEXT), id(TURN_END));
        let values: [(&str, Value); 13] = [
            ("ggml.model", "gpt2".into()),
            ("ggml.pre", "qwen2".into()),
            ("ggml.tokens", tokens.into()),
            ("ggml.token_type", types.into()),
            ("ggml.merges", merges.into()),
            ("ggml.bos_token_id", end_of_text.clone()),
            ("ggml.padding_token_id", end_of_text),
            ("ggml.eos_token_id", turn_end.clone()),
            ("ggml.eot_token_id", turn_end),
            ("ggml.add_bos_token", false.into()),
            ("ggml.add_eos_token", false.into()),
            ("chat_template", CHAT_TEMPLATE.into()),
            ("chat_template.rerank", "{query}\n{document}".into()),
        ];
        values
            .map(|(key, value)| (format!("tokenizer.{key}"), value))
            .into()
    }
}

/// GPT-2's character for each byte: the byte itself if it is printable, else another character.
fn symbols() -> Vec<char> {
    let mut spare = '\u{100}'..='\u{1ff}';
    (0..=u8::MAX)
        .map(|byte| match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => spare.next().unwrap_or(' '),
        })
        .collect()
}

#[cfg(test)]
mod tests;
