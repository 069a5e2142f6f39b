//! One lane: the definition every instruction set must match bit for bit.

use super::gemm::{self, Tile};
use super::simd::PANEL;
use super::table::kernel_table;

const fn tile_rows(_panels: usize) -> usize {
    4
}
const TILE_PANELS: usize = 1;

/// One K block of a register tile, element by element: one FMA chain from +0, then one add onto the earlier blocks.
unsafe fn tile(t: &Tile) {
    // SAFETY: `Tile`'s contract covers each element read and written.
    unsafe {
        for r in 0..t.rows {
            for j in 0..t.cols.min(t.panels * PANEL) {
                let panel = t.b.add(j / PANEL * t.panel_stride + j % PANEL);
                let mut chain = 0f32;
                for k in 0..t.k {
                    chain = (*t.a.add(r * t.lda + k)).mul_add(*panel.add(k * PANEL), chain);
                }
                let c = t.c.add(r * t.ldc + j);
                *c = if t.first { chain } else { *c + chain };
            }
        }
    }
}

/// As [`tile`], over 16-bit panels.
unsafe fn half_tile<H: gemm::Half>(t: &Tile<u16>) {
    // SAFETY: `Tile`'s contract covers each element read and written.
    unsafe {
        for r in 0..t.rows {
            for j in 0..t.cols.min(t.panels * PANEL) {
                let panel = t.b.add(j / PANEL * t.panel_stride + j % PANEL);
                let mut chain = 0f32;
                for k in 0..t.k {
                    chain = (*t.a.add(r * t.lda + k)).mul_add(H::load(panel.add(k * PANEL)), chain);
                }
                let c = t.c.add(r * t.ldc + j);
                *c = if t.first { chain } else { *c + chain };
            }
        }
    }
}

kernel_table!("scalar", f32, tile_rows, TILE_PANELS, 1);
