//! [`CudaDevice`]: the device trait over one GPU's primary context and one stream, which runs calls in their order.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

use super::driver::{Driver, Failure, Handle, OUT_OF_MEMORY};
use super::ptx::{self, Signature};
use crate::gpu::device::{Binding, Device, DeviceError, DeviceInfo, DeviceResult, Launch, Memory};

/// A CUDA device that computes.
pub struct CudaDevice {
    kernels: Mutex<HashMap<&'static str, Handle>>,
    signatures: HashMap<&'static str, Signature>,
    staging: Mutex<Staging>,
    info: DeviceInfo,
    shared: Arc<Shared>,
}

/// What memory needs of its device to be given back.
struct Shared {
    driver: &'static Driver,
    device: c_int,
    context: Handle,
    /// Nothing until it is made, like the module.
    stream: Handle,
    module: Handle,
    /// Whether memory is allocated and freed in the stream's order.
    pools: bool,
    lost: Mutex<Option<DeviceError>>,
}

/// A piece of the device's memory.
struct Allocation {
    address: u64,
    shared: Arc<Shared>,
}

/// Page-locked host memory from which the device copies what is uploaded; a piece is used again only when the stream
/// has passed.
struct Staging {
    memory: *mut c_void,
    used: usize,
}

// SAFETY: the memory is plain bytes, and is used under the lock around it.
unsafe impl Send for Staging {}

/// Bytes of staging memory.
const STAGING: usize = 4 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The device's context as the calling thread's current one, until dropped.
struct Current<'a>(&'a Driver);

impl<'a> Current<'a> {
    fn enter(driver: &'a Driver, context: Handle) -> Result<Self, Failure> {
        // SAFETY: the context is retained by whoever passes it.
        unsafe { driver.push_context(context) }?;
        Ok(Self(driver))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = Handle::NONE;
        // SAFETY: this value pushed the context. There is nothing to do about a failure.
        let _ = unsafe { self.0.pop_context(&mut context) };
    }
}

impl Shared {
    fn current(&self) -> DeviceResult<Current<'_>> {
        if let Some(lost) = &*lock(&self.lost) {
            return Err(lost.clone());
        }
        Current::enter(self.driver, self.context).map_err(|e| self.lose(&e))
    }

    /// The device is lost; the first failure stays its reason.
    fn lose(&self, failure: &Failure) -> DeviceError {
        self.driver.lost.get_or_init(|| failure.call);
        let reason = DeviceError::Lost { operation: failure.call.to_string(), detail: failure.text.clone() };
        lock(&self.lost).get_or_insert(reason).clone()
    }

    /// The error of a call that enqueues: refused where the code says so, else the device is lost.
    fn failed(&self, operation: &str, failure: &Failure) -> DeviceError {
        match failure.is_refusal() {
            true => DeviceError::Refused { operation: operation.to_string(), detail: failure.to_string() },
            false => self.lose(failure),
        }
    }

    /// Waits for all enqueued work. The context is current.
    fn wait(&self) -> DeviceResult<()> {
        // SAFETY: the stream is alive.
        unsafe { self.driver.synchronize(self.stream) }.map_err(|e| self.lose(&e))
    }

    /// Asks the driver for memory. The context is current.
    fn ask(&self, bytes: usize) -> Result<u64, Failure> {
        let mut address = 0;
        // SAFETY: the stream is alive, and the address is written.
        unsafe {
            match self.pools {
                true => self.driver.alloc_async(&mut address, bytes, self.stream),
                false => self.driver.alloc(&mut address, bytes),
            }
        }?;
        Ok(address)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Ok(_current) = Current::enter(self.driver, self.context) {
            // SAFETY: nothing uses the module and the stream any more: memory and device held this value. A context
            // that has failed refuses; releasing it below frees what it holds.
            unsafe {
                if self.stream != Handle::NONE {
                    let _ = self.driver.synchronize(self.stream);
                }
                if self.module != Handle::NONE {
                    let _ = self.driver.unload_module(self.module);
                }
                if self.stream != Handle::NONE {
                    let _ = self.driver.destroy_stream(self.stream);
                }
            }
        }
        // SAFETY: retained once, in `open`.
        let _ = unsafe { self.driver.release_context(self.device) };
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let shared = &self.shared;
        let Ok(_current) = Current::enter(shared.driver, shared.context) else { return };
        // SAFETY: the memory is this value's. In the stream's order it is freed after the work that uses it; without
        // pools that work is waited for. On a failed context it goes with the context.
        let _ = unsafe {
            match shared.pools {
                true => shared.driver.free_async(self.address, shared.stream),
                false => shared.driver.synchronize(shared.stream).and_then(|()| shared.driver.free(self.address)),
            }
        };
    }
}

impl CudaDevice {
    /// Opens a device of the driver: its primary context, a stream, and the kernels compiled for it.
    pub(super) fn open(driver: &'static Driver, device: c_int, pools: bool, info: DeviceInfo) -> Result<Self, Failure> {
        let mut context = Handle::NONE;
        // SAFETY: the driver is initialised and listed the device.
        unsafe { driver.retain_context(&mut context, device) }?;
        let (stream, module, lost) = (Handle::NONE, Handle::NONE, Mutex::default());
        let mut shared = Shared { driver, device, context, stream, module, pools, lost };
        let current = Current::enter(driver, context)?;
        let mut memory = std::ptr::null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the context is current; what is written lives here.
        unsafe {
            driver.create_stream(&mut shared.stream, NON_BLOCKING)?;
            shared.module = driver.compile(ptx::text())?;
            driver.alloc_host(&mut memory, STAGING, 0)?;
        }
        drop(current);
        Ok(Self {
            kernels: Mutex::default(),
            signatures: ptx::signatures(ptx::text().to_str().unwrap_or_default()),
            staging: Mutex::new(Staging { memory, used: 0 }),
            info,
            shared: Arc::new(shared),
        })
    }

    /// A kernel of the module. The context is current.
    fn kernel(&self, name: &'static str) -> DeviceResult<Handle> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        // SAFETY: the module is alive as long as `shared`.
        let kernel = unsafe { self.shared.driver.kernel(self.shared.module, name) };
        let kernel = kernel.map_err(|e| self.shared.failed(name, &e))?;
        kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// Refuses a launch that does not fit the kernel's declaration.
    fn check(&self, launch: &Launch) -> DeviceResult<()> {
        let refused = |detail| Err(DeviceError::Refused { operation: launch.kernel.to_string(), detail });
        let Some(signature) = self.signatures.get(launch.kernel) else {
            return refused("there is no kernel of this name".to_string());
        };
        let threads = launch.threads.iter().try_fold(1u32, |product, n| product.checked_mul(*n)).unwrap_or(u32::MAX);
        let found = Signature { buffers: launch.buffers.len(), args: launch.args.len(), threads };
        if (found.buffers, found.args) != (signature.buffers, signature.args) || threads > signature.threads {
            return refused(format!("the kernel takes {signature:?}, the launch has {found:?}"));
        }
        Ok(())
    }

    /// Where `bytes` bytes of this device's memory lie.
    fn address(&self, at: Binding, bytes: usize) -> DeviceResult<u64> {
        let allocation = at.memory.storage::<Allocation>()?;
        if !Arc::ptr_eq(&allocation.shared, &self.shared) {
            return Err(DeviceError::foreign());
        }
        at.memory.range(at.offset, bytes)?;
        Ok(allocation.address + at.offset as u64)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let Ok(_current) = Current::enter(self.shared.driver, self.shared.context) else { return };
        let staging = self.staging.get_mut().unwrap_or_else(|e| e.into_inner());
        // SAFETY: copies out of the memory are waited for; without a working stream none runs.
        unsafe {
            let _ = self.shared.driver.synchronize(self.shared.stream);
            let _ = self.shared.driver.free_host(staging.memory);
        }
    }
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn alloc(&self, bytes: usize) -> DeviceResult<Memory> {
        let shared = &self.shared;
        let _current = shared.current()?;
        let address = match shared.ask(bytes) {
            // What is freed in the stream's order is there once the stream has passed.
            Err(e) if e.code == OUT_OF_MEMORY => {
                shared.wait()?;
                shared.ask(bytes)
            }
            other => other,
        };
        let address = address.map_err(|e| match e.code {
            OUT_OF_MEMORY => DeviceError::OutOfMemory { bytes },
            _ => shared.failed("alloc", &e),
        })?;
        Ok(Memory::new(bytes, Allocation { address, shared: Arc::clone(shared) }))
    }

    fn upload(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> DeviceResult<()> {
        let shared = &self.shared;
        let to = self.address(Binding { memory, offset }, bytes.len())?;
        let _current = shared.current()?;
        let mut staging = lock(&self.staging);
        for (i, part) in bytes.chunks(STAGING).enumerate() {
            if part.len() > STAGING - staging.used {
                shared.wait()?;
                staging.used = 0;
            }
            // SAFETY: the part lies in the staging memory from `used` on, where no copy is under way; the destination
            // is as long, as `address` checked.
            unsafe {
                let from = staging.memory.cast::<u8>().add(staging.used);
                from.copy_from_nonoverlapping(part.as_ptr(), part.len());
                let to = to + (i * STAGING) as u64;
                shared.driver.copy_to_device(to, from.cast(), part.len(), shared.stream)
            }
            .map_err(|e| shared.failed("upload", &e))?;
            staging.used += part.len();
        }
        Ok(())
    }

    fn read(&self, memory: &Memory, offset: usize, out: &mut [u8]) -> DeviceResult<()> {
        let shared = &self.shared;
        let from = self.address(Binding { memory, offset }, out.len())?;
        let _current = shared.current()?;
        // SAFETY: `out` lives until the stream has passed, below; the source is as long, as `address` checked.
        let copied = unsafe { shared.driver.copy_to_host(out.as_mut_ptr().cast(), from, out.len(), shared.stream) };
        // Waited for also after a failure: nothing may write to `out` later.
        let waited = shared.wait();
        copied.map_err(|e| shared.failed("read", &e))?;
        waited
    }

    fn copy(&self, from: Binding, to: Binding, bytes: usize) -> DeviceResult<()> {
        let shared = &self.shared;
        let (from, to) = (self.address(from, bytes)?, self.address(to, bytes)?);
        let _current = shared.current()?;
        // SAFETY: both ranges are as long, as `address` checked.
        unsafe { shared.driver.copy_on_device(to, from, bytes, shared.stream) }.map_err(|e| shared.failed("copy", &e))
    }

    unsafe fn launch(&self, launch: &Launch) -> DeviceResult<()> {
        self.check(launch)?;
        let shared = &self.shared;
        let mut addresses = launch.buffers.iter().map(|b| self.address(*b, 4)).collect::<DeviceResult<Vec<u64>>>()?;
        let mut args: Vec<u32> = launch.args.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let mut params: Vec<*mut c_void> = addresses.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        if !args.is_empty() {
            params.push(args.as_mut_ptr().cast());
        }
        let _current = shared.current()?;
        let kernel = self.kernel(launch.kernel)?;
        let ([gx, gy, gz], [tx, ty, tz]) = (launch.grid, launch.threads);
        // SAFETY: the parameters are those the kernel declares (`check`), and are copied by the call; the buffers are
        // as long as the kernel needs by the caller's promise.
        unsafe {
            let (params, extra) = (params.as_mut_ptr(), std::ptr::null_mut());
            shared.driver.launch(kernel, gx, gy, gz, tx, ty, tz, 0, shared.stream, params, extra)
        }
        .map_err(|e| shared.failed(launch.kernel, &e))
    }
}
