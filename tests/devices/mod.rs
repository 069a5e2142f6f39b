//! The GPUs of this machine, for tests that run on each of them too.
#![allow(dead_code)] // each test binary uses its own part

use std::sync::{Arc, OnceLock};

use kin_infer::gpu::device::Device;
use kin_infer::gpu::{DeviceCompute, GpuBackend, GpuCompute, absent_backends};

/// The GPU backends that are compiled in.
const BUILT: &[GpuBackend] = &[
    #[cfg(all(feature = "metal", target_os = "macos"))]
    GpuBackend::Metal,
    #[cfg(feature = "cuda")]
    GpuBackend::Cuda,
];

/// A GPU, and the backend over it.
pub struct Gpu {
    pub name: String,
    pub device: Arc<dyn Device>,
    pub compute: Arc<dyn GpuCompute>,
}

/// The first device of a backend, opened anew.
pub fn open(backend: GpuBackend) -> Arc<dyn Device> {
    match backend {
        #[cfg(all(feature = "metal", target_os = "macos"))]
        GpuBackend::Metal => kin_infer::metal_backend::open(0).unwrap(),
        #[cfg(feature = "cuda")]
        GpuBackend::Cuda => kin_infer::cuda_backend::open(0).unwrap(),
        other => panic!("this build has no {other}"),
    }
}

/// The first device of each GPU backend in this build; one that does not open is a failure. A backend that finds none is
/// told about as a skip of `test`; it fails where KIN_INFER_REQUIRE_DEVICE names it, which also no build without that
/// backend passes.
pub fn gpus(test: &str) -> &'static [Gpu] {
    static FOUND: OnceLock<(Vec<Gpu>, Vec<String>)> = OnceLock::new();
    let (gpus, absent) = FOUND.get_or_init(|| {
        let passed_over = absent_backends();
        let found = BUILT.iter().filter(|backend| passed_over.iter().all(|p| p.backend != **backend));
        let gpu = |backend: &GpuBackend| {
            let device = open(*backend);
            let name = format!("{backend}, {}", device.info().name);
            Gpu { name, compute: Arc::new(DeviceCompute::new(Arc::clone(&device))), device }
        };
        let gpus: Vec<Gpu> = found.map(gpu).collect();
        let absent: Vec<String> = passed_over.iter().map(|p| format!("{}: {}", p.backend, p.reason)).collect();
        let required = std::env::var("KIN_INFER_REQUIRE_DEVICE").unwrap_or_default();
        let there = gpus.iter().any(|gpu| gpu.compute.backend().to_string() == required);
        assert!(required.is_empty() || there, "KIN_INFER_REQUIRE_DEVICE={required}: {absent:?}");
        (gpus, absent)
    });
    for why in absent {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "1 skipped: {test} on a GPU: {why}");
    }
    gpus
}
