//! Attention of heads that share keys and values, over the cells of a tile.

use crate::softmax::{largest, to_weights};
use crate::tiles::{MaskedCell, Tile};
use crate::vectors::{
    LANES, horizontal_sums, load, load_f16, multiply_add, prefetch, splat, store,
};

/// Cells of a block: their keys and values stay in the L1 cache while all queries of a tile use them.
const BLOCK: usize = 32;
/// From this many queries of a group on, keys and values of a block are converted to f32 once for all queries.
const CONVERT_QUERIES: usize = 8;
/// Vectors of a value that are summed at once for each query: as many as registers hold.
const PARTS: usize = LANES / 4;
/// Largest length of a key or value.
pub const MAX_HEAD: usize = 256;
/// The lengths of keys and values are multiples of this.
pub const HEAD_MULTIPLE: usize = 16;

/// Keys or values: rows of f16, one for each cell and head group.
#[derive(Clone, Copy)]
pub struct HeadRows {
    /// The row of cell 0 and group 0.
    pub first: *const u16,
    /// Bytes from one cell to the next.
    pub cell_stride: usize,
    /// Bytes from one group to the next.
    pub group_stride: usize,
    /// Numbers of a row: a multiple of [`HEAD_MULTIPLE`], up to [`MAX_HEAD`].
    pub length: usize,
}

impl HeadRows {
    /// The row of a cell; valid only if the cell exists.
    fn row(&self, cell: u32) -> *const u16 {
        self.first
            .wrapping_byte_add(cell as usize * self.cell_stride)
    }

    /// The rows of a group.
    fn group(self, group: usize) -> Self {
        let first = self.first.wrapping_byte_add(group * self.group_stride);
        Self { first, ..self }
    }
}

/// One head of one token.
#[derive(Clone, Copy)]
pub struct Query {
    /// The query, as long as a key.
    pub query: *const f32,
    /// The result, as long as a value.
    pub result: *mut f32,
    /// Index of the token in the tile.
    pub token: u32,
}

/// Buffers that calls reuse: the state of each query of a tile between blocks.
#[derive(Default)]
pub struct Workspace {
    /// Sums of weighted values, query by query.
    values: Vec<f32>,
    /// The highest score of each query.
    highest: Vec<f32>,
    /// The sum of the weights of each query.
    weights: Vec<f32>,
    /// Keys and then values of a block, in f32.
    converted: Vec<f32>,
}

/// Computes `softmax(scale * query * keys) * values` for the heads of a tile's tokens; 0 for a token without cells.
///
/// Queries come in groups that share keys and values, `group_size` queries after one another.
///
/// The softmax is online (Milakov and Gimelshein, <https://arxiv.org/abs/1805.02867>): a block of cells at a time, and a
/// higher score scales the sums so far. Each block is computed for all groups before the next block, because the rows of
/// the groups lie side by side.
///
/// A masked cell never affects a token, whatever it contains. A weight of 0 does not achieve that for infinite values and
/// NaN, so a token with a result that is not finite is computed again, without its masked cells.
///
/// # Safety
/// `keys` and `values` have all cells of the tile for all groups; queries and results have the lengths of keys and
/// values.
pub unsafe fn attend(
    queries: &[Query],
    group_size: usize,
    keys: HeadRows,
    values: HeadRows,
    tile: Tile<'_>,
    scale: f32,
    workspace: &mut Workspace,
) {
    // SAFETY: the caller's.
    unsafe { attend_tile(queries, group_size, keys, values, tile, scale, workspace) };
    if tile.masked.is_empty() {
        return;
    }
    for (index, query) in queries.iter().enumerate() {
        // SAFETY: the caller's.
        let result = unsafe { std::slice::from_raw_parts(query.result, values.length) };
        if result.iter().all(|number| number.is_finite()) {
            continue;
        }
        let group = index / group_size;
        let masked: Vec<_> = tile
            .masked
            .iter()
            .filter(|masked| masked.token == query.token)
            .collect();
        let is_masked = |index: usize| {
            masked
                .binary_search_by_key(&index, |masked| masked.index as usize)
                .is_ok()
        };
        let cells: Vec<_> = (0..tile.cells.len())
            .filter(|&index| !is_masked(index))
            .map(|index| tile.cells[index])
            .collect();
        let tile = Tile {
            cells: &cells,
            masked: &[],
        };
        let (keys, values) = (keys.group(group), values.group(group));
        // SAFETY: the caller's.
        unsafe { attend_tile(&[*query], 1, keys, values, tile, scale, workspace) };
    }
}

/// Computes all tokens of a tile, with weights of 0 for masked cells.
///
/// # Safety
/// As for [`attend`].
unsafe fn attend_tile(
    queries: &[Query],
    group_size: usize,
    keys: HeadRows,
    values: HeadRows,
    tile: Tile<'_>,
    scale: f32,
    workspace: &mut Workspace,
) {
    workspace.clear(queries.len(), values.length);
    let mut masked = tile.masked;
    let mut blocks = tile.cells.chunks(BLOCK).peekable();
    let mut first = 0;
    while let Some(cells) = blocks.next() {
        let end = masked.partition_point(|masked| (masked.index as usize) < first + BLOCK);
        let (block_masked, later) = masked.split_at(end);
        masked = later;
        let groups = queries.len() / group_size;
        for group in 0..groups {
            let next = match group + 1 < groups {
                true => (keys.group(group + 1), cells),
                false => (keys, blocks.peek().copied().unwrap_or_default()),
            };
            let converted = group_size >= CONVERT_QUERIES;
            if converted {
                // SAFETY: the caller's.
                unsafe { workspace.convert(cells, keys.group(group), values.group(group)) };
            }
            let block = Block {
                cells,
                first,
                masked: block_masked,
                keys: keys.group(group),
                values: values.group(group),
                next,
                scale,
            };
            let start = group * group_size;
            let mut done = start;
            let end = done + group_size;
            while done < end {
                // SAFETY: the caller's; this many queries remain.
                done += unsafe {
                    let is_first = done == start;
                    match (end - done, converted) {
                        (4.., true) => block.add::<4, true>(queries, done, false, workspace),
                        (4.., false) => block.add::<4, false>(queries, done, is_first, workspace),
                        (2.., _) => block.add::<2, false>(queries, done, is_first, workspace),
                        _ => block.add::<1, false>(queries, done, is_first, workspace),
                    }
                };
            }
        }
        first += cells.len();
    }
    for (index, query) in queries.iter().enumerate() {
        let weights = workspace.weights[index];
        let factor = if weights == 0.0 {
            // Either all cells are masked, or none has a score.
            let masked = tile
                .masked
                .iter()
                .filter(|masked| masked.token == query.token);
            if masked.count() == tile.cells.len() {
                0.0
            } else {
                f32::NAN
            }
        } else {
            1.0 / weights
        };
        // SAFETY: the caller's.
        let result = unsafe { std::slice::from_raw_parts_mut(query.result, values.length) };
        for (result, sum) in result
            .iter_mut()
            .zip(&workspace.values[index * values.length..])
        {
            *result = sum * factor;
        }
    }
}

/// A block of cells of a tile.
struct Block<'a> {
    cells: &'a [u32],
    /// Index of the first cell in the tile.
    first: usize,
    masked: &'a [MaskedCell],
    keys: HeadRows,
    values: HeadRows,
    /// The keys to prefetch.
    next: (HeadRows, &'a [u32]),
    scale: f32,
}

impl Workspace {
    /// Resets the state for this many queries.
    fn clear(&mut self, queries: usize, length: usize) {
        self.values.clear();
        self.values.resize(queries * length, 0.0);
        self.highest.clear();
        self.highest.resize(queries, f32::NEG_INFINITY);
        self.weights.clear();
        self.weights.resize(queries, 0.0);
    }

    /// Converts the keys and values of up to [`BLOCK`] cells to f32.
    ///
    /// # Safety
    /// The cells exist.
    unsafe fn convert(&mut self, cells: &[u32], keys: HeadRows, values: HeadRows) {
        self.converted
            .resize(BLOCK * (keys.length + values.length), 0.0);
        let mut to = self.converted.as_mut_ptr();
        for rows in [keys, values] {
            for (index, &cell) in cells.iter().enumerate() {
                for from in (0..rows.length).step_by(LANES) {
                    // SAFETY: the caller's; the buffer has room for BLOCK rows of keys, and then of values.
                    unsafe {
                        let numbers = load_f16(rows.row(cell).add(from));
                        store(to.add(index * rows.length + from), numbers);
                    }
                }
            }
            // SAFETY: as above.
            to = unsafe { to.add(BLOCK * rows.length) };
        }
    }
}

impl Block<'_> {
    /// Adds these cells to the sums of `Q` queries (1, 2 or 4) from index `from` on. Returns `Q`.
    ///
    /// # Safety
    /// As for [`attend`]; the queries exist.
    unsafe fn add<const Q: usize, const CONVERTED: bool>(
        &self,
        queries: &[Query],
        from: usize,
        prefetches: bool,
        workspace: &mut Workspace,
    ) -> usize {
        let values = self.values;
        let queries: &[Query; Q] = match queries[from..].first_chunk() {
            Some(queries) => queries,
            None => return Q,
        };
        // Scores beyond the end of the block get a weight of 0.
        let mut scores = [[f32::NEG_INFINITY; BLOCK]; Q];
        // SAFETY: the caller's.
        unsafe {
            let queries = queries.map(|query| query.query);
            match CONVERTED {
                true => self.score_converted(queries, workspace.converted.as_ptr(), &mut scores),
                false => self.score(queries, prefetches, &mut scores),
            }
        }
        for masked in self.masked {
            for (query, scores) in queries.iter().zip(&mut scores) {
                if query.token == masked.token {
                    scores[masked.index as usize - self.first] = f32::NEG_INFINITY;
                }
            }
        }
        for (index, scores) in (from..).zip(&mut scores) {
            let before = workspace.highest[index];
            let highest = largest(scores).max(before);
            if highest == f32::NEG_INFINITY {
                // All cells are masked, or no score is a number.
                if scores.iter().any(|score| score.is_nan()) {
                    workspace.weights[index] = f32::NAN;
                }
                scores.fill(0.0);
                continue;
            }
            let weights = to_weights(scores, highest);
            if highest > before {
                let factor = (before - highest).exp();
                workspace.highest[index] = highest;
                workspace.weights[index] *= factor;
                let start = index * values.length;
                let sums = &mut workspace.values[start..start + values.length];
                sums.iter_mut().for_each(|sum| *sum *= factor);
            }
            workspace.weights[index] += weights;
        }
        let start = from * values.length;
        let sums = &mut workspace.values[start..start + Q * values.length];
        let converted = workspace
            .converted
            .as_ptr()
            .wrapping_add(BLOCK * self.keys.length);
        // SAFETY: the caller's; each query's value has its sums.
        unsafe { self.sum::<Q, CONVERTED>(&scores, prefetches, converted, sums) };
        Q
    }

    /// Computes the scaled products of each query with the keys.
    ///
    /// # Safety
    /// As for [`attend`].
    unsafe fn score<const Q: usize>(
        &self,
        queries: [*const f32; Q],
        prefetches: bool,
        scores: &mut [[f32; BLOCK]; Q],
    ) {
        // Four independent products at once hide the latency of an addition.
        let at_once = 4 / Q;
        let last = self.cells.len() - 1;
        for first in (0..self.cells.len()).step_by(at_once) {
            // Products beyond the end repeat the last cell.
            let cell = |product: usize| (first + product / Q).min(last);
            if prefetches {
                for &cell in &self.cells[first..(first + at_once).min(last + 1)] {
                    prefetch(self.values.row(cell), self.values.length);
                }
            }
            let mut products = [splat(0.0); 4];
            // SAFETY: the caller's; keys are multiples of `LANES`, and so are queries.
            unsafe {
                let mut rows = [std::ptr::null(); 4];
                for (product, row) in rows.iter_mut().enumerate() {
                    *row = self.keys.row(self.cells[cell(product)]);
                }
                let mut from = 0;
                while from < self.keys.length {
                    let mut own = [splat(0.0); Q];
                    for query in 0..Q {
                        own[query] = load(queries[query].add(from));
                    }
                    for product in 0..4 {
                        let key = load_f16(rows[product / Q * Q].add(from));
                        products[product] = multiply_add(key, own[product % Q], products[product]);
                    }
                    from += LANES;
                }
            }
            for (product, sum) in horizontal_sums(products).into_iter().enumerate() {
                scores[product % Q][cell(product)] = sum * self.scale;
            }
        }
    }

    /// [`Block::score`] with converted keys: two cells at once.
    ///
    /// # Safety
    /// As for [`attend`]; `keys` has a row for each cell.
    unsafe fn score_converted<const Q: usize>(
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
                for (scores, sum) in scores.iter_mut().zip(horizontal_sums(four)) {
                    scores[cell] = sum * self.scale;
                }
            }
        }
    }

    /// Adds the weighted values to the sums.
    ///
    /// # Safety
    /// As for [`attend`]; `sums` has `Q` values.
    unsafe fn sum<const Q: usize, const CONVERTED: bool>(
        &self,
        weights: &[[f32; BLOCK]; Q],
        prefetches: bool,
        converted: *const f32,
        sums: &mut [f32],
    ) {
        if prefetches {
            let (keys, cells) = self.next;
            for &cell in &cells[..BLOCK.min(cells.len())] {
                prefetch(keys.row(cell), keys.length);
            }
        }
        let mut from = 0;
        while from < self.values.length {
            let left = (self.values.length - from) / LANES;
            // SAFETY: the caller's; this many parts of each value remain.
            let done = unsafe {
                if left >= PARTS {
                    self.sum_parts::<Q, PARTS, CONVERTED>(weights, from, converted, sums)
                } else if left >= 2 {
                    self.sum_parts::<Q, 2, CONVERTED>(weights, from, converted, sums)
                } else {
                    self.sum_parts::<Q, 1, CONVERTED>(weights, from, converted, sums)
                }
            };
            from += LANES * done;
        }
    }

    /// [`Block::sum`] for `PARTS` vectors of each value. Returns `PARTS`.
    ///
    /// # Safety
    /// As for [`Block::sum`]; values have this many parts from `from` on.
    unsafe fn sum_parts<const Q: usize, const PARTS: usize, const CONVERTED: bool>(
        &self,
        weights: &[[f32; BLOCK]; Q],
        from: usize,
        converted: *const f32,
        sums: &mut [f32],
    ) -> usize {
        let mut vectors = [[splat(0.0); PARTS]; Q];
        // SAFETY: the caller's.
        unsafe {
            let offset =
                |query: usize, part: usize| query * self.values.length + from + part * LANES;
            for (query, vectors) in vectors.iter_mut().enumerate() {
                for (part, vector) in vectors.iter_mut().enumerate() {
                    *vector = load(sums.as_ptr().add(offset(query, part)));
                }
            }
            for (cell, &row) in self.cells.iter().enumerate() {
                let row = self.values.row(row).wrapping_add(from);
                let converted = converted.wrapping_add(cell * self.values.length + from);
                let mut own = [splat(0.0); Q];
                for query in 0..Q {
                    own[query] = splat(weights[query][cell]);
                }
                for part in 0..PARTS {
                    let value = match CONVERTED {
                        true => load(converted.add(part * LANES)),
                        false => load_f16(row.add(part * LANES)),
                    };
                    for query in 0..Q {
                        vectors[query][part] =
                            multiply_add(value, own[query], vectors[query][part]);
                    }
                }
            }
            for (query, vectors) in vectors.iter().enumerate() {
                for (part, &vector) in vectors.iter().enumerate() {
                    store(sums.as_mut_ptr().add(offset(query, part)), vector);
                }
            }
        }
        PARTS
    }
}
