//! AVX-512F: sixteen lanes.

use std::arch::x86_64::*;

use super::gemm;
use super::simd::{Vector, vector_operations};
use super::table::kernel_table;

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Vector for __m512 {
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn scale_down<const DOWN: u8>(self, n: Self, _sum: Self) -> Self {
        // SAFETY: forwarded.
        unsafe { self.scale_pow2(n) }
    }
    #[inline(always)]
    unsafe fn top_bits<const SHIFT: i32>(self) -> Self {
        const { assert!(SHIFT == 24 || SHIFT == 28) };
        // SAFETY: forwarded.
        unsafe {
            let bits = _mm512_castps_si512(self);
            let top = if SHIFT == 24 { _mm512_srli_epi32::<24>(bits) } else { _mm512_srli_epi32::<28>(bits) };
            _mm512_cvtepi32_ps(top)
        }
    }
    vector_operations! {
        fn load(p: *const f32) -> Self = _mm512_loadu_ps(p);
        fn store(self, p: *mut f32) = _mm512_storeu_ps(p, self);
        fn load_part(p: *const f32, n: usize) -> Self = _mm512_maskz_loadu_ps(mask(n), p);
        fn store_part(self, p: *mut f32, n: usize) = _mm512_mask_storeu_ps(p, mask(n), self);
        fn load_f16(p: *const u16) -> Self = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn load_bf16(p: *const u16) -> Self = {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        };
        fn load_i8(p: *const i8) -> Self = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        fn masked_bits(self, mask: u32) -> Self =
            _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_castps_si512(self), _mm512_set1_epi32(mask as i32)));
        fn splat(x: f32) -> Self = _mm512_set1_ps(x);
        fn add(self, o: Self) -> Self = _mm512_add_ps(self, o);
        fn sub(self, o: Self) -> Self = _mm512_sub_ps(self, o);
        fn mul(self, o: Self) -> Self = _mm512_mul_ps(self, o);
        fn div(self, o: Self) -> Self = _mm512_div_ps(self, o);
        fn mul_add(self, b: Self, c: Self) -> Self = _mm512_fmadd_ps(self, b, c);
        fn select_lt(x: Self, y: Self, a: Self, b: Self) -> Self =
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, y), b, a);
        fn lesser(x: Self, y: Self) -> Self = _mm512_min_ps(x, y); // the instruction's rule for NaN and zeros is the trait's
        fn greater(x: Self, y: Self) -> Self = _mm512_max_ps(x, y);
        fn abs(self) -> Self = _mm512_abs_ps(self);
        fn neg(self) -> Self = _mm512_xor_ps(self, _mm512_set1_ps(-0.0));
        fn scale_pow2(self, n: Self) -> Self = _mm512_scalef_ps(self, n);
        fn exponent(self) -> Self = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self)));
        fn first(self, n: usize, rest: Self) -> Self = _mm512_mask_mov_ps(rest, mask(n), self);
        fn zip(self, o: Self) -> (Self, Self) = {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_or_si512(low, _mm512_set1_epi32(8));
            (_mm512_permutex2var_ps(self, low, o), _mm512_permutex2var_ps(self, high, o))
        };
        fn greatest(self) -> f32 = {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self)));
            super::avx2::greatest(_mm256_max_ps(_mm512_castps512_ps256(self), high))
        };
        fn fold(self) -> f32 = {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self)));
            super::avx2::fold(_mm256_add_ps(_mm512_castps512_ps256(self), high))
        };
    }
}

/// Rows of a register tile: 8 x 48 and 12 x 32 keep 24 chains in flight, enough to hide the FMA latency twice over.
pub(super) const fn tile_rows(panels: usize) -> usize {
    if panels == TILE_PANELS { 8 } else { 12 }
}
/// Panels of a register tile.
pub(super) const TILE_PANELS: usize = 3;
/// Panels abreast of a single row: as many streams for the memory to serve, in half the registers or less.
const WIDE_PANELS: usize = 8;

/// A tile shape, optimised as a function of its own. Inlined into the dispatch below before they are optimised, the
/// shapes together are too much for the compiler: it keeps the accumulators in memory, at a third of the speed.
///
/// # Safety
/// [`gemm::tile`]'s contract.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
#[inline(never)]
unsafe fn shape<const MR: usize, const NV: usize>(t: &gemm::Tile) {
    // SAFETY: forwarded.
    unsafe { gemm::tile::<__m512, MR, NV>(t) }
}

#[inline(always)]
unsafe fn tile(t: &gemm::Tile) {
    // SAFETY: forwarded; rows <= tile_rows(panels) and panels <= TILE_PANELS.
    unsafe {
        macro_rules! rows {
            ($nv:literal: $($mr:literal)*) => {
                match t.rows { $($mr => shape::<$mr, $nv>(t),)* _ => unreachable!("tile of {} rows", t.rows) }
            };
        }
        match t.panels {
            WIDE_PANELS => shape::<1, { WIDE_PANELS }>(t),
            1 => rows!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
            2 => rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
            _ => rows!(3: 1 2 3 4 5 6 7 8),
        }
    }
}

/// As [`shape`], over 16-bit panels.
///
/// # Safety
/// [`gemm::tile`]'s contract.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
#[inline(never)]
unsafe fn half_shape<H: gemm::Half, const MR: usize, const NV: usize>(t: &gemm::Tile<u16>) {
    // SAFETY: forwarded.
    unsafe { gemm::half_tile::<__m512, H, MR, NV>(t) }
}

#[inline(always)]
unsafe fn half_tile<H: gemm::Half>(t: &gemm::Tile<u16>) {
    // SAFETY: forwarded; at most `gemm::HALF_ROWS` rows and TILE_PANELS panels.
    unsafe {
        match (t.rows, t.panels) {
            (1, 1) => half_shape::<H, 1, 1>(t),
            (1, 2) => half_shape::<H, 1, 2>(t),
            (1, 3) => half_shape::<H, 1, 3>(t),
            (1, _) => half_shape::<H, 1, { WIDE_PANELS }>(t),
            (2, 1) => half_shape::<H, 2, 1>(t),
            (2, 2) => half_shape::<H, 2, 2>(t),
            (2, _) => half_shape::<H, 2, 3>(t),
            (3, 1) => half_shape::<H, 3, 1>(t),
            (3, 2) => half_shape::<H, 3, 2>(t),
            (3, _) => half_shape::<H, 3, 3>(t),
            (_, 1) => half_shape::<H, 4, 1>(t),
            (_, 2) => half_shape::<H, 4, 2>(t),
            _ => half_shape::<H, 4, 3>(t),
        }
    }
}

kernel_table!("avx512", "avx512f,avx512dq,avx2,fma,f16c", __m512, tile_rows, TILE_PANELS, WIDE_PANELS);
