//! A model's vocabulary as grammars see it.

use crate::{Error, Token};
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{ParserFactory, api::ParserLimits, earley::SlicedBiasComputer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::limits;

/// What grammars need to know of a model's vocabulary.
pub trait Dictionary: Send + Sync {
    /// Number of tokens.
    fn size(&self) -> usize;
    /// The bytes that a token adds to a text; empty for control tokens and for tokens without text.
    fn piece(&self, token: Token) -> &[u8];
    /// What a control token is called in a grammar, such as `<|tool|>`; empty if it has no name.
    fn control(&self, token: Token) -> &[u8];
    /// Every token that ends a generation.
    fn end_of_generation(&self) -> Vec<Token>;
    /// Text to tokens as the model was trained on them, control tokens in it read as plain text and
    /// nothing added at either end. A space that the tokenizer puts before every text is tolerated.
    fn tokenize(&self, text: &str) -> Vec<Token>;
}

/// Longest token that grammars know, in bytes; a longer one is never allowed (llguidance's trie has
/// room for about 1,024 levels).
const LONGEST_TOKEN: usize = 1_000;

/// A text that begins with no character any token begins a merge with: a tokenizer that puts a
/// space before every text puts it before this.
const GUARD: &str = "\n";

/// The trie of a vocabulary with its tokenizer.
struct Environment {
    trie: TokTrie,
    dictionary: Arc<dyn Dictionary>,
    canonical: bool,
}

impl Environment {
    fn spell(&self, tokens: &[Token]) -> Vec<u8> {
        tokens
            .iter()
            .flat_map(|&token| self.dictionary.piece(token))
            .copied()
            .collect()
    }

    /// The model's tokens for a text, if they spell it.
    fn tokenize_exactly(&self, text: &str) -> Option<Vec<Token>> {
        let tokens = self.dictionary.tokenize(text);
        if self.spell(&tokens) == text.as_bytes() {
            return Some(tokens);
        }
        // A space was put before it. Behind a guard the text stands as it would in a longer one.
        let guarded = format!("{GUARD}{text}");
        let tokens = self.dictionary.tokenize(&guarded);
        let spelled = self.spell(&tokens);
        let before = spelled.len().checked_sub(text.len())?;
        if &spelled[before..] != text.as_bytes() {
            return None;
        }
        let mut length = 0;
        let first = tokens.iter().position(|&token| {
            let here = length == before;
            length += self.dictionary.piece(token).len();
            here
        })?;
        Some(tokens[first..].to_vec())
    }
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        for chunk in bytes.utf8_chunks() {
            if !chunk.valid().is_empty() {
                // What must never happen is that the tokens spell another text.
                let exact = self.tokenize_exactly(chunk.valid());
                tokens.extend(
                    exact.unwrap_or_else(|| self.trie.greedy_tokenize(chunk.valid().as_bytes())),
                );
            }
            tokens.extend(self.trie.greedy_tokenize(chunk.invalid()));
        }
        tokens
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

/// What compiling needs of a vocabulary: made once, read by all.
pub struct Lexicon {
    pub factory: ParserFactory,
    pub dictionary: Arc<dyn Dictionary>,
    pub end: Arc<[Token]>,
}

impl Lexicon {
    /// Builds the trie. Takes a few tenths of a second for a large vocabulary.
    pub fn new(dictionary: Arc<dyn Dictionary>) -> Result<Self, Error> {
        catch_unwind(AssertUnwindSafe(|| Self::build(dictionary)))
            .unwrap_or_else(|_| Err("it has tokens that no trie can be made of".into()))
            .map_err(|cause| {
                Error::Unsupported(format!(
                    "the model's vocabulary can't be used with grammars: {cause}"
                ))
            })
    }

    fn build(dictionary: Arc<dyn Dictionary>) -> Result<Self, String> {
        let size = dictionary.size();
        let tokens = u32::try_from(size).map_err(|_| "it is too large")?;
        let end = dictionary.end_of_generation();
        let Some(&first_end) = end.first() else {
            return Err("it has no token that ends a generation".into());
        };
        let words: Vec<Vec<u8>> = (0..tokens)
            .map(|token| {
                let piece = dictionary.piece(token);
                if end.contains(&token)
                    || piece.len().max(dictionary.control(token).len()) > LONGEST_TOKEN
                {
                    // No text leads to it: whether a generation may end is asked on its own.
                    return Vec::new();
                }
                if !piece.is_empty() {
                    return piece.to_vec();
                }
                let name = dictionary.control(token);
                let marker = (!name.is_empty()).then_some(TokTrie::SPECIAL_TOKEN_MARKER);
                marker.into_iter().chain(name.iter().copied()).collect()
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(tokens, first_end), &words).with_eos_tokens(&end);
        let mut environment = Environment {
            trie,
            dictionary: Arc::clone(&dictionary),
            canonical: true,
        };
        // Tokens can only be forced if the tokenizer spells what it is given.
        const SAMPLE: &str = "{\"name\": \"Zoë\", \"n\": [10, 2.5]}\n";
        environment.canonical = environment.tokenize_exactly(SAMPLE).is_some();
        let environment: TokEnv = Arc::new(environment);
        let mut factory = ParserFactory::new(
            &environment,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::general_slices(),
        )
        .map_err(|error| error.to_string())?;
        *factory.limits_mut() = ParserLimits {
            max_items_in_row: limits::ROW_ITEMS,
            initial_lexer_fuel: limits::INITIAL_LEXER_FUEL,
            step_lexer_fuel: limits::STEP_LEXER_FUEL,
            step_max_items: limits::STEP_ITEMS,
            max_lexer_states: limits::LEXER_STATES,
            max_grammar_size: limits::GRAMMAR_SYMBOLS,
            precompute_large_lexemes: true,
            verbose_errors: false,
        };
        factory.quiet();
        Ok(Self {
            factory,
            dictionary,
            end: end.into(),
        })
    }

    /// The token that is called or spelled like this.
    pub fn token(&self, name: &str) -> Option<Token> {
        let name = name.as_bytes();
        (0..Token::try_from(self.dictionary.size()).unwrap_or(0)).find(|&token| {
            self.dictionary.control(token) == name || self.dictionary.piece(token) == name
        })
    }
}
