//! What control groups allow a process on Linux, versions 1 and 2, from the text of their files.
//!
//! A limit holds for a group and all groups below it, so the tightest on the way up to the mount counts: of memory the
//! one that leaves the least.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))] // other systems have none of these files

use serde::{Deserialize, Serialize};

/// Reads a file, if it is there.
pub(super) type Read<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The limits of a process's control groups.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// CPU time a second, in CPUs.
    pub cpu_quota: Option<f64>,
    /// The CPUs it may use.
    pub cpuset: Option<Vec<u32>>,
    /// Bytes of memory, of the group whose limit leaves the least.
    pub memory_limit: Option<u64>,
    /// Bytes that this group takes, without file pages that can be dropped.
    pub memory_used: Option<u64>,
}

/// No limit of memory is this large; version 1 writes 2^63 - 4096 for none.
const UNLIMITED: u64 = 1 << 60;

/// The limits that the files of `/proc/self` and of the mounted hierarchies state.
pub(super) fn limits(read: &Read) -> CgroupLimits {
    let (groups, mounts) =
        (read("/proc/self/cgroup").unwrap_or_default(), read("/proc/self/mountinfo").unwrap_or_default());
    let up = |controller: &str| Hierarchy::find(&groups, &mounts, controller).map(|h| h.groups()).unwrap_or_default();
    let (cpu, memory) = (up("cpu"), up("memory"));
    let quotas = cpu.iter().filter_map(|group| quota(read, group));
    // Others in a group above may leave less of a larger limit.
    let limited = memory.iter().filter_map(|group| Some((memory_limit(read, group)?, memory_used(read, group))));
    let tightest = limited.min_by_key(|(limit, used)| limit.saturating_sub(used.unwrap_or(0)));
    CgroupLimits {
        cpu_quota: quotas.min_by(f64::total_cmp),
        cpuset: up("cpuset").iter().find_map(|group| cpuset(read, group)),
        memory_limit: tightest.map(|(limit, _)| limit),
        memory_used: tightest.and_then(|(_, used)| used),
    }
}

/// Where a controller's files lie for this process.
#[derive(Debug, PartialEq)]
struct Hierarchy {
    /// The mount point.
    mount: String,
    /// The process's group below it, without slashes at the ends.
    path: String,
}

impl Hierarchy {
    /// The hierarchy that holds `controller`: one of version 1 that names it, else that of version 2.
    fn find(groups: &str, mounts: &str, controller: &str) -> Option<Self> {
        let fields = |line: &str| -> Option<(String, String)> {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            Some((controllers.to_string(), path.to_string()))
        };
        let of = |wanted: &dyn Fn(&str) -> bool| {
            groups.lines().filter_map(fields).find(|(controllers, _)| wanted(controllers)).map(|(_, path)| path)
        };
        let named = |controllers: &str| controllers.split(',').any(|c| c == controller);
        let (path, (mount, root)) = match (of(&named), mount_of(mounts, Some(controller))) {
            (Some(path), Some(mount)) => (path, mount),
            _ => (of(&str::is_empty)?, mount_of(mounts, None)?),
        };
        // In a container the mount may show the group itself: its root is then the path's beginning.
        let inside = if root == "/" { Some(path.as_str()) } else { path.strip_prefix(root.as_str()) };
        let inside = inside.filter(|p| p.is_empty() || p.starts_with('/')).unwrap_or("");
        let climbs = inside.split('/').any(|part| part == "..");
        Some(Self { mount, path: if climbs { String::new() } else { inside.trim_matches('/').to_string() } })
    }

    /// The process's group and those above it, as folders.
    fn groups(&self) -> Vec<String> {
        let mut path = self.path.as_str();
        let mut found = Vec::new();
        while !path.is_empty() {
            found.push(format!("{}/{path}", self.mount));
            path = path.rsplit_once('/').map_or("", |(above, _)| above);
        }
        found.push(self.mount.clone());
        found
    }
}

/// The mount point of a version 1 controller, or of version 2, and the folder of the hierarchy that it shows.
fn mount_of(mounts: &str, controller: Option<&str>) -> Option<(String, String)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let (mut before, mut after) = (before.split(' '), after.split(' '));
        let (root, point) = (before.nth(3)?, before.next()?);
        let (kind, options) = (after.next()?, after.nth(1).unwrap_or(""));
        let fits = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        fits.then(|| (point.trim_end_matches('/').to_string(), root.to_string()))
    })
}

/// CPUs a second that a group allows: `cpu.max` of version 2, `cpu.cfs_quota_us` of version 1.
fn quota(read: &Read, group: &str) -> Option<f64> {
    let ratio = |quota: &str, period: &str| -> Option<f64> {
        let (quota, period) = (quota.trim().parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
        (quota > 0.0 && period > 0.0 && (quota / period).is_finite()).then_some(quota / period)
    };
    if let Some(max) = read(&format!("{group}/cpu.max")) {
        let (quota, period) = max.trim().split_once(' ')?;
        return ratio(quota, period);
    }
    ratio(&read(&format!("{group}/cpu.cfs_quota_us"))?, &read(&format!("{group}/cpu.cfs_period_us"))?)
}

fn memory_limit(read: &Read, group: &str) -> Option<u64> {
    let number = |name: &str| read(&format!("{group}/{name}"))?.trim().parse::<u64>().ok();
    number("memory.max").or_else(|| number("memory.limit_in_bytes")).filter(|limit| *limit < UNLIMITED)
}

/// What a group takes, without the file pages that were not used lately.
fn memory_used(read: &Read, group: &str) -> Option<u64> {
    let number = |name: &str| read(&format!("{group}/{name}"))?.trim().parse::<u64>().ok();
    let taken = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = read(&format!("{group}/memory.stat")).unwrap_or_default();
    let field =
        |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok());
    let droppable = field("total_inactive_file").or_else(|| field("inactive_file")).unwrap_or(0);
    Some(taken.saturating_sub(droppable))
}

fn cpuset(read: &Read, group: &str) -> Option<Vec<u32>> {
    let names = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];
    let found = names.iter().find_map(|name| read(&format!("{group}/{name}")));
    found.and_then(|text| cpu_list(&text)).filter(|cpus| !cpus.is_empty())
}

/// Numbers of a list such as `0-3,8`, ascending.
pub(super) fn cpu_list(text: &str) -> Option<Vec<u32>> {
    /// No machine has more CPUs.
    const MOST: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits_of(files: &[(&str, &str)]) -> CgroupLimits {
        limits(&|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.to_string()))
    }

    const V2_MOUNT: (&str, &str) =
        ("/proc/self/mountinfo", "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");

    #[test]
    fn version_2_takes_the_tightest_on_the_way_up() {
        let found = limits_of(&[
            ("/proc/self/cgroup", "0::/user.slice/job.scope\n"),
            V2_MOUNT,
            ("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/user.slice/job.scope/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "500000000\n"),
            ("/sys/fs/cgroup/user.slice/memory.stat", "anon 1\ninactive_file 100000000\n"),
            ("/sys/fs/cgroup/user.slice/job.scope/cpuset.cpus.effective", "0-1,4\n"),
        ]);
        let expected = CgroupLimits {
            cpu_quota: Some(1.5),
            cpuset: Some(vec![0, 1, 4]),
            memory_limit: Some(1 << 30),
            memory_used: Some(400_000_000),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_memory_that_is_left_counts_and_not_the_limit() {
        let found = limits_of(&[
            ("/proc/self/cgroup", "0::/shared/job\n"),
            V2_MOUNT,
            ("/sys/fs/cgroup/shared/job/memory.max", "1000000000\n"),
            ("/sys/fs/cgroup/shared/job/memory.current", "100000000\n"),
            ("/sys/fs/cgroup/shared/memory.max", "4000000000\n"),
            ("/sys/fs/cgroup/shared/memory.current", "3900000000\n"),
        ]);
        assert_eq!((found.memory_limit, found.memory_used), (Some(4_000_000_000), Some(3_900_000_000)));
    }

    #[test]
    fn version_2_in_a_container_has_its_limits_at_the_mount() {
        let found = limits_of(&[
            ("/proc/self/cgroup", "0::/\n"),
            V2_MOUNT,
            ("/sys/fs/cgroup/memory.max", "268435456\n"),
            ("/sys/fs/cgroup/cpu.max", "50000 100000\n"),
        ]);
        assert_eq!((found.memory_limit, found.cpu_quota), (Some(1 << 28), Some(0.5)));
    }

    #[test]
    fn version_1_goes_by_controller_and_by_the_mounts_root() {
        let mounts = "\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let found = limits_of(&[
            ("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpuset:/\n2:cpu,cpuacct:/jobs/7\n0::/init\n"),
            ("/proc/self/mountinfo", mounts),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "400000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "0-7\n"),
        ]);
        let expected = CgroupLimits {
            cpu_quota: Some(4.0),
            cpuset: Some((0..8).collect()),
            memory_limit: Some(1 << 29),
            memory_used: Some(1000),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_says_unlimited_is_no_limit() {
        let found = limits_of(&[
            ("/proc/self/cgroup", "4:memory:/\n0::/\n"),
            (
                "/proc/self/mountinfo",
                "35 31 0:32 / /m rw - cgroup cgroup rw,memory\n41 31 0:38 / /u rw - cgroup2 c rw\n",
            ),
            ("/m/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/u/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(found, CgroupLimits::default());
    }

    #[test]
    fn absent_files_and_nonsense_limit_nothing() {
        assert_eq!(limits_of(&[]), CgroupLimits::default());
        let found = limits_of(&[
            ("/proc/self/cgroup", "garbage\n::\n0::/a/../../etc\n"),
            ("/proc/self/mountinfo", "- - -\n29 22 0:26 / /g rw - cgroup2\n"),
            ("/g/cpu.max", "0 0\n"),
            ("/g/memory.max", "-5 lots\n"),
            ("/g/cpuset.cpus.effective", "9-3\n"),
            ("/g/a/../../etc/memory.max", "1\n"),
        ]);
        assert_eq!(found, CgroupLimits::default());
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list("2,0-2"), Some(vec![0, 1, 2]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        for nonsense in ["x", "1-", "-1", "3-1", "0-4294967295", "1 2"] {
            assert_eq!(cpu_list(nonsense), None, "{nonsense}");
        }
    }
}
