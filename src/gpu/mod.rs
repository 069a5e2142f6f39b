//! The compute backends: one trait, [`GpuCompute`], over device buffers, and the walk that picks a backend.
//!
//! The name is history: the CPU is a backend like the others, and the one that is always there.

mod backend;
mod buffer;
pub(crate) mod checks;

mod compute;
pub mod device;
mod discover;
pub mod kernels;
mod profiled;
mod shapes;

pub use backend::DeviceCompute;
pub use buffer::{Buffer, IndexBuffer, KvStore, Table, Weight};
pub use compute::GpuCompute;
pub(crate) use discover::gpus;
pub use discover::{
    PassedOver, absent_backends, choose_compute, create_compute, create_compute_for, create_compute_on,
    discover_devices, force_cpu_from_env,
};
pub use profiled::{Cost, Profiled};
pub use shapes::{
    Activation, AttentionShape, Columns, Disentangled, Epilogue, KeyWindow, Norm, NormKind, PoolingMode, Precision,
    Rope, RopeLayout, ScoreBias, Segments, Slices, StoredAttention,
};

/// Which kind of device a backend drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GpuBackend {
    /// The pure-Rust CPU kernels.
    Cpu,
    /// Apple's Metal (feature `metal`).
    Metal,
    /// NVIDIA's CUDA driver (feature `cuda`).
    Cuda,
}

impl std::fmt::Display for GpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Metal => "metal",
            Self::Cuda => "cuda",
        })
    }
}

/// One device a backend can compute on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDeviceInfo {
    /// Its backend.
    pub backend: GpuBackend,
    /// The device's name; for the CPU its architecture.
    pub name: String,
    /// What the kernels use of it: the instruction set on a CPU.
    pub detail: String,
    /// Threads that share the work, 1 for a device that schedules itself.
    pub threads: usize,
    /// Bytes of memory that a GPU may use; nothing for the CPU, which takes the machine's.
    pub memory: Option<u64>,
}

/// Zeros on the host, or the error that says what they were for.
pub(crate) fn zeros(len: usize, what: &str) -> crate::error::Result<Vec<f32>> {
    let mut values = Vec::new();
    let missing = |_| crate::error::InferError::OutOfMemory { what: what.to_string(), bytes: len.saturating_mul(4) };
    values.try_reserve_exact(len).map_err(missing)?;
    values.resize(len, 0.0);
    Ok(values)
}
