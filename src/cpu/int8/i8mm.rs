//! NEON with the matrix product of bytes: pairs of rows by pairs of columns, as for blocks. A single row takes the dot
//! product instruction.

use std::arch::aarch64::*;

use super::super::quant::i8mm::{columns, products, rows};
use super::super::quant::kernel::QuantOps;
use super::super::quant::neon::NeonDotprod;
use super::super::simd::{PANEL, Vector};
use super::kernel::{self, Int8Block, Int8Kernels, QUAD_BYTES, STEP, Tile};
use super::neon::NEON_DOTPROD;

/// Pairs of rows of a tile: its sums are in 24 of the 32 registers.
const PAIRS: usize = 3;

/// `P` pairs of rows by one panel. Where the last pair has one row alone, that row stands in it twice.
#[inline(always)]
unsafe fn tile<const P: usize>(b: &Int8Block, t: &Tile) {
    type V = float32x4_t;
    let column = t.panel * PANEL;
    // SAFETY: forwarded.
    unsafe {
        let mut a = [[b.a.cast::<i8>(); 2]; P];
        let mut sums = [[NeonDotprod::splat(0); PANEL / 2]; P];
        for p in 0..P {
            let [r0, r1] = [t.row + 2 * p, t.row + (2 * p + 1).min(t.rows - 1)];
            a[p] = [a[p][0].add(r0 * b.lda), a[p][1].add(r1 * b.lda)];
            let starts = vcombine_s32(vdup_n_s32(*b.a_starts.add(r0)), vdup_n_s32(*b.a_starts.add(r1)));
            for (c, s) in sums[p].iter_mut().enumerate() {
                let w = vld1_s32(b.w_sums.add(column + 2 * c));
                *s = vmulq_s32(vcombine_s32(w, w), starts);
            }
        }
        let mut w = b.w.add(t.panel * (b.k / 4 * QUAD_BYTES));
        for step in 0..b.k / STEP {
            let mut pairs = [vdupq_n_s8(0); P];
            for p in 0..P {
                pairs[p] = vcombine_s8(vld1_s8(a[p][0].add(step * STEP)), vld1_s8(a[p][1].add(step * STEP)));
            }
            for v in 0..PANEL / V::LANES {
                let [left, right] = columns(w.add(v * 16), w.add(QUAD_BYTES + v * 16));
                for p in 0..P {
                    sums[p][2 * v] = products(sums[p][2 * v], pairs[p], left);
                    sums[p][2 * v + 1] = products(sums[p][2 * v + 1], pairs[p], right);
                }
            }
            w = w.add(2 * QUAD_BYTES);
        }
        // Row by row, in memory: the loop above alone has its sums in registers.
        let mut totals = [[[V::splat(0.0); PANEL / V::LANES]; 2]; P];
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for v in 0..PANEL / V::LANES {
                let [first, second] = rows(sums[2 * v], sums[2 * v + 1]);
                (totals[0][v], totals[1][v]) = (NeonDotprod::floats(first), NeonDotprod::floats(second));
            }
        }
        for (r, row) in totals.as_flattened().iter().enumerate().take(t.rows) {
            let d = V::splat(*b.a_scales.add(t.row + r));
            for (v, total) in row.iter().enumerate() {
                let at = column + v * V::LANES;
                kernel::store(b, t.row + r, at, total.mul(d.mul(V::load(b.w_scales.add(at)))));
            }
        }
    }
}

/// A tile shape, optimised as a function of its own.
#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn shape<const P: usize>(b: &Int8Block, t: &Tile) {
    // SAFETY: forwarded.
    unsafe { tile::<P>(b, t) }
}

#[target_feature(enable = "neon")]
unsafe fn block(b: &Int8Block) {
    // SAFETY: forwarded, to a CPU with both instructions; tiles have at most 2 * PAIRS rows and one panel.
    unsafe {
        if b.rows == 1 {
            return (NEON_DOTPROD.block)(b);
        }
        kernel::block::<NeonDotprod>(b, (2 * PAIRS, 1), 1, |b, t| match t.rows.div_ceil(2) {
            1 => shape::<1>(b, t),
            2 => shape::<2>(b, t),
            _ => shape::<PAIRS>(b, t),
        });
    }
}

pub(in crate::cpu) static NEON_I8MM: Int8Kernels = Int8Kernels { quantise: NEON_DOTPROD.quantise, block };
