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

    /// Counts of all arenas, in bytes except those of blocks.
    #[repr(C)]
    pub(super) struct MallocInfo {
        _arenas: [usize; 4],
        /// Bytes of blocks that are mapped by themselves.
        pub mapped: usize,
        _unused: [usize; 2],
        /// Bytes of allocated blocks in the arenas, and of freed ones in the caches of threads.
        pub allocated: usize,
        /// Free bytes of the arenas.
        pub free: usize,
        _top: usize,
    }

    unsafe extern "C" {
        pub(super) fn mallinfo2() -> MallocInfo;
        pub(super) fn malloc_trim(pad: usize) -> c_int;
        pub(super) fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
}

/// Bounds the freed memory that the allocator keeps. By default, glibc raises its bounds up to 32 and 64 MiB for each
/// thread's heap once such a block was freed: tokenizing 24 texts of 4 MiB left 270 MiB behind. Variables of the
/// environment take precedence (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`).
///
/// Call it before the process starts threads. Does nothing if there are other threads, or where the C library has no such
/// function.
pub fn limit_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if is_only_thread() {
        // SAFETY: there is no other thread, and none starts meanwhile, since only this one could start it.
        unsafe { set_bounds() };
    }
}

/// Whether the process has no other thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn is_only_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Sets the bounds, except those that the environment sets.
///
/// # Safety
///
/// No other thread may allocate meanwhile: glibc writes the bounds without a lock (`MT-Unsafe init const:mallopt`).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe fn set_bounds() {
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
            // SAFETY: glibc's function takes any numbers, and no other thread allocates.
            unsafe { glibc::mallopt(parameter, value) };
        }
    }
}

/// Returns freed memory to the system, which the allocator keeps otherwise. Takes milliseconds on a large heap, in which
/// other threads may wait. Does nothing where the C library has no such function.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: glibc's function takes any number and locks each heap; it may be called from any thread (`MT-Safe`).
    unsafe {
        glibc::malloc_trim(0);
    }
}

/// Bytes of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUsage {
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Free bytes that the allocator keeps. The system may have those of whole pages back already.
    pub free: u64,
}

/// Reads how much of the heap is allocated: a leak raises it, fragmentation only [`HeapUsage::free`]. Takes a
/// millisecond on a large heap. `None` where the C library has no such function.
pub fn heap_usage() -> Option<HeapUsage> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: glibc's function locks each arena; it may be called from any thread.
        let info = unsafe { glibc::mallinfo2() };
        Some(HeapUsage {
            allocated: info.allocated.saturating_add(info.mapped) as u64,
            free: info.free as u64,
        })
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    #[test]
    fn other_threads_are_seen() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || ended.recv());
            assert!(!super::is_only_thread());
            drop(end);
        });
    }

    #[test]
    fn allocated_block_is_counted() {
        let allocated = || super::heap_usage().unwrap().allocated;
        let before = allocated();
        // More than other tests free meanwhile. No page of it is used.
        let block = std::hint::black_box(Vec::<u8>::with_capacity(1 << 30));
        assert!(allocated() > before + (512 << 20));
        drop(block);
    }
}
