//! The CUDA backend's device (feature `cuda`): NVIDIA GPUs of compute capability 7.0 and newer, through the driver.
//!
//! A build needs neither toolkit nor driver: the driver's library is loaded at run time, and a machine without it has
//! no CUDA device. Kernels are embedded as PTX, which the driver compiles for the device when it is opened, and keeps.

mod device;
mod driver;
mod ptx;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

pub use device::CudaDevice;
use driver::{Driver, Failure};

use crate::error::{InferError, Result};
use crate::gpu::GpuBackend;
use crate::gpu::device::{Device, DeviceInfo};

/// The compute capability that the kernels' PTX is for.
const LEAST: (c_int, c_int) = (7, 0);

/// A device of the driver.
#[derive(Debug, Clone)]
struct Found {
    device: c_int,
    capability: (c_int, c_int),
    pools: bool,
    info: DeviceInfo,
}

/// The CUDA devices of this machine, in the driver's order (fastest first, or as `CUDA_VISIBLE_DEVICES` and
/// `CUDA_DEVICE_ORDER` say).
///
/// # Errors
/// The reason why there is none: no driver, no device, none that is new enough.
pub fn devices() -> std::result::Result<Vec<DeviceInfo>, String> {
    Ok(usable(Driver::get()?)?.into_iter().map(|found| found.info).collect())
}

/// Opens the device at a place in [`devices`].
///
/// # Errors
/// When there is no such device, or the driver cannot open it or compile the kernels for it.
pub fn open(index: usize) -> Result<Arc<dyn Device>> {
    Driver::get().and_then(|driver| open_with(driver, index)).map_err(|detail| InferError::BackendError {
        backend: GpuBackend::Cuda.to_string(),
        operation: format!("opening device {index}"),
        detail,
    })
}

/// Opens a device. In a process in which work has failed the driver mostly refuses: then the reason says what helps.
fn open_with(driver: &'static Driver, index: usize) -> std::result::Result<Arc<dyn Device>, String> {
    try_open(driver, index).map_err(|why| match driver.lost.get() {
        Some(call) => format!("{why}; a GPU was lost in this process before ({call} failed): start the program again"),
        None => why,
    })
}

fn try_open(driver: &'static Driver, index: usize) -> std::result::Result<Arc<dyn Device>, String> {
    let found = usable(driver)?;
    let Some(found) = found.get(index) else { return Err(format!("there are {} devices", found.len())) };
    let device = CudaDevice::open(driver, found.device, found.pools, found.info.clone());
    Ok(Arc::new(device.map_err(|e| format!("{}: {e}", found.info.name))?))
}

/// The devices that kernels can run on, or why there are none.
fn usable(driver: &Driver) -> std::result::Result<Vec<Found>, String> {
    let all = all(driver).map_err(|e| e.to_string())?;
    let (usable, older): (Vec<Found>, Vec<Found>) = all.into_iter().partition(|found| found.capability >= LEAST);
    if usable.is_empty() {
        let why = older.first().map_or("the driver lists no device".to_string(), |found| {
            let (major, minor) = found.capability;
            format!("{} has compute capability {major}.{minor}, at least 7.0 is needed", found.info.name)
        });
        return Err(why);
    }
    Ok(usable)
}

/// Every device that the driver lists.
fn all(driver: &Driver) -> std::result::Result<Vec<Found>, Failure> {
    let mut count = 0;
    // SAFETY: the driver is initialised; the number is written.
    unsafe { driver.device_count(&mut count) }?;
    (0..count).map(|ordinal| describe(driver, ordinal)).collect()
}

fn describe(driver: &Driver, ordinal: c_int) -> std::result::Result<Found, Failure> {
    const MULTIPROCESSORS: c_int = 16;
    const L2_CACHE: c_int = 38;
    const MAJOR: c_int = 75;
    const MINOR: c_int = 76;
    const MEMORY_POOLS: c_int = 115;
    let (mut device, mut memory, mut name) = (0, 0, [0 as c_char; 256]);
    // SAFETY: the driver is initialised and has so many devices; all is written as long as said, the name with its NUL.
    unsafe {
        driver.device(&mut device, ordinal)?;
        driver.device_memory(&mut memory, device)?;
        driver.device_name(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
    }
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: as above.
        unsafe { driver.device_attribute(&mut value, attribute, device) }.map(|()| value)
    };
    let (major, minor, units) = (attribute(MAJOR)?, attribute(MINOR)?, attribute(MULTIPROCESSORS)?);
    let info = DeviceInfo {
        backend: GpuBackend::Cuda,
        // SAFETY: the last byte is 0 whatever the driver wrote before it.
        name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
        detail: format!("compute capability {major}.{minor}, {units} multiprocessors"),
        memory: memory as u64,
        units: u32::try_from(units).unwrap_or(1),
        cache: u64::try_from(attribute(L2_CACHE)?).unwrap_or(0),
    };
    Ok(Found { device, capability: (major, minor), pools: attribute(MEMORY_POOLS)? == 1, info })
}
