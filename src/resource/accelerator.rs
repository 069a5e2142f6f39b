//! [`AcceleratorInfo`]: the device that computes, beside the CPU.

use serde::{Deserialize, Serialize};

use super::Resolved;
use crate::gpu::{GpuBackend, GpuDeviceInfo, force_cpu_from_env, gpus};

/// Which kind of accelerator there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AcceleratorBackend {
    /// None that this build can use.
    None,
    /// Apple's GPU.
    Metal,
    /// NVIDIA's.
    Cuda,
}

/// How CPU and accelerator share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HybridMode {
    /// The CPU does everything.
    CpuOnly,
    /// The accelerator runs the model, the CPU everything around it.
    Accelerator,
}

/// The accelerator of this machine, if it has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcceleratorInfo {
    /// Its kind.
    pub backend: AcceleratorBackend,
    /// Its name; of the CPU where there is none.
    pub device: String,
    /// Who computes what.
    pub mode: Resolved<HybridMode>,
}

/// The device that [`create_compute`](crate::gpu::create_compute) takes.
pub fn detect_accelerator() -> AcceleratorInfo {
    // Not `discover_devices`: asked for its threads, the CPU starts the pool, and their number is what a plan decides.
    let (name, detail) = (std::env::consts::ARCH.to_string(), String::new());
    let cpu = GpuDeviceInfo { backend: GpuBackend::Cpu, name, detail, threads: 1, memory: None };
    accelerator_info(&gpus().chain([cpu]).collect::<Vec<_>>(), force_cpu_from_env())
}

fn accelerator_info(devices: &[GpuDeviceInfo], force_cpu: bool) -> AcceleratorInfo {
    let backend = |device: &GpuDeviceInfo| match device.backend {
        GpuBackend::Cpu => AcceleratorBackend::None,
        GpuBackend::Metal => AcceleratorBackend::Metal,
        GpuBackend::Cuda => AcceleratorBackend::Cuda,
    };
    let name = |device: Option<&GpuDeviceInfo>| device.map(|d| d.name.clone()).unwrap_or_default();
    let first = devices.iter().find(|d| d.backend != GpuBackend::Cpu);
    let found = first.map_or(AcceleratorBackend::None, backend);
    let (used, reason) = match (first, force_cpu) {
        (None, _) => (None, "this build finds no accelerator here"),
        (Some(_), true) => (None, "KIN_INFER_FORCE_CPU is set"),
        (Some(device), false) => (Some(device), "the model runs on the accelerator"),
    };
    let mode = if used.is_some() { HybridMode::Accelerator } else { HybridMode::CpuOnly };
    let mode = Resolved::new(mode, reason).from("devices", devices.len()).from("force_cpu", force_cpu);
    AcceleratorInfo { backend: found, device: name(used.or(devices.last())), mode }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(backend: GpuBackend, name: &str) -> GpuDeviceInfo {
        GpuDeviceInfo { backend, name: name.to_string(), detail: String::new(), threads: 1, memory: None }
    }

    #[test]
    fn an_accelerator_computes_unless_the_cpu_is_forced() {
        let devices = [device(GpuBackend::Cuda, "H"), device(GpuBackend::Cpu, "x86_64")];
        let found = accelerator_info(&devices, false);
        assert_eq!((found.backend, found.mode.value), (AcceleratorBackend::Cuda, HybridMode::Accelerator));
        assert_eq!(found.device, "H");
        let forced = accelerator_info(&devices, true);
        assert_eq!((forced.backend, forced.mode.value), (AcceleratorBackend::Cuda, HybridMode::CpuOnly));
        assert_eq!(forced.device, "x86_64");
        let none = accelerator_info(&devices[1..], false);
        assert_eq!((none.backend, none.mode.value), (AcceleratorBackend::None, HybridMode::CpuOnly));
    }
}
