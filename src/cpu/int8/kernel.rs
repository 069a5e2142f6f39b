//! Products of bytes with a scale and a zero point for each row and a scale for each column, written once over
//! [`Int8Ops`].
//!
//! ```text
//! for each element (i, j):
//!     s = sum over all k of (q[i][k] - z[i]) * p[j][k]        an exact integer
//!     c = f32(s) * (d[i] * e[j])
//! ```
//!
//! Activations q are 0..=255, weights p -127..=127, so the sums of rows of at most [`MAX_K`] values fit 32 bits. What
//! leaves them on the way wraps around and comes back. Where an instruction multiplies unsigned by signed bytes, q is
//! stored as it is; elsewhere 128 less, as is z. A sum starts at -z times the sum of the column's weights.
//!
//! # Safety
//! Every function here asks the same of its caller: the CPU has the instruction set of `O`, and pointers are valid for
//! the shape given.

use std::ops::Range;

use super::super::gemm::{BlockFinish, finish_rows};
use super::super::quant::kernel::QuantOps;
use super::super::quant::quantise::{MAGIC, SMALLEST};
use super::super::simd::{PANEL, Vector};

/// Longest rows: 255 * 127 * MAX_K still fits an i32.
pub(in crate::cpu) const MAX_K: usize = (i32::MAX / (255 * 127)) as usize;

/// k of one step: rows and columns are padded with zeros to a multiple of it.
pub(in crate::cpu) const STEP: usize = 8;

/// Bytes of four k of a panel.
pub(in crate::cpu) const QUAD_BYTES: usize = PANEL * 4;

/// Integer operations beside [`QuantOps`]. A quad is four consecutive k.
pub(in crate::cpu) trait Int8Ops: QuantOps {
    /// Whether activations are stored as unsigned bytes, and not as signed ones, 128 less.
    const UNSIGNED: bool;
    /// Quads that one call of [`dot`](Self::dot) takes: a divisor of a step's.
    const QUADS: usize;
    /// The sums of a register's columns.
    type Sums: Copy;
    type Weights: Copy;
    type Activations: Copy;
    /// Sums that start at `factor` times the values of `p`, one a column.
    unsafe fn start(p: *const i32, factor: i32) -> Self::Sums;
    /// A register's columns of the quads at `p`, which are [`QUAD_BYTES`] apart.
    unsafe fn weights(p: *const u8) -> Self::Weights;
    /// The quads at `p`, for every column.
    unsafe fn activations(p: *const u8) -> Self::Activations;
    /// Adds the products.
    unsafe fn dot(sums: Self::Sums, w: Self::Weights, a: Self::Activations) -> Self::Sums;
    /// The sums, rounded once.
    unsafe fn totals(sums: Self::Sums) -> Self::V;
    /// The larger bit pattern, as signed integers, lane by lane.
    unsafe fn larger_ints(x: Self::V, y: Self::V) -> Self::V;
}

/// The rows of a block over a range of panels. Pointers are those of the first row and of column 0.
pub(in crate::cpu) struct Int8Block {
    pub rows: usize,
    /// A multiple of [`STEP`].
    pub k: usize,
    /// Quantised rows, `lda` bytes apart, a multiple of 64 that are readable, and for each its scale and -z.
    pub a: *const u8,
    pub lda: usize,
    pub a_scales: *const f32,
    pub a_starts: *const i32,
    /// `[panel][quad][column 0..16][4]`
    pub w: *const u8,
    /// For each column, those of padding included: its scale, and the sum of its weights.
    pub w_scales: *const f32,
    pub w_sums: *const i32,
    pub panels: Range<usize>,
    pub c: *mut f32,
    pub ldc: usize,
    pub n: usize,
    pub finish: BlockFinish,
}

/// A register tile of a block: `rows` by `panels`. The next panels' part that it brings into L2 on its way, in quads.
#[derive(Clone)]
pub(in crate::cpu) struct Tile {
    pub row: usize,
    pub rows: usize,
    pub panel: usize,
    pub panels: usize,
    pub prefetch: Range<usize>,
}

/// Runs tiles of at most `most.0` rows and `most.1` panels; a single row takes `wide` panels abreast.
#[inline(always)]
pub(in crate::cpu) unsafe fn block<O: Int8Ops>(
    b: &Int8Block,
    most: (usize, usize),
    wide: usize,
    tile: impl Fn(&Int8Block, &Tile),
) {
    let (tiles, quads) = (b.rows.div_ceil(most.0), b.k / 4);
    let mut panel = b.panels.start;
    while panel < b.panels.end {
        let left = b.panels.end - panel;
        let panels = if b.rows == 1 && left >= wide { wide } else { most.1.min(left) };
        let more = panel + panels < b.panels.end;
        for i in 0..tiles {
            let rows = b.rows * i / tiles..b.rows * (i + 1) / tiles;
            let prefetch = if more { quads * i / tiles..quads * (i + 1) / tiles } else { 0..0 };
            tile(b, &Tile { row: rows.start, rows: rows.len(), panel, panels, prefetch });
            let cols = (b.n - panel * PANEL).min(panels * PANEL);
            // SAFETY: the tile's rows and columns are the caller's.
            unsafe { finish_rows::<O::V>(&b.finish, b.c, b.ldc, rows, panel * PANEL, cols) };
        }
        panel += panels;
    }
}

/// `MR` rows by `NV` registers.
#[inline(always)]
pub(in crate::cpu) unsafe fn tile<O: Int8Ops, const MR: usize, const NV: usize>(b: &Int8Block, t: &Tile) {
    let (lanes, per_panel) = (O::V::LANES, PANEL / O::V::LANES);
    let panel_bytes = b.k / 4 * QUAD_BYTES;
    let column = t.panel * PANEL;
    // SAFETY: forwarded.
    unsafe {
        let mut sums = [[O::start(b.w_sums.add(column), *b.a_starts.add(t.row)); NV]; MR];
        for (r, row) in sums.iter_mut().enumerate() {
            for (v, s) in row.iter_mut().enumerate() {
                *s = O::start(b.w_sums.add(column + v * lanes), *b.a_starts.add(t.row + r));
            }
        }
        let mut w = b.w.add(t.panel * panel_bytes);
        let mut a = b.a.add(t.row * b.lda);
        let mut next = w.wrapping_add(NV / per_panel * panel_bytes + t.prefetch.start * QUAD_BYTES);
        let steps = b.k / (4 * O::QUADS);
        let mut c = b.c.wrapping_add(t.row * b.ldc + column);
        let mut due = 0;
        for step in 0..steps {
            // One row of C at a time: all at once would fill the buffers that the loads need.
            if step < MR {
                for p in 0..NV / per_panel {
                    super::super::prefetch_write(c.wrapping_add(p * PANEL));
                }
                c = c.wrapping_add(b.ldc);
            }
            // Evenly over the tile, so that memory is never asked for more at once than it has time to bring.
            due += t.prefetch.len();
            while due >= steps {
                for p in 0..NV / per_panel {
                    super::super::prefetch_l2(next.wrapping_add(p * panel_bytes));
                }
                (next, due) = (next.wrapping_add(QUAD_BYTES), due - steps);
            }
            let mut weights = [O::weights(w); NV];
            for (v, weights) in weights.iter_mut().enumerate().skip(1) {
                *weights = O::weights(w.add(v / per_panel * panel_bytes + v % per_panel * lanes * 4));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x = O::activations(a.add(r * b.lda));
                for (s, w) in row.iter_mut().zip(&weights) {
                    *s = O::dot(*s, *w, x);
                }
            }
            (w, a) = (w.add(O::QUADS * QUAD_BYTES), a.add(O::QUADS * 4));
        }
        for (r, row) in sums.iter().enumerate() {
            let d = O::V::splat(*b.a_scales.add(t.row + r));
            for (v, s) in row.iter().enumerate() {
                let at = column + v * lanes;
                let scale = d.mul(O::V::load(b.w_scales.add(at)));
                store(b, t.row + r, at, O::totals(*s).mul(scale));
            }
        }
    }
}

/// Writes the columns that exist.
#[inline(always)]
pub(super) unsafe fn store<V: Vector>(b: &Int8Block, row: usize, column: usize, value: V) {
    let c = b.c.wrapping_add(row * b.ldc + column);
    // SAFETY: forwarded.
    unsafe {
        if column + V::LANES <= b.n {
            value.store(c);
        } else if column < b.n {
            value.store_part(c, b.n - column);
        }
    }
}

/// Quantises a row of values into as many bytes, and gives its scale and -z.
///
/// ```text
/// low = the smallest of x and -0,  high = the largest of x and +0,  range = high - low
/// range is NaN or an infinity:  d = NaN, z = 0, every q = 0
/// range < 1e-30:                d = 0,   z = 0, every q = 0
/// otherwise:  d = range / 254,  t[k] = x[k] * (254 / range),  z = rint(-low * (254 / range)),  q[k] = rint(t[k] + z)
/// ```
/// rint rounds ties to even; the sum t + z is not rounded before. As z is at most 1/2 off -t of the smallest, q is 0..=255.
#[inline(always)]
pub(in crate::cpu) unsafe fn quantise<O: Int8Ops>(x: &[f32], q: &mut [u8]) -> (f32, i32) {
    let (lanes, len) = (O::V::LANES, x.len());
    let whole = len / lanes * lanes;
    let (x, q) = (x.as_ptr(), q.as_mut_ptr());
    // SAFETY: forwarded; pieces stay inside the slices, which are as long as `x`.
    unsafe {
        // As integers: the bits of the largest value >= +0, and those of the smallest <= -0. NaN is beyond either end.
        let (mut high, mut low) = (O::V::splat(0.0), O::V::splat(-0.0));
        for at in (0..whole).step_by(lanes) {
            let v = O::V::load(x.add(at));
            (high, low) = (O::larger_ints(high, v), O::larger_bits(low, v));
        }
        if whole < len {
            let v = O::V::load_part(x.add(whole), len - whole);
            (high, low) = (O::larger_ints(high, v), O::larger_bits(low, v));
        }
        let (mut highs, mut lows) = ([0f32; PANEL], [-0f32; PANEL]);
        high.store(highs.as_mut_ptr());
        low.store(lows.as_mut_ptr());
        let high = f32::from_bits(highs.iter().map(|v| v.to_bits()).fold(0, u32::max));
        let low = f32::from_bits(lows.iter().map(|v| v.to_bits()).fold(0, u32::max));

        let offset = if O::UNSIGNED { 0 } else { -128 };
        let range = high - low;
        if !range.is_finite() || range < SMALLEST {
            std::ptr::write_bytes(q, offset as u8, len);
            return (if range.is_finite() { 0.0 } else { f32::NAN }, -offset);
        }
        let inverse = 254.0 / range;
        let zero = ((0.0 - low) * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32 + offset;
        let (factor, magic) = (O::V::splat(inverse), O::V::splat(MAGIC + zero as f32));
        for at in (0..whole).step_by(lanes) {
            O::low_bytes(O::V::load(x.add(at)).mul(factor).add(magic), q.add(at).cast());
        }
        if whole < len {
            let mut last = [0i8; PANEL];
            let v = O::V::load_part(x.add(whole), len - whole);
            O::low_bytes(v.mul(factor).add(magic), last.as_mut_ptr());
            std::ptr::copy_nonoverlapping(last.as_ptr().cast(), q.add(whole), len - whole);
        }
        (range / 254.0, -zero)
    }
}

/// Where quantised rows go: `stride` bytes apart, a scale and -z for each.
pub(in crate::cpu) struct Quantised<'a> {
    pub values: &'a mut [u8],
    pub stride: usize,
    pub scales: &'a mut [f32],
    pub starts: &'a mut [i32],
}

/// The kernels of one instruction set.
pub(in crate::cpu) struct Int8Kernels {
    /// Quantises rows of so many values.
    pub quantise: unsafe fn(&[f32], usize, Quantised),
    pub block: unsafe fn(&Int8Block),
}

/// Stamps the kernels of one [`Int8Ops`]: its features, most rows and panels of a tile, and the tiles there are.
macro_rules! int8_table {
    ($table:ident, $($features:literal,)? $ops:ty, $most:expr, $wide:literal: $(($mr:literal, $panels:literal))*) => {
        pub(in crate::cpu) static $table: crate::cpu::int8::kernel::Int8Kernels = {
            use crate::cpu::int8::kernel::{self, Int8Block, Quantised, Tile};
            use crate::cpu::quant::kernel::QuantOps;
            use crate::cpu::simd::{PANEL, Vector};
            const PER_PANEL: usize = PANEL / <<$ops as QuantOps>::V as Vector>::LANES;
            $(#[target_feature(enable = $features)])?
            #[inline(never)]
            unsafe fn shape<const MR: usize, const NV: usize>(b: &Int8Block, t: &Tile) {
                // SAFETY: forwarded.
                unsafe { kernel::tile::<$ops, MR, NV>(b, t) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn block(b: &Int8Block) {
                // SAFETY: forwarded; tiles are of the shapes listed.
                unsafe {
                    kernel::block::<$ops>(b, $most, $wide, |b, t| match (t.rows, t.panels) {
                        (1, $wide) => shape::<1, { $wide * PER_PANEL }>(b, t),
                        $(($mr, $panels) => shape::<$mr, { $panels * PER_PANEL }>(b, t),)*
                        _ => unreachable!("tile of {} rows and {} panels", t.rows, t.panels),
                    })
                }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantise(x: &[f32], k: usize, out: Quantised) {
                for (r, (scale, start)) in out.scales.iter_mut().zip(out.starts).enumerate() {
                    let (x, q) = (&x[r * k..][..k], &mut out.values[r * out.stride..][..k]);
                    // SAFETY: forwarded.
                    (*scale, *start) = unsafe { kernel::quantise::<$ops>(x, q) };
                }
            }
            crate::cpu::int8::kernel::Int8Kernels { quantise, block }
        };
    };
}
pub(in crate::cpu) use int8_table;
