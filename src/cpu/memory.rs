//! Aligned storage for packed weights and activations, and a small pool that recycles activation buffers.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use crate::error::{InferError, Result};

/// Element types for which every bit pattern is a value.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}
impl Plain for f32 {}
impl Plain for u16 {}
impl Plain for u8 {}

/// Size of a huge page where systems have them (x86-64; aarch64 with 4 KiB pages).
const HUGE_PAGE: usize = 2 << 20;

/// From this size a buffer is mapped on its own, at a huge page's boundary, asking for huge pages. A page of which less
/// than half would be used is not asked for.
const MAPPED_BYTES: usize = HUGE_PAGE / 2;

#[repr(align(64))]
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "read through casts of the storage's pointer")]
struct CacheLine([u8; 64]);

enum Storage {
    Heap(Vec<CacheLine>),
    /// The buffer starts at this offset.
    Mapped(memmap2::MmapMut, usize),
}

/// A zero-initialised slice of `T`, aligned to a cache line at least.
pub(crate) struct AlignedBuf<T> {
    storage: Storage,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Plain> AlignedBuf<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize, what: &str) -> Result<Self> {
        let too_big = |bytes: usize| InferError::OutOfMemory { what: what.to_string(), bytes };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| too_big(usize::MAX))?;
        let storage = if bytes < MAPPED_BYTES {
            let lines = bytes.div_ceil(size_of::<CacheLine>());
            let mut heap = Vec::new();
            heap.try_reserve_exact(lines).map_err(|_| too_big(bytes))?;
            heap.resize(lines, CacheLine([0; 64]));
            Storage::Heap(heap)
        } else {
            // Room for the boundary and for the last huge page; pages that nothing touches take no memory.
            let room = bytes.checked_add(2 * HUGE_PAGE).ok_or_else(|| too_big(bytes))?;
            let map = memmap2::MmapMut::map_anon(room).map_err(|_| too_big(bytes))?;
            let offset = map.as_ptr().addr().wrapping_neg() % HUGE_PAGE;
            #[cfg(target_os = "linux")]
            {
                let huge = (bytes + HUGE_PAGE / 2) / HUGE_PAGE * HUGE_PAGE;
                // A hint: without huge pages the buffer works as well.
                let _ = map.advise_range(memmap2::Advice::HugePage, offset, huge);
            }
            Storage::Mapped(map, offset)
        };
        Ok(Self { storage, len, element: PhantomData })
    }
}

impl<T: Plain> Deref for AlignedBuf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let p = match &self.storage {
            Storage::Heap(lines) => lines.as_ptr().cast::<T>(),
            Storage::Mapped(map, offset) => map[*offset..].as_ptr().cast::<T>(),
        };
        // SAFETY: the storage holds `len` initialised `T`s (zeros at first), aligned to 64 bytes or a huge page.
        unsafe { std::slice::from_raw_parts(p, self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let p = match &mut self.storage {
            Storage::Heap(lines) => lines.as_mut_ptr().cast::<T>(),
            Storage::Mapped(map, offset) => map[*offset..].as_mut_ptr().cast::<T>(),
        };
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(p, self.len) }
    }
}

/// Buffers a pool keeps for reuse; more are given back to the system.
const POOL_BUFFERS: usize = 32;

/// Recycles activation buffers, whose pages are then already mapped.
#[derive(Default)]
pub(super) struct Pool {
    free: Mutex<Vec<AlignedBuf<f32>>>,
}

/// An activation buffer that returns to its pool. `len` values of it are in use; a recycled one holds stale values.
pub(super) struct PooledBuf {
    data: Option<AlignedBuf<f32>>,
    len: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// A buffer of `len` values: a free one of its size class, else a new one. Classes are powers of two, so that the
    /// batches of a run, all of different sizes, share buffers; memory beyond `len` is mapped but not touched.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<PooledBuf> {
        let class = len.checked_next_power_of_two().unwrap_or(len);
        let recycled = {
            let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
            let fit = free.iter().position(|b| b.len() == class);
            fit.map(|i| free.swap_remove(i))
        };
        let data = match recycled {
            Some(buf) => buf,
            None => AlignedBuf::zeroed(class, "an activation buffer")?,
        };
        Ok(PooledBuf { data: Some(data), len, pool: Arc::clone(self) })
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(data) = self.data.take() {
            let mut free = self.pool.free.lock().unwrap_or_else(|e| e.into_inner());
            if free.len() == POOL_BUFFERS {
                // The smallest is the cheapest to make again.
                if let Some(i) = (0..free.len()).min_by_key(|&i| free[i].len()) {
                    free.swap_remove(i);
                }
            }
            free.push(data);
        }
    }
}

impl Deref for PooledBuf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.data.as_deref().unwrap_or_default()[..self.len]
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data.as_deref_mut().unwrap_or_default()[..self.len]
    }
}
