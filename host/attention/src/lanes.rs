//! Numbers that the processor computes side by side: sixteen with AVX-512, eight with AVX2.
//!
//! All of it is always inlined: what is handed over through memory is no longer in registers.

#[cfg(target_feature = "avx512f")]
mod wide {
    use std::arch::x86_64::*;

    pub type Lanes = __m512;
    pub const LANES: usize = 16;

    /// # Safety
    /// There are that many halves.
    #[inline(always)]
    pub unsafe fn load_halves(from: *const u16) -> Lanes {
        // SAFETY: the caller's; the processor is the one that this was compiled for.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    /// # Safety
    /// There are that many numbers.
    #[inline(always)]
    pub unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }

    /// # Safety
    /// There is room for that many numbers.
    #[inline(always)]
    pub unsafe fn store(to: *mut f32, lanes: Lanes) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, lanes) }
    }

    #[inline(always)]
    pub fn splat(number: f32) -> Lanes {
        // SAFETY: the processor is the one that this was compiled for.
        unsafe { _mm512_set1_ps(number) }
    }

    /// `a * b + c`.
    #[inline(always)]
    pub fn multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    /// The sum of both halves' lanes.
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
mod wide {
    use std::arch::x86_64::*;

    pub type Lanes = __m256;
    pub const LANES: usize = 8;

    /// # Safety
    /// There are that many halves.
    #[inline(always)]
    pub unsafe fn load_halves(from: *const u16) -> Lanes {
        // SAFETY: the caller's; the processor is the one that this was compiled for.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    /// # Safety
    /// There are that many numbers.
    #[inline(always)]
    pub unsafe fn load(from: *const f32) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }

    /// # Safety
    /// There is room for that many numbers.
    #[inline(always)]
    pub unsafe fn store(to: *mut f32, lanes: Lanes) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, lanes) }
    }

    #[inline(always)]
    pub fn splat(number: f32) -> Lanes {
        // SAFETY: the processor is the one that this was compiled for.
        unsafe { _mm256_set1_ps(number) }
    }

    /// `a * b + c`.
    #[inline(always)]
    pub fn multiply_add(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    /// It is no wider than that.
    #[inline(always)]
    pub fn fold(lanes: Lanes) -> __m256 {
        lanes
    }
}

pub use wide::{LANES, Lanes, load, load_halves, multiply_add, splat, store};

/// Has so many halves brought into the nearest cache. They need not be there.
#[inline(always)]
pub fn fetch(from: *const u16, length: usize) {
    use std::arch::x86_64::*;
    const LINE: usize = 32;
    for place in (0..length).step_by(LINE) {
        // SAFETY: only a hint, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(place).cast()) };
    }
}

/// The sum of each of four.
#[inline(always)]
pub fn sums([a, b, c, d]: [Lanes; 4]) -> [f32; 4] {
    use std::arch::x86_64::*;
    let [a, b, c, d] = [a, b, c, d].map(wide::fold);
    let mut sums = [0.0; 4];
    // SAFETY: the processor is the one that this was compiled for, and there is room for four.
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

/// Looks at a row of a mask, in halves: which cells are 0, which count, one bit for each. Nothing if any is neither
/// that nor minus infinity, which does not count.
pub fn counting(mask: &[u16], words: &mut [u64]) -> Option<()> {
    use std::arch::x86_64::*;
    const NOT: u16 = 0xfc00;
    for (word, cells) in words.iter_mut().zip(mask.chunks(64)) {
        *word = 0;
        let (parts, rest) = cells.as_chunks::<16>();
        for (place, part) in parts.iter().enumerate() {
            // SAFETY: the processor is the one that this was compiled for, and a part has sixteen halves.
            let (not, zero) = unsafe {
                let part = _mm256_loadu_si256(part.as_ptr().cast());
                let is = |value: i16| {
                    let equal = _mm256_cmpeq_epi16(part, _mm256_set1_epi16(value));
                    // A byte for each, in the order of the cells.
                    let (low, high) = (
                        _mm256_castsi256_si128(equal),
                        _mm256_extracti128_si256::<1>(equal),
                    );
                    _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
                };
                (is(NOT.cast_signed()), is(0))
            };
            if not | zero != 0xffff {
                return None;
            }
            *word |= u64::from(zero) << (16 * place);
        }
        for (place, &value) in (16 * parts.len()..).zip(rest) {
            match value {
                0 => *word |= 1 << place,
                NOT => {}
                _ => return None,
            }
        }
    }
    Some(())
}
