//! The entries of the cache. A value of the deployment holds those of one context, under its hash.

use corral_sdk::{Error, KeyValues};
use serde::{Deserialize, Serialize};

/// Most entries of a context; the oldest are dropped.
const MAX_ENTRIES: usize = 64;
/// Most bytes of their answers.
const MAX_BYTES: usize = 4 << 20;
/// Values that are removed to make room for a new one.
const MAX_REMOVED: usize = 8;
/// Steps of a vector's component on each side of 0.
const STEPS: f32 = 127.0;

/// Entries in the order of their questions.
#[derive(Default, Deserialize, Serialize)]
pub struct Entries(Vec<Entry>);

/// A question's context and embedding, and its answer.
#[derive(Deserialize, Serialize)]
pub struct Entry {
    context: String,
    /// In steps of its largest component.
    vector: Vec<i8>,
    pub content_type: String,
    pub answer: String,
}

impl Entry {
    pub fn new(context: String, vector: &[f32], content_type: String, answer: String) -> Self {
        let largest = vector
            .iter()
            .fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
        let steps = vector
            .iter()
            .map(|value| (value / largest * STEPS).round() as i8);
        Entry {
            context,
            vector: steps.collect(),
            content_type,
            answer,
        }
    }
}

impl Entries {
    /// The entries of a context, and of others with the same hash.
    pub fn read(values: &KeyValues, context: &str) -> Self {
        let stored = values.get(&key(context)).ok().flatten();
        let entries = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        entries.unwrap_or_default()
    }

    /// The entry of this context whose question is nearest, and their cosine similarity.
    pub fn nearest(&self, context: &str, vector: &[f32]) -> Option<(f32, &Entry)> {
        let entries = self.0.iter().filter(|entry| entry.context == context);
        let scored = entries.map(|entry| (cosine(&entry.vector, vector), entry));
        scored.max_by(|(one, _), (other, _)| one.total_cmp(other))
    }

    /// Adds an entry. Other values make room for it if the grant is used up. Of two entries at once, one may be lost; then its
    /// question is answered anew.
    pub fn add(values: &KeyValues, entry: Entry) -> Result<(), Error> {
        let key = key(&entry.context);
        let mut entries = Self::read(values, &entry.context);
        entries.0.push(entry);
        let bytes = |entries: &[Entry]| -> usize {
            let sizes = entries.iter().map(|entry| entry.answer.len());
            sizes.sum()
        };
        while entries.0.len() > MAX_ENTRIES || bytes(&entries.0) > MAX_BYTES {
            entries.0.remove(0);
        }
        let value = serde_json::to_vec(&entries)
            .map_err(|error| Error::Failed(format!("entries have no JSON form: {error}")))?;
        let mut others = values.first_keys()?.into_iter();
        for _ in 0..MAX_REMOVED {
            match (values.set(&key, &value), others.find(|other| *other != key)) {
                (Err(Error::NotGranted(_)), Some(other)) => values.delete(&other)?,
                (result, _) => return result,
            }
        }
        values.set(&key, &value)
    }
}

/// The cosine of the angle between two vectors; 0 if one has no length, or they are of different models.
fn cosine(one: &[i8], other: &[f32]) -> f32 {
    if one.len() != other.len() {
        return 0.0;
    }
    let pairs = one.iter().map(|&step| f32::from(step)).zip(other);
    let (mut product, mut first, mut second) = (0.0, 0.0, 0.0);
    for (a, &b) in pairs {
        product += a * b;
        first += a * a;
        second += b * b;
    }
    let lengths = f32::sqrt(first * second);
    if lengths > 0.0 {
        product / lengths
    } else {
        0.0
    }
}

/// The key of a context: its hash FNV-1a.
fn key(context: &str) -> String {
    let hash = context.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("semantic-cache-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    fn entry(context: &str, bytes: usize) -> Entry {
        let vector = [0.5, -1.0, 0.25];
        Entry::new(
            context.to_owned(),
            &vector,
            String::new(),
            "x".repeat(bytes),
        )
    }

    #[test]
    fn nearest_entry_has_the_same_context() {
        let entries = Entries(vec![entry("a", 1), entry("b", 2)]);
        let (similarity, found) = entries.nearest("b", &[1.0, -2.0, 0.5]).unwrap();
        assert_eq!(found.answer.len(), 2);
        assert!(similarity > 0.9999, "{similarity}");
        assert!(entries.nearest("c", &[1.0, -2.0, 0.5]).is_none());
        // Of another model.
        assert_eq!(entries.nearest("a", &[1.0]).unwrap().0, 0.0);
    }

    #[test]
    fn new_entry_finds_room() {
        let script = Script::new().key_values(3000);
        script.run(async {
            let values = KeyValues::open().unwrap();
            for context in ["a", "b", "c", "d"] {
                Entries::add(&values, entry(context, 1000)).unwrap();
                let entries = Entries::read(&values, context);
                assert_eq!(entries.0.len(), 1, "{context}");
            }
            assert_eq!(values.keys().unwrap().len(), 2);
            let error = Entries::add(&values, entry("e", 4000)).unwrap_err();
            assert!(matches!(error, Error::Failed(_)), "{error}");
        });
    }
}
