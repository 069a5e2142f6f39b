//! [`MetalDevice`]: the device trait over a Metal device and one command queue.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBlitCommandEncoder, MTLBuffer, MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState, MTLDevice,
    MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode, MTLResourceOptions, MTLSize,
};

use super::stream::Stream;
use crate::gpu::device::{Binding, Device, DeviceError, DeviceInfo, DeviceResult, Launch, Memory};
use crate::gpu::kernels;

type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// A Metal device that computes.
pub struct MetalDevice {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    library: Retained<ProtocolObject<dyn MTLLibrary>>,
    pipelines: Mutex<HashMap<&'static str, Pipeline>>,
    stream: Mutex<Stream>,
    info: DeviceInfo,
    /// Tells its memory from that of others.
    number: u64,
}

/// A piece of memory, visible to CPU and GPU. Command buffers that use it keep it alive.
struct Allocation {
    buffer: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// The number of the last command buffer that uses it, 0 before there is one.
    used_by: AtomicU64,
    /// The number of its device.
    device: u64,
}

// SAFETY: Metal's buffers may be used from any thread; their contents are touched only under the stream's lock.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Its bytes from `offset` on, for the CPU.
    fn contents(&self, offset: usize) -> *mut u8 {
        self.buffer.contents().as_ptr().cast::<u8>().wrapping_add(offset)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn refused(operation: &str, detail: impl ToString) -> DeviceError {
    DeviceError::Refused { operation: operation.to_string(), detail: detail.to_string() }
}

/// How the kernels are compiled: IEEE arithmetic, without reordering. macOS 15 calls it the safe math mode, older
/// systems the absence of fast math.
fn compile_options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_0);
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    options
}

impl MetalDevice {
    /// Compiles the kernels for a device.
    pub(super) fn open(device: Retained<ProtocolObject<dyn MTLDevice>>, info: DeviceInfo) -> Result<Self, String> {
        let queue = device.newCommandQueue().ok_or("Metal gives no command queue")?;
        let source = NSString::from_str(&kernels::source());
        let library = device.newLibraryWithSource_options_error(&source, Some(&compile_options()));
        let library = library.map_err(|e| format!("the kernels do not compile: {}", e.localizedDescription()))?;
        let stream = Mutex::new(Stream::new(queue));
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Relaxed);
        Ok(Self { device, library, pipelines: Mutex::default(), stream, info, number })
    }

    /// The memory in which `bytes` bytes of this device are bound.
    fn memory<'a>(&self, at: Binding<'a>, bytes: usize) -> DeviceResult<&'a Allocation> {
        let allocation = at.memory.storage::<Allocation>()?;
        if allocation.device != self.number {
            return Err(DeviceError::foreign());
        }
        at.memory.range(at.offset, bytes)?;
        Ok(allocation)
    }

    /// Refuses memory beyond what the device may use, of which the system would make room by swapping. What freed
    /// memory held counts until the work that uses it is done.
    fn afford(&self, stream: &mut Stream, bytes: usize) -> DeviceResult<()> {
        let most = usize::try_from(self.info.memory).unwrap_or(usize::MAX);
        let fits = || self.device.currentAllocatedSize().checked_add(bytes).is_some_and(|all| all <= most);
        if bytes > self.device.maxBufferLength() {
            return Err(DeviceError::OutOfMemory { bytes });
        }
        if !fits() {
            stream.wait()?;
        }
        if fits() { Ok(()) } else { Err(DeviceError::OutOfMemory { bytes }) }
    }

    /// A kernel, compiled for the device when it is first asked for.
    fn pipeline(&self, name: &'static str) -> DeviceResult<Pipeline> {
        let mut pipelines = lock(&self.pipelines);
        if let Some(pipeline) = pipelines.get(name) {
            return Ok(pipeline.clone());
        }
        let function = self.library.newFunctionWithName(&NSString::from_str(name));
        let function = function.ok_or_else(|| refused(name, "there is no kernel of this name"))?;
        let pipeline = self.device.newComputePipelineStateWithFunction_error(&function);
        let pipeline = pipeline.map_err(|e| refused(name, e.localizedDescription()))?;
        let width = pipeline.threadExecutionWidth();
        if width != 32 {
            return Err(refused(name, format!("SIMD groups of {width} threads, kernels need 32")));
        }
        pipelines.insert(name, pipeline.clone());
        Ok(pipeline)
    }

    /// A buffer that holds `bytes`.
    fn buffer_with(&self, bytes: &[u8]) -> DeviceResult<Retained<ProtocolObject<dyn MTLBuffer>>> {
        let start = NonNull::from(bytes).cast::<c_void>();
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: the bytes are as long as said, and are copied by the call.
        let buffer = unsafe { self.device.newBufferWithBytes_length_options(start, bytes.len(), options) };
        buffer.ok_or(DeviceError::OutOfMemory { bytes: bytes.len() })
    }
}

impl Device for MetalDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn alloc(&self, bytes: usize) -> DeviceResult<Memory> {
        autoreleasepool(|_| {
            let mut stream = lock(&self.stream);
            stream.check()?;
            self.afford(&mut stream, bytes)?;
            let buffer = self.device.newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared);
            let buffer = buffer.ok_or(DeviceError::OutOfMemory { bytes })?;
            Ok(Memory::new(bytes, Allocation { buffer, used_by: AtomicU64::new(0), device: self.number }))
        })
    }

    fn upload(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> DeviceResult<()> {
        let to = self.memory(Binding { memory, offset }, bytes.len())?;
        autoreleasepool(|_| {
            let mut stream = lock(&self.stream);
            if to.used_by.load(Relaxed) <= stream.completed()? {
                // SAFETY: the range lies in the memory, as `memory` checked, and no work uses it.
                unsafe { to.contents(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                return Ok(());
            }
            self.afford(&mut stream, bytes.len())?;
            let from = self.buffer_with(bytes)?;
            let encoder = stream.blit()?;
            // SAFETY: both ranges lie in their buffers, as `memory` checked.
            unsafe {
                encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                    &from,
                    0,
                    &to.buffer,
                    offset,
                    bytes.len(),
                );
            }
            to.used_by.store(stream.number(), Relaxed);
            Ok(())
        })
    }

    fn read(&self, memory: &Memory, offset: usize, out: &mut [u8]) -> DeviceResult<()> {
        let from = self.memory(Binding { memory, offset }, out.len())?;
        autoreleasepool(|_| {
            let mut stream = lock(&self.stream);
            stream.wait()?;
            // SAFETY: the range lies in the memory, as `memory` checked, and all work is done.
            unsafe { from.contents(offset).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
            Ok(())
        })
    }

    fn copy(&self, from: Binding, to: Binding, bytes: usize) -> DeviceResult<()> {
        let (source, target) = (self.memory(from, bytes)?, self.memory(to, bytes)?);
        autoreleasepool(|_| {
            let mut stream = lock(&self.stream);
            let encoder = stream.blit()?;
            // SAFETY: both ranges lie in their buffers, as `memory` checked.
            unsafe {
                encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                    &source.buffer,
                    from.offset,
                    &target.buffer,
                    to.offset,
                    bytes,
                );
            }
            source.used_by.store(stream.number(), Relaxed);
            target.used_by.store(stream.number(), Relaxed);
            Ok(())
        })
    }

    unsafe fn launch(&self, launch: &Launch) -> DeviceResult<()> {
        let buffers = launch.buffers.iter().map(|b| self.memory(*b, 4)).collect::<DeviceResult<Vec<_>>>()?;
        autoreleasepool(|_| {
            let pipeline = self.pipeline(launch.kernel)?;
            let [grid, threads] = [launch.grid, launch.threads].map(|[x, y, z]| [x as usize, y as usize, z as usize]);
            let most = pipeline.maxTotalThreadsPerThreadgroup();
            if threads.iter().try_fold(1usize, |product, n| product.checked_mul(*n)).is_none_or(|n| n > most) {
                return Err(refused(launch.kernel, format!("{threads:?} threads, the kernel takes {most}")));
            }
            let mut stream = lock(&self.stream);
            let encoder = stream.compute()?;
            encoder.setComputePipelineState(&pipeline);
            // SAFETY: by the caller's promise the buffers are those that the kernel declares, as long as it needs.
            unsafe {
                for (i, (binding, memory)) in launch.buffers.iter().zip(&buffers).enumerate() {
                    encoder.setBuffer_offset_atIndex(Some(&memory.buffer), binding.offset, i);
                }
                if !launch.args.is_empty() {
                    let args = NonNull::from(launch.args).cast::<c_void>();
                    encoder.setBytes_length_atIndex(args, launch.args.len(), buffers.len());
                }
            }
            let size = |[width, height, depth]: [usize; 3]| MTLSize { width, height, depth };
            encoder.dispatchThreadgroups_threadsPerThreadgroup(size(grid), size(threads));
            for memory in buffers {
                memory.used_by.store(stream.number(), Relaxed);
            }
            stream.launched();
            Ok(())
        })
    }
}
