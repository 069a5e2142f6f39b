//! NEON with the matrix product of bytes (i8mm): an instruction adds, to a 2x2 tile of sums, the products of two rows
//! and two columns over eight k, 32 multiplications where a dot product instruction has 16.
//!
//! Sums of a pair of rows and a pair of columns lie row by row: row 0's two columns, then row 1's. A single row would
//! leave half of every tile unused: it takes the dot product instruction.

use std::arch::aarch64::*;

use super::super::int8::i8mm as int8;
use super::super::simd::{PANEL, Vector};
use super::kernel::{self, QBLOCK, QuantBlock, QuantKernels, QuantOps, Tile};
use super::neon::{NEON_DOTPROD, NeonDotprod};

/// Adds the products of a pair of rows and a pair of columns over eight k; sums wrap around.
///
/// # Safety
/// The CPU has i8mm.
#[inline(always)]
pub(in crate::cpu) unsafe fn products(mut sums: int32x4_t, rows: int8x16_t, columns: int8x16_t) -> int32x4_t {
    // SAFETY: the caller vouches for the instruction, which touches registers alone. It is not declared pure: products
    // then stay in the order written, where moved loads would take the registers of sums.
    unsafe {
        std::arch::asm!(
            ".arch_extension i8mm",
            "smmla {sums:v}.4s, {rows:v}.16b, {columns:v}.16b",
            sums = inout(vreg) sums,
            rows = in(vreg) rows,
            columns = in(vreg) columns,
            options(nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Four columns of two consecutive quads as two pairs of columns of eight k.
///
/// # Safety
/// The CPU has NEON; the quads are 16 bytes each.
#[inline(always)]
pub(in crate::cpu) unsafe fn columns(low: *const u8, high: *const u8) -> [int8x16_t; 2] {
    // SAFETY: forwarded.
    unsafe {
        let (low, high) = (vreinterpretq_s32_s8(vld1q_s8(low.cast())), vreinterpretq_s32_s8(vld1q_s8(high.cast())));
        [vreinterpretq_s8_s32(vzip1q_s32(low, high)), vreinterpretq_s8_s32(vzip2q_s32(low, high))]
    }
}

/// The sums of two pairs of columns as the four columns of either row.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(in crate::cpu) unsafe fn rows(left: int32x4_t, right: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: forwarded.
    unsafe {
        let (left, right) = (vreinterpretq_s64_s32(left), vreinterpretq_s64_s32(right));
        [vreinterpretq_s32_s64(vzip1q_s64(left, right)), vreinterpretq_s32_s64(vzip2q_s64(left, right))]
    }
}

/// A block of two rows: for each eight k, ascending, a pair of rows.
#[inline(always)]
unsafe fn activations(row: *const i8, other: *const i8) -> [int8x16_t; QBLOCK / 8] {
    // SAFETY: the CPU has NEON; the caller vouches for the blocks.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s8(vld1q_s8(row)), vreinterpretq_s64_s8(vld1q_s8(other)));
        let (c, d) = (vreinterpretq_s64_s8(vld1q_s8(row.add(16))), vreinterpretq_s64_s8(vld1q_s8(other.add(16))));
        let pairs = [vzip1q_s64(a, b), vzip2q_s64(a, b), vzip1q_s64(c, d), vzip2q_s64(c, d)];
        pairs.map(|pair| vreinterpretq_s8_s64(pair))
    }
}

/// Four columns of a block: for each eight k, ascending, two pairs of columns.
#[inline(always)]
unsafe fn weights(w: *const u8) -> [[int8x16_t; 2]; QBLOCK / 8] {
    const QUAD: usize = PANEL * 4;
    // SAFETY: the CPU has NEON; the caller vouches for the block.
    unsafe {
        let eight = |i: usize| columns(w.add(2 * i * QUAD), w.add((2 * i + 1) * QUAD));
        [eight(0), eight(1), eight(2), eight(3)]
    }
}

/// Pairs of rows of a tile: with the weights of a block, its chains are in 16 of the 32 registers.
const PAIRS: usize = 4;

/// `P` pairs of rows by four columns. Where the last pair has one row alone, that row stands in it twice.
#[inline(always)]
unsafe fn tile<const P: usize>(b: &QuantBlock, t: &Tile) {
    type V = float32x4_t;
    let first = t.part * V::LANES;
    // SAFETY: forwarded.
    unsafe {
        // Where the rows' blocks begin.
        let mut starts = [[0; 2]; P];
        for (r, start) in starts.as_flattened_mut().iter_mut().enumerate() {
            *start = (t.row + r.min(t.rows - 1)) * b.row_blocks;
        }
        let mut chains = [[V::splat(0.0); 2]; P];
        for block in 0..b.blocks {
            let of_panel = t.panel * b.row_blocks + block;
            let w = weights(t.w.add(block * (QBLOCK * PANEL)));
            let scale = NeonDotprod::scales(b.w_scales.add(of_panel * PANEL + first));
            for p in 0..P {
                let at = [starts[p][0] + block, starts[p][1] + block];
                let a = activations(b.a.add(at[0] * QBLOCK), b.a.add(at[1] * QBLOCK));
                let [first, second] = at.map(|at| vdup_n_s32(*b.a_starts.add(at)));
                let mut sums = [vcombine_s32(first, second); 2];
                for i in 0..QBLOCK / 8 {
                    sums = [products(sums[0], a[i], w[i][0]), products(sums[1], a[i], w[i][1])];
                }
                let sums = rows(sums[0], sums[1]);
                for i in 0..2 {
                    let d = scale.mul(V::splat(*b.a_scales.add(at[i])));
                    chains[p][i] = NeonDotprod::floats(sums[i]).mul_add(d, chains[p][i]);
                }
            }
        }
        for (p, pair) in chains.iter().enumerate() {
            for (i, &chain) in pair.iter().enumerate() {
                if 2 * p + i < t.rows {
                    store(b, t.row + 2 * p + i, t.panel * PANEL + first, chain);
                }
            }
        }
    }
}

/// Out of line: the loops over a tile's rows are then short enough to be unrolled, which keeps chains in registers.
#[inline(never)]
unsafe fn store(b: &QuantBlock, row: usize, column: usize, chain: float32x4_t) {
    // SAFETY: forwarded.
    unsafe { kernel::store(b, row, column, chain) }
}

/// A tile shape, optimised as a function of its own.
#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn shape<const P: usize>(b: &QuantBlock, t: &Tile) {
    // SAFETY: forwarded.
    unsafe { tile::<P>(b, t) }
}

#[target_feature(enable = "neon")]
unsafe fn block(b: &QuantBlock) {
    // SAFETY: forwarded, to a CPU with both instructions; tiles have at most 2 * PAIRS rows.
    unsafe {
        if b.rows == 1 {
            return (NEON_DOTPROD.block)(b);
        }
        kernel::block::<NeonDotprod>(b, (2 * PAIRS, 1), |b, t| match t.rows.div_ceil(2) {
            1 => shape::<1>(b, t),
            2 => shape::<2>(b, t),
            3 => shape::<3>(b, t),
            _ => shape::<PAIRS>(b, t),
        });
    }
}

pub(in crate::cpu) static NEON_I8MM: QuantKernels =
    QuantKernels { name: "neon-i8mm", quantise: NEON_DOTPROD.quantise, block, int8: &int8::NEON_I8MM };
