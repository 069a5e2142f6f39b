//! The CUDA driver, loaded at run time: the functions of it that are used, each checked and named in its error.
//!
//! Signatures are those of NVIDIA's cuda.h (12.x); a name with `_v2` is the one that cuda.h's macros lead to.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// An object of the driver: a context, stream, module or function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Handle(pub *mut c_void);

// SAFETY: a handle is a name; the driver takes calls about it from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub const NONE: Self = Self(std::ptr::null_mut());
}

/// A call of the driver that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub call: &'static str,
    pub code: c_int,
    /// The driver's name and description of the code.
    pub text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.call, self.text)
    }
}

pub(super) const OUT_OF_MEMORY: c_int = 2;

impl Failure {
    /// Whether the call did nothing and the device goes on working: an invalid value, too little memory, a symbol that
    /// is not found, too few resources for a launch, something that is not supported. All other codes may tell of
    /// earlier work that failed, after which the context is of no use.
    pub fn is_refusal(&self) -> bool {
        [1, OUT_OF_MEMORY, 500, 701, 801].contains(&self.code)
    }
}

/// Where the driver's library is, in the order of trying.
const LIBRARIES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The driver of this machine.
pub(super) struct Driver {
    functions: Functions,
    /// The first call of this process that lost a device. The driver may take no more work until the process ends.
    pub lost: OnceLock<&'static str>,
    /// Keeps the functions' addresses valid.
    _library: Option<Library>,
}

macro_rules! driver_functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $kind:ty),*);)*) => {
        /// The addresses of the driver's functions.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub $name: unsafe extern "system" fn($($kind),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: a driver that exports the name has the function of this signature under it.
                    $($name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("the driver is too old: it has no {}", $symbol))?,)*
                })
            }
        }

        #[allow(clippy::too_many_arguments, dead_code)] // the driver's own; `text` asks for errors unchecked
        impl Driver {
            $(
                /// Calls the function of the driver.
                ///
                /// # Safety
                /// Handles are alive, pointers valid for what cuda.h says is read or written through them, and a
                /// context is current where one is needed.
                pub unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), Failure> {
                    // SAFETY: forwarded.
                    self.checked($symbol, unsafe { (self.functions.$name)($($arg),*) })
                }
            )*
        }
    };
}

driver_functions! {
    init = "cuInit"(flags: c_uint);
    error_name = "cuGetErrorName"(code: c_int, name: *mut *const c_char);
    error_string = "cuGetErrorString"(code: c_int, text: *mut *const c_char);
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    device = "cuDeviceGet"(device: *mut c_int, ordinal: c_int);
    device_name = "cuDeviceGetName"(name: *mut c_char, len: c_int, device: c_int);
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: c_int);
    device_memory = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: c_int);
    retain_context = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int);
    release_context = "cuDevicePrimaryCtxRelease_v2"(device: c_int);
    push_context = "cuCtxPushCurrent_v2"(context: Handle);
    pop_context = "cuCtxPopCurrent_v2"(context: *mut Handle);
    load_module = "cuModuleLoadDataEx"(
        module: *mut Handle, image: *const c_void, options: c_uint, names: *mut c_int, values: *mut *mut c_void
    );
    unload_module = "cuModuleUnload"(module: Handle);
    function = "cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    create_stream = "cuStreamCreate"(stream: *mut Handle, flags: c_uint);
    destroy_stream = "cuStreamDestroy_v2"(stream: Handle);
    synchronize = "cuStreamSynchronize"(stream: Handle);
    alloc = "cuMemAlloc_v2"(address: *mut u64, bytes: usize);
    free = "cuMemFree_v2"(address: u64);
    alloc_async = "cuMemAllocAsync"(address: *mut u64, bytes: usize, stream: Handle);
    free_async = "cuMemFreeAsync"(address: u64, stream: Handle);
    alloc_host = "cuMemHostAlloc"(memory: *mut *mut c_void, bytes: usize, flags: c_uint);
    free_host = "cuMemFreeHost"(memory: *mut c_void);
    copy_to_device = "cuMemcpyHtoDAsync_v2"(to: u64, from: *const c_void, bytes: usize, stream: Handle);
    copy_to_host = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: u64, bytes: usize, stream: Handle);
    copy_on_device = "cuMemcpyDtoDAsync_v2"(to: u64, from: u64, bytes: usize, stream: Handle);
    launch = "cuLaunchKernel"(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    );
}

impl Driver {
    /// The machine's driver, loaded and initialised once; the reason where there is none.
    pub fn get() -> Result<&'static Self, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::load(LIBRARIES)).as_ref().map_err(Clone::clone)
    }

    /// Loads the first library that there is.
    pub(super) fn load(names: &[&str]) -> Result<Self, String> {
        let library = names.iter().find_map(|name| open(name).ok());
        let library = library.ok_or_else(|| format!("no NVIDIA driver: {} is not found", names[0]))?;
        let functions = Functions::of(&library)?;
        Self::start(functions, Some(library))
    }

    /// Initialises the driver that has these functions.
    pub(super) fn start(functions: Functions, library: Option<Library>) -> Result<Self, String> {
        let driver = Self { functions, lost: OnceLock::new(), _library: library };
        // SAFETY: the first call, and its only flags.
        unsafe { driver.init(0) }.map_err(|e| e.to_string())?;
        Ok(driver)
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        match code {
            0 => Ok(()),
            code => Err(Failure { call, code, text: self.text(code) }),
        }
    }

    /// Name, number and description of an error.
    fn text(&self, code: c_int) -> String {
        let part = |function: unsafe extern "system" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the driver sets the pointer to a static text, or to null for a code it does not know.
            unsafe {
                function(code, &mut text);
                if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
            }
        };
        let name = part(self.functions.error_name).unwrap_or_else(|| "an unknown error".to_string());
        let description = part(self.functions.error_string).map_or(String::new(), |text| format!(": {text}"));
        format!("{name} ({code}){description}")
    }

    /// Compiles PTX, ended by a NUL, for the current context's device; a failure has the compiler's log.
    ///
    /// # Safety
    /// A context is current.
    pub unsafe fn compile(&self, ptx: &CStr) -> Result<Handle, Failure> {
        const ERROR_LOG_BUFFER: c_int = 5;
        const ERROR_LOG_BUFFER_SIZE: c_int = 6;
        let mut log = vec![0u8; 16 * 1024];
        let mut names = [ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE];
        // A size is passed in place of a pointer.
        let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut module = Handle::NONE;
        // SAFETY: forwarded; the options are two, and the log is as long as said.
        unsafe { self.load_module(&mut module, ptx.as_ptr().cast(), 2, names.as_mut_ptr(), values.as_mut_ptr()) }
            .map_err(|e| {
                log.truncate(log.iter().position(|b| *b == 0).unwrap_or(log.len()));
                let log = String::from_utf8_lossy(&log);
                Failure { text: format!("{}; the compiler says: {}", e.text, log.trim()), ..e }
            })?;
        Ok(module)
    }

    /// A kernel of a module.
    ///
    /// # Safety
    /// The module is alive, its context current.
    pub unsafe fn kernel(&self, module: Handle, name: &str) -> Result<Handle, Failure> {
        let name = CString::new(name).unwrap_or_default(); // no kernel has an empty name, or one with a NUL
        let mut function = Handle::NONE;
        // SAFETY: forwarded; the name is ended by a NUL.
        unsafe { self.function(&mut function, module, name.as_ptr()) }?;
        Ok(function)
    }
}

#[cfg(windows)]
fn open(name: &str) -> Result<Library, libloading::Error> {
    use libloading::os::windows;
    // SAFETY: the driver's own library, which Windows keeps; its initialisation asks for nothing.
    unsafe { windows::Library::load_with_flags(name, windows::LOAD_LIBRARY_SEARCH_SYSTEM32).map(Into::into) }
}

#[cfg(not(windows))]
fn open(name: &str) -> Result<Library, libloading::Error> {
    // SAFETY: the driver's own library; its initialisation asks for nothing.
    unsafe { Library::new(name) }
}
