//! [`Profile`]: what a run is for.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{InferError, Result};
use crate::watchdog::EmbedConfig;

/// What a run is for. Results are the same bits with every profile; time and memory differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Profile {
    /// To be compared with: one thread, one batch at a time, and a batch that memory does not suffice for fails.
    Proof,
    /// Beside a person's other work: a core is left free, batches are small, memory is sparing.
    Interactive,
    /// A corpus, as fast as the machine allows.
    #[default]
    Throughput,
    /// On a shared build machine: few threads, half the memory, an hour at most.
    Ci,
}

/// The numbers of a profile.
pub(super) struct Settings {
    pub batch_tokens: usize,
    /// How many full batches texts are sorted over.
    pub window_batches: usize,
    /// Hundredths of what the process may take.
    pub memory_percent: u64,
    pub oom_retry: bool,
}

impl Profile {
    const ALL: [Self; 4] = [Self::Proof, Self::Interactive, Self::Throughput, Self::Ci];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proof => "proof",
            Self::Interactive => "interactive",
            Self::Throughput => "throughput",
            Self::Ci => "ci",
        }
    }

    /// The profile that `KIN_RESOURCE_PROFILE` names; [`Profile::Throughput`] where it is unset.
    ///
    /// # Errors
    /// A value that names none.
    pub fn from_env() -> Result<Self> {
        crate::env::resource_profile().map_or(Ok(Self::default()), |name| name.parse())
    }

    /// The watchdog of a run of this profile, before what the environment says.
    pub fn watchdog(self) -> EmbedConfig {
        match self {
            Self::Interactive => EmbedConfig::disabled(),
            Self::Ci => EmbedConfig { max: Some(Duration::from_secs(3600)), ..EmbedConfig::production() },
            Self::Proof | Self::Throughput => EmbedConfig::production(),
        }
    }

    pub(super) fn settings(self) -> Settings {
        let (batch_tokens, window_batches, memory_percent, oom_retry) = match self {
            Self::Proof => (512, 1, 50, false),
            Self::Interactive => (256, 8, 25, true),
            Self::Throughput => (512, 128, 80, true),
            Self::Ci => (512, 16, 50, true),
        };
        Settings { batch_tokens, window_batches, memory_percent, oom_retry }
    }

    /// How many threads of those that compute fastest, and why.
    pub(super) fn threads(self, fastest: usize) -> (usize, &'static str) {
        match self {
            Self::Proof => (1, "one: nothing runs side by side"),
            Self::Interactive => (fastest.saturating_sub(1).max(1), "all that pay but one, which is left to others"),
            Self::Throughput => (fastest, "all that pay"),
            Self::Ci => (fastest.min(4), "at most four: the machine is shared"),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = InferError;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|p| p.name().eq_ignore_ascii_case(name.trim()));
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            InferError::InvalidArgument(format!("KIN_RESOURCE_PROFILE: expected {names}, found `{name}`"))
        })
    }
}
