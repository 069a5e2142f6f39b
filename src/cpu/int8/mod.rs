//! Linear layers with weights of one byte: quantised when a model is loaded, a scale for each output feature; inputs
//! quantised row by row.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "aarch64")]
pub(super) mod i8mm;
pub(super) mod kernel;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use kernel::{Int8Block, MAX_K, QUAD_BYTES, Quantised, STEP};

use super::gemm::BlockFinish;
use super::memory::AlignedBuf;
use super::packed::{Output, Product};
use super::quant::QuantKernels;
use super::quant::quantise::{MAGIC, SMALLEST};
use super::simd::PANEL;
use crate::error::Result;
use crate::fork;

/// An [n, k] matrix of bytes in panels of 16 columns, `[panel][quad][column][4]`, padded with zeros: columns to whole
/// panels, k to whole steps.
pub(super) struct Int8Matrix {
    n: usize,
    /// Padded.
    k: usize,
    data: AlignedBuf<u8>,
    /// For each column, padding included: its scale, and the sum of its weights.
    scales: Vec<f32>,
    sums: Vec<i32>,
}

/// A panel's bytes, the scales of its columns and the sums of their weights.
type Panel<'a> = ((&'a mut [u8], &'a mut [f32]), &'a mut [i32]);

impl Int8Matrix {
    /// Longest rows.
    pub const MAX_K: usize = MAX_K;

    /// Quantises `n` rows of `k` finite values, at most [`MAX_K`](Self::MAX_K); `read(i, out)` brings row i.
    pub fn new(n: usize, k: usize, read: impl Fn(usize, &mut [f32]) -> Result<()> + Sync) -> Result<Self> {
        assert!(k <= MAX_K, "int8: rows of {k} values");
        let (panels, padded) = (n.div_ceil(PANEL), padded(k));
        let mut data = AlignedBuf::zeroed(panels * padded * PANEL, "packed weights")?;
        let (mut scales, mut sums) = (vec![0.0; panels * PANEL], vec![0; panels * PANEL]);
        if k > 0 {
            let bytes = data.par_chunks_mut(padded * PANEL);
            let parts = bytes.zip(scales.par_chunks_mut(PANEL)).zip(sums.par_chunks_mut(PANEL)).enumerate();
            parts.try_for_each_init(
                || vec![0f32; k],
                |row, (panel, part)| {
                    let first = panel * PANEL;
                    pack_panel(part, PANEL.min(n - first), row, |column, row| read(first + column, row))
                },
            )?;
        }
        Ok(Self { n, k: padded, data, scales, sums })
    }

    /// Memory taken.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales.len() * size_of::<f32>() + self.sums.len() * size_of::<i32>()
    }
}

/// Quantises the columns of a panel: e = magnitude / 127, p = rint(w * (127 / magnitude)), ties to even; a column whose
/// magnitude is below [`SMALLEST`] has the scale 0 and weights 0.
fn pack_panel(
    ((data, scales), sums): Panel,
    columns: usize,
    row: &mut [f32],
    read: impl Fn(usize, &mut [f32]) -> Result<()>,
) -> Result<()> {
    for column in 0..columns {
        read(column, row)?;
        let magnitude = row.iter().fold(0f32, |m, w| if m < w.abs() { w.abs() } else { m });
        if magnitude < SMALLEST {
            continue;
        }
        let inverse = 127.0 / magnitude;
        let mut sum = 0;
        for (quad, values) in row.chunks(4).enumerate() {
            let out = &mut data[quad * QUAD_BYTES + column * 4..][..values.len()];
            for (byte, w) in out.iter_mut().zip(values) {
                let q = (w * inverse + MAGIC).to_bits() as i8;
                sum += i32::from(q);
                *byte = q as u8;
            }
        }
        (scales[column], sums[column]) = (magnitude / 127.0, sum);
    }
    Ok(())
}

/// Activations quantised row by row.
#[derive(Default)]
pub(super) struct Activations {
    /// Values of a row.
    k: usize,
    values: Vec<u8>,
    /// Bytes between rows: [`row_stride`].
    stride: usize,
    scales: Vec<f32>,
    starts: Vec<i32>,
}

thread_local! {
    static SPARE: std::cell::Cell<Activations> = const {
        std::cell::Cell::new(Activations { k: 0, values: Vec::new(), stride: 0, scales: Vec::new(), starts: Vec::new() })
    };
}

/// Values a task quantises at least.
const MIN_VALUES: usize = 65_536;

/// Values of a packed column for rows of `k`.
pub(super) fn padded(k: usize) -> usize {
    k.next_multiple_of(STEP)
}

/// Bytes from one quantised row of `k` values to the next: an odd number of cache lines, so that neighbouring rows do not
/// meet in a cache set.
pub(super) fn row_stride(k: usize) -> usize {
    const LINE: usize = 64;
    (k.div_ceil(LINE) | 1) * LINE
}

impl Activations {
    /// Quantises `rows` rows of `k` values, in a buffer that [`give_back`](Self::give_back) keeps for the next.
    pub fn new(kernels: &QuantKernels, x: &[f32], rows: usize, k: usize) -> Self {
        let mut a = SPARE.take();
        (a.k, a.stride) = (k, row_stride(k));
        a.values.resize(rows * a.stride, 0);
        a.scales.resize(rows, 0.0);
        a.starts.resize(rows, 0);
        let (stride, x) = (a.stride, &x[..rows * k]);
        // SAFETY: the CPU has the table's instruction set; both sides are the same rows.
        let run = |x: &[f32], out: Quantised| unsafe { (kernels.int8.quantise)(x, k, out) };
        let chunk = (MIN_VALUES / k.max(1)).max(rows.div_ceil(fork::threads())).max(1);
        if rows <= chunk || k == 0 {
            run(x, Quantised { values: &mut a.values, stride, scales: &mut a.scales, starts: &mut a.starts });
            return a;
        }
        let marks = a.scales.chunks_mut(chunk).zip(a.starts.chunks_mut(chunk));
        let parts = x.chunks(chunk * k).zip(a.values.chunks_mut(chunk * stride)).zip(marks).collect();
        fork::each_of(parts, |((x, values), (scales, starts))| run(x, Quantised { values, stride, scales, starts }));
        a
    }

    /// Rows, and values of each.
    pub fn shape(&self) -> (usize, usize) {
        (self.scales.len(), self.k)
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
    w: &Int8Matrix,
    a: &Activations,
    rows: Range<usize>,
    panels: Range<usize>,
    c: Output,
) {
    /// Bytes of quantised rows that stay in L2 while a panel group passes.
    const ROW_BYTES: usize = 512 << 10;
    let n = w.n;
    let blocks = (rows.len() * a.stride).div_ceil(ROW_BYTES).clamp(1, rows.len().max(1));
    for i in 0..blocks {
        if p.cancel.is_set() {
            return;
        }
        let cut = |at: usize| rows.start + rows.len() * at / blocks;
        let (first, end) = (cut(i), cut(i + 1));
        let block = Int8Block {
            rows: end - first,
            k: w.k,
            a: a.values[first * a.stride..].as_ptr(),
            lda: a.stride,
            a_scales: a.scales[first..].as_ptr(),
            a_starts: a.starts[first..].as_ptr(),
            w: w.data.as_ptr(),
            w_scales: w.scales.as_ptr(),
            w_sums: w.sums.as_ptr(),
            panels: panels.clone(),
            c: c.at(first * n),
            ldc: n,
            n,
            finish: BlockFinish {
                bias: p.bias.map(<[f32]>::as_ptr),
                activation: p.activation,
                factor: p.factor.map(|f| (f[first * n..].as_ptr(), n)),
                residual: p.residual.map(|r| (r[first * n..].as_ptr(), n)),
            },
        };
        // SAFETY: forwarded; rows are padded to whole cache lines, and the CPU has the table's instruction set.
        unsafe { (kernels.int8.block)(&block) };
    }
}
