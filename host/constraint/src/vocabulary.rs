//! A model's vocabulary as grammars use it.

use crate::{Error, Token, limits};
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{ParserFactory, api::ParserLimits, earley::SlicedBiasComputer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A model's vocabulary and tokenizer.
pub trait Vocabulary: Send + Sync {
    /// Number of tokens.
    fn size(&self) -> usize;
    /// The bytes of a token; empty for control tokens and tokens without text.
    fn piece(&self, token: Token) -> &[u8];
    /// The name of a control token in grammars, such as `<|tool|>`; empty if it has none.
    fn control_name(&self, token: Token) -> &[u8];
    /// The tokens that end a generation.
    fn end_tokens(&self) -> Vec<Token>;
    /// Tokenizes a text as the model's training data was, with control tokens read as plain text and
    /// nothing added at either end. The tokenizer may put a space before every text.
    fn tokenize(&self, text: &str) -> Vec<Token>;
}

/// Bytes of the longest token that grammars can allow: llguidance's trie has about 1,024 levels.
const MAX_TOKEN_BYTES: usize = 1_000;

/// A text that merges with no character after it. A tokenizer that puts a space before every text puts
/// it before this.
const GUARD: &str = "\n";

/// The trie of a vocabulary with its tokenizer, for `llguidance`.
struct TrieTokenizer {
    trie: TokTrie,
    vocabulary: Arc<dyn Vocabulary>,
    /// Whether the tokenizer preserves texts, so that tokens can be forced.
    canonical: bool,
}

impl TrieTokenizer {
    fn bytes(&self, tokens: &[Token]) -> Vec<u8> {
        tokens
            .iter()
            .flat_map(|&token| self.vocabulary.piece(token))
            .copied()
            .collect()
    }

    /// The model's tokens for a text; `None` if their bytes are not the text.
    fn tokenize_exactly(&self, text: &str) -> Option<Vec<Token>> {
        let tokens = self.vocabulary.tokenize(text);
        if self.bytes(&tokens) == text.as_bytes() {
            return Some(tokens);
        }
        // If the tokenizer put a space before the text, it puts it before the guard now.
        let tokens = self.vocabulary.tokenize(&format!("{GUARD}{text}"));
        let bytes = self.bytes(&tokens);
        let before = bytes.len().checked_sub(text.len())?;
        if &bytes[before..] != text.as_bytes() {
            return None;
        }
        let mut length = 0;
        let first = tokens.iter().position(|&token| {
            let here = length == before;
            length += self.vocabulary.piece(token).len();
            here
        })?;
        Some(tokens[first..].to_vec())
    }
}

impl TokenizerEnv for TrieTokenizer {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        for chunk in bytes.utf8_chunks() {
            if !chunk.valid().is_empty() {
                // The bytes of the tokens must be the text.
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

/// A vocabulary prepared for compiling: built once, read by all grammars and matchers.
pub struct VocabularyIndex {
    pub factory: ParserFactory,
    pub vocabulary: Arc<dyn Vocabulary>,
    pub end_tokens: Arc<[Token]>,
}

impl VocabularyIndex {
    /// Builds the trie. Takes a few tenths of a second for a large vocabulary.
    pub fn new(vocabulary: Arc<dyn Vocabulary>) -> Result<Self, Error> {
        catch_unwind(AssertUnwindSafe(|| Self::build(vocabulary)))
            .unwrap_or_else(|_| Err("llguidance cannot build a trie of its tokens".into()))
            .map_err(|cause| {
                Error::Unsupported(format!(
                    "grammars cannot use the model's vocabulary: {cause}"
                ))
            })
    }

    fn build(vocabulary: Arc<dyn Vocabulary>) -> Result<Self, String> {
        let size = vocabulary.size();
        let tokens = u32::try_from(size).map_err(|_| "it is too large")?;
        let end_tokens = vocabulary.end_tokens();
        let Some(&first_end) = end_tokens.first() else {
            return Err("it has no token that ends a generation".into());
        };
        let words: Vec<Vec<u8>> = (0..tokens)
            .map(|token| {
                let piece = vocabulary.piece(token);
                if end_tokens.contains(&token)
                    || piece.len().max(vocabulary.control_name(token).len()) > MAX_TOKEN_BYTES
                {
                    // No text matches it. Matchers handle end tokens themselves.
                    return Vec::new();
                }
                if !piece.is_empty() {
                    return piece.to_vec();
                }
                let name = vocabulary.control_name(token);
                let marker = (!name.is_empty()).then_some(TokTrie::SPECIAL_TOKEN_MARKER);
                marker.into_iter().chain(name.iter().copied()).collect()
            })
            .collect();
        let trie =
            TokTrie::from(&TokRxInfo::new(tokens, first_end), &words).with_eos_tokens(&end_tokens);
        let mut tokenizer = TrieTokenizer {
            trie,
            vocabulary: Arc::clone(&vocabulary),
            canonical: true,
        };
        const SAMPLE: &str = "{\"name\": \"Zoë\", \"n\": [10, 2.5]}\n";
        tokenizer.canonical = tokenizer.tokenize_exactly(SAMPLE).is_some();
        let tokenizer: TokEnv = Arc::new(tokenizer);
        let mut factory = ParserFactory::new(
            &tokenizer,
            InferenceCapabilities::default(),
            &SlicedBiasComputer::general_slices(),
        )
        .map_err(|error| error.to_string())?;
        *factory.limits_mut() = ParserLimits {
            max_items_in_row: limits::MAX_ROW_ITEMS,
            initial_lexer_fuel: limits::MAX_INITIAL_LEXER_FUEL,
            step_lexer_fuel: limits::MAX_CALL_LEXER_FUEL,
            step_max_items: limits::MAX_CALL_ITEMS,
            max_lexer_states: limits::MAX_LEXER_STATES,
            max_grammar_size: limits::MAX_GRAMMAR_SYMBOLS,
            precompute_large_lexemes: true,
            verbose_errors: false,
        };
        factory.quiet();
        Ok(Self {
            factory,
            vocabulary,
            end_tokens: end_tokens.into(),
        })
    }

    /// The token with this name or text.
    pub fn token(&self, name: &str) -> Option<Token> {
        let name = name.as_bytes();
        (0..Token::try_from(self.vocabulary.size()).unwrap_or(0)).find(|&token| {
            self.vocabulary.control_name(token) == name || self.vocabulary.piece(token) == name
        })
    }
}
