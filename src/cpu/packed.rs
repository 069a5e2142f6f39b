//! Weights packed once into panels, and the threaded driver of the matrix product.

use std::ops::Range;

use rayon::prelude::*;

use super::blas::{self, Blas};
use super::blocks::{self, BlockMatrix};
use super::cancel::Cancel;
use super::gemm::{Block, BlockFinish, HALF_ROWS, K_BLOCK, ROW_BLOCK};
use super::int8::{self, Int8Matrix};
use super::memory::AlignedBuf;
use super::quant::kernel::{QBLOCK, QuantKind};
use super::quant::{self, QuantKernels, QuantMatrix};
use super::simd::PANEL;
use super::table::Kernels;
use crate::error::{InferError, Result};
use crate::fork;
use crate::gpu::checks::not_finite;
use crate::gpu::{Activation, Precision};
use crate::weights::{Dtype, Tensor};

/// An [n, k] matrix in panels of 16 output columns, `[panel][k][16]`, the last panel padded with zeros. 16-bit
/// checkpoints stay 16-bit; a panel group is widened, exactly, while a row block passes.
pub(super) struct PackedMatrix {
    pub n: usize,
    pub k: usize,
    data: Panels,
}

enum Panels {
    F32(AlignedBuf<f32>),
    F16(AlignedBuf<u16>),
    Bf16(AlignedBuf<u16>),
    /// Multiplied in f32.
    Blocks(BlockMatrix),
    Quant(QuantMatrix),
    Int8(Int8Matrix),
    /// [n, k] as it is, for a BLAS.
    Plain(AlignedBuf<f32>, &'static Blas),
}

/// How a matrix is packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Packing {
    F32,
    Half(Dtype),
    /// The type of each panel's blocks, which are widened while they are multiplied.
    Blocks(Vec<Dtype>),
    Quant(QuantKind),
    Int8,
    /// Row-major, for a BLAS.
    Plain,
}

impl Packing {
    /// Of tensors [n_i, k] that are stacked. Tensors of one dtype keep it, and so do blocks of several where a panel holds
    /// those of one; all others are widened to f32, and so are all but Q8_0 and Q4_0 where a BLAS multiplies.
    pub fn of(parts: &[Tensor], precision: Precision, blas: bool) -> Result<Self> {
        let (n, k) = (parts.iter().map(|t| t.shape()[0]).sum::<usize>(), parts[0].shape()[1]);
        let dtypes = parts.iter().map(Tensor::dtype).collect::<Result<Vec<_>>>()?;
        let one = dtypes.iter().all(|d| *d == dtypes[0]).then_some(dtypes[0]);
        let integers = k > 0 && !parts.iter().any(Tensor::is_in_f32);
        Ok(match (precision, one) {
            (Precision::Int8, _) => Self::Int8,
            (_, Some(Dtype::Q8_0)) if integers => Self::Quant(QuantKind::Q8),
            (_, Some(Dtype::Q4_0)) if integers => Self::Quant(QuantKind::Q4),
            _ if blas && n.max(k) <= i32::MAX as usize => Self::Plain,
            (_, Some(dtype @ (Dtype::F16 | Dtype::BF16))) => Self::Half(dtype),
            _ if k > 0 => blocks::types(parts)?.map_or(Self::F32, Self::Blocks),
            _ => Self::F32,
        })
    }

    /// Bytes of the buffers that an [n, k] matrix is packed into.
    pub fn bytes(&self, n: usize, k: usize) -> Vec<usize> {
        let panels = n.div_ceil(PANEL);
        match self {
            Self::F32 => vec![panels * k * PANEL * 4],
            Self::Half(_) => vec![panels * k * PANEL * 2],
            Self::Blocks(types) => vec![blocks::bytes(types, k)],
            Self::Quant(kind) => {
                let blocks = panels * (k / QBLOCK);
                vec![blocks * kind.block_bytes(), blocks * PANEL * 2]
            }
            Self::Int8 => vec![panels * int8::padded(k) * PANEL, panels * PANEL * 4, panels * PANEL * 4],
            Self::Plain => vec![n * k * 4],
        }
    }

    /// Bytes that the activations of `rows` rows of `k` values take when they are quantised; 0 where they are not.
    pub fn activation_bytes(&self, rows: usize, k: usize) -> usize {
        match self {
            Self::Quant(_) => rows * k / QBLOCK * (QBLOCK + 8),
            Self::Int8 => rows * (int8::row_stride(k) + 8),
            Self::F32 | Self::Half(_) | Self::Blocks(_) | Self::Plain => 0,
        }
    }
}

impl PackedMatrix {
    /// Stacks tensors [n_i, k], packed as [`Packing::of`] says.
    pub fn new(parts: &[Tensor], blas: Option<&'static Blas>) -> Result<Self> {
        let k = parts[0].shape()[1];
        let rows: Vec<(&Tensor, usize)> = parts.iter().flat_map(|t| (0..t.shape()[0]).map(move |r| (t, r))).collect();
        let data = match (Packing::of(parts, Precision::Exact, blas.is_some())?, blas) {
            (Packing::Quant(kind), _) => quantised(&rows, k, kind)?,
            (Packing::Plain, Some(blas)) => Panels::Plain(plain(&rows, k)?, blas),
            (Packing::Half(dtype), _) => halves(&rows, k, dtype)?,
            (Packing::Blocks(types), _) => {
                check_scales(&rows, k)?;
                Panels::Blocks(BlockMatrix::new(&types, &rows, k)?)
            }
            _ => {
                let mut data = AlignedBuf::zeroed(rows.len().div_ceil(PANEL) * k * PANEL, "packed weights")?;
                pack(&rows, k, &mut data, |t, r, out| {
                    t.read_f32(r * k, out)?;
                    check(t, r, out)
                })?;
                Panels::F32(data)
            }
        };
        Ok(Self { n: rows.len(), k, data })
    }

    /// As [`new`](Self::new), each row quantised to bytes with a scale of its own.
    pub fn int8(parts: &[Tensor]) -> Result<Self> {
        let k = parts[0].shape()[1];
        if k > Int8Matrix::MAX_K {
            return Err(InferError::TensorError {
                file: parts[0].file().to_path_buf(),
                tensor: parts[0].name().to_string(),
                expected: format!("rows of at most {} values, whose products int8 sums", Int8Matrix::MAX_K),
                found: format!("rows of {k}"),
            });
        }
        let rows: Vec<(&Tensor, usize)> = parts.iter().flat_map(|t| (0..t.shape()[0]).map(move |r| (t, r))).collect();
        parts.iter().try_for_each(|t| t.dtype().map(drop))?;
        let matrix = Int8Matrix::new(rows.len(), k, |i, out| {
            let (tensor, row) = rows[i];
            tensor.read_f32(row * k, out)?;
            check(tensor, row, out)
        })?;
        Ok(Self { n: rows.len(), k, data: Panels::Int8(matrix) })
    }

    /// From `n` rows of `k` values.
    #[cfg(test)]
    pub fn int8_of(n: usize, k: usize, values: &[f32]) -> Result<Self> {
        let read = |i: usize, out: &mut [f32]| {
            out.copy_from_slice(&values[i * k..][..k]);
            Ok(())
        };
        Ok(Self { n, k, data: Panels::Int8(Int8Matrix::new(n, k, read)?) })
    }

    /// How it is packed.
    pub fn packing(&self) -> Packing {
        match &self.data {
            Panels::F32(_) => Packing::F32,
            Panels::F16(_) => Packing::Half(Dtype::F16),
            Panels::Bf16(_) => Packing::Half(Dtype::BF16),
            Panels::Blocks(matrix) => Packing::Blocks(matrix.types().collect()),
            Panels::Quant(matrix) => Packing::Quant(matrix.kind),
            Panels::Int8(_) => Packing::Int8,
            Panels::Plain(..) => Packing::Plain,
        }
    }

    /// From rows of quantised blocks, `k` values each.
    #[cfg(test)]
    pub fn quantised<'a>(kind: QuantKind, n: usize, k: usize, row: impl Fn(usize) -> &'a [u8] + Sync) -> Result<Self> {
        Ok(Self { n, k, data: Panels::Quant(QuantMatrix::new(kind, n, k, row)?) })
    }

    /// From row-major values [n, k], for a BLAS or for the deterministic kernels.
    #[cfg(test)]
    pub fn of_values(n: usize, k: usize, values: &[f32], blas: Option<&'static Blas>) -> Self {
        let plain = blas.is_some();
        let mut data = AlignedBuf::zeroed(if plain { n } else { n.next_multiple_of(PANEL) } * k, "test").unwrap();
        for (at, value) in values.iter().enumerate() {
            let (row, column) = (at / k, at % k);
            data[if plain { at } else { (row / PANEL * k + column) * PANEL + row % PANEL }] = *value;
        }
        let data = match blas {
            Some(blas) => Panels::Plain(data, blas),
            None => Panels::F32(data),
        };
        Self { n, k, data }
    }

    /// Memory taken by the panels.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Panels::F32(d) | Panels::Plain(d, _) => d.len() * 4,
            Panels::F16(d) | Panels::Bf16(d) => d.len() * 2,
            Panels::Blocks(q) => q.bytes(),
            Panels::Quant(q) => q.bytes(),
            Panels::Int8(q) => q.bytes(),
        }
    }
}

/// The rows one after another, checked to be finite.
fn plain(rows: &[(&Tensor, usize)], k: usize) -> Result<AlignedBuf<f32>> {
    let mut data = AlignedBuf::zeroed(rows.len() * k, "weights")?;
    data.par_chunks_mut(k.max(1)).zip(rows).try_for_each(|(values, (tensor, row))| {
        tensor.read_f32(row * k, values)?;
        check(tensor, *row, values)
    })?;
    Ok(data)
}

/// Panels of 16-bit values, checked to be finite.
fn halves(rows: &[(&Tensor, usize)], k: usize, dtype: Dtype) -> Result<Panels> {
    let mut data = AlignedBuf::zeroed(rows.len().div_ceil(PANEL) * k * PANEL, "packed weights")?;
    // The exponent's bits, all set in an infinity or NaN.
    let exponent = if dtype == Dtype::F16 { 0x7c00 } else { 0x7f80 };
    pack(rows, k, &mut data, |t, r, out: &mut [u16]| {
        let bytes = &t.bytes()[r * k * 2..(r + 1) * k * 2];
        for (value, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *value = u16::from_le_bytes([pair[0], pair[1]]);
        }
        match out.iter().position(|v| v & exponent == exponent) {
            Some(column) => Err(not_finite(t, r, column)),
            None => Ok(()),
        }
    })?;
    Ok(if dtype == Dtype::F16 { Panels::F16(data) } else { Panels::Bf16(data) })
}

/// Refuses blocks with scales that are not finite.
fn check_scales(rows: &[(&Tensor, usize)], k: usize) -> Result<()> {
    for (i, (tensor, row)) in rows.iter().enumerate() {
        let first = i == 0 || !std::ptr::eq(rows[i - 1].0, *tensor);
        if let Some(at) = first.then(|| tensor.first_non_finite()).transpose()?.flatten() {
            return Err(not_finite(tensor, row + at / k.max(1), at % k.max(1)));
        }
    }
    Ok(())
}

/// Panels of quantised blocks, whose scales are checked to be finite.
fn quantised(rows: &[(&Tensor, usize)], k: usize, kind: QuantKind) -> Result<Panels> {
    check_scales(rows, k)?;
    let row = |i: usize| {
        let (tensor, row) = rows[i];
        let bytes = tensor.bytes();
        let stored = bytes.len() / tensor.shape()[0];
        &bytes[row * stored..][..stored]
    };
    Ok(Panels::Quant(QuantMatrix::new(kind, rows.len(), k, row)?))
}

fn check(t: &Tensor, row: usize, values: &[f32]) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        Some(column) => Err(not_finite(t, row, column)),
        None => Ok(()),
    }
}

/// Fills the panels, in parallel; `read` brings one row of a tensor, in the element type of the panels.
fn pack<T: super::memory::Plain + Default>(
    rows: &[(&Tensor, usize)],
    k: usize,
    data: &mut [T],
    read: impl Fn(&Tensor, usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    if k == 0 {
        return Ok(());
    }
    data.par_chunks_mut(k * PANEL).zip(rows.par_chunks(PANEL)).try_for_each_init(
        || vec![T::default(); k],
        |row, (panel, sources)| {
            for (j, (tensor, r)) in sources.iter().enumerate() {
                read(tensor, *r, row)?;
                for (k, value) in row.iter().enumerate() {
                    panel[k * PANEL + j] = *value;
                }
            }
            Ok(())
        },
    )
}

/// The operands of a product; see [`run`].
pub(super) struct Product<'a> {
    pub rows: usize,
    /// [rows, k], dense.
    pub a: &'a [f32],
    pub weight: &'a PackedMatrix,
    pub bias: Option<&'a [f32]>,
    pub activation: Activation,
    /// [rows, n], dense.
    pub factor: Option<&'a [f32]>,
    /// [rows, n], dense.
    pub residual: Option<&'a [f32]>,
    pub cancel: &'a Cancel,
}

/// The output, shared by tasks that each write their own rows and columns.
#[derive(Clone, Copy)]
pub(super) struct Output(*mut f32);

impl Output {
    pub fn new(out: &mut [f32]) -> Self {
        Self(out.as_mut_ptr())
    }

    /// The address `offset` values in; to write there, a task needs to be the only one that does.
    pub fn at(self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}
// SAFETY: a pointer alone touches nothing; who writes through it answers for the task's part.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// Multiply-adds below which handing work to another thread costs more than it saves.
const MIN_TASK: usize = 200_000;

/// The rows of a product as its weights take them.
pub(super) enum Rows {
    /// As they are.
    Floats,
    Blocks(QuantKind, quant::Activations),
    Int8(int8::Activations),
}

impl Rows {
    /// Quantises the rows of `a` where the weight asks for it.
    pub fn new(quant: &QuantKernels, weight: &PackedMatrix, a: &[f32], rows: usize) -> Self {
        let k = weight.k;
        assert!(a.len() >= rows * k, "matmul: {} values are not {rows} rows of {k}", a.len());
        match &weight.data {
            Panels::Quant(w) => Self::Blocks(w.kind, quant::Activations::new(quant, w.kind, a, rows, k / QBLOCK)),
            Panels::Int8(_) => Self::Int8(int8::Activations::new(quant, a, rows, k)),
            _ => Self::Floats,
        }
    }

    /// Whether these are so many rows as the weight takes them.
    pub fn serve(&self, weight: &PackedMatrix, rows: usize) -> bool {
        match (self, &weight.data) {
            (Self::Blocks(kind, a), Panels::Quant(w)) => *kind == w.kind && a.blocks() == rows * (weight.k / QBLOCK),
            (Self::Int8(a), Panels::Int8(_)) => a.shape() == (rows, weight.k),
            (
                Self::Floats,
                Panels::F32(_) | Panels::F16(_) | Panels::Bf16(_) | Panels::Blocks(_) | Panels::Plain(..),
            ) => true,
            _ => false,
        }
    }

    /// Keeps the buffers for the next product of this thread.
    pub fn give_back(self) {
        match self {
            Self::Floats => {}
            Self::Blocks(_, a) => a.give_back(),
            Self::Int8(a) => a.give_back(),
        }
    }
}

/// [`run_rows`] over rows made for this product alone.
pub(super) fn run(kernels: &Kernels, quant: &QuantKernels, p: &Product, c: &mut [f32]) {
    let rows = Rows::new(quant, p.weight, p.a, p.rows);
    run_rows(kernels, quant, p, &rows, c);
    rows.give_back();
}

/// `c[rows, n] = act(a W^T + bias) * factor + residual`, split over the current rayon pool's threads by panels, then by
/// rows. `made` are the rows of `a`, as the weight takes them.
pub(super) fn run_rows(kernels: &Kernels, quant: &QuantKernels, p: &Product, made: &Rows, c: &mut [f32]) {
    let (n, k) = (p.weight.n, p.weight.k);
    assert!(p.a.len() >= p.rows * k && c.len() >= p.rows * n, "matmul: operand lengths");
    assert!(p.bias.is_none_or(|b| b.len() >= n), "matmul: bias length");
    let whole = |operand: Option<&[f32]>| operand.is_none_or(|o| o.len() >= p.rows * n);
    assert!(whole(p.factor) && whole(p.residual), "matmul: factor and residual length");
    assert!(made.serve(p.weight, p.rows), "matmul: rows made for another product");
    if p.rows == 0 || n == 0 {
        return;
    }
    if let Panels::Plain(w, blas) = &p.weight.data {
        return blas::run(blas, kernels, p, w, c);
    }
    let panels = n.div_ceil(PANEL);
    let groups = panels.div_ceil(kernels.tile_panels());
    let threads = fork::threads();
    let tasks = threads.min((p.rows * n * k.max(1)).div_ceil(MIN_TASK));
    let by_columns = tasks.min(groups);
    let by_rows = (tasks / by_columns).clamp(1, p.rows.div_ceil(kernels.tile_rows()));
    let output = Output::new(c);
    let task = |i: usize| {
        let (col, row) = (i % by_columns, i / by_columns);
        let cut = |at: usize| (groups * at / by_columns * kernels.tile_panels()).min(panels);
        let rows = p.rows * row / by_rows..p.rows * (row + 1) / by_rows;
        let panels = cut(col)..cut(col + 1);
        // SAFETY: the ranges of different tasks do not meet, and lie inside `c` by the assertions above.
        unsafe {
            match (&p.weight.data, made) {
                (Panels::Quant(w), Rows::Blocks(_, a)) => quant::part(quant, p, w, a, rows, panels, output),
                (Panels::Int8(w), Rows::Int8(a)) => int8::part(quant, p, w, a, rows, panels, output),
                _ => part(kernels, p, rows, panels, output),
            }
        };
    };
    fork::each(by_columns * by_rows, task);
}

/// Rows that stay in L2 over all k, beside a panel group's weights.
const FEW_ROWS: usize = 32;

/// The panels of a task of so many rows, in the groups that are taken one after another, each with the panel after it. Few
/// rows read weights in the order they lie in memory, all k of a few panels and then the next: `wide` of them where there
/// is one row, else a tile's.
pub(super) fn groups(
    rows: usize,
    panels: Range<usize>,
    wide: usize,
    tile: usize,
) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
    let (end, len) = (
        panels.end,
        if rows == 1 {
            wide
        } else if rows <= FEW_ROWS {
            tile
        } else {
            panels.len().max(1)
        },
    );
    panels.step_by(len).map(move |start| {
        let next = start + len;
        (start..next.min(end), (next < end).then_some(next))
    })
}

/// The rows and panels of one task.
///
/// # Safety
/// The caller alone writes these rows and columns of `c`; the operands are as long as [`run`] asserts.
unsafe fn part(kernels: &Kernels, p: &Product, rows: Range<usize>, panels: Range<usize>, c: Output) {
    for (group, next) in groups(rows.len(), panels, kernels.wide_panels(), kernels.tile_panels()) {
        // SAFETY: forwarded.
        unsafe { panel_group(kernels, p, rows.clone(), group, next, c) };
    }
}

/// Panels of a task, before those that `next` begins.
///
/// # Safety
/// As [`part`].
unsafe fn panel_group(
    kernels: &Kernels,
    p: &Product,
    rows: Range<usize>,
    panels: Range<usize>,
    next: Option<usize>,
    c: Output,
) {
    let (n, k) = (p.weight.n, p.weight.k);
    let blocks = rows.len().div_ceil(ROW_BLOCK);
    for k0 in (0..k.max(1)).step_by(K_BLOCK) {
        let depth = K_BLOCK.min(k - k0);
        for i in 0..blocks {
            if p.cancel.is_set() {
                return;
            }
            let cut = |at: usize| rows.start + rows.len() * at / blocks;
            let (first, end) = (cut(i), cut(i + 1));
            let block = Block {
                rows: end - first,
                k: depth,
                a: p.a[first * k + k0..].as_ptr(),
                lda: k,
                b: std::ptr::null(),
                panel_stride: 0,
                panels: panels.clone(),
                next: std::ptr::null(),
                c: c.at(first * n),
                ldc: n,
                n,
                first: k0 == 0,
                finish: (k0 + depth == k).then(|| BlockFinish {
                    bias: p.bias.map(<[f32]>::as_ptr),
                    activation: p.activation,
                    factor: p.factor.map(|f| (f[first * n..].as_ptr(), n)),
                    residual: p.residual.map(|r| (r[first * n..].as_ptr(), n)),
                }),
            };
            let next = match (i + 1 < blocks, k0 + depth < k) {
                (true, _) => Some((panels.start, k0)),
                (false, true) => Some((panels.start, k0 + depth)),
                (false, false) => next.map(|panel| (panel, 0)),
            };
            // SAFETY: forwarded; `panels_block` points `b` and `next` at panels of the matrix.
            unsafe { panels_block(kernels, p.weight, k0, block, next) };
        }
    }
}

/// Runs one K block, widening panels of 16-bit values and of blocks group by group; `next` is the panel and k of the block after it.
///
/// # Safety
/// As the kernel's `block`; `b`, `panel_stride` and `next` are set here.
unsafe fn panels_block(kernels: &Kernels, w: &PackedMatrix, k0: usize, block: Block, next: Option<(usize, usize)>) {
    let at = |panel: usize| (panel * w.k + k0) * PANEL;
    let (halves, widen): (&[u16], Widen) = match &w.data {
        Panels::F32(data) => {
            let b = data[at(block.panels.start)..].as_ptr();
            let next = next.map_or(std::ptr::null(), |(panel, k)| data[(panel * w.k + k) * PANEL..].as_ptr());
            // SAFETY: forwarded; whole panels follow `b`.
            unsafe { (kernels.raw.block)(&Block { b, panel_stride: w.k * PANEL, next, ..block }) };
            return;
        }
        // SAFETY: forwarded.
        Panels::Blocks(w) => return unsafe { blocks::multiply(kernels, w, k0, block) },
        Panels::Quant(_) | Panels::Int8(_) => unreachable!("quantised panels are multiplied as integers"),
        Panels::Plain(..) => unreachable!("a BLAS multiplies it"),
        Panels::F16(data) => (data, widen_f16),
        Panels::Bf16(data) => (data, widen_bf16),
    };
    if block.rows <= HALF_ROWS {
        let direct = match &w.data {
            Panels::F16(_) => kernels.raw.f16_block,
            _ => kernels.raw.bf16_block,
        };
        let b = halves[at(block.panels.start)..].as_ptr();
        // SAFETY: forwarded; whole panels follow `b`.
        unsafe { direct(&block.over(b, w.k * PANEL)) };
        return;
    }
    thread_local! {
        static GROUP: std::cell::RefCell<Vec<f32>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let group_panels = kernels.tile_panels();
    let panel_len = block.k * PANEL;
    GROUP.with_borrow_mut(|group| {
        group.resize(group_panels * K_BLOCK * PANEL, 0.0);
        for start in block.panels.clone().step_by(group_panels) {
            let end = (start + group_panels).min(block.panels.end);
            for panel in start..end {
                let source = &halves[at(panel)..][..panel_len];
                widen(source, &mut group[(panel - start) * panel_len..][..panel_len]);
            }
            // SAFETY: forwarded; `group` holds the panels start..end.
            unsafe {
                (kernels.raw.block)(&Block { b: group.as_ptr(), panel_stride: panel_len, panels: start..end, ..block });
            }
        }
    });
}

/// Widens 16-bit values exactly.
type Widen = fn(&[u16], &mut [f32]);

fn widen_f16(source: &[u16], out: &mut [f32]) {
    use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
    source.reinterpret_cast::<half::f16>().convert_to_f32_slice(out);
}

fn widen_bf16(source: &[u16], out: &mut [f32]) {
    for (o, s) in out.iter_mut().zip(source) {
        *o = f32::from_bits(u32::from(*s) << 16);
    }
}
