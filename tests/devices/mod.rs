//! The GPUs of this machine, for tests that run on each of them too.
#![allow(dead_code)] // each test binary uses its own part

use std::sync::{Arc, OnceLock};

use kin_infer::gpu::device::Device;
use kin_infer::gpu::{DeviceCompute, GpuBackend, GpuCompute, create_compute_on};

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

fn open(backend: GpuBackend, index: usize) -> kin_infer::Result<Arc<dyn Device>> {
    match backend {
        #[cfg(all(feature = "metal", target_os = "macos"))]
        GpuBackend::Metal => kin_infer::metal_backend::open(index),
        #[cfg(feature = "cuda")]
        GpuBackend::Cuda => kin_infer::cuda_backend::open(index),
        other => panic!("device {index} of {other}"),
    }
}

/// The first device of each GPU backend in this build. A backend without one is told about as a skip of `test`; it
/// fails where KIN_INFER_REQUIRE_DEVICE names it, which also no build without that backend passes.
pub fn gpus(test: &str) -> &'static [Gpu] {
    static FOUND: OnceLock<(Vec<Gpu>, Vec<String>)> = OnceLock::new();
    let (gpus, absent) = FOUND.get_or_init(|| {
        let (mut gpus, mut absent) = (Vec::new(), Vec::new());
        for backend in BUILT {
            match create_compute_on(*backend) {
                Ok(_) => {
                    let device = open(*backend, 0).unwrap();
                    let name = format!("{backend}, {}", device.info().name);
                    let compute = Arc::new(DeviceCompute::new(Arc::clone(&device)));
                    gpus.push(Gpu { name, device, compute });
                }
                Err(why) => absent.push(why.to_string()),
            }
        }
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
