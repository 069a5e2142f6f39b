//! Every environment variable the library reads, declared once. Nothing else in the crate touches the environment.

use crate::error::{InferError, Result};

/// A variable: its name, the values it takes, its default, and what it does in one sentence.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// The name in the environment.
    pub name: &'static str,
    /// The values it takes.
    pub values: &'static str,
    /// What holds when it is unset.
    pub default: &'static str,
    /// What it does.
    pub purpose: &'static str,
}

impl Variable {
    /// The value set by the user, if any; an empty one counts as unset.
    pub fn value(&self) -> Option<String> {
        std::env::var(self.name).ok().filter(|v| !v.is_empty())
    }
}

const FORCE_CPU: Variable = Variable {
    name: "KIN_INFER_FORCE_CPU",
    values: "1, true, yes or on",
    default: "unset",
    purpose: "Computes on the CPU even where a GPU backend is compiled in and a device is found.",
};

const CPU_ISA: Variable = Variable {
    name: "KIN_INFER_CPU_ISA",
    values: "scalar, avx2, avx512 or neon",
    default: "the widest the CPU has",
    purpose: "Pins the instruction set of the CPU kernels; results do not depend on it, only speed does.",
};

const CPU_DOT: Variable = Variable {
    name: "KIN_INFER_CPU_DOT",
    values: "off or no-amx",
    default: "unset",
    purpose: "Leaves out instructions for products of bytes, all (VNNI, AMX, NEON dotprod, i8mm) or AMX's; results do not depend on it.",
};

const CPU_BACKEND: Variable = Variable {
    name: "KIN_INFER_CPU_BACKEND",
    values: "pure-rust or accelerate",
    default: "accelerate in a build with that feature on macOS, else pure-rust",
    purpose: "What multiplies matrices on the CPU: pure-rust gives the same bits everywhere, accelerate only nearly.",
};

const HF_HOME: Variable = Variable {
    name: "HF_HOME",
    values: "a folder",
    default: "~/.cache/huggingface",
    purpose: "Where the local model hub cache lies; a model given as `owner/name` is looked up in its `hub` folder.",
};

const HF_HUB_CACHE: Variable = Variable {
    name: "HF_HUB_CACHE",
    values: "a folder",
    default: "$HF_HOME/hub",
    purpose: "The local model hub cache itself; takes precedence over HF_HOME.",
};

const HF_HUB_OFFLINE: Variable = Variable {
    name: "HF_HUB_OFFLINE",
    values: "1, true, yes or on",
    default: "unset",
    purpose: "Forbids the command line to download a model (builds with its `download` feature).",
};

const HF_ENDPOINT: Variable = Variable {
    name: "HF_ENDPOINT",
    values: "a URL",
    default: "the public hub",
    purpose: "Where models are downloaded from (builds with the command line's `download` feature).",
};

const HOME: Variable = Variable {
    name: "HOME",
    values: "a folder",
    default: "set by the system",
    purpose: "Where the default hub cache is found.",
};

const RESOURCE_PROFILE: Variable = Variable {
    name: "KIN_RESOURCE_PROFILE",
    values: "proof, interactive, throughput or ci",
    default: "throughput",
    purpose: "What runs are for, which decides threads, batch sizes and memory; `kin-infer plan` shows what follows.",
};

pub(crate) const EMBED_WATCHDOG: Variable = Variable {
    name: "KIN_EMBED_WATCHDOG",
    values: "on or off",
    default: "on, off with the profile interactive",
    purpose: "Whether a run of `kin-infer embed` that has died is ended; `off` leaves the other KIN_EMBED variables unread.",
};

pub(crate) const EMBED_ORPHAN_CHECK: Variable = Variable {
    name: "KIN_EMBED_ORPHAN_CHECK",
    values: "on or off",
    default: "on, off under nohup and setsid",
    purpose: "Ends a run when the process that started it is gone.",
};

pub(crate) const EMBED_MAX_SECS: Variable = Variable {
    name: "KIN_EMBED_MAX_SECS",
    values: "seconds, 0 for no limit",
    default: "86400, with the profile ci 3600",
    purpose: "Ends a run that takes longer; time in which the machine sleeps does not count.",
};

pub(crate) const EMBED_MIN_RATE: Variable = Variable {
    name: "KIN_EMBED_MIN_RATE",
    values: "texts a second, 0 for no floor",
    default: "0.01",
    purpose: "Ends a run that persists fewer over KIN_EMBED_FLOOR_WINDOW_SECS; a text counts once for each 512 tokens.",
};

pub(crate) const EMBED_FLOOR_WINDOW_SECS: Variable = Variable {
    name: "KIN_EMBED_FLOOR_WINDOW_SECS",
    values: "seconds",
    default: "600",
    purpose: "Over what time the rate of a run is taken.",
};

pub(crate) const EMBED_FLOOR_GRACE_SECS: Variable = Variable {
    name: "KIN_EMBED_FLOOR_GRACE_SECS",
    values: "seconds",
    default: "120",
    purpose: "Time at the start of a run, for loading and the first batches, that no such window begins in.",
};

/// All of them, in the order `kin-infer env` prints.
pub const VARIABLES: &[Variable] = &[
    FORCE_CPU,
    CPU_ISA,
    CPU_DOT,
    CPU_BACKEND,
    RESOURCE_PROFILE,
    EMBED_WATCHDOG,
    EMBED_ORPHAN_CHECK,
    EMBED_MAX_SECS,
    EMBED_MIN_RATE,
    EMBED_FLOOR_WINDOW_SECS,
    EMBED_FLOOR_GRACE_SECS,
    HF_HUB_CACHE,
    HF_HOME,
    HF_HUB_OFFLINE,
    HF_ENDPOINT,
    HOME,
];

impl Variable {
    fn is_on(&self) -> bool {
        self.value().is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
    }
}

/// Whether `KIN_INFER_FORCE_CPU` asks for the CPU.
pub(crate) fn force_cpu() -> bool {
    FORCE_CPU.is_on()
}

/// Whether `HF_HUB_OFFLINE` forbids downloads.
pub fn hub_offline() -> bool {
    HF_HUB_OFFLINE.is_on()
}

/// The hub to download from, where it is not the public one.
pub fn hub_endpoint() -> Option<String> {
    HF_ENDPOINT.value()
}

/// The instruction set `KIN_INFER_CPU_ISA` pins.
pub(crate) fn cpu_isa() -> Option<String> {
    CPU_ISA.value().map(|v| v.to_ascii_lowercase())
}

/// The instructions for products of bytes that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dot {
    All,
    NoAmx,
    Off,
}

/// Which of them `KIN_INFER_CPU_DOT` leaves, or why it cannot be told.
pub(crate) fn cpu_dot() -> Result<Dot> {
    dot_named(CPU_DOT.value().as_deref())
}

fn dot_named(value: Option<&str>) -> Result<Dot> {
    match value.map(str::to_ascii_lowercase).as_deref() {
        Some("off") => Ok(Dot::Off),
        Some("no-amx") => Ok(Dot::NoAmx),
        None => Ok(Dot::All),
        Some(other) => {
            Err(InferError::InvalidArgument(format!("KIN_INFER_CPU_DOT: `{other}`, expected off or no-amx")))
        }
    }
}

/// What `KIN_INFER_CPU_BACKEND` names.
pub(crate) fn cpu_backend() -> Option<String> {
    CPU_BACKEND.value().map(|v| v.to_ascii_lowercase())
}

/// The profile `KIN_RESOURCE_PROFILE` names.
pub(crate) fn resource_profile() -> Option<String> {
    RESOURCE_PROFILE.value()
}

/// The folder of the local hub cache, whether it exists or not.
pub fn hub_cache() -> Option<std::path::PathBuf> {
    let under = |v: &Variable, rest: &str| v.value().map(|p| std::path::Path::new(&p).join(rest));
    HF_HUB_CACHE
        .value()
        .map(Into::into)
        .or_else(|| under(&HF_HOME, "hub"))
        .or_else(|| under(&HOME, ".cache/huggingface/hub"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_instructions_that_is_none_is_an_error() {
        for (value, dot) in [(None, Dot::All), (Some("off"), Dot::Off), (Some("No-AMX"), Dot::NoAmx)] {
            assert_eq!(dot_named(value).unwrap(), dot);
        }
        for wrong in ["noamx", "on", "1"] {
            let message = dot_named(Some(wrong)).unwrap_err().to_string();
            assert!(message.contains("KIN_INFER_CPU_DOT") && message.contains(wrong), "{message}");
        }
    }
}
