//! How much is embedded at once: so much that all threads have work, so little that it is soon on disk for good.

use std::time::Duration;

use crate::input::Amount;

/// Texts of a window: at first, at most.
const TEXTS: (usize, usize) = (64, 512);
/// The first window's weight. A model that is slow on this machine has to come to its end within the time that a
/// watchdog gives, so that a run that is begun again and again comes further.
const FIRST: usize = 4 << 10;
/// Most weight of a window.
const MOST: usize = 8 << 20;
/// From one window to the next the weight changes by this factor at most.
const STEP: usize = 4;

/// Chooses the size of windows by what earlier ones took. Weights are what texts cost, in bytes of their text.
#[derive(Debug)]
pub struct Pace {
    /// What a window is to take.
    time: Duration,
    texts: usize,
    weight: usize,
}

impl Pace {
    pub fn new(time: Duration) -> Self {
        Self { time, texts: TEXTS.0, weight: FIRST }
    }

    /// The next window, of at most `most` texts.
    pub fn amount(&self, most: usize) -> Amount {
        Amount { texts: self.texts.min(most), weight: self.weight }
    }

    /// A window took so long, of which texts of this weight were computed; the others were known before.
    pub fn took(&mut self, time: Duration, weight: usize) {
        self.texts = (self.texts * 2).min(TEXTS.1);
        // Where nothing was computed, nothing is known of what computing takes.
        if weight > 0 {
            let rate = weight as f64 / time.as_secs_f64().max(1e-6);
            let wanted = (rate * self.time.as_secs_f64()) as usize;
            self.weight = wanted.clamp(self.weight / STEP, self.weight * STEP).clamp(1, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    /// Embeds `texts`, of which those given with `false` are known, at a rate in bytes a second. The longest window in
    /// seconds, and the number of windows.
    fn run(rate: f64, texts: &[(usize, bool)]) -> (f64, usize) {
        let mut pace = Pace::new(TIME);
        let (mut longest, mut windows, mut rest) = (0f64, 0, texts);
        while !rest.is_empty() {
            let amount = pace.amount(4096);
            let mut weight = 0;
            let fits = |(len, _): &&(usize, bool)| {
                let open = weight < amount.weight;
                weight += len;
                open
            };
            let len = rest.iter().take(amount.texts).take_while(fits).count();
            let (window, after) = rest.split_at(len);
            let computed = window.iter().filter(|(_, new)| *new).map(|(len, _)| len).sum::<usize>();
            let seconds = computed as f64 / rate;
            pace.took(Duration::from_secs_f64(seconds), computed);
            (longest, windows, rest) = (longest.max(seconds), windows + 1, after);
        }
        (longest, windows)
    }

    #[test]
    fn no_window_takes_long_on_any_machine() {
        for rate in [20.0, 100.0, 3e3, 1e5, 1e7, 1e9] {
            for len in [30, 500, 2000, 8000] {
                let (longest, windows) = run(rate, &vec![(len, true); 3000]);
                // A window is closed by the text that passes its weight. The first is not paced yet.
                let most = (1.5 + len as f64 / rate).max((FIRST + len) as f64 / rate);
                assert!(longest <= most, "{rate} bytes a second, texts of {len}: {longest} s");
                // Nor are windows smaller than that needs: each takes half of its time, or is full.
                let enough = (2.0 * 3000.0 * len as f64 / rate) as usize + 3000 / TEXTS.1 + 12;
                assert!(windows <= enough, "{rate} bytes a second, texts of {len}: {windows} windows");
            }
        }
    }

    /// Texts that are in the cache pass quickly, and say nothing of those after them.
    #[test]
    fn known_texts_do_not_count() {
        let mut texts = vec![(2000, false); 20_000];
        texts.extend([(2000, true); 200]);
        let (longest, _) = run(1000.0, &texts);
        assert!(longest <= 6.2, "{longest} s");
    }

    #[test]
    fn fewer_texts_can_be_asked_for() {
        let mut pace = Pace::new(TIME);
        (0..10).for_each(|_| pace.took(Duration::from_millis(1), 1000));
        assert_eq!((pace.amount(5).texts, pace.amount(4096).texts), (5, 512));
    }
}
