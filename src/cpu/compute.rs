//! [`CpuCompute`]: the backend trait over host memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::attention::{self, View};
use super::blas::{self, Blas};
use super::cancel::Cancel;
use super::kv::{self, Keys};
use super::memory::Pool;
use super::operands::{host, host_mut, indices, shape, view};
use super::packed::{self, PackedMatrix, Product};
use super::quant::QuantKernels;
use super::scores::Block;
use super::table::Kernels;
use super::{dispatch, pooling};
use crate::error::Result;
use crate::fork;
use crate::gpu::checks::{self, expect, size, whole_rows};
use crate::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer, KvStore,
    Norm, NormKind, PoolingMode, Precision, Rope, RopeLayout, Segments, Slices, StoredAttention, Table, Weight,
};
use crate::weights::Tensor;

/// The CPU backend. It computes on the rayon pool that is current where it is called.
#[derive(Clone)]
pub struct CpuCompute {
    kernels: &'static Kernels,
    quant: &'static QuantKernels,
    /// Multiplies in place of the kernels, where there is one.
    blas: Option<&'static Blas>,
    pool: Arc<Pool>,
    cancel: Cancel,
}

/// Values a task of an elementwise operation handles at least.
const MIN_VALUES: usize = 16_384;

/// Splits `x` into runs of whole rows and calls `f(first row, rows)` on each, in parallel where it pays.
fn each_rows(x: &mut [f32], cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if cols == 0 || x.is_empty() {
        return;
    }
    let rows = x.len() / cols;
    let tasks = fork::threads().min(x.len().div_ceil(MIN_VALUES)).min(rows).max(1);
    if tasks == 1 {
        return f(0, x);
    }
    let chunk = rows.div_ceil(tasks);
    fork::each_of(x.chunks_mut(chunk * cols).enumerate().collect(), |(i, part)| f(i * chunk, part));
}

impl CpuCompute {
    /// With the instruction set `KIN_INFER_CPU_ISA` names, else the best this CPU has. In a build with the feature
    /// `accelerate` on macOS, Accelerate multiplies matrices unless `KIN_INFER_CPU_BACKEND` is `pure-rust`; results are
    /// then not the contract's bits.
    ///
    /// # Errors
    /// When a variable names what this CPU or build lacks.
    pub fn new() -> Result<Self> {
        Ok(Self::with_kernels(dispatch::selected()?).with_blas(blas::selected()?))
    }

    /// With a given kernel table, and the integer kernels that go with it: the contract's bits.
    pub fn with_kernels(kernels: &'static Kernels) -> Self {
        Self::with_quant_kernels(kernels, dispatch::quant_for(kernels))
    }

    /// Where buffers come from.
    #[cfg(test)]
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// With given kernel tables for floats and for integers.
    pub fn with_quant_kernels(kernels: &'static Kernels, quant: &'static QuantKernels) -> Self {
        Self { kernels, quant, blas: None, pool: Arc::default(), cancel: Cancel::default() }
    }

    /// The same with a library for matrix products.
    pub(super) fn with_blas(self, blas: Option<&'static Blas>) -> Self {
        Self { blas, ..self }
    }
}

/// The operands of a product, checked.
fn product<'a>(
    x: &'a Buffer,
    rows: usize,
    weight: &'a Weight,
    e: &Epilogue<'a>,
    out: &Buffer,
    cancel: &'a Cancel,
) -> Result<Product<'a>> {
    checks::matmul(x, rows, weight, e, out)?;
    Ok(Product {
        rows,
        a: host(x)?,
        weight: weight.storage::<PackedMatrix>()?,
        bias: e.bias.map(host).transpose()?,
        activation: e.activation,
        factor: e.factor.map(host).transpose()?,
        residual: e.residual.map(host).transpose()?,
        cancel,
    })
}

impl GpuCompute for CpuCompute {
    fn backend(&self) -> GpuBackend {
        GpuBackend::Cpu
    }

    fn device(&self) -> GpuDeviceInfo {
        GpuDeviceInfo {
            backend: GpuBackend::Cpu,
            name: std::env::consts::ARCH.to_string(),
            detail: match self.blas {
                Some(blas) => format!("{}, products by {}", self.kernels.name(), blas.name),
                None => self.kernels.name().to_string(),
            },
            threads: fork::threads(),
            memory: None,
        }
    }

    fn is_exact(&self) -> bool {
        self.blas.is_none()
    }

    fn cancellable(&self, flag: &Arc<AtomicBool>) -> Option<Arc<dyn GpuCompute>> {
        Some(Arc::new(Self { cancel: Cancel::polling(flag), ..self.clone() }))
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
        self.prepare_weight_as(parts, Precision::Exact)
    }

    fn prepare_weight_as(&self, parts: &[Tensor], precision: Precision) -> Result<Weight> {
        checks::prepare_weight(parts)?;
        let packed = match precision {
            Precision::Exact => PackedMatrix::new(parts, self.blas)?,
            Precision::Int8 => PackedMatrix::int8(parts)?,
        };
        Ok(Weight::new(packed.n, packed.k, packed.bytes(), packed))
    }

    fn prepare_table(&self, tensor: &Tensor) -> Result<Table> {
        tensor.dtype()?;
        let (rows, cols) = checks::prepare_table(tensor)?;
        Ok(Table::new(rows, cols, tensor.clone()))
    }

    fn gather(&self, table: &Table, ids: &IndexBuffer, accumulate: bool, out: &mut Buffer) -> Result<()> {
        let cols = table.cols();
        checks::gather(table, ids, out)?;
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
        let product = product(x, rows, weight, &e, out, &self.cancel)?;
        packed::run(self.kernels, self.quant, &product, host_mut(out)?);
        self.cancel.check()
    }

    fn gated_ffn(
        &self,
        x: &Buffer,
        rows: usize,
        gate: (&Weight, Option<&Buffer>),
        up: (&Weight, Option<&Buffer>),
        activation: Activation,
        out: &mut Buffer,
    ) -> Result<()> {
        let mut factor = self.alloc(size(&[rows, up.0.n()]))?;
        let e = Epilogue { bias: up.1, ..Epilogue::NONE };
        let first = product(x, rows, up.0, &e, &factor, &self.cancel)?;
        // Where both take the same quantised rows, they are made once.
        let made = packed::Rows::new(self.quant, first.weight, first.a, rows);
        packed::run_rows(self.kernels, self.quant, &first, &made, host_mut(&mut factor)?);
        let e = Epilogue { bias: gate.1, activation, factor: Some(&factor), residual: None };
        let second = product(x, rows, gate.0, &e, out, &self.cancel)?;
        if made.serve(second.weight, rows) {
            packed::run_rows(self.kernels, self.quant, &second, &made, host_mut(out)?);
        } else {
            packed::run(self.kernels, self.quant, &second, host_mut(out)?);
        }
        made.give_back();
        self.cancel.check()
    }

    fn attention_scores(&self, q: Columns, k: Columns, s: &AttentionShape, scores: &mut Buffer) -> Result<()> {
        expect("attention", "the score buffer", scores.len(), s.score_len())?;
        let (shape, segments) = shape(s)?;
        let (q, k) = (view("the query", q, s.heads, s)?, view("the key", k, s.kv_heads, s)?);
        let mut rest = host_mut(scores)?;
        for segment in segments.iter().filter(|r| !r.is_empty()) {
            for head in 0..s.heads {
                let (part, tail) = rest.split_at_mut(segment.len() * segment.len());
                rest = tail;
                attention::head_scores(self.kernels, &shape, head, segment, (q, k), part);
            }
        }
        Ok(())
    }

    fn softmax(&self, scores: &mut Buffer, s: &AttentionShape) -> Result<()> {
        expect("softmax", "the score buffer", scores.len(), s.score_len())?;
        let (shape, segments) = shape(s)?;
        let mut rest = host_mut(scores)?;
        for segment in segments.iter().filter(|r| !r.is_empty()) {
            for head in 0..s.heads {
                let (part, tail) = rest.split_at_mut(segment.len() * segment.len());
                rest = tail;
                let (all, stride) = (0..segment.len(), segment.len());
                let block = Block { queries: all.clone(), seen: all, stride, scores: part };
                shape.softmax_rows(self.kernels, head, segment, block);
            }
        }
        Ok(())
    }

    fn attention_values(&self, scores: &Buffer, v: Columns, s: &AttentionShape, out: &mut Buffer) -> Result<()> {
        let width = size(&[s.heads, s.head_dim]);
        expect("attention", "the score buffer", scores.len(), s.score_len())?;
        expect("attention", "the output", out.len(), size(&[s.segments.total(), width]))?;
        let (shape, segments) = shape(s)?;
        let v = view("the value", v, s.kv_heads, s)?;
        let (mut rest, out) = (host(scores)?, host_mut(out)?);
        for segment in segments.iter().filter(|r| !r.is_empty()) {
            for head in 0..s.heads {
                let (part, tail) = rest.split_at(segment.len() * segment.len());
                rest = tail;
                let out = &mut out[segment.start * width + head * s.head_dim..];
                attention::head_values(self.kernels, &shape, head, segment, (part, v), out);
            }
        }
        Ok(())
    }

    fn attention(&self, q: Columns, k: Columns, v: Columns, s: &AttentionShape, out: &mut Buffer) -> Result<()> {
        expect("attention", "the output", out.len(), size(&[s.segments.total(), s.heads, s.head_dim]))?;
        let (shape, segments) = shape(s)?;
        let views = (
            view("the query", q, s.heads, s)?,
            view("the key", k, s.kv_heads, s)?,
            view("the value", v, s.kv_heads, s)?,
        );
        attention::run(self.kernels, &shape, &segments, views, host_mut(out)?, &self.cancel);
        self.cancel.check()
    }

    fn norm(&self, x: &mut Buffer, slices: Slices, norm: Norm) -> Result<()> {
        let (width, Slices { first, count, stride }) = (norm.gamma.len(), slices);
        checks::norm(x, slices, &norm)?;
        let (gamma, beta) = (host(norm.gamma)?, norm.beta.map(host).transpose()?);
        if width == 0 {
            return Ok(());
        }
        each_rows(host_mut(x)?, stride, |_, part| {
            for row in part.chunks_exact_mut(stride) {
                for slice in row[first..first + count * width].chunks_exact_mut(width) {
                    match norm.kind {
                        NormKind::LayerNorm => self.kernels.layer_norm(slice, gamma, beta, norm.eps),
                        NormKind::RmsNorm => self.kernels.rms_norm(slice, gamma, norm.eps),
                    }
                }
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

    fn scale(&self, x: &mut Buffer, factor: f32) -> Result<()> {
        each_rows(host_mut(x)?, 1, |_, part| part.iter_mut().for_each(|v| *v *= factor));
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
        checks::rope(x, r)?;
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

    fn copy_rows(&self, x: &Buffer, cols: usize, first: usize, out: &mut Buffer) -> Result<()> {
        checks::copy_rows(x, cols, first, out)?;
        let (x, out) = (&host(x)?[first * cols..], host_mut(out)?);
        out.copy_from_slice(&x[..out.len()]);
        Ok(())
    }

    fn unfold(
        &self,
        x: &Buffer,
        cols: usize,
        segments: &Segments,
        positions: &IndexBuffer,
        taps: usize,
        out: &mut Buffer,
    ) -> Result<()> {
        checks::unfold(x, cols, segments, indices(positions)?, taps, out)?;
        let (x, out, positions) = (host(x)?, host_mut(out)?, indices(positions)?);
        for (i, source) in segments.neighbours(positions, taps).enumerate() {
            let to = &mut out[i * cols..][..cols];
            match source {
                Some(row) => to.copy_from_slice(&x[row * cols..][..cols]),
                None => to.fill(0.0),
            }
        }
        Ok(())
    }

    fn kv_store(&self, kv_heads: usize, head_dim: usize) -> Result<KvStore> {
        checks::kv_store(kv_heads, head_dim)?;
        Ok(KvStore::new(kv_heads, head_dim, Keys::default()))
    }

    fn kv_append(&self, store: &mut KvStore, k: Columns, v: Columns, rows: Range<usize>) -> Result<()> {
        checks::kv_append(store, k, v, &rows)?;
        let k = View { data: host(k.buffer)?, first: k.first, stride: k.stride };
        let v = View { data: host(v.buffer)?, first: v.first, stride: v.stride };
        kv::append(store, k, v, rows)
    }

    fn kv_keep(&self, store: &mut KvStore, first: usize, len: usize) -> Result<()> {
        checks::kv_keep(store, first, len)?;
        kv::keep(store, first, len)
    }

    fn kv_share(&self, store: &KvStore) -> Result<KvStore> {
        let mut other = KvStore::new(store.kv_heads(), store.head_dim(), store.storage::<Keys>()?.clone());
        other.set_range(store.first(), store.len());
        Ok(other)
    }

    fn attend(&self, q: Columns, stores: &[&KvStore], s: &StoredAttention, out: &mut Buffer) -> Result<()> {
        checks::attend(q, stores, s, out)?;
        let sequences = kv::sequences(stores, s)?;
        let q = View { data: host(q.buffer)?, first: q.first, stride: q.stride };
        kv::attend(self.kernels, q, &sequences, s, host_mut(out)?, &self.cancel);
        self.cancel.check()
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
        checks::pool(x, cols, ranges, skip, (out, out_first, out_stride))?;
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
