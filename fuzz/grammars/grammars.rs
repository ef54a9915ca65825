//! Grammars of clients: the first byte chooses the kind, then comes the grammar, a zero byte, and bytes that choose tokens.
//! A grammar is refused, or its matcher allows the tokens of its mask and consumes no others.

#![no_main]

use corral_constraint::{Grammar, GrammarCompiler, Token, Vocabulary};
use libfuzzer_sys::fuzz_target;
use std::panic;
use std::sync::{Arc, LazyLock};

/// All bytes, some words, and an end token.
struct Words(Vec<Vec<u8>>);

impl Vocabulary for Words {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, token: Token) -> &[u8] {
        &self.0[token as usize]
    }

    fn control_name(&self, token: Token) -> &[u8] {
        let name: &[u8] = b"<|end|>";
        if token == self.end() { name } else { &[] }
    }

    fn end_tokens(&self) -> Vec<Token> {
        vec![self.end()]
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }
}

impl Words {
    fn end(&self) -> Token {
        self.0.len() as Token - 1
    }
}

static VOCABULARY: LazyLock<Arc<Words>> = LazyLock::new(|| {
    let bytes = (0..=255).map(|byte| vec![byte]);
    let words = [
        "\": ", "{\"", "\"}", "true", "null", "12", "ab", "end", "é", "  ", "",
    ];
    let words = words.map(|word| word.as_bytes().to_vec());
    Arc::new(Words(bytes.chain(words).collect()))
});

static COMPILER: LazyLock<GrammarCompiler> =
    LazyLock::new(|| GrammarCompiler::new(VOCABULARY.clone()));

/// Panics of llguidance are errors of the grammar: the crate catches them, so they do not end the process.
fn abort_on_own_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let file = info.location().map_or("", |location| location.file());
        if !["llguidance", "toktrie", "derivre"]
            .iter()
            .any(|name| file.contains(name))
        {
            // Prints, and aborts.
            report(info);
        }
    }));
}

fuzz_target!(
    init: abort_on_own_panics(),
    |data: &[u8]| {
        let [kind, text @ ..] = data else {
            return;
        };
        let end = text.iter().position(|byte| *byte == 0);
        let (text, choices) = text.split_at(end.unwrap_or(text.len()));
        let Ok(text) = std::str::from_utf8(text) else {
            return;
        };
        let text = text.to_owned();
        let grammar = match kind % 5 {
            0 if *kind >= 128 => Grammar::LenientJsonSchema(text),
            0 => Grammar::JsonSchema(text),
            1 => Grammar::Regex(text),
            2 => Grammar::Lark(text),
            3 => Grammar::Gbnf(text),
            _ => Grammar::JsonObject,
        };
        let Ok(constraint) = COMPILER.compile(0, &grammar) else {
            return;
        };
        let mut matcher = constraint.start(0);
        for choice in choices.iter().skip(1) {
            let Ok(mask) = matcher.mask().map(<[u32]>::to_vec) else {
                return;
            };
            let is_set = |token: usize| mask[token / 32] >> (token % 32) & 1 == 1;
            let allowed: Vec<usize> = (0..VOCABULARY.size()).filter(|&token| is_set(token)).collect();
            assert!(!allowed.is_empty(), "a mask allows a token");
            let token = match choice & 128 {
                0 => allowed[usize::from(*choice) % allowed.len()],
                _ => usize::from(*choice),
            };
            let mut copy = matcher.fork().expect("it has not failed");
            let consumed = matcher.advance(token as Token);
            match copy.allows(token as Token) {
                Ok(allows) if !matcher.has_ended() => {
                    assert_eq!(allows, is_set(token), "token {token}");
                    assert!(allows || consumed.is_err());
                }
                Ok(_) | Err(_) => {}
            }
            if consumed.is_err() && is_set(token) || matcher.has_ended() {
                return;
            }
        }
    }
);
