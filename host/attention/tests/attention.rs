//! Attention against its definition, computed one number after the other.

#![allow(unsafe_code)]
#![cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "f16c",
    target_feature = "fma"
))]

use corral_attention::{Query, Rows, Sums, Tiles, attend};
use proptest::prelude::*;
use proptest::sample::{Index, select};

const NOT: u16 = 0xfc00;

/// The half that is nearest to a small number.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    if exponent <= 0 {
        return sign;
    }
    let fraction = (bits & 0x7f_ffff) >> 13;
    sign | u16::try_from(exponent << 10).expect("a small number") | fraction as u16
}

/// The number that a half is.
fn number(half: u16) -> f64 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(half >> 10 & 0x1f), f64::from(half & 0x3ff));
    match exponent {
        0 => sign * fraction * 2_f64.powi(-24),
        0x1f if fraction == 0.0 => sign * f64::INFINITY,
        0x1f => f64::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    }
}

/// Tokens, and what lies in the cells.
#[derive(Clone, Debug)]
struct Case {
    /// Numbers of a key, and of a value.
    lengths: (usize, usize),
    groups: usize,
    /// Heads of a group.
    each: usize,
    cells: usize,
    /// For each token, which cells count.
    counts: Vec<Vec<bool>>,
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
        let heads = self.groups * self.each * self.counts.len();
        Numbers {
            queries: (0..heads * key).map(|_| 3.0 * next()).collect(),
            keys: (0..self.cells * self.groups * key)
                .map(|_| half(next()))
                .collect(),
            values: (0..self.cells * self.groups * value)
                .map(|_| half(next()))
                .collect(),
        }
    }

    fn masks(&self) -> Vec<Vec<u16>> {
        let mask = |counts: &Vec<bool>| -> Vec<u16> {
            let halves = counts.iter().map(|&counts| if counts { 0 } else { NOT });
            halves.collect()
        };
        self.counts.iter().map(mask).collect()
    }

    /// Token by token, head by head.
    fn found(&self, numbers: &Numbers, most: usize) -> Vec<f32> {
        let masks = self.masks();
        let mut tiles = Tiles::default();
        assert!(tiles.find(self.cells, masks.iter().map(Vec::as_slice), most));
        let (key, value) = self.lengths;
        let heads = self.groups * self.each;
        let mut results = vec![f32::NAN; self.counts.len() * heads * value];
        let rows = |halves: &[u16], length: usize| Rows {
            first: halves.as_ptr(),
            stride: 2 * self.groups * length,
            beside: 2 * length,
            length,
        };
        let mut sums = Sums::default();
        let mut next = 0;
        for (tokens, tile) in tiles.iter() {
            assert_eq!(tokens.start, next, "one after the other");
            next = tokens.end;
            assert!((1..=most.max(1)).contains(&tokens.len()));
            let mut queries = Vec::new();
            for group in 0..self.groups {
                for (token, at) in (0..).zip(tokens.clone()) {
                    for head in group * self.each..(group + 1) * self.each {
                        let place = at * heads + head;
                        queries.push(Query {
                            query: numbers.queries[place * key..].as_ptr(),
                            result: results[place * value..].as_mut_ptr(),
                            token,
                        });
                    }
                }
            }
            let each = self.each * tokens.len();
            let (keys, values) = (rows(&numbers.keys, key), rows(&numbers.values, value));
            // SAFETY: all lies in these vectors, which have these shapes.
            unsafe { attend(&queries, each, keys, values, tile, 0.3, &mut sums) };
        }
        assert_eq!(next, self.counts.len());
        results
    }

    /// The same by the definition.
    fn expected(&self, numbers: &Numbers) -> Vec<f64> {
        let (key, value) = self.lengths;
        let mut results = Vec::new();
        for (token, counts) in self.counts.iter().enumerate() {
            for head in 0..self.groups * self.each {
                let group = head / self.each;
                let query =
                    &numbers.queries[(token * self.groups * self.each + head) * key..][..key];
                let cells = (0..self.cells).filter(|&cell| counts[cell]);
                let score = |cell: usize| {
                    let keys = &numbers.keys[(cell * self.groups + group) * key..][..key];
                    let products = query.iter().zip(keys);
                    0.3 * products
                        .map(|(query, key)| f64::from(*query) * number(*key))
                        .sum::<f64>()
                };
                let weights: Vec<_> = cells.map(|cell| (cell, score(cell).exp())).collect();
                let all: f64 = weights.iter().map(|(_, weight)| weight).sum();
                results.extend((0..value).map(|place| {
                    let of = |cell: usize| {
                        number(numbers.values[(cell * self.groups + group) * value + place])
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
        for most in [1, 3, 8] {
            let found = self.found(numbers, most);
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let near = (f64::from(*found) - expected).abs() < 2e-5 * (1.0 + expected.abs());
                assert!(
                    near,
                    "{place}, {most} tokens in a tile: {found} and not {expected}"
                );
            }
        }
    }
}

/// Tokens of several sequences: each has the cells of its own that came before, some have a beginning that they share.
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
        |(lengths, groups, each, (cells, counts), seed)| Case {
            lengths,
            groups,
            each,
            cells,
            counts,
            seed,
        },
    )
}

/// One token after the other of one text, whose cells lie in their order.
fn text(tokens: usize, before: usize) -> Case {
    let cells = tokens + before;
    Case {
        lengths: (64, 64),
        groups: 2,
        each: 2,
        cells,
        counts: (0..tokens)
            .map(|token| (0..cells).map(|cell| cell <= before + token).collect())
            .collect(),
        seed: 7,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_is_what_its_definition_says(case in cases()) {
        case.check(&case.numbers());
    }

    /// What sequences have in their cells never touches others, not even as what is infinite or no number at all.
    #[test]
    fn what_does_not_count_touches_nothing(case in cases(), poison in select(vec![0x7e00_u16, 0x7c00, 0xfc00])) {
        let mut numbers = case.numbers();
        let (key, value) = case.lengths;
        let owned = |cell: usize| case.counts.iter().any(|counts| counts[cell]);
        let Some(cell) = (0..case.cells).rev().find(|&cell| owned(cell)) else {
            return Ok(());
        };
        let expected = case.found(&numbers, 8);
        for group in 0..case.groups {
            let place = cell * case.groups + group;
            numbers.keys[place * key..][..key].fill(poison);
            numbers.values[place * value..][..value].fill(poison);
        }
        let found = case.found(&numbers, 8);
        let each = case.groups * case.each * value;
        for (token, counts) in case.counts.iter().enumerate() {
            let of = |results: &[f32]| results[token * each..(token + 1) * each].to_vec();
            if counts[cell] {
                assert!(!of(&found).iter().all(|number| number.is_finite()), "token {token} is not harmed by its own");
                continue;
            }
            for (found, expected) in of(&found).iter().zip(of(&expected)) {
                assert!((found - expected).abs() < 2e-5, "token {token}: {found} and not {expected}");
            }
        }
    }
}

#[test]
fn tokens_of_a_text_are_computed_together() {
    let case = text(40, 100);
    case.check(&case.numbers());
    let masks = case.masks();
    let mut tiles = Tiles::default();
    assert!(tiles.find(case.cells, masks.iter().map(Vec::as_slice), 8));
    let tokens: Vec<_> = tiles.iter().map(|(tokens, _)| tokens.len()).collect();
    assert_eq!(tokens, [8; 5]);
    // Those of eight texts are not.
    let apart = |text: usize| {
        (0..320)
            .map(|cell| if cell / 40 == text { 0 } else { NOT })
            .collect()
    };
    let masks: Vec<Vec<u16>> = (0..8).map(apart).collect();
    assert!(tiles.find(320, masks.iter().map(Vec::as_slice), 8));
    assert!(
        tiles
            .iter()
            .all(|(tokens, tile)| tokens.len() == 1 && tile.cells.len() == 40)
    );
}

#[test]
fn who_has_no_cells_gets_zeroes() {
    let mut case = text(3, 0);
    case.counts[1].fill(false);
    let found = case.found(&case.numbers(), 8);
    assert!(found[4 * 64..8 * 64].iter().all(|&number| number == 0.0));
}

#[test]
fn cells_that_count_and_have_no_score_give_no_number() {
    let case = text(3, 0);
    let mut numbers = case.numbers();
    // The product with it is minus infinity.
    numbers.queries.fill(-1.0);
    numbers.keys[..2 * 64].fill(0x7c00);
    let found = case.found(&numbers, 8);
    assert!(found[..4 * 64].iter().all(|number| number.is_nan()));
}

#[test]
fn masks_that_say_more_than_yes_and_no_are_not_for_here() {
    let mut tiles = Tiles::default();
    for cells in [1, 15, 16, 17, 64, 100] {
        for wrong in 0..cells {
            let mut mask = vec![NOT; cells];
            mask[wrong] = half(-1.5);
            assert!(
                !tiles.find(cells, std::iter::once(mask.as_slice()), 8),
                "{wrong} of {cells}"
            );
            mask[wrong] = 0;
            assert!(tiles.find(cells, std::iter::once(mask.as_slice()), 8));
            let found: Vec<_> = tiles
                .iter()
                .flat_map(|(_, tile)| tile.cells)
                .copied()
                .collect();
            assert_eq!(found, [u32::try_from(wrong).expect("small")]);
        }
    }
}
