//! The one place that asks the CPU what it can do.

use std::sync::OnceLock;

use super::quant::{self, QuantKernels};
use super::table::Kernels;
use crate::env::Dot;
use crate::error::{InferError, Result};

/// AVX2 with FMA and F16C, which no CPU with AVX2 lacks.
#[cfg(target_arch = "x86_64")]
fn avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Every instruction set this build has kernels for and this CPU can run, best first; `scalar` is always last.
#[allow(clippy::vec_init_then_push)] // some architectures have nothing between
pub fn available() -> Vec<&'static Kernels> {
    let mut tables: Vec<&'static Kernels> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = avx2();
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

/// The table in use: the one `KIN_INFER_CPU_ISA` pins, else the best the CPU has. A `KIN_INFER_CPU_DOT` that says nothing is
/// an error here, before any kernel is chosen.
pub fn selected() -> Result<&'static Kernels> {
    static BEST: OnceLock<&'static Kernels> = OnceLock::new();
    crate::env::cpu_dot()?;
    match crate::env::cpu_isa() {
        Some(isa) => by_name(&isa),
        None => Ok(BEST.get_or_init(|| available()[0])),
    }
}

/// Every set of integer kernels this build has and this CPU can run, best first; `scalar` is always last.
pub fn quant_available() -> Vec<&'static QuantKernels> {
    integer_sets(true)
}

/// AVX-512 with VNNI and what the integer kernels use beside it.
#[cfg(target_arch = "x86_64")]
pub(super) fn avx512_vnni() -> bool {
    avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// Whether this process may use AMX: the CPU and the system have int8 tiles, and the system keeps this process' state of
/// them, as it is asked to once. From then on it refuses signal stacks of this process that have no room for tiles.
#[cfg(target_arch = "x86_64")]
pub(super) fn amx() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| has_int8_tiles() && system_has_tiles() && tiles_permitted())
}

/// The CPU's word: amx-tile and amx-int8.
#[cfg(target_arch = "x86_64")]
fn has_int8_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    #[allow(unused_unsafe, reason = "newer compilers know that CPUID is safe")]
    // SAFETY: every x86-64 CPU has CPUID.
    let (leaves, features) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0).edx) };
    leaves >= 7 && features >> 24 & 3 == 3
}

/// The system's word: it has enabled the states of tiles and of their configuration.
#[cfg(target_arch = "x86_64")]
fn system_has_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the feature is detected only where the system lets programs use it.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: the feature was detected.
    is_x86_feature_detected!("xsave") && unsafe { enabled() } >> 17 & 3 == 3
}

/// Asks the system for the state of tiles, which Linux gives to processes that ask.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers, and refuses what it does not know.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems are not asked.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_permitted() -> bool {
    false
}

/// The sets of integer kernels, with AMX or without: the system is asked for its tiles only where they may be used.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "AMX is x86-64's"))]
fn integer_sets(use_amx: bool) -> Vec<&'static QuantKernels> {
    let mut tables: Vec<&'static QuantKernels> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let (avx2, avx512) = (avx2(), avx512_vnni());
        if avx512 && use_amx && amx() {
            tables.push(&quant::amx::AMX_INT8);
        }
        if avx512 {
            tables.push(&quant::x86::AVX512_VNNI);
        }
        if avx2 && is_x86_feature_detected!("avxvnni") {
            tables.push(&quant::x86::AVX_VNNI);
        }
        if avx2 {
            tables.push(&quant::x86::AVX2);
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        if dotprod && std::arch::is_aarch64_feature_detected!("i8mm") {
            tables.push(&quant::i8mm::NEON_I8MM);
        }
        if dotprod {
            tables.push(&quant::neon::NEON_DOTPROD);
        }
        tables.push(&quant::neon::NEON);
    }
    tables.push(&quant::scalar::KERNELS);
    tables
}

/// The sets of integer kernels that `test` runs: those of this CPU, and AMX's, emulated, where it is all that lacks.
#[cfg(test)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "AMX is x86-64's"))]
pub(super) fn quant_tested(test: &str) -> Vec<&'static QuantKernels> {
    let sets = quant_available();
    #[cfg(target_arch = "x86_64")]
    let sets = super::amx::emulated(test).into_iter().chain(sets).collect();
    sets
}

/// The integer kernels that go with a table of kernels: the best of its instruction set that `KIN_INFER_CPU_DOT` leaves.
pub fn quant_for(kernels: &Kernels) -> &'static QuantKernels {
    let dot = crate::env::cpu_dot().unwrap_or(Dot::Off);
    let plain = dot == Dot::Off;
    let serves = |quant: &&'static QuantKernels| match kernels.name() {
        "avx512" => !plain || quant.name() == "avx2",
        "avx2" => quant.name() == "avx2" || (!plain && quant.name() == "avx-vnni"),
        "neon" => quant.name() == "neon" || (!plain && matches!(quant.name(), "neon-dotprod" | "neon-i8mm")),
        _ => quant.name() == "scalar",
    };
    let use_amx = dot == Dot::All && kernels.name() == "avx512";
    integer_sets(use_amx).into_iter().find(serves).unwrap_or(&quant::scalar::KERNELS)
}
