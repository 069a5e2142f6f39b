//! AVX2, AVX-VNNI and AVX-512 VNNI.
//!
//! vpdpbusd multiplies unsigned by signed bytes: signed weights are moved up by 128 (their sign bit flipped), and the
//! accumulators start at -128 times the sum of the activations. AVX2's vpmaddubsw adds two products in 16 bits, which
//! magnitudes of weights (at most 128) and activations (at most 127) do not overflow.

use std::arch::x86_64::*;

use super::super::int8::x86 as int8;
use super::kernel::{QuantOps, quant_table};

/// The four activations at `a` as one value.
#[inline(always)]
unsafe fn quad(a: *const i8) -> i32 {
    // SAFETY: the caller vouches for four bytes.
    unsafe { a.cast::<i32>().read_unaligned() }
}

/// What the two 256-bit instances share.
macro_rules! common_256 {
    () => {
        type V = __m256;
        type Ints = __m256i;
        type Quads = __m256i;
        #[inline(always)]
        unsafe fn splat(x: i32) -> __m256i {
            // SAFETY: the CPU has AVX2, here and below.
            unsafe { _mm256_set1_epi32(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> __m256i {
            // SAFETY: as above; the caller vouches for the bytes.
            unsafe { _mm256_loadu_si256(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store(w: __m256i, p: *mut u8) {
            // SAFETY: as above; the caller vouches for the bytes.
            unsafe { _mm256_storeu_si256(p.cast(), w) }
        }
        #[inline(always)]
        unsafe fn broadcast(a: *const i8) -> __m256i {
            // SAFETY: as above; forwarded.
            unsafe { _mm256_set1_epi32(quad(a)) }
        }
        #[inline(always)]
        unsafe fn nibbles(p: *const u8) -> (__m256i, __m256i) {
            // SAFETY: as above; the caller vouches for the bytes.
            unsafe {
                let (bytes, low) = (_mm256_loadu_si256(p.cast()), _mm256_set1_epi8(15));
                (_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low))
            }
        }
        #[inline(always)]
        unsafe fn floats(x: __m256i) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_cvtepi32_ps(x) }
        }
        #[inline(always)]
        unsafe fn scales(p: *const u16) -> __m256 {
            // SAFETY: as above, with F16C; the caller vouches for eight values.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn larger_bits(x: __m256, y: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(x), _mm256_castps_si256(y))) }
        }
        #[inline(always)]
        unsafe fn low_bytes(x: __m256, p: *mut i8) {
            // SAFETY: as above; the caller vouches for eight bytes.
            unsafe {
                let pick = _mm256_set1_epi32(0x0c08_0400);
                let bytes = _mm256_shuffle_epi8(_mm256_castps_si256(x), pick);
                let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                let both = _mm_unpacklo_epi32(low, high);
                _mm_storel_epi64(p.cast(), both);
            }
        }
    };
}

pub(in crate::cpu) struct Avx2;

impl QuantOps for Avx2 {
    common_256!();
    const SIGNED_START: i32 = 0;
    #[inline(always)]
    unsafe fn signed(p: *const u8) -> __m256i {
        // SAFETY: forwarded.
        unsafe { Self::load(p) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let a = _mm256_sign_epi8(a, w);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), a);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn dot_nibbles(acc: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let pairs = _mm256_maddubs_epi16(w, a);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

pub(in crate::cpu) struct AvxVnni;

impl QuantOps for AvxVnni {
    common_256!();
    const SIGNED_START: i32 = -128;
    #[inline(always)]
    unsafe fn signed(p: *const u8) -> __m256i {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm256_xor_si256(Self::load(p), _mm256_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_dpbusd_avx_epi32(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn dot_nibbles(acc: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_dpbusd_avx_epi32(acc, w, a) }
    }
}

pub(in crate::cpu) struct Avx512Vnni;

impl QuantOps for Avx512Vnni {
    type V = __m512;
    type Ints = __m512i;
    type Quads = __m512i;
    const SIGNED_START: i32 = -128;
    #[inline(always)]
    unsafe fn splat(x: i32) -> __m512i {
        // SAFETY: the CPU has AVX-512 F, BW, VL and VNNI, here and below.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(w: __m512i, p: *mut u8) {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm512_storeu_si512(p.cast(), w) }
    }
    #[inline(always)]
    unsafe fn broadcast(a: *const i8) -> __m512i {
        // SAFETY: as above; forwarded.
        unsafe { _mm512_set1_epi32(quad(a)) }
    }
    #[inline(always)]
    unsafe fn signed(p: *const u8) -> __m512i {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe { _mm512_xor_si512(Self::load(p), _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> (__m512i, __m512i) {
        // SAFETY: as above; the caller vouches for the bytes.
        unsafe {
            let (bytes, low) = (_mm512_loadu_si512(p.cast()), _mm512_set1_epi8(15));
            (_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low))
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn dot_nibbles(acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(acc, w, a) }
    }
    #[inline(always)]
    unsafe fn floats(x: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn scales(p: *const u16) -> __m512 {
        // SAFETY: as above; the caller vouches for sixteen values.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn larger_bits(x: __m512, y: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(x), _mm512_castps_si512(y))) }
    }
    #[inline(always)]
    unsafe fn low_bytes(x: __m512, p: *mut i8) {
        // SAFETY: as above; the caller vouches for sixteen bytes.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(x))) }
    }
}

quant_table!(AVX2, "avx2", "avx2,fma,f16c", Avx2, int8::AVX2, 4 x 1: 2 3 4);
quant_table!(AVX_VNNI, "avx-vnni", "avx2,fma,f16c,avxvnni", AvxVnni, int8::AVX_VNNI, 6 x 1: 2 3 4 5 6);
quant_table!(AVX512_VNNI, "avx512-vnni", "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma", Avx512Vnni, int8::AVX512_VNNI,
    6 x 2: 2 3 4 5 6);
