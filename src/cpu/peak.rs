//! The FMA peak of an instruction set: a loop over registers alone, what products are measured against.
//!
//! Every accumulator starts from a value. A register left over from other code can read as denormals, each FMA then
//! takes a microcode assist, and a "peak" 10 to 200 times too low makes every share of it that much too high.

use std::hint::black_box;

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Runs the loop `iterations` times and returns the floating-point operations done.
pub type Loop = fn(iterations: u64) -> f64;

/// The loop of a kernel table that this CPU can run; `None` for a table without one.
pub fn of(table: &super::Kernels) -> Option<Loop> {
    match table.name() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a table is handed out only where the CPU has its instruction set.
        "avx512" => Some(|n| unsafe { avx512(n) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        "avx2" => Some(|n| unsafe { avx2(n) }),
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        "neon" => Some(|n| unsafe { neon(n) }),
        _ => None,
    }
}

/// A loop of `$chains` independent FMAs: enough to hide their latency, few enough to stay in registers.
macro_rules! peak_loop {
    ($name:ident, $features:literal, $vector:ty, $chains:literal, $splat:ident, $fma:expr) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(iterations: u64) -> f64 {
            let (x, y) = ($splat(black_box(1e-6)), $splat(black_box(1.0)));
            let mut chains = [$splat(0.0); $chains];
            for _ in 0..iterations {
                for chain in &mut chains {
                    *chain = $fma(x, y, *chain);
                }
            }
            black_box(chains);
            (iterations as usize * $chains * (size_of::<$vector>() / size_of::<f32>()) * 2) as f64
        }
    };
}

#[cfg(target_arch = "x86_64")]
peak_loop!(avx512, "avx512f", __m512, 24, _mm512_set1_ps, _mm512_fmadd_ps);
#[cfg(target_arch = "x86_64")]
peak_loop!(avx2, "avx2,fma", __m256, 12, _mm256_set1_ps, _mm256_fmadd_ps);
#[cfg(target_arch = "aarch64")]
peak_loop!(neon, "neon", float32x4_t, 24, vdupq_n_f32, |x, y, c| vfmaq_f32(c, x, y));
