//! A backend that has the primitives only: its fused operations are the trait's default bodies.

use std::ops::Range;

use kin_infer::Result;
use kin_infer::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer, KvStore,
    Norm, PoolingMode, Rope, Segments, Slices, StoredAttention, Table, Weight,
};
use kin_infer::weights::Tensor;

pub struct Composed<'a>(pub &'a dyn GpuCompute);

impl GpuCompute for Composed<'_> {
    fn backend(&self) -> GpuBackend {
        self.0.backend()
    }
    fn device(&self) -> GpuDeviceInfo {
        self.0.device()
    }
    fn alloc(&self, len: usize) -> Result<Buffer> {
        self.0.alloc(len)
    }
    fn upload(&self, values: &[f32]) -> Result<Buffer> {
        self.0.upload(values)
    }
    fn upload_index(&self, values: &[u32]) -> Result<IndexBuffer> {
        self.0.upload_index(values)
    }
    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<()> {
        self.0.read(buffer, out)
    }
    fn prepare_weight(&self, parts: &[Tensor]) -> Result<Weight> {
        self.0.prepare_weight(parts)
    }
    fn prepare_table(&self, tensor: &Tensor) -> Result<Table> {
        self.0.prepare_table(tensor)
    }
    fn gather(&self, table: &Table, ids: &IndexBuffer, accumulate: bool, out: &mut Buffer) -> Result<()> {
        self.0.gather(table, ids, accumulate, out)
    }
    fn matmul(&self, x: &Buffer, rows: usize, weight: &Weight, epilogue: Epilogue, out: &mut Buffer) -> Result<()> {
        self.0.matmul(x, rows, weight, epilogue, out)
    }
    fn attention_scores(&self, q: Columns, k: Columns, shape: &AttentionShape, scores: &mut Buffer) -> Result<()> {
        self.0.attention_scores(q, k, shape, scores)
    }
    fn softmax(&self, scores: &mut Buffer, shape: &AttentionShape) -> Result<()> {
        self.0.softmax(scores, shape)
    }
    fn attention_values(&self, scores: &Buffer, v: Columns, shape: &AttentionShape, out: &mut Buffer) -> Result<()> {
        self.0.attention_values(scores, v, shape, out)
    }
    fn norm(&self, x: &mut Buffer, slices: Slices, norm: Norm) -> Result<()> {
        self.0.norm(x, slices, norm)
    }
    fn activate(&self, x: &mut Buffer, activation: Activation) -> Result<()> {
        self.0.activate(x, activation)
    }
    fn add(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        self.0.add(x, y)
    }
    fn scale(&self, x: &mut Buffer, factor: f32) -> Result<()> {
        self.0.scale(x, factor)
    }
    fn mul(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        self.0.mul(x, y)
    }
    fn rope(&self, x: &mut Buffer, rope: &Rope) -> Result<()> {
        self.0.rope(x, rope)
    }
    fn copy_rows(&self, x: &Buffer, cols: usize, first: usize, out: &mut Buffer) -> Result<()> {
        self.0.copy_rows(x, cols, first, out)
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
        self.0.unfold(x, cols, segments, positions, taps, out)
    }
    fn kv_store(&self, kv_heads: usize, head_dim: usize) -> Result<KvStore> {
        self.0.kv_store(kv_heads, head_dim)
    }
    fn kv_append(&self, store: &mut KvStore, k: Columns, v: Columns, rows: Range<usize>) -> Result<()> {
        self.0.kv_append(store, k, v, rows)
    }
    fn kv_keep(&self, store: &mut KvStore, first: usize, len: usize) -> Result<()> {
        self.0.kv_keep(store, first, len)
    }
    fn kv_share(&self, store: &KvStore) -> Result<KvStore> {
        self.0.kv_share(store)
    }
    fn attend(&self, q: Columns, stores: &[&KvStore], shape: &StoredAttention, out: &mut Buffer) -> Result<()> {
        self.0.attend(q, stores, shape, out)
    }
    fn pool(
        &self,
        x: &Buffer,
        cols: usize,
        ranges: &Segments,
        skip: usize,
        mode: PoolingMode,
        out: (&mut Buffer, usize, usize),
    ) -> Result<()> {
        self.0.pool(x, cols, ranges, skip, mode, out)
    }
    fn l2_normalize(&self, x: &mut Buffer, cols: usize) -> Result<()> {
        self.0.l2_normalize(x, cols)
    }
}
