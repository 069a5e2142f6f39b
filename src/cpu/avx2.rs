//! AVX2 with FMA: eight lanes.

use std::arch::x86_64::*;

use super::gemm;
use super::simd::{Vector, vector_operations};
use super::table::kernel_table;

/// Sum of eight lanes by halving.
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn fold(v: __m256) -> f32 {
    // SAFETY: forwarded.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// The greatest of eight lanes.
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub(super) unsafe fn greatest(v: __m256) -> f32 {
    // SAFETY: forwarded.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// All bits set in the first `n` lanes.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    // SAFETY: forwarded.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

impl Vector for __m256 {
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn top_bits<const SHIFT: i32>(self) -> Self {
        // SAFETY: forwarded.
        unsafe { _mm256_cvtepi32_ps(_mm256_srli_epi32::<SHIFT>(_mm256_castps_si256(self))) }
    }
    vector_operations! {
        fn load(p: *const f32) -> Self = _mm256_loadu_ps(p);
        fn store(self, p: *mut f32) = _mm256_storeu_ps(p, self);
        fn load_part(p: *const f32, n: usize) -> Self = _mm256_maskload_ps(p, mask(n));
        fn store_part(self, p: *mut f32, n: usize) = _mm256_maskstore_ps(p, mask(n), self);
        fn first(self, n: usize, rest: Self) -> Self = _mm256_blendv_ps(rest, self, _mm256_castsi256_ps(mask(n)));
        fn zip(self, o: Self) -> (Self, Self) = {
            // Of each half of 128 bits.
            let (low, high) = (_mm256_unpacklo_ps(self, o), _mm256_unpackhi_ps(self, o));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        };
        fn load_f16(p: *const u16) -> Self = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        fn load_bf16(p: *const u16) -> Self = {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        };
        fn load_i8(p: *const i8) -> Self = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
        fn masked_bits(self, mask: u32) -> Self =
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_castps_si256(self), _mm256_set1_epi32(mask as i32)));
        fn splat(x: f32) -> Self = _mm256_set1_ps(x);
        fn add(self, o: Self) -> Self = _mm256_add_ps(self, o);
        fn sub(self, o: Self) -> Self = _mm256_sub_ps(self, o);
        fn mul(self, o: Self) -> Self = _mm256_mul_ps(self, o);
        fn div(self, o: Self) -> Self = _mm256_div_ps(self, o);
        fn mul_add(self, b: Self, c: Self) -> Self = _mm256_fmadd_ps(self, b, c);
        fn select_lt(x: Self, y: Self, a: Self, b: Self) -> Self =
            _mm256_blendv_ps(b, a, _mm256_cmp_ps::<_CMP_LT_OQ>(x, y));
        fn lesser(x: Self, y: Self) -> Self = _mm256_min_ps(x, y); // the instruction's rule for NaN and zeros is the trait's
        fn greater(x: Self, y: Self) -> Self = _mm256_max_ps(x, y);
        fn neg(self) -> Self = _mm256_xor_ps(self, _mm256_set1_ps(-0.0));
        fn abs(self) -> Self = _mm256_and_ps(self, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff)));
        fn exponent(self) -> Self = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(self)));
        fn fold(self) -> f32 = fold(self);
        fn greatest(self) -> f32 = greatest(self);
    }
}

/// Rows of a register tile: 6 x 16 takes 12 of the 16 registers.
pub(super) const fn tile_rows(_panels: usize) -> usize {
    6
}
/// Panels of a register tile.
pub(super) const TILE_PANELS: usize = 1;
/// Panels abreast of a single row: as many streams for the memory to serve, in half the registers or less.
const WIDE_PANELS: usize = 4;

/// A tile shape, optimised as a function of its own. Inlined into the dispatch below before they are optimised, the
/// shapes together are too much for the compiler: it keeps the accumulators in memory, at a third of the speed.
///
/// # Safety
/// [`gemm::tile`]'s contract.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn shape<const MR: usize, const NV: usize>(t: &gemm::Tile) {
    // SAFETY: forwarded.
    unsafe { gemm::tile::<__m256, MR, NV>(t) }
}

#[inline(always)]
unsafe fn tile(t: &gemm::Tile) {
    // SAFETY: forwarded; rows <= tile_rows(1), one panel.
    unsafe {
        macro_rules! rows {
            ($($mr:literal)*) => {
                match t.rows { $($mr => shape::<$mr, 2>(t),)* _ => unreachable!("tile of {} rows", t.rows) }
            };
        }
        if t.panels == WIDE_PANELS {
            return shape::<1, { 2 * WIDE_PANELS }>(t);
        }
        rows!(1 2 3 4 5 6)
    }
}

/// As [`shape`], over 16-bit panels.
///
/// # Safety
/// [`gemm::tile`]'s contract.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn half_shape<H: gemm::Half, const MR: usize, const NV: usize>(t: &gemm::Tile<u16>) {
    // SAFETY: forwarded.
    unsafe { gemm::half_tile::<__m256, H, MR, NV>(t) }
}

#[inline(always)]
unsafe fn half_tile<H: gemm::Half>(t: &gemm::Tile<u16>) {
    // SAFETY: forwarded; at most `gemm::HALF_ROWS` rows, one panel.
    unsafe {
        match (t.rows, t.panels) {
            (1, WIDE_PANELS) => half_shape::<H, 1, { 2 * WIDE_PANELS }>(t),
            (1, _) => half_shape::<H, 1, 2>(t),
            (2, _) => half_shape::<H, 2, 2>(t),
            (3, _) => half_shape::<H, 3, 2>(t),
            _ => half_shape::<H, 4, 2>(t),
        }
    }
}

kernel_table!("avx2", "avx2,fma,f16c", __m256, tile_rows, TILE_PANELS, WIDE_PANELS);
