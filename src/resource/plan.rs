//! [`ResourcePlan`]: how much of the machine a run takes, and why.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::profile::Settings;
use super::{AcceleratorInfo, HostInfo, HybridMode, MemoryInfo, Profile, Resolved};
use super::{detect_accelerator, detect_host, detect_memory};
use crate::batch::BatchLimits;
use crate::error::Result;
use crate::watchdog::EmbedConfig;

/// The version of a plan's fields; it changes when a field changes its name or meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// How much of the machine a run takes, and why: what [`Embedder`](crate::Embedder), the command line and the watchdog
/// go by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourcePlan {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What the run is for.
    pub profile: Profile,
    /// The CPUs.
    pub host: HostInfo,
    /// The memory.
    pub memory: MemoryInfo,
    /// The device beside the CPU.
    pub accelerator: AcceleratorInfo,
    /// How texts are embedded.
    pub embedding: EmbeddingPlan,
    /// When the run counts as dead.
    pub watchdog: WatchdogPlan,
}

/// How texts are embedded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingPlan {
    /// Threads that compute.
    pub threads: Resolved<usize>,
    /// Batches that are computed side by side, each with its own activations.
    pub workers: Resolved<usize>,
    /// Tokens of the longest text; none where the model alone decides.
    pub max_seq_len: Resolved<Option<usize>>,
    /// Tokens of a batch. A longer text is a batch of its own.
    pub max_batch_tokens: Resolved<usize>,
    /// Sum of the squared lengths of a batch's texts. A text beyond it is a batch of its own.
    pub max_attention_area: Resolved<usize>,
    /// Tokens over which texts are sorted by length: how far a text can be put off behind later ones.
    pub window_tokens: Resolved<usize>,
    /// Bytes that the process may take in all; none where nothing is known to bound it.
    pub memory_bytes: Resolved<Option<u64>>,
    /// Of these, what activations may take beside the model; none before the model is known.
    pub activation_bytes: Resolved<Option<u64>>,
    /// Whether the texts of a batch that memory did not suffice for are tried one by one.
    pub oom_retry: Resolved<bool>,
    /// What becomes of a result that holds NaN or an infinity.
    pub nonfinite_policy: Resolved<NonFinitePolicy>,
    /// The kernels.
    pub kernels: Resolved<KernelPlan>,
}

/// What becomes of a result that holds NaN or an infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NonFinitePolicy {
    /// The text fails with an error that names the layer; the others are delivered.
    FailItem,
}

/// The kernels that compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPlan {
    /// Of floats.
    pub floats: String,
    /// Of quantised blocks.
    pub integers: String,
    /// Whether results are the bits that docs/numerics.md states.
    pub exact: bool,
}

/// When a run counts as dead; see [`EmbedConfig`]. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchdogPlan {
    /// Whether anything is watched.
    pub enabled: Resolved<bool>,
    /// End when the parent is gone.
    pub orphan_check: Resolved<bool>,
    /// End after so long; none for never.
    pub max_secs: Resolved<Option<f64>>,
    /// End when fewer units a second were persisted.
    pub min_rate: Resolved<f64>,
    /// Over so long.
    pub floor_window_secs: Resolved<f64>,
    /// And not before so long.
    pub floor_grace_secs: Resolved<f64>,
}

impl ResourcePlan {
    /// The plan of a profile on this machine, with what the environment says of the watchdog.
    ///
    /// # Errors
    /// An environment variable with a value that it does not take.
    pub fn detect(profile: Profile) -> Result<Self> {
        let watchdog = EmbedConfig::from_env_over(profile.watchdog())?;
        Ok(Self::for_profile(profile, detect_host()?, detect_memory(), detect_accelerator(), &watchdog))
    }

    /// As [`detect`](Self::detect), of the profile that `KIN_RESOURCE_PROFILE` names.
    ///
    /// # Errors
    /// As [`detect`](Self::detect); and a variable that names no profile.
    pub fn from_env() -> Result<Self> {
        Self::detect(Profile::from_env()?)
    }

    /// The plan of a profile on a given machine. The same inputs give the same plan.
    pub fn for_profile(
        profile: Profile,
        host: HostInfo,
        memory: MemoryInfo,
        accelerator: AcceleratorInfo,
        watchdog: &EmbedConfig,
    ) -> Self {
        let embedding = EmbeddingPlan::new(profile, &host, &memory, &accelerator);
        let watchdog = WatchdogPlan::new(profile, watchdog);
        Self { schema_version: SCHEMA_VERSION, profile, host, memory, accelerator, embedding, watchdog }
    }

    /// The same with a given number of threads.
    pub fn with_threads(mut self, threads: usize) -> Self {
        let threads = threads.max(1);
        self.embedding.threads = Resolved::new(threads, "asked for").from("threads", threads);
        self.embedding.workers = workers(threads, &self.accelerator);
        self
    }
}

impl EmbeddingPlan {
    fn new(profile: Profile, host: &HostInfo, memory: &MemoryInfo, accelerator: &AcceleratorInfo) -> Self {
        let Settings { batch_tokens, window_batches, memory_percent, oom_retry } = profile.settings();
        let of_profile = |reason: &str| format!("{profile}: {reason}");
        let (threads, why) = profile.threads(host.threads.value);
        let cap = memory.rss_cap.value;
        let kernels = KernelPlan { floats: host.isa.value.clone(), integers: host.integer_isa.clone(), exact: true };
        Self {
            threads: Resolved::new(threads, of_profile(why)).from("host.threads", host.threads.value),
            workers: workers(threads, accelerator),
            max_seq_len: Resolved::new(None, "the model's own window"),
            max_batch_tokens: Resolved::new(
                batch_tokens,
                of_profile("larger batches win nothing once their activations leave the caches"),
            ),
            max_attention_area: Resolved::new(
                batch_tokens * batch_tokens / 2,
                "attention of a batch costs at most half of what one text of its size would",
            )
            .from("max_batch_tokens", batch_tokens),
            window_tokens: Resolved::new(batch_tokens * window_batches, of_profile("how far sorting reaches"))
                .from("max_batch_tokens", batch_tokens)
                .from("batches", window_batches),
            memory_bytes: Resolved::new(
                cap.map(|cap| cap / 100 * memory_percent),
                of_profile(&format!("{memory_percent} % of what the process may take")),
            )
            .from("rss_cap_bytes", cap),
            activation_bytes: Resolved::new(None, "no model is loaded"),
            oom_retry: Resolved::new(oom_retry, of_profile("what a batch cannot have, each of its texts alone may")),
            nonfinite_policy: Resolved::new(NonFinitePolicy::FailItem, "one bad text does not cost the others"),
            kernels: Resolved::new(kernels, "what the host's instruction set is").from("host.isa", &*host.isa.value),
        }
    }

    /// What a model's batches go by.
    pub fn limits(&self) -> BatchLimits {
        BatchLimits {
            tokens: self.max_batch_tokens.value,
            area: self.max_attention_area.value,
            window: self.window_tokens.value,
            workers: self.workers.value,
            room: self.activation_bytes.value.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            retry: self.oom_retry.value,
        }
    }
}

fn workers(threads: usize, accelerator: &AcceleratorInfo) -> Resolved<usize> {
    match accelerator.mode.value {
        HybridMode::CpuOnly => Resolved::new(threads, "one a thread: whole batches side by side need no joints"),
        HybridMode::Accelerator => Resolved::new(1, "the accelerator runs one batch at a time"),
    }
    .from("threads", threads)
}

impl WatchdogPlan {
    fn new(profile: Profile, config: &EmbedConfig) -> Self {
        let usual = profile.watchdog();
        let reason = |same: bool, variable: &str| match same {
            true => format!("{profile}: the default"),
            false => format!("{variable} is set"),
        };
        let seconds = |time: Duration| time.as_secs_f64();
        let resolve = |value: f64, usual: f64, variable| Resolved::new(value, reason(value == usual, variable));
        let switch = |on: bool, usual: bool, variable| Resolved::new(on, reason(on == usual, variable));
        let max = Resolved::new(config.max.map(seconds), reason(config.max == usual.max, "KIN_EMBED_MAX_SECS"));
        Self {
            enabled: switch(config.enabled, usual.enabled, "KIN_EMBED_WATCHDOG"),
            orphan_check: switch(config.orphan_check, usual.orphan_check, "KIN_EMBED_ORPHAN_CHECK"),
            max_secs: max,
            min_rate: resolve(config.min_rate, usual.min_rate, "KIN_EMBED_MIN_RATE"),
            floor_window_secs: resolve(
                seconds(config.floor_window),
                seconds(usual.floor_window),
                "KIN_EMBED_FLOOR_WINDOW_SECS",
            ),
            floor_grace_secs: resolve(
                seconds(config.floor_grace),
                seconds(usual.floor_grace),
                "KIN_EMBED_FLOOR_GRACE_SECS",
            ),
        }
    }

    /// The configuration of a watchdog that goes by this plan.
    pub fn config(&self) -> EmbedConfig {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        EmbedConfig {
            enabled: self.enabled.value,
            orphan_check: self.orphan_check.value,
            max: self.max_secs.value.map(time),
            min_rate: self.min_rate.value,
            floor_window: time(self.floor_window_secs.value),
            floor_grace: time(self.floor_grace_secs.value),
            ..EmbedConfig::production()
        }
    }
}
