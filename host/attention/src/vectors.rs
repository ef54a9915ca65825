//! SIMD vectors of f32: sixteen lanes with AVX-512, eight with AVX2. All functions are always inlined, so that vectors
//! stay in registers.

#[cfg(target_feature = "avx512f")]
mod simd {
    use std::arch::x86_64::*;

    pub type Lanes = __m512;
    pub const LANES: usize = 16;

    /// # Safety
    /// `from` has [`LANES`] f16 numbers.
    #[inline(always)]
    pub unsafe fn load_f16(from: *const u16) -> Lanes {
        // SAFETY: the caller's; the code is compiled for this processor.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    /// # Safety
    /// `from` has [`LANES`] numbers.
    #[inline(always)]
    pub unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }

    /// # Safety
    /// `to` has room for [`LANES`] numbers.
    #[inline(always)]
    pub unsafe fn store(to: *mut f32, lanes: Lanes) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, lanes) }
    }

    #[inline(always)]
    pub fn splat(number: f32) -> Lanes {
        // SAFETY: the code is compiled for this processor.
        unsafe { _mm512_set1_ps(number) }
    }

    /// `a * b + c`.
    #[inline(always)]
    pub fn multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    /// Adds the upper lanes to the lower ones.
    #[inline(always)]
    pub fn fold(lanes: Lanes) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
            _mm256_add_ps(_mm512_castps512_ps256(lanes), high)
        }
    }
}

#[cfg(not(target_feature = "avx512f"))]
mod simd {
    use std::arch::x86_64::*;

    pub type Lanes = __m256;
    pub const LANES: usize = 8;

    /// # Safety
    /// `from` has [`LANES`] f16 numbers.
    #[inline(always)]
    pub unsafe fn load_f16(from: *const u16) -> Lanes {
        // SAFETY: the caller's; the code is compiled for this processor.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    /// # Safety
    /// `from` has [`LANES`] numbers.
    #[inline(always)]
    pub unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }

    /// # Safety
    /// `to` has room for [`LANES`] numbers.
    #[inline(always)]
    pub unsafe fn store(to: *mut f32, lanes: Lanes) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, lanes) }
    }

    #[inline(always)]
    pub fn splat(number: f32) -> Lanes {
        // SAFETY: the code is compiled for this processor.
        unsafe { _mm256_set1_ps(number) }
    }

    /// `a * b + c`.
    #[inline(always)]
    pub fn multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    /// A vector has no upper lanes.
    #[inline(always)]
    pub fn fold(lanes: Lanes) -> __m256 {
        lanes
    }
}

pub use simd::{LANES, Lanes, load, load_f16, multiply_add, splat, store};

/// Prefetches f16 numbers into the L1 cache. The address may be invalid.
#[inline(always)]
pub fn prefetch(from: *const u16, length: usize) {
    use std::arch::x86_64::*;
    const LINE: usize = 32;
    for offset in (0..length).step_by(LINE) {
        // SAFETY: a hint that accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(offset).cast()) };
    }
}

/// The sums of the lanes of four vectors.
#[inline(always)]
pub fn horizontal_sums([a, b, c, d]: [Lanes; 4]) -> [f32; 4] {
    use std::arch::x86_64::*;
    let [a, b, c, d] = [a, b, c, d].map(simd::fold);
    let mut sums = [0.0; 4];
    // SAFETY: the code is compiled for this processor, and the array has four numbers.
    unsafe {
        let both = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let four = _mm_add_ps(
            _mm256_castps256_ps128(both),
            _mm256_extractf128_ps::<1>(both),
        );
        _mm_storeu_ps(sums.as_mut_ptr(), four);
    }
    sums
}

/// Reads a mask row in f16 into one bit for each cell: 1 for 0, 0 for minus infinity. `None` for other values.
pub fn read_mask(mask: &[u16], words: &mut [u64]) -> Option<()> {
    use std::arch::x86_64::*;
    const MASKED: u16 = 0xfc00;
    for (word, cells) in words.iter_mut().zip(mask.chunks(64)) {
        *word = 0;
        let (parts, rest) = cells.as_chunks::<16>();
        for (index, part) in parts.iter().enumerate() {
            // SAFETY: the code is compiled for this processor, and a part has sixteen numbers.
            let (masked, zero) = unsafe {
                let part = _mm256_loadu_si256(part.as_ptr().cast());
                let is = |value: i16| {
                    let equal = _mm256_cmpeq_epi16(part, _mm256_set1_epi16(value));
                    // A byte for each cell, in order.
                    let (low, high) = (
                        _mm256_castsi256_si128(equal),
                        _mm256_extracti128_si256::<1>(equal),
                    );
                    _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
                };
                (is(MASKED.cast_signed()), is(0))
            };
            if masked | zero != 0xffff {
                return None;
            }
            *word |= u64::from(zero) << (16 * index);
        }
        for (index, &value) in (16 * parts.len()..).zip(rest) {
            match value {
                0 => *word |= 1 << index,
                MASKED => {}
                _ => return None,
            }
        }
    }
    Some(())
}
