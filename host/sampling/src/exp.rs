//! The exponential function for whole chunks of a row.
//!
//! It has no table, branch or call, so the compiler vectorizes loops over it. The relative error is
//! under 2e-7, about the precision of `f32`.

/// The result is 0 below this.
const LEAST: f32 = -87.0;
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding this moves the nearest integer of a small number into the lowest bits of the mantissa.
const TO_INTEGER: f32 = 12_582_912.0;

#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction, `mul_add` is a call.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// e^x for x of 0 or less; 0 for NaN, minus infinity and all under -87.
///
/// Splits x into n ln 2 + r with |r| at most ln 2 / 2, and sums the Taylor series of e^r. The first
/// omitted term is r^8 / 8!, under 6e-9.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let bounded = bound(x);
    let shifted = multiply_add(bounded, std::f32::consts::LOG2_E, TO_INTEGER);
    let n = shifted - TO_INTEGER;
    let r = multiply_add(n, -LN2_LOW, multiply_add(n, -LN2_HIGH, bounded));
    let mut sum = 1.0 / 5040.0;
    sum = multiply_add(sum, r, 1.0 / 720.0);
    sum = multiply_add(sum, r, 1.0 / 120.0);
    sum = multiply_add(sum, r, 1.0 / 24.0);
    sum = multiply_add(sum, r, 1.0 / 6.0);
    sum = multiply_add(sum, r, 0.5);
    sum = multiply_add(sum, r, 1.0);
    sum = multiply_add(sum, r, 1.0);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    if x >= LEAST { sum * power } else { 0.0 }
}

/// `x`, but at least -87: finite, so that its product with 0 is 0.
#[inline(always)]
pub fn bound(x: f32) -> f32 {
    if x > LEAST { x } else { LEAST }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_within_single_precision() {
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) / expected - 1.0).abs();
            assert!(error < 2e-7, "e^{x} is off by {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        for x in [f32::NEG_INFINITY, f32::NAN, -88.0, f32::MIN] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
    }
}
