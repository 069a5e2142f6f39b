//! Runs the GPU kernels of kin-infer on the CPU: the very same sources, each GPU thread a fiber, with real barriers. For
//! tests only.
//!
//! Where this build has no emulator (a cross build, no C++ compiler, another system), [`AVAILABLE`] is false.

/// Whether kernels can be run.
pub const AVAILABLE: bool = cfg!(emulated);

/// The kernels and the emulator as one C++ source, which the headers in `kernels/` complete; for other compilers and
/// sanitizers. Empty where there is no emulator.
#[cfg(emulated)]
pub const TRANSLATION_UNIT: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cpp"));
#[cfg(not(emulated))]
pub const TRANSLATION_UNIT: &str = "";

/// In which order threads run between barriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By their numbers.
    Ascending,
    /// Against them; threadgroups too.
    Descending,
    /// Shuffled, anew after each barrier, from this seed, which is greater than 1.
    Shuffled(u32),
}

/// Why a launch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no emulator in this build.
    NoEmulator,
    /// No kernel has this name.
    NoSuchKernel,
    /// A threadgroup of more threads than the kernel declares, or of none.
    Threads,
    /// The kernel has another number of buffers.
    Buffers,
    /// The kernel's last parameter has another size.
    Arguments,
}

#[cfg(emulated)]
unsafe extern "C" {
    fn kin_infer_emulator_launch(
        name: *const std::ffi::c_char,
        grid: *const u32,
        threads: *const u32,
        buffers: *const *mut std::ffi::c_void,
        buffer_count: u32,
        args: *const std::ffi::c_void,
        args_size: usize,
        order: u32,
    ) -> i32;
    fn kin_infer_emulator_kernel(i: u32) -> *const std::ffi::c_char;
}

/// Runs a kernel to its end on this thread.
///
/// # Safety
/// Every buffer is valid for what the kernel reads and writes through it, as its source says, and nothing else touches
/// them meanwhile but kernels that read.
pub unsafe fn launch(
    kernel: &str,
    grid: [u32; 3],
    threads: [u32; 3],
    buffers: &[*mut u8],
    args: &[u8],
    order: Order,
) -> Result<(), Refused> {
    #[cfg(not(emulated))]
    {
        let _ = (kernel, grid, threads, buffers, args, order);
        Err(Refused::NoEmulator)
    }
    #[cfg(emulated)]
    {
        let name = std::ffi::CString::new(kernel).map_err(|_| Refused::NoSuchKernel)?;
        let order = match order {
            Order::Ascending => 0,
            Order::Descending => 1,
            Order::Shuffled(seed) => seed.max(2),
        };
        // SAFETY: the arrays are as long as said; the caller vouches for the buffers.
        let code = unsafe {
            kin_infer_emulator_launch(
                name.as_ptr(),
                grid.as_ptr(),
                threads.as_ptr(),
                buffers.as_ptr().cast(),
                buffers.len() as u32,
                args.as_ptr().cast(),
                args.len(),
                order,
            )
        };
        match code {
            0 => Ok(()),
            1 => Err(Refused::NoSuchKernel),
            2 => Err(Refused::Threads),
            3 => Err(Refused::Buffers),
            _ => Err(Refused::Arguments),
        }
    }
}

/// The names of all kernels.
pub fn kernels() -> Vec<String> {
    #[cfg(not(emulated))]
    return Vec::new();
    #[cfg(emulated)]
    (0..)
        .map_while(|i| {
            // SAFETY: i is at most the number of kernels, where the table ends with null; names are static.
            unsafe {
                let name = kin_infer_emulator_kernel(i);
                (!name.is_null()).then(|| std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned())
            }
        })
        .collect()
}
