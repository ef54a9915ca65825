//! The compute threads of a context. Without an attached pool, llama.cpp built without OpenMP makes and joins threads for
//! each graph.
//!
//! A pool has a fixed number of threads, and those that a step does not use would still spin. So a context that
//! computes with fewer threads attaches a pool of fewer; ggml pauses the other pool, whose threads then sleep.

use crate::ggml::cpu_function;
use crate::queue_delay::{QueueDelay, start_named};
use llama_cpp_sys_2 as sys;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// How long workers spin for the next graph before they sleep (ggml's scale of 0 to 100). Low, because on few cores a
/// spinning worker takes time from the threads that deliver tokens; one unit spins for some milliseconds, enough to stay
/// awake from step to step.
const POLL: u32 = 1;

/// Pools that stand for larger ones: address, and threads of the larger pool. A context has at most two at a time.
static REDUCED: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());
/// Length of [`REDUCED`], so that the usual case takes no lock.
static REDUCED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of threads to divide work for, of a pool that computes with `threads`: the same whether the pool stands
/// for a larger one or not, so that results do not depend on it.
#[cfg_attr(not(own_attention), allow(dead_code))]
pub(crate) fn division_threads(pool: *const c_void, threads: usize) -> usize {
    if REDUCED_COUNT.load(Ordering::Relaxed) == 0 {
        return threads;
    }
    let Ok(reduced) = REDUCED.read() else {
        return threads;
    };
    let own = reduced.iter().find(|(other, _)| *other == pool.addr());
    own.map_or(threads, |(_, most)| *most)
}

/// A ggml threadpool.
pub struct ThreadPool {
    pool: NonNull<sys::ggml_threadpool>,
    threads: u32,
    free: Free,
    /// Delays of the threads beside the calling one; `None` where the system doesn't tell.
    workers: Option<Arc<[QueueDelay]>>,
    is_reduced: bool,
}

// SAFETY: only the context that it is attached to uses the pool, in the thread that owns both.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// Starts a pool of `threads` threads, the calling one included. `None` if that fails. Start the backends first.
    pub fn new(threads: u32) -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let threads = threads.max(1);
        let count = i32::try_from(threads).ok()?;
        let new = cpu_function(c"ggml_threadpool_new");
        let free = cpu_function(c"ggml_threadpool_free");
        // SAFETY: these names are functions of these types (ggml-cpu.h), or null.
        let (new, free) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Option<New>>(new)?,
                std::mem::transmute::<*mut c_void, Option<Free>>(free)?,
            )
        };
        // SAFETY: plain values in, a plain struct out.
        let mut params = unsafe { sys::ggml_threadpool_params_default(count) };
        params.poll = POLL;
        let start = || {
            // SAFETY: `params` is initialized and outlives the call, which copies it.
            let pool = unsafe { new(&raw mut params) };
            let pool = NonNull::new(pool)?;
            Some(Self {
                pool,
                threads,
                free,
                workers: None,
                is_reduced: false,
            })
        };
        // The system cuts names after 15 bytes.
        let name = format!(
            "compute-{}",
            STARTED.fetch_add(1, Ordering::Relaxed) % 10_000_000
        );
        let (pool, workers) = start_named(&name, start).ok()?;
        let mut pool = pool?;
        let workers = workers.filter(|workers| workers.len() + 1 == threads as usize);
        pool.workers = workers.map(Arc::from);
        Some(pool)
    }

    /// Starts a pool that computes with fewer threads what a pool of `most` threads would, with the same results.
    pub fn reduced(threads: u32, most: u32) -> Option<Self> {
        let mut pool = Self::new(threads)?;
        let mut reduced = REDUCED.write().ok()?;
        reduced.push((pool.pool.addr().get(), most as usize));
        REDUCED_COUNT.store(reduced.len(), Ordering::Relaxed);
        pool.is_reduced = true;
        Some(pool)
    }

    /// Number of threads.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// The threads beside the calling one. `None` where the system doesn't tell.
    pub fn workers(&self) -> Option<Arc<[QueueDelay]>> {
        self.workers.clone()
    }

    /// How long the pool's threads, without the calling one, have waited for a core so far.
    pub fn queue_delay(&self) -> Option<Duration> {
        self.workers.as_ref()?.iter().map(QueueDelay::read).sum()
    }

    /// The pointer, for a context that the pool must outlive.
    pub fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.pool.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if self.is_reduced
            && let Ok(mut reduced) = REDUCED.write()
        {
            reduced.retain(|(pool, _)| *pool != self.pool.addr().get());
            REDUCED_COUNT.store(reduced.len(), Ordering::Relaxed);
        }
        // SAFETY: made by `ggml_threadpool_new` and freed once; the context detaches and is freed before its pool, or
        // computes with another one.
        unsafe { (self.free)(self.pool.as_ptr()) };
    }
}
