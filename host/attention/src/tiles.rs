//! Groups the tokens of a step into tiles, by the cells that their masks leave.

use crate::vectors;

/// Most tokens in a tile.
const MAX_TOKENS: usize = 8;
/// A tile of up to this many cells may waste any part of them: they are one block.
const SMALL_TILE: usize = 32;

/// A cell of a tile that is masked for one of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedCell {
    /// Index of the cell in the tile.
    pub index: u32,
    /// Index of the token in the tile.
    pub token: u32,
}

/// Tokens that are computed together because they mostly attend to the same cells.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    /// The cells that any of the tokens attends to.
    pub cells: &'a [u32],
    /// The cells that are masked for some tokens, in the order of `cells`.
    pub masked: &'a [MaskedCell],
}

/// The tiles of a step. Reuses its buffers.
#[derive(Default)]
pub struct Tiles {
    /// A bit for each cell, token by token: whether the token attends to it.
    attended: Vec<u64>,
    ends: Vec<TileEnd>,
    cells: Vec<u32>,
    masked: Vec<MaskedCell>,
    /// Cells that any token of the current tile attends to.
    union: Vec<u64>,
}

/// The ends of a tile's tokens, cells and masked cells.
#[derive(Clone, Copy, Default)]
struct TileEnd {
    tokens: usize,
    cells: usize,
    masked: usize,
}

fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn count_ones(words: impl Iterator<Item = u64>) -> usize {
    words.map(|word| word.count_ones() as usize).sum()
}

impl Tiles {
    /// Groups tokens into tiles of up to `max_tokens` by their masks, each of `cells` cells. Returns false if a
    /// mask contains values other than 0 and minus infinity.
    pub fn build<'a>(
        &mut self,
        cells: usize,
        masks: impl Iterator<Item = &'a [u16]>,
        max_tokens: usize,
    ) -> bool {
        let words = cells.div_ceil(64).max(1);
        self.attended.clear();
        for mask in masks {
            let from = self.attended.len();
            self.attended.resize(from + words, 0);
            if vectors::read_mask(mask, &mut self.attended[from..]).is_none() {
                return false;
            }
        }
        self.ends.clear();
        self.cells.clear();
        self.masked.clear();
        let attended = std::mem::take(&mut self.attended);
        let tokens = attended.len() / words;
        let max_tokens = max_tokens.clamp(1, MAX_TOKENS);
        let mut first = 0;
        while first < tokens {
            let count = self.tile_size(&attended[first * words..], words, max_tokens);
            self.add_tile(&attended[first * words..(first + count) * words], words);
            first += count;
            self.ends.push(TileEnd {
                tokens: first,
                cells: self.cells.len(),
                masked: self.masked.len(),
            });
        }
        self.attended = attended;
        true
    }

    /// Number of tokens in the tile of the first token: as many as leave at most a fifth of the work masked. Leaves the
    /// tile's cells in `union`.
    fn tile_size(&mut self, attended: &[u64], words: usize, max_tokens: usize) -> usize {
        self.union.clear();
        let mut useful = 0;
        for (count, token) in attended.chunks(words).take(max_tokens).enumerate() {
            useful += count_ones(token.iter().copied());
            if count == 0 {
                self.union.extend(token);
                continue;
            }
            let both = self.union.iter().zip(token);
            let cells = count_ones(both.map(|(union, token)| union | token));
            if cells > SMALL_TILE && cells * (count + 1) * 4 > useful * 5 {
                return count;
            }
            for (union, token) in self.union.iter_mut().zip(token) {
                *union |= token;
            }
        }
        (attended.len() / words).min(max_tokens)
    }

    /// Adds the tile of `union` to the lists of cells and masked cells.
    fn add_tile(&mut self, attended: &[u64], words: usize) {
        let first = self.cells.len();
        for (word, &union) in self.union.iter().enumerate() {
            let is_equal = attended.chunks(words).all(|token| token[word] == union);
            let mut rest = union;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let cell = index(self.cells.len() - first);
                self.cells.push(64 * index(word) + bit);
                if !is_equal {
                    let tokens = (0..).zip(attended.chunks(words));
                    let without = tokens.filter(|(_, token)| token[word] >> bit & 1 == 0);
                    self.masked
                        .extend(without.map(|(token, _)| MaskedCell { index: cell, token }));
                }
            }
        }
    }

    /// The tiles, each with the indices of its tokens.
    pub fn iter(&self) -> impl Iterator<Item = (std::ops::Range<usize>, Tile<'_>)> {
        let starts = std::iter::once(TileEnd::default()).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(from, to)| {
            let tile = Tile {
                cells: &self.cells[from.cells..to.cells],
                masked: &self.masked[from.masked..to.masked],
            };
            (from.tokens..to.tokens, tile)
        })
    }
}
