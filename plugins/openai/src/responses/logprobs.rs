//! Log probabilities of a message: those of the tokens of its text. Tokens of tags, reasoning and calls have none.

use std::collections::VecDeque;

use conversation::generation::LogprobEntry;
use serde_json::Value;

use crate::chat::logprob_json;

/// Entries of tokens that no part has claimed: a part may come later than its tokens.
#[derive(Default)]
pub struct WaitingLogprobs {
    /// The bytes of each token that belong to no earlier part, and its entry.
    tokens: VecDeque<(Vec<u8>, Option<Value>)>,
}

impl WaitingLogprobs {
    pub fn add(&mut self, entries: &[LogprobEntry]) {
        let entries = entries.iter();
        let entries = entries.map(|entry| (entry.token.bytes.clone(), Some(logprob_json(entry))));
        self.tokens.extend(entries);
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Takes the entries of a part's text, and drops those before it. With `last`, the text's last occurrence counts:
    /// tags may precede the first part of a message.
    pub fn take(&mut self, text: &str, last: bool) -> Vec<Value> {
        if self.tokens.is_empty() || text.is_empty() {
            return Vec::new();
        }
        let bytes: Vec<u8> = self
            .tokens
            .iter()
            .flat_map(|(bytes, _)| bytes)
            .copied()
            .collect();
        let mut windows = bytes.windows(text.len());
        let is_text = |window: &[u8]| window == text.as_bytes();
        let start = match last {
            true => windows.rposition(is_text),
            false => windows.position(is_text),
        };
        let Some(start) = start else {
            return Vec::new();
        };
        let end = start + text.len();
        let (mut at, mut taken) = (0, Vec::new());
        while at < end
            && let Some((bytes, entry)) = self.tokens.pop_front()
        {
            let next = at + bytes.len();
            if next > start {
                taken.extend(entry);
            }
            if next > end {
                // The rest of the token's text comes with the next part.
                self.tokens.push_front((bytes[end - at..].to_vec(), None));
            }
            at = next;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conversation::generation::TokenLogprob;

    fn waiting(tokens: &[&str]) -> WaitingLogprobs {
        let entry = |text: &&str| LogprobEntry {
            token: TokenLogprob {
                id: 0,
                bytes: text.as_bytes().to_vec(),
                logprob: Some(-1.0),
            },
            top: Vec::new(),
            offset: 0,
        };
        let entries: Vec<_> = tokens.iter().map(entry).collect();
        let mut waiting = WaitingLogprobs::default();
        waiting.add(&entries);
        waiting
    }

    fn taken(waiting: &mut WaitingLogprobs, text: &str, last: bool) -> Vec<String> {
        let taken = waiting.take(text, last).into_iter();
        taken
            .map(|entry| entry["token"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn parts_take_entries_of_their_text() {
        let mut tokens = waiting(&["hi", "</t", "hink>", "h", "i", "<", "a>"]);
        assert_eq!(taken(&mut tokens, "hi", false), ["hi"]);
        assert_eq!(taken(&mut tokens, "hi", true), ["h", "i"]);
        assert_eq!(taken(&mut tokens, "no", false), [""; 0]);
        assert_eq!(taken(&mut tokens, "<a", false), ["<", "a>"]);
        assert_eq!(taken(&mut tokens, ">", false), [""; 0]);
        assert!(tokens.tokens.is_empty());
    }

    #[test]
    fn token_of_two_parts_counts_once() {
        let mut tokens = waiting(&["a<", "b"]);
        assert_eq!(taken(&mut tokens, "a", true), ["a<"]);
        assert_eq!(taken(&mut tokens, "<b", false), ["b"]);
    }
}
