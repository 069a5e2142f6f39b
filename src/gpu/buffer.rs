//! Handles of what lives on a device. Only the backend that made a handle can look inside.

use std::any::Any;

use crate::error::{InferError, Result};

type Storage = Box<dyn Any + Send + Sync>;

fn foreign(kind: &str) -> InferError {
    InferError::InvalidArgument(format!("a {kind} of another backend was passed to this one"))
}

/// f32 values on a device. A fresh one holds unspecified values: every operation writes the whole of its output.
pub struct Buffer {
    len: usize,
    storage: Storage,
}

impl Buffer {
    /// Wraps a backend's storage of `len` values.
    pub fn new(len: usize, storage: impl Any + Send + Sync) -> Self {
        Self { len, storage: Box::new(storage) }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The backend's storage.
    pub fn storage<T: Any>(&self) -> Result<&T> {
        self.storage.downcast_ref().ok_or_else(|| foreign("buffer"))
    }

    /// The backend's storage, to write.
    pub fn storage_mut<T: Any>(&mut self) -> Result<&mut T> {
        self.storage.downcast_mut().ok_or_else(|| foreign("buffer"))
    }
}

/// u32 values on a device: token ids, positions, row numbers.
pub struct IndexBuffer {
    len: usize,
    /// One past the largest value, so that a table's bound is checked without reading back.
    bound: usize,
    storage: Storage,
}

impl IndexBuffer {
    /// Wraps a backend's storage of `len` values below `bound`.
    pub fn new(len: usize, bound: usize, storage: impl Any + Send + Sync) -> Self {
        Self { len, bound, storage: Box::new(storage) }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One past the largest value.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// The backend's storage.
    pub fn storage<T: Any>(&self) -> Result<&T> {
        self.storage.downcast_ref().ok_or_else(|| foreign("index buffer"))
    }
}

/// The matrix of a linear layer, [n, k], prepared once (packed on a CPU, uploaded on a GPU).
pub struct Weight {
    n: usize,
    k: usize,
    bytes: usize,
    storage: Storage,
}

impl Weight {
    /// Wraps a backend's storage of an [n, k] matrix that takes `bytes` of memory.
    pub fn new(n: usize, k: usize, bytes: usize, storage: impl Any + Send + Sync) -> Self {
        Self { n, k, bytes, storage: Box::new(storage) }
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Memory it takes on the device.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The backend's storage.
    pub fn storage<T: Any>(&self) -> Result<&T> {
        self.storage.downcast_ref().ok_or_else(|| foreign("weight"))
    }
}

/// An embedding table, [rows, cols], whose rows are gathered.
pub struct Table {
    rows: usize,
    cols: usize,
    storage: Storage,
}

impl Table {
    /// Wraps a backend's storage of a [rows, cols] table.
    pub fn new(rows: usize, cols: usize, storage: impl Any + Send + Sync) -> Self {
        Self { rows, cols, storage: Box::new(storage) }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The backend's storage.
    pub fn storage<T: Any>(&self) -> Result<&T> {
        self.storage.downcast_ref().ok_or_else(|| foreign("table"))
    }
}

/// The keys and values that a layer of one sequence has computed so far. Keys are numbered from 0, the sequence's first
/// token.
pub struct KvStore {
    kv_heads: usize,
    head_dim: usize,
    len: usize,
    first: usize,
    storage: Storage,
}

impl KvStore {
    /// Wraps a backend's storage of no keys yet.
    pub fn new(kv_heads: usize, head_dim: usize, storage: impl Any + Send + Sync) -> Self {
        Self { kv_heads, head_dim, len: 0, first: 0, storage: Box::new(storage) }
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Features of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// One past the last key.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no key was stored.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first key that is still there.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Says which keys the storage holds; for backends.
    pub fn set_range(&mut self, first: usize, len: usize) {
        (self.first, self.len) = (first, len);
    }

    /// The backend's storage.
    pub fn storage<T: Any>(&self) -> Result<&T> {
        self.storage.downcast_ref().ok_or_else(|| foreign("key and value store"))
    }

    /// The backend's storage, to write.
    pub fn storage_mut<T: Any>(&mut self) -> Result<&mut T> {
        self.storage.downcast_mut().ok_or_else(|| foreign("key and value store"))
    }
}
