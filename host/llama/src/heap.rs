//! The heap of the C library, which Rust and llama.cpp share.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    pub(super) const M_TRIM_THRESHOLD: c_int = -1;
    pub(super) const M_MMAP_THRESHOLD: c_int = -3;
    /// Free bytes at the end of each thread's heap that the allocator keeps.
    pub(super) const TRIM_THRESHOLD: c_int = 4 << 20;
    /// Least bytes of a block that is mapped by itself, and returned as soon as it is freed.
    pub(super) const MMAP_THRESHOLD: c_int = 2 << 20;

    unsafe extern "C" {
        pub(super) fn malloc_trim(pad: usize) -> c_int;
        pub(super) fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
}

/// Bounds the freed memory that the allocator keeps. By default, glibc raises its bounds up to 32 and 64 MiB for each
/// thread's heap once such a block was freed: tokenizing 24 texts of 4 MiB left 270 MiB behind. Variables of the
/// environment take precedence (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`). Does nothing where the C library has
/// no such function.
pub fn limit_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (variable, parameter, value) in [
        (
            "MALLOC_TRIM_THRESHOLD_",
            glibc::M_TRIM_THRESHOLD,
            glibc::TRIM_THRESHOLD,
        ),
        (
            "MALLOC_MMAP_THRESHOLD_",
            glibc::M_MMAP_THRESHOLD,
            glibc::MMAP_THRESHOLD,
        ),
    ] {
        if std::env::var_os(variable).is_none() {
            // SAFETY: glibc's function; it may be called at any time from any thread.
            unsafe { glibc::mallopt(parameter, value) };
        }
    }
}

/// Returns freed memory to the system, which the allocator keeps otherwise. Takes milliseconds on a large heap, in which
/// other threads may wait. Does nothing where the C library has no such function.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: glibc's function; it may be called at any time from any thread.
    unsafe {
        glibc::malloc_trim(0);
    }
}
