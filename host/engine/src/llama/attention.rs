//! Attention on the processor, in place of ggml's where that wastes time.
//!
//! All sequences share one cache, and each token of a step comes with a mask that says which cells are its own.
//! ggml's attention looks at the mask of every cell once for each head of each layer, so what others keep in the cache
//! makes every token dearer; and below 64 tokens it sums the values in halves, one head and one cell after the other. Here the mask is
//! looked at once for each layer and thread, sixteen cells at a time; only cells that count are touched, once for all
//! heads that share them; and sums are floats.
//!
//! What is not plain stays ggml's: other types than halves, biases by distance, soft caps, sinks, heads that are longer
//! than 256 or no multiple of 16, and where one token's heads that share keys would be more than two threads' part. Which
//! it is follows from the operation and its masks alone, so all threads decide alike.

use super::device;
use crate::LoadError;
use corral_attention::{MOST, Query, Rows, Sums, Tile, Tiles, UNIT, attend};
use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::env::VarError;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a token costs beside its cells, as a number of them.
const FIXED: usize = 4;

/// As ggml-cpu-impl.h has it: which of how many threads this is, and what ggml gives them.
#[repr(C)]
struct Params {
    thread: c_int,
    threads: c_int,
    work_size: usize,
    work: *mut c_void,
    pool: *mut c_void,
    reference: bool,
}

type Extra = unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;
type Compute = unsafe extern "C" fn(*const Params, *mut sys::ggml_tensor) -> bool;

unsafe extern "C" {
    fn corral_attention_install(
        processor: sys::ggml_backend_dev_t,
        extra: Extra,
        compute: Compute,
    ) -> bool;
}

/// Whose attention it is: `own`, or `llama.cpp`.
const VARIABLE: &str = "CORRAL_ATTENTION";

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// From now on attention is computed here, unless [`VARIABLE`] says otherwise; once per process, before anything is
/// computed. The error says what the variable may be.
pub(super) fn install() -> Result<(), LoadError> {
    match std::env::var(VARIABLE).as_deref() {
        Err(VarError::NotPresent) | Ok("own") => {}
        Ok("llama.cpp") => return Ok(()),
        other => {
            let other = other.unwrap_or("no text");
            return Err(LoadError::Config(format!(
                "{VARIABLE} is {other}, and may be `own`, for Corral's attention on the processor, or `llama.cpp`"
            )));
        }
    }
    let Some(processor) = device::pointer("CPU") else {
        return Ok(());
    };
    let extra = device::processor_function(c"ggml_backend_dev_get_extra_bufts");
    // SAFETY: what stands under this name is a function of this type (ggml-backend.h), or null.
    let extra = unsafe { std::mem::transmute::<*mut c_void, Option<Extra>>(extra) };
    let installed = extra.is_some_and(|extra| {
        // SAFETY: the device lives as long as the process, and both functions have the types that are called.
        unsafe { corral_attention_install(processor, extra, compute) }
    });
    if !installed {
        tracing::warn!("attention is left to llama.cpp: its interface is another one");
    }
    INSTALLED.store(installed, Ordering::Relaxed);
    Ok(())
}

/// Whether it is.
pub(super) fn is_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Computes an operation if it is one for here. False if not: then nothing was done.
///
/// # Safety
/// ggml's: the operation's tensors are of the shapes that its kind asks for, their data is there, and the threads of
/// `params` all come here.
unsafe extern "C" fn compute(params: *const Params, operation: *mut sys::ggml_tensor) -> bool {
    // SAFETY: the caller's.
    let (params, operation) = unsafe { (&*params, &*operation) };
    if operation.op != sys::GGML_OP_FLASH_ATTN_EXT || params.reference {
        return false;
    }
    // SAFETY: the caller's.
    let Some(attention) = (unsafe { Attention::of(operation, params.threads) }) else {
        return false;
    };
    // SAFETY: the caller's.
    ROOM.with_borrow_mut(|room| unsafe { attention.compute(params, room) })
}

/// What threads keep for its room.
#[derive(Default)]
struct Room {
    tiles: Tiles,
    queries: Vec<Query>,
    sums: Sums,
}

thread_local! {
    static ROOM: RefCell<Room> = RefCell::default();
}

/// An operation that is for here.
struct Attention<'a> {
    query: &'a sys::ggml_tensor,
    keys: &'a sys::ggml_tensor,
    values: &'a sys::ggml_tensor,
    mask: &'a sys::ggml_tensor,
    result: &'a sys::ggml_tensor,
    scale: f32,
}

fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

impl<'a> Attention<'a> {
    /// Nothing if it is ggml's.
    ///
    /// # Safety
    /// As for [`compute`].
    unsafe fn of(operation: &'a sys::ggml_tensor, threads: c_int) -> Option<Self> {
        // SAFETY: sources are null or alive.
        let source = |number: usize| unsafe { operation.src[number].as_ref() };
        let (query, keys, values, mask) = (source(0)?, source(1)?, source(2)?, source(3)?);
        let [scale, bias, cap] = [0, 1, 2].map(|number| {
            let bits: i32 = operation.op_params[number];
            f32::from_bits(bits.cast_unsigned())
        });
        let plain = bias == 0.0 && cap == 0.0 && source(4).is_none();
        let types = query.type_ == sys::GGML_TYPE_F32
            && operation.type_ == sys::GGML_TYPE_F32
            && [keys, values, mask]
                .iter()
                .all(|tensor| tensor.type_ == sys::GGML_TYPE_F16);
        let [length, tokens, heads, streams] = query.ne;
        let fits = |tensor: &sys::ggml_tensor| {
            let length = count(tensor.ne[0]);
            length > 0 && length <= MOST && length.is_multiple_of(UNIT)
        };
        let shapes = streams == 1
            && keys.ne[3] == 1
            && mask.ne[2] == 1
            && mask.ne[3] == 1
            && mask.ne[0] == keys.ne[1]
            && mask.ne[1] >= tokens
            && values.ne[1] == keys.ne[1]
            && values.ne[2] == keys.ne[2]
            && keys.ne[0] == length
            && keys.ne[2] > 0
            && heads > 0
            && heads % keys.ne[2] == 0
            && [keys, values, mask].iter().all(|tensor| tensor.nb[0] == 2)
            && query.nb[0] == 4
            && fits(keys)
            && fits(values);
        let enough = 2 * tokens * keys.ne[2] >= i64::from(threads);
        (plain && types && shapes && enough).then_some(Self {
            query,
            keys,
            values,
            mask,
            result: operation,
            scale,
        })
    }

    /// This thread's part. False, for all threads alike, if a mask is none of that kind, or if work can't be shared out.
    ///
    /// # Safety
    /// As for [`compute`].
    unsafe fn compute(&self, params: &Params, room: &mut Room) -> bool {
        let (tokens, groups) = (count(self.query.ne[1]), count(self.keys.ne[2]));
        let (thread, threads) = (params.thread as usize, params.threads as usize);
        let cells = count(self.keys.ne[1]);
        let masks = || {
            (0..tokens).map(|token| {
                // SAFETY: the mask has a row for each token, as long as there are cells.
                unsafe {
                    let row = self.mask.data.byte_add(token * self.mask.nb[1]);
                    std::slice::from_raw_parts(row.cast::<u16>(), cells)
                }
            })
        };
        let Room {
            tiles,
            queries,
            sums,
        } = room;
        let cost = |tokens: &Range<usize>, tile: &Tile| tokens.len() * (tile.cells.len() + FIXED);
        // Large tiles are quicker, but one group of a tile is one thread's.
        let mut most = (tokens * groups / (2 * threads)).max(1);
        let all = loop {
            if !tiles.find(cells, masks(), most) {
                return false;
            }
            let costs = || tiles.iter().map(|(tokens, tile)| cost(&tokens, &tile));
            let all = groups * costs().sum::<usize>();
            match costs().all(|one| one * threads <= 2 * all) {
                true => break all,
                false if most > 1 => most = most.min(tokens) / 2,
                // ggml shares out cells or heads.
                false => return false,
            }
        };
        let own = all * thread / threads..all * (thread + 1) / threads;
        let mut before = 0;
        for (tokens, tile) in tiles.iter() {
            let each = cost(&tokens, &tile);
            let from = |cost: usize| cost.saturating_sub(before).div_ceil(each).min(groups);
            let groups_here = from(own.start)..from(own.end);
            before += groups * each;
            if !groups_here.is_empty() {
                // SAFETY: the caller's; there are such tokens and groups, and the cells were found in the mask.
                unsafe { self.attend(&tokens, groups_here, tile, queries, sums) };
            }
        }
        true
    }

    /// Tokens of a tile, and the heads of some groups.
    ///
    /// # Safety
    /// As for [`compute`]; there are such tokens, groups and cells.
    unsafe fn attend(
        &self,
        tokens: &Range<usize>,
        groups: Range<usize>,
        tile: Tile<'_>,
        queries: &mut Vec<Query>,
        sums: &mut Sums,
    ) {
        let each = count(self.query.ne[2]) / count(self.keys.ne[2]);
        let rows = |tensor: &sys::ggml_tensor| Rows {
            // SAFETY: there is such a group.
            first: unsafe { tensor.data.byte_add(groups.start * tensor.nb[2]) }.cast(),
            stride: tensor.nb[1],
            beside: tensor.nb[2],
            length: count(tensor.ne[0]),
        };
        let (keys, values) = (rows(self.keys), rows(self.values));
        queries.clear();
        for group in groups {
            for (place, token) in (0..).zip(tokens.clone()) {
                queries.extend((group * each..(group + 1) * each).map(|head| {
                    // SAFETY: there are such a token and head; results are in ggml's order for this operation:
                    // values, heads, tokens.
                    let (query, result) = unsafe {
                        let query = token * self.query.nb[1] + head * self.query.nb[2];
                        let result = head * self.result.nb[1] + token * self.result.nb[2];
                        (
                            self.query.data.byte_add(query),
                            self.result.data.byte_add(result),
                        )
                    };
                    Query {
                        query: query.cast_const().cast(),
                        result: result.cast(),
                        token: place,
                    }
                }));
            }
        }
        let each = each * tokens.len();
        // SAFETY: all were taken from tensors of these shapes.
        unsafe { attend(queries, each, keys, values, tile, self.scale, sums) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    const LENGTH: usize = 32;

    /// A tensor of these sizes, one row behind the other.
    fn tensor<T>(kind: sys::ggml_type, sizes: [usize; 4], data: &mut [T]) -> sys::ggml_tensor {
        // SAFETY: null pointers and zeroes are a tensor.
        let mut tensor: sys::ggml_tensor = unsafe { MaybeUninit::zeroed().assume_init() };
        tensor.type_ = kind;
        tensor.nb[0] = size_of::<T>();
        for (place, size) in sizes.into_iter().enumerate() {
            tensor.ne[place] = i64::try_from(size).expect("small");
            if place > 0 {
                tensor.nb[place] = tensor.nb[place - 1] * sizes[place - 1];
            }
        }
        assert_eq!(tensor.nb[3] * sizes[3], size_of_val(data));
        tensor.data = data.as_mut_ptr().cast();
        tensor
    }

    /// Numbers that differ from place to place.
    fn different(count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(|place| place.wrapping_mul(0x9e37_79b9) >> 7 & 0xff)
    }

    /// What each of so many threads computes, where the tokens have so many cells, one's behind the other's: heads of
    /// tokens by thread, and all results. Nothing if it is not for here.
    fn computed(
        cells: &[usize],
        groups: usize,
        each: usize,
        threads: usize,
    ) -> Option<(Vec<usize>, Vec<f32>)> {
        let (tokens, heads, all) = (cells.len(), groups * each, cells.iter().sum());
        let query = different(tokens * heads * LENGTH).map(|number| number as f32 / 256.0);
        let mut query: Vec<_> = query.collect();
        // Halves from 1 to 1.25.
        let half = |number: usize| 0x3c00 + u16::try_from(number).expect("small");
        let mut keys: Vec<_> = different(all * groups * LENGTH).map(half).collect();
        let mut mask = vec![0xfc00_u16; tokens * all];
        let mut first = 0;
        for (token, &number) in cells.iter().enumerate() {
            mask[token * all + first..][..number].fill(0);
            first += number;
        }
        let mut result = vec![f32::NAN; tokens * heads * LENGTH];
        let place = result.as_mut_ptr();
        let mut sources = [
            tensor(sys::GGML_TYPE_F32, [LENGTH, tokens, heads, 1], &mut query),
            tensor(sys::GGML_TYPE_F16, [LENGTH, all, groups, 1], &mut keys),
            tensor(sys::GGML_TYPE_F16, [all, tokens, 1, 1], &mut mask),
        ];
        let sizes = [LENGTH, heads, tokens, 1];
        let mut operation = tensor(sys::GGML_TYPE_F32, sizes, &mut result);
        operation.op = sys::GGML_OP_FLASH_ATTN_EXT;
        operation.op_params[0] = 1.0_f32.to_bits().cast_signed();
        let [query, keys, mask] = sources.each_mut().map(std::ptr::from_mut);
        operation.src[..4].copy_from_slice(&[query, keys, keys, mask]);
        let mut found = vec![f32::NAN; tokens * heads * LENGTH];
        let shares = (0..threads).map(|thread| {
            let params = Params {
                thread: c_int::try_from(thread).expect("few"),
                threads: c_int::try_from(threads).expect("few"),
                work_size: 0,
                work: std::ptr::null_mut(),
                pool: std::ptr::null_mut(),
                reference: false,
            };
            // SAFETY: the tensors are of the shapes that the operation asks for, and alive.
            if !unsafe { compute(&raw const params, &raw mut operation) } {
                return None;
            }
            // SAFETY: alive, and no thread is at work.
            let results = unsafe { std::slice::from_raw_parts_mut(place, found.len()) };
            let mut done = 0;
            for (result, found) in results.iter_mut().zip(&mut found) {
                let result = std::mem::replace(result, f32::NAN);
                if !result.is_nan() {
                    assert!(found.is_nan(), "nothing is computed twice");
                    *found = result;
                    done += 1;
                }
            }
            Some(done / LENGTH)
        });
        let shares: Vec<_> = shares.collect();
        if shares.contains(&None) {
            assert!(shares.iter().all(Option::is_none), "threads decide alike");
            return None;
        }
        assert!(
            found.iter().all(|number| !number.is_nan()),
            "all is computed"
        );
        Some((shares.into_iter().flatten().collect(), found))
    }

    fn shares(cells: &[usize], groups: usize, each: usize, threads: usize) -> Option<Vec<usize>> {
        computed(cells, groups, each, threads).map(|(shares, _)| shares)
    }

    #[test]
    fn threads_share_all_of_it_and_do_nothing_twice() {
        let mut here = 0;
        for threads in 1..=9 {
            for groups in [1, 2, 8] {
                for each in [1, 3, 4] {
                    for cells in [
                        &[40][..],
                        &[40; 8],
                        &[1, 200, 3, 50, 7],
                        &[100; 33],
                        &[3; 64],
                    ] {
                        let (_, alone) = computed(cells, groups, each, 1).expect("for one thread");
                        let Some((_, found)) = computed(cells, groups, each, threads) else {
                            continue;
                        };
                        here += 1;
                        let pairs = found.iter().zip(&alone);
                        let near = pairs.map(|(one, other)| (one - other).abs() < 1e-5);
                        assert!(near.into_iter().all(|near| near), "{threads} threads");
                    }
                }
            }
        }
        assert!(here > 250, "{here}");
    }

    #[test]
    fn as_much_is_for_each_thread() {
        assert_eq!(shares(&[100; 8], 8, 2, 2), Some(vec![64, 64]));
        assert_eq!(shares(&[100], 8, 2, 2), Some(vec![8, 8]));
        assert_eq!(shares(&[100], 8, 2, 8), Some(vec![2; 8]));
        // What one thread would have for itself while others wait is ggml's.
        assert_eq!(shares(&[1000, 10, 10, 10], 1, 8, 4), None);
        assert_eq!(shares(&[1000], 1, 8, 4), None);
        // Tiles are smaller where one would be too much: two threads have four tokens of eight each.
        assert_eq!(shares(&[10; 8], 1, 1, 2), Some(vec![4, 4]));
    }
}
