//! AMX: an instruction gives the sums of a block for 16 rows and 16 columns. Sums of a chain's blocks go through memory
//! to the registers that scale them, in the order of the other kernels. What a few rows would leave of a tile is unused:
//! they take VNNI.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::amx::{Lines, Split, TILE_BYTES, TILE_ROWS, TILE_SUMS, Tiles};
use super::super::gemm::finish_rows;
use super::super::int8::amx as int8;
use super::super::prefetch_write;
use super::super::simd::{PANEL, Vector};
use super::kernel::{self, CHAIN_BLOCKS, QBLOCK, QuantBlock, QuantKernels, QuantKind, QuantOps};
use super::x86::{AVX512_VNNI, Avx512Vnni};

/// Fewer rows take VNNI, whose cycles for six are about those of a tile, its way through memory included.
const FEWEST_ROWS: usize = 6;

/// Bytes of a block of signed bytes.
const BLOCK_BYTES: usize = QuantKind::Q8.block_bytes();

/// Rows whose chains are in registers at a time: enough to hide the latency of an FMA.
const CHAIN_ROWS: usize = TILE_ROWS / 2;

/// The sums of `blocks` blocks of a tile: rows at `a`, `lda` bytes apart, by signed weights at `w`.
///
/// # Safety
/// This thread's tiles are configured for 32 k; rows and weights have so many blocks, `sums` a tile for each.
unsafe fn products(blocks: usize, a: *const i8, lda: usize, w: *const u8, sums: *mut i32) {
    // SAFETY: forwarded. A tile of rows reads 32 bytes of each row, one of weights the 512 bytes of a block; a tile of
    // sums writes its rows of 64 bytes. Four blocks have tiles of their own, and a block's sums are stored when the
    // next one's are under way.
    unsafe {
        for block in (0..blocks / 4 * 4).step_by(4) {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm4, [{a} + {lda}*1]", "tileloadd tmm6, [{w} + {line}*1]", "tdpbssd tmm0, tmm4, tmm6",
                "tilezero tmm1",
                "tileloadd tmm5, [{a} + {lda}*1 + 32]", "tileloadd tmm7, [{w} + {line}*1 + 512]", "tdpbssd tmm1, tmm5, tmm7",
                "tilestored [{sums} + {line}*1], tmm0",
                "tilezero tmm2",
                "tileloadd tmm4, [{a} + {lda}*1 + 64]", "tileloadd tmm6, [{w} + {line}*1 + 1024]", "tdpbssd tmm2, tmm4, tmm6",
                "tilestored [{sums} + {line}*1 + 1024], tmm1",
                "tilezero tmm3",
                "tileloadd tmm5, [{a} + {lda}*1 + 96]", "tileloadd tmm7, [{w} + {line}*1 + 1536]", "tdpbssd tmm3, tmm5, tmm7",
                "tilestored [{sums} + {line}*1 + 2048], tmm2",
                "tilestored [{sums} + {line}*1 + 3072], tmm3",
                a = in(reg) a.wrapping_add(block * QBLOCK), lda = in(reg) lda,
                w = in(reg) w.wrapping_add(block * BLOCK_BYTES), line = in(reg) TILE_BYTES,
                sums = in(reg) sums.wrapping_add(block * TILE_SUMS),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags)
            );
        }
        for block in blocks / 4 * 4..blocks {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm4, [{a} + {lda}*1]", "tileloadd tmm6, [{w} + {line}*1]", "tdpbssd tmm0, tmm4, tmm6",
                "tilestored [{sums} + {line}*1], tmm0",
                a = in(reg) a.wrapping_add(block * QBLOCK), lda = in(reg) lda,
                w = in(reg) w.wrapping_add(block * BLOCK_BYTES), line = in(reg) TILE_BYTES,
                sums = in(reg) sums.wrapping_add(block * TILE_SUMS),
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// The chains of `MR` rows from `row` on, whose sums begin at `sums` in the first block's tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma")]
#[inline(never)]
unsafe fn chains<const MR: usize>(b: &QuantBlock, sums: *const i32, row: usize, panel: usize) {
    // SAFETY: forwarded.
    unsafe {
        let mut chains = [__m512::splat(0.0); MR];
        let scales = b.w_scales.wrapping_add(panel * b.row_blocks * PANEL);
        let a_scales = b.a_scales.wrapping_add(row * b.row_blocks);
        for block in 0..b.blocks {
            let scale = Avx512Vnni::scales(scales.wrapping_add(block * PANEL));
            for (r, chain) in chains.iter_mut().enumerate() {
                let sum = _mm512_load_si512(sums.wrapping_add(block * TILE_SUMS + r * PANEL).cast());
                let d = scale.mul(__m512::splat(*a_scales.wrapping_add(r * b.row_blocks + block)));
                *chain = Avx512Vnni::floats(sum).mul_add(d, *chain);
            }
        }
        for (r, &chain) in chains.iter().enumerate() {
            kernel::store(b, row + r, panel * PANEL, chain);
        }
    }
}

/// The chains of some rows of a tile whose first row is `first`, at most [`CHAIN_ROWS`] at a time.
unsafe fn scale(b: &QuantBlock, sums: *const i32, first: usize, rows: Range<usize>, panel: usize) {
    let parts = rows.len().div_ceil(CHAIN_ROWS);
    for i in 0..parts {
        let cut = |at: usize| rows.start + rows.len() * at / parts;
        let (row, end) = (cut(i), cut(i + 1));
        let sums = sums.wrapping_add((row - first) * PANEL);
        // SAFETY: forwarded.
        unsafe {
            match end - row {
                1 => chains::<1>(b, sums, row, panel),
                2 => chains::<2>(b, sums, row, panel),
                3 => chains::<3>(b, sums, row, panel),
                4 => chains::<4>(b, sums, row, panel),
                5 => chains::<5>(b, sums, row, panel),
                6 => chains::<6>(b, sums, row, panel),
                7 => chains::<7>(b, sums, row, panel),
                _ => chains::<CHAIN_ROWS>(b, sums, row, panel),
            }
        }
    }
}

/// Nibbles as signed bytes, in the order of [`QuantKind::Q8`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma")]
unsafe fn widen(blocks: usize, w: *const u8, out: *mut u8) {
    let bias = _mm512_set1_epi8(8);
    for block in 0..blocks {
        for quad in 0..QBLOCK / 8 {
            // SAFETY: forwarded; a block has four quads of nibbles and eight of bytes.
            unsafe {
                let (low, high) = Avx512Vnni::nibbles(w.add(block * QuantKind::Q4.block_bytes() + quad * TILE_BYTES));
                let to = out.add(block * BLOCK_BYTES + quad * TILE_BYTES);
                _mm512_store_si512(to.cast(), _mm512_sub_epi8(low, bias));
                _mm512_store_si512(to.add(BLOCK_BYTES / 2).cast(), _mm512_sub_epi8(high, bias));
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma")]
unsafe fn block(b: &QuantBlock) {
    if b.rows < FEWEST_ROWS {
        // SAFETY: forwarded; a CPU with AMX has VNNI.
        return unsafe { (AVX512_VNNI.block)(b) };
    }
    let split = Split::new(b.rows);
    // SAFETY: forwarded.
    let _tiles = unsafe { Tiles::configure(split.height, QBLOCK) };
    // A tile for each block of a chain, and its nibbles of a panel as signed bytes.
    let mut sums = Lines::<i32, { CHAIN_BLOCKS * TILE_SUMS }>::new();
    let mut widened = Lines::<u8, { CHAIN_BLOCKS * BLOCK_BYTES }>::new();
    let (sums, widened) = (sums.as_mut_ptr(), widened.as_mut_ptr());
    let lda = b.row_blocks * QBLOCK;
    for panel in b.panels.clone() {
        let mut w = b.w.wrapping_add(panel * b.row_blocks * b.kind.block_bytes());
        // SAFETY: forwarded; a chain has at most CHAIN_BLOCKS blocks, for which both buffers have room.
        unsafe {
            if b.kind == QuantKind::Q4 {
                widen(b.blocks, w, widened);
                w = widened;
            }
            for tile in 0..split.tiles {
                let (first, rows) = (split.first(tile), split.fresh(tile));
                for row in rows.clone() {
                    prefetch_write(b.c.wrapping_add(row * b.ldc + panel * PANEL));
                }
                products(b.blocks, b.a.wrapping_add(first * lda), lda, w, sums);
                scale(b, sums, first, rows.clone(), panel);
                if let Some(f) = &b.finish {
                    let columns = (b.n - panel * PANEL).min(PANEL);
                    finish_rows::<__m512>(f, b.c, b.ldc, rows, panel * PANEL, columns);
                }
            }
        }
    }
}

pub(in crate::cpu) static AMX_INT8: QuantKernels =
    QuantKernels { name: "amx-int8", quantise: AVX512_VNNI.quantise, block, int8: &int8::AMX_INT8 };
