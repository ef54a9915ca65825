//! The heap of the C library, which Rust and llama.cpp share.

/// Returns freed memory to the system, which the allocator keeps otherwise. Takes milliseconds on a large heap, in which
/// other threads may wait. Does nothing where the C library has no such function.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: glibc's function; it may be called at any time from any thread.
        unsafe { malloc_trim(0) };
    }
}
