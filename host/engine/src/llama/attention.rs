//! Attention on the processor, in place of ggml's where that wastes time.
//!
//! All sequences share one cache, and each token of a step comes with a mask that says which cells are its own.
//! ggml's attention looks at the mask of every cell once for each head of each layer, so what others keep in the cache
//! makes every token dearer; and it sums the values in halves, one head and one cell after the other. Here the mask is
//! looked at once for each layer, sixteen cells at a time; only cells that count are touched, once for all heads that
//! share them; and sums are floats.
//!
//! It takes what sequences that generate and short parts of prompts need: fewer tokens than ggml computes with its
//! tiles. All else stays ggml's: other types than halves, biases by distance, soft caps, sinks, and steps of few tokens
//! for many threads. Which it is follows from the operation alone, so all threads decide alike.

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

type Compute = unsafe extern "C" fn(*const Params, *mut sys::ggml_tensor) -> bool;

unsafe extern "C" {
    fn corral_attention_install(processor: sys::ggml_backend_dev_t, compute: Compute) -> bool;
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
    // SAFETY: the device lives as long as the process, and the function has the type that is called.
    let installed = unsafe { corral_attention_install(processor, compute) };
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
        // ggml shares the cells out where there are fewer heads than threads.
        let enough = tokens * keys.ne[2] >= 2 * i64::from(threads);
        (plain && types && shapes && enough).then_some(Self {
            query,
            keys,
            values,
            mask,
            result: operation,
            scale,
        })
    }

    /// This thread's part. False if the mask is none of that kind, for all threads alike.
    ///
    /// # Safety
    /// As for [`compute`].
    unsafe fn compute(&self, params: &Params, room: &mut Room) -> bool {
        let (tokens, groups) = (count(self.query.ne[1]), count(self.keys.ne[2]));
        let (thread, threads) = (params.thread as usize, params.threads as usize);
        let cells = count(self.keys.ne[1]);
        let masks = (0..tokens).map(|token| {
            // SAFETY: the mask has a row for each token, as long as there are cells.
            unsafe {
                let row = self.mask.data.byte_add(token * self.mask.nb[1]);
                std::slice::from_raw_parts(row.cast::<u16>(), cells)
            }
        });
        // No thread is to be left without any.
        let most = tokens * groups / (2 * threads);
        let Room {
            tiles,
            queries,
            sums,
        } = room;
        if !tiles.find(cells, masks, most) {
            return false;
        }
        let cost = |tokens: &Range<usize>, tile: &Tile| tokens.len() * (tile.cells.len() + FIXED);
        let all: usize = tiles
            .iter()
            .map(|(tokens, tile)| cost(&tokens, &tile))
            .sum();
        let all = groups * all;
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
            for (place, token) in tokens.clone().enumerate() {
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
