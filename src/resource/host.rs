//! [`HostInfo`]: the CPUs of the machine, and how many of them this process may use.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Resolved;
use super::cgroup::{CgroupLimits, Read, cpu_list};
use crate::cpu::CpuCompute;
use crate::error::Result;
use crate::gpu::GpuCompute;

/// The CPUs of the machine, and what of them this process may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// The instruction set of the kernels.
    pub isa: Resolved<String>,
    /// The instruction set of the integer kernels, for quantised weights.
    pub integer_isa: String,
    /// What multiplies matrices: `pure-rust`, or a library.
    pub products: String,
    /// Whether the CPU's results are the bits that docs/numerics.md states.
    pub exact: bool,
    /// CPUs of the machine, as the system schedules them.
    pub logical_cores: usize,
    /// Those this process may run on.
    pub allowed_cores: usize,
    /// Cores behind the allowed ones: threads of one core share its arithmetic.
    pub physical_cores: usize,
    /// Of the physical cores the fast ones, on machines that have two kinds.
    pub performance_cores: Option<usize>,
    /// And the slow ones.
    pub efficiency_cores: Option<usize>,
    /// What control groups allow.
    pub cgroup: CgroupLimits,
    /// Threads that compute fastest here.
    pub threads: Resolved<usize>,
}

/// The CPUs of a machine, as far as its system tells.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Cores {
    pub logical: usize,
    pub allowed: usize,
    pub physical: usize,
    pub performance: Option<usize>,
    pub efficiency: Option<usize>,
}

/// The host this process runs on.
///
/// # Errors
/// When `KIN_INFER_CPU_ISA` names an instruction set that this CPU or build lacks.
pub fn detect_host() -> Result<HostInfo> {
    let kernels = crate::cpu::selected()?;
    let best = crate::cpu::available()[0].name();
    let reason = match crate::env::cpu_isa() {
        Some(_) => "pinned by KIN_INFER_CPU_ISA",
        None => "the widest this CPU and build have",
    };
    let kernels = Kernels {
        isa: Resolved::new(kernels.name().to_string(), reason).from("widest", best),
        integers: crate::cpu::quant_for(kernels).name().to_string(),
        products: crate::cpu::products()?.to_string(),
        exact: CpuCompute::new()?.is_exact(),
    };
    let (cores, cgroup) = detect_cores();
    Ok(host_info(kernels, cores, cgroup))
}

/// What computes on the CPU.
pub(super) struct Kernels {
    pub isa: Resolved<String>,
    pub integers: String,
    pub products: String,
    pub exact: bool,
}

#[cfg(target_os = "linux")]
fn detect_cores() -> (Cores, CgroupLimits) {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let cgroup = super::cgroup::limits(&read);
    (cores(&read, usable(), cgroup.cpuset.as_deref()), cgroup)
}

#[cfg(not(target_os = "linux"))]
fn detect_cores() -> (Cores, CgroupLimits) {
    (super::system::cores(usable()), CgroupLimits::default())
}

/// CPUs the scheduler gives this process, as the standard library sees it.
fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What the facts come to.
pub(super) fn host_info(kernels: Kernels, cores: Cores, cgroup: CgroupLimits) -> HostInfo {
    let (fast, why) = match cores.performance {
        Some(fast) => (fast, "one a performance core: slower cores would keep the others waiting"),
        None => (cores.physical, "one a physical core: threads of one core share its arithmetic"),
    };
    let whole_quota = cgroup.cpu_quota.map(|quota| (quota.floor() as usize).max(1));
    let (threads, why) = match whole_quota.filter(|quota| *quota < fast) {
        Some(quota) => (quota, "the control group's CPU quota: more threads would be stopped in every period"),
        None => (fast.max(1), why),
    };
    let mut threads = Resolved::new(threads, why).from("physical_cores", cores.physical);
    if let Some(fast) = cores.performance {
        threads = threads.from("performance_cores", fast);
    }
    if let Some(quota) = cgroup.cpu_quota {
        threads = threads.from("cpu_quota", quota);
    }
    HostInfo {
        isa: kernels.isa,
        integer_isa: kernels.integers,
        products: kernels.products,
        exact: kernels.exact,
        logical_cores: cores.logical,
        allowed_cores: cores.allowed,
        physical_cores: cores.physical,
        performance_cores: cores.performance,
        efficiency_cores: cores.efficiency,
        cgroup,
        threads,
    }
}

/// The CPUs of a Linux machine, from /proc and /sys, and of them those of the control group; `usable` where nothing is
/// said.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(super) fn cores(read: &Read, usable: usize, cpuset: Option<&[u32]>) -> Cores {
    let list = |path: &str| read(path).and_then(|text| cpu_list(&text)).filter(|cpus| !cpus.is_empty());
    let online = list("/sys/devices/system/cpu/online");
    let logical = online.as_ref().map(Vec::len).or_else(|| processors(&read("/proc/cpuinfo")?)).unwrap_or(usable);
    let may = read("/proc/self/status").and_then(|status| allowed(&status));
    let lists = [may.as_deref(), online.as_deref(), cpuset].into_iter().flatten();
    let common = |all: Vec<u32>, list: &[u32]| all.into_iter().filter(|cpu| list.contains(cpu)).collect();
    let cpus = lists.map(<[u32]>::to_vec).reduce(|all, list| common(all, &list)).unwrap_or_default();
    if cpus.is_empty() {
        return Cores { logical, allowed: usable, physical: usable, performance: None, efficiency: None };
    }
    let physical = |cpus: &[u32]| {
        let siblings = |cpu: &u32| read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        let sets: Option<BTreeSet<Vec<u32>>> = cpus.iter().map(|cpu| cpu_list(&siblings(cpu)?)).collect();
        sets.map_or(cpus.len(), |sets| sets.len())
    };
    let kinds = kinds(read, &cpus).map(|(fast, slow)| (physical(&fast), physical(&slow)));
    Cores {
        logical: logical.max(cpus.len()),
        allowed: cpus.len(),
        physical: physical(&cpus),
        performance: kinds.map(|k| k.0),
        efficiency: kinds.map(|k| k.1),
    }
}

/// Number of processors that /proc/cpuinfo lists.
fn processors(cpuinfo: &str) -> Option<usize> {
    let count =
        cpuinfo.lines().filter(|line| line.split(':').next().is_some_and(|key| key.trim() == "processor")).count();
    (count > 0).then_some(count)
}

/// The CPUs that a /proc status allows.
fn allowed(status: &str) -> Option<Vec<u32>> {
    cpu_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// The fast and the slow CPUs, where there are both: Intel's two kinds, or capacities (of 1024) that differ by more than
/// a tenth of the largest.
fn kinds(read: &Read, cpus: &[u32]) -> Option<(Vec<u32>, Vec<u32>)> {
    let list = |path: &str| cpu_list(&read(path)?);
    let slow: Vec<u32> = match (list("/sys/devices/cpu_core/cpus"), list("/sys/devices/cpu_atom/cpus")) {
        (Some(_), Some(atoms)) => atoms,
        _ => {
            let capacity =
                |cpu: &u32| read(&format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity"))?.trim().parse::<u64>().ok();
            let capacities: Vec<u64> = cpus.iter().map(capacity).collect::<Option<_>>()?;
            let largest = capacities.iter().copied().max()?;
            let is_slow = |capacity: u64| capacity.saturating_mul(10) < largest.saturating_mul(9);
            cpus.iter().zip(capacities).filter(|(_, capacity)| is_slow(*capacity)).map(|(cpu, _)| *cpu).collect()
        }
    };
    let (slow, fast): (Vec<u32>, Vec<u32>) = cpus.iter().partition(|cpu| slow.contains(cpu));
    (!slow.is_empty() && !fast.is_empty()).then_some((fast, slow))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores_of(files: &[(String, &str)]) -> Cores {
        cores_within(files, None)
    }

    fn cores_within(files: &[(String, &str)], cpuset: Option<&[u32]>) -> Cores {
        cores(&|path| files.iter().find(|(name, _)| name == path).map(|(_, text)| text.to_string()), 5, cpuset)
    }

    fn kernels() -> Kernels {
        let (isa, name) = (Resolved::new("avx2".to_string(), ""), || "avx2".to_string());
        Kernels { isa, integers: name(), products: name(), exact: true }
    }

    fn file(path: &str, text: &'static str) -> (String, &'static str) {
        (path.to_string(), text)
    }

    fn sibling(cpu: u32, list: &'static str) -> (String, &'static str) {
        (format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), list)
    }

    #[test]
    fn threads_of_a_core_count_once_and_only_the_allowed_count() {
        let mut files = vec![
            file("/sys/devices/system/cpu/online", "0-7\n"),
            file("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-2,4,9\n"),
        ];
        files.extend([sibling(0, "0,4"), sibling(1, "1,5"), sibling(2, "2,6"), sibling(4, "0,4")]);
        let expected = Cores { logical: 8, allowed: 4, physical: 3, performance: None, efficiency: None };
        assert_eq!(cores_of(&files), expected);
        let expected = Cores { allowed: 2, physical: 1, ..expected };
        assert_eq!(cores_within(&files, Some(&[0, 4, 5])), expected, "no more than the control group has");
        assert_eq!(cores_within(&files[..1], Some(&[6, 7, 8])).allowed, 2);
        assert_eq!(cores_within(&[], Some(&[0, 3])).allowed, 2, "where only the control group tells");
    }

    #[test]
    fn intels_kinds_of_cores() {
        let mut files = vec![
            file("/sys/devices/system/cpu/online", "0-5"),
            file("/sys/devices/cpu_core/cpus", "0-3"),
            file("/sys/devices/cpu_atom/cpus", "4-5"),
        ];
        files.extend([sibling(0, "0-1"), sibling(1, "0-1"), sibling(2, "2-3"), sibling(3, "2-3")]);
        files.extend([sibling(4, "4"), sibling(5, "5")]);
        let expected = Cores { logical: 6, allowed: 6, physical: 4, performance: Some(2), efficiency: Some(2) };
        assert_eq!(cores_of(&files), expected);
        let host = host_info(kernels(), cores_of(&files), CgroupLimits::default());
        assert_eq!(host.threads.value, 2);
        assert!(host.threads.reason.contains("performance core"), "{}", host.threads);
        // Bound to slow cores, there is one kind.
        files.push(file("/proc/self/status", "Cpus_allowed_list: 4-5"));
        assert_eq!(cores_of(&files).performance, None);
        assert_eq!(cores_of(&files).physical, 2);
    }

    #[test]
    fn capacities_of_arm_tell_kinds_and_small_differences_do_not() {
        let capacity =
            |cpu: u32, value: &'static str| (format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), value);
        let mut files = vec![file("/sys/devices/system/cpu/online", "0-3")];
        files.extend([capacity(0, "446\n"), capacity(1, "446\n"), capacity(2, "1024\n"), capacity(3, "1024\n")]);
        assert_eq!((cores_of(&files).performance, cores_of(&files).efficiency), (Some(2), Some(2)));
        files.truncate(1);
        files.extend([capacity(0, "1000"), capacity(1, "1024"), capacity(2, "1024"), capacity(3, "990")]);
        assert_eq!(cores_of(&files).performance, None);
    }

    #[test]
    fn absent_files_leave_what_the_scheduler_says() {
        let unknown = Cores { logical: 5, allowed: 5, physical: 5, performance: None, efficiency: None };
        assert_eq!(cores_of(&[]), unknown);
        let listed = cores_of(&[file("/proc/cpuinfo", "processor\t: 0\nflags: x\n\nprocessor\t: 1\n")]);
        assert_eq!(listed, Cores { logical: 2, ..unknown.clone() });
        let nonsense = [
            file("/sys/devices/system/cpu/online", "all of them"),
            file("/proc/self/status", "Cpus_allowed_list:\tnone\n"),
            file("/proc/cpuinfo", "no processors here\n"),
        ];
        assert_eq!(cores_of(&nonsense), unknown);
        // Without sibling lists each CPU counts as a core.
        assert_eq!(cores_of(&[file("/sys/devices/system/cpu/online", "0-3")]).physical, 4);
    }

    #[test]
    fn a_quota_bounds_the_threads() {
        let cores = Cores { logical: 16, allowed: 16, physical: 8, performance: None, efficiency: None };
        let threads = |quota: Option<f64>| {
            let cgroup = CgroupLimits { cpu_quota: quota, ..CgroupLimits::default() };
            host_info(kernels(), cores.clone(), cgroup).threads
        };
        assert_eq!(threads(None).value, 8);
        assert_eq!(threads(Some(2.9)).value, 2);
        assert_eq!(threads(Some(0.5)).value, 1);
        assert_eq!(threads(Some(64.0)).value, 8);
        assert_eq!(threads(Some(2.9)).inputs["cpu_quota"], 2.9);
        assert!(threads(Some(2.9)).reason.contains("quota"));
    }

    #[test]
    fn this_host_has_cores() {
        let host = detect_host().unwrap();
        assert!(host.physical_cores >= 1 && host.physical_cores <= host.allowed_cores);
        assert!(host.allowed_cores <= host.logical_cores);
        assert!(host.threads.value >= 1 && host.threads.value <= host.physical_cores);
    }
}
