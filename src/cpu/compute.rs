//! [`CpuCompute`]: the backend trait over host memory.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::attention::{self, View};
use super::memory::{Pool, PooledBuf};
use super::packed::{self, PackedMatrix, Product};
use super::table::{Kernels, Matrix};
use super::{dispatch, pooling};
use crate::error::{InferError, Result};
use crate::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer,
    PoolingMode, Rope, RopeLayout, Segments, Table, Weight,
};
use crate::weights::Tensor;

/// The CPU backend. It computes on the rayon pool that is current where it is called.
pub struct CpuCompute {
    kernels: &'static Kernels,
    pool: Arc<Pool>,
}

/// Values a task of an elementwise operation handles at least.
const MIN_VALUES: usize = 16_384;

/// Splits `x` into runs of whole rows and calls `f(first row, rows)` on each, in parallel where it pays.
fn each_rows(x: &mut [f32], cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if cols == 0 || x.is_empty() {
        return;
    }
    let rows = x.len() / cols;
    let tasks = rayon::current_num_threads().min(x.len().div_ceil(MIN_VALUES)).min(rows).max(1);
    if tasks == 1 {
        return f(0, x);
    }
    let chunk = rows.div_ceil(tasks);
    x.par_chunks_mut(chunk * cols).enumerate().for_each(|(i, part)| f(i * chunk, part));
}

fn expect(operation: &str, what: &str, found: usize, needed: usize) -> Result<()> {
    if found >= needed {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: {what} holds {found} values, {needed} are needed")))
}

/// A matrix of rows `cols` wide, and nothing left over.
fn whole_rows(operation: &str, len: usize, cols: usize) -> Result<()> {
    if cols > 0 && len.is_multiple_of(cols) {
        return Ok(());
    }
    Err(InferError::InvalidArgument(format!("{operation}: {len} values are not whole rows of {cols}")))
}

fn host(b: &Buffer) -> Result<&[f32]> {
    b.storage::<PooledBuf>().map(|p| &**p)
}

fn host_mut(b: &mut Buffer) -> Result<&mut [f32]> {
    b.storage_mut::<PooledBuf>().map(|p| &mut **p)
}

fn indices(b: &IndexBuffer) -> Result<&[u32]> {
    b.storage::<Vec<u32>>().map(Vec::as_slice)
}

impl CpuCompute {
    /// With the instruction set `KIN_INFER_CPU_ISA` names, else the best this CPU has.
    ///
    /// # Errors
    /// When the variable names one that this CPU or build lacks.
    pub fn new() -> Result<Self> {
        Ok(Self::with_kernels(dispatch::selected()?))
    }

    /// With a given kernel table.
    pub fn with_kernels(kernels: &'static Kernels) -> Self {
        Self { kernels, pool: Arc::default() }
    }

    fn shape<'a>(&self, s: &AttentionShape<'a>) -> Result<(attention::Shape<'a>, Vec<Range<usize>>)> {
        if s.head_dim == 0 || s.heads == 0 || s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) {
            return Err(InferError::InvalidArgument(format!(
                "attention: {} query heads of {} features cannot share {} key heads",
                s.heads, s.head_dim, s.kv_heads
            )));
        }
        let alibi = match &s.alibi {
            None => None,
            Some(a) => {
                expect("attention", "the slopes", a.slopes.len(), s.heads)?;
                expect("attention", "the positions", a.positions.len(), s.segments.total())?;
                Some((host(a.slopes)?, indices(a.positions)?))
            }
        };
        let shape =
            attention::Shape { heads: s.heads, kv_heads: s.kv_heads, head_dim: s.head_dim, scale: s.scale, alibi };
        Ok((shape, s.segments.iter().collect()))
    }

    /// The view of `heads` heads over all rows of the batch, checked.
    fn view<'a>(&self, what: &str, c: Columns<'a>, heads: usize, s: &AttentionShape) -> Result<View<'a>> {
        let rows = s.segments.total();
        let end = c.first + heads * s.head_dim;
        if end > c.stride {
            return Err(InferError::InvalidArgument(format!("attention: {what} ends past the matrix' width")));
        }
        expect("attention", what, c.buffer.len(), rows.saturating_sub(1) * c.stride + if rows == 0 { 0 } else { end })?;
        Ok(View { data: host(c.buffer)?, first: c.first, stride: c.stride })
    }
}

impl GpuCompute for CpuCompute {
    fn backend(&self) -> GpuBackend {
        GpuBackend::Cpu
    }

    fn device(&self) -> GpuDeviceInfo {
        GpuDeviceInfo {
            backend: GpuBackend::Cpu,
            name: std::env::consts::ARCH.to_string(),
            detail: self.kernels.name().to_string(),
            threads: rayon::current_num_threads(),
        }
    }

    fn alloc(&self, len: usize) -> Result<Buffer> {
        Ok(Buffer::new(len, self.pool.take(len)?))
    }

    fn upload(&self, values: &[f32]) -> Result<Buffer> {
        let mut buffer = self.pool.take(values.len())?;
        buffer.copy_from_slice(values);
        Ok(Buffer::new(values.len(), buffer))
    }

    fn upload_index(&self, values: &[u32]) -> Result<IndexBuffer> {
        let bound = values.iter().max().map_or(0, |m| *m as usize + 1);
        Ok(IndexBuffer::new(values.len(), bound, values.to_vec()))
    }

    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<()> {
        expect("read", "the buffer", buffer.len(), out.len())?;
        out.copy_from_slice(&host(buffer)?[..out.len()]);
        Ok(())
    }

    fn prepare_weight(&self, parts: &[Tensor]) -> Result<Weight> {
        let width = |t: &Tensor| if t.shape().len() == 2 { Some(t.shape()[1]) } else { None };
        let first = parts.first().and_then(width);
        if first.is_none() || parts.iter().any(|t| width(t) != first) {
            let shapes: Vec<_> = parts.iter().map(|t| format!("{} {:?}", t.name(), t.shape())).collect();
            return Err(InferError::InvalidArgument(format!(
                "prepare_weight: matrices of one width are needed, got {}",
                shapes.join(", ")
            )));
        }
        let packed = PackedMatrix::new(parts)?;
        Ok(Weight::new(packed.n, packed.k, packed.bytes(), packed))
    }

    fn prepare_table(&self, tensor: &Tensor) -> Result<Table> {
        tensor.dtype()?;
        match tensor.shape() {
            [rows, cols] => Ok(Table::new(*rows, *cols, tensor.clone())),
            other => Err(InferError::InvalidArgument(format!(
                "prepare_table: `{}` has shape {other:?}, a matrix is needed",
                tensor.name()
            ))),
        }
    }

    fn gather(&self, table: &Table, ids: &IndexBuffer, accumulate: bool, out: &mut Buffer) -> Result<()> {
        let cols = table.cols();
        expect("gather", "the output", out.len(), ids.len() * cols)?;
        expect("gather", "the table", table.rows(), ids.bound())?;
        let (tensor, ids) = (table.storage::<Tensor>()?, indices(ids)?);
        let failed = std::sync::Mutex::new(None);
        let out = &mut host_mut(out)?[..ids.len() * cols];
        each_rows(out, cols, |first, part| {
            let mut row = vec![0f32; if accumulate { cols } else { 0 }];
            for (o, id) in part.chunks_exact_mut(cols).zip(&ids[first..]) {
                let at = *id as usize * cols;
                let read = if accumulate {
                    tensor.read_f32(at, &mut row).map(|()| self.kernels.add(o, &row))
                } else {
                    tensor.read_f32(at, o)
                };
                if let Err(e) = read {
                    *failed.lock().unwrap_or_else(|p| p.into_inner()) = Some(e);
                }
            }
        });
        failed.into_inner().unwrap_or_else(|p| p.into_inner()).map_or(Ok(()), Err)
    }

    fn matmul(&self, x: &Buffer, rows: usize, weight: &Weight, e: Epilogue, out: &mut Buffer) -> Result<()> {
        let (n, k) = (weight.n(), weight.k());
        expect("matmul", "the input", x.len(), rows * k)?;
        expect("matmul", "the output", out.len(), rows * n)?;
        if let Some(bias) = e.bias {
            expect("matmul", "the bias", bias.len(), n)?;
        }
        if let Some(residual) = e.residual {
            expect("matmul", "the residual", residual.len(), rows * n)?;
        }
        let product = Product {
            rows,
            a: host(x)?,
            weight: weight.storage::<PackedMatrix>()?,
            bias: e.bias.map(host).transpose()?,
            activation: e.activation,
            residual: e.residual.map(host).transpose()?,
        };
        packed::run(self.kernels, &product, host_mut(out)?);
        Ok(())
    }

    fn attention_scores(&self, q: Columns, k: Columns, s: &AttentionShape, scores: &mut Buffer) -> Result<()> {
        expect("attention", "the score buffer", scores.len(), s.score_len())?;
        let (shape, segments) = self.shape(s)?;
        let (q, k) = (self.view("the query", q, s.heads, s)?, self.view("the key", k, s.kv_heads, s)?);
        let mut rest = host_mut(scores)?;
        let mut keys = Vec::new();
        for segment in segments.iter().filter(|r| !r.is_empty()) {
            for head in 0..s.heads {
                let (part, tail) = rest.split_at_mut(segment.len() * segment.len());
                rest = tail;
                attention::pack_keys(k.at(segment.start, shape.kv_column(head)), segment.len(), s.head_dim, &mut keys);
                let query = q.at(segment.start, head * s.head_dim);
                self.kernels.multiply(segment.len(), s.head_dim, segment.len(), query, &keys, part, segment.len());
            }
        }
        Ok(())
    }

    fn softmax(&self, scores: &mut Buffer, s: &AttentionShape) -> Result<()> {
        expect("softmax", "the score buffer", scores.len(), s.score_len())?;
        let (shape, segments) = self.shape(s)?;
        let mut rest = host_mut(scores)?;
        for segment in segments.iter().filter(|r| !r.is_empty()) {
            for head in 0..s.heads {
                let (part, tail) = rest.split_at_mut(segment.len() * segment.len());
                rest = tail;
                attention::softmax_rows(self.kernels, &shape, head, segment.clone(), segment, part);
            }
        }
        Ok(())
    }

    fn attention_values(&self, scores: &Buffer, v: Columns, s: &AttentionShape, out: &mut Buffer) -> Result<()> {
        let width = s.heads * s.head_dim;
        expect("attention", "the score buffer", scores.len(), s.score_len())?;
        expect("attention", "the output", out.len(), s.segments.total() * width)?;
        let (shape, segments) = self.shape(s)?;
        let v = self.view("the value", v, s.kv_heads, s)?;
        let (mut rest, out) = (host(scores)?, host_mut(out)?);
        let mut values = Vec::new();
        for segment in segments.iter().filter(|r| !r.is_empty()) {
            for head in 0..s.heads {
                let (part, tail) = rest.split_at(segment.len() * segment.len());
                rest = tail;
                let column = shape.kv_column(head);
                attention::pack_values(v.at(segment.start, column), segment.len(), s.head_dim, &mut values);
                let c = &mut out[segment.start * width + head * s.head_dim..];
                let probabilities = Matrix { data: part, stride: segment.len() };
                self.kernels.multiply(segment.len(), segment.len(), s.head_dim, probabilities, &values, c, width);
            }
        }
        Ok(())
    }

    fn attention(&self, q: Columns, k: Columns, v: Columns, s: &AttentionShape, out: &mut Buffer) -> Result<()> {
        expect("attention", "the output", out.len(), s.segments.total() * s.heads * s.head_dim)?;
        let (shape, segments) = self.shape(s)?;
        let views = (
            self.view("the query", q, s.heads, s)?,
            self.view("the key", k, s.kv_heads, s)?,
            self.view("the value", v, s.kv_heads, s)?,
        );
        attention::run(self.kernels, &shape, &segments, views, host_mut(out)?);
        Ok(())
    }

    fn layer_norm(&self, x: &mut Buffer, gamma: &Buffer, beta: Option<&Buffer>, eps: f32) -> Result<()> {
        whole_rows("layer_norm", x.len(), gamma.len())?;
        let (gamma, beta) = (host(gamma)?, beta.map(host).transpose()?);
        if let Some(beta) = beta {
            expect("layer_norm", "beta", beta.len(), gamma.len())?;
        }
        each_rows(host_mut(x)?, gamma.len(), |_, part| {
            for row in part.chunks_exact_mut(gamma.len()) {
                self.kernels.layer_norm(row, gamma, beta, eps);
            }
        });
        Ok(())
    }

    fn rms_norm(&self, x: &mut Buffer, gamma: &Buffer, eps: f32) -> Result<()> {
        whole_rows("rms_norm", x.len(), gamma.len())?;
        let gamma = host(gamma)?;
        each_rows(host_mut(x)?, gamma.len(), |_, part| {
            for row in part.chunks_exact_mut(gamma.len()) {
                self.kernels.rms_norm(row, gamma, eps);
            }
        });
        Ok(())
    }

    fn activate(&self, x: &mut Buffer, activation: Activation) -> Result<()> {
        each_rows(host_mut(x)?, 1, |_, part| self.kernels.activation(activation, part));
        Ok(())
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        expect("add", "the second operand", y.len(), x.len())?;
        let y = host(y)?;
        each_rows(host_mut(x)?, 1, |first, part| self.kernels.add(part, &y[first..first + part.len()]));
        Ok(())
    }

    fn mul(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        expect("mul", "the second operand", y.len(), x.len())?;
        let y = host(y)?;
        each_rows(host_mut(x)?, 1, |first, part| self.kernels.mul(part, &y[first..first + part.len()]));
        Ok(())
    }

    fn rope(&self, x: &mut Buffer, r: &Rope) -> Result<()> {
        let half = r.rotary_dim / 2;
        if !r.rotary_dim.is_multiple_of(2) || r.rotary_dim > r.head_dim || r.first + r.heads * r.head_dim > r.stride {
            return Err(InferError::InvalidArgument(format!(
                "rope: rotary_dim {} of {} heads of {} at column {} does not fit a matrix {} wide",
                r.rotary_dim, r.heads, r.head_dim, r.first, r.stride
            )));
        }
        expect("rope", "the matrix", x.len(), r.positions.len() * r.stride)?;
        expect("rope", "the cosine table", r.cos.len(), r.positions.bound() * half)?;
        expect("rope", "the sine table", r.sin.len(), r.positions.bound() * half)?;
        let (cos, sin, positions) = (host(r.cos)?, host(r.sin)?, indices(r.positions)?);
        let x = &mut host_mut(x)?[..positions.len() * r.stride];
        each_rows(x, r.stride, |first, part| {
            for (row, position) in part.chunks_exact_mut(r.stride).zip(&positions[first..]) {
                let at = *position as usize * half;
                let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
                for head in row[r.first..][..r.heads * r.head_dim].chunks_exact_mut(r.head_dim) {
                    for i in 0..half {
                        let (a, b) = match r.layout {
                            RopeLayout::Halves => (i, i + half),
                            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                        };
                        (head[a], head[b]) = (head[a] * cos[i] - head[b] * sin[i], head[b] * cos[i] + head[a] * sin[i]);
                    }
                }
            }
        });
        Ok(())
    }

    fn pool(
        &self,
        x: &Buffer,
        cols: usize,
        ranges: &Segments,
        skip: usize,
        mode: PoolingMode,
        (out, out_first, out_stride): (&mut Buffer, usize, usize),
    ) -> Result<()> {
        expect("pool", "the input", x.len(), ranges.total() * cols)?;
        whole_rows("pool", x.len(), cols)?;
        expect("pool", "the output", out.len(), ranges.len() * out_stride)?;
        expect("pool", "a row of the output", out_stride, out_first + cols)?;
        if let Some(i) = (0..ranges.len()).find(|&i| ranges.range(i).len() <= skip) {
            return Err(InferError::input(
                i,
                format!("{} tokens, {skip} of them skipped: none left to pool", ranges.range(i).len()),
            ));
        }
        let x = host(x)?;
        each_rows(&mut host_mut(out)?[..ranges.len() * out_stride], out_stride, |first, part| {
            for (i, row) in part.chunks_exact_mut(out_stride).enumerate() {
                let tokens = ranges.range(first + i);
                let tokens = &x[tokens.start * cols..tokens.end * cols];
                pooling::pool(self.kernels, mode, tokens, skip, &mut row[out_first..out_first + cols]);
            }
        });
        Ok(())
    }

    fn l2_normalize(&self, x: &mut Buffer, cols: usize) -> Result<()> {
        whole_rows("l2_normalize", x.len(), cols)?;
        each_rows(host_mut(x)?, cols, |_, part| {
            for row in part.chunks_exact_mut(cols) {
                self.kernels.l2_normalize(row);
            }
        });
        Ok(())
    }
}
