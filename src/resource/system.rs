//! What macOS, Windows and other systems say of cores and memory.

use super::ProcessMemory;
use super::host::Cores;

#[cfg(target_os = "macos")]
mod imp {
    use super::{Cores, ProcessMemory};
    use std::ffi::CStr;

    /// A number that the kernel publishes by name.
    fn sysctl(name: &CStr) -> Option<u64> {
        let mut value = [0u8; 8];
        let mut len = value.len();
        // SAFETY: `name` ends in NUL; `value` holds `len` bytes, of which the call writes at most as many and says how
        // many.
        let failed =
            unsafe { libc::sysctlbyname(name.as_ptr(), value.as_mut_ptr().cast(), &mut len, std::ptr::null_mut(), 0) };
        match (failed, len) {
            (0, 4) => Some(u64::from(u32::from_ne_bytes([value[0], value[1], value[2], value[3]]))),
            (0, 8) => Some(u64::from_ne_bytes(value)),
            _ => None,
        }
    }

    pub fn cores(usable: usize) -> Cores {
        let count = |name| sysctl(name).map(|n| n as usize).filter(|n| *n > 0);
        let (fast, slow) = (count(c"hw.perflevel0.physicalcpu"), count(c"hw.perflevel1.physicalcpu"));
        Cores {
            logical: count(c"hw.logicalcpu").unwrap_or(usable).max(usable),
            allowed: usable,
            physical: count(c"hw.physicalcpu").unwrap_or(usable).min(usable),
            performance: fast.filter(|_| slow.is_some()),
            efficiency: slow,
        }
    }

    pub fn memory() -> (Option<u64>, Option<u64>) {
        (sysctl(c"hw.memsize"), None)
    }

    pub fn process_memory() -> ProcessMemory {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is a whole rusage that the call fills; zeroed, it is one as well.
        let (failed, usage) = unsafe { (libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), usage.assume_init()) };
        let peak = u64::try_from(usage.ru_maxrss).ok().filter(|_| failed == 0);
        ProcessMemory { resident: None, peak }
    }
}

#[cfg(windows)]
mod imp {
    use super::super::processors;
    use super::{Cores, ProcessMemory};
    use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
    use windows_sys::Win32::System::SystemInformation::{
        GetLogicalProcessorInformationEx, GlobalMemoryStatusEx, MEMORYSTATUSEX, RelationProcessorCore,
    };
    use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessAffinityMask};

    pub fn cores(usable: usize) -> Cores {
        let unknown = Cores { logical: usable, allowed: usable, physical: usable, performance: None, efficiency: None };
        core_records().and_then(|records| processors::cores(&records, affinity())).unwrap_or(unknown)
    }

    /// What the system lists of cores.
    fn core_records() -> Option<Vec<u8>> {
        let mut len = 0;
        // SAFETY: without a buffer the call only says how long it has to be.
        unsafe { GetLogicalProcessorInformationEx(RelationProcessorCore, std::ptr::null_mut(), &mut len) };
        // Records hold words of eight bytes.
        let mut words = vec![0u64; (len as usize).div_ceil(8)];
        // SAFETY: the buffer has at least `len` bytes, aligned as the records are; the call says how many it wrote.
        let done =
            unsafe { GetLogicalProcessorInformationEx(RelationProcessorCore, words.as_mut_ptr().cast(), &mut len) };
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take(len as usize);
        (done != 0).then(|| bytes.collect())
    }

    /// The processors of its group that this process may run on; 0 where that is not known.
    fn affinity() -> u64 {
        let (mut process, mut system) = (0, 0);
        // SAFETY: both masks are this function's own; the pseudo handle needs no closing.
        let done = unsafe { GetProcessAffinityMask(GetCurrentProcess(), &mut process, &mut system) };
        if done != 0 { process as u64 } else { 0 }
    }

    pub fn memory() -> (Option<u64>, Option<u64>) {
        let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..MEMORYSTATUSEX::default() };
        // SAFETY: `status` is a whole structure that states its size.
        let done = unsafe { GlobalMemoryStatusEx(&mut status) } != 0;
        (done.then_some(status.ullTotalPhys), done.then_some(status.ullAvailPhys))
    }

    pub fn process_memory() -> ProcessMemory {
        let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
        let mut counters = PROCESS_MEMORY_COUNTERS { cb: size, ..PROCESS_MEMORY_COUNTERS::default() };
        // SAFETY: `counters` is a whole structure of the size that is passed; the pseudo handle needs no closing.
        let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &mut counters, size) } != 0;
        ProcessMemory {
            resident: done.then_some(counters.WorkingSetSize as u64),
            peak: done.then_some(counters.PeakWorkingSetSize as u64),
        }
    }
}

#[cfg(not(any(target_os = "macos", windows)))]
mod imp {
    use super::{Cores, ProcessMemory};

    pub fn cores(usable: usize) -> Cores {
        Cores { logical: usable, allowed: usable, physical: usable, performance: None, efficiency: None }
    }

    pub fn memory() -> (Option<u64>, Option<u64>) {
        (None, None)
    }

    pub fn process_memory() -> ProcessMemory {
        ProcessMemory::default()
    }
}

pub(super) use imp::{cores, memory, process_memory};
