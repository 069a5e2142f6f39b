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

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::gemm::{AHEAD, BlockFinish, finish_rows};
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
    unsafe fn load(p: *const u8) -> Self::Quads;
    unsafe fn store(w: Self::Quads, p: *mut u8);
    /// Signed weights, made ready for [`dot_signed`](Self::dot_signed).
    unsafe fn signed(p: *const u8) -> Self::Quads;
    /// Low and high nibbles.
    unsafe fn nibbles(p: *const u8) -> (Self::Quads, Self::Quads);
    /// The four activations at `a`, for each lane.
    unsafe fn broadcast(a: *const i8) -> Self::Quads;
    /// Adds each lane's product of a quad of weights with activations.
    unsafe fn dot_signed(acc: Self::Ints, w: Self::Quads, a: Self::Quads) -> Self::Ints;
    /// The same for quads of 0..=15.
    unsafe fn dot_nibbles(acc: Self::Ints, w: Self::Quads, a: Self::Quads) -> Self::Ints;
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
    /// The panels that come after the last, at the same distance from one another; null where none are known.
    pub next: *const u8,
    pub c: *mut f32,
    pub ldc: usize,
    pub n: usize,
    pub first: bool,
    pub finish: Option<BlockFinish>,
}

/// Panels abreast of a single row.
pub(in crate::cpu) const ABREAST: usize = 4;

/// Panels of a tile of several rows, at most.
pub(in crate::cpu) const MOST_PANELS: usize = 2;

/// As [`AHEAD`], of scales: those of eight blocks.
const SCALES_AHEAD: usize = 8 * PANEL * 2;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A register tile of a block.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Tile {
    pub row: usize,
    pub rows: usize,
    pub panel: usize,
    pub panels: usize,
    /// Which register of each panel.
    pub part: usize,
    /// The first panel's register of this chain's blocks, and the distance to the next panel's. Of several rows: a byte a
    /// weight, as [`QuantOps::dot_signed`] or [`dot_nibbles`](QuantOps::dot_nibbles) takes it; of one row: as stored.
    pub w: *const u8,
    pub panel_bytes: usize,
    /// What comes next, to bring into L2 on the way: so many cache lines of each of as many panels, as they are stored.
    pub next: *const u8,
    pub next_lines: usize,
}

/// Weights of one chain of a tile's panels, ready to be multiplied: made once for all rows.
#[repr(align(64))]
struct Ready([MaybeUninit<u8>; MOST_PANELS * CHAIN_BLOCKS * QBLOCK * PANEL]);

impl Ready {
    /// `panels` panels from `panel` on; the weights as they are stored where nothing is to be made of them.
    #[inline(always)]
    unsafe fn make<O: QuantOps>(&mut self, b: &QuantBlock, panel: usize, panels: usize) -> (*const u8, usize) {
        let stored = |p: usize| b.w.wrapping_add((panel + p) * b.row_blocks * b.kind.block_bytes());
        if b.kind == QuantKind::Q8 && O::SIGNED_START == 0 {
            return (stored(0), b.row_blocks * b.kind.block_bytes());
        }
        let register = O::V::LANES * 4;
        let half = QBLOCK * PANEL / 2;
        let panel_bytes = b.blocks * QBLOCK * PANEL;
        for p in 0..panels {
            let (mut from, mut to) = (stored(p), self.0.as_mut_ptr().cast::<u8>().wrapping_add(p * panel_bytes));
            for _ in 0..b.blocks {
                // SAFETY: the caller vouches for the block; a chain of MOST_PANELS panels fits.
                unsafe {
                    match b.kind {
                        QuantKind::Q8 => {
                            for at in (0..2 * half).step_by(register) {
                                O::store(O::signed(from.add(at)), to.add(at));
                            }
                        }
                        QuantKind::Q4 => {
                            for at in (0..half).step_by(register) {
                                let (low, high) = O::nibbles(from.add(at));
                                O::store(low, to.add(at));
                                O::store(high, to.add(half + at));
                            }
                        }
                    }
                }
                (from, to) = (from.wrapping_add(b.kind.block_bytes()), to.wrapping_add(2 * half));
            }
        }
        (self.0.as_mut_ptr().cast_const().cast(), panel_bytes)
    }
}

/// Runs `tile` over tiles of at most `most` rows by panels, MOST_PANELS at most; a single row takes panels abreast, as they
/// are stored.
#[inline(always)]
pub(in crate::cpu) unsafe fn block<O: QuantOps>(
    b: &QuantBlock,
    most: (usize, usize),
    tile: impl Fn(&QuantBlock, &Tile),
) {
    let mut ready = Ready([const { MaybeUninit::uninit() }; _]);
    let tiles = b.rows.div_ceil(most.0);
    let stored = b.row_blocks * b.kind.block_bytes();
    let mut panel = b.panels.start;
    while panel < b.panels.end {
        let left = b.panels.end - panel;
        let panels = match b.rows {
            1 if left >= ABREAST => ABREAST,
            1 => 1,
            _ => most.1.min(left),
        };
        let (w, panel_bytes) = if b.rows == 1 {
            (b.w.wrapping_add(panel * stored), stored)
        } else {
            // SAFETY: forwarded.
            unsafe { ready.make::<O>(b, panel, panels) }
        };
        let next = if panels < left { b.w.wrapping_add((panel + panels) * stored) } else { b.next };
        // A single row asks for what it reads itself.
        let lines = if b.rows > 1 && !next.is_null() { b.blocks * b.kind.block_bytes() / LINE } else { 0 };
        for i in 0..tiles {
            let rows = b.rows * i / tiles..b.rows * (i + 1) / tiles;
            // Each row tile brings its share.
            let share = lines * i / tiles..lines * (i + 1) / tiles;
            let next = next.wrapping_add(share.start * LINE);
            for part in 0..PANEL / O::V::LANES {
                let w = w.wrapping_add(part * O::V::LANES * 4);
                let next_lines = if part == 0 { share.len() } else { 0 };
                let (row, rows) = (rows.start, rows.len());
                tile(b, &Tile { row, rows, panel, panels, part, w, panel_bytes, next, next_lines });
            }
            if let Some(f) = &b.finish {
                let cols = (b.n - panel * PANEL).min(panels * PANEL);
                // SAFETY: the tile's rows and columns are the caller's.
                unsafe { finish_rows::<O::V>(f, b.c, b.ldc, rows, panel * PANEL, cols) };
            }
        }
        panel += panels;
    }
}

/// Bytes of four k of a panel.
const QUAD: usize = PANEL * 4;

/// The products of `MR` rows' blocks at `a`, `row_bytes` apart, with blocks of `NP` panels that are ready, added to `sums`.
#[inline(always)]
unsafe fn products<O: QuantOps, const MR: usize, const NP: usize, const NIBBLES: bool>(
    sums: &mut [[O::Ints; NP]; MR],
    (a, row_bytes): (*const i8, usize),
    (w, panel_bytes): (*const u8, usize),
) {
    // SAFETY: forwarded.
    unsafe {
        for quad in 0..QBLOCK / 4 {
            let mut weights = [O::load(w.wrapping_add(quad * QUAD)); NP];
            for (p, weights) in weights.iter_mut().enumerate().skip(1) {
                *weights = O::load(w.wrapping_add(p * panel_bytes + quad * QUAD));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let a = O::broadcast(a.wrapping_add(r * row_bytes + quad * 4));
                for (sum, w) in row.iter_mut().zip(&weights) {
                    *sum = if NIBBLES { O::dot_nibbles(*sum, *w, a) } else { O::dot_signed(*sum, *w, a) };
                }
            }
        }
    }
}

/// The same for one row, and blocks as they are stored.
#[inline(always)]
unsafe fn row_products<O: QuantOps, const NP: usize>(
    kind: QuantKind,
    sums: &mut [O::Ints; NP],
    a: *const i8,
    (w, panel_bytes): (*const u8, usize),
) {
    // SAFETY: forwarded.
    unsafe {
        for (p, sum) in sums.iter_mut().enumerate() {
            let w = w.wrapping_add(p * panel_bytes);
            for line in (0..kind.block_bytes()).step_by(LINE) {
                super::super::prefetch_l1(w.wrapping_add(AHEAD + line));
            }
            match kind {
                QuantKind::Q8 => {
                    for quad in 0..8 {
                        let a = O::broadcast(a.wrapping_add(quad * 4));
                        *sum = O::dot_signed(*sum, O::signed(w.wrapping_add(quad * QUAD)), a);
                    }
                }
                QuantKind::Q4 => {
                    for quad in 0..4 {
                        let a = [O::broadcast(a.wrapping_add(quad * 4)), O::broadcast(a.wrapping_add(quad * 4 + 16))];
                        let (low, high) = O::nibbles(w.wrapping_add(quad * QUAD));
                        *sum = O::dot_nibbles(O::dot_nibbles(*sum, low, a[0]), high, a[1]);
                    }
                }
            }
        }
    }
}

/// `MR` rows by `NP` registers, one of each panel.
#[inline(always)]
pub(in crate::cpu) unsafe fn tile<O: QuantOps, const MR: usize, const NP: usize>(b: &QuantBlock, t: &Tile) {
    let first = t.part * O::V::LANES;
    let block_bytes = if MR == 1 { b.kind.block_bytes() } else { QBLOCK * PANEL };
    let row_bytes = b.row_blocks * QBLOCK;
    // SAFETY: forwarded.
    unsafe {
        let stored = b.row_blocks * b.kind.block_bytes();
        let (mut next, mut due) = (t.next, 0);
        let mut chains = [[O::V::splat(0.0); NP]; MR];
        let meta = t.row * b.row_blocks;
        for block in 0..b.blocks {
            if block < MR {
                super::super::prefetch_write(b.c.wrapping_add((t.row + block) * b.ldc + t.panel * PANEL));
            }
            // Evenly over the tile, so that memory is never asked for more at once than it has time to bring.
            due += t.next_lines;
            while due >= b.blocks {
                for p in 0..NP {
                    super::super::prefetch_l2(next.wrapping_add(p * stored));
                }
                (next, due) = (next.wrapping_add(LINE), due - b.blocks);
            }
            let mut sums = [[O::splat(0); NP]; MR];
            for (r, row) in sums.iter_mut().enumerate() {
                *row = [O::splat(*b.a_starts.add(meta + r * b.row_blocks + block)); NP];
            }
            let a = b.a.wrapping_add((meta + block) * QBLOCK);
            let w = (t.w.wrapping_add(block * block_bytes), t.panel_bytes);
            match b.kind {
                kind if MR == 1 => row_products::<O, NP>(kind, &mut sums[0], a, w),
                QuantKind::Q8 => products::<O, MR, NP, false>(&mut sums, (a, row_bytes), w),
                QuantKind::Q4 => products::<O, MR, NP, true>(&mut sums, (a, row_bytes), w),
            }
            for p in 0..NP {
                let scale = b.w_scales.wrapping_add(((t.panel + p) * b.row_blocks + block) * PANEL + first);
                if MR == 1 {
                    super::super::prefetch_l1(scale.wrapping_byte_add(SCALES_AHEAD));
                }
                let scale = O::scales(scale);
                for (r, row) in chains.iter_mut().enumerate() {
                    let d = scale.mul(O::V::splat(*b.a_scales.add(meta + r * b.row_blocks + block)));
                    row[p] = O::floats(sums[r][p]).mul_add(d, row[p]);
                }
            }
        }
        for (r, row) in chains.iter().enumerate() {
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

/// Stamps the kernels of one [`QuantOps`]; the string lists the target features they are compiled with. Tiles have at most
/// so many rows (three at least: then none of several rows is left with one) by so many panels.
macro_rules! quant_table {
    ($table:ident, $name:literal, $($features:literal,)? $ops:ty, $int8:path, $rows:literal x $panels:literal: $($mr:literal)*) => {
        pub(in crate::cpu) static $table: crate::cpu::quant::kernel::QuantKernels = {
            use crate::cpu::quant::kernel::{self, QuantBlock, QuantKind, QuantOps, Tile};
            const { assert!($rows >= 3 && $panels <= kernel::MOST_PANELS) };
            $(#[target_feature(enable = $features)])?
            #[inline(never)]
            unsafe fn shape<const MR: usize, const NP: usize>(b: &QuantBlock, t: &Tile) {
                // SAFETY: forwarded.
                unsafe { kernel::tile::<$ops, MR, NP>(b, t) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn block(b: &QuantBlock) {
                // SAFETY: forwarded; tiles have at most the rows listed.
                unsafe {
                    kernel::block::<$ops>(b, ($rows, $panels), |b, t| match (t.rows, t.panels) {
                        (1, 4) => shape::<1, 4>(b, t),
                        (1, _) => shape::<1, 1>(b, t),
                        $(($mr, 1) => shape::<$mr, 1>(b, t),)*
                        $(($mr, _) => shape::<$mr, $panels>(b, t),)*
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
                // SAFETY: forwarded.
                unsafe { crate::cpu::quant::quantise::blocks::<$ops>(x, q, scales, (starts, factor)) }
            }
            crate::cpu::quant::kernel::QuantKernels { name: $name, quantise, block, int8: &$int8 }
        };
    };
}
pub(in crate::cpu) use quant_table;
