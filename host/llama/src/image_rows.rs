//! Embeddings of images, which stand in a batch for tokens outside of the vocabulary.
//!
//! Each position of an image has a token from [`IMAGE_TOKENS`]. A context finds the embedding by the token, so a step is a list
//! of tokens whether it has images or not, and two positions have equal tokens only if they have equal embeddings.

use crate::Token;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The tokens of images. llama.cpp's own are at most `i32::MAX`.
pub const IMAGE_TOKENS: RangeInclusive<Token> = 1 << 31..=Token::MAX;

/// Embeddings of consecutive positions of an image. Dropping it frees its tokens.
#[derive(Debug)]
pub struct ImageRows {
    first: Token,
    rows: u32,
    numbers: Vec<f32>,
    table: Weak<Table>,
}

impl ImageRows {
    /// The tokens of its positions.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + use<> {
        self.first..=self.first + (self.rows - 1)
    }

    /// The embeddings, one after another.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// The embedding of a token, if it is one of these.
    fn row(&self, token: Token) -> Option<&[f32]> {
        let row = token.checked_sub(self.first)? as usize;
        let length = self.numbers.len() / self.rows as usize;
        self.numbers.get(row * length..(row + 1) * length)
    }
}

impl Drop for ImageRows {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            lock(&table).remove(&self.first);
        }
    }
}

type Table = Mutex<BTreeMap<Token, Entry>>;

#[derive(Debug)]
struct Entry {
    rows: u32,
    image: Weak<ImageRows>,
}

/// The images that a context can compute. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ImageTable {
    entries: Arc<Table>,
    /// Numbers in an embedding.
    length: usize,
}

fn lock(table: &Table) -> MutexGuard<'_, BTreeMap<Token, Entry>> {
    // No method leaves the map inconsistent if it panics.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ImageTable {
    /// A table of embeddings of `length` numbers.
    pub fn new(length: u32) -> Self {
        Self {
            entries: Arc::default(),
            length: (length as usize).max(1),
        }
    }

    /// Numbers in an embedding.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Adds embeddings, whose tokens begin with `first`. `None` if there are none, their numbers do not fill rows, or one of
    /// the tokens is taken or no token of an image.
    pub fn insert(&self, first: Token, numbers: Vec<f32>) -> Option<Arc<ImageRows>> {
        let rows = u32::try_from(numbers.len() / self.length).ok()?;
        let last = first.checked_add(rows.checked_sub(1)?)?;
        let fits = numbers.len().is_multiple_of(self.length) && IMAGE_TOKENS.contains(&first);
        let mut entries = lock(&self.entries);
        let before = entries.range(..=last).next_back();
        let is_taken = before.is_some_and(|(start, entry)| start + (entry.rows - 1) >= first);
        if !fits || is_taken {
            return None;
        }
        let image = Arc::new(ImageRows {
            first,
            rows,
            numbers,
            table: Arc::downgrade(&self.entries),
        });
        let entry = Entry {
            rows,
            image: Arc::downgrade(&image),
        };
        entries.insert(first, entry);
        Some(image)
    }

    /// Appends the embedding of a token to `into`. Returns whether there is one.
    pub(crate) fn append(&self, token: Token, into: &mut Vec<f32>) -> bool {
        let entries = lock(&self.entries);
        let found = entries.range(..=token).next_back();
        let image = found.and_then(|(_, entry)| entry.image.upgrade());
        // Dropping the last handle locks the table.
        drop(entries);
        let row = image.as_ref().and_then(|image| image.row(token));
        if let Some(row) = row {
            into.extend_from_slice(row);
        }
        row.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Token = 1 << 31;

    fn row(table: &ImageTable, token: Token) -> Vec<f32> {
        let mut row = Vec::new();
        assert_eq!(table.append(token, &mut row), !row.is_empty());
        row
    }

    #[test]
    fn tokens_find_their_embeddings() {
        let table = ImageTable::new(2);
        let image = table
            .insert(FIRST + 5, vec![1.0, 2.0, 3.0, 4.0])
            .expect("free tokens");
        let last = table.insert(Token::MAX, vec![5.0, 6.0]).expect("free");
        assert_eq!(image.tokens().collect::<Vec<_>>(), [FIRST + 5, FIRST + 6]);
        assert_eq!(row(&table, FIRST + 5), [1.0, 2.0]);
        assert_eq!(row(&table, FIRST + 6), [3.0, 4.0]);
        assert_eq!(row(&table, Token::MAX), [5.0, 6.0]);
        for other in [0, FIRST, FIRST + 4, FIRST + 7] {
            assert!(row(&table, other).is_empty(), "{other}");
        }
        drop(image);
        assert!(row(&table, FIRST + 5).is_empty());
        assert_eq!(last.tokens().count(), 1);
    }

    #[test]
    fn wrong_and_taken_tokens_are_refused() {
        let table = ImageTable::new(1);
        let rows = |count: usize| vec![0.5; count];
        let image = table.insert(FIRST + 5, rows(3)).expect("free tokens");
        for (first, count) in [
            (FIRST + 4, 2),
            (FIRST + 7, 1),
            (FIRST, 20),
            (FIRST, 0),
            (FIRST - 1, 1),
            (Token::MAX, 2),
        ] {
            assert!(table.insert(first, rows(count)).is_none(), "{first}");
        }
        assert!(ImageTable::new(2).insert(FIRST, rows(3)).is_none());
        let behind = table.insert(FIRST + 8, rows(1));
        assert!(behind.is_some());
        drop(image);
        assert!(table.insert(FIRST + 4, rows(2)).is_some());
    }
}
