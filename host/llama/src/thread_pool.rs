//! The compute threads of a context. Without an attached pool, llama.cpp built without OpenMP makes and joins threads for
//! each graph.
//!
//! A pool has a fixed number of threads, and those that a step does not use would still spin. So a context that
//! computes with fewer threads attaches another pool. All pools start when the model loads, since ggml ends the process if
//! a thread cannot start; the threads of a pool that is not in use sleep.

use crate::ggml::cpu_function;
use crate::run_queue_delay::{QueueDelay, start_named};
use llama_cpp_sys_2 as sys;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// How long workers spin for the next graph before they sleep (ggml's scale of 0 to 100). Low, because on few cores a
/// spinning worker takes time from the threads that deliver tokens; one unit spins for some milliseconds, enough to stay
/// awake from step to step.
const POLL: u32 = 1;

/// Maximum of smaller pools in the process; a model with 64 threads has six.
const MAX_REDUCED: usize = 128;

/// A smaller pool that computes the same results as a larger one.
struct ReducedPool {
    /// Address of the smaller pool; 0 if the entry is free.
    address: AtomicUsize,
    /// Threads of the larger pool.
    larger_threads: AtomicUsize,
}

/// Written when pools start and end, and read by compute threads, which look for their own pool only.
static REDUCED: [ReducedPool; MAX_REDUCED] = [const {
    ReducedPool {
        address: AtomicUsize::new(0),
        larger_threads: AtomicUsize::new(0),
    }
}; MAX_REDUCED];
/// All entries of [`REDUCED`] from here on are free.
static REDUCED_END: AtomicUsize = AtomicUsize::new(0);

/// The number of threads to divide work for, in a pool of `threads` threads. For a smaller pool it is the number of the
/// larger one, so that results are the same.
#[cfg_attr(not(own_attention), allow(dead_code))]
pub(crate) fn division_threads(pool: *const c_void, threads: usize) -> usize {
    let end = REDUCED_END.load(Ordering::Relaxed);
    let mut reduced = REDUCED.iter().take(end);
    let own = reduced.find(|other| other.address.load(Ordering::Relaxed) == pool.addr());
    own.map_or(threads, |own| own.larger_threads.load(Ordering::Relaxed))
}

/// A ggml threadpool.
pub struct ThreadPool {
    pool: NonNull<sys::ggml_threadpool>,
    threads: u32,
    free: Free,
    /// Delays of the threads beside the calling one; `None` where the system doesn't tell.
    workers: Option<Vec<QueueDelay>>,
    reduced: Option<&'static ReducedPool>,
}

// SAFETY: only the context that it is attached to uses the pool, in the thread that owns both.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// Starts a pool of `threads` threads, the calling one included. `None` if that fails. Start the backends first.
    pub fn new(threads: u32) -> Option<Self> {
        Self::start(threads, false)
    }

    fn start(threads: u32, paused: bool) -> Option<Self> {
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
        params.paused = paused;
        let start = || {
            // SAFETY: `params` is initialized and outlives the call, which copies it.
            let pool = unsafe { new(&raw mut params) };
            let pool = NonNull::new(pool)?;
            Some(Self {
                pool,
                threads,
                free,
                workers: None,
                reduced: None,
            })
        };
        // The system cuts names after 15 bytes.
        let name = format!(
            "compute-{}",
            STARTED.fetch_add(1, Ordering::Relaxed) % 10_000_000
        );
        let (pool, workers) = start_named(&name, start).ok()?;
        let mut pool = pool?;
        pool.workers = workers.filter(|workers| workers.len() + 1 == threads as usize);
        Some(pool)
    }

    /// Starts a pool that computes with fewer threads what a pool of `larger_threads` threads would, with the same results. Its
    /// threads sleep until its first step. `None` if that fails, or for too many such pools.
    pub fn reduced(threads: u32, larger_threads: u32) -> Option<Self> {
        let mut pool = Self::start(threads, true)?;
        let address = pool.pool.addr().get();
        let take = |(index, free): (usize, &'static ReducedPool)| {
            let order = Ordering::Relaxed;
            let taken = free.address.compare_exchange(0, address, order, order);
            taken.is_ok().then_some((index, free))
        };
        let (index, entry) = REDUCED.iter().enumerate().find_map(take)?;
        entry
            .larger_threads
            .store(larger_threads as usize, Ordering::Relaxed);
        REDUCED_END.fetch_max(index + 1, Ordering::Relaxed);
        pool.reduced = Some(entry);
        Some(pool)
    }

    /// Number of threads.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// How long each of the pool's threads, without the calling one, has waited for a core so far. `None` where the system
    /// doesn't tell.
    pub fn queue_delays(&self) -> Option<Vec<Duration>> {
        self.workers
            .as_ref()?
            .iter()
            .map(QueueDelay::read)
            .collect()
    }

    /// The pointer, for a context that the pool must outlive.
    pub fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.pool.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if let Some(reduced) = self.reduced {
            reduced.address.store(0, Ordering::Relaxed);
        }
        // SAFETY: made by `ggml_threadpool_new` and freed once; the context detaches and is freed before its pool.
        unsafe { (self.free)(self.pool.as_ptr()) };
    }
}
