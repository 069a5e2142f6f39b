//! The process-wide thread pool.

use super::EmbeddingPlan;

/// Sets up the process-wide thread pool with the threads of [`EmbeddingPlan::current`]; where the environment is not
/// understood, with as many as there are CPUs. The first call of the process decides; `false` says
/// that a pool was already there.
pub fn init_performance_threads() -> bool {
    let usable = || std::thread::available_parallelism().map_or(1, usize::from);
    init_threads(EmbeddingPlan::current().map_or_else(|_| usable(), |plan| plan.threads.value))
}

/// As [`init_performance_threads`], with a given number of threads (at least one).
pub fn init_threads(threads: usize) -> bool {
    rayon::ThreadPoolBuilder::new().num_threads(threads.max(1)).build_global().is_ok()
}
