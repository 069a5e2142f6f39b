//! Quantised weights: packed once into panels, multiplied as integers.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "aarch64")]
pub(super) mod i8mm;
pub(super) mod kernel;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod quantise;
pub(super) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

pub use kernel::QuantKernels;
use kernel::{ABREAST, CHAIN_BLOCKS, MOST_PANELS, QBLOCK, QuantBlock, QuantKind};

use super::gemm::BlockFinish;
use super::memory::AlignedBuf;
use super::packed::{Output, Product, groups};
use super::simd::PANEL;
use crate::error::Result;
use crate::fork;

/// An [n, k] matrix of quantised blocks in panels of 16 columns; see [`QuantKind`] for the order of the bytes. The last
/// panel is padded with zero scales.
pub(super) struct QuantMatrix {
    pub kind: QuantKind,
    n: usize,
    /// Blocks of a row.
    row_blocks: usize,
    data: AlignedBuf<u8>,
    /// f16, `[panel][block][16]`.
    scales: AlignedBuf<u16>,
}

impl QuantMatrix {
    /// From `n` rows of GGML blocks (an f16 scale, then 32 bytes or 16 bytes of nibbles), `row(i)` being row i.
    pub fn new<'a>(kind: QuantKind, n: usize, k: usize, row: impl Fn(usize) -> &'a [u8] + Sync) -> Result<Self> {
        let (panels, row_blocks) = (n.div_ceil(PANEL), k / QBLOCK);
        let mut data = AlignedBuf::zeroed(panels * row_blocks * kind.block_bytes(), "packed weights")?;
        let mut scales = AlignedBuf::zeroed(panels * row_blocks * PANEL, "scales of packed weights")?;
        let (panel_bytes, panel_scales) = (row_blocks * kind.block_bytes(), row_blocks * PANEL);
        if row_blocks > 0 {
            let panels = data.par_chunks_mut(panel_bytes).zip(scales.par_chunks_mut(panel_scales)).enumerate();
            panels.for_each(|(p, (data, scales))| {
                for column in 0..PANEL.min(n - p * PANEL) {
                    pack_column(kind, row(p * PANEL + column), column, data, scales);
                }
            });
        }
        Ok(Self { kind, n, row_blocks, data, scales })
    }

    /// Memory taken.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales.len() * 2
    }
}

/// Spreads one row's blocks over a panel's column.
fn pack_column(kind: QuantKind, row: &[u8], column: usize, data: &mut [u8], scales: &mut [u16]) {
    let stored = match kind {
        QuantKind::Q8 => 2 + QBLOCK,
        QuantKind::Q4 => 2 + QBLOCK / 2,
    };
    let blocks = row.chunks_exact(stored).zip(data.chunks_exact_mut(kind.block_bytes()));
    for ((block, out), scales) in blocks.zip(scales.chunks_exact_mut(PANEL)) {
        scales[column] = u16::from_le_bytes([block[0], block[1]]);
        // Byte i of a nibble block holds the values i and i + 16: its quads are those of bytes.
        for (quad, bytes) in block[2..].chunks_exact(4).enumerate() {
            out[(quad * PANEL + column) * 4..][..4].copy_from_slice(bytes);
        }
    }
}

/// Activations quantised row by row.
#[derive(Default)]
pub(super) struct Activations {
    values: Vec<i8>,
    scales: Vec<f32>,
    starts: Vec<i32>,
}

thread_local! {
    static SPARE: std::cell::Cell<Activations> = const {
        std::cell::Cell::new(Activations { values: Vec::new(), scales: Vec::new(), starts: Vec::new() })
    };
}

/// Values a task quantises at least.
const MIN_VALUES: usize = 65_536;

impl Activations {
    /// Quantises `rows` rows of `row_blocks` blocks, in a buffer that [`give_back`](Self::give_back) keeps for the next.
    pub fn new(kernels: &QuantKernels, kind: QuantKind, x: &[f32], rows: usize, row_blocks: usize) -> Self {
        let mut a = SPARE.take();
        let blocks = rows * row_blocks;
        a.values.resize(blocks * QBLOCK, 0);
        a.scales.resize(blocks, 0.0);
        a.starts.resize(blocks, 0);
        let chunk = (MIN_VALUES / QBLOCK).max(blocks.div_ceil(fork::threads())).max(1);
        if blocks <= chunk {
            // SAFETY: the CPU has the table's instruction set; the slices hold the same blocks.
            unsafe { (kernels.quantise)(kind, &x[..blocks * QBLOCK], &mut a.values, &mut a.scales, &mut a.starts) };
            return a;
        }
        let parts = x[..blocks * QBLOCK].chunks(chunk * QBLOCK).zip(a.values.chunks_mut(chunk * QBLOCK));
        let marks = a.scales.chunks_mut(chunk).zip(a.starts.chunks_mut(chunk));
        fork::each_of(parts.zip(marks).collect(), |((x, q), (scales, starts))| {
            // SAFETY: as above.
            unsafe { (kernels.quantise)(kind, x, q, scales, starts) };
        });
        a
    }

    /// Quantised blocks of all rows.
    pub fn blocks(&self) -> usize {
        self.scales.len()
    }

    pub fn give_back(self) {
        SPARE.set(self);
    }
}

/// The rows and panels of one task: `c = act(a W^T + bias) * factor + residual`.
///
/// # Safety
/// The caller alone writes these rows and columns of `c`, which holds them; the operands are as long as the product's
/// driver asserts.
pub(super) unsafe fn part(
    kernels: &QuantKernels,
    p: &Product,
    w: &QuantMatrix,
    a: &Activations,
    rows: Range<usize>,
    panels: Range<usize>,
    c: Output,
) {
    for (group, next) in groups(rows.len(), panels, ABREAST, MOST_PANELS) {
        // SAFETY: forwarded.
        unsafe { panel_group(kernels, p, (w, a), rows.clone(), group, next, c) };
    }
}

/// Panels of a task, before those that `next` begins.
///
/// # Safety
/// As [`part`].
unsafe fn panel_group(
    kernels: &QuantKernels,
    p: &Product,
    (w, a): (&QuantMatrix, &Activations),
    rows: Range<usize>,
    panels: Range<usize>,
    next: Option<usize>,
    c: Output,
) {
    /// Rows of quantised activations that stay in L2 while a panel passes.
    const ROW_BLOCK: usize = 256;
    let n = w.n;
    let at = |panel: usize, block: usize| w.data[(panel * w.row_blocks + block) * w.kind.block_bytes()..].as_ptr();
    for start in (0..w.row_blocks).step_by(CHAIN_BLOCKS) {
        let blocks = CHAIN_BLOCKS.min(w.row_blocks - start);
        let next = match start + blocks {
            end if end < w.row_blocks => at(panels.start, end),
            _ => next.map_or(std::ptr::null(), |panel| at(panel, 0)),
        };
        for first in rows.clone().step_by(ROW_BLOCK) {
            if p.cancel.is_set() {
                return;
            }
            let count = ROW_BLOCK.min(rows.end - first);
            let at = first * w.row_blocks + start;
            let block = QuantBlock {
                rows: count,
                blocks,
                row_blocks: w.row_blocks,
                a: a.values[at * QBLOCK..].as_ptr(),
                a_scales: a.scales[at..].as_ptr(),
                a_starts: a.starts[at..].as_ptr(),
                kind: w.kind,
                w: w.data[start * w.kind.block_bytes()..].as_ptr(),
                w_scales: w.scales[start * PANEL..].as_ptr(),
                panels: panels.clone(),
                next,
                c: c.at(first * n),
                ldc: n,
                n,
                first: start == 0,
                finish: (start + blocks == w.row_blocks).then(|| BlockFinish {
                    bias: p.bias.map(<[f32]>::as_ptr),
                    activation: p.activation,
                    factor: p.factor.map(|f| (f[first * n..].as_ptr(), n)),
                    residual: p.residual.map(|r| (r[first * n..].as_ptr(), n)),
                }),
            };
            // SAFETY: forwarded; the CPU has the table's instruction set.
            unsafe { (kernels.block)(&block) };
        }
    }
}
