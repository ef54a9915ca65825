//! Which cells count for the tokens of an operation, and which tokens are computed together.

use super::kernel::{Gap, Tile};
use super::lanes;

/// Most tokens in a tile.
const TOKENS: usize = 8;
/// A tile may have so many cells whatever it wastes: they are one block.
const SMALL: usize = 32;

/// What is found out for an operation; kept for its room.
#[derive(Default)]
pub struct Tiles {
    /// A bit for each cell, token by token.
    counts: Vec<u64>,
    /// Of each tile its tokens, and where its cells and gaps end.
    tiles: Vec<Ends>,
    cells: Vec<u32>,
    gaps: Vec<Gap>,
    /// Cells that count for any token of the tile at hand.
    any: Vec<u64>,
}

#[derive(Clone, Copy, Default)]
struct Ends {
    tokens: usize,
    cells: usize,
    gaps: usize,
}

/// There are never more than that.
fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn ones(words: impl Iterator<Item = u64>) -> usize {
    words.map(|word| word.count_ones() as usize).sum()
}

impl Tiles {
    /// Looks at the masks of all tokens, each with so many cells, and finds tiles of up to so many tokens. False if a mask
    /// has others than 0 and minus infinity.
    pub fn find<'a>(
        &mut self,
        cells: usize,
        masks: impl Iterator<Item = &'a [u16]>,
        most: usize,
    ) -> bool {
        let words = cells.div_ceil(64).max(1);
        self.counts.clear();
        for mask in masks {
            let from = self.counts.len();
            self.counts.resize(from + words, 0);
            if lanes::counting(mask, &mut self.counts[from..]).is_none() {
                return false;
            }
        }
        self.tiles.clear();
        self.cells.clear();
        self.gaps.clear();
        let counts = std::mem::take(&mut self.counts);
        let tokens = counts.len() / words;
        let mut first = 0;
        while first < tokens {
            let number = self.joined(&counts[first * words..], words, most.clamp(1, TOKENS));
            self.close(&counts[first * words..(first + number) * words], words);
            first += number;
            let ends = Ends {
                tokens: first,
                cells: self.cells.len(),
                gaps: self.gaps.len(),
            };
            self.tiles.push(ends);
        }
        self.counts = counts;
        true
    }

    /// How many tokens from the first on are computed together: as long as no more than a fifth is for nothing.
    fn joined(&mut self, counts: &[u64], words: usize, most: usize) -> usize {
        self.any.clear();
        let mut useful = 0;
        for (number, token) in counts.chunks(words).take(most).enumerate() {
            useful += ones(token.iter().copied());
            if number == 0 {
                self.any.extend(token);
                continue;
            }
            let both = self.any.iter().zip(token).map(|(any, own)| any | own);
            let all = ones(both);
            if all > SMALL && all * (number + 1) * 4 > useful * 5 {
                return number;
            }
            for (any, own) in self.any.iter_mut().zip(token) {
                *any |= own;
            }
        }
        (counts.len() / words).min(most)
    }

    /// Writes down the cells of the tile that was found, and where some don't count.
    fn close(&mut self, counts: &[u64], words: usize) {
        let first = self.cells.len();
        for (word, &any) in self.any.iter().enumerate() {
            let alike = counts.chunks(words).all(|own| own[word] == any);
            let mut left = any;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let place = number(self.cells.len() - first);
                self.cells.push(64 * number(word) + bit);
                if !alike {
                    let without = (0..).zip(counts.chunks(words));
                    let without = without.filter(|(_, own)| own[word] >> bit & 1 == 0);
                    let gaps = without.map(|(token, _)| Gap { place, token });
                    self.gaps.extend(gaps);
                }
            }
        }
    }

    /// The tiles: their tokens, and what is to be looked at for them.
    pub fn iter(&self) -> impl Iterator<Item = (std::ops::Range<usize>, Tile<'_>)> {
        let before = std::iter::once(Ends::default()).chain(self.tiles.iter().copied());
        before.zip(&self.tiles).map(|(from, to)| {
            let tile = Tile {
                cells: &self.cells[from.cells..to.cells],
                gaps: &self.gaps[from.gaps..to.gaps],
            };
            (from.tokens..to.tokens, tile)
        })
    }
}
