//! Places where a text can be cut into pieces that llama.cpp tokenizes alone.
//!
//! llama.cpp splits a text at its special tokens (control tokens and user-defined tokens) into a linked list of fragments.
//! At each special token it walks the list from its head (`tokenizer_st_partition`), so its time grows with the square of
//! their number. In short pieces it does not.
//!
//! *Invariant*: the tokens of the pieces are the tokens of the text. A cut is directly after a special token
//! - that overlaps no other special token, so the search order does not matter;
//! - that begins and ends with a visible character, because its neighbors may strip white space.
//!
//! If the token strips the white space that follows it, the cut is after that white space, and no other special token may
//! begin or continue there.
//!
//! llama.cpp tokenizes each fragment independently of the others. A fragment at the start of a text is tokenized like one
//! after a special token.
//!
//! *Limit*: a text has no cuts if all its special tokens overlap others, or begin or end with white space or a
//! character outside of ASCII. The time to tokenize it grows with the square of their number. Vocabularies with
//! user-defined tokens for runs of white space allow such texts.

use crate::{Model, Token};
use aho_corasick::AhoCorasick;
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;

/// Special tokens, by the texts in which llama.cpp searches them.
#[derive(Default)]
pub(super) struct SpecialTokens {
    /// All, for texts whose control tokens are read as such.
    all: TokenSearch,
    /// Without control tokens.
    user_defined: TokenSearch,
}

/// A search for special tokens.
#[derive(Default)]
struct TokenSearch {
    /// None if there are no tokens, or texts cannot be cut.
    automaton: Option<AhoCorasick>,
    /// Where a text may be cut behind a token, by its index in the automaton.
    cuts_behind: Vec<CutBehind>,
}

/// Where a text may be cut behind a special token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CutBehind {
    Nowhere,
    Token,
    /// Behind the white space after the token, which it strips.
    WhiteSpace,
}

impl CutBehind {
    /// Where to cut behind a token that ends there.
    fn cut(self, text: &[u8], end: usize) -> Option<usize> {
        match self {
            Self::Nowhere => None,
            Self::Token => Some(end),
            Self::WhiteSpace => {
                let behind = text[end..].iter();
                Some(end + behind.take_while(|byte| is_stripped(**byte)).count())
            }
        }
    }
}

/// Whether llama.cpp strips this byte: `isspace` of C.
fn is_stripped(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// A special token.
struct SpecialToken<'a> {
    text: &'a [u8],
    /// llama.cpp does not search it in texts whose control tokens are plain characters.
    is_control: bool,
    strips_right: bool,
}

impl SpecialTokens {
    /// The special tokens of a model with pieces. None of them if llama.cpp does not tell the text of one.
    pub(super) fn read(model: &Model) -> Self {
        let tokens = (0..model.vocabulary_size()).filter_map(|token| {
            let token = Token::try_from(token).ok()?;
            let attributes = attributes(model, token);
            let is_control = has(
                attributes,
                sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN,
            );
            if !is_control && !has(attributes, sys::LLAMA_TOKEN_ATTR_USER_DEFINED) {
                return None;
            }
            Some(text(model, token).map(|text| SpecialToken {
                text,
                is_control,
                strips_right: has(attributes, sys::LLAMA_TOKEN_ATTR_RSTRIP),
            }))
        });
        let tokens: Option<Vec<_>> = tokens.collect();
        tokens.map_or_else(Self::default, |tokens| Self::new(&tokens))
    }

    fn new(tokens: &[SpecialToken]) -> Self {
        Self {
            all: TokenSearch::new(tokens.iter()),
            user_defined: TokenSearch::new(tokens.iter().filter(|token| !token.is_control)),
        }
    }

    /// Where to cut a text, in rising order. Each piece but the last has at least `piece_bytes`. `special` is that of
    /// [`Model::tokenize`].
    pub(super) fn cuts(&self, text: &[u8], special: bool, piece_bytes: usize) -> Vec<usize> {
        let search = if special {
            &self.all
        } else {
            &self.user_defined
        };
        match &search.automaton {
            Some(automaton) if text.len() > piece_bytes => {
                cuts(automaton, &search.cuts_behind, text, piece_bytes)
            }
            _ => Vec::new(),
        }
    }
}

impl TokenSearch {
    fn new<'a>(tokens: impl Iterator<Item = &'a SpecialToken<'a>> + Clone) -> Self {
        let texts = tokens.clone().map(|token| token.text);
        let is_visible = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_graphic);
        let cuts_behind = tokens.map(|token| {
            let text = token.text;
            match is_visible(text.first()) && is_visible(text.last()) {
                false => CutBehind::Nowhere,
                true if token.strips_right => CutBehind::WhiteSpace,
                true => CutBehind::Token,
            }
        });
        let cuts_behind: Vec<_> = cuts_behind.collect();
        // Too many tokens for an automaton would be an error.
        let automaton = (!cuts_behind.is_empty()).then(|| AhoCorasick::new(texts));
        Self {
            automaton: automaton.and_then(Result::ok),
            cuts_behind,
        }
    }
}

fn cuts(
    automaton: &AhoCorasick,
    cuts_behind: &[CutBehind],
    text: &[u8],
    piece_bytes: usize,
) -> Vec<usize> {
    let longest = automaton.max_pattern_len();
    let mut cuts = Vec::new();
    // Start of the piece, and end of the last token.
    let (mut start, mut last_end) = (0, 0);
    // Where to cut, unless a later token begins before that.
    let mut candidate = None;
    // All tokens, in rising order of their ends.
    for found in automaton.find_overlapping_iter(text) {
        if let Some(cut) = candidate {
            if found.start() < cut {
                candidate = None;
            } else if found.end() - cut >= longest {
                // No later token begins before the cut.
                cuts.push(cut);
                start = cut;
                candidate = None;
            }
        }
        if candidate.is_none() && found.start() >= last_end && found.end() - start >= piece_bytes {
            candidate = cuts_behind[found.pattern().as_usize()].cut(text, found.end());
        }
        last_end = found.end();
    }
    cuts.extend(candidate.filter(|cut| *cut < text.len()));
    cuts
}

/// The text of a special token. None if it is empty, or has a zero byte or another text than its piece.
fn text(model: &Model, token: Token) -> Option<&[u8]> {
    let id = i32::try_from(token).ok()?;
    // SAFETY: the vocabulary is alive and the token within it.
    let text = unsafe { sys::llama_vocab_get_text(model.vocab_ptr(), id) };
    if text.is_null() {
        return None;
    }
    // SAFETY: NUL-terminated, and unchanged as long as the model.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    (!text.is_empty() && text == model.piece(token, true)).then_some(text)
}

fn attributes(model: &Model, token: Token) -> sys::llama_token_attr {
    let id = i32::try_from(token).unwrap_or(0);
    // SAFETY: the vocabulary is alive and the token within it.
    unsafe { sys::llama_vocab_get_attr(model.vocab_ptr(), id) }
}

fn has(attributes: sys::llama_token_attr, any_of: sys::llama_token_attr) -> bool {
    attributes & any_of != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "<|im_start|>";

    /// Cuts of a text into pieces of at least `piece_bytes`.
    fn cuts_of(text: &str, special: bool, piece_bytes: usize) -> Vec<usize> {
        let token = |text: &'static str, is_control, strips_right| SpecialToken {
            text: text.as_bytes(),
            is_control,
            strips_right,
        };
        let tokens = SpecialTokens::new(&[
            token(LONG, true, false),
            token("<a>", false, false),
            token("a><b", false, false),
            token("bb", false, false),
            token("[r]", false, true),
            token("\n\n", false, false),
            token("\n[s]", false, false),
            token("[t]", false, false),
            token("\u{e9}", false, false),
        ]);
        tokens.cuts(text.as_bytes(), special, piece_bytes)
    }

    #[test]
    fn cuts_are_behind_separate_tokens() {
        for (text, expected) in [
            ("x<a>x", vec![4]),
            ("<a><a>x", vec![3]),
            // Nothing is behind the last one.
            ("<a>", vec![]),
            ("x<a>x<a>", vec![4]),
            // Overlapped by one that begins later, and by itself.
            ("<a><b<a>x", vec![8]),
            ("bbbxbbx", vec![6]),
            // Behind white space that is stripped, unless another token begins in it.
            ("[r]x", vec![3]),
            ("[r] \n\t x", vec![7]),
            ("x[r] \n[r]x", vec![6]),
            ("[r]\n[t]x", vec![4]),
            ("[r]\n\nx", vec![]),
            ("[r]\n[s]x", vec![]),
            ("[r]\u{a0}x", vec![3]),
            ("[r] \n", vec![]),
            // White space is a part of the token.
            ("x\n\nx\n[s]x", vec![]),
            ("\u{e9}x", vec![]),
        ] {
            assert_eq!(cuts_of(text, true, 1), expected, "{text:?}");
        }
    }

    #[test]
    fn control_tokens_cut_only_where_they_are_read() {
        let text = format!("x{LONG}x<a>x");
        assert_eq!(cuts_of(&text, true, 1), [13]);
        assert_eq!(cuts_of(&text, false, 1), [17]);
    }

    #[test]
    fn pieces_have_the_least_length() {
        let text = "x<a>".repeat(100);
        let cuts = cuts_of(&text, true, 10);
        let expected: Vec<_> = (1..34).map(|piece| 12 * piece).collect();
        assert_eq!(cuts, expected);
        assert!(cuts_of(&text, true, 400).is_empty());
    }
}
