//! [`DeviceCompute`]: the backend trait over a [`Device`], written once for every kind of GPU.
//!
//! Activations stay on the device from the embedding lookup to pooling; the host reads results only. Operations launch
//! the kernels of `kernels/`, which keep the order of docs/numerics.md, so that results are the CPU's, bit for bit.

pub mod args;
mod attention;
mod keys;
mod matmul;
mod memory;
mod rows;
mod tiles;
mod weights;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use args::Args;
use keys::{Arenas, Keys};
use memory::{Pool, Pooled, bytes_of};
use weights::{PanelWeight, StoredTable};

use super::device::{Binding, Device, Launch};
use super::{
    Activation, AttentionShape, Buffer, Columns, Epilogue, GpuBackend, GpuCompute, GpuDeviceInfo, IndexBuffer, KvStore,
    Norm, PoolingMode, Rope, Segments, Slices, StoredAttention, Table, Weight, checks,
};
use crate::error::{InferError, Result};
use crate::weights::Tensor;

/// A GPU backend over a device.
pub struct DeviceCompute {
    pool: Arc<Pool>,
    /// Units of the device, see `DeviceInfo`.
    units: usize,
    /// Scores of attention that are held at once; a tile of one head may take more.
    workspace: usize,
    arenas: Arenas,
    tables: Mutex<VecDeque<(Vec<u32>, Arc<Pooled>)>>,
}

/// Tables of numbers that are kept: those of a pass serve all its layers.
const TABLES: usize = 8;

/// u32 values on the device, and on the host: checks and tables are made of them.
struct Indices {
    host: Vec<u32>,
    device: Pooled,
}

impl DeviceCompute {
    /// The backend of a device, of whose memory it keeps up to a quarter for activations to come.
    pub fn new(device: Arc<dyn Device>) -> Self {
        let quarter = usize::try_from(device.info().memory / 4).unwrap_or(usize::MAX);
        Self::with_pool(device, quarter)
    }

    /// The backend of a device, of whose memory it keeps up to `pool` bytes for activations to come. With 0, all memory
    /// is of exactly the size that is used.
    pub fn with_pool(device: Arc<dyn Device>, pool: usize) -> Self {
        let info = device.info();
        Self {
            pool: Arc::new(Pool::new(device, pool)),
            units: info.units.max(1) as usize,
            workspace: usize::try_from(info.cache / 4).unwrap_or(usize::MAX).max(1),
            arenas: Arenas::default(),
            tables: Mutex::default(),
        }
    }

    /// Launches a kernel. Callers have checked that their buffers hold what its arguments say, and that ids, positions
    /// and tables of numbers name places in them: [`checks`](super::checks), the sizes of buffers, the tiles.
    fn launch(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: [u32; 3],
        buffers: &[Binding],
        args: &impl Args,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let limits = [i32::MAX as usize, u16::MAX as usize, u16::MAX as usize];
        if grid.iter().zip(limits).any(|(size, limit)| *size > limit) {
            return Err(InferError::BackendError {
                backend: self.backend().to_string(),
                operation: kernel.to_string(),
                detail: format!("a grid of {grid:?} threadgroups is larger than devices take, {limits:?}"),
            });
        }
        let launch = Launch { kernel, grid: grid.map(|g| g as u32), threads, buffers, args: &args.bytes() };
        // SAFETY: each method binds its kernel's parameters in order, and has checked the sizes, as said above.
        unsafe { self.pool.device().launch(&launch) }.map_err(|e| self.pool.error(e, kernel))
    }

    /// u32 values on the device.
    fn words(&self, values: &[u32]) -> Result<Pooled> {
        let memory = self.pool.take(values.len().saturating_mul(4), "a table of numbers")?;
        self.pool.upload(memory.memory(), 0, &bytes_of(values, u32::to_ne_bytes))?;
        Ok(memory)
    }

    /// [`words`](Self::words), or those that an earlier call uploaded.
    fn table(&self, values: Vec<u32>) -> Result<Arc<Pooled>> {
        let lock = || self.tables.lock().unwrap_or_else(|e| e.into_inner());
        let found = lock().iter().find(|(known, _)| *known == values).map(|(_, memory)| Arc::clone(memory));
        if let Some(memory) = found {
            return Ok(memory);
        }
        let memory = Arc::new(self.words(&values)?);
        let mut tables = lock();
        tables.truncate(TABLES - 1);
        tables.push_front((values, Arc::clone(&memory)));
        Ok(memory)
    }

    /// A buffer for `len` f32 values; kernels count them in 32 bits.
    fn values(&self, len: usize) -> Result<Pooled> {
        let bytes = len.saturating_mul(4);
        let what = "an activation buffer";
        if len > u32::MAX as usize {
            return Err(InferError::OutOfMemory { what: format!("{what} of more than 2^32 values"), bytes });
        }
        self.pool.take(bytes, what)
    }
}

/// Where a buffer lies.
fn at(buffer: &Buffer) -> Result<Binding<'_>> {
    buffer.storage::<Pooled>().map(Pooled::binding)
}

fn indices(buffer: &IndexBuffer) -> Result<&Indices> {
    buffer.storage::<Indices>()
}

/// A size that a buffer holds, and is therefore below 2^32.
fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Whether `x` may be written: `storage_mut` asks the same as `storage`.
fn out(x: &mut Buffer) -> Result<Binding<'_>> {
    x.storage_mut::<Pooled>().map(|p| p.binding())
}

impl GpuCompute for DeviceCompute {
    fn backend(&self) -> GpuBackend {
        self.pool.device().info().backend
    }

    fn device(&self) -> GpuDeviceInfo {
        self.pool.device().info().into()
    }

    fn alloc(&self, len: usize) -> Result<Buffer> {
        Ok(Buffer::new(len, self.values(len)?))
    }

    fn upload(&self, values: &[f32]) -> Result<Buffer> {
        let memory = self.values(values.len())?;
        self.pool.upload(memory.memory(), 0, &bytes_of(values, f32::to_ne_bytes))?;
        Ok(Buffer::new(values.len(), memory))
    }

    fn upload_index(&self, values: &[u32]) -> Result<IndexBuffer> {
        let bound = values.iter().max().map_or(0, |m| *m as usize + 1);
        let indices = Indices { host: values.to_vec(), device: self.words(values)? };
        Ok(IndexBuffer::new(values.len(), bound, indices))
    }

    fn read(&self, buffer: &Buffer, out: &mut [f32]) -> Result<()> {
        checks::expect("read", "the buffer", buffer.len(), out.len())?;
        let from = at(buffer)?;
        if out.is_empty() {
            return Ok(());
        }
        let bytes = self.pool.read(from, out.len())?;
        for (value, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_ne_bytes(*raw);
        }
        Ok(())
    }

    fn prepare_weight(&self, parts: &[Tensor]) -> Result<Weight> {
        checks::prepare_weight(parts)?;
        let weight = PanelWeight::new(&self.pool, parts)?;
        let n = parts.iter().map(|t| t.shape()[0]).sum();
        Ok(Weight::new(n, parts[0].shape()[1], weight.bytes(), weight))
    }

    fn prepare_table(&self, tensor: &Tensor) -> Result<Table> {
        tensor.dtype()?;
        let (rows, cols) = checks::prepare_table(tensor)?;
        Ok(Table::new(rows, cols, StoredTable::new(&self.pool, tensor)?))
    }

    fn gather(&self, table: &Table, ids: &IndexBuffer, accumulate: bool, out: &mut Buffer) -> Result<()> {
        checks::gather(table, ids, out)?;
        self.gather_rows(table, ids, accumulate, out)
    }

    fn matmul(&self, x: &Buffer, rows: usize, weight: &Weight, e: Epilogue, out: &mut Buffer) -> Result<()> {
        checks::matmul(x, rows, weight, &e, out)?;
        self.multiply(x, rows, weight, &e, out)
    }

    fn attention_scores(&self, q: Columns, k: Columns, s: &AttentionShape, scores: &mut Buffer) -> Result<()> {
        self.scores(q, k, s, scores)
    }

    fn softmax(&self, scores: &mut Buffer, s: &AttentionShape) -> Result<()> {
        self.weights_of_scores(scores, s)
    }

    fn attention_values(&self, scores: &Buffer, v: Columns, s: &AttentionShape, out: &mut Buffer) -> Result<()> {
        self.weighed_values(scores, v, s, out)
    }

    fn attention(&self, q: Columns, k: Columns, v: Columns, s: &AttentionShape, out: &mut Buffer) -> Result<()> {
        self.whole_attention(q, k, v, s, out)
    }

    fn norm(&self, x: &mut Buffer, slices: Slices, norm: Norm) -> Result<()> {
        checks::norm(x, slices, &norm)?;
        self.norm_slices(x, slices, &norm)
    }

    fn activate(&self, x: &mut Buffer, activation: Activation) -> Result<()> {
        self.activate_values(x, activation)
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        checks::expect("add", "the second operand", y.len(), x.len())?;
        self.combine("add_values", x, y)
    }

    fn scale(&self, x: &mut Buffer, factor: f32) -> Result<()> {
        self.scale_values(x, factor)
    }

    fn mul(&self, x: &mut Buffer, y: &Buffer) -> Result<()> {
        checks::expect("mul", "the second operand", y.len(), x.len())?;
        self.combine("multiply_values", x, y)
    }

    fn rope(&self, x: &mut Buffer, rope: &Rope) -> Result<()> {
        checks::rope(x, rope)?;
        self.rotate(x, rope)
    }

    fn copy_rows(&self, x: &Buffer, cols: usize, first: usize, to: &mut Buffer) -> Result<()> {
        checks::copy_rows(x, cols, first, to)?;
        let bytes = to.len() * 4;
        let (from, to) = (at(x)?, out(to)?);
        if bytes == 0 {
            return Ok(());
        }
        let from = Binding { offset: from.offset + first * cols * 4, ..from };
        self.pool.device().copy(from, to, bytes).map_err(|e| self.pool.error(e, "copy_rows"))
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
        checks::unfold(x, cols, segments, &indices(positions)?.host, taps, out)?;
        self.unfold_rows(x, cols, segments, positions, taps, out)
    }

    fn kv_store(&self, kv_heads: usize, head_dim: usize) -> Result<KvStore> {
        checks::kv_store(kv_heads, head_dim)?;
        let arena = self.arenas.of(&self.pool, kv_heads, head_dim);
        Ok(KvStore::new(kv_heads, head_dim, Keys::new(arena)))
    }

    fn kv_append(&self, store: &mut KvStore, k: Columns, v: Columns, rows: Range<usize>) -> Result<()> {
        checks::kv_append(store, k, v, &rows)?;
        self.append(store, k, v, rows)
    }

    fn kv_keep(&self, store: &mut KvStore, first: usize, len: usize) -> Result<()> {
        checks::kv_keep(store, first, len)?;
        keys::keep(store, first, len)
    }

    fn kv_share(&self, store: &KvStore) -> Result<KvStore> {
        let mut other = KvStore::new(store.kv_heads(), store.head_dim(), store.storage::<Keys>()?.clone());
        other.set_range(store.first(), store.len());
        Ok(other)
    }

    fn attend(&self, q: Columns, stores: &[&KvStore], s: &StoredAttention, out: &mut Buffer) -> Result<()> {
        checks::attend(q, stores, s, out)?;
        self.attend_stores(q, stores, s, out)
    }

    fn pool(
        &self,
        x: &Buffer,
        cols: usize,
        ranges: &Segments,
        skip: usize,
        mode: PoolingMode,
        (out, first, stride): (&mut Buffer, usize, usize),
    ) -> Result<()> {
        checks::pool(x, cols, ranges, skip, (out, first, stride))?;
        self.pool_rows(x, cols, ranges, skip, mode, (out, first, stride))
    }

    fn l2_normalize(&self, x: &mut Buffer, cols: usize) -> Result<()> {
        checks::whole_rows("l2_normalize", x.len(), cols)?;
        self.l2_normalize_rows(x, cols)
    }

    fn arg_max(&self, x: &Buffer, cols: usize, among: usize) -> Result<Vec<Option<u32>>> {
        checks::arg_max(x, cols, among)?;
        self.arg_max_of_rows(x, cols, among)
    }
}
