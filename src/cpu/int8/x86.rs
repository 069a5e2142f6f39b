//! AVX2, AVX-VNNI and AVX-512 VNNI.
//!
//! vpdpbusd multiplies unsigned by signed bytes, activations by weights. AVX2's vpmaddubsw does so too, but adds two
//! products in 16 bits, which 255 * 127 twice would not fit: it gets the magnitudes of signed activations, at most 128,
//! and weights with their signs, so that two products are at most 32512.

use std::arch::x86_64::*;

use super::super::quant::kernel::QuantOps;
use super::super::quant::x86::{Avx2, Avx512Vnni, AvxVnni};
use super::kernel::{Int8Ops, int8_table};

/// The four activations at `p` as one value to broadcast.
#[inline(always)]
unsafe fn quad(p: *const u8) -> i32 {
    // SAFETY: the caller vouches for four bytes.
    unsafe { p.cast::<i32>().read_unaligned() }
}

impl Int8Ops for Avx2 {
    const UNSIGNED: bool = false;
    const QUADS: usize = 1;
    type Sums = __m256i;
    type Weights = __m256i;
    /// The activations, and their magnitudes.
    type Activations = (__m256i, __m256i);
    #[inline(always)]
    unsafe fn start(p: *const i32, factor: i32) -> __m256i {
        // SAFETY: the CPU has AVX2, here and below; the caller vouches for eight values.
        unsafe { _mm256_mullo_epi32(_mm256_loadu_si256(p.cast()), _mm256_set1_epi32(factor)) }
    }
    #[inline(always)]
    unsafe fn weights(p: *const u8) -> __m256i {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn activations(p: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as above; forwarded.
        unsafe {
            let a = _mm256_set1_epi32(quad(p));
            (a, _mm256_abs_epi8(a))
        }
    }
    #[inline(always)]
    unsafe fn dot(sums: __m256i, w: __m256i, (a, magnitude): (__m256i, __m256i)) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(w, a));
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn totals(sums: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { Self::floats(sums) }
    }
    #[inline(always)]
    unsafe fn larger_ints(x: __m256, y: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y))) }
    }
}

impl Int8Ops for AvxVnni {
    const UNSIGNED: bool = true;
    const QUADS: usize = 1;
    type Sums = __m256i;
    type Weights = __m256i;
    type Activations = __m256i;
    #[inline(always)]
    unsafe fn start(p: *const i32, factor: i32) -> __m256i {
        // SAFETY: the CPU has AVX2 and AVX-VNNI, here and below; the caller vouches for eight values.
        unsafe { _mm256_mullo_epi32(_mm256_loadu_si256(p.cast()), _mm256_set1_epi32(factor)) }
    }
    #[inline(always)]
    unsafe fn weights(p: *const u8) -> __m256i {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn activations(p: *const u8) -> __m256i {
        // SAFETY: as above; forwarded.
        unsafe { _mm256_set1_epi32(quad(p)) }
    }
    #[inline(always)]
    unsafe fn dot(sums: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_dpbusd_avx_epi32(sums, a, w) }
    }
    #[inline(always)]
    unsafe fn totals(sums: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { Self::floats(sums) }
    }
    #[inline(always)]
    unsafe fn larger_ints(x: __m256, y: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y))) }
    }
}

impl Int8Ops for Avx512Vnni {
    const UNSIGNED: bool = true;
    const QUADS: usize = 1;
    type Sums = __m512i;
    type Weights = __m512i;
    type Activations = __m512i;
    #[inline(always)]
    unsafe fn start(p: *const i32, factor: i32) -> __m512i {
        // SAFETY: the CPU has AVX-512 F, BW, VL and VNNI, here and below; the caller vouches for sixteen values.
        unsafe { _mm512_mullo_epi32(_mm512_loadu_si512(p.cast()), _mm512_set1_epi32(factor)) }
    }
    #[inline(always)]
    unsafe fn weights(p: *const u8) -> __m512i {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn activations(p: *const u8) -> __m512i {
        // SAFETY: as above; forwarded.
        unsafe { _mm512_set1_epi32(quad(p)) }
    }
    #[inline(always)]
    unsafe fn dot(sums: __m512i, w: __m512i, a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(sums, a, w) }
    }
    #[inline(always)]
    unsafe fn totals(sums: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { Self::floats(sums) }
    }
    #[inline(always)]
    unsafe fn larger_ints(x: __m512, y: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y))) }
    }
}

int8_table!(AVX2, "avx2,fma,f16c", Avx2, (4, 1), 4: (1, 1) (2, 1) (3, 1) (4, 1));
int8_table!(AVX_VNNI, "avx2,fma,f16c,avxvnni", AvxVnni, (6, 1), 4: (1, 1) (2, 1) (3, 1) (4, 1) (5, 1) (6, 1));
int8_table!(
    AVX512_VNNI, "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma", Avx512Vnni, (8, 3), 4:
    (1, 1) (2, 1) (3, 1) (4, 1) (5, 1) (6, 1) (7, 1) (8, 1)
    (1, 2) (2, 2) (3, 2) (4, 2) (5, 2) (6, 2) (7, 2) (8, 2)
    (1, 3) (2, 3) (3, 3) (4, 3) (5, 3) (6, 3) (7, 3) (8, 3)
);
