//! From the bytes of tokens to text that can be shown: whole characters, and no stop strings.

/// Turns a generation's bytes into text, piece by piece.
#[derive(Debug, Default)]
pub struct Assembler {
    stops: Vec<String>,
    /// Bytes that may be the beginning of a character.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl Assembler {
    /// An assembler that ends at the first of `stops`, none of which is empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Adds a token's bytes and appends to `out` what can be shown now. Returns whether a stop
    /// string appeared; nothing comes after that.
    pub fn push(&mut self, piece: &[u8], out: &mut String) -> bool {
        if self.stopped {
            return true;
        }
        self.bytes.extend_from_slice(piece);
        self.decode();
        self.release(out)
    }

    /// The end of the generation: appends what was held back. Bytes that never became a character
    /// are shown as U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.stopped {
            return;
        }
        let rest = std::mem::take(&mut self.bytes);
        self.held.push_str(&String::from_utf8_lossy(&rest));
        if !self.release(out) {
            out.push_str(&std::mem::take(&mut self.held));
        }
    }

    /// Moves whole characters from `bytes` to `held`.
    fn decode(&mut self) {
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(text) => {
                    self.held.push_str(text);
                    self.bytes.clear();
                    return;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    // Bytes that can't begin or continue a character are replaced at once; an
                    // unfinished character waits for its rest.
                    let bad = error.error_len();
                    if let Ok(text) = std::str::from_utf8(&self.bytes[..valid]) {
                        self.held.push_str(text);
                    }
                    let Some(bad) = bad else {
                        self.bytes.drain(..valid);
                        return;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    self.bytes.drain(..valid + bad);
                }
            }
        }
    }

    /// Moves from `held` to `out` what is no stop string and can't become one.
    fn release(&mut self, out: &mut String) -> bool {
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop))
            .min();
        if let Some(at) = first {
            out.push_str(&self.held[..at]);
            self.held.clear();
            self.bytes.clear();
            self.stopped = true;
            return true;
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let shown = self.held.len() - keep;
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
        false
    }
}

/// Length in bytes of the longest end of `text` that is a beginning of `stop` (and not all of it).
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .filter(|&length| stop.is_char_boundary(length))
        .find(|&length| text.ends_with(&stop[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut assembler = Assembler::new(stops.iter().map(|&s| s.into()).collect());
        let mut shown = Vec::new();
        let mut stopped = false;
        for piece in pieces {
            let mut out = String::new();
            stopped = assembler.push(piece, &mut out);
            shown.push(out);
        }
        let mut out = String::new();
        assembler.finish(&mut out);
        shown.push(out);
        (shown, stopped)
    }

    #[test]
    fn a_character_is_shown_when_its_last_byte_came() {
        let (shown, _) = run(&[], &[b"a\xc3", b"\xa9b\xf0\x9f", b"\x98", b"\x80"]);
        assert_eq!(shown, ["a", "\u{e9}b", "", "\u{1f600}", ""]);
    }

    #[test]
    fn broken_bytes_become_replacement_characters() {
        let (shown, _) = run(&[], &[b"a\xff", b"b", b"\xe2\x82"]);
        assert_eq!(shown, ["a\u{fffd}", "b", "", "\u{fffd}"]);
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_not_shown() {
        let (shown, stopped) = run(&["END"], &[b"one E", b"N", b"D two"]);
        assert_eq!((shown.concat().as_str(), stopped), ("one ", true));
    }

    #[test]
    fn what_only_looked_like_a_stop_string_is_shown_after_all() {
        let (shown, stopped) = run(&["END"], &[b"E", b"N", b"Z", b"EN"]);
        assert_eq!((shown.concat().as_str(), stopped), ("ENZEN", false));
        assert_eq!(shown, ["", "", "ENZ", "", "EN"]);
    }

    #[test]
    fn the_first_of_several_stop_strings_counts() {
        let (shown, _) = run(&["cd", "b"], &[b"abcd"]);
        assert_eq!(shown.concat(), "a");
    }

    proptest! {
        /// However a text is cut, the same is shown: the text up to the first stop string.
        #[test]
        fn cuts_change_nothing(
            text in "[ab\u{e9}]{0,30}",
            cuts in proptest::collection::vec(0..60usize, 0..8),
            stop in "[ab\u{e9}]{1,4}",
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let (shown, stopped) = run(&[&stop], &pieces);
            let expected = text.split(stop.as_str()).next().unwrap_or("");
            prop_assert_eq!(shown.concat(), expected);
            prop_assert_eq!(stopped, text.contains(stop.as_str()));
        }
    }
}
