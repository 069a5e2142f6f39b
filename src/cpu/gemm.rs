//! f32 matrix multiplication over packed weights: C = A * W^T, the numerics contract's linear layer.
//!
//! ```text
//! for each element (i, j):            lanes and threads run over i and j, never inside a chain
//!     for each block of 512 k:        c = chain                      (first block)
//!         chain = +0                  c = c + chain                  (later blocks)
//!         for k in block: chain = fma(A[i][k], W[j][k], chain)
//!     c = act(c + bias[j]) + residual[i][j]
//! ```
//! `W` is stored in panels of 16 output columns, `[panel][k][16]`, one layout for every register width. A register
//! tile holds a few rows by a few panels of C; a panel group stays in L2 while the row tiles of a row block pass.

use std::ops::Range;

use super::rows;
use super::simd::{PANEL, Vector};
use super::table::Finish;
use crate::gpu::Activation;

/// Terms of one FMA chain: longer rows are cut, and the cuts' results added in ascending order.
pub(crate) const K_BLOCK: usize = 512;

/// Most rows for which 16-bit weights are widened in registers; more rows share a widened copy.
pub(super) const HALF_ROWS: usize = 4;

/// How far ahead, in bytes, a panel that is read once is asked for: the CPU by itself keeps too few lines under way.
pub(super) const AHEAD: usize = 768;

/// The same for the panels that row tiles read again and again, which lie in L2.
const TILE_AHEAD: usize = 384;

/// Terms over which a tile asks for the lines of its result first: shorter products are attention's scores, which lie in L1.
const SHORT: usize = 64;

/// Rows of A that stay in L2 (192 x 512 f32 are 384 KiB) while a panel group is used.
pub(super) const ROW_BLOCK: usize = 192;

/// One K block of one register tile. Pointers are valid for the shape given; `b` holds whole panels.
#[derive(Clone, Copy)]
pub(super) struct Tile<T = f32> {
    pub rows: usize,
    pub panels: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    pub b: *const T,
    /// Distance between neighbouring panels, in values.
    pub panel_stride: usize,
    pub c: *mut f32,
    pub ldc: usize,
    /// Columns of C from the tile's left edge; at most `panels * PANEL` are written.
    pub cols: usize,
    /// Whether this is the first K block: C is written, not added to.
    pub first: bool,
    /// What comes next, to bring into L2 on the way: so many cache lines of each of as many panels.
    pub next: *const T,
    pub next_lines: usize,
}

/// One k of a tile: `NV` registers of W, each times `MR` values of A.
///
/// A function and not a closure of [`tile`]: inlining is certain, and a closure compiled on its own would lack the
/// instruction set of the function that `tile` is inlined into.
///
/// # Safety
/// As [`tile`]; `a` and `b` are at the same k.
#[inline(always)]
unsafe fn step<V: Vector, const MR: usize, const NV: usize>(
    t: &Tile,
    a: *const f32,
    b: *const f32,
    acc: &mut [[V; NV]; MR],
) {
    let per_panel = PANEL / V::LANES;
    // SAFETY: forwarded.
    unsafe {
        let ahead = if MR == 1 { AHEAD } else { TILE_AHEAD };
        for panel in 0..NV.div_ceil(per_panel) {
            super::prefetch_l1(b.wrapping_add(panel * t.panel_stride).wrapping_byte_add(ahead));
        }
        let mut w = [V::splat(0.0); NV];
        for (v, w) in w.iter_mut().enumerate() {
            *w = V::load(b.add(v / per_panel * t.panel_stride + v % per_panel * V::LANES));
        }
        for (r, row) in acc.iter_mut().enumerate() {
            let x = V::splat(*a.add(r * t.lda));
            for (c, w) in row.iter_mut().zip(&w) {
                *c = x.mul_add(*w, *c);
            }
        }
    }
}

/// `MR` rows by `NV` registers.
///
/// # Safety
/// [`Tile`]'s contract; the CPU has V's instruction set; `NV` registers are `t.panels` panels.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, const MR: usize, const NV: usize>(t: &Tile) {
    let per_panel = PANEL / V::LANES;
    // SAFETY: forwarded.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        let mut a = t.a;
        let mut b = t.b;
        for r in 0..if t.k > SHORT { MR } else { 0 } {
            for v in (0..NV).step_by(per_panel) {
                super::prefetch_write(t.c.wrapping_add(r * t.ldc + v / per_panel * PANEL));
            }
        }
        let (mut k, mut next, mut due) = (0, t.next, 0);
        while k + 4 <= t.k {
            // Evenly over the tile, so that memory is never asked for more at once than it has time to bring.
            due += 4 * t.next_lines;
            while due >= t.k {
                for v in 0..NV.div_ceil(per_panel) {
                    super::prefetch_l2(next.wrapping_add(v * t.panel_stride));
                }
                (next, due) = (next.wrapping_add(PANEL), due - t.k);
            }
            for u in 0..4 {
                step(t, a.add(u), b.add(u * PANEL), &mut acc);
            }
            (a, b, k) = (a.add(4), b.add(4 * PANEL), k + 4);
        }
        while k < t.k {
            step(t, a, b, &mut acc);
            (a, b, k) = (a.add(1), b.add(PANEL), k + 1);
        }
        write_tile(t, &acc);
    }
}

/// A 16-bit float, as its bits.
pub(super) trait Half {
    /// Widens a register of them, exactly.
    ///
    /// # Safety
    /// As [`Vector`].
    unsafe fn load<V: Vector>(p: *const u16) -> V;
}

/// IEEE 754 binary16.
pub(super) struct F16;
/// The upper half of a binary32.
pub(super) struct Bf16;

impl Half for F16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u16) -> V {
        // SAFETY: forwarded.
        unsafe { V::load_f16(p) }
    }
}

impl Half for Bf16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u16) -> V {
        // SAFETY: forwarded.
        unsafe { V::load_bf16(p) }
    }
}

/// `MR` rows by `NV` registers of 16-bit panels, widened in registers: for the few rows of a decoding step, which read
/// each weight once.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn half_tile<V: Vector, H: Half, const MR: usize, const NV: usize>(t: &Tile<u16>) {
    let per_panel = PANEL / V::LANES;
    // SAFETY: forwarded.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        for k in 0..t.k {
            // A cache line holds two k.
            for panel in 0..if k % 2 == 0 { NV.div_ceil(per_panel) } else { 0 } {
                let at = panel * t.panel_stride + k * PANEL;
                super::prefetch_l1(t.b.wrapping_add(at).wrapping_byte_add(AHEAD));
            }
            let mut w = [V::splat(0.0); NV];
            for (v, w) in w.iter_mut().enumerate() {
                let at = v / per_panel * t.panel_stride + v % per_panel * V::LANES + k * PANEL;
                *w = H::load(t.b.add(at));
            }
            for (r, row) in acc.iter_mut().enumerate() {
                let x = V::splat(*t.a.add(r * t.lda + k));
                for (c, w) in row.iter_mut().zip(&w) {
                    *c = x.mul_add(*w, *c);
                }
            }
        }
        write_tile(t, &acc);
    }
}

/// Writes a tile's chains, or adds them to those of the earlier K blocks.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn write_tile<T, V: Vector, const MR: usize, const NV: usize>(t: &Tile<T>, acc: &[[V; NV]; MR]) {
    // SAFETY: forwarded.
    unsafe {
        let at = |r: usize, v: usize| t.c.wrapping_add(r * t.ldc + v * V::LANES);
        if t.cols < NV * V::LANES {
            // A copy, for only registers that no loop counts through stay registers.
            for (r, row) in { *acc }.iter().enumerate() {
                for (v, &chain) in row.iter().enumerate().take(t.cols.div_ceil(V::LANES)) {
                    let n = (t.cols - v * V::LANES).min(V::LANES);
                    let c = at(r, v);
                    rows::store(if t.first { chain } else { rows::load::<V>(c, n).add(chain) }, c, n);
                }
            }
        } else if t.first {
            for (r, row) in acc.iter().enumerate() {
                row.iter().enumerate().for_each(|(v, chain)| chain.store(at(r, v)));
            }
        } else {
            for (r, row) in acc.iter().enumerate() {
                row.iter().enumerate().for_each(|(v, chain)| V::load(at(r, v)).add(*chain).store(at(r, v)));
            }
        }
    }
}

/// One K block of a row block over a range of panels. Pointers are those of the row block's first row, of the K
/// block's first k, and of column 0.
pub(super) struct Block<T = f32> {
    pub rows: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    /// Panel `panels.start` at this K block.
    pub b: *const T,
    pub panel_stride: usize,
    pub panels: Range<usize>,
    /// The panels that come after the last, at the same distance from one another; null where none are known.
    pub next: *const T,
    pub c: *mut f32,
    pub ldc: usize,
    pub n: usize,
    pub first: bool,
    /// Set on the last K block.
    pub finish: Option<BlockFinish>,
}

impl Block {
    /// The same block over other panels.
    pub fn over<T>(self, b: *const T, panel_stride: usize) -> Block<T> {
        let Block { rows, k, a, lda, panels, c, ldc, n, first, finish, .. } = self;
        Block { rows, k, a, lda, b, panel_stride, panels, next: std::ptr::null(), c, ldc, n, first, finish }
    }
}

/// The epilogue of a block: pointers of column 0 (bias) and of the block's first row, column 0, with the distance
/// between rows (factor, residual).
#[derive(Clone, Copy)]
pub(super) struct BlockFinish {
    pub bias: Option<*const f32>,
    pub activation: Activation,
    pub factor: Option<(*const f32, usize)>,
    pub residual: Option<(*const f32, usize)>,
}

/// Runs `tile` over the block: panel groups outside, row tiles inside; each finished tile meets its epilogue in L1.
///
/// # Safety
/// [`Block`]'s pointers are valid for its shape, C's rows and columns of this block belong to the caller alone, and
/// the CPU has V's instruction set.
#[inline(always)]
pub(super) unsafe fn block<V: Vector, T>(
    b: &Block<T>,
    tile_rows: impl Fn(usize) -> usize,
    tile_panels: usize,
    wide_panels: usize,
    tile: impl Fn(&Tile<T>),
) {
    let mut panel = b.panels.start;
    while panel < b.panels.end {
        let left = b.panels.end - panel;
        let panels = match left {
            // One row reads each weight once: many panels abreast are many streams for the memory to serve.
            _ if b.rows == 1 && left >= wide_panels => wide_panels,
            // Two tiles of nearly the same width rather than a last one too narrow for enough chains.
            _ if left > tile_panels && left < 2 * tile_panels => left.div_ceil(2),
            _ => tile_panels.min(left),
        };
        let tiles = b.rows.div_ceil(tile_rows(panels));
        let (quotient, remainder) = (b.rows / tiles, b.rows % tiles);
        let panel_at = (panel - b.panels.start) * b.panel_stride;
        let next = match panel + panels {
            end if end < b.panels.end => b.b.wrapping_add(panel_at + panels * b.panel_stride),
            _ => b.next,
        };
        // A single row asks for what it reads itself.
        let more = b.rows > 1 && !next.is_null();
        let mut row = 0;
        for i in 0..tiles {
            let rows = quotient + usize::from(i < remainder);
            // Each row tile brings its share of the next panels' k.
            let share = b.k * i / tiles..b.k * (i + 1) / tiles;
            let t = Tile {
                rows,
                panels,
                k: b.k,
                a: b.a.wrapping_add(row * b.lda),
                lda: b.lda,
                b: b.b.wrapping_add(panel_at),
                panel_stride: b.panel_stride,
                c: b.c.wrapping_add(row * b.ldc + panel * PANEL),
                ldc: b.ldc,
                cols: (b.n - panel * PANEL).min(panels * PANEL),
                first: b.first,
                next: next.wrapping_add(share.start * PANEL),
                next_lines: if more { share.len() } else { 0 },
            };
            tile(&t);
            if let Some(f) = &b.finish {
                // SAFETY: the tile's rows and columns are the caller's, as are the operands of that range.
                unsafe { finish_rows::<V>(f, b.c, b.ldc, row..row + rows, panel * PANEL, t.cols) };
            }
            row += rows;
        }
        panel += panels;
    }
}

/// The epilogue of the rows `rows` (of a block whose first row is at `c`) and the `cols` columns from `col`.
///
/// # Safety
/// Those rows and columns of C, and of the operands, are valid and the caller's; the CPU has V's instruction set.
#[inline(always)]
pub(super) unsafe fn finish_rows<V: Vector>(
    f: &BlockFinish,
    c: *mut f32,
    ldc: usize,
    rows: Range<usize>,
    col: usize,
    cols: usize,
) {
    let plain = f.bias.is_none() && f.factor.is_none() && f.residual.is_none();
    if plain && f.activation == Activation::Identity {
        return;
    }
    // SAFETY: forwarded.
    unsafe {
        for row in rows {
            let c = std::slice::from_raw_parts_mut(c.wrapping_add(row * ldc + col), cols);
            let bias = f.bias.map(|p| std::slice::from_raw_parts(p.add(col), cols));
            let part = |(p, stride): (*const f32, usize)| std::slice::from_raw_parts(p.add(row * stride + col), cols);
            let (factor, residual) = (f.factor.map(part), f.residual.map(part));
            rows::finish::<V>(c, &Finish { bias, activation: f.activation, factor, residual });
        }
    }
}
