//! Replaces ggml's flash attention on the CPU by `corral-attention`.
//!
//! All sequences share one cache, and each token of a step has a mask of its cells. ggml's attention reads the mask of
//! every cell once for each head of each layer, so cells of other sequences slow down every token; and below 64 tokens
//! it sums the values in f16, one head and one cell after the other. Here each thread reads the mask once per layer,
//! sixteen cells at a time, visits only the cells of the tokens, once for all heads that share them, and sums in f32.
//!
//! ggml keeps the other cases: types other than f16, ALiBi, soft caps, sinks, heads that are longer than 256 or not a
//! multiple of 16, and steps in which the smallest piece of work (one token, and the heads that share its keys) is more than two
//! threads' share. The choice depends on the operation, its masks and the number of threads to divide for, so all threads
//! make the same.

use crate::thread_pool::division_threads;
use crate::{LlamaError, ggml};
use corral_attention::{HEAD_MULTIPLE, HeadRows, MAX_HEAD, Query, Tile, Tiles, Workspace, attend};
use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::env::VarError;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// The cost of a token beside its cells, in cells.
const TOKEN_COST: usize = 4;

/// `ggml_compute_params` of ggml-cpu-impl.h.
#[repr(C)]
struct ComputeParams {
    thread: c_int,
    threads: c_int,
    work_size: usize,
    work: *mut c_void,
    pool: *mut c_void,
    reference: bool,
}

type GetExtraTypes =
    unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;
type Compute = unsafe extern "C" fn(*const ComputeParams, *mut sys::ggml_tensor) -> bool;

unsafe extern "C" {
    fn corral_attention_install(
        cpu: sys::ggml_backend_dev_t,
        get_extra_types: GetExtraTypes,
        compute: Compute,
    ) -> bool;
}

/// The environment variable that chooses the attention: `own` (the default) or `llama.cpp`.
const VARIABLE: &str = "CORRAL_ATTENTION";

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs the attention, unless [`VARIABLE`] says otherwise. Called once per process, before anything is computed.
pub(crate) fn install() -> Result<(), LlamaError> {
    match std::env::var(VARIABLE).as_deref() {
        Err(VarError::NotPresent) | Ok("own") => {}
        Ok("llama.cpp") => return Ok(()),
        other => {
            let other = other.unwrap_or("not UTF-8");
            return Err(LlamaError::Setup(format!(
                "{VARIABLE} is {other}; set it to `own`, for Corral's attention on the CPU, or `llama.cpp`"
            )));
        }
    }
    let Some(cpu) = ggml::device("CPU") else {
        return Ok(());
    };
    let get_extra_types = ggml::cpu_function(c"ggml_backend_dev_get_extra_bufts");
    // SAFETY: this name is a function of this type (ggml-backend.h), or null.
    let get_extra_types =
        unsafe { std::mem::transmute::<*mut c_void, Option<GetExtraTypes>>(get_extra_types) };
    let installed = get_extra_types.is_some_and(|get_extra_types| {
        // SAFETY: the device lives as long as the process, and both functions have the expected types.
        unsafe { corral_attention_install(cpu, get_extra_types, compute) }
    });
    if !installed {
        tracing::warn!("llama.cpp computes attention: its internal interface has changed");
    }
    INSTALLED.store(installed, Ordering::Relaxed);
    Ok(())
}

/// Whether the attention is installed.
pub(crate) fn is_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Whether the attention is installed and takes steps of one token of a model with `key_heads`, as far as the number of threads
/// decides. ggml would divide the cells of such a step by the threads that compute.
pub(crate) fn takes_single_tokens(key_heads: i32, threads: u32) -> bool {
    is_installed() && 2 * i64::from(key_heads) >= i64::from(threads)
}

/// Computes this thread's part of an operation. Returns false, and does nothing, if the operation is ggml's.
///
/// # Safety
/// As ggml guarantees: the operation's tensors have the shapes of its kind, their data is there, and all threads of
/// `params` make this call.
unsafe extern "C" fn compute(
    params: *const ComputeParams,
    operation: *mut sys::ggml_tensor,
) -> bool {
    // SAFETY: the caller's.
    let (params, operation) = unsafe { (&*params, &*operation) };
    if operation.op != sys::GGML_OP_FLASH_ATTN_EXT || params.reference {
        return false;
    }
    let share = ThreadShare {
        thread: params.thread as usize,
        threads: params.threads as usize,
        division: division_threads(params.pool, params.threads as usize),
    };
    // SAFETY: the caller's.
    let Some(attention) = (unsafe { AttentionOp::new(operation, share.division) }) else {
        return false;
    };
    // SAFETY: the caller's.
    BUFFERS.with_borrow_mut(|buffers| unsafe { attention.compute(share, buffers) })
}

/// Which part of an operation a thread computes.
#[derive(Clone, Copy)]
struct ThreadShare {
    thread: usize,
    /// Threads that compute.
    threads: usize,
    /// Threads that the work is divided for; not fewer than compute. The order of sums depends on it.
    division: usize,
}

/// Buffers that a thread reuses.
#[derive(Default)]
struct ThreadBuffers {
    tiles: Tiles,
    queries: Vec<Query>,
    workspace: Workspace,
}

thread_local! {
    static BUFFERS: RefCell<ThreadBuffers> = RefCell::default();
}

/// An operation that this module computes.
struct AttentionOp<'a> {
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

impl<'a> AttentionOp<'a> {
    /// `None` if the operation is ggml's.
    ///
    /// # Safety
    /// As for [`compute`].
    unsafe fn new(operation: &'a sys::ggml_tensor, division: usize) -> Option<Self> {
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
            length > 0 && length <= MAX_HEAD && length.is_multiple_of(HEAD_MULTIPLE)
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
        let enough = 2 * count(tokens) * count(keys.ne[2]) >= division;
        (plain && types && shapes && enough).then_some(Self {
            query,
            keys,
            values,
            mask,
            result: operation,
            scale,
        })
    }

    /// Computes this thread's part. Returns false, in all threads alike, if a mask is not binary or if the work can't be
    /// divided.
    ///
    /// # Safety
    /// As for [`compute`].
    unsafe fn compute(&self, share: ThreadShare, buffers: &mut ThreadBuffers) -> bool {
        // A group: the query heads that share one key head.
        let (tokens, groups) = (count(self.query.ne[1]), count(self.keys.ne[2]));
        let ThreadShare {
            thread,
            threads,
            division,
        } = share;
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
        let ThreadBuffers {
            tiles,
            queries,
            workspace,
        } = buffers;
        let group_cost =
            |tokens: &Range<usize>, tile: &Tile| tokens.len() * (tile.cells.len() + TOKEN_COST);
        // Large tiles are faster, but one thread computes a whole group of a tile.
        let mut max_tokens = (tokens * groups / (2 * division)).max(1);
        let total = loop {
            if !tiles.build(cells, masks(), max_tokens) {
                return false;
            }
            let costs = || {
                tiles
                    .iter()
                    .map(|(tokens, tile)| group_cost(&tokens, &tile))
            };
            let total = groups * costs().sum::<usize>();
            match costs().all(|cost| cost * division <= 2 * total) {
                true => break total,
                false if max_tokens > 1 => max_tokens = max_tokens.min(tokens) / 2,
                // ggml divides cells or heads.
                false => return false,
            }
        };
        let part = total * thread / threads..total * (thread + 1) / threads;
        let mut before = 0;
        for (tokens, tile) in tiles.iter() {
            let cost = group_cost(&tokens, &tile);
            let group_at = |point: usize| point.saturating_sub(before).div_ceil(cost).min(groups);
            let own_groups = group_at(part.start)..group_at(part.end);
            before += groups * cost;
            if !own_groups.is_empty() {
                // SAFETY: the caller's; tokens and groups are in range, and the cells come from the mask.
                unsafe { self.attend(&tokens, own_groups, tile, queries, workspace) };
            }
        }
        true
    }

    /// Computes some head groups of the tokens of a tile.
    ///
    /// # Safety
    /// As for [`compute`]; tokens, groups and cells are in range.
    unsafe fn attend(
        &self,
        tokens: &Range<usize>,
        groups: Range<usize>,
        tile: Tile<'_>,
        queries: &mut Vec<Query>,
        workspace: &mut Workspace,
    ) {
        let heads = count(self.query.ne[2]) / count(self.keys.ne[2]);
        let rows = |tensor: &sys::ggml_tensor| HeadRows {
            // SAFETY: the group is in range.
            first: unsafe { tensor.data.byte_add(groups.start * tensor.nb[2]) }.cast(),
            cell_stride: tensor.nb[1],
            group_stride: tensor.nb[2],
            length: count(tensor.ne[0]),
        };
        let (keys, values) = (rows(self.keys), rows(self.values));
        queries.clear();
        for group in groups {
            for (index, token) in (0..).zip(tokens.clone()) {
                queries.extend((group * heads..(group + 1) * heads).map(|head| {
                    // SAFETY: token and head are in range; results are in ggml's order for this operation: values, heads,
                    // tokens.
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
                        token: index,
                    }
                }));
            }
        }
        let group_size = heads * tokens.len();
        // SAFETY: the pointers come from tensors of these shapes.
        unsafe {
            attend(
                queries, group_size, keys, values, tile, self.scale, workspace,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    const LENGTH: usize = 32;

    /// A contiguous tensor of these sizes.
    fn tensor<T>(kind: sys::ggml_type, sizes: [usize; 4], data: &mut [T]) -> sys::ggml_tensor {
        // SAFETY: null pointers and zeroes are a valid tensor.
        let mut tensor: sys::ggml_tensor = unsafe { MaybeUninit::zeroed().assume_init() };
        tensor.type_ = kind;
        tensor.nb[0] = size_of::<T>();
        for (index, size) in sizes.into_iter().enumerate() {
            tensor.ne[index] = i64::try_from(size).expect("small");
            if index > 0 {
                tensor.nb[index] = tensor.nb[index - 1] * sizes[index - 1];
            }
        }
        assert_eq!(tensor.nb[3] * sizes[3], size_of_val(data));
        tensor.data = data.as_mut_ptr().cast();
        tensor
    }

    /// Varied numbers below 256.
    fn varied(count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(|index| index.wrapping_mul(0x9e37_79b9) >> 7 & 0xff)
    }

    /// Computes the attention of tokens with disjoint cells, as many as `cells` says for each. Returns the number of
    /// heads that each thread computed, and all results. `None` if the operation is ggml's.
    fn run(
        cells: &[usize],
        groups: usize,
        each: usize,
        threads: usize,
    ) -> Option<(Vec<usize>, Vec<f32>)> {
        let (tokens, heads, all) = (cells.len(), groups * each, cells.iter().sum());
        let query = varied(tokens * heads * LENGTH).map(|number| number as f32 / 256.0);
        let mut query: Vec<_> = query.collect();
        // Halves from 1 to 1.25.
        let half = |number: usize| 0x3c00 + u16::try_from(number).expect("small");
        let mut keys: Vec<_> = varied(all * groups * LENGTH).map(half).collect();
        let mut mask = vec![0xfc00_u16; tokens * all];
        let mut first = 0;
        for (token, &number) in cells.iter().enumerate() {
            mask[token * all + first..][..number].fill(0);
            first += number;
        }
        let mut result = vec![f32::NAN; tokens * heads * LENGTH];
        let results = result.as_mut_ptr();
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
        let parts = (0..threads).map(|thread| {
            let params = ComputeParams {
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
            let results = unsafe { std::slice::from_raw_parts_mut(results, found.len()) };
            let mut done = 0;
            for (result, found) in results.iter_mut().zip(&mut found) {
                let result = std::mem::replace(result, f32::NAN);
                if !result.is_nan() {
                    assert!(found.is_nan(), "computed twice");
                    *found = result;
                    done += 1;
                }
            }
            Some(done / LENGTH)
        });
        let parts: Vec<_> = parts.collect();
        if parts.contains(&None) {
            assert!(parts.iter().all(Option::is_none), "threads disagree");
            return None;
        }
        assert!(found.iter().all(|number| !number.is_nan()), "not computed");
        Some((parts.into_iter().flatten().collect(), found))
    }

    fn parts(cells: &[usize], groups: usize, each: usize, threads: usize) -> Option<Vec<usize>> {
        run(cells, groups, each, threads).map(|(parts, _)| parts)
    }

    #[test]
    fn threads_compute_everything_once() {
        let mut count = 0;
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
                        let (_, alone) = run(cells, groups, each, 1).expect("one thread suffices");
                        let Some((_, found)) = run(cells, groups, each, threads) else {
                            continue;
                        };
                        count += 1;
                        let pairs = found.iter().zip(&alone);
                        let near = pairs.map(|(one, other)| (one - other).abs() < 1e-5);
                        assert!(near.into_iter().all(|near| near), "{threads} threads");
                    }
                }
            }
        }
        assert!(count > 250, "{count}");
    }

    #[test]
    fn work_is_divided_evenly() {
        assert_eq!(parts(&[100; 8], 8, 2, 2), Some(vec![64, 64]));
        assert_eq!(parts(&[100], 8, 2, 2), Some(vec![8, 8]));
        assert_eq!(parts(&[100], 8, 2, 8), Some(vec![2; 8]));
        // ggml takes work that would keep one thread busy and others idle.
        assert_eq!(parts(&[1000, 10, 10, 10], 1, 8, 4), None);
        assert_eq!(parts(&[1000], 1, 8, 4), None);
        // Tiles shrink until they divide: two threads compute four of eight tokens each.
        assert_eq!(parts(&[10; 8], 1, 1, 2), Some(vec![4, 4]));
    }
}
