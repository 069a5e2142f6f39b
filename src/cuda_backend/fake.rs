//! A CUDA driver that is none, for tests: the same functions over host memory and the emulated kernels.
//!
//! Enqueued work runs only when the stream is waited for, so that a test sees whatever is used, freed or overwritten
//! too early. What the driver documents is checked: a current context, live handles, uploads from page-locked memory.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

use super::driver::{Driver, Functions, Handle};
use super::ptx::{self, Signature};

pub struct FakeDevice {
    pub name: &'static str,
    pub capability: (c_int, c_int),
    pub units: c_int,
    pub memory: usize,
    pub pools: bool,
}

/// A device as they are today.
pub fn modern() -> FakeDevice {
    FakeDevice { name: "Fake 9000", capability: (9, 0), units: 132, memory: 1 << 28, pools: true }
}

enum Work {
    Upload { to: u64, from: usize, bytes: usize },
    Read { to: usize, from: u64, bytes: usize },
    Copy { to: u64, from: u64, bytes: usize },
    Launch { kernel: String, grid: [u32; 3], threads: [u32; 3], buffers: Vec<u64>, args: Vec<u8> },
    Free(u64),
}

/// What the driver holds.
#[derive(Default)]
pub struct State {
    pub devices: Vec<FakeDevice>,
    /// The n-th call from now of a function fails with a code.
    pub faults: Vec<(&'static str, usize, c_int)>,
    /// The n-th launch from now fails with a code when it runs.
    pub fault_when_run: Option<(usize, c_int)>,
    /// What the compiler writes into its log.
    pub log: &'static str,
    /// The code of work that failed: every later call gives it.
    sticky: c_int,
    current: HashMap<ThreadId, usize>,
    memory: BTreeMap<u64, Vec<Line>>,
    host: BTreeMap<usize, Vec<Line>>,
    queue: Vec<Work>,
    kernels: Vec<(String, Signature)>,
    contexts: usize,
    streams: usize,
    modules: usize,
    pub launches: usize,
}

#[derive(Clone, Copy)]
#[repr(align(256))]
#[expect(dead_code, reason = "read and written through pointers to the first line")]
struct Line([u8; 256]);

/// Memory that shows when it is read before it is written: NaN as f32.
fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0xff; 256]); bytes.div_ceil(256)]
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The driver of one test; others wait. Dropped, it checks that everything was given back.
pub struct Fake {
    pub driver: &'static Driver,
    _turn: MutexGuard<'static, ()>,
}

impl Fake {
    /// A driver with these devices.
    pub fn new(devices: Vec<FakeDevice>) -> Self {
        Self::try_new(devices, vec![]).unwrap_or_else(|why| panic!("{why}"))
    }

    /// A driver some of whose calls fail, from the first on.
    pub fn try_new(devices: Vec<FakeDevice>, faults: Vec<(&'static str, usize, c_int)>) -> Result<Self, String> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        *state() = Some(State { devices, faults, ..State::default() });
        Ok(Self { driver: Box::leak(Box::new(Driver::start(FUNCTIONS, None)?)), _turn: turn })
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(state().as_mut().unwrap())
    }

    /// Pieces of device memory that are not freed.
    pub fn pieces(&self) -> usize {
        self.with(|s| s.memory.len())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let state = state().take().unwrap();
        if !std::thread::panicking() {
            assert!(state.current.values().all(|depth| *depth == 0), "contexts were left current");
            assert_eq!((state.contexts, state.streams, state.modules), (0, 0, 0), "contexts, streams, modules");
            assert!(state.sticky != 0 || (state.memory.is_empty() && state.host.is_empty()), "memory was not freed");
        }
    }
}

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A call that needs no context.
fn call(name: &'static str, f: impl FnOnce(&mut State) -> Result<(), c_int>) -> c_int {
    let mut state = state();
    let state = state.as_mut().unwrap();
    for fault in state.faults.iter_mut().filter(|f| f.0 == name) {
        match fault.1 {
            0 => {
                let code = fault.2;
                state.faults.retain(|f| f.0 != name);
                return code;
            }
            _ => fault.1 -= 1,
        }
    }
    f(state).err().unwrap_or(0)
}

/// A call that needs a current context in which nothing has failed.
fn within(name: &'static str, f: impl FnOnce(&mut State) -> Result<(), c_int>) -> c_int {
    call(name, |state| {
        if state.current.get(&std::thread::current().id()).is_none_or(|depth| *depth == 0) {
            return Err(201);
        }
        if state.sticky != 0 { Err(state.sticky) } else { f(state) }
    })
}

impl State {
    fn piece(&self, address: u64, bytes: usize) -> Result<*mut u8, c_int> {
        let (start, lines) = self.memory.range(..=address).next_back().ok_or(1)?;
        let inside = (address - start) as usize + bytes <= lines.len() * 256;
        if inside { Ok(address as *mut u8) } else { Err(1) }
    }

    fn ask(&mut self, address: *mut u64, bytes: usize) -> Result<(), c_int> {
        let held: usize = self.memory.values().map(|lines| lines.len() * 256).sum();
        if held.saturating_add(bytes) > self.devices[0].memory {
            return Err(2);
        }
        let lines = lines(bytes);
        let start = lines.as_ptr() as u64;
        self.memory.insert(start, lines);
        // SAFETY: the driver's contract.
        unsafe { *address = start };
        Ok(())
    }

    fn run_all(&mut self) -> Result<(), c_int> {
        for work in std::mem::take(&mut self.queue) {
            if let Err(code) = self.run(work) {
                self.sticky = code;
                return Err(code);
            }
        }
        Ok(())
    }

    fn run(&mut self, work: Work) -> Result<(), c_int> {
        const ILLEGAL_ADDRESS: c_int = 700;
        match work {
            Work::Free(address) => {
                self.memory.remove(&address).ok_or(1)?;
            }
            Work::Upload { to, from, bytes } => {
                let to = self.piece(to, bytes).or(Err(ILLEGAL_ADDRESS))?;
                // SAFETY: both ranges are checked to lie in memory that lives here.
                unsafe { to.copy_from_nonoverlapping(from as *const u8, bytes) };
            }
            Work::Read { to, from, bytes } => {
                let from = self.piece(from, bytes).or(Err(ILLEGAL_ADDRESS))?;
                // SAFETY: as above; who reads waits for it.
                unsafe { (to as *mut u8).copy_from_nonoverlapping(from, bytes) };
            }
            Work::Copy { to, from, bytes } => {
                let to = self.piece(to, bytes).or(Err(ILLEGAL_ADDRESS))?;
                let from = self.piece(from, bytes).or(Err(ILLEGAL_ADDRESS))?;
                // SAFETY: as above.
                unsafe { to.copy_from_nonoverlapping(from, bytes) };
            }
            Work::Launch { kernel, grid, threads, buffers, args } => {
                self.launches += 1;
                match &mut self.fault_when_run {
                    Some((0, code)) => return Err(*code),
                    Some((n, _)) => *n -= 1,
                    None => {}
                }
                let pieces = buffers.iter().map(|b| self.piece(*b, 1)).collect::<Result<Vec<_>, _>>();
                let pieces = pieces.or(Err(ILLEGAL_ADDRESS))?;
                let order = kin_infer_emulator::Order::Ascending;
                // SAFETY: the buffers are as long as the backend made them for this kernel.
                let ran = unsafe { kin_infer_emulator::launch(&kernel, grid, threads, &pieces, &args, order) };
                ran.or(Err(719))?;
            }
        }
        Ok(())
    }
}

const CONTEXT: Handle = Handle(std::ptr::without_provenance_mut(1));
const STREAM: Handle = Handle(std::ptr::without_provenance_mut(2));
const MODULE: Handle = Handle(std::ptr::without_provenance_mut(3));
const FIRST_KERNEL: usize = 16;

fn alive(is: bool) -> Result<(), c_int> {
    if is { Ok(()) } else { Err(400) }
}

fn enqueue(name: &'static str, stream: Handle, work: impl FnOnce(&State) -> Result<Work, c_int>) -> c_int {
    within(name, |s| {
        alive(stream == STREAM && s.streams > 0)?;
        let work = work(s)?;
        s.queue.push(work);
        Ok(())
    })
}

/// Stores the driver's answer.
fn set<T>(at: *mut T, value: T) -> Result<(), c_int> {
    // SAFETY: the driver's contract: the pointer is valid.
    unsafe { at.write(value) };
    Ok(())
}

extern "system" fn init(_: c_uint) -> c_int {
    call("cuInit", |_| Ok(()))
}

extern "system" fn error_name(code: c_int, name: *mut *const c_char) -> c_int {
    let known =
        [(2, c"CUDA_ERROR_OUT_OF_MEMORY"), (100, c"CUDA_ERROR_NO_DEVICE"), (700, c"CUDA_ERROR_ILLEGAL_ADDRESS")];
    let found = known.iter().find(|(c, _)| *c == code);
    let _ = set(name, found.map_or(std::ptr::null(), |(_, text)| text.as_ptr()));
    if found.is_some() { 0 } else { 1 }
}

extern "system" fn error_string(code: c_int, text: *mut *const c_char) -> c_int {
    let _ = set(text, if code == 100 { c"no CUDA-capable device is detected".as_ptr() } else { std::ptr::null() });
    0
}

extern "system" fn device_count(count: *mut c_int) -> c_int {
    call("cuDeviceGetCount", |s| set(count, s.devices.len() as c_int))
}

extern "system" fn device(device: *mut c_int, ordinal: c_int) -> c_int {
    call("cuDeviceGet", |_| set(device, ordinal))
}

extern "system" fn device_name(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    call("cuDeviceGetName", |s| {
        let bytes = s.devices[device as usize].name.bytes().take(len as usize - 1).chain([0]);
        bytes.enumerate().try_for_each(|(i, byte)| set(name.wrapping_add(i), byte as c_char))
    })
}

extern "system" fn device_attribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    call("cuDeviceGetAttribute", |s| {
        let device = &s.devices[device as usize];
        set(
            value,
            match attribute {
                16 => device.units,
                38 => 50 << 20,
                75 => device.capability.0,
                76 => device.capability.1,
                115 => device.pools.into(),
                _ => return Err(1),
            },
        )
    })
}

extern "system" fn device_memory(bytes: *mut usize, device: c_int) -> c_int {
    call("cuDeviceTotalMem_v2", |s| set(bytes, s.devices[device as usize].memory))
}

extern "system" fn retain_context(context: *mut Handle, _: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", |s| {
        s.contexts += 1;
        set(context, CONTEXT)
    })
}

extern "system" fn release_context(_: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease_v2", |s| {
        s.contexts = s.contexts.checked_sub(1).ok_or(201)?;
        if s.contexts == 0 && s.sticky != 0 {
            // A context that failed takes everything with it.
            (s.streams, s.modules) = (0, 0);
        }
        Ok(())
    })
}

extern "system" fn push_context(context: Handle) -> c_int {
    call("cuCtxPushCurrent_v2", |s| {
        alive(context == CONTEXT && s.contexts > 0)?;
        *s.current.entry(std::thread::current().id()).or_default() += 1;
        Ok(())
    })
}

extern "system" fn pop_context(context: *mut Handle) -> c_int {
    call("cuCtxPopCurrent_v2", |s| {
        let depth = s.current.entry(std::thread::current().id()).or_default();
        *depth = depth.checked_sub(1).ok_or(201)?;
        set(context, CONTEXT)
    })
}

extern "system" fn load_module(
    module: *mut Handle,
    image: *const c_void,
    options: c_uint,
    names: *mut c_int,
    values: *mut *mut c_void,
) -> c_int {
    let failed = within("cuModuleLoadDataEx", |s| {
        // SAFETY: the image is a text ended by a NUL.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().or(Err(218))?;
        s.kernels = ptx::signatures(text).into_iter().map(|(name, signature)| (name.to_string(), signature)).collect();
        s.modules += 1;
        set(module, MODULE)
    });
    if failed != 0 {
        let log = state().as_ref().unwrap().log;
        // SAFETY: the options are the error log's buffer and its size.
        unsafe {
            assert!((options, *names, *names.add(1)) == (2, 5, 6) && (*values.add(1)).addr() > log.len());
            (*values).cast::<u8>().copy_from_nonoverlapping(log.as_ptr(), log.len());
        }
    }
    failed
}

extern "system" fn unload_module(module: Handle) -> c_int {
    within("cuModuleUnload", |s| {
        alive(module == MODULE && s.modules > 0)?;
        s.modules -= 1;
        Ok(())
    })
}

extern "system" fn function(function: *mut Handle, module: Handle, name: *const c_char) -> c_int {
    within("cuModuleGetFunction", |s| {
        alive(module == MODULE && s.modules > 0)?;
        // SAFETY: a text ended by a NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let at = s.kernels.iter().position(|(kernel, _)| *kernel == name).ok_or(500)?;
        set(function, Handle(std::ptr::without_provenance_mut(FIRST_KERNEL + at)))
    })
}

extern "system" fn create_stream(stream: *mut Handle, flags: c_uint) -> c_int {
    within("cuStreamCreate", |s| {
        assert_eq!(flags, 1, "a stream that waits for the default one");
        s.streams += 1;
        set(stream, STREAM)
    })
}

extern "system" fn destroy_stream(stream: Handle) -> c_int {
    within("cuStreamDestroy_v2", |s| {
        alive(stream == STREAM && s.streams > 0)?;
        s.streams -= 1;
        Ok(())
    })
}

extern "system" fn synchronize(stream: Handle) -> c_int {
    within("cuStreamSynchronize", |s| {
        alive(stream == STREAM && s.streams > 0)?;
        s.run_all()
    })
}

extern "system" fn alloc(address: *mut u64, bytes: usize) -> c_int {
    within("cuMemAlloc_v2", |s| s.ask(address, bytes))
}

extern "system" fn free(address: u64) -> c_int {
    within("cuMemFree_v2", |s| {
        let used = s.queue.iter().any(|work| !matches!(work, Work::Free(_)));
        assert!(!used, "memory is freed while work is enqueued that may use it");
        s.memory.remove(&address).map(drop).ok_or(1)
    })
}

extern "system" fn alloc_async(address: *mut u64, bytes: usize, _: Handle) -> c_int {
    within("cuMemAllocAsync", |s| if s.devices[0].pools { s.ask(address, bytes) } else { Err(801) })
}

extern "system" fn free_async(address: u64, stream: Handle) -> c_int {
    enqueue("cuMemFreeAsync", stream, |s| s.piece(address, 1).map(|_| Work::Free(address)))
}

extern "system" fn alloc_host(memory: *mut *mut c_void, bytes: usize, _: c_uint) -> c_int {
    within("cuMemHostAlloc", |s| {
        let mut lines = lines(bytes);
        let start: *mut c_void = lines.as_mut_ptr().cast();
        s.host.insert(start as usize, lines);
        set(memory, start)
    })
}

extern "system" fn free_host(memory: *mut c_void) -> c_int {
    within("cuMemFreeHost", |s| s.host.remove(&(memory as usize)).map(drop).ok_or(1))
}

extern "system" fn copy_to_device(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> c_int {
    enqueue("cuMemcpyHtoDAsync_v2", stream, |s| {
        let from = from as usize;
        let locked = s.host.iter().any(|(at, lines)| (*at..=at + lines.len() * 256 - bytes).contains(&from));
        assert!(locked, "an upload from memory that is not page-locked");
        s.piece(to, bytes).map(|_| Work::Upload { to, from, bytes })
    })
}

extern "system" fn copy_to_host(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> c_int {
    enqueue("cuMemcpyDtoHAsync_v2", stream, |s| {
        s.piece(from, bytes).map(|_| Work::Read { to: to as usize, from, bytes })
    })
}

extern "system" fn copy_on_device(to: u64, from: u64, bytes: usize, stream: Handle) -> c_int {
    enqueue("cuMemcpyDtoDAsync_v2", stream, |s| {
        s.piece(from, bytes).and(s.piece(to, bytes)).map(|_| Work::Copy { to, from, bytes })
    })
}

#[rustfmt::skip]
extern "system" fn launch(
    kernel: Handle, gx: c_uint, gy: c_uint, gz: c_uint, tx: c_uint, ty: c_uint, tz: c_uint, shared: c_uint,
    stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void,
) -> c_int {
    enqueue("cuLaunchKernel", stream, |s| {
        let (name, signature) = s.kernels.get(kernel.0.addr().wrapping_sub(FIRST_KERNEL)).ok_or(400)?;
        let (grid, threads) = ([gx, gy, gz], [tx, ty, tz]);
        if shared != 0 || !extra.is_null() || gy.max(gz) > 65_535 || grid.iter().chain(&threads).any(|n| *n == 0) {
            return Err(1);
        }
        // SAFETY: as many parameters as the kernel declares, each as large as declared.
        let (buffers, args) = unsafe {
            let param = |i| *params.add(i);
            let buffers = (0..signature.buffers).map(|i| *param(i).cast::<u64>()).collect();
            let args = if signature.args == 0 { &[][..] } else {
                std::slice::from_raw_parts(param(signature.buffers).cast::<u8>(), signature.args)
            };
            (buffers, args.to_vec())
        };
        Ok(Work::Launch { kernel: name.clone(), grid, threads, buffers, args })
    })
}

#[rustfmt::skip]
const FUNCTIONS: Functions = Functions {
    init, error_name, error_string, device_count, device, device_name, device_attribute, device_memory, retain_context,
    release_context, push_context, pop_context, load_module, unload_module, function, create_stream, destroy_stream,
    synchronize, alloc, free, alloc_async, free_async, alloc_host, free_host, copy_to_device, copy_to_host,
    copy_on_device, launch,
};
