//! Decodes the bytes of tokens into text: whole characters only, and nothing from a stop string on.

/// Incrementally decodes the text of one generation.
#[derive(Debug, Default)]
pub struct TextDecoder {
    stops: Vec<String>,
    /// An unfinished character.
    bytes: Vec<u8>,
    /// Text held back because a stop string may begin in it.
    held: String,
    stopped: bool,
}

impl TextDecoder {
    /// A decoder that ends at the first of `stops`, none of which is empty.
    pub fn new(stops: Vec<String>) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Adds a token's bytes and appends the text that is ready to `out`. Returns whether a stop string appeared;
    /// later calls append nothing.
    pub fn push(&mut self, piece: &[u8], out: &mut String) -> bool {
        if self.stopped {
            return true;
        }
        self.bytes.extend_from_slice(piece);
        self.decode();
        self.release(out)
    }

    /// Ends the generation: appends the text held back. Bytes of an unfinished character become U+FFFD.
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
                    // Invalid bytes are replaced at once; an unfinished character waits for its rest.
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

    /// Moves text that is not part of a stop string, and cannot become part of one, from `held` to `out`.
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
        let ready = self.held.len() - keep;
        out.push_str(&self.held[..ready]);
        self.held.drain(..ready);
        false
    }
}

/// Length in bytes of the longest suffix of `text` that is a proper prefix of `stop`.
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
        let mut decoder = TextDecoder::new(stops.iter().map(|&s| s.into()).collect());
        let mut texts = Vec::new();
        let mut stopped = false;
        for piece in pieces {
            let mut out = String::new();
            stopped = decoder.push(piece, &mut out);
            texts.push(out);
        }
        let mut out = String::new();
        decoder.finish(&mut out);
        texts.push(out);
        (texts, stopped)
    }

    #[test]
    fn character_appears_with_its_last_byte() {
        let (texts, _) = run(&[], &[b"a\xc3", b"\xa9b\xf0\x9f", b"\x98", b"\x80"]);
        assert_eq!(texts, ["a", "\u{e9}b", "", "\u{1f600}", ""]);
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        let (texts, _) = run(&[], &[b"a\xff", b"b", b"\xe2\x82"]);
        assert_eq!(texts, ["a\u{fffd}", "b", "", "\u{fffd}"]);
    }

    #[test]
    fn stop_string_is_found_across_pieces() {
        let (texts, stopped) = run(&["END"], &[b"one E", b"N", b"D two"]);
        assert_eq!((texts.concat().as_str(), stopped), ("one ", true));
    }

    #[test]
    fn partial_stop_string_is_released() {
        let (texts, stopped) = run(&["END"], &[b"E", b"N", b"Z", b"EN"]);
        assert_eq!((texts.concat().as_str(), stopped), ("ENZEN", false));
        assert_eq!(texts, ["", "", "ENZ", "", "EN"]);
    }

    #[test]
    fn earliest_stop_string_ends_the_text() {
        let (texts, _) = run(&["cd", "b"], &[b"abcd"]);
        assert_eq!(texts.concat(), "a");
    }

    proptest! {
        #[test]
        fn splitting_does_not_change_the_text(
            text in "[ab\u{e9}]{0,30}",
            cuts in proptest::collection::vec(0..60usize, 0..8),
            stop in "[ab\u{e9}]{1,4}",
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let (texts, stopped) = run(&[&stop], &pieces);
            let expected = text.split(stop.as_str()).next().unwrap_or("");
            prop_assert_eq!(texts.concat(), expected);
            prop_assert_eq!(stopped, text.contains(stop.as_str()));
        }
    }
}
