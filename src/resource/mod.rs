//! [`ResourcePlan`]: how much of the machine a run takes, decided once, with reasons.
//!
//! ```
//! # fn main() -> kin_infer::Result<()> {
//! use kin_infer::resource::{Profile, ResourcePlan};
//!
//! let plan = ResourcePlan::detect(Profile::Throughput)?;
//! let threads = &plan.embedding.threads;
//! println!("{} threads: {threads}", threads.value);
//! # Ok(()) }
//! ```
//!
//! What the system tells ([`detect_host`], [`detect_memory`], [`detect_accelerator`]) and what a run is for
//! ([`Profile`]) go into [`ResourcePlan::for_profile`], which reads nothing else. `kin-infer plan` prints it.

mod accelerator;
mod cgroup;
mod host;
mod memory;
mod model;
mod plan;
#[cfg(any(windows, test))]
mod processors;
mod profile;
mod resolved;
#[cfg(not(target_os = "linux"))]
mod system;
mod threads;

#[cfg(test)]
mod tests;

pub use accelerator::{AcceleratorBackend, AcceleratorInfo, HybridMode, detect_accelerator};
pub use cgroup::CgroupLimits;
pub use host::{HostInfo, detect_host};
pub use memory::{MemoryInfo, ProcessMemory, detect_memory, process_memory};
pub use model::ModelMemory;
pub use plan::{EmbeddingPlan, KernelPlan, NonFinitePolicy, ResourcePlan, SCHEMA_VERSION, WatchdogPlan};
pub use profile::Profile;
pub use resolved::{Resolved, bytes_in_words};
pub use threads::{init_performance_threads, init_threads};
