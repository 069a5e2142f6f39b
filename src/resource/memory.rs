//! [`MemoryInfo`]: the memory of the machine, and what this process takes and may take of it.

use serde::{Deserialize, Serialize};

use super::Resolved;
use super::cgroup::CgroupLimits;

/// The memory of the machine, and what of it this process may take. Bytes; none where the system does not say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// Of the machine.
    pub total: Option<u64>,
    /// What can be had without swapping.
    pub available: Option<u64>,
    /// The control group's limit.
    pub cgroup_limit: Option<u64>,
    /// What the control group takes, without what can be dropped.
    pub cgroup_used: Option<u64>,
    /// What this process takes and took at most.
    pub process: ProcessMemory,
    /// What this process may take in all: RSS, as `ps` shows it.
    pub rss_cap: Resolved<Option<u64>>,
}

/// Memory of this process, in bytes; none where the system does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Pages in memory now.
    pub resident: Option<u64>,
    /// The most pages that were in memory at once.
    pub peak: Option<u64>,
}

/// The memory that can be had here.
pub fn detect_memory() -> MemoryInfo {
    let (total, available, cgroup) = system();
    memory_info(total, available, &cgroup, process_memory())
}

#[cfg(target_os = "linux")]
fn system() -> (Option<u64>, Option<u64>, CgroupLimits) {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    (kilobytes(&meminfo, "MemTotal"), kilobytes(&meminfo, "MemAvailable"), super::cgroup::limits(&read))
}

#[cfg(not(target_os = "linux"))]
fn system() -> (Option<u64>, Option<u64>, CgroupLimits) {
    let (total, available) = super::system::memory();
    (total, available, CgroupLimits::default())
}

/// What this process takes now, and took at most.
pub fn process_memory() -> ProcessMemory {
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        ProcessMemory { resident: kilobytes(&status, "VmRSS"), peak: kilobytes(&status, "VmHWM") }
    }
    #[cfg(not(target_os = "linux"))]
    super::system::process_memory()
}

/// A field of a /proc file in bytes: `MemTotal:  1234 kB`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the facts come to.
pub(super) fn memory_info(
    total: Option<u64>,
    available: Option<u64>,
    cgroup: &CgroupLimits,
    process: ProcessMemory,
) -> MemoryInfo {
    let own = process.resident.unwrap_or(0);
    let free = available.or(total);
    let room = cgroup.memory_limit.map(|limit| limit.saturating_sub(cgroup.memory_used.unwrap_or(own)));
    let (cap, reason) = match (free, room) {
        (Some(free), Some(room)) if room < free => (Some(room), "what the control group's limit leaves"),
        (Some(free), _) if available.is_some() => (Some(free), "what the system has available"),
        (Some(total), _) => (Some(total), "the machine's memory: what of it is available is not known here"),
        (None, Some(room)) => (Some(room), "what the control group's limit leaves"),
        (None, None) => (None, "unknown on this system: nothing is bounded by it"),
    };
    // What the process takes already is not part of what is available.
    let whole = cap.map(|cap| cap.saturating_add(own).min(total.unwrap_or(u64::MAX)));
    let rss_cap = Resolved::new(whole, format!("{reason}, and what this process takes"))
        .from("total_bytes", total)
        .from("available_bytes", available)
        .from("cgroup_limit_bytes", cgroup.memory_limit)
        .from("cgroup_used_bytes", cgroup.memory_used)
        .from("resident_bytes", process.resident);
    MemoryInfo {
        total,
        available,
        cgroup_limit: cgroup.memory_limit,
        cgroup_used: cgroup.memory_used,
        process,
        rss_cap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_bytes() {
        let text =
            "MemTotal:       16311772 kB\nMemAvailableX: 3 kB\nMemAvailable:    9000 kB\nHugePages_Total:       0\n";
        assert_eq!(kilobytes(text, "MemTotal"), Some(16_311_772 * 1024));
        assert_eq!(kilobytes(text, "MemAvailable"), Some(9000 * 1024));
        assert_eq!(kilobytes(text, "HugePages_Total"), None);
        for nonsense in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 18446744073709551615 kB", "MemTotal 3 kB"] {
            assert_eq!(kilobytes(nonsense, "MemTotal"), None, "{nonsense:?}");
        }
    }

    #[test]
    fn the_tightest_bound_counts() {
        let process = ProcessMemory { resident: Some(10), peak: Some(20) };
        let cap = |total, available, limit, used| {
            let cgroup = CgroupLimits { memory_limit: limit, memory_used: used, ..CgroupLimits::default() };
            memory_info(total, available, &cgroup, process).rss_cap
        };
        assert_eq!(cap(Some(1000), Some(400), None, None).value, Some(410));
        assert_eq!(cap(Some(1000), Some(400), Some(300), Some(50)).value, Some(260));
        assert!(cap(Some(1000), Some(400), Some(300), Some(50)).reason.contains("control group"));
        assert_eq!(cap(Some(1000), Some(400), Some(600), Some(50)).value, Some(410));
        assert_eq!(cap(Some(1000), Some(400), Some(30), Some(50)).value, Some(10), "full: no more than it has");
        assert_eq!(cap(Some(1000), None, None, None).value, Some(1000));
        assert_eq!(cap(None, None, Some(300), None).value, Some(300));
        assert_eq!(cap(None, None, None, None).value, None);
        assert_eq!(cap(Some(1000), Some(400), None, None).inputs["available_bytes"], 400);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_takes_memory() {
        let memory = detect_memory();
        let (resident, peak) = (memory.process.resident.unwrap(), memory.process.peak.unwrap());
        assert!(resident > 1 << 20 && resident <= peak);
        assert!(memory.rss_cap.value.unwrap() >= resident);
        assert!(memory.total.unwrap() >= memory.available.unwrap());
    }
}
