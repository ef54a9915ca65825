//! Log probabilities of a message: those of the tokens of its text. Tokens of tags, reasoning and calls have none.

use std::collections::VecDeque;

use conversation::generation::LogprobEntry;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::chat::logprob_list;

/// The types of objects that have log probabilities.
const WITH_LOGPROBS: [&str; 2] = ["output_text", "response.output_text.done"];

/// A response or an event that is serialized with log probabilities. A number as the field `logprobs` stands for the list
/// with this index: as JSON values, the entries of a long message would exceed a plugin's memory.
pub struct WithLogprobs<'a> {
    pub value: &'a Value,
    pub lists: &'a [Vec<LogprobEntry>],
}

impl<'a> WithLogprobs<'a> {
    fn part(&self, value: &'a Value) -> Self {
        WithLogprobs {
            value,
            lists: self.lists,
        }
    }

    fn list(&self, index: &Value) -> Option<&'a Vec<LogprobEntry>> {
        let index = usize::try_from(index.as_u64()?).ok()?;
        self.lists.get(index)
    }
}

impl Serialize for WithLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = match self.value {
            Value::Object(fields) => fields,
            Value::Array(values) => {
                return serializer.collect_seq(values.iter().map(|value| self.part(value)));
            }
            other => return other.serialize(serializer),
        };
        let kind = fields.get("type").and_then(Value::as_str);
        let has_logprobs = kind.is_some_and(|kind| WITH_LOGPROBS.contains(&kind));
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for (name, value) in fields {
            let list = self.list(value);
            match list.filter(|_| has_logprobs && name == "logprobs") {
                Some(entries) => map.serialize_entry(name, &logprob_list(entries))?,
                None => map.serialize_entry(name, &self.part(value))?,
            }
        }
        map.end()
    }
}

/// Entries of tokens that no part has claimed: a part may come later than its tokens.
#[derive(Default)]
pub struct WaitingLogprobs {
    /// The bytes of each token that belong to no earlier part, and its entry.
    tokens: VecDeque<(Vec<u8>, Option<LogprobEntry>)>,
}

impl WaitingLogprobs {
    pub fn add(&mut self, entries: Vec<LogprobEntry>) {
        let entries = entries.into_iter();
        let entries = entries.map(|entry| (entry.token.bytes.clone(), Some(entry)));
        self.tokens.extend(entries);
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Takes the entries of a part's text, and drops those before it. With `last`, the text's last occurrence counts:
    /// tags may precede the first part of a message.
    pub fn take(&mut self, text: &str, last: bool) -> Vec<LogprobEntry> {
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
    use serde_json::json;

    fn entries(tokens: &[&str]) -> Vec<LogprobEntry> {
        let entry = |text: &&str| LogprobEntry {
            token: TokenLogprob {
                id: 0,
                bytes: text.as_bytes().to_vec(),
                logprob: Some(-1.0),
            },
            top: Vec::new(),
            offset: 0,
        };
        tokens.iter().map(entry).collect()
    }

    fn waiting(tokens: &[&str]) -> WaitingLogprobs {
        let mut waiting = WaitingLogprobs::default();
        waiting.add(entries(tokens));
        waiting
    }

    fn taken(waiting: &mut WaitingLogprobs, text: &str, last: bool) -> Vec<String> {
        let taken = waiting.take(text, last).into_iter();
        taken.map(|entry| entry.token.text().into_owned()).collect()
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
    fn lists_take_the_places_of_their_numbers() {
        let part = |logprobs: Value| json!({"type": "output_text", "logprobs": logprobs});
        let value = json!({
            "content": [part(1.into()), part(json!([])), part(2.into())],
            "metadata": {"logprobs": 1},
        });
        let lists = [entries(&["a"]), entries(&["b", "c"])];
        let found = serde_json::to_value(WithLogprobs {
            value: &value,
            lists: &lists,
        });
        let found = found.unwrap();
        let tokens = |index: usize| {
            let entries = found["content"][index]["logprobs"].as_array()?;
            let tokens = entries.iter().map(|entry| entry["token"].clone());
            Some(tokens.collect::<Vec<_>>())
        };
        assert_eq!(tokens(0), Some(vec!["b".into(), "c".into()]));
        assert_eq!(tokens(1), Some(Vec::new()));
        assert_eq!(tokens(2), None);
        assert_eq!(found["metadata"], value["metadata"]);
    }

    #[test]
    fn token_of_two_parts_counts_once() {
        let mut tokens = waiting(&["a<", "b"]);
        assert_eq!(taken(&mut tokens, "a", true), ["a<"]);
        assert_eq!(taken(&mut tokens, "<b", false), ["b"]);
    }
}
