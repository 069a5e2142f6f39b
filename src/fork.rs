//! Forks and joins of microseconds: [`each`] runs the parts of one operation side by side, [`team`] keeps threads at hand
//! for many operations in a row.
//!
//! A pool lets a thread without work sleep, and waking it takes longer than a small operation. The threads of a team spin
//! instead, from the first operation of a forward pass to its last.

use std::any::Any;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rayon::prelude::*;

/// How often a waiting thread looks before it lets others run in between.
const SPINS: usize = 1 << 10;

/// The parts of one operation: `next` is the first that nobody has taken.
struct Job<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    parts: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Runs parts until none is left.
    fn work(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            let run = std::panic::AssertUnwindSafe(|| (self.run)(part));
            if let Err(panic) = std::panic::catch_unwind(run) {
                self.next.fetch_max(self.parts, Ordering::Relaxed);
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
    }
}

/// Threads that wait for the jobs of one other.
#[derive(Default)]
struct Team {
    /// The job at hand, or null. It lives at least until `inside` is 0 after it was taken away here.
    job: AtomicPtr<Job<'static>>,
    /// Counts jobs, so that a member joins each once.
    count: AtomicUsize,
    /// Members that may hold the job.
    inside: AtomicUsize,
    dismissed: AtomicBool,
}

thread_local! {
    /// The team that this thread leads.
    static LED: Cell<Option<*const Team>> = const { Cell::new(None) };
    /// Whether this thread follows a team.
    static FOLLOWS: Cell<bool> = const { Cell::new(false) };
}

impl Team {
    /// Joins the leader's jobs until the team is dismissed. A thread that leads a team, or follows one, comes here when it
    /// waits for other work of the pool and takes this up: it would keep its own team waiting for this one.
    fn follow(&self) {
        if LED.get().is_some() || FOLLOWS.replace(true) {
            return;
        }
        self.follow_jobs();
        FOLLOWS.set(false);
    }

    fn follow_jobs(&self) {
        let (mut seen, mut spins) = (0, 0);
        while !self.dismissed.load(Ordering::Acquire) {
            let count = self.count.load(Ordering::Acquire);
            if count == seen {
                wait(&mut spins);
                continue;
            }
            (seen, spins) = (count, 0);
            // Sequentially consistent, as in `lead`: either this sees that the job is gone, or the leader that somebody is
            // inside.
            self.inside.fetch_add(1, Ordering::SeqCst);
            let job = self.job.load(Ordering::SeqCst);
            if !job.is_null() {
                // SAFETY: the leader keeps the job alive while a member that saw it is inside.
                unsafe { &*job }.work();
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Runs a job with whichever members come, and waits for them.
    fn lead(&self, job: &Job) {
        let shared = std::ptr::from_ref(job).cast_mut().cast::<Job<'static>>();
        self.job.store(shared, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::Release);
        job.work(); // catches panics: what follows is always reached
        self.job.store(std::ptr::null_mut(), Ordering::SeqCst);
        let mut spins = 0;
        while self.inside.load(Ordering::SeqCst) != 0 {
            wait(&mut spins);
        }
    }
}

fn wait(spins: &mut usize) {
    *spins += 1;
    if spins.is_multiple_of(SPINS) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Undoes what a leader has set, also when it panics.
struct Dismissal<'a>(&'a Team);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        LED.set(None);
        self.0.dismissed.store(true, Ordering::Release);
    }
}

/// Runs `f` on a thread of the current rayon pool; each [`each`] that it calls there is shared with the pool's other
/// threads, which wait for them, spinning. Inside another team it only runs `f`.
pub(crate) fn team<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let team = Team::default();
    rayon::scope(|scope| {
        if threads() == 1 || LED.get().is_some() {
            return f();
        }
        let _dismissal = Dismissal(&team);
        (1..threads()).for_each(|_| scope.spawn(|_| team.follow()));
        LED.set(Some(&raw const team));
        f()
    })
}

/// Threads that [`each`] can share parts with: more parts than these gain nothing.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Runs `run` for every part `0..parts`, side by side where there are threads, and returns when all are done.
pub(crate) fn each(parts: usize, run: impl Fn(usize) + Sync) {
    if parts <= 1 || threads() == 1 {
        return (0..parts).for_each(run);
    }
    let Some(team) = LED.get() else {
        let most = parts.div_ceil(8 * threads());
        return (0..parts).into_par_iter().with_max_len(most).for_each(&run);
    };
    let job = Job { run: &run, parts, next: AtomicUsize::new(0), panic: Mutex::new(None) };
    // SAFETY: `LED` holds a team only while the call of `team` that owns it is on this thread's stack.
    unsafe { &*team }.lead(&job);
    if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        std::panic::resume_unwind(panic);
    }
}

/// As [`each`], with an item for every part.
pub(crate) fn each_of<T: Send>(items: Vec<T>, run: impl Fn(T) + Sync) {
    let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    each(items.len(), |part| {
        let item = items[part].lock().unwrap_or_else(PoisonError::into_inner).take();
        item.into_iter().for_each(&run);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    fn sum_of_parts(parts: usize) -> usize {
        let sum = AtomicUsize::new(0);
        each(parts, |part| {
            sum.fetch_add(part + 1, Ordering::Relaxed);
        });
        sum.into_inner()
    }

    #[test]
    fn every_part_runs_once_in_and_outside_a_team() {
        for threads in [1, 2, 5] {
            pool(threads).install(|| {
                for parts in [0, 1, 2, 7, 100] {
                    assert_eq!(sum_of_parts(parts), parts * (parts + 1) / 2);
                    team(|| (0..200).for_each(|_| assert_eq!(sum_of_parts(parts), parts * (parts + 1) / 2)));
                }
            });
        }
        // From a thread outside every pool.
        assert_eq!(team(|| sum_of_parts(9)), 45);
    }

    #[test]
    fn every_item_is_handed_out_once() {
        let mut values = vec![0usize; 100];
        let parts: Vec<(usize, &mut [usize])> = values.chunks_mut(7).enumerate().collect();
        pool(3).install(|| team(|| each_of(parts, |(i, part)| part.iter_mut().for_each(|v| *v += i + 1))));
        assert!(values.iter().enumerate().all(|(i, v)| *v == i / 7 + 1), "{values:?}");
    }

    #[test]
    fn teams_of_several_callers_and_teams_within_teams_end() {
        let pool = pool(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| pool.install(|| team(|| (0..100).for_each(|_| assert_eq!(sum_of_parts(8), 36)))));
            }
        });
        pool.install(|| team(|| assert_eq!(team(|| sum_of_parts(8)), 36)));
        // The parts of a team's job may fork as well.
        let sum = AtomicUsize::new(0);
        pool.install(|| {
            team(|| {
                each(4, |_| {
                    sum.fetch_add(sum_of_parts(3), Ordering::Relaxed);
                });
            });
        });
        assert_eq!(sum.into_inner(), 24);
    }

    /// A thread that waits for the pool takes up what others have spawned there: also the places of a team.
    #[test]
    fn who_leads_or_follows_a_team_joins_no_other() {
        let (other, done) = (Team::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = std::time::Instant::now();
                while !done.load(Ordering::Acquire) && start.elapsed().as_secs() < 10 {
                    std::thread::yield_now();
                }
                other.dismissed.store(true, Ordering::Release);
            });
            // Parts long enough that members come.
            let wait = || std::thread::sleep(std::time::Duration::from_millis(2));
            pool(3).install(|| {
                team(|| {
                    each(16, |_| {
                        wait();
                        other.follow();
                    });
                });
            });
            assert!(!other.dismissed.load(Ordering::Acquire), "somebody stayed with the other team");
            done.store(true, Ordering::Release);
        });
        let sum_of_pool = |n: usize| (0..n).into_par_iter().with_max_len(1).map(|i| i + 1).sum::<usize>();
        pool(3).install(|| {
            team(|| {
                assert_eq!(sum_of_pool(20), 210);
                each(4, |_| assert_eq!(sum_of_pool(9) + sum_of_parts(3), 51));
            });
        });
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = pool(2);
        for _ in 0..20 {
            let run = || pool.install(|| team(|| each(8, |part| assert!(part != 3, "part 3"))));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
            assert_eq!(pool.install(|| team(|| sum_of_parts(8))), 36);
        }
    }
}
