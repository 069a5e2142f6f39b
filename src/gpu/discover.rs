//! Which devices this build finds on this machine, and which of them computes.

use std::sync::{Arc, Mutex};

use super::device::{Device, DeviceInfo};
use super::{DeviceCompute, GpuBackend, GpuCompute, GpuDeviceInfo, Precision};
use crate::cpu::CpuCompute;
use crate::error::{InferError, Result};

/// A GPU backend that is compiled in.
struct Candidate {
    backend: GpuBackend,
    /// Its devices, or why there are none.
    devices: fn() -> std::result::Result<Vec<DeviceInfo>, String>,
    /// Opens one of them.
    open: fn(usize) -> Result<Arc<dyn Device>>,
}

/// The GPU backends of this build, best first.
const CANDIDATES: &[Candidate] = &[
    #[cfg(all(feature = "metal", target_os = "macos"))]
    Candidate { backend: GpuBackend::Metal, devices: crate::metal_backend::devices, open: crate::metal_backend::open },
    #[cfg(feature = "cuda")]
    Candidate { backend: GpuBackend::Cuda, devices: crate::cuda_backend::devices, open: crate::cuda_backend::open },
];

/// A GPU backend of this build that does not compute here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// Which one.
    pub backend: GpuBackend,
    /// Why.
    pub reason: String,
}

/// Every device this build can use, best first. The CPU is always the last entry.
pub fn discover_devices() -> Vec<GpuDeviceInfo> {
    gpus().chain([cpu_info()]).collect()
}

/// The devices that are not the CPU.
pub(crate) fn gpus() -> impl Iterator<Item = GpuDeviceInfo> {
    CANDIDATES.iter().filter_map(|c| (c.devices)().ok()).flatten().map(GpuDeviceInfo::from)
}

/// The GPU backends of this build that find no device on this machine, with the reasons.
pub fn absent_backends() -> Vec<PassedOver> {
    let absent = |c: &Candidate| (c.devices)().err().map(|reason| PassedOver { backend: c.backend, reason });
    CANDIDATES.iter().filter_map(absent).collect()
}

/// The CPU as it computes here; a pinned instruction set that does not exist is reported where a backend is made.
fn cpu_info() -> GpuDeviceInfo {
    CpuCompute::new().unwrap_or_else(|_| CpuCompute::with_kernels(crate::cpu::available()[0])).device()
}

/// Whether `KIN_INFER_FORCE_CPU` is set to 1, true, yes or on.
pub fn force_cpu_from_env() -> bool {
    crate::env::force_cpu()
}

/// The best backend of this build on this machine: Metal, then CUDA, then the CPU. `KIN_INFER_FORCE_CPU` pins the CPU,
/// `KIN_INFER_CPU_ISA` its instruction set. A GPU backend without a device is passed over, which is said once in a
/// process, as a warning of `tracing`.
///
/// # Errors
/// When the CPU is what computes, and `KIN_INFER_CPU_ISA` or `KIN_INFER_CPU_BACKEND` names what this CPU or build does
/// not have. A GPU that fails to open is no error: it is passed over.
pub fn create_compute() -> Result<Arc<dyn GpuCompute>> {
    static SAID: Mutex<Vec<GpuBackend>> = Mutex::new(Vec::new());
    let (compute, passed_over) = choose_compute()?;
    let mut said = SAID.lock().unwrap_or_else(|e| e.into_inner());
    for PassedOver { backend, reason } in passed_over {
        if !said.contains(&backend) {
            said.push(backend);
            tracing::warn!(%backend, reason, used = %compute.backend(), "a GPU backend of this build is not used");
        }
    }
    Ok(compute)
}

/// The best backend that computes with a precision: [`create_compute`] for the exact one, the CPU for int8.
///
/// # Errors
/// As [`create_compute`] where it has chosen the CPU.
pub fn create_compute_for(precision: Precision) -> Result<Arc<dyn GpuCompute>> {
    match precision {
        Precision::Exact => create_compute(),
        Precision::Int8 => Ok(Arc::new(CpuCompute::new()?)),
    }
}

/// [`create_compute`], silent, with the backends that were passed over.
///
/// # Errors
/// As [`create_compute`].
pub fn choose_compute() -> Result<(Arc<dyn GpuCompute>, Vec<PassedOver>)> {
    choose(if force_cpu_from_env() { &[] } else { CANDIDATES })
}

/// The first device of a backend.
///
/// # Errors
/// When this build does not have the backend, it finds no device here, or the device does not open: unlike
/// [`create_compute`], this never falls back to another one. For the CPU, as [`create_compute`].
pub fn create_compute_on(backend: GpuBackend) -> Result<Arc<dyn GpuCompute>> {
    on(CANDIDATES, backend)
}

fn on(candidates: &[Candidate], backend: GpuBackend) -> Result<Arc<dyn GpuCompute>> {
    if backend == GpuBackend::Cpu {
        return Ok(Arc::new(CpuCompute::new()?));
    }
    match candidates.iter().find(|c| c.backend == backend) {
        Some(candidate) => first(candidate),
        None if backend == GpuBackend::Metal && !cfg!(target_os = "macos") => {
            Err(failed(backend, "Metal is part of macOS, which this is not".to_string()))
        }
        None => Err(failed(backend, format!("this build lacks it: build with the feature `{backend}`"))),
    }
}

fn failed(backend: GpuBackend, detail: String) -> InferError {
    InferError::BackendError { backend: backend.to_string(), operation: "finding a device".to_string(), detail }
}

/// The backend on the first device of a candidate.
fn first(candidate: &Candidate) -> Result<Arc<dyn GpuCompute>> {
    (candidate.devices)().map_err(|reason| failed(candidate.backend, reason))?;
    Ok(Arc::new(DeviceCompute::new((candidate.open)(0)?)))
}

/// The first candidate that can compute, else the CPU.
fn choose(candidates: &[Candidate]) -> Result<(Arc<dyn GpuCompute>, Vec<PassedOver>)> {
    let mut passed_over = Vec::new();
    for candidate in candidates {
        match first(candidate) {
            Ok(compute) => return Ok((compute, passed_over)),
            Err(why) => passed_over.push(PassedOver {
                backend: candidate.backend,
                reason: match why {
                    InferError::BackendError { detail, .. } => detail,
                    other => other.to_string(),
                },
            }),
        }
    }
    Ok((Arc::new(CpuCompute::new()?), passed_over))
}

impl From<DeviceInfo> for GpuDeviceInfo {
    fn from(info: DeviceInfo) -> Self {
        let DeviceInfo { backend, name, detail, memory, .. } = info;
        Self { backend, name, detail, threads: 1, memory: Some(memory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::{Binding, DeviceResult, Launch, Memory};

    /// A device that is only looked at.
    struct Idle;

    fn info() -> DeviceInfo {
        let (name, detail) = ("idle".to_string(), "none".to_string());
        DeviceInfo { backend: GpuBackend::Metal, name, detail, memory: 1 << 30, units: 4, cache: 1 << 20 }
    }

    impl Device for Idle {
        fn info(&self) -> DeviceInfo {
            info()
        }
        fn alloc(&self, _: usize) -> DeviceResult<Memory> {
            unreachable!()
        }
        fn upload(&self, _: &Memory, _: usize, _: &[u8]) -> DeviceResult<()> {
            unreachable!()
        }
        fn read(&self, _: &Memory, _: usize, _: &mut [u8]) -> DeviceResult<()> {
            unreachable!()
        }
        fn copy(&self, _: Binding, _: Binding, _: usize) -> DeviceResult<()> {
            unreachable!()
        }
        unsafe fn launch(&self, _: &Launch) -> DeviceResult<()> {
            unreachable!()
        }
    }

    fn unopened(_: usize) -> Result<Arc<dyn Device>> {
        Err(failed(GpuBackend::Metal, "Idle: out of memory".to_string()))
    }

    const ABSENT: Candidate =
        Candidate { backend: GpuBackend::Cuda, devices: || Err("no driver".to_string()), open: unopened };
    const BROKEN: Candidate = Candidate { backend: GpuBackend::Metal, devices: || Ok(vec![info()]), open: unopened };
    const WORKING: Candidate =
        Candidate { backend: GpuBackend::Metal, devices: || Ok(vec![info()]), open: |_| Ok(Arc::new(Idle)) };

    fn reasons(passed_over: &[PassedOver]) -> Vec<(GpuBackend, &str)> {
        passed_over.iter().map(|p| (p.backend, &*p.reason)).collect()
    }

    #[test]
    fn the_first_that_can_compute_is_taken() {
        let (compute, passed_over) = choose(&[ABSENT, WORKING, BROKEN]).unwrap();
        assert_eq!((compute.backend(), &*compute.device().name), (GpuBackend::Metal, "idle"));
        assert_eq!(compute.device().memory, Some(1 << 30));
        assert_eq!(reasons(&passed_over), [(GpuBackend::Cuda, "no driver")]);
    }

    #[test]
    fn without_a_device_the_cpu_computes_and_the_reasons_are_told() {
        let (compute, passed_over) = choose(&[BROKEN, ABSENT]).unwrap();
        assert_eq!(compute.backend(), GpuBackend::Cpu);
        let expected = [(GpuBackend::Metal, "Idle: out of memory"), (GpuBackend::Cuda, "no driver")];
        assert_eq!(reasons(&passed_over), expected);
    }

    /// A backend that is asked for by name is never replaced by another one.
    #[test]
    fn a_named_backend_fails_where_it_is_absent() {
        let why = |candidates, backend| on(candidates, backend).err().unwrap().to_string();
        let (cuda, metal) = (GpuBackend::Cuda, GpuBackend::Metal);
        assert_eq!(why(&[WORKING, ABSENT], cuda), "cuda backend: finding a device: no driver");
        assert_eq!(why(&[ABSENT, BROKEN], metal), "metal backend: finding a device: Idle: out of memory");
        assert_eq!(
            why(&[WORKING], cuda),
            "cuda backend: finding a device: this build lacks it: build with the feature `cuda`"
        );
        let lacking = match cfg!(target_os = "macos") {
            true => "this build lacks it: build with the feature `metal`",
            false => "Metal is part of macOS, which this is not",
        };
        assert_eq!(why(&[ABSENT], metal), format!("metal backend: finding a device: {lacking}"));
        assert_eq!(on(&[ABSENT, WORKING], metal).unwrap().backend(), metal);
        assert_eq!(on(&[WORKING], GpuBackend::Cpu).unwrap().backend(), GpuBackend::Cpu);
    }
}
