//! A backend that has the primitives only: its fused operations are the trait's default bodies.

use kin_infer::Result;
use kin_infer::cpu::CpuCompute;
use kin_infer::gpu::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer,
    PoolingMode, Rope, Segments, Table, Weight,
};
use kin_infer::weights::Tensor;

pub struct Composed<'a>(pub &'a CpuCompute);

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
    fn layer_norm(&self, x: &mut Buffer, gamma: &Buffer, beta: Option<&Buffer>, eps: f32) -> Result<()> {
        self.0.layer_norm(x, gamma, beta, eps)
    }
    fn rms_norm(&self, x: &mut Buffer, gamma: &Buffer, eps: f32) -> Result<()> {
        self.0.rms_norm(x, gamma, eps)
    }
    fn activate(&self, x: &mut Buffer, activation: Activation) -> Result<()> {
        self.0.activate(x, activation)
    }
    fn add(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        self.0.add(x, y)
    }
    fn mul(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        self.0.mul(x, y)
    }
    fn rope(&self, x: &mut Buffer, rope: &Rope) -> Result<()> {
        self.0.rope(x, rope)
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
