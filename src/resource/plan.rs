//! [`ResourcePlan`]: how much of the machine a run takes, and why.

use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::profile::Settings;
use super::{AcceleratorInfo, HostInfo, HybridMode, MemoryInfo, Profile, Resolved};
use super::{detect_accelerator, detect_host, detect_memory};
use crate::batch::BatchLimits;
use crate::env::{self, Variable};
use crate::error::Result;
use crate::gpu::GpuBackend;
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
    /// Of floats: an instruction set, with the library that multiplies matrices where there is one; or an accelerator.
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
        Machine::look()?.plan(profile)
    }

    /// As [`detect`](Self::detect), of the profile that `KIN_RESOURCE_PROFILE` names.
    ///
    /// # Errors
    /// As [`detect`](Self::detect); and a variable that names no profile.
    pub fn from_env() -> Result<Self> {
        Self::detect(Profile::from_env()?)
    }

    /// The plan of this process: [`from_env`](Self::from_env) of the machine as it was when this was first asked.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn current() -> Result<Self> {
        let machine = Machine::first_seen()?;
        machine.clone().plan(Profile::from_env()?)
    }

    /// The plan of a profile on a given machine, with a given watchdog. The same inputs give the same plan.
    pub fn for_profile(
        profile: Profile,
        host: HostInfo,
        memory: MemoryInfo,
        accelerator: AcceleratorInfo,
        watchdog: &EmbedConfig,
    ) -> Self {
        let watchdog = WatchdogPlan::new(profile, watchdog, |_| false);
        Machine { host, memory, accelerator }.plan_with(profile, watchdog)
    }

    /// The same with a given number of threads.
    pub fn with_threads(mut self, threads: usize) -> Self {
        let threads = threads.max(1);
        self.embedding.threads = Resolved::new(threads, "asked for").from("threads", threads);
        self.embedding.workers = workers(threads, self.accelerator.mode.value);
        self
    }
}

/// What a plan is made of beside what a run is for.
#[derive(Debug, Clone)]
struct Machine {
    host: HostInfo,
    memory: MemoryInfo,
    accelerator: AcceleratorInfo,
}

impl Machine {
    fn look() -> Result<Self> {
        Ok(Self { host: detect_host()?, memory: detect_memory(), accelerator: detect_accelerator() })
    }

    /// As it was when this was first asked.
    fn first_seen() -> Result<&'static Self> {
        static FIRST: OnceLock<Machine> = OnceLock::new();
        if let Some(first) = FIRST.get() {
            return Ok(first);
        }
        let now = Self::look()?;
        Ok(FIRST.get_or_init(|| now))
    }

    /// The plan of a profile, with what the environment says of the watchdog.
    fn plan(self, profile: Profile) -> Result<ResourcePlan> {
        let config = EmbedConfig::from_env_over(profile.watchdog())?;
        let watchdog = WatchdogPlan::new(profile, &config, |variable| variable.value().is_some());
        Ok(self.plan_with(profile, watchdog))
    }

    fn plan_with(self, profile: Profile, watchdog: WatchdogPlan) -> ResourcePlan {
        let Self { host, memory, accelerator } = self;
        let embedding = EmbeddingPlan::new(profile, &host, &memory, &accelerator);
        ResourcePlan { schema_version: SCHEMA_VERSION, profile, host, memory, accelerator, embedding, watchdog }
    }
}

impl EmbeddingPlan {
    /// How this process embeds: of the profile that the environment names, on the machine as it was when this was first
    /// asked. What the environment says of the watchdog is not read.
    ///
    /// # Errors
    /// A variable that names no profile, or kernels that this CPU or build lacks.
    pub fn current() -> Result<Self> {
        let Machine { host, memory, accelerator } = Machine::first_seen()?;
        Ok(Self::new(Profile::from_env()?, host, memory, accelerator))
    }

    /// The same for a model that computes on a given backend, whichever would have been chosen.
    pub fn on(mut self, backend: GpuBackend) -> Self {
        let mode = if backend == GpuBackend::Cpu { HybridMode::CpuOnly } else { HybridMode::Accelerator };
        self.workers = workers(self.threads.value, mode);
        self
    }

    fn new(profile: Profile, host: &HostInfo, memory: &MemoryInfo, accelerator: &AcceleratorInfo) -> Self {
        let Settings { batch_tokens, window_batches, memory_percent, oom_retry } = profile.settings();
        let of_profile = |reason: &str| format!("{profile}: {reason}");
        let (threads, why) = profile.threads(host.threads.value);
        let cap = memory.rss_cap.value;
        Self {
            threads: Resolved::new(threads, of_profile(why)).from("host.threads", host.threads.value),
            workers: workers(threads, accelerator.mode.value),
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
            kernels: kernels(host, accelerator),
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

fn kernels(host: &HostInfo, accelerator: &AcceleratorInfo) -> Resolved<KernelPlan> {
    let integers = host.integer_isa.clone();
    let (floats, exact, reason) = match accelerator.mode.value {
        // The kernels of every GPU are of one source, in the contract's order.
        HybridMode::Accelerator => (accelerator.device.clone(), true, "the accelerator's, and the host's for blocks"),
        HybridMode::CpuOnly if host.exact => (host.isa.value.clone(), true, "the host's instruction set"),
        HybridMode::CpuOnly => (
            format!("{} and {}", host.isa.value, host.products),
            false,
            "a library multiplies matrices, in an order of its own; KIN_INFER_CPU_BACKEND=pure-rust is exact",
        ),
    };
    let kernels = KernelPlan { floats, integers, exact };
    Resolved::new(kernels, reason).from("host.isa", &*host.isa.value).from("host.products", &*host.products)
}

fn workers(threads: usize, mode: HybridMode) -> Resolved<usize> {
    match mode {
        HybridMode::CpuOnly => Resolved::new(threads, "one a thread: whole batches side by side need no joints"),
        HybridMode::Accelerator => Resolved::new(1, "the accelerator runs one batch at a time"),
    }
    .from("threads", threads)
}

impl WatchdogPlan {
    /// `is_set` says which variables the configuration has values of.
    pub(super) fn new(profile: Profile, config: &EmbedConfig, is_set: impl Fn(&Variable) -> bool) -> Self {
        // A watchdog that is switched on where the profile has none is the usual one.
        let usual = Some(profile.watchdog()).filter(|usual| usual.enabled).unwrap_or_else(EmbedConfig::production);
        let reason = |same: bool, variable: &Variable| match (is_set(variable), same) {
            (true, _) if config.enabled => format!("{} is set", variable.name),
            _ if !config.enabled => "nothing is watched".to_string(),
            (_, true) => format!("{profile}: the default"),
            (_, false) => "as the caller says".to_string(),
        };
        let seconds = |time: Duration| time.as_secs_f64();
        let time = |value: Duration, usual: Duration, variable| {
            Resolved::new(seconds(value), reason(value == usual, variable))
        };
        let enabled = match (is_set(&env::EMBED_WATCHDOG), config.enabled == profile.watchdog().enabled) {
            (true, _) => format!("{} is set", env::EMBED_WATCHDOG.name),
            (false, true) => format!("{profile}: the default"),
            (false, false) => "as the caller says".to_string(),
        };
        let outlives = !config.orphan_check && !is_set(&env::EMBED_ORPHAN_CHECK) && config.enabled;
        let orphan = match outlives && usual.orphan_check == config.orphan_check {
            true => "started to outlive its parent, by nohup or setsid".to_string(),
            false => reason(config.orphan_check == usual.orphan_check, &env::EMBED_ORPHAN_CHECK),
        };
        Self {
            enabled: Resolved::new(config.enabled, enabled),
            orphan_check: Resolved::new(config.orphan_check, orphan),
            max_secs: Resolved::new(config.max.map(seconds), reason(config.max == usual.max, &env::EMBED_MAX_SECS)),
            min_rate: Resolved::new(config.min_rate, reason(config.min_rate == usual.min_rate, &env::EMBED_MIN_RATE)),
            floor_window_secs: time(config.floor_window, usual.floor_window, &env::EMBED_FLOOR_WINDOW_SECS),
            floor_grace_secs: time(config.floor_grace, usual.floor_grace, &env::EMBED_FLOOR_GRACE_SECS),
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
