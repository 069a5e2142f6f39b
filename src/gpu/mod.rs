//! The compute backends: one trait, [`GpuCompute`], over device buffers, and the walk that picks a backend.
//!
//! The name is history: the CPU is a backend like the others, and the one that is always there.

mod backend;
mod buffer;
pub(crate) mod checks;

mod compute;
pub mod device;
pub mod kernels;
mod profiled;
mod shapes;

use std::sync::Arc;

pub use backend::DeviceCompute;
pub use buffer::{Buffer, IndexBuffer, KvStore, Table, Weight};
pub use compute::GpuCompute;
pub use profiled::{Cost, Profiled};
pub use shapes::{
    Activation, AttentionShape, Columns, Disentangled, Epilogue, KeyWindow, Norm, NormKind, PoolingMode, Precision,
    Rope, RopeLayout, ScoreBias, Segments, Slices, StoredAttention,
};

use crate::cpu::CpuCompute;
use crate::error::Result;

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
}

/// Every device this build can use, best first. The CPU is always the last entry.
pub fn discover_devices() -> Vec<GpuDeviceInfo> {
    crate::cpu::available().into_iter().map(|k| CpuCompute::with_kernels(k).device()).take(1).collect()
}

/// Whether `KIN_INFER_FORCE_CPU` is set to 1, true, yes or on.
pub fn force_cpu_from_env() -> bool {
    crate::env::force_cpu()
}

/// The best backend of this build on this machine: Metal, then CUDA, then the CPU. `KIN_INFER_FORCE_CPU` pins the CPU,
/// `KIN_INFER_CPU_ISA` its instruction set.
///
/// # Errors
/// When `KIN_INFER_CPU_ISA` names an instruction set this CPU or build does not have.
pub fn create_compute() -> Result<Arc<dyn GpuCompute>> {
    Ok(Arc::new(CpuCompute::new()?))
}

/// The best backend that computes with a precision: [`create_compute`] for the exact one, the CPU for int8.
///
/// # Errors
/// As [`create_compute`].
pub fn create_compute_for(precision: Precision) -> Result<Arc<dyn GpuCompute>> {
    match precision {
        Precision::Exact => create_compute(),
        Precision::Int8 => Ok(Arc::new(CpuCompute::new()?)),
    }
}
