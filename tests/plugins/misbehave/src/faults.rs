//! Faults of plugins.

/// Traps without a message, as a guest without a panic handler does.
pub fn trap() -> ! {
    std::process::abort()
}

/// Computes without end.
pub fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Allocates memory and writes to it.
pub fn hog() -> ! {
    let mut pieces = Vec::new();
    loop {
        pieces.push(vec![1_u8; 1024 * 1024]);
        std::hint::black_box(&pieces);
    }
}
