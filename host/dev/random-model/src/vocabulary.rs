//! Trains a byte-level BPE vocabulary like those of GPT-2 and Qwen, which encodes any text.
//!
//! The merges come from the license and a list of common words, then from whole words of that list, then from random
//! words of syllables. Each token except bytes and control tokens is the encoding of its own text: a merge is added only
//! if the earlier merges encode the text of both halves as these two tokens.

use super::Value;
use corral_llama::gguf::GgufError;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

const LICENSE: &str = include_str!("../../../../LICENSE");
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
    texts: HashSet<Vec<u8>>,
    /// The two halves of each token after the bytes.
    halves: Vec<(u32, u32)>,
    merges: HashMap<(u32, u32), u32>,
    /// Number of tokens to reach, without [`CONTROL_TOKENS`].
    size: usize,
}

impl Vocabulary {
    /// Trains a vocabulary of exactly `size` tokens, with control tokens. The same seed gives the same vocabulary.
    pub(super) fn train(size: u32, seed: u64) -> Result<Self, GgufError> {
        if !SIZES.contains(&size) {
            return Err(GgufError::Invalid(format!(
                "a vocabulary of {size} tokens is not supported; use {} to {}",
                SIZES.start(),
                SIZES.end()
            )));
        }
        let tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        let mut vocabulary = Self {
            texts: tokens.iter().cloned().collect(),
            tokens,
            halves: Vec::new(),
            merges: HashMap::new(),
            size: size as usize - CONTROL_TOKENS.len(),
        };
        vocabulary.learn(&[LICENSE, &format!(" {WORDS}")]);
        vocabulary.add_words();
        vocabulary.add_syllables(seed);
        Ok(vocabulary)
    }

    fn is_full(&self) -> bool {
        self.tokens.len() >= self.size
    }

    /// Adds the merge of two tokens, unless the vocabulary is full or has the merged token.
    fn merge(&mut self, left: u32, right: u32) -> Option<u32> {
        let text = self.text_of(left, right);
        if self.is_full() || self.texts.contains(&text) {
            return None;
        }
        let token = u32::try_from(self.tokens.len()).ok()?;
        self.merges.insert((left, right), token);
        self.halves.push((left, right));
        self.texts.insert(text.clone());
        self.tokens.push(text);
        Some(token)
    }

    fn text_of(&self, left: u32, right: u32) -> Vec<u8> {
        let text = |token: u32| self.tokens[token as usize].as_slice();
        [text(left), text(right)].concat()
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

    /// Adds merges until `piece` is one token, if possible.
    fn add_piece(&mut self, piece: &[u8]) {
        loop {
            let tokens = self.encode(piece);
            let [left, right, rest @ ..] = tokens.as_slice() else {
                return;
            };
            let (left, right) = (*left, *right);
            // Alone, the first two may have another encoding.
            if !rest.is_empty() && self.encode(&self.text_of(left, right)) != [left, right] {
                return;
            }
            if self.merge(left, right).is_none() {
                return;
            }
        }
    }

    /// Merges the most frequent pair of the texts, until none occurs twice.
    fn learn(&mut self, texts: &[&str]) {
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        for piece in texts.iter().flat_map(|text| pieces(text)) {
            *found.entry(piece).or_default() += 1;
        }
        let mut words: Vec<(Vec<u32>, u64)> = found
            .into_iter()
            .map(|(piece, count)| (piece.bytes().map(u32::from).collect(), count))
            .collect();
        let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
        // The words that contain a pair, or did.
        let mut words_of: HashMap<(u32, u32), HashSet<usize>> = HashMap::new();
        for (index, (word, count)) in words.iter().enumerate() {
            for pair in pairs(word) {
                *counts.entry(pair).or_default() += count;
                words_of.entry(pair).or_default().insert(index);
            }
        }
        while !self.is_full() {
            let most = counts
                .iter()
                .filter(|&(_, &count)| count > 1)
                .max_by_key(|&(&pair, &count)| (count, Reverse(pair)));
            let Some((&pair, _)) = most else {
                return;
            };
            counts.remove(&pair);
            let Some(token) = self.merge(pair.0, pair.1) else {
                continue;
            };
            for index in words_of.remove(&pair).unwrap_or_default() {
                let (word, count) = &mut words[index];
                for old in pairs(word) {
                    if let Some(sum) = counts.get_mut(&old) {
                        *sum = sum.saturating_sub(*count);
                    }
                }
                *word = merge_pair(word, pair, token);
                for new in pairs(word) {
                    *counts.entry(new).or_default() += *count;
                    words_of.entry(new).or_default().insert(index);
                }
            }
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
        let values: [(&str, Value); 12] = [
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

fn pairs(word: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    word.windows(2).map(|pair| (pair[0], pair[1]))
}

/// Replaces `pair` by `token` in a word, from left to right.
fn merge_pair(word: &[u32], pair: (u32, u32), token: u32) -> Vec<u32> {
    let mut merged = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        if *first == pair.0 && after.first() == Some(&pair.1) {
            merged.push(token);
            rest = &after[1..];
        } else {
            merged.push(*first);
            rest = after;
        }
    }
    merged
}

/// Splits ASCII text as llama.cpp's pre-tokenizer "qwen2", except short forms such as "'s". Tokens do not cross pieces.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(first_piece(rest.as_bytes()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Length of the first piece of a nonempty text.
fn first_piece(text: &[u8]) -> usize {
    let is_newline = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let is_punctuation = |byte: &u8| !byte.is_ascii_alphanumeric() && !byte.is_ascii_whitespace();
    let run = |from: usize, of: &dyn Fn(&u8) -> bool| {
        text[from..].iter().take_while(|byte| of(byte)).count()
    };
    // A word, with at most one leading character that is neither letter nor digit.
    let lead = usize::from(!text[0].is_ascii_alphanumeric() && !is_newline(&text[0]));
    let letters = run(lead, &u8::is_ascii_alphabetic);
    if letters > 0 {
        return lead + letters;
    }
    if text[0].is_ascii_digit() {
        return 1;
    }
    // Punctuation, with a leading space and trailing newlines.
    let lead = usize::from(text[0] == b' ');
    let punctuation = run(lead, &is_punctuation);
    if punctuation > 0 {
        return lead + punctuation + run(lead + punctuation, &is_newline);
    }
    // Whitespace: up to the last newline, or else without the leading space of a word.
    let space = run(0, &u8::is_ascii_whitespace);
    match text[..space].iter().rposition(is_newline) {
        Some(end) => end + 1,
        None if space == text.len() => space,
        None => (space - 1).max(1),
    }
}

#[cfg(test)]
mod tests;
