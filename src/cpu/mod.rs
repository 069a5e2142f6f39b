//! The CPU backend: kernels written once over a vector trait, stamped for each instruction set, chosen at run time.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod bandwidth;
mod blas;
mod blocks;
mod cancel;
mod compute;
mod dispatch;
mod footprint;
mod gemm;
mod int8;
mod kv;
mod math;
mod memory;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operands;
mod pack;
mod packed;
pub mod peak;
mod pooling;
mod quant;
mod rows;
mod scalar;
mod scores;
mod simd;
mod softmax;
mod table;

pub use blas::products;
pub use compute::CpuCompute;
#[cfg(test)]
use dispatch::quant_tested;
pub use dispatch::{available, by_name, quant_available, quant_for, selected};
pub(crate) use footprint::{Account, Footprint};
pub use quant::QuantKernels;
pub use table::{Finish, Kernels};

/// Hints that the cache line at `p` will be read soon, to L2. Any address is allowed.
#[inline(always)]
fn prefetch_l2<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Hints that the cache line at `p` will be read soon, to L1. Any address is allowed.
#[inline(always)]
fn prefetch_l1<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Hints that the cache line at `p` will be written soon. Any address is allowed.
#[inline(always)]
fn prefetch_write(p: *mut f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and is a no-op on CPUs without it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
