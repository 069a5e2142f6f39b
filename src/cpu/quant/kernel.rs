//! Integer products, written once over [`QuantOps`]: weights in blocks of 32 with an f16 scale, activations quantised
//! row by row in blocks of 32.
//!
//! ```text
//! for each element (i, j):
//!     for each 16 blocks of 32 k (512 k):         c = chain          (first)
//!         chain = +0                              c = c + chain      (later)
//!         for block b, ascending:
//!             s = sum of qa[i][k] * qw[j][k] over the block, an exact integer
//!             chain = fma(f32(s), f32(dw[j][b]) * da[i][b], chain)
//! ```
//!
//! # Safety
//! Every function here asks the same of its caller: the CPU has the instruction set of `O`, and pointers are valid for
//! the shape given.

use std::ops::Range;

use super::super::gemm::{BlockFinish, finish_rows};
use super::super::int8::kernel::Int8Kernels;
use super::super::simd::{PANEL, Vector};

/// Values of a quantised block.
pub(in crate::cpu) const QBLOCK: usize = 32;

/// Blocks of one chain: 512 values, as in the f32 product.
pub(in crate::cpu) const CHAIN_BLOCKS: usize = 512 / QBLOCK;

/// Integer operations beside a [`Vector`]. A quad is four consecutive k of one column; a register holds one quad for
/// each of V's lanes.
pub(in crate::cpu) trait QuantOps {
    type V: Vector;
    /// i32 lanes.
    type Ints: Copy;
    /// Quads of bytes.
    type Quads: Copy;
    /// Accumulators of [`dot_signed`](Self::dot_signed) start at so many times the sum of the activations.
    const SIGNED_START: i32;
    unsafe fn splat(x: i32) -> Self::Ints;
    /// Signed weights, made ready for [`dot_signed`](Self::dot_signed).
    unsafe fn signed(p: *const u8) -> Self::Quads;
    /// Low and high nibbles.
    unsafe fn nibbles(p: *const u8) -> (Self::Quads, Self::Quads);
    /// Adds each lane's product of a quad with the four activations at `a`.
    unsafe fn dot_signed(acc: Self::Ints, w: Self::Quads, a: *const i8) -> Self::Ints;
    /// The same for quads of 0..=15.
    unsafe fn dot_nibbles(acc: Self::Ints, w: Self::Quads, a: *const i8) -> Self::Ints;
    unsafe fn floats(x: Self::Ints) -> Self::V;
    /// Widened f16 values.
    unsafe fn scales(p: *const u16) -> Self::V;
    /// The larger bit pattern, as unsigned integers, lane by lane: of magnitudes, the larger, NaN above all.
    unsafe fn larger_bits(x: Self::V, y: Self::V) -> Self::V;
    /// The low byte of each lane's bits.
    unsafe fn low_bytes(x: Self::V, p: *mut i8);
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) enum QuantKind {
    /// `[panel][block][quad 0..8][column 0..16][4]`, signed bytes.
    Q8,
    /// `[panel][block][quad 0..4][column 0..16][4]`: low nibbles are the quad's values plus 8, high nibbles those of
    /// the quad four further.
    Q4,
}

impl QuantKind {
    /// Bytes of one block of one panel.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8 => QBLOCK * PANEL,
            Self::Q4 => QBLOCK * PANEL / 2,
        }
    }
}

/// One chain's blocks of a row block over a range of panels. Pointers are those of the first row, of the chain's first
/// block, and of column 0.
pub(in crate::cpu) struct QuantBlock {
    pub rows: usize,
    /// Blocks of this chain.
    pub blocks: usize,
    /// Blocks of a whole row.
    pub row_blocks: usize,
    /// Quantised rows, `row_blocks` blocks each, with a scale and what the accumulators start at a block.
    pub a: *const i8,
    pub a_scales: *const f32,
    pub a_starts: *const i32,
    pub kind: QuantKind,
    /// Panel 0 at the chain's first block; a panel is `row_blocks` blocks.
    pub w: *const u8,
    pub w_scales: *const u16,
    pub panels: Range<usize>,
    pub c: *mut f32,
    pub ldc: usize,
    pub n: usize,
    pub first: bool,
    pub finish: Option<BlockFinish>,
}

/// Panels abreast of a single row.
const ABREAST: usize = 4;

/// Runs tiles of at most `most` rows and one panel; a single row takes several panels abreast.
#[inline(always)]
pub(in crate::cpu) unsafe fn block<O: QuantOps>(b: &QuantBlock, most: usize, tile: impl Fn(&QuantBlock, Tile)) {
    let tiles = b.rows.div_ceil(most);
    let mut panel = b.panels.start;
    while panel < b.panels.end {
        let abreast = if b.rows == 1 && b.panels.end - panel >= ABREAST { ABREAST } else { 1 };
        for i in 0..tiles {
            let rows = b.rows * i / tiles..b.rows * (i + 1) / tiles;
            for part in 0..PANEL / O::V::LANES {
                tile(b, Tile { row: rows.start, rows: rows.len(), panel, panels: abreast, part });
            }
            if let Some(f) = &b.finish {
                let cols = (b.n - panel * PANEL).min(abreast * PANEL);
                // SAFETY: the tile's rows and columns are the caller's.
                unsafe { finish_rows::<O::V>(f, b.c, b.ldc, rows, panel * PANEL, cols) };
            }
        }
        panel += abreast;
    }
}

/// A register tile of a block.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tile {
    pub row: usize,
    pub rows: usize,
    pub panel: usize,
    pub panels: usize,
    /// Which register of each panel.
    pub part: usize,
}

/// `MR` rows by `NP` registers, one of each panel.
#[inline(always)]
pub(in crate::cpu) unsafe fn tile<O: QuantOps, const MR: usize, const NP: usize>(b: &QuantBlock, t: Tile) {
    let first = t.part * O::V::LANES;
    // SAFETY: forwarded.
    unsafe {
        let mut acc = [[O::V::splat(0.0); NP]; MR];
        let a = b.a.wrapping_add(t.row * b.row_blocks * QBLOCK);
        let meta = t.row * b.row_blocks;
        for block in 0..b.blocks {
            let mut ints = [[O::splat(0); NP]; MR];
            for (r, row) in ints.iter_mut().enumerate() {
                *row = [O::splat(*b.a_starts.add(meta + r * b.row_blocks + block)); NP];
            }
            for p in 0..NP {
                let at = ((t.panel + p) * b.row_blocks + block) * b.kind.block_bytes() + first * 4;
                let w = b.w.wrapping_add(at);
                let quad = PANEL * 4;
                match b.kind {
                    QuantKind::Q8 => {
                        for j in 0..8 {
                            let w = O::signed(w.add(j * quad));
                            for (r, row) in ints.iter_mut().enumerate() {
                                let x = a.wrapping_add((r * b.row_blocks + block) * QBLOCK + j * 4);
                                row[p] = O::dot_signed(row[p], w, x);
                            }
                        }
                    }
                    QuantKind::Q4 => {
                        for j in 0..4 {
                            let (low, high) = O::nibbles(w.add(j * quad));
                            for (r, row) in ints.iter_mut().enumerate() {
                                let x = a.wrapping_add((r * b.row_blocks + block) * QBLOCK + j * 4);
                                row[p] = O::dot_nibbles(row[p], low, x);
                                row[p] = O::dot_nibbles(row[p], high, x.wrapping_add(16));
                            }
                        }
                    }
                }
            }
            for p in 0..NP {
                let scale = O::scales(b.w_scales.wrapping_add(((t.panel + p) * b.row_blocks + block) * PANEL + first));
                for (r, row) in acc.iter_mut().enumerate() {
                    let d = scale.mul(O::V::splat(*b.a_scales.add(meta + r * b.row_blocks + block)));
                    row[p] = O::floats(ints[r][p]).mul_add(d, row[p]);
                }
            }
        }
        for (r, row) in acc.iter().enumerate() {
            for (p, &chain) in row.iter().enumerate() {
                store(b, t.row + r, (t.panel + p) * PANEL + first, chain);
            }
        }
    }
}

/// Writes a chain's results, or adds them to those of the earlier chains.
#[inline(always)]
pub(super) unsafe fn store<V: Vector>(b: &QuantBlock, row: usize, column: usize, chain: V) {
    let c = b.c.wrapping_add(row * b.ldc + column);
    // SAFETY: forwarded.
    unsafe {
        if column + V::LANES <= b.n {
            (if b.first { chain } else { V::load(c).add(chain) }).store(c);
        } else if column < b.n {
            let n = b.n - column;
            (if b.first { chain } else { V::load_part(c, n).add(chain) }).store_part(c, n);
        }
    }
}

/// Below this values count as zeros: the inverse of their scale could overflow.
pub(in crate::cpu) const SMALLEST: f32 = 1e-30;

/// Adding 1.5 * 2^23 leaves an integer, rounded with ties to even, in the low bits.
pub(in crate::cpu) const MAGIC: f32 = 12_582_912.0;

/// Quantises a block of 32 values: d = magnitude / 127, q = rint(x * (127 / magnitude)), ties to even. A block that holds
/// NaN or an infinity gets the scale NaN. Gives the scale and the sum of the q.
#[inline(always)]
pub(in crate::cpu) unsafe fn quantise<O: QuantOps>(x: *const f32, q: *mut i8) -> (f32, i32) {
    let lanes = O::V::LANES;
    // SAFETY: forwarded.
    unsafe {
        let mut top = O::V::load(x).abs();
        for i in (lanes..QBLOCK).step_by(lanes) {
            top = O::larger_bits(top, O::V::load(x.add(i)).abs());
        }
        let mut spilled = [0f32; PANEL];
        top.store(spilled.as_mut_ptr());
        let bits = spilled.iter().map(|v| v.to_bits()).fold(0, u32::max);
        let magnitude = f32::from_bits(bits);
        let (scale, inverse) = if bits >= 0x7f80_0000 {
            (f32::NAN, 0.0)
        } else if magnitude < SMALLEST {
            (0.0, 0.0)
        } else {
            (magnitude / 127.0, 127.0 / magnitude)
        };
        if inverse == 0.0 {
            std::ptr::write_bytes(q, 0, QBLOCK);
            return (scale, 0);
        }
        let magic = O::V::splat(MAGIC);
        let inverse = O::V::splat(inverse);
        for i in (0..QBLOCK).step_by(lanes) {
            O::low_bytes(O::V::load(x.add(i)).mul(inverse).add(magic), q.add(i));
        }
        let sum = std::slice::from_raw_parts(q, QBLOCK).iter().map(|v| i32::from(*v)).sum();
        (scale, sum)
    }
}

/// Quantises whole blocks for weights of a kind: values in; bytes, scales and what accumulators start at out.
pub(in crate::cpu) type Quantise = unsafe fn(QuantKind, &[f32], &mut [i8], &mut [f32], &mut [i32]);

/// The integer kernels of one instruction set. An instance reaches callers only after the CPU was asked.
pub struct QuantKernels {
    pub(in crate::cpu) name: &'static str,
    pub(in crate::cpu) quantise: Quantise,
    pub(in crate::cpu) block: unsafe fn(&QuantBlock),
    pub(in crate::cpu) int8: &'static Int8Kernels,
}

impl QuantKernels {
    /// The instruction set: scalar, avx2, avx-vnni, avx512-vnni, amx-int8, neon,
    /// neon-dotprod or neon-i8mm.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// Stamps the kernels of one [`QuantOps`]; the string lists the target features they are compiled with.
macro_rules! quant_table {
    ($table:ident, $name:literal, $($features:literal,)? $ops:ty, $int8:path, $most:literal: $($mr:literal)*) => {
        pub(in crate::cpu) static $table: crate::cpu::quant::kernel::QuantKernels = {
            use crate::cpu::quant::kernel::{self, QBLOCK, QuantBlock, QuantKind, QuantOps, Tile};
            $(#[target_feature(enable = $features)])?
            #[inline(never)]
            unsafe fn shape<const MR: usize, const NP: usize>(b: &QuantBlock, t: Tile) {
                // SAFETY: forwarded.
                unsafe { kernel::tile::<$ops, MR, NP>(b, t) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn block(b: &QuantBlock) {
                // SAFETY: forwarded; tiles have at most the rows listed.
                unsafe {
                    kernel::block::<$ops>(b, $most, |b, t| match (t.rows, t.panels) {
                        (1, 4) => shape::<1, 4>(b, t),
                        $(($mr, _) => shape::<$mr, 1>(b, t),)*
                        _ => unreachable!("tile of {} rows", t.rows),
                    })
                }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn quantise(kind: QuantKind, x: &[f32], q: &mut [i8], scales: &mut [f32], starts: &mut [i32]) {
                let factor = match kind {
                    QuantKind::Q8 => <$ops>::SIGNED_START,
                    // Nibbles are 8 too large.
                    QuantKind::Q4 => -8,
                };
                for (b, (scale, start)) in scales.iter_mut().zip(starts).enumerate() {
                    let (x, q) = (&x[b * QBLOCK..][..QBLOCK], &mut q[b * QBLOCK..][..QBLOCK]);
                    // SAFETY: both hold a block.
                    let (d, sum) = unsafe { kernel::quantise::<$ops>(x.as_ptr(), q.as_mut_ptr()) };
                    (*scale, *start) = (d, factor * sum);
                }
            }
            crate::cpu::quant::kernel::QuantKernels { name: $name, quantise, block, int8: &$int8 }
        };
    };
}
pub(in crate::cpu) use quant_table;
