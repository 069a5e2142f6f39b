//! AMX: an instruction adds the products of 16 rows and 16 columns over 64 k. The activations are those of AVX-512 VNNI,
//! unsigned bytes by signed ones; sums of the whole row stay in tiles. What a few rows would leave of a tile is unused:
//! they take VNNI.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::amx::{Lines, Split, TILE_BYTES, TILE_SUMS, Tiles};
use super::super::gemm::finish_rows;
use super::super::prefetch_write;
use super::super::quant::x86::Avx512Vnni;
use super::super::simd::{PANEL, Vector};
use super::kernel::{self, Int8Block, Int8Kernels, Int8Ops, QUAD_BYTES};
use super::x86::AVX512_VNNI;

/// Fewer rows take VNNI: four take it about as many cycles as a tile's product, whose time hardly depends on rows.
const FEWEST_ROWS: usize = 4;

/// Bytes of a panel's tile: 64 k.
const TILE_PANEL: usize = TILE_BYTES / 4 * QUAD_BYTES;

/// Panels abreast: a single tile of rows has four tiles of sums in flight so, two tiles of rows have them by two panels.
const ABREAST: usize = 4;

/// Operands of one call of a product.
#[derive(Clone, Copy)]
struct Operands {
    /// The first rows of two tiles; the second may be absent.
    a: [*const u8; 2],
    lda: usize,
    /// Panels, of which the product has a number that is its own.
    w: [*const u8; ABREAST],
    /// Whole tiles of k; at least one, or there is a last one.
    steps: usize,
    /// Tiles of the panels' last quads, or null.
    last: *const u8,
    sums: *mut i32,
}

/// Stamps a product: its tiles of rows, its panels, its tiles of sums, and the instructions of one step.
///
/// # Safety
/// Of the function: this thread's tiles are configured for 64 k; each row has `steps` times 64 bytes, and 64 more where
/// there is a last tile; panels have as many quads as the steps, `last` a tile for each panel; `sums` has four tiles.
macro_rules! product {
    ($name:ident, $($a:ident $ai:literal)*, $($w:ident $wi:literal)*, $($sums:literal)*: $($step:literal)*) => {
        unsafe fn $name(o: &Operands) {
            let Operands { a, lda, mut w, mut steps, mut last, sums } = *o;
            if steps == 0 {
                // The last tile is the only one.
                w = std::array::from_fn(|i| last.wrapping_add(i * TILE_PANEL));
                (steps, last) = (1, std::ptr::null());
            }
            // SAFETY: as above. A tile of rows reads 64 bytes of each row at every step, one of weights the panel's
            // next 1024 bytes; a tile of sums writes its rows of 64 bytes.
            unsafe {
                asm!(
                    $(concat!("tilezero tmm", $sums),)*
                    "2:",
                    $($step,)*
                    $(concat!("add {", stringify!($a), "}, 64"),)*
                    $(concat!("add {", stringify!($w), "}, 1024"),)*
                    "sub {steps}, 1",
                    "jnz 2b",
                    "test {last}, {last}",
                    "jz 3f",
                    $(concat!("mov {", stringify!($w), "}, {last}"), "add {last}, 1024",)*
                    "xor {last:e}, {last:e}",
                    "mov {steps:e}, 1",
                    "jmp 2b",
                    "3:",
                    $(concat!("tilestored [{sums} + {line}*1 + 1024 * ", $sums, "], tmm", $sums),)*
                    $($a = inout(reg) a[$ai] => _,)*
                    $($w = inout(reg) w[$wi] => _,)*
                    steps = inout(reg) steps => _,
                    last = inout(reg) last => _,
                    lda = in(reg) lda,
                    line = in(reg) TILE_BYTES,
                    sums = in(reg) sums,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}

product!(two_by_two, a 0 b 1, u 0 v 1, 0 1 2 3:
    "tileloadd tmm4, [{a} + {lda}*1]" "tileloadd tmm6, [{u} + {line}*1]" "tdpbusd tmm0, tmm4, tmm6"
    "tileloadd tmm7, [{v} + {line}*1]" "tdpbusd tmm1, tmm4, tmm7"
    "tileloadd tmm5, [{b} + {lda}*1]" "tdpbusd tmm2, tmm5, tmm6" "tdpbusd tmm3, tmm5, tmm7");
product!(two_by_one, a 0 b 1, u 0, 0 2:
    "tileloadd tmm4, [{a} + {lda}*1]" "tileloadd tmm6, [{u} + {line}*1]" "tdpbusd tmm0, tmm4, tmm6"
    "tileloadd tmm5, [{b} + {lda}*1]" "tdpbusd tmm2, tmm5, tmm6");
product!(one_by_four, a 0, u 0 v 1 x 2 y 3, 0 1 2 3:
    "tileloadd tmm4, [{a} + {lda}*1]" "tileloadd tmm6, [{u} + {line}*1]" "tdpbusd tmm0, tmm4, tmm6"
    "tileloadd tmm7, [{v} + {line}*1]" "tdpbusd tmm1, tmm4, tmm7"
    "tileloadd tmm6, [{x} + {line}*1]" "tdpbusd tmm2, tmm4, tmm6"
    "tileloadd tmm7, [{y} + {line}*1]" "tdpbusd tmm3, tmm4, tmm7");
product!(one_by_three, a 0, u 0 v 1 x 2, 0 1 2:
    "tileloadd tmm4, [{a} + {lda}*1]" "tileloadd tmm6, [{u} + {line}*1]" "tdpbusd tmm0, tmm4, tmm6"
    "tileloadd tmm7, [{v} + {line}*1]" "tdpbusd tmm1, tmm4, tmm7"
    "tileloadd tmm6, [{x} + {line}*1]" "tdpbusd tmm2, tmm4, tmm6");
product!(one_by_two, a 0, u 0 v 1, 0 1:
    "tileloadd tmm4, [{a} + {lda}*1]" "tileloadd tmm6, [{u} + {line}*1]" "tdpbusd tmm0, tmm4, tmm6"
    "tileloadd tmm7, [{v} + {line}*1]" "tdpbusd tmm1, tmm4, tmm7");
product!(one_by_one, a 0, u 0, 0:
    "tileloadd tmm4, [{a} + {lda}*1]" "tileloadd tmm6, [{u} + {line}*1]" "tdpbusd tmm0, tmm4, tmm6");

/// The products of a step's panels; `two` tiles of rows take at most two.
fn product(two: bool, panels: usize) -> unsafe fn(&Operands) {
    match (two, panels) {
        (true, 2) => two_by_two,
        (true, 1) => two_by_one,
        (false, 4) => one_by_four,
        (false, 3) => one_by_three,
        (false, 2) => one_by_two,
        (false, 1) => one_by_one,
        _ => unreachable!("tiles of {panels} panels"),
    }
}

/// Writes the rows of a tile whose first row is `first`.
#[inline(always)]
unsafe fn write(b: &Int8Block, sums: *const i32, first: usize, rows: Range<usize>, panel: usize) {
    let column = panel * PANEL;
    // SAFETY: forwarded; the CPU has AVX-512, and the tile's sums are those of the rows.
    unsafe {
        let scales = __m512::load(b.w_scales.add(column));
        for row in rows {
            let start = Avx512Vnni::start(b.w_sums.add(column), *b.a_starts.add(row));
            let total = _mm512_add_epi32(start, _mm512_load_si512(sums.add((row - first) * PANEL).cast()));
            let scale = __m512::splat(*b.a_scales.add(row)).mul(scales);
            kernel::store(b, row, column, Avx512Vnni::totals(total).mul(scale));
        }
    }
}

/// Copies what panels from `panel` on have beyond whole tiles of k.
unsafe fn copy_last(b: &Int8Block, panel: usize, panels: usize, last: *mut u8) {
    let (whole, bytes) = (b.k / TILE_BYTES * TILE_PANEL, b.k / 4 * QUAD_BYTES);
    for p in 0..panels {
        // SAFETY: forwarded; a panel has `bytes` bytes, and `last` a tile for each.
        unsafe {
            let (from, to) = (b.w.add((panel + p) * bytes + whole), last.add(p * TILE_PANEL));
            std::ptr::copy_nonoverlapping(from, to, bytes - whole);
            std::ptr::write_bytes(to.add(bytes - whole), 0, TILE_PANEL - (bytes - whole));
        }
    }
}

/// At most two tiles of rows and as many panels as their [`product`] takes; `last` is the first panel's, or null.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma")]
unsafe fn step(b: &Int8Block, split: Split, tiles: Range<usize>, panels: Range<usize>, last: *const u8) {
    let panel_bytes = b.k / 4 * QUAD_BYTES;
    let mut sums = Lines::<i32, { 4 * TILE_SUMS }>::new();
    let sums = sums.as_mut_ptr();
    // SAFETY: forwarded. Rows are readable to the end of their last 64 bytes, weights beyond k are zeros in `last`.
    unsafe {
        let rows = split.fresh(tiles.start).start..split.fresh(tiles.end - 1).end;
        for (row, panel) in rows.clone().flat_map(|row| panels.clone().map(move |panel| (row, panel))) {
            prefetch_write(b.c.wrapping_add(row * b.ldc + panel * PANEL));
        }
        let row = |tile: usize| b.a.wrapping_add(split.first(tile) * b.lda);
        product(tiles.len() == 2, panels.len())(&Operands {
            a: [row(tiles.start), row(tiles.end - 1)],
            lda: b.lda,
            w: std::array::from_fn(|p| b.w.wrapping_add((panels.start + p) * panel_bytes)),
            steps: b.k / TILE_BYTES,
            last,
            sums,
        });
        for (i, tile) in tiles.clone().enumerate() {
            for (p, panel) in panels.clone().enumerate() {
                let of_tile = if tiles.len() == 2 { 2 * i + p } else { p };
                write(b, sums.add(of_tile * TILE_SUMS), split.first(tile), split.fresh(tile), panel);
            }
        }
        let columns = (b.n - panels.start * PANEL).min(panels.len() * PANEL);
        finish_rows::<__m512>(&b.finish, b.c, b.ldc, rows, panels.start * PANEL, columns);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq,avx2,fma")]
unsafe fn block(b: &Int8Block) {
    if b.rows < FEWEST_ROWS || b.k == 0 {
        // SAFETY: forwarded; a CPU with AMX has VNNI.
        return unsafe { (AVX512_VNNI.block)(b) };
    }
    let split = Split::new(b.rows);
    // SAFETY: forwarded.
    let _tiles = unsafe { Tiles::configure(split.height, TILE_BYTES) };
    // The last quads of the panels abreast, padded with zeros to a tile each.
    let mut last = Lines::<u8, { ABREAST * TILE_PANEL }>::new();
    let last = last.as_mut_ptr();
    let mut panel = b.panels.start;
    while panel < b.panels.end {
        let end = (panel + ABREAST).min(b.panels.end);
        let mut tiles = 0..split.tiles;
        // SAFETY: forwarded; `last` has a tile for each panel.
        unsafe {
            let ragged = !b.k.is_multiple_of(TILE_BYTES);
            if ragged {
                copy_last(b, panel, end - panel, last);
            }
            let last =
                |p: usize| if ragged { last.add((p - panel) * TILE_PANEL).cast_const() } else { std::ptr::null() };
            while tiles.len() >= 2 {
                for p in (panel..end).step_by(2) {
                    step(b, split, tiles.start..tiles.start + 2, p..(p + 2).min(end), last(p));
                }
                tiles.start += 2;
            }
            if !tiles.is_empty() {
                step(b, split, tiles, panel..end, last(panel));
            }
        }
        panel = end;
    }
}

pub(in crate::cpu) static AMX_INT8: Int8Kernels = Int8Kernels { quantise: AVX512_VNNI.quantise, block };
