//! The one place that asks the CPU what it can do.

use std::sync::OnceLock;

use super::table::Kernels;
use crate::error::{InferError, Result};

/// Every instruction set this build has kernels for and this CPU can run, best first; `scalar` is always last.
pub fn available() -> Vec<&'static Kernels> {
    let mut tables: Vec<&'static Kernels> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        if avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            tables.push(&super::avx512::KERNELS);
        }
        if avx2 {
            tables.push(&super::avx2::KERNELS);
        }
    }
    #[cfg(target_arch = "aarch64")]
    tables.push(&super::neon::KERNELS);
    tables.push(&super::scalar::KERNELS);
    tables
}

/// The table named `isa`, or the reason why it cannot be had.
pub fn by_name(isa: &str) -> Result<&'static Kernels> {
    let tables = available();
    tables.iter().find(|t| t.name() == isa).copied().ok_or_else(|| {
        let names: Vec<_> = tables.iter().map(|t| t.name()).collect();
        InferError::InvalidArgument(format!(
            "instruction set `{isa}` is not available; this build on this CPU has {}",
            names.join(", ")
        ))
    })
}

/// The table in use: the one `KIN_INFER_CPU_ISA` pins, else the best the CPU has.
pub fn selected() -> Result<&'static Kernels> {
    static BEST: OnceLock<&'static Kernels> = OnceLock::new();
    match crate::env::cpu_isa() {
        Some(isa) => by_name(&isa),
        None => Ok(BEST.get_or_init(|| available()[0])),
    }
}
