//! The Metal backend's device (feature `metal`, macOS 13 and newer): Apple GPUs from the M1 on.
//!
//! Metal compiles the kernels' source when a device is opened. Memory is the machine's own, shared with the GPU:
//! weights and results are copied by the CPU, and only what enqueued work still uses goes through a second buffer.

mod device;
mod stream;

use std::sync::Arc;

pub use device::MetalDevice;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};

use crate::error::{InferError, Result};
use crate::gpu::GpuBackend;
use crate::gpu::device::{Device, DeviceInfo};

// MTLCreateSystemDefaultDevice gives nothing in a process that is not linked with CoreGraphics.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// The Metal devices of this machine: the system's default one.
///
/// # Errors
/// The reason why there is none.
pub fn devices() -> std::result::Result<Vec<DeviceInfo>, String> {
    autoreleasepool(|_| usable().map(|(_, info)| vec![info]))
}

/// Opens the device at a place in [`devices`].
///
/// # Errors
/// When there is no such device, or Metal refuses the kernels' source.
pub fn open(index: usize) -> Result<Arc<dyn Device>> {
    let opened = autoreleasepool(|_| match (usable(), index) {
        (Ok((device, info)), 0) => MetalDevice::open(device, info),
        (Ok(_), _) => Err("there is 1 device".to_string()),
        (Err(why), _) => Err(why),
    });
    match opened {
        Ok(device) => Ok(Arc::new(device)),
        Err(detail) => Err(InferError::BackendError {
            backend: GpuBackend::Metal.to_string(),
            operation: format!("opening device {index}"),
            detail,
        }),
    }
}

/// The first family that has all that the kernels use; the M1's.
const LEAST_FAMILY: isize = 7;

/// Cores are not told by Metal; this many or fewer have all Macs but the largest.
const UNITS: u32 = 20;

/// Nor is the cache that the GPU shares with the CPU; the M1's has 8 MiB, later ones more.
const CACHE: u64 = 8 << 20;

/// The default device, if kernels can run on it.
fn usable() -> std::result::Result<(Retained<ProtocolObject<dyn MTLDevice>>, DeviceInfo), String> {
    let device = MTLCreateSystemDefaultDevice().ok_or("Metal has no device here")?;
    let name = device.name().to_string();
    let family = (1..=30).rev().find(|n| device.supportsFamily(MTLGPUFamily(1000 + n)));
    let family =
        family.filter(|n| *n >= LEAST_FAMILY).ok_or_else(|| format!("{name} is no Apple GPU of the M1 or newer"))?;
    let info = DeviceInfo {
        backend: GpuBackend::Metal,
        name,
        detail: format!("GPU family Apple {family}"),
        memory: device.recommendedMaxWorkingSetSize(),
        units: UNITS,
        cache: CACHE,
    };
    Ok((device, info))
}
