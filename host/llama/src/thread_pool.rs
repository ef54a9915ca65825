//! The compute threads of a context: one pool for its life. Without an attached pool, llama.cpp built without OpenMP
//! makes and joins threads for each graph.

use crate::ggml::cpu_function;
use llama_cpp_sys_2 as sys;
use std::ffi::c_void;
use std::ptr::NonNull;

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> *mut sys::ggml_threadpool;
type Free = unsafe extern "C" fn(*mut sys::ggml_threadpool);

/// How long workers spin for the next graph before they sleep (ggml's scale of 0 to 100). Low, because on few cores a
/// spinning worker takes time from the threads that deliver tokens; one unit spins for some milliseconds, enough to stay
/// awake from step to step.
const POLL: u32 = 1;

/// A ggml threadpool.
pub struct ThreadPool {
    pool: NonNull<sys::ggml_threadpool>,
    threads: u32,
    free: Free,
}

// SAFETY: only the context that it is attached to uses the pool, in the thread that owns both.
unsafe impl Send for ThreadPool {}

impl ThreadPool {
    /// Starts a pool of `threads` threads, the calling one included. `None` if that fails. Start the backends first.
    pub fn new(threads: u32) -> Option<Self> {
        let count = i32::try_from(threads.max(1)).ok()?;
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
        // SAFETY: `params` is initialized and outlives the call, which copies it.
        let pool = unsafe { new(&raw mut params) };
        Some(Self {
            pool: NonNull::new(pool)?,
            threads,
            free,
        })
    }

    /// Number of threads.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// The pointer, for a context that the pool must outlive.
    pub fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.pool.as_ptr()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: made by `ggml_threadpool_new` and freed once; the context detaches and is freed before its pool.
        unsafe { (self.free)(self.pool.as_ptr()) };
    }
}
