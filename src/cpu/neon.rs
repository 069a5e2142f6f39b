//! NEON (every aarch64 CPU): four lanes.

use std::arch::aarch64::*;

use super::gemm;
use super::simd::{Vector, vector_operations};
use super::table::kernel_table;

/// Widens four binary16 values.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: the instruction is part of NEON and touches registers alone.
    unsafe {
        std::arch::asm!(
            "fcvtl {wide:v}.4s, {bits:v}.4h",
            wide = out(vreg) wide,
            bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    wide
}

impl Vector for float32x4_t {
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn top_bits<const SHIFT: i32>(self) -> Self {
        // SAFETY: forwarded.
        unsafe { vcvtq_f32_u32(vshrq_n_u32::<SHIFT>(vreinterpretq_u32_f32(self))) }
    }
    vector_operations! {
        fn load(p: *const f32) -> Self = vld1q_f32(p);
        fn store(self, p: *mut f32) = vst1q_f32(p, self);
        fn load_f16(p: *const u16) -> Self = widen_f16(vld1_u16(p));
        fn load_bf16(p: *const u16) -> Self = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
        fn load_i8(p: *const i8) -> Self = {
            let four = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        };
        fn masked_bits(self, mask: u32) -> Self =
            vcvtq_f32_u32(vandq_u32(vreinterpretq_u32_f32(self), vdupq_n_u32(mask)));
        fn splat(x: f32) -> Self = vdupq_n_f32(x);
        fn add(self, o: Self) -> Self = vaddq_f32(self, o);
        fn sub(self, o: Self) -> Self = vsubq_f32(self, o);
        fn mul(self, o: Self) -> Self = vmulq_f32(self, o);
        fn div(self, o: Self) -> Self = vdivq_f32(self, o);
        fn mul_add(self, b: Self, c: Self) -> Self = vfmaq_f32(c, self, b);
        fn select_lt(x: Self, y: Self, a: Self, b: Self) -> Self = vbslq_f32(vcltq_f32(x, y), a, b);
        fn abs(self) -> Self = vabsq_f32(self);
        fn neg(self) -> Self = vnegq_f32(self);
        fn first(self, n: usize, rest: Self) -> Self =
            vbslq_f32(vcltq_u32(vld1q_u32([0, 1, 2, 3].as_ptr()), vdupq_n_u32(n as u32)), self, rest);
        fn zip(self, o: Self) -> (Self, Self) = (vzip1q_f32(self, o), vzip2q_f32(self, o));
        fn greatest(self) -> f32 = vmaxnmvq_f32(self);
        fn exponent(self) -> Self = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vreinterpretq_s32_f32(self)));
    }
}

/// Rows of a register tile: 6 x 16 takes 24 of the 32 registers.
pub(super) const fn tile_rows(_panels: usize) -> usize {
    6
}
/// Panels of a register tile.
pub(super) const TILE_PANELS: usize = 1;
/// Panels abreast of a single row: as many streams for the memory to serve, in half the registers or less.
const WIDE_PANELS: usize = 4;

/// A tile shape, optimised as a function of its own; see the AVX2 instance.
///
/// # Safety
/// [`gemm::tile`]'s contract.
#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn shape<const MR: usize, const NV: usize>(t: &gemm::Tile) {
    // SAFETY: forwarded.
    unsafe { gemm::tile::<float32x4_t, MR, NV>(t) }
}

#[inline(always)]
unsafe fn tile(t: &gemm::Tile) {
    // SAFETY: forwarded; rows <= tile_rows(1), one panel.
    unsafe {
        macro_rules! rows {
            ($($mr:literal)*) => {
                match t.rows { $($mr => shape::<$mr, 4>(t),)* _ => unreachable!("tile of {} rows", t.rows) }
            };
        }
        if t.panels == WIDE_PANELS {
            return shape::<1, { 4 * WIDE_PANELS }>(t);
        }
        rows!(1 2 3 4 5 6)
    }
}

/// As [`shape`], over 16-bit panels.
///
/// # Safety
/// [`gemm::tile`]'s contract.
#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn half_shape<H: gemm::Half, const MR: usize, const NV: usize>(t: &gemm::Tile<u16>) {
    // SAFETY: forwarded.
    unsafe { gemm::half_tile::<float32x4_t, H, MR, NV>(t) }
}

#[inline(always)]
unsafe fn half_tile<H: gemm::Half>(t: &gemm::Tile<u16>) {
    // SAFETY: forwarded; at most `gemm::HALF_ROWS` rows, one panel.
    unsafe {
        match (t.rows, t.panels) {
            (1, WIDE_PANELS) => half_shape::<H, 1, { 4 * WIDE_PANELS }>(t),
            (1, _) => half_shape::<H, 1, 4>(t),
            (2, _) => half_shape::<H, 2, 4>(t),
            (3, _) => half_shape::<H, 3, 4>(t),
            _ => half_shape::<H, 4, 4>(t),
        }
    }
}

kernel_table!("neon", "neon", float32x4_t, tile_rows, TILE_PANELS, WIDE_PANELS);
