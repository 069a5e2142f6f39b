//! What is told on stderr: lines for people, or JSON lines for machines.

use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

use clap::ValueEnum;
use kin_infer::watchdog::Report;
use serde_json::{Map, Value, json};

/// How stderr is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// For people: a progress bar on a terminal, a line now and then elsewhere
    #[default]
    Text,
    /// One JSON object a line: {"seconds": since the start, "event": ..., ...}. Events: phase, progress, note, error,
    /// watchdog, done
    Json,
}

/// The format, and when the program began.
static LOG: OnceLock<(LogFormat, Instant)> = OnceLock::new();

/// Chooses the format; the first call decides.
pub fn set_format(format: LogFormat) {
    LOG.get_or_init(|| (format, Instant::now()));
}

pub fn is_json() -> bool {
    LOG.get().is_some_and(|(format, _)| *format == LogFormat::Json)
}

/// A line, or a note event.
pub fn tell(text: &str) {
    if is_json() {
        event("note", json!({"message": text.strip_prefix("note: ").unwrap_or(text)}));
    } else {
        line(text);
    }
}

/// An error's line, or event.
pub fn error(text: &str) {
    if is_json() {
        event("error", json!({"message": text}));
    } else {
        line(&format!("error: {text}"));
    }
}

/// Why the watchdog ends a run: its report's lines, or an event with its fields.
pub fn trip(report: &Report) {
    if !is_json() {
        return line(&report.to_string());
    }
    let place = &report.place;
    event(
        "watchdog",
        json!({
            "message": report.trip.to_string(),
            "phase": place.phase.name(),
            "item": place.item,
            "layer": place.layer,
            "persisted": report.persisted,
            "persisted_per_second": report.rate,
            "run_seconds": report.elapsed.as_secs_f64(),
            "seconds_since_progress": report.since_progress.as_secs_f64(),
            "resident_bytes": report.resident,
            "peak_bytes": report.peak,
            "planned_bytes": report.planned,
        }),
    );
}

/// An event of [`LogFormat::Json`], with the fields of an object.
pub fn event(name: &str, fields: Value) {
    let seconds = LOG.get().map_or(0.0, |(_, start)| start.elapsed().as_secs_f64());
    let mut object = Map::from_iter([
        ("seconds".to_string(), json!((seconds * 1000.0).round() / 1000.0)),
        ("event".to_string(), json!(name)),
    ]);
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    line(&Value::Object(object).to_string());
}

/// That nobody listens is no reason to fail.
fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
