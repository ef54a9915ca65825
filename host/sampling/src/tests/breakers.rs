//! DRY breakers from text.

use super::*;

const PIECES: [&[u8]; 6] = [b"a", b"ab", b"b", b"c", b"xabcx", "\u{e9}".as_bytes()];

/// A tokenizer that knows single letters.
fn tokenize(text: &str) -> Option<Vec<Token>> {
    text.chars()
        .map(|letter| Some("a\0bc\0\u{e9}".chars().position(|one| one == letter)? as Token))
        .collect()
}

fn build(text: &str) -> Result<DryBreakers, Error> {
    DryBreakers::from_text(&[text.into()], PIECES.iter(), tokenize)
}

#[test]
fn breakers_cover_all_tokenizations_of_text() {
    let breakers = build("abc").unwrap();
    // a + bc, ab + c, and the piece with all of it.
    let expected: [&[Token]; 3] = [&[0, 2, 3], &[1, 3], &[4]];
    assert_eq!(breakers, DryBreakers::from_tokens(&expected));
    assert_eq!(breakers.len(), 3);
    assert_eq!(breakers.tokens_since(&[5, 4, 5, 5]), 2);
    assert_eq!(breakers.tokens_since(&[5, 1, 3, 5]), 1);
    assert_eq!(breakers.tokens_since(&[5, 1, 2, 5]), 4);
    assert!(breakers.contains(4) && !breakers.contains(1));
    // A letter of two bytes is not split.
    assert_eq!(build("\u{e9}").unwrap().len(), 1);
}

#[test]
fn too_many_or_long_breakers_are_refused() {
    assert!(build("").is_err());
    assert!(build(&"a".repeat(MAX_BREAKER_BYTES + 1)).is_err());
    let many = vec!["a".to_string(); MAX_BREAKERS + 1];
    assert!(DryBreakers::from_text(&many, PIECES.iter(), tokenize).is_err());
}
