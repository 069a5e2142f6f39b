//! [`Device`]: the few things the GPU backend asks of a device. One file implements it for each kind.
//!
//! A device runs calls in the order they are made, whichever threads make them: a launch sees what all earlier calls
//! wrote. [`alloc`](Device::alloc), [`upload`](Device::upload), [`copy`](Device::copy) and [`launch`](Device::launch)
//! may return before their work is done; [`read`](Device::read) waits for all of it. Memory may be dropped while enqueued
//! work still uses it: the device frees it after that work.
//!
//! Work that fails after its call has returned makes the device lost: every later call, above all `read`, fails with
//! [`DeviceError::Lost`], so that no wrong number reaches the host.

use std::any::Any;

use super::GpuBackend;
use crate::error::InferError;

/// What a device is and has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kind of device; never [`GpuBackend::Cpu`].
    pub backend: GpuBackend,
    /// Its name, as the driver gives it.
    pub name: String,
    /// What tells it apart from others of its name: compute capability, GPU family.
    pub detail: String,
    /// Bytes of memory it may use.
    pub memory: u64,
    /// Multiprocessors or GPU cores: as many threadgroups keep it busy. A guess costs speed only.
    pub units: u32,
    /// Bytes of the last cache before memory; attention holds as many scores at a time. A guess costs speed only.
    pub cache: u64,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Memory could not be had. The device goes on working.
    #[error("out of memory: {bytes} bytes")]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
    /// One call was refused and did nothing: an unknown kernel, a grid that is too large. The device goes on working.
    #[error("{operation}: {detail}")]
    Refused {
        /// `memory`, `alloc`, `upload`, `read`, `copy`, or the kernel's name.
        operation: String,
        /// The driver's reason.
        detail: String,
    },
    /// The device is gone, or enqueued work failed. Nothing it holds can be read any more.
    #[error("the device was lost: {operation}: {detail}")]
    Lost {
        /// What failed first.
        operation: String,
        /// The driver's reason.
        detail: String,
    },
}

impl DeviceError {
    /// The refusal of memory that another device made.
    pub fn foreign() -> Self {
        let detail = "memory of another device was passed to this one".to_string();
        Self::Refused { operation: "memory".to_string(), detail }
    }

    /// As the library's error; `what` is what memory was wanted for.
    pub fn in_backend(self, backend: GpuBackend, what: &str) -> InferError {
        let failed = |operation, detail| InferError::BackendError { backend: backend.to_string(), operation, detail };
        match self {
            Self::OutOfMemory { bytes } => InferError::OutOfMemory { what: what.to_string(), bytes },
            Self::Refused { operation, detail } => failed(operation, detail),
            Self::Lost { operation, detail } => failed(operation, format!("the device was lost: {detail}")),
        }
    }
}

/// Result of a device's calls.
pub type DeviceResult<T> = std::result::Result<T, DeviceError>;

/// A range of a device's memory, aligned to 256 bytes; dropping it gives it back.
pub struct Memory {
    bytes: usize,
    storage: Box<dyn Any + Send + Sync>,
}

impl Memory {
    /// Wraps a device's storage of `bytes` bytes.
    pub fn new(bytes: usize, storage: impl Any + Send + Sync) -> Self {
        Self { bytes, storage: Box::new(storage) }
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// That `len` bytes from `offset` on lie in it. A device asks this of every range that it is passed.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when they do not.
    pub fn range(&self, offset: usize, len: usize) -> DeviceResult<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let detail = format!("{len} bytes from {offset} on were asked for, it has {}", self.bytes);
        Err(DeviceError::Refused { operation: "memory".to_string(), detail })
    }

    /// The device's storage.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when another kind of device made it.
    pub fn storage<T: Any>(&self) -> DeviceResult<&T> {
        self.storage.downcast_ref().ok_or_else(DeviceError::foreign)
    }
}

/// Where a kernel's buffer argument begins.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    /// The memory.
    pub memory: &'a Memory,
    /// Bytes from its start; a multiple of 4.
    pub offset: usize,
}

/// One launch of a kernel: a grid of threadgroups, each of so many threads.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel's name in the sources ([`kernels`](super::kernels)).
    pub kernel: &'static str,
    /// Threadgroups in x, y and z; none is 0. x may reach 2^31 - 1, y and z 65 535.
    pub grid: [u32; 3],
    /// Threads of a threadgroup in x, y and z: at most as many as the kernel declares.
    pub threads: [u32; 3],
    /// The kernel's buffers, in its parameters' order; each begins inside its memory.
    pub buffers: &'a [Binding<'a>],
    /// Its last parameter, a struct passed by value: 4-byte fields, at most 256 bytes.
    pub args: &'a [u8],
}

/// A device that holds memory and runs kernels.
///
/// An implementation takes calls from several threads. It refuses ranges that do not lie in their memory
/// ([`Memory::range`]) and memory that is not its own. What a call finds wrong at once is
/// [`Refused`](DeviceError::Refused) and the device goes on working; after any failure of enqueued work it is
/// [`Lost`](DeviceError::Lost).
///
/// # Errors
/// Of each call a [`DeviceError`]; [`OutOfMemory`](DeviceError::OutOfMemory) of `alloc`, and of calls that need memory
/// on the way.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> DeviceInfo;
    /// `bytes` bytes, unspecified until written; `bytes` is not 0.
    fn alloc(&self, bytes: usize) -> DeviceResult<Memory>;
    /// Writes `bytes`, of which there are some, at `offset`, after all earlier calls; the slice is free when it returns.
    fn upload(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> DeviceResult<()>;
    /// Waits for all earlier calls and copies the bytes at `offset` to `out`, which is not empty. Either all of it is
    /// written from work that succeeded, or the result is an error.
    fn read(&self, memory: &Memory, offset: usize, out: &mut [u8]) -> DeviceResult<()>;
    /// Copies bytes, of which there are some, on the device; the two ranges do not overlap.
    fn copy(&self, from: Binding, to: Binding, bytes: usize) -> DeviceResult<()>;
    /// Enqueues a kernel. A name or a number of threads that the device does not know is refused.
    ///
    /// # Safety
    /// Buffers and arguments are those of the kernel's parameters, in their order. The kernel, as its comment in
    /// `kernels/` says, reads and writes for this grid and these arguments only what lies in its buffers, at the places
    /// that its tables name too.
    unsafe fn launch(&self, launch: &Launch) -> DeviceResult<()>;
}
