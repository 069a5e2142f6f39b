//! Whether a run is dead, decided from looks at it: no clock, no thread, no process.

use std::collections::VecDeque;
use std::time::Duration;

use super::EmbedConfig;

/// Why a run is ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trip {
    /// The process that started this one is gone.
    Orphaned,
    /// The run took longer than it may.
    TooLong {
        /// The limit.
        max: Duration,
    },
    /// Too little was persisted.
    TooSlow {
        /// Units a second over the window.
        rate: f64,
        /// Units a second asked for.
        min_rate: f64,
        /// The window.
        window: Duration,
    },
}

/// What a look sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Monotonic time.
    pub now: Duration,
    /// Units persisted by the run.
    pub persisted: u64,
    /// The parent is gone.
    pub orphaned: bool,
}

/// Judges one run by its looks, whose `now` ascends.
///
/// Time counts by looks: one that comes later than twice the interval says that the machine slept or the process was
/// stopped, and stands for one interval.
pub(super) struct Judge {
    config: EmbedConfig,
    last: Duration,
    /// Time counted since the start.
    elapsed: Duration,
    /// What was persisted at which counted time, over a little more than the window.
    history: VecDeque<(Duration, u64)>,
    progressed: Duration,
}

impl Judge {
    pub fn new(config: EmbedConfig, now: Duration, persisted: u64) -> Self {
        let history = VecDeque::from([(Duration::ZERO, persisted)]);
        Self { config, last: now, elapsed: Duration::ZERO, history, progressed: Duration::ZERO }
    }

    /// Time counted so far.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Time since more was persisted; since the start where nothing was.
    pub fn since_progress(&self) -> Duration {
        self.elapsed - self.progressed
    }

    /// Units a second over the window, or over the time so far where that is shorter.
    pub fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.history.front(), self.history.back()) else { return 0.0 };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { last.1.saturating_sub(first.1) as f64 / seconds } else { 0.0 }
    }

    /// Takes a look and gives the reason to end the run, if there is one.
    pub fn look(&mut self, look: Look) -> Option<Trip> {
        let passed = look.now.saturating_sub(self.last);
        self.last = look.now;
        let interval = self.config.interval;
        let counted = if passed > interval.saturating_mul(2) { interval } else { passed };
        self.elapsed = self.elapsed.saturating_add(counted);
        if self.history.back().is_none_or(|(_, before)| look.persisted > *before) {
            self.progressed = self.elapsed;
        }
        self.history.push_back((self.elapsed, look.persisted));
        // The front stays the last look that is a whole window old.
        let old = self.elapsed.saturating_sub(self.config.floor_window);
        while self.history.get(1).is_some_and(|(at, _)| *at <= old) {
            self.history.pop_front();
        }
        self.verdict(look.orphaned)
    }

    fn verdict(&self, orphaned: bool) -> Option<Trip> {
        let config = &self.config;
        if !config.enabled {
            return None;
        }
        if config.orphan_check && orphaned {
            return Some(Trip::Orphaned);
        }
        if let Some(max) = config.max.filter(|max| self.elapsed > *max) {
            return Some(Trip::TooLong { max });
        }
        let from = config.floor_grace.checked_add(config.floor_window);
        let judged = from.is_some_and(|from| self.elapsed >= from);
        let rate = self.rate();
        let slow = config.min_rate > 0.0 && judged && rate < config.min_rate;
        slow.then_some(Trip::TooSlow { rate, min_rate: config.min_rate, window: config.floor_window })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EmbedConfig {
        EmbedConfig {
            orphan_check: true,
            max: Some(Duration::from_secs(100)),
            min_rate: 2.0,
            floor_window: Duration::from_secs(10),
            floor_grace: Duration::from_secs(5),
            interval: Duration::from_secs(1),
            ..EmbedConfig::production()
        }
    }

    fn look(now: u64, persisted: u64) -> Look {
        Look { now: Duration::from_secs(now), persisted, orphaned: false }
    }

    /// Looks once a second from `from` on while `persisted` says how much there is; gives the second of the trip.
    fn first_trip(
        judge: &mut Judge,
        seconds: std::ops::Range<u64>,
        persisted: impl Fn(u64) -> u64,
    ) -> Option<(u64, Trip)> {
        seconds.into_iter().find_map(|s| judge.look(look(s, persisted(s))).map(|trip| (s, trip)))
    }

    #[test]
    fn a_run_that_persists_enough_lives_until_the_cap() {
        let mut judge = Judge::new(config(), Duration::ZERO, 0);
        let trip = first_trip(&mut judge, 1..200, |s| s * 2);
        assert_eq!(trip, Some((101, Trip::TooLong { max: Duration::from_secs(100) })));
    }

    #[test]
    fn nothing_persisted_trips_once_a_whole_window_follows_the_grace() {
        let mut judge = Judge::new(config(), Duration::ZERO, 0);
        let (at, trip) = first_trip(&mut judge, 1..200, |_| 0).unwrap();
        assert_eq!(at, 15);
        assert_eq!(trip, Trip::TooSlow { rate: 0.0, min_rate: 2.0, window: Duration::from_secs(10) });
        assert_eq!(judge.since_progress(), Duration::from_secs(15));
    }

    #[test]
    fn a_run_that_stalls_trips_when_the_window_has_passed() {
        let mut judge = Judge::new(config(), Duration::ZERO, 0);
        // 10 a second until second 40, then none: from second 48 on the last ten seconds hold fewer than 20.
        let (at, trip) = first_trip(&mut judge, 1..200, |s| s.min(40) * 10).unwrap();
        assert_eq!(at, 49);
        assert_eq!(trip, Trip::TooSlow { rate: 1.0, min_rate: 2.0, window: Duration::from_secs(10) });
        assert_eq!(judge.since_progress(), Duration::from_secs(9));
    }

    #[test]
    fn a_burst_in_each_window_is_enough() {
        let mut judge = Judge::new(config(), Duration::ZERO, 0);
        assert_eq!(first_trip(&mut judge, 1..100, |s| s / 10 * 20), None);
    }

    #[test]
    fn suspend_counts_as_one_interval() {
        let mut judge = Judge::new(config(), Duration::ZERO, 0);
        assert_eq!(first_trip(&mut judge, 1..15, |_| 0), None);
        // Three hours of sleep: neither the cap nor the floor trips for them.
        let mut judge_asleep = Judge::new(config(), Duration::ZERO, 0);
        assert_eq!(first_trip(&mut judge_asleep, 1..10, |_| 0), None);
        assert_eq!(judge_asleep.look(look(10_800, 0)), None);
        assert_eq!(judge_asleep.elapsed(), Duration::from_secs(10));
        assert_eq!(first_trip(&mut judge_asleep, 10_801..10_900, |_| 0).unwrap().0, 10_805);
    }

    /// Times that are longer than any run ask for nothing.
    #[test]
    fn the_longest_times_are_never_reached() {
        let long = Duration::MAX;
        let config = EmbedConfig { floor_window: long, floor_grace: long, interval: long, max: Some(long), ..config() };
        let mut judge = Judge::new(config, Duration::ZERO, 0);
        assert_eq!(first_trip(&mut judge, 1..50, |_| 0), None);
        assert_eq!(judge.look(Look { now: long, persisted: 0, orphaned: false }), None);
        assert_eq!(judge.look(Look { now: long, persisted: 0, orphaned: false }), None);
        assert_eq!(judge.elapsed(), long);
    }

    #[test]
    fn an_orphan_trips_at_once_and_only_where_it_is_asked() {
        let orphan = Look { orphaned: true, ..look(1, 5) };
        assert_eq!(Judge::new(config(), Duration::ZERO, 0).look(orphan), Some(Trip::Orphaned));
        let off = EmbedConfig { orphan_check: false, ..config() };
        assert_eq!(Judge::new(off, Duration::ZERO, 0).look(orphan), None);
        let disabled = EmbedConfig { enabled: false, ..config() };
        assert_eq!(
            Judge::new(disabled, Duration::ZERO, 0).look(Look { now: Duration::from_secs(1000), ..orphan }),
            None
        );
    }
}
