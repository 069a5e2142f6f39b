//! Softmax, written once over [`Vector`].
//!
//! ```text
//! z = fma(x, scale, bias)                       x * scale without a bias
//! e = z - max z < -69 ? +0 : exp(z - max z)
//! x = e * (1 / sum e)                           the sum by virtual lanes
//! ```
//!
//! # Safety
//! As in [`rows`](super::rows): the CPU has V's instruction set, operands have the lengths that the safe methods of
//! [`Kernels`](super::table::Kernels) assert.

use super::math;
use super::rows::{first, load, partial_sums, pieces, store};
use super::simd::{PANEL, VIRTUAL_LANES, Vector, fold_rows};

/// Weights below e^-69, a 10^30th of the largest, are +0: weights that are denormal would make products with values
/// that are, each of which takes a microcode assist of a hundred cycles.
const NO_WEIGHT: f32 = -69.0;

/// z in place of x; the greatest of each lane, -inf where there is none but NaN.
#[inline(always)]
unsafe fn scaled<V: Vector>(p: *mut f32, len: usize, scale: f32, bias: Option<&[f32]>) -> V {
    // SAFETY: the caller vouches for `len` values at `p` and in `bias`.
    unsafe {
        let (none, factor) = (V::splat(f32::NEG_INFINITY), V::splat(scale));
        let mut top = none;
        pieces!(V, len, |i, n| {
            let x = load::<V>(p.add(i), n);
            let z = match bias {
                Some(b) => x.mul_add(factor, load(b.as_ptr().add(i), n)),
                None => x.mul(factor),
            };
            store(z, p.add(i), n);
            top = V::greater(first(z, n, none), top);
        });
        top
    }
}

/// The greatest x of each lane, -inf where there is none but NaN.
#[inline(always)]
unsafe fn greatest<V: Vector>(p: *const f32, len: usize) -> V {
    // SAFETY: the caller vouches for `len` values at `p`.
    unsafe {
        let none = V::splat(f32::NEG_INFINITY);
        let mut top = none;
        pieces!(V, len, |i, n| top = V::greater(first(load::<V>(p.add(i), n), n, none), top));
        top
    }
}

/// e in place of x, for z = x * scale; the register whose fold is the sum.
#[inline(always)]
unsafe fn exponentials<V: Vector>(p: *mut f32, len: usize, scale: f32, peak: f32) -> V {
    // SAFETY: the caller vouches for `len` values at `p`.
    unsafe {
        let (zero, scale, peak) = (V::splat(0.0), V::splat(scale), V::splat(peak));
        partial_sums!(V, len, |acc, i, n| {
            if n == 0 {
                acc.add(zero)
            } else {
                let d = load::<V>(p.add(i), n).mul(scale).sub(peak);
                let e = V::select_lt(d, V::splat(NO_WEIGHT), zero, math::exp_normal(d));
                store(e, p.add(i), n);
                acc.add(first(e, n, zero))
            }
        })
    }
}

/// x = x * factor.
#[inline(always)]
unsafe fn times<V: Vector>(p: *mut f32, len: usize, factor: f32) {
    // SAFETY: the caller vouches for `len` values at `p`.
    unsafe {
        let factor = V::splat(factor);
        pieces!(V, len, |i, n| store(load::<V>(p.add(i), n).mul(factor), p.add(i), n));
    }
}

/// Softmax of a row.
#[inline(always)]
pub(super) unsafe fn row<V: Vector>(x: &mut [f32], scale: f32, bias: Option<&[f32]>) {
    let (p, len) = (x.as_mut_ptr(), x.len());
    // SAFETY: the caller gives `bias` the length of `x`.
    unsafe {
        let peak = scaled::<V>(p, len, scale, bias).greatest();
        let sum = exponentials::<V>(p, len, 1.0, peak).fold();
        times::<V>(p, len, 1.0 / sum);
    }
}

/// Softmax of `rows` rows of `len` values without a bias, `stride` apart: LANES of them at a time, so that one row's fold
/// and division do not wait for those of the row before.
#[inline(always)]
pub(super) unsafe fn rows<V: Vector>(x: *mut f32, [rows, len, stride]: [usize; 3], scale: f32) {
    // SAFETY: the caller vouches for the rows.
    unsafe {
        // The greatest z is that of the greatest x for these scales alone.
        if scale.is_nan() || scale <= 0.0 {
            for r in 0..rows {
                row::<V>(std::slice::from_raw_parts_mut(x.add(r * stride), len), scale, None);
            }
            return;
        }
        let (mut registers, mut values) = ([V::splat(0.0); PANEL], [0f32; PANEL]);
        for start in (0..rows).step_by(V::LANES) {
            let count = (rows - start).min(V::LANES);
            let line = |r: usize| x.add((start + r) * stride);
            for (r, top) in registers.iter_mut().enumerate().take(count) {
                *top = greatest::<V>(line(r), len);
            }
            fold_rows!(V, registers, V::greater).mul(V::splat(scale)).store(values.as_mut_ptr());
            for r in 0..count {
                registers[r] = exponentials::<V>(line(r), len, scale, values[r]);
            }
            V::splat(1.0).div(fold_rows!(V, registers, V::add)).store(values.as_mut_ptr());
            for (r, inverse) in values.iter().enumerate().take(count) {
                times::<V>(line(r), len, *inverse);
            }
        }
    }
}
