//! Matrices of quantised blocks whose values are multiplied in f32: they stay as small as in their file, and are widened
//! while they are used. The bits are those of the matrix of f32 values that the blocks stand for.

pub(super) mod kernel;
mod layout;

use std::ops::Range;

use rayon::prelude::*;

use kernel::{Panel, kind};
use layout::Layout;

use super::gemm::{Block, K_BLOCK};
use super::memory::AlignedBuf;
use super::simd::PANEL;
use super::table::Kernels;
use crate::error::Result;
use crate::weights::blocks::{PART, Part};
use crate::weights::{Dtype, Tensor};

/// Panels of 16 columns, each of blocks of one type; [`layout`] states the order of the bytes.
pub(super) struct BlockMatrix {
    /// Each panel's type, and where it begins.
    panels: Vec<(Dtype, usize)>,
    data: AlignedBuf<u8>,
}

/// The type of each panel of stacked tensors [n_i, k]; none where a panel would hold columns of two types, or columns that
/// are not in blocks.
pub(super) fn types(parts: &[Tensor]) -> Result<Option<Vec<Dtype>>> {
    let mut columns = Vec::new();
    for part in parts {
        columns.resize(columns.len() + part.shape()[0], part.dtype()?);
    }
    let one = |panel: &[Dtype]| (panel[0].is_block() && panel.iter().all(|d| *d == panel[0])).then_some(panel[0]);
    Ok(columns.chunks(PANEL).map(one).collect())
}

/// Bytes of panels of these types.
pub(super) fn bytes(types: &[Dtype], k: usize) -> usize {
    types.iter().map(|dtype| Layout::of(*dtype).panel(k)).sum()
}

impl BlockMatrix {
    /// From the rows of stacked tensors, `k` values each, of which the panels have these types.
    pub fn new(types: &[Dtype], rows: &[(&Tensor, usize)], k: usize) -> Result<Self> {
        let mut data = AlignedBuf::zeroed(bytes(types, k), "packed weights")?;
        let (mut panels, mut parts, mut rest, mut at) = (Vec::new(), Vec::new(), &mut data[..], 0);
        for dtype in types {
            let len = Layout::of(*dtype).panel(k);
            panels.push((*dtype, at));
            at += len;
            let (panel, others) = rest.split_at_mut(len);
            parts.push((*dtype, panel));
            rest = others;
        }
        parts.into_par_iter().zip(rows.par_chunks(PANEL)).for_each(|((dtype, panel), rows)| {
            for (column, (tensor, row)) in rows.iter().enumerate() {
                pack_column(dtype, tensor, *row, column, panel);
            }
        });
        Ok(Self { panels, data })
    }

    /// Memory taken.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    pub fn types(&self) -> impl Iterator<Item = Dtype> {
        self.panels.iter().map(|(dtype, _)| *dtype)
    }

    /// A panel's blocks from `k` on, which is a multiple of [`K_BLOCK`].
    fn panel(&self, panel: usize, k: usize) -> Panel {
        let (dtype, at) = self.panels[panel];
        Panel { dtype, data: self.data[at + Layout::of(dtype).panel(k)..].as_ptr() }
    }
}

/// Spreads a row's blocks over a panel's column.
fn pack_column(dtype: Dtype, tensor: &Tensor, row: usize, column: usize, panel: &mut [u8]) {
    let (bytes, layout) = (tensor.bytes(), Layout::of(dtype));
    let stored = bytes.len() / tensor.shape()[0];
    let groups = dtype.block_len() / PART;
    for (b, block) in bytes[row * stored..][..stored].chunks_exact(dtype.size()).enumerate() {
        for i in 0..groups {
            layout.write(&Part::of(dtype, block, i), b * groups + i, column, panel);
        }
    }
}

/// Runs one K block, whose first k is `k0`: a single row widens blocks in registers, more rows share a widened copy of some
/// panels.
///
/// # Safety
/// As the kernel's `block`; `b`, `panel_stride` and `next` are set here.
pub(super) unsafe fn multiply(kernels: &Kernels, w: &BlockMatrix, k0: usize, block: Block) {
    thread_local! {
        static PANELS: std::cell::RefCell<Vec<Panel>> = const { std::cell::RefCell::new(Vec::new()) };
        static WIDE: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let of = |range: Range<usize>| range.map(|panel| w.panel(panel, k0));
    if block.rows == 1 {
        PANELS.with_borrow_mut(|panels| {
            let mut start = block.panels.start;
            while start < block.panels.end {
                panels.clear();
                let (nibbles, minima) = kind(w.panels[start].0);
                panels.extend(of(start..block.panels.end).take_while(|panel| kind(panel.dtype) == (nibbles, minima)));
                let alike = start..start + panels.len();
                start = alike.end;
                let run = kernels.raw.block_row[usize::from(nibbles)][usize::from(minima)];
                // SAFETY: forwarded; the panels are there, one after another.
                unsafe { run(&Block { panels: alike, ..block }.over(panels.as_ptr(), 1)) };
            }
        });
        return;
    }
    let (abreast, panel_len) = (kernels.tile_panels(), block.k * PANEL);
    WIDE.with_borrow_mut(|wide| {
        wide.resize(abreast * K_BLOCK * PANEL, 0.0);
        for start in block.panels.clone().step_by(abreast) {
            let end = (start + abreast).min(block.panels.end);
            for (panel, out) in of(start..end).zip(wide.chunks_exact_mut(panel_len)) {
                // SAFETY: the CPU has the table's instruction set; the panel has the block's k.
                unsafe { (kernels.raw.widen)(&panel, block.k, out.as_mut_ptr()) };
            }
            // SAFETY: forwarded; `wide` holds the panels start..end.
            unsafe {
                (kernels.raw.block)(&Block { b: wide.as_ptr(), panel_stride: panel_len, panels: start..end, ..block });
            }
        }
    });
}
