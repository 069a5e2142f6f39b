//! How fast memory can be read: wide loads from several places at once, in the best of several patterns.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Reads a slice once.
type Pattern = fn(&[u8]);

/// Bytes of one load, at most.
const LINE: usize = 64;

/// A loop of loads from `STREAMS` places side by side, each asked for `AHEAD` bytes before it is read.
macro_rules! pattern {
    ($name:ident, [$($features:literal)?], $vector:ty, $zero:expr, $load:expr, $xor:expr) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name<const STREAMS: usize, const AHEAD: usize>(bytes: &[u8]) {
            const WIDTH: usize = size_of::<$vector>();
            let len = bytes.len() / STREAMS / LINE * LINE;
            let mut sums = [$zero; STREAMS];
            for at in (0..len).step_by(LINE) {
                for (s, sum) in sums.iter_mut().enumerate() {
                    let p = bytes[s * len..].as_ptr().wrapping_add(at);
                    if AHEAD > 0 {
                        prefetch(p.wrapping_add(AHEAD));
                    }
                    for part in 0..LINE / WIDTH {
                        // SAFETY: `at` is less than `len`, and the streams lie in the slice.
                        *sum = $xor(*sum, unsafe { $load(p.add(part * WIDTH).cast()) });
                    }
                }
            }
            black_box(sums);
        }
    };
}

#[cfg(target_arch = "x86_64")]
pattern!(avx512, ["avx512f"], __m512i, _mm512_setzero_si512(), _mm512_loadu_si512, _mm512_xor_si512);
#[cfg(target_arch = "x86_64")]
pattern!(avx2, ["avx2"], __m256i, _mm256_setzero_si256(), _mm256_loadu_si256, _mm256_xor_si256);
#[cfg(target_arch = "aarch64")]
pattern!(neon, ["neon"], uint8x16_t, vdupq_n_u8(0), vld1q_u8, veorq_u8);
#[cfg(not(target_arch = "aarch64"))]
pattern!(plain, [], u64, 0u64, |p: *const u64| p.read_unaligned(), |a: u64, b: u64| a ^ b);

/// Asks for a cache line. Any address is allowed.
#[inline(always)]
fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults; SSE is part of x86-64.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// The patterns of a loop that this CPU can run.
macro_rules! patterns {
    ($name:ident) => {
        [
            // SAFETY: the CPU was asked for the loop's instruction set, here and below.
            |b| unsafe { $name::<1, 0>(b) },
            |b| unsafe { $name::<4, 0>(b) },
            |b| unsafe { $name::<8, 0>(b) },
            |b| unsafe { $name::<8, 1024>(b) },
            |b| unsafe { $name::<16, 512>(b) },
        ]
    };
}

fn patterns() -> [Pattern; 5] {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return patterns!(avx512);
        }
        if is_x86_feature_detected!("avx2") {
            return patterns!(avx2);
        }
        patterns!(plain)
    }
    #[cfg(target_arch = "aarch64")]
    {
        patterns!(neon)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        patterns!(plain)
    }
}

/// A buffer and the pattern that reads it fastest.
pub struct Probe<'a> {
    buffer: &'a [u8],
    best: Pattern,
}

impl<'a> Probe<'a> {
    /// Tries every pattern on the buffer, which should be larger than all caches, with the current pool's threads.
    pub fn new(buffer: &'a [u8]) -> Self {
        const TRIES: usize = 5;
        let time = |p: &Pattern| (0..TRIES).map(|_| read(buffer, *p)).fold(f64::MAX, f64::min);
        let patterns = patterns();
        let best = patterns.iter().map(|p| (time(p), *p)).min_by(|a, b| a.0.total_cmp(&b.0));
        Self { buffer, best: best.map_or(patterns[0], |(_, pattern)| pattern) }
    }

    /// Seconds to read this many bytes once.
    pub fn seconds(&self, bytes: usize) -> f64 {
        let part = &self.buffer[..bytes.min(self.buffer.len())];
        read(part, self.best) * (bytes as f64 / part.len() as f64)
    }
}

/// Each thread reads its part.
fn read(bytes: &[u8], pattern: Pattern) -> f64 {
    let start = Instant::now();
    bytes.par_chunks(bytes.len().div_ceil(rayon::current_num_threads())).for_each(pattern);
    start.elapsed().as_secs_f64()
}
