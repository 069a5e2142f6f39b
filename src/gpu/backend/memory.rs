//! Device memory of activations: recycled through a pool, so that a forward pass allocates nothing once it is warm.

use std::sync::{Arc, Mutex};

use crate::error::{InferError, Result};
use crate::gpu::device::{Binding, Device, DeviceError, Memory};

/// The smallest piece of memory of a pool that keeps any, and what sizes are multiples of.
const GRAIN: usize = 256;

/// Free memory of a device.
pub(super) struct Pool {
    device: Arc<dyn Device>,
    free: Mutex<Vec<Memory>>,
    /// Bytes that may lie free; beyond, memory goes back to the device.
    cap: usize,
}

/// Memory that returns to its pool.
pub(super) struct Pooled {
    memory: Option<Memory>,
    pool: Arc<Pool>,
}

/// Sizes are rounded up to one of four steps between powers of two: the batches of a run, all of different sizes, share
/// memory, and less than a fifth of it is unused.
fn class(bytes: usize) -> usize {
    let bytes = bytes.max(GRAIN);
    let Some(power) = bytes.checked_next_power_of_two() else { return bytes };
    let step = (power / 8).max(GRAIN);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

impl Pool {
    /// A pool that keeps up to `cap` bytes. One that keeps none gives out memory of exactly the size asked for.
    pub fn new(device: Arc<dyn Device>, cap: usize) -> Self {
        Self { device, free: Mutex::default(), cap }
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The library's error for a device's.
    pub fn error(&self, e: DeviceError, what: &str) -> InferError {
        e.in_backend(self.device.info().backend, what)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Memory>> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Memory for `bytes` bytes, unspecified: a free piece of its size, else a new one.
    pub fn take(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Pooled> {
        let class = if self.cap == 0 { bytes } else { class(bytes) };
        let recycled = {
            let mut free = self.lock();
            let fit = free.iter().position(|m| m.bytes() == class);
            fit.map(|i| free.swap_remove(i))
        };
        let memory = match recycled {
            Some(memory) => memory,
            None => self.fresh(class, what)?,
        };
        Ok(Pooled { memory: Some(memory), pool: Arc::clone(self) })
    }

    /// New memory, of exactly `bytes` bytes (of 4 where none are asked for). Where the device has none left, what lies
    /// free is given back to it first.
    pub fn fresh(&self, bytes: usize, what: &str) -> Result<Memory> {
        let bytes = bytes.max(4);
        let memory = match self.device.alloc(bytes) {
            Err(DeviceError::OutOfMemory { .. }) if !self.lock().is_empty() => {
                self.lock().clear();
                self.device.alloc(bytes)
            }
            other => other,
        };
        memory.map_err(|e| self.error(e, what))
    }

    /// New memory that holds `bytes`.
    pub fn fresh_with(&self, bytes: &[u8], what: &str) -> Result<Memory> {
        let memory = self.fresh(bytes.len(), what)?;
        self.upload(&memory, 0, bytes)?;
        Ok(memory)
    }

    pub fn upload(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.upload(memory, offset, bytes).map_err(|e| self.error(e, "an upload"))
    }

    /// The bytes of `len` 4-byte values, of which there are some.
    pub fn read(&self, from: Binding, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len * 4];
        let read = self.device.read(from.memory, from.offset, &mut bytes);
        read.map(|()| bytes).map_err(|e| self.error(e, "a result"))
    }
}

impl Pooled {
    pub fn memory(&self) -> &Memory {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("memory is taken only when it is dropped"),
        }
    }

    /// The whole of it.
    pub fn binding(&self) -> Binding<'_> {
        Binding { memory: self.memory(), offset: 0 }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let mut free = self.pool.lock();
            let held: usize = free.iter().map(Memory::bytes).sum();
            if held.saturating_add(memory.bytes()) <= self.pool.cap {
                free.push(memory);
            }
        }
    }
}

/// The bytes of 4-byte values, as devices hold them.
pub(super) fn bytes_of<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|v| bytes(*v)).collect()
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn size_classes() {
        for (bytes, expected) in [
            (0, 256),
            (1, 256),
            (256, 256),
            (257, 512),
            (1025, 1280),
            (5000, 5120),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, (1 << 20) + (1 << 18)),
            (usize::MAX, usize::MAX),
        ] {
            assert_eq!(class(bytes), expected, "{bytes}");
        }
        assert!((1..100_000).all(|b| class(b) >= b && (b < 2048 || class(b) * 4 <= b * 5 + 4)));
    }
}
