//! The bar on a terminal and the line at the end.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use kin_infer::tokenizer::Window;
use serde_json::Value;

use crate::common::{Compute, tell};
use crate::input::id_field;

/// Counts texts. Shows itself only where stderr is a terminal and not with `--quiet`.
pub struct Progress {
    bar: ProgressBar,
    quiet: bool,
    by_bytes: bool,
    start: Instant,
    items: usize,
}

impl Progress {
    /// `total_bytes` of the input, if known, tell how much is left.
    pub fn new(compute: &Compute, total_bytes: Option<u64>) -> Self {
        let bar = match (compute.quiet, total_bytes) {
            (true, _) => ProgressBar::hidden(),
            (false, Some(total)) => ProgressBar::new(total),
            (false, None) => ProgressBar::new_spinner(),
        };
        let template = match total_bytes {
            Some(_) => "{wide_bar} {percent}% {msg}, {eta} left",
            None => "{spinner} {msg}, {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, quiet: compute.quiet, by_bytes: total_bytes.is_some(), start: Instant::now(), items: 0 }
    }

    /// `items` more are done, `read_bytes` of the input so far.
    pub fn advance(&mut self, items: usize, read_bytes: u64) {
        self.items += items;
        self.bar.set_message(format!("{} texts, {:.0}/s", self.items, self.rate()));
        if self.by_bytes {
            self.bar.set_position(read_bytes);
        } else {
            self.bar.tick();
        }
    }

    /// An error's line, above the bar.
    pub fn error(&self, text: &str) {
        self.bar.suspend(|| tell(&format!("error: {text}")));
    }

    /// A note's line, above the bar, unless `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.bar.suspend(|| tell(text));
        }
    }

    /// Removes the bar and tells how it went: `verb` n texts, time, rate, `rest`.
    pub fn finish(self, verb: &str, rest: &str) {
        self.bar.finish_and_clear();
        if !self.quiet {
            let seconds = self.start.elapsed().as_secs_f64();
            tell(&format!("{verb} {} texts in {seconds:.2} s ({:.0}/s){rest}", self.items, self.rate()));
        }
    }

    fn rate(&self) -> f64 {
        self.items as f64 / self.start.elapsed().as_secs_f64().max(1e-9)
    }
}

/// Counts what was cut to the window, and tells of the first.
#[derive(Default)]
pub struct Cut {
    pub count: usize,
}

impl Cut {
    /// One of `what` was cut.
    pub fn tell(&mut self, progress: &Progress, what: &str, window: &Window, id: &Value) {
        if self.count == 0 {
            let rule = format!("{what} longer than {} tokens ({}) are cut", window.limit, window.source);
            progress.note(&format!("note: {rule}, the first is id {}", id_field(id)));
        }
        self.count += 1;
    }
}
