//! Attention against its definition in f64.

#![cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "f16c",
    target_feature = "fma"
))]

use corral_attention::{HeadRows, Query, Tiles, Workspace, attend};
use proptest::prelude::*;
use proptest::sample::{Index, select};

const MASKED: u16 = 0xfc00;

/// Converts to f16.
fn to_f16(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    if exponent <= 0 {
        return sign;
    }
    let fraction = (bits & 0x7f_ffff) >> 13;
    sign | u16::try_from(exponent << 10).expect("a small number") | fraction as u16
}

/// Converts from f16.
fn from_f16(half: u16) -> f64 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff));
    match exponent {
        0 => sign * fraction * 2_f64.powi(-24),
        0x1f if fraction == 0.0 => sign * f64::INFINITY,
        0x1f => f64::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

/// The shape of an attention, and the cells that each token attends to.
#[derive(Clone, Debug)]
struct Case {
    /// Lengths of a key and of a value.
    lengths: (usize, usize),
    groups: usize,
    /// Heads of a group.
    heads: usize,
    cells: usize,
    /// For each token, whether it attends to each cell.
    attended: Vec<Vec<bool>>,
    seed: u64,
}

struct Numbers {
    queries: Vec<f32>,
    keys: Vec<u16>,
    values: Vec<u16>,
}

impl Case {
    fn numbers(&self) -> Numbers {
        let mut state = self.seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let (key, value) = self.lengths;
        let heads = self.groups * self.heads * self.attended.len();
        Numbers {
            queries: (0..heads * key).map(|_| 3.0 * next()).collect(),
            keys: (0..self.cells * self.groups * key)
                .map(|_| to_f16(next()))
                .collect(),
            values: (0..self.cells * self.groups * value)
                .map(|_| to_f16(next()))
                .collect(),
        }
    }

    fn masks(&self) -> Vec<Vec<u16>> {
        let mask = |attended: &Vec<bool>| -> Vec<u16> {
            let halves = attended
                .iter()
                .map(|&attended| if attended { 0 } else { MASKED });
            halves.collect()
        };
        self.attended.iter().map(mask).collect()
    }

    /// Results token by token, head by head.
    fn compute(&self, numbers: &Numbers, max_tokens: usize) -> Vec<f32> {
        let masks = self.masks();
        let mut tiles = Tiles::default();
        assert!(tiles.build(self.cells, masks.iter().map(Vec::as_slice), max_tokens));
        let (key, value) = self.lengths;
        let heads = self.groups * self.heads;
        let mut results = vec![f32::NAN; self.attended.len() * heads * value];
        let rows = |halves: &[u16], length: usize| HeadRows {
            first: halves.as_ptr(),
            cell_stride: 2 * self.groups * length,
            group_stride: 2 * length,
            length,
        };
        let mut workspace = Workspace::default();
        let mut next = 0;
        for (tokens, tile) in tiles.iter() {
            assert_eq!(tokens.start, next, "tiles are in order");
            next = tokens.end;
            assert!((1..=max_tokens.max(1)).contains(&tokens.len()));
            let mut queries = Vec::new();
            for group in 0..self.groups {
                for (token, index) in (0..).zip(tokens.clone()) {
                    for head in group * self.heads..(group + 1) * self.heads {
                        let row = index * heads + head;
                        queries.push(Query {
                            query: numbers.queries[row * key..].as_ptr(),
                            result: results[row * value..].as_mut_ptr(),
                            token,
                        });
                    }
                }
            }
            let group_size = self.heads * tokens.len();
            let (keys, values) = (rows(&numbers.keys, key), rows(&numbers.values, value));
            // SAFETY: the pointers lie in vectors of these shapes.
            unsafe {
                attend(
                    &queries,
                    group_size,
                    keys,
                    values,
                    tile,
                    0.3,
                    &mut workspace,
                )
            };
        }
        assert_eq!(next, self.attended.len());
        results
    }

    /// The results by the definition.
    fn expected(&self, numbers: &Numbers) -> Vec<f64> {
        let (key, value) = self.lengths;
        let mut results = Vec::new();
        for (token, attended) in self.attended.iter().enumerate() {
            for head in 0..self.groups * self.heads {
                let group = head / self.heads;
                let query =
                    &numbers.queries[(token * self.groups * self.heads + head) * key..][..key];
                let cells = (0..self.cells).filter(|&cell| attended[cell]);
                let score = |cell: usize| {
                    let keys = &numbers.keys[(cell * self.groups + group) * key..][..key];
                    let products = query.iter().zip(keys);
                    0.3 * products
                        .map(|(query, key)| f64::from(*query) * from_f16(*key))
                        .sum::<f64>()
                };
                let weights: Vec<_> = cells.map(|cell| (cell, score(cell).exp())).collect();
                let all: f64 = weights.iter().map(|(_, weight)| weight).sum();
                results.extend((0..value).map(|column| {
                    let of = |cell: usize| {
                        from_f16(numbers.values[(cell * self.groups + group) * value + column])
                    };
                    let sum: f64 = weights
                        .iter()
                        .map(|(cell, weight)| weight * of(*cell))
                        .sum();
                    if weights.is_empty() { 0.0 } else { sum / all }
                }));
            }
        }
        results
    }

    fn check(&self, numbers: &Numbers) {
        let expected = self.expected(numbers);
        for max_tokens in [1, 3, 8] {
            let results = self.compute(numbers, max_tokens);
            for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
                let difference = (f64::from(*result) - expected).abs();
                assert!(
                    difference < 2e-5 * (1.0 + expected.abs()),
                    "{index}, {max_tokens} tokens in a tile: {result}, expected {expected}"
                );
            }
        }
    }
}

/// Tokens of several sequences: each attends to earlier cells of its own, and to a prefix that all share.
fn sequences() -> impl Strategy<Value = (usize, Vec<Vec<bool>>)> {
    let owners = prop::collection::vec(0..4_u8, 1..300);
    let tokens = prop::collection::vec((any::<Index>(), 0..4_u8), 1..24);
    (owners, tokens, 0..40_usize).prop_map(|(owners, mut tokens, shared)| {
        tokens.sort_by_key(|(_, owner)| *owner);
        let cells = owners.len();
        let of = |(until, owner): &(Index, u8)| {
            let until = until.index(cells + 1);
            let own = owners.iter().enumerate();
            own.map(|(cell, of)| cell < shared || of == owner && cell < until)
                .collect()
        };
        (cells, tokens.iter().map(of).collect())
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let lengths = select(vec![
        (16, 16),
        (32, 48),
        (64, 64),
        (80, 80),
        (96, 112),
        (128, 128),
        (256, 256),
    ]);
    (lengths, 1..4_usize, 1..8_usize, sequences(), any::<u64>()).prop_map(
        |(lengths, groups, heads, (cells, attended), seed)| Case {
            lengths,
            groups,
            heads,
            cells,
            attended,
            seed,
        },
    )
}

/// Consecutive tokens of one sequence, with cells in order.
fn one_sequence(tokens: usize, before: usize) -> Case {
    let cells = tokens + before;
    Case {
        lengths: (64, 64),
        groups: 2,
        heads: 2,
        cells,
        attended: (0..tokens)
            .map(|token| (0..cells).map(|cell| cell <= before + token).collect())
            .collect(),
        seed: 7,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn results_match_the_definition(case in cases()) {
        case.check(&case.numbers());
    }

    #[test]
    fn masked_infinities_and_nans_have_no_effect(case in cases(), poison in select(vec![0x7e00_u16, 0x7c00, 0xfc00])) {
        let mut numbers = case.numbers();
        let (key, value) = case.lengths;
        let owned = |cell: usize| case.attended.iter().any(|attended| attended[cell]);
        let Some(cell) = (0..case.cells).rev().find(|&cell| owned(cell)) else {
            return Ok(());
        };
        let expected = case.compute(&numbers, 8);
        for group in 0..case.groups {
            let row = cell * case.groups + group;
            numbers.keys[row * key..][..key].fill(poison);
            numbers.values[row * value..][..value].fill(poison);
        }
        let poisoned = case.compute(&numbers, 8);
        let length = case.groups * case.heads * value;
        let pairs = poisoned.chunks(length).zip(expected.chunks(length));
        for (attended, (poisoned, expected)) in case.attended.iter().zip(pairs) {
            if attended[cell] {
                assert!(!poisoned.iter().all(|number| number.is_finite()));
                continue;
            }
            for (result, expected) in poisoned.iter().zip(expected) {
                assert!((result - expected).abs() < 2e-5, "{result}, expected {expected}");
            }
        }
    }
}

#[test]
fn tokens_of_one_sequence_share_tiles() {
    let case = one_sequence(40, 100);
    case.check(&case.numbers());
    let masks = case.masks();
    let mut tiles = Tiles::default();
    assert!(tiles.build(case.cells, masks.iter().map(Vec::as_slice), 8));
    let tokens: Vec<_> = tiles.iter().map(|(tokens, _)| tokens.len()).collect();
    assert_eq!(tokens, [8; 5]);
    // Tokens of eight sequences do not.
    let mask = |sequence: usize| {
        (0..320)
            .map(|cell| if cell / 40 == sequence { 0 } else { MASKED })
            .collect()
    };
    let masks: Vec<Vec<u16>> = (0..8).map(mask).collect();
    assert!(tiles.build(320, masks.iter().map(Vec::as_slice), 8));
    assert!(
        tiles
            .iter()
            .all(|(tokens, tile)| tokens.len() == 1 && tile.cells.len() == 40)
    );
}

#[test]
fn token_without_cells_gets_zeros() {
    let mut case = one_sequence(3, 0);
    case.attended[1].fill(false);
    let results = case.compute(&case.numbers(), 8);
    assert!(results[4 * 64..8 * 64].iter().all(|&number| number == 0.0));
}

#[test]
fn attended_cells_without_a_score_give_nan() {
    let case = one_sequence(3, 0);
    let mut numbers = case.numbers();
    // The score is minus infinity.
    numbers.queries.fill(-1.0);
    numbers.keys[..2 * 64].fill(0x7c00);
    let results = case.compute(&numbers, 8);
    assert!(results[..4 * 64].iter().all(|number| number.is_nan()));
}

#[test]
fn masks_with_other_values_are_rejected() {
    let mut tiles = Tiles::default();
    for cells in [1, 15, 16, 17, 64, 100] {
        for wrong in 0..cells {
            let mut mask = vec![MASKED; cells];
            mask[wrong] = to_f16(-1.5);
            assert!(
                !tiles.build(cells, std::iter::once(mask.as_slice()), 8),
                "{wrong} of {cells}"
            );
            mask[wrong] = 0;
            assert!(tiles.build(cells, std::iter::once(mask.as_slice()), 8));
            let found: Vec<_> = tiles
                .iter()
                .flat_map(|(_, tile)| tile.cells)
                .copied()
                .collect();
            assert_eq!(found, [u32::try_from(wrong).expect("small")]);
        }
    }
}
