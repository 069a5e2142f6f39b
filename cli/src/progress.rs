//! What a long command is doing: the bar on a terminal, lines elsewhere, events for machines, and the line at the end.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use kin_infer::tokenizer::Window;
use kin_infer::watchdog::Report;
use serde_json::{Value, json};

use crate::common::Compute;
use crate::input::id_field;
use crate::talk;

/// Between two lines where stderr is no terminal.
const LINES: Duration = Duration::from_secs(30);
/// Between two events.
const EVENTS: Duration = Duration::from_secs(1);

/// Counts texts and tells how far they are. With `--quiet` it tells errors only.
pub struct Progress {
    bar: ProgressBar,
    quiet: bool,
    phase: String,
    start: Instant,
    told: Instant,
    done: Count,
    /// What earlier sessions of the run did.
    before: Count,
    total_bytes: Option<u64>,
}

/// An amount of work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Count {
    pub texts: usize,
    pub tokens: usize,
    /// Bytes of the input.
    pub bytes: u64,
}

impl Progress {
    /// Without a bar where data goes to the terminal that it would be drawn on.
    pub fn new(compute: &Compute, data_to_stdout: bool) -> Self {
        let in_the_way = data_to_stdout && stdout().is_terminal();
        let hidden = compute.quiet || in_the_way || talk::is_json();
        let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let now = Instant::now();
        let (phase, count) = (String::new(), Count::default());
        Self { bar, quiet: compute.quiet, phase, start: now, told: now, done: count, before: count, total_bytes: None }
    }

    /// What is done from now on.
    pub fn phase(&mut self, phase: &str) {
        self.phase = phase.to_string();
        self.bar.set_style(style("{spinner} {msg}, {elapsed}"));
        self.bar.set_message(phase.to_string());
        if talk::is_json() && !self.quiet {
            talk::event("phase", json!({"phase": phase}));
        }
    }

    /// The work itself begins: rates count from here. `total_bytes` of the input, if known, tell how much is left;
    /// `before` is done already.
    pub fn begin(&mut self, phase: &str, total_bytes: Option<u64>, before: Count) {
        self.phase(phase);
        (self.start, self.told) = (Instant::now(), Instant::now());
        (self.before, self.total_bytes) = (before, total_bytes);
        if let Some(total) = total_bytes {
            self.bar.set_length(total);
            self.bar.set_position(before.bytes);
            self.bar.set_style(style("{wide_bar} {percent}% {msg}"));
        }
    }

    /// More is done; `bytes` of the input so far.
    pub fn advance(&mut self, texts: usize, tokens: usize, bytes: u64) {
        self.done.texts += texts;
        self.done.tokens += tokens;
        self.done.bytes = bytes.saturating_sub(self.before.bytes);
        self.bar.set_position(bytes);
        let words = self.words();
        self.bar.set_message(words.clone());
        let pause = if talk::is_json() { EVENTS } else { LINES };
        if self.quiet || self.told.elapsed() < pause {
            return;
        }
        self.told = Instant::now();
        if talk::is_json() {
            self.event("progress", json!({}));
        } else if self.bar.is_hidden() {
            let share = self.total_bytes.map_or(String::new(), |total| format!(" {}%,", bytes * 100 / total.max(1)));
            talk::tell(&format!("{}:{share} {words}", self.phase));
        }
    }

    fn words(&self) -> String {
        let left = self.left().map_or(String::new(), |left| format!(", {} left", HumanDuration(left)));
        let tokens =
            if self.done.tokens > 0 { format!(", {:.0} tokens/s", self.rate(self.done.tokens)) } else { String::new() };
        format!("{} texts, {:.0}/s{tokens}{left}", self.before.texts + self.done.texts, self.rate(self.done.texts))
    }

    fn event(&self, name: &str, more: Value) {
        let mut fields = json!({
            "phase": self.phase,
            "texts": self.before.texts + self.done.texts,
            "tokens": self.before.tokens + self.done.tokens,
            "texts_per_second": self.rate(self.done.texts),
            "tokens_per_second": self.rate(self.done.tokens),
            "read_bytes": self.before.bytes + self.done.bytes,
            "total_bytes": self.total_bytes,
            "seconds_left": self.left().map(|left| left.as_secs()),
        });
        if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
            fields.extend(more);
        }
        talk::event(name, fields);
    }

    /// By the bytes of the input that are left, and the time those of this session took.
    fn left(&self) -> Option<Duration> {
        let left = self.total_bytes?.saturating_sub(self.before.bytes + self.done.bytes);
        let seconds = self.start.elapsed().as_secs_f64() * left as f64 / self.done.bytes.max(1) as f64;
        (self.done.bytes > 0).then(|| Duration::try_from_secs_f64(seconds.round()).unwrap_or(Duration::MAX))
    }

    /// An error, above the bar.
    pub fn error(&self, text: &str) {
        self.bar.suspend(|| talk::error(text));
    }

    /// Tells of the watchdog's end of the run, above the bar, from another thread.
    pub fn trip(&self) -> impl FnOnce(&Report) + Send + 'static {
        let bar = self.bar.clone();
        move |report| bar.suspend(|| talk::trip(report))
    }

    /// A note, above the bar, unless `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.bar.suspend(|| talk::tell(text));
        }
    }

    /// Removes the bar and tells how it went: `verb` n texts, time, rate, and `rest`: numbers of things, those of them
    /// that are not 0.
    pub fn finish(self, verb: &str, rest: &[(&str, usize)]) {
        self.bar.finish_and_clear();
        if self.quiet {
            return;
        }
        if talk::is_json() {
            let fields = rest.iter().map(|(what, n)| (what.replace(' ', "_"), json!(n)));
            return self.event("done", Value::Object(fields.collect()));
        }
        let seconds = self.start.elapsed().as_secs_f64();
        let Count { texts, tokens, .. } = self.done;
        let tokens = if tokens > 0 { format!(", {:.0} tokens/s", self.rate(tokens)) } else { String::new() };
        let all = self.before.texts + texts;
        let all = if self.before.texts > 0 { format!(", {all} with those of before") } else { String::new() };
        let rest: String = rest.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!(", {n} {what}")).collect();
        talk::tell(&format!("{verb} {texts} texts in {seconds:.2} s ({:.0}/s{tokens}){all}{rest}", self.rate(texts)));
    }

    fn rate(&self, amount: usize) -> f64 {
        amount as f64 / self.start.elapsed().as_secs_f64().max(1e-9)
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
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
