//! Aligned storage for packed weights and activations, and a small pool that recycles activation buffers.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

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
                // A hint: without huge pages the buffer works as well.
                let _ = map.advise_range(memmap2::Advice::HugePage, offset, huge_bytes(bytes));
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

/// A thread's scratch, aligned to a cache line. It only grows; its values are those of earlier uses.
#[derive(Default)]
pub(super) struct Scratch(Vec<CacheLine>);

impl Scratch {
    /// The first `len` values.
    pub fn of_len(&mut self, len: usize) -> &mut [f32] {
        let lines = (len * size_of::<f32>()).div_ceil(size_of::<CacheLine>());
        if let Some(missing) = lines.checked_sub(self.0.len()) {
            self.0.reserve_exact(missing);
            self.0.resize(lines, CacheLine([0; 64]));
        }
        // SAFETY: the lines hold `len` initialised values, aligned, and are borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Bytes that a buffer of `capacity` bytes takes of memory once its first `touched` bytes were written: whole huge pages
/// where they are asked for.
pub(super) fn resident(capacity: usize, touched: usize) -> usize {
    if capacity < MAPPED_BYTES {
        return capacity;
    }
    let huge = if cfg!(target_os = "linux") { huge_bytes(capacity) } else { 0 };
    let pages = if touched <= huge { HUGE_PAGE } else { 4096 };
    touched.checked_next_multiple_of(pages).unwrap_or(usize::MAX)
}

/// The bytes of a mapped buffer for which huge pages are asked.
fn huge_bytes(capacity: usize) -> usize {
    let pages = capacity / HUGE_PAGE + usize::from(capacity % HUGE_PAGE >= HUGE_PAGE / 2);
    pages.saturating_mul(HUGE_PAGE)
}

/// Free buffers that a pool keeps at most, however small they are.
const MOST_FREE: usize = 1024;

/// What a pool may hold beyond the most that was in use at once: buffers in use have other sizes at other times.
pub(super) fn with_slack(most_in_use: usize) -> usize {
    most_in_use + most_in_use / 4
}

/// A buffer that was not used while so many others were taken, for each that is in use, is left over from batches of
/// another size.
const IDLE_TAKES: u64 = 16;

/// Recycles activation buffers, whose pages are then already mapped. It holds the buffers that are used again and again;
/// others are given back where it would hold more than [`with_slack`] of the most that was in use at once.
#[derive(Default)]
pub(super) struct Pool {
    shelf: Mutex<Shelf>,
}

/// Bytes are those that buffers take of memory.
#[derive(Default)]
struct Shelf {
    /// Oldest first.
    free: VecDeque<Recyclable>,
    free_bytes: usize,
    used: u64,
    used_bytes: usize,
    most_used: usize,
    /// Buffers that were taken so far.
    takes: u64,
    /// Those of them that could not be recycled ones.
    made: usize,
}

/// A buffer, and how many of its values were ever in use.
struct Recyclable {
    data: AlignedBuf<f32>,
    touched: usize,
    /// How many buffers had been taken when it became free.
    freed_at: u64,
}

impl Recyclable {
    fn bytes(&self) -> usize {
        pooled_bytes(self.data.len(), self.touched)
    }
}

fn pooled_bytes(class: usize, touched: usize) -> usize {
    resident(class.saturating_mul(4), touched.saturating_mul(4))
}

/// The size of the buffer that serves `len` values. Classes are powers of two, so that the batches of a run, all of
/// different sizes, share buffers; memory beyond what is used is mapped but not touched.
pub(super) fn class(len: usize) -> usize {
    len.checked_next_power_of_two().unwrap_or(len)
}

/// Bytes of memory that a new buffer of `len` values takes.
pub(super) fn buffer_bytes(len: usize) -> usize {
    pooled_bytes(class(len), len)
}

/// An activation buffer that returns to its pool. `len` values of it are in use; a recycled one holds stale values.
pub(super) struct PooledBuf {
    data: Option<Recyclable>,
    len: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// A buffer of `len` values: the free one of its class that was used last, else a new one.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<PooledBuf> {
        let class = class(len);
        let recycled = self.lock().take(class);
        let made = recycled.is_none();
        let mut data = match recycled {
            Some(data) => data,
            None => Recyclable { data: AlignedBuf::zeroed(class, "an activation buffer")?, touched: 0, freed_at: 0 },
        };
        data.touched = data.touched.max(len);
        let _surplus = {
            let mut shelf = self.lock();
            shelf.takes += 1;
            shelf.made += usize::from(made);
            shelf.used += 1;
            shelf.used_bytes += data.bytes();
            shelf.most_used = shelf.most_used.max(shelf.used_bytes);
            shelf.surplus()
        };
        Ok(PooledBuf { data: Some(data), len, pool: Arc::clone(self) })
    }

    /// Bytes in use, and the most that were.
    #[cfg(test)]
    pub fn used(&self) -> (usize, usize) {
        let shelf = self.lock();
        (shelf.used_bytes, shelf.most_used)
    }

    /// Buffers that were made and not recycled.
    #[cfg(test)]
    pub fn made(&self) -> usize {
        self.lock().made
    }

    /// The most that was in use is what is in use now, and nothing is free.
    #[cfg(test)]
    pub fn forget_peak(&self) {
        let mut shelf = self.lock();
        shelf.free.clear();
        (shelf.free_bytes, shelf.most_used) = (0, shelf.used_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Shelf {
    fn take(&mut self, class: usize) -> Option<Recyclable> {
        let at = self.free.iter().rposition(|r| r.data.len() == class)?;
        let found = self.free.remove(at)?;
        self.free_bytes -= found.bytes();
        Some(found)
    }

    /// Takes off the free buffers that are too many. The caller drops them when the pool is not locked.
    fn surplus(&mut self) -> Vec<Recyclable> {
        let mut off = Vec::new();
        let idle = |oldest: &Recyclable| self.takes - oldest.freed_at > IDLE_TAKES * (self.used + 1);
        while self.free_bytes + self.used_bytes > with_slack(self.most_used) && self.free.front().is_some_and(idle)
            || self.free.len() > MOST_FREE
        {
            let Some(oldest) = self.free.pop_front() else { break };
            self.free_bytes -= oldest.bytes();
            off.push(oldest);
        }
        off
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        let Some(mut recyclable) = self.data.take() else { return };
        let _surplus = {
            let mut shelf = self.pool.lock();
            shelf.used -= 1;
            shelf.used_bytes -= recyclable.bytes();
            shelf.free_bytes += recyclable.bytes();
            recyclable.freed_at = shelf.takes;
            shelf.free.push_back(recyclable);
            shelf.surplus()
        };
    }
}

impl Deref for PooledBuf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        self.data.as_ref().map_or(&[], |r| &r.data[..self.len])
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.data.as_mut().map_or(&mut [], |r| &mut r.data[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_a_buffer_takes_is_whole_pages() {
        assert_eq!(buffer_bytes(100), 512, "a small buffer is zeroed whole");
        if cfg!(target_os = "linux") {
            assert_eq!(buffer_bytes(MIB / 4), 2 * MIB);
            assert_eq!(buffer_bytes(5 * MIB / 4), 6 * MIB, "of 8 MiB that are mapped");
            assert_eq!(resident(2 * MIB + MIB / 4, 2 * MIB + MIB / 4), 2 * MIB + MIB / 4, "a tail has small pages");
        }
    }

    #[test]
    fn buffers_are_used_again_and_surplus_is_given_back() {
        let pool = Arc::new(Pool::default());
        let first = pool.take(1000).unwrap();
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.take(600).unwrap().as_ptr(), address, "the same class");
        let of_one = buffer_bytes(1000);
        assert_eq!(pool.used(), (0, of_one));
        for len in [10_000, 20_000, 40_000, 80_000] {
            drop(pool.take(len).unwrap());
        }
        assert_eq!(pool.lock().free.len(), 5, "all of them may be used again");
        for _ in 0..IDLE_TAKES {
            drop(pool.take(80_000).unwrap());
        }
        let shelf = pool.lock();
        assert_eq!(shelf.used_bytes, 0);
        assert_eq!(shelf.most_used, buffer_bytes(80_000));
        assert!(shelf.free_bytes <= with_slack(shelf.most_used), "{} bytes are held", shelf.free_bytes);
        assert_eq!(shelf.free.back().map(|r| r.data.len()), Some(131_072), "the newest stays");
    }

    #[test]
    fn a_buffer_that_cannot_be_had_leaves_the_pool_as_it_was() {
        let pool = Arc::new(Pool::default());
        assert!(matches!(pool.take(usize::MAX), Err(InferError::OutOfMemory { .. })));
        assert_eq!(pool.used().0, 0);
        assert_eq!(pool.take(3).unwrap().len(), 3);
    }
}
