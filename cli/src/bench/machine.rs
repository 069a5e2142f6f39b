//! What the machine can do at the moment: multiply-adds and bytes read a second, with a number of threads.

use std::time::{Duration, Instant};

use kin_infer::cpu::peak;
use rayon::prelude::*;

use crate::failure::{Failure, Result};

/// How long a measurement of the peak takes.
const SAMPLE: Duration = Duration::from_millis(30);
/// Bytes that are read: more than caches hold.
const READ: usize = 1 << 29;

/// A number of threads and what they reach at best.
pub struct Pool {
    pub threads: usize,
    pool: rayon::ThreadPool,
    peak: Option<peak::Loop>,
    memory: Vec<u64>,
}

/// What a row is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// f32 multiplications and additions a second, two each multiply-add, of the instruction set in use.
    Flops,
    /// Bytes read from memory a second.
    Bytes,
}

impl Pool {
    pub fn new(threads: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| Failure::Failed(format!("{threads} threads: {e}")))?;
        Ok(Self { threads, pool, peak: peak::of(kin_infer::cpu::selected()?), memory: Vec::new() })
    }

    /// Runs `f` with these threads.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.pool.install(f)
    }

    /// Prepares to measure a limit.
    pub fn prepare(&mut self, limit: Limit) {
        if limit == Limit::Bytes && self.memory.is_empty() {
            self.memory = (0..READ as u64 / 8).collect();
        }
    }

    /// The limit's rate now, where this build can measure it.
    pub fn measure(&self, limit: Limit) -> Option<f64> {
        match limit {
            Limit::Flops => {
                let peak = self.peak?;
                let rates = self.pool.broadcast(|_| {
                    let (start, mut done) = (Instant::now(), 0.0);
                    while start.elapsed() < SAMPLE {
                        done += peak(20_000);
                    }
                    done / start.elapsed().as_secs_f64()
                });
                Some(rates.iter().sum())
            }
            Limit::Bytes => {
                let start = Instant::now();
                let sum: u64 = self.run(|| {
                    let parts = self.memory.par_chunks(self.memory.len().div_ceil(self.threads).max(1));
                    parts.map(read).reduce(|| 0, u64::wrapping_add)
                });
                std::hint::black_box(sum);
                Some((self.memory.len() * 8) as f64 / start.elapsed().as_secs_f64())
            }
        }
    }
}

/// Reads values in eight streams, which keeps more lines in flight than one.
fn read(values: &[u64]) -> u64 {
    const STREAMS: usize = 8;
    let len = values.len() / STREAMS;
    let mut sums = [0u64; STREAMS];
    let streams: [&[u64]; STREAMS] = std::array::from_fn(|s| &values[s * len..(s + 1) * len]);
    for at in (0..len / 8 * 8).step_by(8) {
        for (sum, stream) in sums.iter_mut().zip(&streams) {
            *sum = stream[at..at + 8].iter().fold(*sum, |s, v| s.wrapping_add(*v));
        }
    }
    sums.iter().fold(0, |s, v| s.wrapping_add(*v))
}
