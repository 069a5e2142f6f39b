//! Activations quantised in blocks of 32 values, written once over [`QuantOps`].
//!
//! ```text
//! m = the largest magnitude
//! d = m / 127;   q = rint(x * (127 / m)), ties to even
//! m below 1e-30: d and q are 0;   NaN or an infinity in the block: d is NaN, q are 0
//! ```

use super::super::simd::{PANEL, Vector, fold_rows};
use super::kernel::{QBLOCK, QuantOps};

/// Below this values count as zeros: the inverse of their scale could overflow.
pub(in crate::cpu) const SMALLEST: f32 = 1e-30;

/// Adding 1.5 * 2^23 leaves an integer, rounded with ties to even, in the low bits.
pub(in crate::cpu) const MAGIC: f32 = 12_582_912.0;

/// The largest magnitude of each lane of a block, NaN above all.
#[inline(always)]
unsafe fn magnitudes<O: QuantOps>(x: *const f32) -> O::V {
    let lanes = O::V::LANES;
    // SAFETY: the caller vouches for the block, and for the CPU.
    unsafe {
        let mut top = O::V::load(x).abs();
        for i in (lanes..QBLOCK).step_by(lanes) {
            top = O::larger_bits(top, O::V::load(x.add(i)).abs());
        }
        top
    }
}

/// The integers of a block; the register whose fold is their sum, which is exact in any order.
#[inline(always)]
unsafe fn integers<O: QuantOps>(x: *const f32, inverse: f32, q: *mut i8) -> O::V {
    let lanes = O::V::LANES;
    // SAFETY: as above.
    unsafe {
        let (mut sum, magic, inverse) = (O::V::splat(0.0), O::V::splat(MAGIC), O::V::splat(inverse));
        for i in (0..QBLOCK).step_by(lanes) {
            let rounded = O::V::load(x.add(i)).mul(inverse).add(magic);
            O::low_bytes(rounded, q.add(i));
            sum = sum.add(rounded.sub(magic));
        }
        sum
    }
}

/// Quantises blocks, a register's lanes of them at a time; `starts` become `factor` times the sums of the integers.
///
/// # Safety
/// The CPU has the instruction set of `O`; the slices hold the same blocks.
#[inline(always)]
pub(in crate::cpu) unsafe fn blocks<O: QuantOps>(
    x: &[f32],
    q: &mut [i8],
    scales: &mut [f32],
    (starts, factor): (&mut [i32], i32),
) {
    // SAFETY: blocks lie in the slices.
    unsafe {
        let (mut rows, mut inverses, mut values) = ([O::V::splat(0.0); PANEL], [0f32; PANEL], [0f32; PANEL]);
        for first in (0..scales.len()).step_by(O::V::LANES) {
            let count = (scales.len() - first).min(O::V::LANES);
            let block = |b: usize| x.as_ptr().add((first + b) * QBLOCK);
            for (b, row) in rows.iter_mut().enumerate().take(count) {
                *row = magnitudes::<O>(block(b));
            }
            let m = fold_rows!(O::V, rows, O::larger_bits);
            let (zero, top) = (O::V::splat(0.0), O::V::splat(127.0));
            let (small, infinity) = (O::V::splat(SMALLEST), O::V::splat(f32::INFINITY));
            let scale = O::V::select_lt(m, infinity, m.div(top), O::V::splat(f32::NAN));
            O::V::select_lt(m, small, zero, scale).store(values.as_mut_ptr());
            scales[first..first + count].copy_from_slice(&values[..count]);
            let inverse = O::V::select_lt(m, infinity, top.div(m), zero);
            O::V::select_lt(m, small, zero, inverse).store(inverses.as_mut_ptr());
            for b in 0..count {
                let q = q.as_mut_ptr().add((first + b) * QBLOCK);
                rows[b] = integers::<O>(block(b), inverses[b], q);
                if inverses[b] == 0.0 {
                    // NaN leaves its payload in the bytes.
                    std::ptr::write_bytes(q, 0, QBLOCK);
                    rows[b] = zero;
                }
            }
            fold_rows!(O::V, rows, O::V::add).store(values.as_mut_ptr());
            for (start, sum) in starts[first..first + count].iter_mut().zip(&values) {
                *start = factor * *sum as i32;
            }
        }
    }
}
