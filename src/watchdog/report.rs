//! What is told of a run that is ended.

use std::fmt;
use std::time::Duration;

use super::judge::Trip;
use super::run::Place;

/// Why a run is ended, where it was, and how it did.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The run.
    pub run: u64,
    /// Why.
    pub trip: Trip,
    /// Where it was last.
    pub place: Place,
    /// Units persisted.
    pub persisted: u64,
    /// Units a second over the floor's window.
    pub rate: f64,
    /// Time the run took, without sleep.
    pub elapsed: Duration,
    /// Time since the last unit was persisted; since the start where none was.
    pub since_progress: Duration,
    /// Memory the process takes and took at most, in bytes, where the system says.
    pub resident: Option<u64>,
    /// See `resident`.
    pub peak: Option<u64>,
    /// Memory the run was planned to take.
    pub planned: Option<u64>,
}

impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orphaned => f.write_str("the process that started it is gone (KIN_EMBED_ORPHAN_CHECK)"),
            Self::TooLong { max } => {
                write!(f, "it took longer than {} s (KIN_EMBED_MAX_SECS)", max.as_secs_f64())
            }
            Self::TooSlow { rate, min_rate, window } => write!(
                f,
                "{rate:.3} units a second persisted over the last {} s, the floor is {min_rate} (KIN_EMBED_MIN_RATE)",
                window.as_secs_f64()
            ),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "watchdog: run {} is ended: {}", self.run, self.trip)?;
        write!(f, "  phase {}", self.place.phase.name())?;
        if let Some(item) = self.place.item {
            write!(f, ", item {item}")?;
        }
        if let Some(layer) = self.place.layer {
            write!(f, ", layer {layer}")?;
        }
        let (elapsed, since) = (self.elapsed.as_secs_f64(), self.since_progress.as_secs_f64());
        writeln!(f)?;
        writeln!(f, "  {} units persisted in {elapsed:.1} s, {:.3} a second lately", self.persisted, self.rate)?;
        writeln!(f, "  last progress {since:.1} s ago")?;
        let mib = |bytes: Option<u64>| bytes.map_or("unknown".to_string(), |b| format!("{} MiB", b.div_ceil(1 << 20)));
        write!(f, "  memory {}, peak {}, planned {}", mib(self.resident), mib(self.peak), mib(self.planned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::Phase;

    #[test]
    fn a_report_names_everything() {
        let report = Report {
            run: 3,
            trip: Trip::TooSlow { rate: 0.125, min_rate: 2.0, window: Duration::from_secs(30) },
            place: Place { phase: Phase::Forward, item: Some(41), layer: Some(5) },
            persisted: 1000,
            rate: 0.125,
            elapsed: Duration::from_millis(90_500),
            since_progress: Duration::from_secs(28),
            resident: Some(100 << 20),
            peak: Some((120 << 20) + 1),
            planned: None,
        };
        let expected = "\
watchdog: run 3 is ended: 0.125 units a second persisted over the last 30 s, the floor is 2 (KIN_EMBED_MIN_RATE)
  phase forward, item 41, layer 5
  1000 units persisted in 90.5 s, 0.125 a second lately
  last progress 28.0 s ago
  memory 100 MiB, peak 121 MiB, planned unknown";
        assert_eq!(report.to_string(), expected);
    }
}
