//! [`Profiled`]: a backend that counts what each operation of another one costs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer, KvStore,
    Norm, PoolingMode, Precision, Rope, Segments, Slices, StoredAttention, Table, Weight,
};
use crate::error::Result;
use crate::weights::Tensor;

/// What the calls of one operation took together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Number of calls.
    pub calls: u64,
    /// Time in them, summed over the threads that called; what they called in turn is not counted twice.
    pub time: Duration,
    /// Multiplications and additions of matrix products, two each multiply-add. Other arithmetic is not counted.
    pub flops: f64,
    /// Bytes of operands and results, each once.
    pub bytes: f64,
}

/// Runs every operation on another backend and counts its cost. A model loaded onto it computes the same bits; one loaded
/// onto the other backend alone pays nothing.
///
/// Time is that of the calls: the whole of an operation for a backend that computes at once, as the CPU does.
pub struct Profiled {
    inner: Arc<dyn GpuCompute>,
    costs: Arc<Mutex<BTreeMap<String, Cost>>>,
}

thread_local! {
    /// Time that this thread has spent in counted operations inside the current one: a thread that waits for others
    /// takes up their work.
    static INSIDE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

const F32: f64 = size_of::<f32>() as f64;

impl Profiled {
    /// Counts what runs on `inner`.
    pub fn new(inner: Arc<dyn GpuCompute>) -> Self {
        Self { inner, costs: Arc::default() }
    }

    /// The costs since the last call, by operation; products are told apart by their shapes.
    pub fn take(&self) -> BTreeMap<String, Cost> {
        std::mem::take(&mut *self.costs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count<T>(&self, name: impl FnOnce() -> String, flops: f64, values: f64, run: impl FnOnce() -> T) -> T {
        let outer = INSIDE.replace(Duration::ZERO);
        let start = Instant::now();
        let result = run();
        let whole = start.elapsed();
        let time = whole.saturating_sub(INSIDE.get());
        INSIDE.set(outer + whole);
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        let cost = costs.entry(name()).or_default();
        cost.calls += 1;
        cost.time += time;
        cost.flops += flops;
        cost.bytes += values * F32;
        result
    }

    /// An operation named alone, over so many values read and written.
    fn rows<T>(&self, name: &str, values: usize, run: impl FnOnce() -> T) -> T {
        self.count(|| name.to_string(), 0.0, values as f64, run)
    }

    /// Products of `rows` rows with matrices that lie side by side.
    fn product<T>(
        &self,
        name: &str,
        rows: usize,
        weights: &[&Weight],
        extra_values: usize,
        run: impl FnOnce() -> T,
    ) -> T {
        let (n, k) = (weights.iter().map(|w| w.n()).sum::<usize>(), weights[0].k());
        let stored: usize = weights.iter().map(|w| w.bytes()).sum();
        let values = (rows * k + rows * weights[0].n() + extra_values) as f64 + stored as f64 / F32;
        self.count(|| format!("{name} {k} -> {n}"), 2.0 * rows as f64 * n as f64 * k as f64, values, run)
    }
}

/// Pairs of queries and keys that a shape lets meet.
fn pairs(shape: &AttentionShape) -> f64 {
    let (behind, ahead) = (shape.window.behind as usize, shape.window.ahead as usize);
    let of = |len: usize| {
        let seen = |i: usize| len.min(i.saturating_add(ahead).saturating_add(1)) - i.saturating_sub(behind);
        (0..len).map(seen).sum::<usize>() as f64
    };
    shape.segments.iter().map(|s| of(s.len())).sum()
}

/// Flops of both products of attention over so many pairs, and values of its operands and result.
fn attention_cost(shape: &AttentionShape) -> (f64, f64) {
    let rows = shape.segments.total() * shape.head_dim;
    let flops = 4.0 * pairs(shape) * (shape.heads * shape.head_dim) as f64;
    (flops, (rows * (2 * shape.heads + 2 * shape.kv_heads)) as f64)
}

impl GpuCompute for Profiled {
    fn backend(&self) -> GpuBackend {
        self.inner.backend()
    }

    fn device(&self) -> GpuDeviceInfo {
        self.inner.device()
    }

    fn is_exact(&self) -> bool {
        self.inner.is_exact()
    }

    fn cancellable(&self, flag: &Arc<AtomicBool>) -> Option<Arc<dyn GpuCompute>> {
        let inner = self.inner.cancellable(flag)?;
        Some(Arc::new(Self { inner, costs: Arc::clone(&self.costs) }))
    }

    fn alloc(&self, len: usize) -> Result<Buffer> {
        self.rows("alloc", 0, || self.inner.alloc(len))
    }

    fn upload(&self, values: &[f32]) -> Result<Buffer> {
        self.rows("upload", 2 * values.len(), || self.inner.upload(values))
    }

    fn upload_index(&self, values: &[u32]) -> Result<IndexBuffer> {
        self.rows("upload", 2 * values.len(), || self.inner.upload_index(values))
    }

    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<()> {
        self.rows("read", 2 * out.len(), || self.inner.read(buffer, out))
    }

    fn prepare_weight(&self, parts: &[Tensor]) -> Result<Weight> {
        self.inner.prepare_weight(parts)
    }

    fn prepare_weight_as(&self, parts: &[Tensor], precision: Precision) -> Result<Weight> {
        self.inner.prepare_weight_as(parts, precision)
    }

    fn prepare_table(&self, tensor: &Tensor) -> Result<Table> {
        self.inner.prepare_table(tensor)
    }

    fn gather(&self, table: &Table, ids: &IndexBuffer, accumulate: bool, out: &mut Buffer) -> Result<()> {
        let values = (2 + usize::from(accumulate)) * ids.len() * table.cols();
        self.rows("gather", values, || self.inner.gather(table, ids, accumulate, out))
    }

    fn matmul(&self, x: &Buffer, rows: usize, weight: &Weight, epilogue: Epilogue, out: &mut Buffer) -> Result<()> {
        let operands = usize::from(epilogue.factor.is_some()) + usize::from(epilogue.residual.is_some());
        let extra = operands * rows * weight.n();
        self.product("matmul", rows, &[weight], extra, || self.inner.matmul(x, rows, weight, epilogue, out))
    }

    fn attention_scores(&self, q: Columns, k: Columns, shape: &AttentionShape, scores: &mut Buffer) -> Result<()> {
        let ((flops, values), made) = (attention_cost(shape), shape.score_len() as f64);
        let run = || self.inner.attention_scores(q, k, shape, scores);
        self.count(|| "attention scores".into(), flops / 2.0, values / 2.0 + made, run)
    }

    fn softmax(&self, scores: &mut Buffer, shape: &AttentionShape) -> Result<()> {
        self.rows("softmax", 2 * shape.score_len(), || self.inner.softmax(scores, shape))
    }

    fn attention_values(&self, scores: &Buffer, v: Columns, shape: &AttentionShape, out: &mut Buffer) -> Result<()> {
        let ((flops, values), read) = (attention_cost(shape), shape.score_len() as f64);
        let run = || self.inner.attention_values(scores, v, shape, out);
        self.count(|| "attention values".into(), flops / 2.0, values / 2.0 + read, run)
    }

    fn norm(&self, x: &mut Buffer, slices: Slices, norm: Norm) -> Result<()> {
        let values = 2 * (x.len() / slices.stride.max(1)) * slices.count * norm.gamma.len();
        self.rows("norm", values, || self.inner.norm(x, slices, norm))
    }

    fn activate(&self, x: &mut Buffer, activation: Activation) -> Result<()> {
        self.rows("activation", 2 * x.len(), || self.inner.activate(x, activation))
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        self.rows("add", 3 * x.len(), || self.inner.add(x, y))
    }

    fn scale(&self, x: &mut Buffer, factor: f32) -> Result<()> {
        self.rows("scale", 2 * x.len(), || self.inner.scale(x, factor))
    }

    fn mul(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        self.rows("mul", 3 * x.len(), || self.inner.mul(x, y))
    }

    fn rope(&self, x: &mut Buffer, rope: &Rope) -> Result<()> {
        let values = 2 * (x.len() / rope.stride.max(1)) * rope.heads * rope.rotary_dim;
        self.rows("rope", values, || self.inner.rope(x, rope))
    }

    fn copy_rows(&self, x: &Buffer, cols: usize, first: usize, out: &mut Buffer) -> Result<()> {
        self.rows("copy", 2 * out.len(), || self.inner.copy_rows(x, cols, first, out))
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
        let values = x.len() + out.len();
        self.rows("unfold", values, || self.inner.unfold(x, cols, segments, positions, taps, out))
    }

    fn kv_store(&self, kv_heads: usize, head_dim: usize) -> Result<KvStore> {
        self.inner.kv_store(kv_heads, head_dim)
    }

    fn kv_append(&self, store: &mut KvStore, k: Columns, v: Columns, rows: Range<usize>) -> Result<()> {
        let values = 4 * rows.len() * store.kv_heads() * store.head_dim();
        self.rows("append keys", values, || self.inner.kv_append(store, k, v, rows))
    }

    fn kv_keep(&self, store: &mut KvStore, first: usize, len: usize) -> Result<()> {
        self.inner.kv_keep(store, first, len)
    }

    fn kv_share(&self, store: &KvStore) -> Result<KvStore> {
        self.inner.kv_share(store)
    }

    fn attend(&self, q: Columns, stores: &[&KvStore], shape: &StoredAttention, out: &mut Buffer) -> Result<()> {
        let (mut flops, mut values) = (0.0, 0.0);
        for (store, rows) in stores.iter().zip(shape.segments.iter()) {
            let seen = |key: usize| (key + 1).min((shape.behind as usize).saturating_add(1));
            let met: usize = (store.len() - rows.len().min(store.len())..store.len()).map(seen).sum();
            flops += 4.0 * (met * shape.heads * store.head_dim()) as f64;
            let keys = store.len() - store.first();
            values += (store.head_dim() * (2 * rows.len() * shape.heads + 2 * keys * store.kv_heads())) as f64;
        }
        self.count(|| "attention over stored keys".into(), flops, values, || self.inner.attend(q, stores, shape, out))
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
        let values = (ranges.total() + ranges.len()) * cols;
        self.rows("pool", values, || self.inner.pool(x, cols, ranges, skip, mode, out))
    }

    fn l2_normalize(&self, x: &mut Buffer, cols: usize) -> Result<()> {
        self.rows("normalise", 2 * x.len(), || self.inner.l2_normalize(x, cols))
    }

    fn arg_max(&self, x: &Buffer, cols: usize, among: usize) -> Result<Vec<Option<u32>>> {
        self.rows("arg max", x.len(), || self.inner.arg_max(x, cols, among))
    }

    fn attention(&self, q: Columns, k: Columns, v: Columns, shape: &AttentionShape, out: &mut Buffer) -> Result<()> {
        let (flops, values) = attention_cost(shape);
        self.count(|| "attention".into(), flops, values, || self.inner.attention(q, k, v, shape, out))
    }

    fn norm_rows(&self, x: &mut Buffer, norm: Norm) -> Result<()> {
        self.rows("norm", 2 * x.len(), || self.inner.norm_rows(x, norm))
    }

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
        let run = || self.inner.linear_add_norm(x, rows, weight, bias, residual, norm, out);
        self.product("matmul, add, norm", rows, &[weight], rows * weight.n(), run)
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
        let run = || self.inner.gated_ffn(x, rows, gate, up, activation, out);
        self.product("gated matmul", rows, &[gate.0, up.0], 0, run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuCompute;
    use crate::gpu::{KeyWindow, ScoreBias};

    #[test]
    fn costs_are_counted_once_and_taken_away() {
        let profiled = Profiled::new(Arc::new(CpuCompute::new().unwrap()));
        let mut x = profiled.upload(&[1.0, -2.0, 3.0]).unwrap();
        profiled.scale(&mut x, 2.0).unwrap();
        profiled.scale(&mut x, 2.0).unwrap();
        let mut out = [0.0; 3];
        profiled.read(&x, &mut out).unwrap();
        assert_eq!(out, [4.0, -8.0, 12.0]);
        let costs = profiled.take();
        assert_eq!(costs.keys().collect::<Vec<_>>(), ["read", "scale", "upload"]);
        assert_eq!((costs["scale"].calls, costs["scale"].bytes, costs["scale"].flops), (2, 48.0, 0.0));
        assert!(profiled.take().is_empty());
    }

    #[test]
    fn work_inside_an_operation_is_not_counted_twice() {
        let profiled = Profiled::new(Arc::new(CpuCompute::new().unwrap()));
        let wait = |ms| std::thread::sleep(Duration::from_millis(ms));
        profiled.rows("outer", 0, || profiled.rows("inner", 0, || wait(40)));
        let costs = profiled.take();
        assert!(costs["inner"].time >= Duration::from_millis(40));
        assert!(costs["outer"].time < Duration::from_millis(40), "{costs:?}");
    }

    #[test]
    fn pairs_are_those_of_the_window() {
        let profiled = Profiled::new(Arc::new(CpuCompute::new().unwrap()));
        let positions = profiled.upload_index(&[0, 1, 2, 3, 0, 1]).unwrap();
        let segments = Segments::from_lengths([4, 2]);
        let shape = |behind, ahead| AttentionShape {
            segments: &segments,
            heads: 2,
            kv_heads: 1,
            head_dim: 8,
            scale: 1.0,
            positions: &positions,
            bias: ScoreBias::None,
            window: KeyWindow { behind, ahead },
            softcap: None,
        };
        assert_eq!(pairs(&shape(u32::MAX, u32::MAX)), 20.0);
        assert_eq!(pairs(&shape(u32::MAX, 0)), 13.0);
        assert_eq!(pairs(&shape(1, 0)), 10.0);
        assert_eq!(attention_cost(&shape(1, 0)), (4.0 * 10.0 * 16.0, 6.0 * 8.0 * 6.0));
    }
}
