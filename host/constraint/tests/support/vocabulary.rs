//! Vocabularies without a model, for tests and benches of grammars; each uses a part of this.
#![allow(dead_code)]

use corral_constraint::{Token, Vocabulary};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

/// How a tokenizer treats texts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TokenizerStyle {
    /// Preserves them.
    Exact,
    /// Puts a space before them, like SentencePiece.
    SpaceBefore,
    /// Converts them to lower case.
    LowerCase,
}

/// A list of tokens, with a greedy tokenizer.
pub struct TestVocabulary {
    pieces: Vec<Vec<u8>>,
    controls: HashMap<Token, Vec<u8>>,
    end: Vec<Token>,
    tokens: HashMap<Vec<u8>, Token>,
    longest: usize,
    style: TokenizerStyle,
}

impl TestVocabulary {
    fn new(words: impl IntoIterator<Item = Vec<u8>>, style: TokenizerStyle) -> Self {
        let mut made = Self {
            pieces: Vec::new(),
            controls: HashMap::new(),
            end: Vec::new(),
            tokens: HashMap::new(),
            longest: 1,
            style,
        };
        let bytes = (0..=255).map(|byte| vec![byte]);
        for word in bytes.chain(words) {
            made.longest = made.longest.max(word.len());
            let token = Token::try_from(made.pieces.len()).expect("vocabularies are small");
            if let std::collections::hash_map::Entry::Vacant(free) = made.tokens.entry(word.clone())
            {
                free.insert(token);
                made.pieces.push(word);
            }
        }
        for (name, ends) in [
            ("<|begin|>", false),
            ("<|end|>", true),
            ("<|tool|>", false),
            ("<|return|>", true),
        ] {
            let token = Token::try_from(made.pieces.len()).expect("vocabularies are small");
            made.pieces.push(Vec::new());
            made.controls.insert(token, name.into());
            if ends {
                made.end.push(token);
            }
        }
        // Padding tokens, which many models have.
        made.pieces.extend([const { Vec::new() }; 5]);
        made
    }

    /// All bytes, some words, and control tokens, two of them end tokens.
    pub fn small(style: TokenizerStyle) -> Self {
        let words = [
            "\": ",
            "\", \"",
            "{\"",
            "\"}",
            "\":",
            ",\"",
            "\",",
            "}}",
            "[[",
            "]]",
            "[]",
            "{}",
            "  ",
            "\n  ",
            "true",
            "false",
            "null",
            "tr",
            "ue",
            "fal",
            "10",
            "12",
            "100",
            "-1",
            "0.5",
            "the",
            " the",
            "name",
            "na",
            "me",
            "item",
            "s\"",
            "ab",
            "abc",
            "bc",
            "é",
            "ö",
            "ü",
            "日",
            "日本",
            "\u{1f40e}",
            "count",
            "value",
            "next",
            "\"a",
            "a\"",
            "e\"",
            "\\n",
            "\\\"",
            "\\u00",
            "end",
            "en",
            "nd",
            " = ",
            "()",
            "((",
            "))",
        ];
        Self::new(words.map(|word| word.as_bytes().to_vec()), style)
    }

    /// 152,000 tokens, similar to a large model's vocabulary.
    pub fn large() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(152);
        let mut words: Vec<Vec<u8>> = Vec::new();
        let marks: Vec<char> = "{}[]\",:.;-_()<>/\\=+*#'!?&|".chars().collect();
        for &a in &marks {
            for &b in &marks {
                words.push(format!("{a}{b}").into());
                words.push(format!(" {a}{b}").into());
                for &c in &marks[..8] {
                    words.push(format!("{a}{b}{c}").into());
                }
            }
        }
        words.extend((0..1000).map(|number| number.to_string().into_bytes()));
        words.extend((1..80).map(|count| " ".repeat(count).into_bytes()));
        words.extend((1..40).map(|count| format!("\n{}", " ".repeat(count)).into_bytes()));
        words.extend((1..20).map(|count| "\t".repeat(count).into_bytes()));
        let parts: Vec<char> = "etaoinshrdlucmfwypvbgkjqxz".chars().collect();
        while words.len() < 185_000 {
            let mut word = String::new();
            if rng.random::<f64>() < 0.45 {
                word.push(' ');
            }
            match rng.random_range(0..10) {
                // Characters of two to four bytes.
                0 => {
                    for _ in 0..rng.random_range(1..4) {
                        word.extend(char::from_u32(rng.random_range(0x4e00..0x9000)));
                    }
                }
                1 => {
                    for _ in 0..rng.random_range(2..8) {
                        word.extend(char::from_u32(rng.random_range(0x400..0x460)));
                    }
                }
                kind => {
                    for at in 0..rng.random_range(2..11) {
                        let rank = rng.random_range(0..26).min(rng.random_range(0..26));
                        let letter = parts[rank];
                        let capital = at == 0 && kind < 4;
                        word.push(if capital {
                            letter.to_ascii_uppercase()
                        } else {
                            letter
                        });
                    }
                }
            }
            words.push(word.into());
        }
        let mut made = Self::new(words, TokenizerStyle::Exact);
        made.truncate(152_000);
        made
    }

    /// Removes the last words before the control tokens until `size` tokens are left.
    fn truncate(&mut self, size: usize) {
        let special = self.controls.len() + 5;
        let surplus = self.pieces.len().checked_sub(size).expect("there are more");
        let words = self.pieces.len() - special;
        for word in self.pieces.drain(words - surplus..words) {
            self.tokens.remove(&word);
        }
        let down = Token::try_from(surplus).expect("vocabularies are small");
        self.controls = self
            .controls
            .drain()
            .map(|(token, name)| (token - down, name))
            .collect();
        for token in &mut self.end {
            *token -= down;
        }
    }

    /// Tokenizes bytes.
    pub fn encode(&self, bytes: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (length, token) = (1..=self.longest.min(rest.len()))
                .rev()
                .find_map(|length| {
                    self.tokens
                        .get(&rest[..length])
                        .map(|&token| (length, token))
                })
                .expect("every byte is a token");
            tokens.push(token);
            rest = &rest[length..];
        }
        tokens
    }

    /// The bytes of tokens; end tokens have none.
    pub fn bytes(&self, tokens: &[Token]) -> Vec<u8> {
        tokens
            .iter()
            .flat_map(|&token| self.piece(token))
            .copied()
            .collect()
    }

    /// The text of tokens.
    pub fn decode(&self, tokens: &[Token]) -> String {
        String::from_utf8(self.bytes(tokens)).expect("grammars allow only UTF-8")
    }
}

impl Vocabulary for TestVocabulary {
    fn size(&self) -> usize {
        self.pieces.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        &self.pieces[token as usize]
    }

    fn control_name(&self, token: Token) -> &[u8] {
        self.controls.get(&token).map_or(&[], Vec::as_slice)
    }

    fn end_tokens(&self) -> Vec<Token> {
        self.end.clone()
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        match self.style {
            TokenizerStyle::Exact => self.encode(text.as_bytes()),
            TokenizerStyle::SpaceBefore => self.encode(format!(" {text}").as_bytes()),
            TokenizerStyle::LowerCase => self.encode(text.to_lowercase().as_bytes()),
        }
    }
}
