//! [`EmbedWatchdog`]: ends a process whose work has died, so that a restart can go on from what was persisted.
//!
//! ```no_run
//! # fn main() -> kin_infer::Result<()> {
//! use kin_infer::watchdog::{EmbedConfig, EmbedWatchdog};
//!
//! let embedder = kin_infer::Embedder::load(std::path::Path::new("models/all-MiniLM-L6-v2"))?;
//! let watchdog = EmbedWatchdog::start(EmbedConfig::from_env()?, |report| eprintln!("flushing: {report}"));
//! let embedder = embedder.with_run(&watchdog.run());
//! for texts in [["one", "two"], ["three", "four"]] {
//!     let vectors = embedder.embed(&texts)?;
//!     // write `vectors` and sync, then
//!     watchdog.bump(vectors.len() as u64);
//! }
//! watchdog.stop();
//! # Ok(()) }
//! ```
//!
//! What counts is what was persisted; a process that is busy and persists nothing is dead. On a trip the run is
//! cancelled (its forward pass stops at the next layer or tile), the hook runs, and when the process is still there
//! [`exit_grace`](EmbedConfig::exit_grace) later, it ends with [`EXIT_CODE`].

mod config;
mod judge;
mod parent;
mod report;
mod run;

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use config::EmbedConfig;
pub use judge::Trip;
pub use report::Report;
pub use run::{Phase, Place, Run};

use judge::{Judge, Look};
use parent::Parent;

/// The status of a process that the watchdog ends.
pub const EXIT_CODE: i32 = 1;

/// Looks at a run from a thread of its own. Dropping it, or [`stop`](Self::stop), ends the watch.
pub struct EmbedWatchdog {
    current: Arc<Mutex<Run>>,
    /// Dropped to end the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is called on a trip, on a thread of its own.
type Hook = Box<dyn FnOnce(&Report) + Send>;

impl EmbedWatchdog {
    /// Begins run 1 and watches it. `on_trip` is called once, on a trip, to flush what can be kept; it has
    /// [`exit_grace`](EmbedConfig::exit_grace) for it, and so has the report on its way to stderr
    /// ([`report_to_stderr`](EmbedConfig::report_to_stderr)): neither waits for the other. Where the configuration is
    /// disabled there is no thread, and runs only count.
    ///
    /// The parent whose end counts is the one that this process had when its first configuration was made.
    pub fn start(mut config: EmbedConfig, on_trip: impl FnOnce(&Report) + Send + 'static) -> Self {
        // Time counts by looks, each of which is at least so long.
        config.interval = config.interval.max(Duration::from_millis(1));
        let current = Arc::new(Mutex::new(Run::with_id(1)));
        let (alive, ended) = channel();
        let mut watchdog = Self { current: Arc::clone(&current), alive: Some(alive), thread: None };
        if config.enabled {
            let parent = parent::first_seen();
            let watch = move || watch(&config, &current, parent, &ended, Box::new(on_trip));
            match std::thread::Builder::new().name("embed-watchdog".to_string()).spawn(watch) {
                Ok(thread) => watchdog.thread = Some(thread),
                Err(e) => tracing::warn!("no thread for the watchdog, nothing is watched: {e}"),
            }
        }
        watchdog
    }

    /// The current run.
    pub fn run(&self) -> Run {
        lock(&self.current).clone()
    }

    /// Begins the next run: its time and its floor start anew. What the handles of earlier runs still tell counts for
    /// nothing.
    pub fn begin(&self) -> Run {
        let mut current = lock(&self.current);
        *current = Run::with_id(current.id() + 1);
        current.clone()
    }

    /// `n` units of the current run were persisted; see [`Run::bump`].
    pub fn bump(&self, n: u64) {
        lock(&self.current).bump(n);
    }

    /// Ends the watch. After a trip, this is what keeps the process from being ended.
    pub fn stop(self) {}
}

impl Drop for EmbedWatchdog {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there ended the watch as well.
            let _ = thread.join();
        }
    }
}

fn lock(run: &Mutex<Run>) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Looks until the watch ends or a run is dead.
fn watch(config: &EmbedConfig, current: &Mutex<Run>, parent: &Parent, ended: &Receiver<()>, hook: Hook) {
    let start = Instant::now();
    let mut run = lock(current).clone();
    let mut judge = Judge::new(config.clone(), Duration::ZERO, run.persisted());
    while ended.recv_timeout(config.interval) == Err(RecvTimeoutError::Timeout) {
        let now = start.elapsed();
        let newest = lock(current).clone();
        if newest.id() != run.id() {
            run = newest;
            judge = Judge::new(config.clone(), now, 0);
        }
        let look = Look { now, persisted: run.persisted(), orphaned: parent.is_gone() };
        if let Some(trip) = judge.look(look) {
            return end(config, &run, report(trip, &run, &judge), ended, hook);
        }
    }
}

fn report(trip: Trip, run: &Run, judge: &Judge) -> Report {
    let memory = crate::resource::process_memory();
    Report {
        run: run.id(),
        trip,
        place: run.place(),
        persisted: run.persisted(),
        rate: judge.rate(),
        elapsed: judge.elapsed(),
        since_progress: judge.since_progress(),
        resident: memory.resident,
        peak: memory.peak,
        planned: run.planned_bytes(),
    }
}

/// Cancels the run, tells, flushes, and ends the process unless the watch was stopped in time.
fn end(config: &EmbedConfig, run: &Run, report: Report, ended: &Receiver<()>, hook: Hook) {
    run.cancel();
    let start = Instant::now();
    let left = || config.exit_grace.saturating_sub(start.elapsed());
    let (done, all_done) = channel::<()>();
    // A hook that hangs, or a full pipe that nobody reads, is left behind.
    let beside = |name: &str, act: Box<dyn FnOnce() + Send>| {
        let done = done.clone();
        let act = move || {
            act();
            drop(done);
        };
        // Without a thread it is not done: nothing may keep the watch from its end.
        let _ = std::thread::Builder::new().name(name.to_string()).spawn(act);
    };
    if config.report_to_stderr {
        let text = report.to_string();
        // That nobody listens is no reason to stay.
        beside("embed-watchdog-report", Box::new(move || drop(writeln!(std::io::stderr(), "{text}"))));
    }
    beside("embed-watchdog-flush", Box::new(move || hook(&report)));
    drop(done);
    let _ = all_done.recv_timeout(left());
    if ended.recv_timeout(left()) == Err(RecvTimeoutError::Timeout) {
        std::process::exit(EXIT_CODE);
    }
}
