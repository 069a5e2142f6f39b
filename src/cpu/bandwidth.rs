//! How fast memory can be read: wide loads from several places at once, in the best of several patterns. It is what
//! the tokens of a decoder are measured against.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use super::dispatch;
use super::memory::AlignedBuf;
use super::prefetch_l1;
use crate::error::Result;

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
        /// # Safety
        /// The CPU has the instruction set.
        $(#[target_feature(enable = $features)])?
        unsafe fn $name<const STREAMS: usize, const AHEAD: usize>(bytes: &[u8]) {
            const WIDTH: usize = size_of::<$vector>();
            let len = bytes.len() / STREAMS / LINE * LINE;
            let mut sums = [$zero; STREAMS];
            for at in (0..len).step_by(LINE) {
                for (s, sum) in sums.iter_mut().enumerate() {
                    let p = bytes[s * len..].as_ptr().wrapping_add(at);
                    if AHEAD > 0 {
                        prefetch_l1(p.wrapping_add(AHEAD));
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
pattern!(plain, [], u64, 0u64, |p: *const u64| p.read_unaligned(), |a: u64, b: u64| a ^ b);

/// The patterns of a loop that this CPU can run.
macro_rules! patterns {
    ($name:ident: $(($streams:literal, $ahead:literal))*) => {
        [$(
            // SAFETY: `dispatch` found the loop's instruction set on this CPU.
            |bytes| unsafe { $name::<$streams, $ahead>(bytes) },
        )*]
    };
    ($name:ident) => {
        patterns!($name: (1, 0) (4, 0) (8, 0) (8, 1024) (16, 512))
    };
}

fn patterns() -> [Pattern; 5] {
    match dispatch::available()[0].name() {
        #[cfg(target_arch = "x86_64")]
        "avx512" => patterns!(avx512),
        #[cfg(target_arch = "x86_64")]
        "avx2" => patterns!(avx2),
        #[cfg(target_arch = "aarch64")]
        "neon" => patterns!(neon),
        _ => patterns!(plain),
    }
}

/// A buffer and the pattern that reads it fastest.
pub struct Probe {
    buffer: AlignedBuf<u8>,
    best: Pattern,
}

impl Probe {
    /// Tries every pattern on a buffer of so many bytes, at least one, with the current rayon pool's threads. It should be
    /// larger than all caches; it lies in huge pages where the system has them, as packed weights do.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::InferError::OutOfMemory).
    pub fn new(bytes: usize) -> Result<Self> {
        const TRIES: usize = 5;
        let mut buffer = AlignedBuf::zeroed(bytes.max(1), "what is read to measure memory")?;
        buffer.fill(1); // a page that was never written is not memory yet
        let time = |p: &Pattern| (0..TRIES).map(|_| read(&buffer, *p)).fold(f64::MAX, f64::min);
        let patterns = patterns();
        let best = patterns.iter().map(|p| (time(p), *p)).min_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Self { best: best.map_or(patterns[0], |(_, pattern)| pattern), buffer })
    }

    /// Seconds to read this many bytes once, with the current pool's threads.
    pub fn seconds(&self, bytes: usize) -> f64 {
        let part = &self.buffer[..bytes.clamp(1, self.buffer.len())];
        read(part, self.best) * (bytes as f64 / part.len() as f64)
    }
}

/// Each thread reads its part.
fn read(bytes: &[u8], pattern: Pattern) -> f64 {
    let start = Instant::now();
    bytes.par_chunks(bytes.len().div_ceil(rayon::current_num_threads())).for_each(pattern);
    start.elapsed().as_secs_f64()
}
