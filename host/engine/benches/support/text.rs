//! Tokens that become text, and stop strings that nearly come.

use corral_engine::testing::TextDecoder;

/// Tokens of a text.
pub const TOKENS: usize = 1000;

/// Tokens as a vocabulary of words has them.
pub fn words() -> Vec<Vec<u8>> {
    let line = "The quiet owl looks at the river and the stone.\n";
    let words = line.split_inclusive(' ').cycle().take(TOKENS);
    words.map(|word| word.as_bytes().to_vec()).collect()
}

/// Tokens of one byte each, of characters that have two to four.
pub fn bytes() -> Vec<Vec<u8>> {
    let bytes = "\u{e9}\u{6f22}\u{1f600}".bytes().cycle().take(TOKENS);
    bytes.map(|byte| vec![byte]).collect()
}

/// Stop strings that the words begin like again and again.
pub fn stops(count: usize) -> Vec<String> {
    let stop = |number| format!("the river and the {number}");
    (0..count).map(stop).collect()
}

/// Bytes of the text that is shown.
pub fn show(pieces: &[Vec<u8>], stops: Vec<String>) -> usize {
    let mut assembler = TextDecoder::new(stops);
    let (mut shown, mut out) = (0, String::new());
    for piece in pieces {
        out.clear();
        if assembler.push(piece, &mut out) {
            return shown;
        }
        shown += out.len();
    }
    out.clear();
    assembler.finish(&mut out);
    shown + out.len()
}
