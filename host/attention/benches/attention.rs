//! Attention of one layer in the shapes of a small model: 16 heads of 128 in 8 groups, on one thread. The bench cycles
//! through the keys and values of 28 layers, so that they come from memory, as in a step.
//!
//! `make microbench BENCHES=attention`

fn main() {
    divan::main();
}

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "avx2",
    target_feature = "f16c",
    target_feature = "fma"
))]
mod x86_64 {
    use corral_attention::{HeadRows, Query, Tiles, Workspace, attend};
    use divan::Bencher;
    use divan::counter::ItemsCount;

    const LENGTH: usize = 128;
    const GROUPS: usize = 8;
    /// Heads of a group.
    const HEADS: usize = 2;
    const LAYERS: usize = 28;
    const MASKED: u16 = 0xfc00;
    /// Cells of a sequence that generates.
    const CELLS: usize = 82;

    fn bench(bencher: Bencher, masks: &[Vec<u16>]) {
        let cells = masks[0].len();
        let row = GROUPS * LENGTH;
        let halves = vec![0x2c00_u16; LAYERS * cells * row];
        let numbers = vec![0.1_f32; masks.len() * GROUPS * HEADS * LENGTH];
        let mut results = numbers.clone();
        let (mut tiles, mut workspace, mut layer) = (Tiles::default(), Workspace::default(), 0);
        let mut queries = Vec::new();
        bencher
            .counter(ItemsCount::new(masks.len()))
            .bench_local(|| {
                layer = (layer + 1) % LAYERS;
                let rows = HeadRows {
                    first: halves[layer * cells * row..].as_ptr(),
                    cell_stride: 2 * row,
                    group_stride: 2 * LENGTH,
                    length: LENGTH,
                };
                assert!(tiles.build(cells, masks.iter().map(Vec::as_slice), 8));
                for (tokens, tile) in tiles.iter() {
                    queries.clear();
                    for group in 0..GROUPS {
                        for (token, index) in (0..).zip(tokens.clone()) {
                            queries.extend((0..HEADS).map(|head| {
                                let offset = ((index * GROUPS + group) * HEADS + head) * LENGTH;
                                Query {
                                    query: numbers[offset..].as_ptr(),
                                    result: results[offset..].as_mut_ptr(),
                                    token,
                                }
                            }));
                        }
                    }
                    let group_size = HEADS * tokens.len();
                    // SAFETY: the pointers lie in vectors of these shapes.
                    unsafe {
                        attend(&queries, group_size, rows, rows, tile, 0.1, &mut workspace);
                    }
                }
            });
    }

    fn masks(tokens: usize, cells: usize, attends: impl Fn(usize, usize) -> bool) -> Vec<Vec<u16>> {
        let mask = |token| {
            (0..cells)
                .map(|cell| if attends(token, cell) { 0 } else { MASKED })
                .collect()
        };
        (0..tokens).map(mask).collect()
    }

    /// One token of each sequence, whose cells alternate.
    #[divan::bench(args = [1, 8, 32])]
    fn generating_sequences(bencher: Bencher, sequences: usize) {
        let masks = masks(sequences, CELLS * sequences, |token, cell| {
            cell % sequences == token
        });
        bench(bencher, &masks);
    }

    /// One token of each of eight sequences, beside cells of idle sequences.
    #[divan::bench(args = [0, 4096, 16384])]
    fn eight_sequences_beside_idle_cells(bencher: Bencher, idle: usize) {
        let own = CELLS * 8;
        let masks = masks(8, own + idle, |token, cell| cell < own && cell % 8 == token);
        bench(bencher, &masks);
    }

    /// The last tokens of a prompt of 512.
    #[divan::bench(args = [8, 64, 512])]
    fn prompt(bencher: Bencher, tokens: usize) {
        let masks = masks(tokens, 512, |token, cell| cell <= 512 - tokens + token);
        bench(bencher, &masks);
    }

    /// The last 64 tokens of a long prompt.
    #[divan::bench(args = [4096, 32_768, 70_000])]
    fn end_of_long_prompt(bencher: Bencher, cells: usize) {
        let masks = masks(64, cells, |token, cell| cell <= cells - 64 + token);
        bench(bencher, &masks);
    }
}
