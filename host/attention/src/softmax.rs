//! The parts of a softmax over a block of scores, as loops that the compiler vectorizes. The length of a block is a
//! multiple of 8.

/// The largest score.
#[inline]
pub fn largest<const N: usize>(scores: &[f32; N]) -> f32 {
    let (eights, _) = scores.as_chunks::<8>();
    let mut largest = [f32::NEG_INFINITY; 8];
    for eight in eights {
        for (largest, score) in largest.iter_mut().zip(eight) {
            *largest = if score > largest { *score } else { *largest };
        }
    }
    largest.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Replaces each score by `exp(score - highest)`; returns their sum.
#[inline]
pub fn to_weights<const N: usize>(scores: &mut [f32; N], highest: f32) -> f32 {
    for score in scores.iter_mut() {
        *score = exp(*score - highest);
    }
    let (eights, _) = scores.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for eight in eights {
        for (sum, weight) in sums.iter_mut().zip(eight) {
            *sum += weight;
        }
    }
    sums.into_iter().sum()
}

/// `exp(x)` for x up to 0, exact to the last bits of f32; 0 below -87, NaN for NaN.
///
/// `x = n * ln 2 + r`, with the polynomial of the Cephes library for `exp r`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const MIN: f32 = -87.0;
    let clamped = x.max(MIN);
    let n: f32 = (clamped * std::f32::consts::LOG2_E).round_ties_even();
    let r: f32 = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
    let series = 1.987_569_1e-4_f32.mul_add(r, 1.398_199_9e-3);
    let series = series.mul_add(r, 8.333_452e-3);
    let series = series.mul_add(r, 4.166_579_6e-2);
    let series = series.mul_add(r, 1.666_666_5e-1);
    let series = series.mul_add(r, 0.5);
    let exp_r = series.mul_add(r * r, r + 1.0);
    // SAFETY: n is from -126 to 0.
    let exponent = unsafe { n.to_int_unchecked::<i32>() } + 127;
    let result = exp_r * f32::from_bits(exponent.cast_unsigned() << 23);
    let result = if x < MIN { 0.0 } else { result };
    if x.is_nan() { x } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_the_last_bits() {
        for number in 0..=43_500_u16 {
            let x = -f32::from(number) / 500.0;
            let exact = f64::from(x).exp();
            let found = f64::from(exp(x));
            let error = (found / exact - 1.0).abs();
            assert!(error < 3e-7, "{x}: {found}, expected {exact}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
