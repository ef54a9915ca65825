//! Breakers from text.

use super::*;

const PIECES: [&[u8]; 6] = [b"a", b"ab", b"b", b"c", b"xabcx", "\u{e9}".as_bytes()];

/// A tokenizer that knows single letters.
fn tokenize(text: &str) -> Option<Vec<Token>> {
    text.chars()
        .map(|letter| Some("a\0bc\0\u{e9}".chars().position(|one| one == letter)? as Token))
        .collect()
}

fn build(text: &str) -> Result<Breakers, crate::Error> {
    Breakers::from_text(&[text.into()], PIECES.iter(), tokenize)
}

#[test]
fn a_text_is_found_however_it_is_cut_into_tokens() {
    let breakers = build("abc").unwrap();
    // a + bc, ab + c, and the piece with all of it.
    let expected: [&[Token]; 3] = [&[0, 2, 3], &[1, 3], &[4]];
    assert_eq!(breakers, Breakers::from_tokens(expected).unwrap());
    assert_eq!(breakers.len(), 3);
    assert_eq!(breakers.since(&[5, 4, 5, 5]), 2);
    assert_eq!(breakers.since(&[5, 1, 3, 5]), 1);
    assert_eq!(breakers.since(&[5, 1, 2, 5]), 4);
    assert!(breakers.breaks(4) && !breakers.breaks(1));
    // A letter of two bytes is not cut.
    assert_eq!(build("\u{e9}").unwrap().len(), 1);
}

#[test]
fn too_much_is_refused() {
    assert!(build("").is_err());
    assert!(build(&"a".repeat(MAX_BREAKER_BYTES + 1)).is_err());
    let many = vec!["a".to_string(); MAX_BREAKERS + 1];
    assert!(Breakers::from_text(&many, PIECES.iter(), tokenize).is_err());
    let (long, empty): (&[Token], &[Token]) = (&[0; MAX_TAIL + 2], &[]);
    assert!(Breakers::from_tokens([long]).is_err());
    assert!(Breakers::from_tokens([empty]).is_err());
}
