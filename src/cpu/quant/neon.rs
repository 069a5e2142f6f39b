//! NEON, with and without the dot product instruction.

use std::arch::aarch64::*;

use super::super::int8::neon as int8;
use super::kernel::{QuantOps, quant_table};

/// What both instances share.
macro_rules! common {
    () => {
        type V = float32x4_t;
        type Ints = int32x4_t;
        type Quads = int8x16_t;
        const SIGNED_START: i32 = 0;
        #[inline(always)]
        unsafe fn splat(x: i32) -> int32x4_t {
            // SAFETY: as above.
            unsafe { vdupq_n_s32(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> int8x16_t {
            // SAFETY: as above; the caller vouches for the bytes.
            unsafe { vld1q_s8(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store(w: int8x16_t, p: *mut u8) {
            // SAFETY: as above; the caller vouches for the bytes.
            unsafe { vst1q_s8(p.cast(), w) }
        }
        #[inline(always)]
        unsafe fn broadcast(a: *const i8) -> int8x16_t {
            // SAFETY: as above; the caller vouches for four bytes.
            unsafe { vreinterpretq_s8_s32(vdupq_n_s32(a.cast::<i32>().read_unaligned())) }
        }
        #[inline(always)]
        unsafe fn signed(p: *const u8) -> int8x16_t {
            // SAFETY: forwarded.
            unsafe { Self::load(p) }
        }
        #[inline(always)]
        unsafe fn nibbles(p: *const u8) -> (int8x16_t, int8x16_t) {
            // SAFETY: as above; the caller vouches for the bytes.
            unsafe {
                let bytes = vld1q_u8(p);
                let (low, high) = (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes));
                (vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high))
            }
        }
        #[inline(always)]
        unsafe fn dot_nibbles(acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
            // SAFETY: forwarded.
            unsafe { Self::dot_signed(acc, w, a) }
        }
        #[inline(always)]
        unsafe fn floats(x: int32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vcvtq_f32_s32(x) }
        }
        #[inline(always)]
        unsafe fn scales(p: *const u16) -> float32x4_t {
            // SAFETY: the CPU has NEON, here and below; the caller vouches for four values.
            unsafe { super::super::neon::widen_f16(vld1_u16(p)) }
        }
        #[inline(always)]
        unsafe fn larger_bits(x: float32x4_t, y: float32x4_t) -> float32x4_t {
            // SAFETY: as above.
            unsafe { vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(x), vreinterpretq_u32_f32(y))) }
        }
        #[inline(always)]
        unsafe fn low_bytes(x: float32x4_t, p: *mut i8) {
            // SAFETY: as above; the caller vouches for four bytes.
            unsafe {
                let halves = vmovn_u32(vreinterpretq_u32_f32(x));
                let bytes = vmovn_u16(vcombine_u16(halves, halves));
                p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
            }
        }
    };
}

pub(in crate::cpu) struct Neon;

impl QuantOps for Neon {
    common!();
    #[inline(always)]
    unsafe fn dot_signed(acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        // SAFETY: the CPU has NEON.
        unsafe {
            let low = vmull_s8(vget_low_s8(w), vget_low_s8(a));
            let high = vmull_s8(vget_high_s8(w), vget_high_s8(a));
            // Pairs of neighbouring products, then pairs of those: one lane a column.
            vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
        }
    }
}

pub(in crate::cpu) struct NeonDotprod;

impl QuantOps for NeonDotprod {
    common!();
    #[inline(always)]
    unsafe fn dot_signed(acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        let mut acc = acc;
        // SAFETY: the CPU has the dot product instruction, which touches registers alone.
        unsafe {
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {acc:v}.4s, {w:v}.16b, {a:v}.16b",
                acc = inout(vreg) acc,
                w = in(vreg) w,
                a = in(vreg) a,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        acc
    }
}

quant_table!(NEON, "neon", "neon", Neon, int8::NEON, 4 x 1: 2 3 4);
quant_table!(NEON_DOTPROD, "neon-dotprod", "neon", NeonDotprod, int8::NEON_DOTPROD, 4 x 1: 2 3 4);
