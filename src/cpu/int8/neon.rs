//! NEON, with and without the dot product instruction.

use std::arch::aarch64::*;

use super::super::quant::kernel::QuantOps;
use super::super::quant::neon::{Neon, NeonDotprod};
use super::kernel::{Int8Ops, QUAD_BYTES, int8_table};

impl Int8Ops for Neon {
    const UNSIGNED: bool = false;
    const QUADS: usize = 2;
    /// Two partial sums a column: the columns 0 and 1, the columns 2 and 3.
    type Sums = (int32x4_t, int32x4_t);
    type Weights = (int8x16_t, int8x16_t);
    type Activations = (int8x8_t, int8x8_t);
    #[inline(always)]
    unsafe fn start(p: *const i32, factor: i32) -> Self::Sums {
        // SAFETY: the CPU has NEON, here and below; the caller vouches for four values.
        unsafe {
            let start = vmulq_n_s32(vld1q_s32(p), factor);
            let zero = vdupq_n_s32(0);
            (vzip1q_s32(start, zero), vzip2q_s32(start, zero))
        }
    }
    #[inline(always)]
    unsafe fn weights(p: *const u8) -> Self::Weights {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { (vld1q_s8(p.cast()), vld1q_s8(p.add(QUAD_BYTES).cast())) }
    }
    #[inline(always)]
    unsafe fn activations(p: *const u8) -> Self::Activations {
        // SAFETY: as above; the caller vouches for eight bytes.
        unsafe {
            let quads: [i32; 2] = p.cast::<[i32; 2]>().read_unaligned();
            (vreinterpret_s8_s32(vdup_n_s32(quads[0])), vreinterpret_s8_s32(vdup_n_s32(quads[1])))
        }
    }
    /// Two products of at most 128 * 127 fit 16 bits.
    #[inline(always)]
    unsafe fn dot(sums: Self::Sums, w: Self::Weights, a: Self::Activations) -> Self::Sums {
        // SAFETY: as above.
        unsafe {
            let low = vmlal_s8(vmull_s8(vget_low_s8(w.0), a.0), vget_low_s8(w.1), a.1);
            let high = vmlal_s8(vmull_s8(vget_high_s8(w.0), a.0), vget_high_s8(w.1), a.1);
            (vpadalq_s16(sums.0, low), vpadalq_s16(sums.1, high))
        }
    }
    #[inline(always)]
    unsafe fn totals(sums: Self::Sums) -> float32x4_t {
        // SAFETY: as above.
        unsafe { Self::floats(vpaddq_s32(sums.0, sums.1)) }
    }
    #[inline(always)]
    unsafe fn larger_ints(x: float32x4_t, y: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(x), vreinterpretq_s32_f32(y))) }
    }
}

impl Int8Ops for NeonDotprod {
    const UNSIGNED: bool = false;
    const QUADS: usize = 1;
    type Sums = int32x4_t;
    type Weights = int8x16_t;
    type Activations = int8x16_t;
    #[inline(always)]
    unsafe fn start(p: *const i32, factor: i32) -> int32x4_t {
        // SAFETY: the CPU has NEON, here and below; the caller vouches for four values.
        unsafe { vmulq_n_s32(vld1q_s32(p), factor) }
    }
    #[inline(always)]
    unsafe fn weights(p: *const u8) -> int8x16_t {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { vld1q_s8(p.cast()) }
    }
    #[inline(always)]
    unsafe fn activations(p: *const u8) -> int8x16_t {
        // SAFETY: as above; the caller vouches for four bytes.
        unsafe { vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn dot(mut sums: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        // SAFETY: the CPU has the dot product instruction, which touches registers alone.
        unsafe {
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {w:v}.16b, {a:v}.16b",
                sums = inout(vreg) sums,
                w = in(vreg) w,
                a = in(vreg) a,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sums
    }
    #[inline(always)]
    unsafe fn totals(sums: int32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { Self::floats(sums) }
    }
    #[inline(always)]
    unsafe fn larger_ints(x: float32x4_t, y: float32x4_t) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(x), vreinterpretq_s32_f32(y))) }
    }
}

int8_table!(NEON, "neon", Neon, (3, 1), 2: (1, 1) (2, 1) (3, 1));
int8_table!(NEON_DOTPROD, "neon", NeonDotprod, (6, 1), 4: (1, 1) (2, 1) (3, 1) (4, 1) (5, 1) (6, 1));
