//! A vocabulary of our own making: byte-level BPE as GPT-2 and Qwen have it, which reads any text
//! and gives it back.
//!
//! The merges are learnt from the licence and from a list of common words, then made to hold each
//! of those words whole, and then filled up with words that syllables make at random. Each token
//! but the bytes and the markers is what its own text is read as: a merge is added only where the
//! merges before it read the text of both halves as just these two.

use super::Value;
use corral_llama::gguf::GgufError;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

const LICENCE: &str = include_str!("../../../../LICENSE");
const WORDS: &str = include_str!("words.txt");
/// ChatML, with tools.
const CHAT_TEMPLATE: &str = include_str!("../../../../models/tiny/chat_template.jinja");

/// Tokens that stand for no text; their ids come after all others.
const CONTROLS: [&str; 3] = [END_OF_TEXT, "<|im_start|>", TURN_END];
const END_OF_TEXT: &str = "<|endoftext|>";
const TURN_END: &str = "<|im_end|>";
/// Sizes that can be made: all bytes and some merges, and no more than any model has.
const SIZES: std::ops::RangeInclusive<u32> = 512..=1_000_000;
/// llama.cpp's types of tokens.
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

/// Tokens and the merges that make them. A token's id is also the rank of its merge: the lower, the
/// earlier it is applied. The first 256 are the bytes.
pub(super) struct Vocabulary {
    tokens: Vec<Vec<u8>>,
    texts: HashSet<Vec<u8>>,
    /// The two tokens that each token after the bytes is made of.
    halves: Vec<(u32, u32)>,
    merges: HashMap<(u32, u32), u32>,
    /// Tokens that there are to be, without [`CONTROLS`].
    size: usize,
}

impl Vocabulary {
    /// A vocabulary of exactly `size` tokens, markers included. The same seed gives the same one.
    pub(super) fn made(size: u32, seed: u64) -> Result<Self, GgufError> {
        if !SIZES.contains(&size) {
            return Err(GgufError::Invalid(format!(
                "a vocabulary of {size} tokens can't be made; ask for {} to {}",
                SIZES.start(),
                SIZES.end()
            )));
        }
        let tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        let mut made = Self {
            texts: tokens.iter().cloned().collect(),
            tokens,
            halves: Vec::new(),
            merges: HashMap::new(),
            size: size as usize - CONTROLS.len(),
        };
        made.learn(&[LICENCE, &format!(" {WORDS}")]);
        made.hold_words();
        made.fill(seed);
        Ok(made)
    }

    fn is_full(&self) -> bool {
        self.tokens.len() >= self.size
    }

    /// Adds the token that `left` and `right` are together, unless all are there or it is.
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

    /// The tokens of a piece that the pre-tokenizer gives: as long as there are merges, the one of
    /// lowest rank is applied where it is possible first.
    fn encode(&self, piece: &[u8]) -> Vec<u32> {
        let mut tokens: Vec<u32> = piece.iter().map(|&byte| u32::from(byte)).collect();
        loop {
            let possible = tokens.windows(2).enumerate().filter_map(|(place, pair)| {
                let token = *self.merges.get(&(pair[0], pair[1]))?;
                Some((token, place))
            });
            let Some((token, place)) = possible.min() else {
                return tokens;
            };
            tokens[place] = token;
            tokens.remove(place + 1);
        }
    }

    /// Adds merges until `piece` is one token, if it can be.
    fn grow(&mut self, piece: &[u8]) {
        loop {
            let tokens = self.encode(piece);
            let [left, right, rest @ ..] = tokens.as_slice() else {
                return;
            };
            let (left, right) = (*left, *right);
            // Without what follows, the first two may be read otherwise.
            if !rest.is_empty() && self.encode(&self.text_of(left, right)) != [left, right] {
                return;
            }
            if self.merge(left, right).is_none() {
                return;
            }
        }
    }

    /// Merges the pair that is most frequent in the texts, again and again, until none is there
    /// twice.
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
        // In which words a pair is, or was.
        let mut places: HashMap<(u32, u32), HashSet<usize>> = HashMap::new();
        for (place, (word, count)) in words.iter().enumerate() {
            for pair in pairs(word) {
                *counts.entry(pair).or_default() += count;
                places.entry(pair).or_default().insert(place);
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
            for place in places.remove(&pair).unwrap_or_default() {
                let (word, count) = &mut words[place];
                for old in pairs(word) {
                    if let Some(sum) = counts.get_mut(&old) {
                        *sum = sum.saturating_sub(*count);
                    }
                }
                *word = joined(word, pair, token);
                for new in pairs(word) {
                    *counts.entry(new).or_default() += *count;
                    places.entry(new).or_default().insert(place);
                }
            }
        }
    }

    /// Makes tokens of the words of the list: after a space and without, small and with a capital.
    fn hold_words(&mut self) {
        let small: Vec<String> = WORDS.split_whitespace().map(str::to_owned).collect();
        let capital = |word: &String| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        };
        let large: Vec<String> = small.iter().map(capital).collect();
        for (space, words) in [(" ", &small), ("", &small), (" ", &large), ("", &large)] {
            for word in words {
                self.grow(format!("{space}{word}").as_bytes());
            }
        }
    }

    /// Makes tokens of words that syllables make at random, until there are enough.
    fn fill(&mut self, seed: u64) {
        let mut syllables = Vec::new();
        for onset in ONSETS {
            for vowel in VOWELS {
                syllables.extend(CODAS.map(|coda| format!("{onset}{vowel}{coda}")));
            }
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Ends: words of three syllables are a million times as many as the largest size.
        while !self.is_full() {
            let mut word = String::from(if random.random() { " " } else { "" });
            for _ in 0..random.random_range(1..=3) {
                word += &syllables[random.random_range(0..syllables.len())];
            }
            self.grow(word.as_bytes());
        }
    }

    /// What a GGUF file says of it, chat template included.
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        let symbols = symbols();
        let written = |token: &Vec<u8>| -> String {
            token
                .iter()
                .map(|&byte| symbols[usize::from(byte)])
                .collect()
        };
        let mut tokens: Vec<String> = self.tokens.iter().map(written).collect();
        let merges: Vec<String> = self
            .halves
            .iter()
            .map(|&(left, right)| format!("{} {}", tokens[left as usize], tokens[right as usize]))
            .collect();
        let mut types = vec![NORMAL; tokens.len()];
        types.extend(CONTROLS.map(|_| CONTROL));
        tokens.extend(CONTROLS.map(str::to_owned));
        let id = |name: &str| {
            let place = tokens.iter().rposition(|token| token == name);
            Value::from(
                place
                    .and_then(|place| u32::try_from(place).ok())
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

/// GPT-2's stand-in for each byte: itself where it can be seen, else a character that can.
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

/// The word with `token` in place of `pair`, from left to right.
fn joined(word: &[u32], pair: (u32, u32), token: u32) -> Vec<u32> {
    let mut joined = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        if *first == pair.0 && after.first() == Some(&pair.1) {
            joined.push(token);
            rest = &after[1..];
        } else {
            joined.push(*first);
            rest = after;
        }
    }
    joined
}

/// The pieces that no token goes beyond, as llama.cpp's pre-tokenizer "qwen2" cuts ASCII text,
/// but for short forms such as "'s".
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

/// Length of the first piece of a text that is not empty.
fn first_piece(text: &[u8]) -> usize {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let is_mark = |byte: &u8| !byte.is_ascii_alphanumeric() && !byte.is_ascii_whitespace();
    let run = |from: usize, of: &dyn Fn(&u8) -> bool| {
        text[from..].iter().take_while(|byte| of(byte)).count()
    };
    // A word, and at most one character before it that is neither letter nor digit.
    let lead = usize::from(!text[0].is_ascii_alphanumeric() && !is_end(&text[0]));
    let letters = run(lead, &u8::is_ascii_alphabetic);
    if letters > 0 {
        return lead + letters;
    }
    if text[0].is_ascii_digit() {
        return 1;
    }
    // Marks, with a space before them and the ends of lines after them.
    let lead = usize::from(text[0] == b' ');
    let marks = run(lead, &is_mark);
    if marks > 0 {
        return lead + marks + run(lead + marks, &is_end);
    }
    // White space: up to the last end of a line, or else without the space that belongs to a word.
    let space = run(0, &u8::is_ascii_whitespace);
    match text[..space].iter().rposition(is_end) {
        Some(end) => end + 1,
        None if space == text.len() => space,
        None => (space - 1).max(1),
    }
}

#[cfg(test)]
mod tests;
