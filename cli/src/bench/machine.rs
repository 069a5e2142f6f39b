//! What the machine can do at the moment: multiply-adds and bytes read a second, with a number of threads.

use std::time::{Duration, Instant};

use kin_infer::cpu::bandwidth::Probe;
use kin_infer::cpu::peak;

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
    memory: Option<Probe>,
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
        Ok(Self { threads, pool, peak: peak::of(kin_infer::cpu::selected()?), memory: None })
    }

    /// Runs `f` with these threads.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.pool.install(f)
    }

    /// Prepares to measure a limit.
    pub fn prepare(&mut self, limit: Limit) -> Result<()> {
        if limit == Limit::Bytes && self.memory.is_none() {
            self.memory = Some(self.pool.install(|| Probe::new(READ))?);
        }
        Ok(())
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
                let memory = self.memory.as_ref()?;
                Some(READ as f64 / self.run(|| memory.seconds(READ)))
            }
        }
    }
}
