//! The backend trait: primitives every backend has, and fused operations defined by their composition.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuDeviceInfo, IndexBuffer, KvStore, Norm,
    PoolingMode, Precision, Rope, Segments, Slices, StoredAttention, Table, Weight, checks,
};
use crate::error::{InferError, Result};
use crate::fork;
use crate::weights::Tensor;

/// A compute backend over device buffers. Operations enqueue; [`read`](Self::read) waits for their results.
///
/// Matrices are row-major f32. Sizes that contradict each other are an error before anything is computed. The order of
/// every sum is fixed by docs/numerics.md: all backends that are [exact](Self::is_exact) give the same bits.
///
/// # Errors
/// Of every operation: [`InvalidArgument`](InferError::InvalidArgument) for sizes that contradict each other, ids beyond a
/// table, positions that do not ascend, and handles of another backend; [`OutOfMemory`](InferError::OutOfMemory);
/// [`BackendError`](InferError::BackendError) of a device that fails, also in work that was enqueued before;
/// [`Cancelled`](InferError::Cancelled) of a [cancellable](Self::cancellable) one. What an output holds is then
/// unspecified. What else an operation refuses is said there.
pub trait GpuCompute: Send + Sync {
    /// The kind of device.
    fn backend(&self) -> GpuBackend;
    /// The device.
    fn device(&self) -> GpuDeviceInfo;
    /// Whether results are the bits of docs/numerics.md; a second tier, such as a BLAS, comes only near them.
    fn is_exact(&self) -> bool {
        true
    }

    /// The same backend with a flag that its operations poll inside: once it is set they stop, and what would have been
    /// unfinished is [`Cancelled`](crate::InferError::Cancelled). The flag is never reset. None where nothing is polled.
    fn cancellable(&self, flag: &Arc<AtomicBool>) -> Option<Arc<dyn GpuCompute>> {
        let _ = flag;
        None
    }

    /// A buffer of `len` values, unspecified until written.
    fn alloc(&self, len: usize) -> Result<Buffer>;
    /// A buffer that holds `values`.
    fn upload(&self, values: &[f32]) -> Result<Buffer>;
    /// An index buffer that holds `values`.
    fn upload_index(&self, values: &[u32]) -> Result<IndexBuffer>;
    /// Copies the first `out.len()` values to the host.
    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<()>;
    /// Prepares the matrix of a linear layer from tensors [n_i, k] stacked in their order: [sum n_i, k]. A value that
    /// is not finite is a [`TensorError`](InferError::TensorError).
    fn prepare_weight(&self, parts: &[Tensor]) -> Result<Weight>;
    /// Prepares an embedding table from a tensor [rows, cols].
    fn prepare_table(&self, tensor: &Tensor) -> Result<Table>;

    /// `out[i] = table[ids[i]]`, or `out[i] += table[ids[i]]` with `accumulate`.
    fn gather(&self, table: &Table, ids: &IndexBuffer, accumulate: bool, out: &mut Buffer) -> Result<()>;
    /// `out[rows, n] = act(x[rows, k] W^T + bias) * factor + residual`.
    fn matmul(&self, x: &Buffer, rows: usize, weight: &Weight, epilogue: Epilogue, out: &mut Buffer) -> Result<()>;
    /// `scores[s][h][i][j] = q_i . k_j` for each sequence and head, not yet scaled, plus the disentangled terms.
    fn attention_scores(&self, q: Columns, k: Columns, shape: &AttentionShape, scores: &mut Buffer) -> Result<()>;
    /// Softmax of each row of a score buffer, scaled, capped, biased and windowed as `shape` says; keys outside the
    /// window weigh +0.
    fn softmax(&self, scores: &mut Buffer, shape: &AttentionShape) -> Result<()>;
    /// `out[i][h] = sum_j probabilities[s][h][i][j] v_j`, [rows, heads * head_dim].
    fn attention_values(&self, scores: &Buffer, v: Columns, shape: &AttentionShape, out: &mut Buffer) -> Result<()>;
    /// Each slice of each row normalised, in place.
    fn norm(&self, x: &mut Buffer, slices: Slices, norm: Norm) -> Result<()>;
    /// Each value through `activation`, in place.
    fn activate(&self, x: &mut Buffer, activation: Activation) -> Result<()>;
    /// `x[i] += y[i]`.
    fn add(&self, x: &mut Buffer, y: &Buffer) -> Result<()>;
    /// `x[i] *= factor`.
    fn scale(&self, x: &mut Buffer, factor: f32) -> Result<()>;
    /// `x[i] *= y[i]`.
    fn mul(&self, x: &mut Buffer, y: &Buffer) -> Result<()>;
    /// Rotates the pairs of each head: (a, b) becomes (a cos - b sin, b cos + a sin).
    fn rope(&self, x: &mut Buffer, rope: &Rope) -> Result<()>;
    /// `out = x[first..first + out.len() / cols]`: consecutive rows of a matrix `cols` wide.
    fn copy_rows(&self, x: &Buffer, cols: usize, first: usize, out: &mut Buffer) -> Result<()>;
    /// The neighbourhood of each row of `x` [rows, cols] in its sequence, [rows, taps * cols]: tap t holds the row whose
    /// position is t - taps / 2 further, or zeros where the sequence has none.
    fn unfold(
        &self,
        x: &Buffer,
        cols: usize,
        segments: &Segments,
        positions: &IndexBuffer,
        taps: usize,
        out: &mut Buffer,
    ) -> Result<()>;
    /// A store of no keys.
    fn kv_store(&self, kv_heads: usize, head_dim: usize) -> Result<KvStore>;
    /// Stores `rows` of the key and value columns, all their heads, after the keys already there.
    fn kv_append(&self, store: &mut KvStore, k: Columns, v: Columns, rows: Range<usize>) -> Result<()>;
    /// Keeps the keys `first..len`: those before may be forgotten, those after are.
    fn kv_keep(&self, store: &mut KvStore, first: usize, len: usize) -> Result<()>;
    /// A store that goes on from the same keys; what both hold may be held once.
    fn kv_share(&self, store: &KvStore) -> Result<KvStore>;
    /// Attention over stored keys, [rows, heads * head_dim]: the bits of [`attention`](Self::attention) with a window
    /// of no keys ahead over the whole sequence.
    fn attend(&self, q: Columns, stores: &[&KvStore], shape: &StoredAttention, out: &mut Buffer) -> Result<()>;
    /// Pools each range of rows of `x` [rows, cols] into row i of `out` [ranges, out_stride], at column `out_first`.
    /// The first `skip` rows of each range, a prompt, take no part; a range with no others is an
    /// [`InputError`](InferError::InputError).
    fn pool(
        &self,
        x: &Buffer,
        cols: usize,
        ranges: &Segments,
        skip: usize,
        mode: PoolingMode,
        out: (&mut Buffer, usize, usize),
    ) -> Result<()>;
    /// Each row of `x` [rows, cols] divided by max(its Euclidean norm, 1e-12).
    fn l2_normalize(&self, x: &mut Buffer, cols: usize) -> Result<()>;

    /// As [`prepare_weight`](Self::prepare_weight), for products of this precision. A backend that has no other than the
    /// exact one refuses them.
    fn prepare_weight_as(&self, parts: &[Tensor], precision: Precision) -> Result<Weight> {
        match precision {
            Precision::Exact => self.prepare_weight(parts),
            Precision::Int8 => Err(InferError::BackendError {
                backend: self.backend().to_string(),
                operation: "prepare_weight_as".to_string(),
                detail: "products of int8 are computed on the CPU alone; take the CPU, or the exact precision"
                    .to_string(),
            }),
        }
    }

    /// For each row of `x` [rows, cols] the first of its first `among` columns that holds their largest value, on the
    /// host; None where a value of the row, of whichever column, is NaN or infinite. +0 and -0 are equal.
    fn arg_max(&self, x: &Buffer, cols: usize, among: usize) -> Result<Vec<Option<u32>>> {
        checks::arg_max(x, cols, among)?;
        let mut values = super::zeros(x.len(), "scores")?;
        self.read(x, &mut values)?;
        let mut first = vec![None; x.len() / cols];
        let rows = values.chunks_exact(cols).zip(&mut first).collect();
        fork::each_of(rows, |(row, first): (&[f32], &mut Option<u32>)| {
            let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
            let finite = row.iter().all(|v| v.is_finite());
            *first = finite.then(|| (1..among).fold(0, larger) as u32);
        });
        Ok(first)
    }

    /// Self-attention: scores, softmax, values.
    fn attention(&self, q: Columns, k: Columns, v: Columns, shape: &AttentionShape, out: &mut Buffer) -> Result<()> {
        let mut scores = self.alloc(shape.score_len())?;
        self.attention_scores(q, k, shape, &mut scores)?;
        self.softmax(&mut scores, shape)?;
        self.attention_values(&scores, v, shape, out)
    }

    /// Each row of a matrix as wide as the norm, in place.
    fn norm_rows(&self, x: &mut Buffer, norm: Norm) -> Result<()> {
        self.norm(x, Slices { first: 0, count: 1, stride: norm.gamma.len() }, norm)
    }

    /// `out = norm(x W^T + bias + residual)`: the end of a post-norm block.
    #[allow(clippy::too_many_arguments)] // the fused operation's operands; a struct would only rename them
    fn linear_add_norm(
        &self,
        x: &Buffer,
        rows: usize,
        weight: &Weight,
        bias: Option<&Buffer>,
        residual: &Buffer,
        norm: Norm,
        out: &mut Buffer,
    ) -> Result<()> {
        let epilogue = Epilogue { bias, residual: Some(residual), ..Epilogue::NONE };
        self.matmul(x, rows, weight, epilogue, out)?;
        self.norm_rows(out, norm)
    }

    /// `out = act(x G^T + g) * (x U^T + u)`: the first half of a gated feed-forward block (arXiv 2002.05202).
    fn gated_ffn(
        &self,
        x: &Buffer,
        rows: usize,
        gate: (&Weight, Option<&Buffer>),
        up: (&Weight, Option<&Buffer>),
        activation: Activation,
        out: &mut Buffer,
    ) -> Result<()> {
        let mut product = self.alloc(rows * up.0.n())?;
        self.matmul(x, rows, up.0, Epilogue { bias: up.1, ..Epilogue::NONE }, &mut product)?;
        let gated = Epilogue { bias: gate.1, activation, factor: Some(&product), residual: None };
        self.matmul(x, rows, gate.0, gated, out)
    }
}
