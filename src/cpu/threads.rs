//! How many threads compute.

/// Physical cores this process may use: the distinct sets of sibling threads on Linux, else the scheduler's number.
pub fn physical_cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    sibling_sets().map_or(usable, |cores| cores.clamp(1, usable))
}

fn sibling_sets() -> Option<usize> {
    let mut sets = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(siblings) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            sets.insert(siblings);
        }
    }
    (!sets.is_empty()).then_some(sets.len())
}

/// Sets up the process-wide thread pool with one thread a physical core. The first call of the process decides; `false`
/// says that a pool was already there.
pub fn init_performance_threads() -> bool {
    init_threads(physical_cores())
}

/// As [`init_performance_threads`], with a given number of threads (at least one).
pub fn init_threads(threads: usize) -> bool {
    rayon::ThreadPoolBuilder::new().num_threads(threads.max(1)).build_global().is_ok()
}
