//! The attention of heads that share keys and values, over the cells that count for them.

use super::lanes::{LANES, fetch, load, load_halves, multiply_add, splat, store, sums};

/// Cells between two looks at the highest score: their keys and values stay in the nearest cache while all queries of
/// a tile are multiplied with them.
const BLOCK: usize = 32;
/// Queries from which on keys and values of a block are made floats once for all of them.
const MANY: usize = 8;
/// Lanes of values that are summed at once for each query: as many as there are registers for.
const PARTS: usize = LANES / 4;
/// Most numbers in a key, or in a value.
pub const MOST: usize = 256;
/// Keys and values are multiples of this.
pub const UNIT: usize = 16;

/// Rows of halves, one for each cell.
#[derive(Clone, Copy)]
pub struct Rows {
    /// That of cell 0.
    pub first: *const u16,
    /// Bytes from one to the next.
    pub stride: usize,
    /// Bytes from a group's to the next one's.
    pub beside: usize,
    /// Numbers in a row: a multiple of [`UNIT`], up to [`MOST`].
    pub length: usize,
}

impl Rows {
    /// That of a cell; only there if there is such a cell.
    fn row(&self, cell: u32) -> *const u16 {
        self.first.wrapping_byte_add(cell as usize * self.stride)
    }

    /// Those of a group.
    fn of(self, group: usize) -> Self {
        let first = self.first.wrapping_byte_add(group * self.beside);
        Self { first, ..self }
    }
}

/// One head of one token.
#[derive(Clone, Copy)]
pub struct Query {
    /// As long as a key.
    pub query: *const f32,
    /// Where what was found goes, as long as a value.
    pub result: *mut f32,
    /// Which token of the tile it is.
    pub token: u32,
}

/// A cell of a tile that does not count for one of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its place among the tile's cells.
    pub place: u32,
    /// The token.
    pub token: u32,
}

/// Tokens that are computed together, since mostly the same cells count for them.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    /// Those that count for any of them.
    pub cells: &'a [u32],
    /// Those of them that don't for some, by their places.
    pub gaps: &'a [Gap],
}

/// What is known of the queries of a tile after some blocks; kept for its room.
#[derive(Default)]
pub struct Sums {
    /// The values times their weights, query by query.
    values: Vec<f32>,
    /// The highest score.
    highest: Vec<f32>,
    /// The sum of the weights.
    weights: Vec<f32>,
    /// Keys and then values of a block, as floats.
    wide: Vec<f32>,
}

/// `softmax(scale * query * keys) * values` for the heads of a tile's tokens. Where no cell counts it is 0.
///
/// Heads come in groups that share keys and values, `each` queries after the other; the keys and values of a group lie
/// `keys.beside` and `values.beside` bytes behind those of the one before.
///
/// Cells are looked at in blocks, and what was summed is scaled when a higher score comes: the online softmax of
/// Milakov and Gimelshein, <https://arxiv.org/abs/1805.02867>. A block is looked at for all groups before the next one,
/// since what groups have of a cell lies side by side.
///
/// What does not count for a token does not touch it, whatever it is: a number times a weight of 0 is no 0 where it is
/// infinite or none, so tokens for which that may have happened are computed again, each alone.
///
/// # Safety
/// All cells of the tile are cells of `keys` and `values` for so many groups; queries and results are as long as said.
pub unsafe fn attend(
    queries: &[Query],
    each: usize,
    keys: Rows,
    values: Rows,
    tile: Tile<'_>,
    scale: f32,
    sums: &mut Sums,
) {
    // SAFETY: the caller's.
    unsafe { attend_all(queries, each, keys, values, tile, scale, sums) };
    if tile.gaps.is_empty() {
        return;
    }
    for (place, query) in queries.iter().enumerate() {
        // SAFETY: the caller says that it is there.
        let result = unsafe { std::slice::from_raw_parts(query.result, values.length) };
        if result.iter().all(|number| number.is_finite()) {
            continue;
        }
        let group = place / each;
        let missing: Vec<_> = tile
            .gaps
            .iter()
            .filter(|gap| gap.token == query.token)
            .collect();
        let counts = |place: &usize| {
            missing
                .binary_search_by_key(place, |gap| gap.place as usize)
                .is_err()
        };
        let cells: Vec<_> = (0..tile.cells.len())
            .filter(counts)
            .map(|place| tile.cells[place])
            .collect();
        let alone = Tile {
            cells: &cells,
            gaps: &[],
        };
        let (keys, values) = (keys.of(group), values.of(group));
        // SAFETY: the caller's.
        unsafe { attend_all(&[*query], 1, keys, values, alone, scale, sums) };
    }
}

/// The same of all of them together.
///
/// # Safety
/// As for [`attend`].
unsafe fn attend_all(
    queries: &[Query],
    each: usize,
    keys: Rows,
    values: Rows,
    tile: Tile<'_>,
    scale: f32,
    sums: &mut Sums,
) {
    sums.clear(queries.len(), values.length);
    let mut gaps = tile.gaps;
    let mut blocks = tile.cells.chunks(BLOCK).peekable();
    let mut first = 0;
    while let Some(cells) = blocks.next() {
        let own = gaps.partition_point(|gap| (gap.place as usize) < first + BLOCK);
        let (here, later) = gaps.split_at(own);
        gaps = later;
        let groups = queries.len() / each;
        for group in 0..groups {
            let next = match group + 1 < groups {
                true => (keys.of(group + 1), cells),
                false => (keys, blocks.peek().copied().unwrap_or_default()),
            };
            let wide = each >= MANY;
            if wide {
                // SAFETY: the caller's.
                unsafe { sums.widen(cells, keys.of(group), values.of(group)) };
            }
            let block = Block {
                cells,
                first,
                gaps: here,
                keys: keys.of(group),
                values: values.of(group),
                next,
                scale,
            };
            let first_of = group * each;
            let mut done = first_of;
            let end = done + each;
            while done < end {
                // SAFETY: the caller's; there are so many queries from this one on.
                done += unsafe {
                    match (end - done, wide) {
                        (4.., true) => block.add::<4, true>(queries, done, false, sums),
                        (4.., false) => {
                            block.add::<4, false>(queries, done, done == first_of, sums)
                        }
                        (2.., _) => block.add::<2, false>(queries, done, done == first_of, sums),
                        _ => block.add::<1, false>(queries, done, done == first_of, sums),
                    }
                };
            }
        }
        first += cells.len();
    }
    for (place, query) in queries.iter().enumerate() {
        let weights = sums.weights[place];
        let share = if weights == 0.0 {
            // No cell counts; or some do, and none has a score.
            let gaps = tile.gaps.iter().filter(|gap| gap.token == query.token);
            let none = gaps.count() == tile.cells.len();
            if none { 0.0 } else { f32::NAN }
        } else {
            1.0 / weights
        };
        // SAFETY: the caller says that there is room for a value.
        let result = unsafe { std::slice::from_raw_parts_mut(query.result, values.length) };
        for (result, sum) in result.iter_mut().zip(&sums.values[place * values.length..]) {
            *result = sum * share;
        }
    }
}

/// Some cells of a tile.
struct Block<'a> {
    cells: &'a [u32],
    /// The place of the first of them.
    first: usize,
    gaps: &'a [Gap],
    keys: Rows,
    values: Rows,
    /// Whose keys come next.
    next: (Rows, &'a [u32]),
    scale: f32,
}

impl Sums {
    /// For so many queries, nothing yet.
    fn clear(&mut self, queries: usize, length: usize) {
        self.values.clear();
        self.values.resize(queries * length, 0.0);
        self.highest.clear();
        self.highest.resize(queries, f32::NEG_INFINITY);
        self.weights.clear();
        self.weights.resize(queries, 0.0);
    }

    /// Makes floats of the keys and values of up to [`BLOCK`] cells.
    ///
    /// # Safety
    /// There are such cells.
    unsafe fn widen(&mut self, cells: &[u32], keys: Rows, values: Rows) {
        self.wide.resize(BLOCK * (keys.length + values.length), 0.0);
        let mut to = self.wide.as_mut_ptr();
        for rows in [keys, values] {
            for (place, &cell) in cells.iter().enumerate() {
                for from in (0..rows.length).step_by(LANES) {
                    // SAFETY: the caller's; there is room for so many rows of keys, and then of values.
                    unsafe {
                        let half = load_halves(rows.row(cell).add(from));
                        store(to.add(place * rows.length + from), half);
                    }
                }
            }
            // SAFETY: as above.
            to = unsafe { to.add(BLOCK * rows.length) };
        }
    }
}

impl Block<'_> {
    /// Adds these cells to the sums of `Q` queries from this one on: 1, 2 or 4. Returns `Q`.
    ///
    /// # Safety
    /// As for [`attend`]; there are so many.
    unsafe fn add<const Q: usize, const WIDE: bool>(
        &self,
        queries: &[Query],
        from: usize,
        fetches: bool,
        sums: &mut Sums,
    ) -> usize {
        let values = self.values;
        let queries: &[Query; Q] = match queries[from..].first_chunk() {
            Some(queries) => queries,
            None => return Q,
        };
        // What lies beyond the block's end counts for nothing.
        let mut scores = [[f32::NEG_INFINITY; BLOCK]; Q];
        // SAFETY: the caller's.
        unsafe {
            let queries = queries.map(|query| query.query);
            match WIDE {
                true => self.score_wide(queries, sums.wide.as_ptr(), &mut scores),
                false => self.score(queries, fetches, &mut scores),
            }
        }
        for gap in self.gaps {
            for (query, scores) in queries.iter().zip(&mut scores) {
                if query.token == gap.token {
                    scores[gap.place as usize - self.first] = f32::NEG_INFINITY;
                }
            }
        }
        for (place, scores) in scores.iter_mut().enumerate() {
            let before = sums.highest[from + place];
            let highest = most(scores).max(before);
            if highest == f32::NEG_INFINITY {
                // None counts, or none is a number.
                if scores.iter().any(|score| score.is_nan()) {
                    sums.weights[from + place] = f32::NAN;
                }
                scores.fill(0.0);
                continue;
            }
            let weights = weigh(scores, highest);
            if highest > before {
                let fade = (before - highest).exp();
                sums.highest[from + place] = highest;
                sums.weights[from + place] *= fade;
                let own = (from + place) * values.length;
                let own = &mut sums.values[own..own + values.length];
                own.iter_mut().for_each(|sum| *sum *= fade);
            }
            sums.weights[from + place] += weights;
        }
        let own = from * values.length;
        let own = &mut sums.values[own..own + Q * values.length];
        let wide = sums.wide.as_ptr().wrapping_add(BLOCK * self.keys.length);
        // SAFETY: the caller's; there is a sum for each number of each query's value.
        unsafe { self.sum::<Q, WIDE>(&scores, fetches, wide, own) };
        Q
    }

    /// The scaled products of each query with the keys.
    ///
    /// # Safety
    /// As for [`attend`].
    unsafe fn score<const Q: usize>(
        &self,
        queries: [*const f32; Q],
        fetches: bool,
        scores: &mut [[f32; BLOCK]; Q],
    ) {
        // Always four products at once, so that none waits for the one before.
        let at_once = 4 / Q;
        let last = self.cells.len() - 1;
        for first in (0..self.cells.len()).step_by(at_once) {
            // What is beyond the end is the last one once more.
            let place = |product: usize| (first + product / Q).min(last);
            if fetches {
                for &cell in &self.cells[first..(first + at_once).min(last + 1)] {
                    fetch(self.values.row(cell), self.values.length);
                }
            }
            let mut products = [splat(0.0); 4];
            // SAFETY: the caller's; keys are multiples of `LANES`, and so are queries.
            unsafe {
                let mut rows = [std::ptr::null(); 4];
                for (product, row) in rows.iter_mut().enumerate() {
                    *row = self.keys.row(self.cells[place(product)]);
                }
                let mut from = 0;
                while from < self.keys.length {
                    let mut own = [splat(0.0); Q];
                    for query in 0..Q {
                        own[query] = load(queries[query].add(from));
                    }
                    for product in 0..4 {
                        let key = load_halves(rows[product / Q * Q].add(from));
                        products[product] = multiply_add(key, own[product % Q], products[product]);
                    }
                    from += LANES;
                }
            }
            for (product, found) in sums(products).into_iter().enumerate() {
                scores[product % Q][place(product)] = found * self.scale;
            }
        }
    }

    /// The same with keys that are floats already: two cells at once.
    ///
    /// # Safety
    /// As for [`attend`]; there are keys of so many cells.
    unsafe fn score_wide<const Q: usize>(
        &self,
        queries: [*const f32; Q],
        keys: *const f32,
        scores: &mut [[f32; BLOCK]; Q],
    ) {
        let (length, last) = (self.keys.length, self.cells.len() - 1);
        for first in (0..self.cells.len()).step_by(2) {
            let second = (first + 1).min(last);
            let mut products = [[splat(0.0); Q]; 2];
            let mut from = 0;
            while from < length {
                // SAFETY: the caller's; keys are multiples of `LANES`, and so are queries.
                unsafe {
                    let one = load(keys.add(first * length + from));
                    let other = load(keys.add(second * length + from));
                    for query in 0..Q {
                        let own = load(queries[query].add(from));
                        products[0][query] = multiply_add(one, own, products[0][query]);
                        products[1][query] = multiply_add(other, own, products[1][query]);
                    }
                }
                from += LANES;
            }
            for (cell, products) in [first, second].into_iter().zip(products) {
                let mut four = [splat(0.0); 4];
                four[..Q].copy_from_slice(&products);
                for (scores, found) in scores.iter_mut().zip(sums(four)) {
                    scores[cell] = found * self.scale;
                }
            }
        }
    }

    /// Adds the values, each times its weight.
    ///
    /// # Safety
    /// As for [`attend`]; `summed` has `Q` values.
    unsafe fn sum<const Q: usize, const WIDE: bool>(
        &self,
        weights: &[[f32; BLOCK]; Q],
        fetches: bool,
        wide: *const f32,
        summed: &mut [f32],
    ) {
        if fetches {
            let (keys, cells) = self.next;
            for &cell in &cells[..BLOCK.min(cells.len())] {
                fetch(keys.row(cell), keys.length);
            }
        }
        let mut from = 0;
        while from < self.values.length {
            let left = (self.values.length - from) / LANES;
            // SAFETY: the caller's; so many parts are left of each value.
            let done = unsafe {
                if left >= PARTS {
                    self.sum_parts::<Q, PARTS, WIDE>(weights, from, wide, summed)
                } else if left >= 2 {
                    self.sum_parts::<Q, 2, WIDE>(weights, from, wide, summed)
                } else {
                    self.sum_parts::<Q, 1, WIDE>(weights, from, wide, summed)
                }
            };
            from += LANES * done;
        }
    }

    /// The same of some parts of each value. Returns their number.
    ///
    /// # Safety
    /// As for [`Block::sum`]; values have so many parts from there on.
    unsafe fn sum_parts<const Q: usize, const PARTS: usize, const WIDE: bool>(
        &self,
        weights: &[[f32; BLOCK]; Q],
        from: usize,
        wide: *const f32,
        summed: &mut [f32],
    ) -> usize {
        let mut sums = [[splat(0.0); PARTS]; Q];
        // SAFETY: the caller's.
        unsafe {
            let place =
                |query: usize, part: usize| query * self.values.length + from + part * LANES;
            for (query, sums) in sums.iter_mut().enumerate() {
                for (part, sum) in sums.iter_mut().enumerate() {
                    *sum = load(summed.as_ptr().add(place(query, part)));
                }
            }
            for (cell, &row) in self.cells.iter().enumerate() {
                let row = self.values.row(row).wrapping_add(from);
                let floats = wide.wrapping_add(cell * self.values.length + from);
                let mut own = [splat(0.0); Q];
                for query in 0..Q {
                    own[query] = splat(weights[query][cell]);
                }
                for part in 0..PARTS {
                    let value = match WIDE {
                        true => load(floats.add(part * LANES)),
                        false => load_halves(row.add(part * LANES)),
                    };
                    for query in 0..Q {
                        sums[query][part] = multiply_add(value, own[query], sums[query][part]);
                    }
                }
            }
            for (query, sums) in sums.iter().enumerate() {
                for (part, &sum) in sums.iter().enumerate() {
                    store(summed.as_mut_ptr().add(place(query, part)), sum);
                }
            }
        }
        PARTS
    }
}

/// The highest of them.
fn most(scores: &[f32; BLOCK]) -> f32 {
    let (eights, _) = scores.as_chunks::<8>();
    let mut most = [f32::NEG_INFINITY; 8];
    for eight in eights {
        for (most, score) in most.iter_mut().zip(eight) {
            *most = if score > most { *score } else { *most };
        }
    }
    most.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Puts `exp(score - highest)` in place of each score; returns their sum.
fn weigh(scores: &mut [f32; BLOCK], highest: f32) -> f32 {
    for score in scores.iter_mut() {
        *score = power(*score - highest);
    }
    let (eights, _) = scores.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for eight in eights {
        for (sum, weight) in sums.iter_mut().zip(eight) {
            *sum += weight;
        }
    }
    sums.into_iter().sum()
}

/// `exp` of what is not above 0, to the last bits of a float; 0 of what is below -87, and what is no number stays so.
///
/// `x = n * ln 2 + r`, and a polynomial for `exp r`, that of the Cephes library.
#[inline(always)]
fn power(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const LEAST: f32 = -87.0;
    let within = x.max(LEAST);
    let n: f32 = (within * std::f32::consts::LOG2_E).round_ties_even();
    let r: f32 = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, within));
    let series = 1.987_569_1e-4_f32.mul_add(r, 1.398_199_9e-3);
    let series = series.mul_add(r, 8.333_452e-3);
    let series = series.mul_add(r, 4.166_579_6e-2);
    let series = series.mul_add(r, 1.666_666_5e-1);
    let series = series.mul_add(r, 0.5);
    let near = series.mul_add(r * r, r + 1.0);
    // SAFETY: from -126 to 0.
    let exponent = unsafe { n.to_int_unchecked::<i32>() } + 127;
    let power = near * f32::from_bits(exponent.cast_unsigned() << 23);
    let power = if x < LEAST { 0.0 } else { power };
    if x.is_nan() { x } else { power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_right_to_the_last_bits() {
        for number in 0..=43_500_u16 {
            let x = -f32::from(number) / 500.0;
            let exact = f64::from(x).exp();
            let found = f64::from(power(x));
            let wrong = (found / exact - 1.0).abs();
            assert!(wrong < 3e-7, "{x}: {found} and not {exact}");
        }
        assert_eq!(power(0.0), 1.0);
        assert_eq!(power(f32::NEG_INFINITY), 0.0);
        assert!(power(f32::NAN).is_nan());
    }
}
