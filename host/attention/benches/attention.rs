//! Attention of one layer with the shapes of a small model: 16 heads of 128 in 8 groups, one thread. Keys and values of
//! 28 layers take turns, as in a step, so they come from far away.
//!
//! `make microbench BENCHES=attention`

#![allow(unsafe_code)]

fn main() {
    divan::main();
}

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "f16c",
    target_feature = "fma"
))]
mod here {
    use corral_attention::{Query, Rows, Sums, Tiles, attend};
    use divan::Bencher;
    use divan::counter::ItemsCount;

    const LENGTH: usize = 128;
    const GROUPS: usize = 8;
    const EACH: usize = 2;
    const LAYERS: usize = 28;

    /// Computes a layer, token by token by what their masks say.
    fn bench(bencher: Bencher, masks: &[Vec<u16>]) {
        let cells = masks[0].len();
        let row = GROUPS * LENGTH;
        let halves = vec![0x2c00_u16; LAYERS * cells * row];
        let numbers = vec![0.1_f32; masks.len() * GROUPS * EACH * LENGTH];
        let mut results = numbers.clone();
        let (mut tiles, mut sums, mut layer) = (Tiles::default(), Sums::default(), 0);
        let mut queries = Vec::new();
        bencher
            .counter(ItemsCount::new(masks.len()))
            .bench_local(|| {
                layer = (layer + 1) % LAYERS;
                let rows = Rows {
                    first: halves[layer * cells * row..].as_ptr(),
                    stride: 2 * row,
                    beside: 2 * LENGTH,
                    length: LENGTH,
                };
                assert!(tiles.find(cells, masks.iter().map(Vec::as_slice), 8));
                for (tokens, tile) in tiles.iter() {
                    queries.clear();
                    for group in 0..GROUPS {
                        for (token, at) in (0..).zip(tokens.clone()) {
                            queries.extend((0..EACH).map(|head| {
                                let place = ((at * GROUPS + group) * EACH + head) * LENGTH;
                                Query {
                                    query: numbers[place..].as_ptr(),
                                    result: results[place..].as_mut_ptr(),
                                    token,
                                }
                            }));
                        }
                    }
                    // SAFETY: all lies in these vectors, which have these shapes.
                    unsafe {
                        attend(
                            &queries,
                            EACH * tokens.len(),
                            rows,
                            rows,
                            tile,
                            0.1,
                            &mut sums,
                        )
                    };
                }
            });
    }

    /// Whose cells lie one by one between those of the others, each of them 82.
    #[divan::bench(args = [1, 8, 32])]
    fn of_who_generates(bencher: Bencher, sequences: usize) {
        let of = |own: usize| {
            let cells = 0..82 * sequences;
            cells
                .map(|cell| if cell % sequences == own { 0 } else { 0xfc00 })
                .collect()
        };
        bench(bencher, &(0..sequences).map(of).collect::<Vec<_>>());
    }

    /// The same, while so many cells belong to nobody who runs.
    #[divan::bench(args = [0, 4096, 16384])]
    fn of_eight_among_others(bencher: Bencher, others: usize) {
        let of = |own: usize| {
            let cells = 0..82 * 8 + others;
            cells
                .map(|cell| {
                    if cell < 82 * 8 && cell % 8 == own {
                        0
                    } else {
                        0xfc00
                    }
                })
                .collect()
        };
        bench(bencher, &(0..8).map(of).collect::<Vec<_>>());
    }

    /// The last tokens of a text of 512.
    #[divan::bench(args = [8, 64, 512])]
    fn of_a_prompt(bencher: Bencher, tokens: usize) {
        let of = |token: usize| {
            let last = 512 - tokens + token;
            (0..512)
                .map(|cell| if cell <= last { 0 } else { 0xfc00 })
                .collect()
        };
        bench(bencher, &(0..tokens).map(of).collect::<Vec<_>>());
    }
}
