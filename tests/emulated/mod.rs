//! A GPU that is none: the device trait over host memory and the emulator, which runs the very kernels.
#![allow(dead_code)] // each test binary uses its own part

mod record;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use kin_infer::gpu::device::{Binding, Device, DeviceError, DeviceInfo, DeviceResult, Launch, Memory};
use kin_infer::gpu::{DeviceCompute, GpuBackend};
pub use kin_infer_emulator::{AVAILABLE, Order};

/// The orders of threads that tests run kernels in.
pub const ORDERS: [Order; 3] = [Order::Ascending, Order::Descending, Order::Shuffled(7)];

/// Where there is no emulator: says that `test` is skipped, or fails when `KIN_INFER_REQUIRE_EMULATOR` demands it.
pub fn available(test: &str) -> bool {
    let required = std::env::var("KIN_INFER_REQUIRE_EMULATOR").is_ok_and(|v| v == "1");
    assert!(AVAILABLE || !required, "KIN_INFER_REQUIRE_EMULATOR=1 and this build cannot run GPU kernels");
    if !AVAILABLE {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "1 skipped: {test}: this build cannot run GPU kernels");
    }
    AVAILABLE
}

/// Bytes before and after each piece of memory that nothing may touch.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

#[repr(align(256))]
#[derive(Clone, Copy)]
struct Line([u8; 256]);

/// Host memory that kernels write through pointers, between guards.
struct Host {
    lines: UnsafeCell<Box<[Line]>>,
    bytes: usize,
    live: Arc<Live>,
}

// SAFETY: the device's calls access it one after another, under `Emulated::turn`.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    /// Memory of a value that shows when it is used: a NaN in f32, a number beyond every table in u32.
    fn new(bytes: usize, live: &Arc<Live>) -> Self {
        let lines = vec![Line([0xff; 256]); (bytes + 2 * GUARD).div_ceil(256)].into_boxed_slice();
        let host = Self { lines: UnsafeCell::new(lines), bytes, live: Arc::clone(live) };
        let whole = host.whole();
        whole[..GUARD].fill(GUARD_BYTE);
        whole[GUARD + bytes..].fill(GUARD_BYTE);
        live.pieces.fetch_add(1, SeqCst);
        live.bytes.fetch_add(bytes, SeqCst);
        host
    }

    #[allow(clippy::mut_from_ref)] // the calls of a device take turns
    fn whole(&self) -> &mut [u8] {
        // SAFETY: the lines are alive, and every byte pattern is a value.
        unsafe {
            let lines = &mut *self.lines.get();
            std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(&**lines))
        }
    }

    fn pointer(&self, offset: usize) -> *mut u8 {
        self.whole()[GUARD + offset..].as_mut_ptr()
    }

    fn check_guards(&self) {
        let whole = self.whole();
        let intact = |part: &[u8]| part.iter().all(|b| *b == GUARD_BYTE);
        let (before, after) = (intact(&whole[..GUARD]), intact(&whole[GUARD + self.bytes..]));
        assert!(before && after, "a kernel wrote outside {} bytes of memory", self.bytes);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.live.pieces.fetch_sub(1, SeqCst);
        self.live.bytes.fetch_sub(self.bytes, SeqCst);
        if !std::thread::panicking() {
            self.check_guards();
        }
    }
}

/// What is allocated.
#[derive(Default)]
pub struct Live {
    pub pieces: AtomicUsize,
    pub bytes: AtomicUsize,
}

/// Which call fails, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Allocations past so many live bytes.
    MemoryOf(usize),
    /// The n-th allocation from now.
    Alloc(usize),
    /// The n-th launch from now, refused.
    Launch(usize),
    /// The n-th launch from now fails after it was enqueued: the device is lost.
    LaunchLater(usize),
    /// The n-th read from now.
    Read(usize),
    /// The n-th upload from now.
    Upload(usize),
    /// The n-th copy from now.
    Copy(usize),
}

#[derive(Default)]
struct Calls {
    fault: Option<Fault>,
    count: usize,
    happened: bool,
    lost: bool,
}

/// The emulated device.
pub struct Emulated {
    order: Order,
    units: u32,
    pub live: Arc<Live>,
    calls: Mutex<Calls>,
    /// Held by the call that accesses memory.
    turn: Mutex<()>,
    pub launches: AtomicUsize,
    /// Bytes that were read.
    pub read: AtomicUsize,
}

impl Emulated {
    /// Threads run in this order; `units` as in `DeviceInfo`.
    pub fn new(order: Order, units: u32) -> Self {
        Self {
            order,
            units,
            live: Arc::default(),
            calls: Mutex::default(),
            turn: Mutex::default(),
            launches: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        }
    }

    /// From now on, this fails.
    pub fn fail(&self, fault: Option<Fault>) {
        *self.calls.lock().unwrap() = Calls { fault, ..Calls::default() };
    }

    /// Whether the fault happened.
    pub fn failed(&self) -> bool {
        self.calls.lock().unwrap().happened
    }

    /// Whether this call fails: `of` gives n of the fault that concerns it.
    fn fails(&self, operation: &str, of: impl Fn(Fault) -> Option<usize>) -> DeviceResult<bool> {
        let mut calls = self.calls.lock().unwrap();
        if calls.lost {
            let detail = "injected earlier".to_string();
            return Err(DeviceError::Lost { operation: operation.to_string(), detail });
        }
        let Some(nth) = calls.fault.and_then(of) else { return Ok(false) };
        calls.count += 1;
        calls.happened |= calls.count == nth + 1;
        Ok(calls.count == nth + 1)
    }

    fn refuse(&self, operation: &str, of: impl Fn(Fault) -> Option<usize>) -> DeviceResult<()> {
        match self.fails(operation, of)? {
            true => Err(DeviceError::Refused { operation: operation.to_string(), detail: "injected".to_string() }),
            false => Ok(()),
        }
    }

    /// Of this device, the memory in which `bytes` bytes are bound.
    fn host<'a>(&self, at: Binding<'a>, bytes: usize) -> DeviceResult<&'a Host> {
        let host = at.memory.storage::<Host>()?;
        if !Arc::ptr_eq(&host.live, &self.live) {
            return Err(DeviceError::foreign());
        }
        at.memory.range(at.offset, bytes)?;
        Ok(host)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Device for Emulated {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            backend: GpuBackend::Cuda,
            name: "emulated".to_string(),
            detail: format!("{:?}", self.order),
            memory: 1 << 30,
            units: self.units,
            // A small device's cache holds the scores of a few tiles, of some not of all heads.
            cache: if self.units == 1 { 8192 } else { 1 << 25 },
        }
    }

    fn alloc(&self, bytes: usize) -> DeviceResult<Memory> {
        assert!(bytes > 0);
        let fault = self.calls.lock().unwrap().fault;
        let full = matches!(fault, Some(Fault::MemoryOf(limit)) if self.live.bytes.load(SeqCst) + bytes > limit);
        let failed = self.fails("alloc", |f| if let Fault::Alloc(n) = f { Some(n) } else { None })?;
        // A size that no memory has: refused like any other, not asked of the host.
        if full || failed || bytes > 1 << 32 {
            return Err(DeviceError::OutOfMemory { bytes });
        }
        Ok(Memory::new(bytes, Host::new(bytes, &self.live)))
    }

    fn upload(&self, memory: &Memory, offset: usize, bytes: &[u8]) -> DeviceResult<()> {
        assert!(!bytes.is_empty());
        let host = self.host(Binding { memory, offset }, bytes.len())?;
        self.refuse("upload", |f| if let Fault::Upload(n) = f { Some(n) } else { None })?;
        let _turn = self.turn();
        host.whole()[GUARD + offset..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, memory: &Memory, offset: usize, out: &mut [u8]) -> DeviceResult<()> {
        assert!(!out.is_empty());
        let host = self.host(Binding { memory, offset }, out.len())?;
        self.refuse("read", |f| if let Fault::Read(n) = f { Some(n) } else { None })?;
        let _turn = self.turn();
        host.check_guards();
        self.read.fetch_add(out.len(), SeqCst);
        out.copy_from_slice(&host.whole()[GUARD + offset..][..out.len()]);
        Ok(())
    }

    fn copy(&self, from: Binding, to: Binding, bytes: usize) -> DeviceResult<()> {
        assert!(bytes > 0);
        let (source, target) = (self.host(from, bytes)?, self.host(to, bytes)?);
        self.refuse("copy", |f| if let Fault::Copy(n) = f { Some(n) } else { None })?;
        let _turn = self.turn();
        let copied = source.whole()[GUARD + from.offset..][..bytes].to_vec();
        target.whole()[GUARD + to.offset..][..bytes].copy_from_slice(&copied);
        Ok(())
    }

    unsafe fn launch(&self, l: &Launch) -> DeviceResult<()> {
        self.launches.fetch_add(1, SeqCst);
        assert!(l.grid.iter().chain(&l.threads).all(|n| *n > 0) && l.args.len() <= 256, "{}", l.kernel);
        assert!(l.buffers.iter().all(|b| b.offset % 4 == 0), "{}", l.kernel);
        let hosts = l.buffers.iter().map(|b| self.host(*b, 4)).collect::<DeviceResult<Vec<_>>>()?;
        self.refuse(l.kernel, |f| if let Fault::Launch(n) = f { Some(n) } else { None })?;
        if self.fails(l.kernel, |f| if let Fault::LaunchLater(n) = f { Some(n) } else { None })? {
            self.calls.lock().unwrap().lost = true;
            return Ok(());
        }
        let _turn = self.turn();
        record::record(l, || {
            let bound = hosts.iter().zip(l.buffers);
            bound.map(|(host, b)| &host.whole()[GUARD + b.offset..GUARD + host.bytes] as &[u8]).collect()
        });
        let buffers: Vec<*mut u8> = hosts.iter().zip(l.buffers).map(|(host, b)| host.pointer(b.offset)).collect();
        // SAFETY: the caller promises buffers as large as the kernel's arguments say; guards tell where they are not.
        let ran = unsafe { kin_infer_emulator::launch(l.kernel, l.grid, l.threads, &buffers, l.args, self.order) };
        ran.map_err(|refused| DeviceError::Refused { operation: l.kernel.to_string(), detail: format!("{refused:?}") })
    }
}

/// A backend over an emulated device; memory is of exactly the size that is used, so that the guards see every step
/// beyond.
pub fn backend(order: Order, units: u32) -> DeviceCompute {
    DeviceCompute::with_pool(Arc::new(Emulated::new(order, units)), 0)
}
