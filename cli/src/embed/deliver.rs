//! Where rows go: to stdout, or into files, batch by batch for good.

use std::time::{Duration, Instant};

use kin_infer::InferError;
use kin_infer::durable::{Conflict, DurableFiles};
use kin_infer::embedder::Counted;
use kin_infer::watchdog::{EmbedConfig, EmbedWatchdog, Phase, Run as Watched};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OnLong;
use super::encode::Rows;
use crate::encoder::Encoded;
use crate::failure::{Done, Failure, Result, item_detail};
use crate::input::{Item, Pieces, Place, id_field};
use crate::output::Sink;
use crate::progress::{Count, Cut, Progress};
use crate::rows::Layout;

/// Between two commits.
pub const COMMIT: Duration = Duration::from_secs(1);

/// What the journal keeps of a batch.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// After it.
    pub place: Place,
    pub texts: usize,
    pub tokens: usize,
    pub cut: usize,
    pub failed: Vec<String>,
}

pub enum Target {
    Stdout(Sink),
    Files(DurableFiles<Batch>),
}

/// Writes rows, and tells of those that fail.
pub struct Delivery {
    layout: Layout,
    target: Target,
    pub progress: Progress,
    on_long: OnLong,
    cut: Cut,
    failed: usize,
    /// Since the last commit.
    batch: Batch,
    /// What of it counts as progress for the watchdog.
    units: u64,
    committed: Instant,
    /// Something is on disk for good.
    pub durable: bool,
    watchdog: Option<EmbedWatchdog>,
}

impl Delivery {
    pub fn new(layout: Layout, target: Target, progress: Progress, on_long: OnLong) -> Self {
        let (cut, batch) = (Cut::default(), Batch::default());
        let committed = Instant::now();
        let (durable, watchdog) = (false, None);
        Self { layout, target, progress, on_long, cut, failed: 0, batch, units: 0, committed, durable, watchdog }
    }

    /// Has a watchdog look at what is committed from here on.
    pub fn watch(&mut self, config: EmbedConfig) -> Watched {
        // What is committed is on disk already: there is nothing to flush.
        let watchdog = EmbedWatchdog::start(EmbedConfig { report_to_stderr: false, ..config }, self.progress.trip());
        let run = watchdog.run();
        self.watchdog = Some(watchdog);
        run
    }

    /// Goes to where earlier sessions came to; what failed in them is told again.
    pub fn begin(&mut self, pieces: &mut Pieces, earlier: &[Batch], total_bytes: Option<u64>) -> Result<()> {
        let mut before = Count::default();
        for batch in earlier {
            before.texts += batch.texts;
            before.tokens += batch.tokens;
            self.cut.count += batch.cut;
            self.failed += batch.failed.len();
            batch.failed.iter().for_each(|why| self.progress.error(why));
        }
        if let Some(last) = earlier.last() {
            self.progress.phase("going to where the run was");
            if !pieces.go_to(&last.place)? {
                return Err(self.changed(&last.place, pieces).into());
            }
            before.bytes = pieces.records().read_bytes;
            self.durable = true;
            self.progress.note(&format!("note: {} texts are there already", before.texts));
        }
        self.progress.begin("embedding", total_bytes, before);
        Ok(())
    }

    /// The input does not begin as it did.
    fn changed(&self, place: &Place, pieces: &Pieces) -> InferError {
        let target = match &self.target {
            Target::Stdout(_) => "stdout".into(),
            Target::Files(files) => files.target().to_path_buf(),
        };
        let (what, recorded, found) = ("input".to_string(), place.input.clone(), pieces.records().digest());
        InferError::RunConflict { target, conflict: Conflict::Changed { what, recorded, found } }
    }

    /// An input that gives no row.
    pub fn fail(&mut self, why: String) {
        self.progress.error(&why);
        self.failed += 1;
        self.batch.failed.push(why);
        self.units += 1;
    }

    /// Writes a text's row, or tells why there is none.
    pub fn deliver(&mut self, item: &Item, row: &kin_infer::Result<Counted<Encoded>>, rows: &Rows) -> Result<()> {
        let row = match row {
            Ok(row) => row,
            Err(e) => return failure(&item.id, e).map(|why| self.fail(why)),
        };
        if row.truncated {
            let window = &rows.encoder.window_of(&rows.request);
            if self.on_long == OnLong::Error {
                let limit = format!("longer than {} tokens ({})", window.limit, window.source);
                self.fail(format!("id {}: {limit}", id_field(&item.id)));
                return Ok(());
            }
            self.cut.tell(&self.progress, "texts", window, &item.id);
            self.batch.cut += 1;
        }
        self.batch.texts += 1;
        self.units += units(row.tokens);
        self.batch.tokens += row.tokens;
        let term = |id| rows.encoder.term(id);
        match &mut self.target {
            Target::Stdout(sink) => sink.put(&self.layout.line(&item.id, row, term)?),
            Target::Files(files) => self.layout.append(files, &item.id, row, term),
        }
    }

    /// Texts, failed ones among them, that are not committed.
    pub fn pending(&self) -> usize {
        self.batch.texts + self.batch.failed.len()
    }

    /// Whether a commit is due: so long after the last, or after so many texts. A reader of stdout sees all at once.
    pub fn is_due(&self, time: Duration, texts: usize) -> bool {
        matches!(self.target, Target::Stdout(_)) || self.pending() >= texts || self.committed.elapsed() >= time
    }

    /// What was delivered so far counts from here on; it is the input up to `place`.
    pub fn commit(&mut self, place: Place) -> Result<()> {
        self.committed = Instant::now();
        let (mut batch, units) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.units));
        let read_bytes = place.bytes;
        match &mut self.target {
            Target::Stdout(sink) => sink.flush()?,
            Target::Files(files) => {
                batch.place = place;
                let watchdog = self.watchdog.as_ref();
                watchdog.iter().for_each(|w| w.run().enter(Phase::Write));
                files.commit(&batch)?;
                watchdog.iter().for_each(|w| w.bump(units));
                self.durable = true;
            }
        }
        self.progress.advance(batch.texts, batch.tokens, read_bytes);
        Ok(())
    }

    /// Makes the output whole, and tells how it went.
    pub fn finish(mut self, keep: bool, known: usize) -> Result<Done> {
        self.progress.phase("finishing the output");
        drop(self.watchdog.take());
        match self.target {
            Target::Stdout(sink) => sink.commit()?,
            Target::Files(files) => self.layout.finish(files, keep)?,
        }
        let rest = [
            ("dimensions", self.layout.dimension),
            ("known before", known),
            ("cut to the window", self.cut.count),
            ("failed", self.failed),
        ];
        self.progress.finish("embedded", &rest);
        Ok(Done::with_failures(self.failed))
    }
}

/// What a text of so many tokens counts for the watchdog: long ones take longer, and are no sign of death.
fn units(tokens: usize) -> u64 {
    /// Tokens of one unit.
    const UNIT: usize = 512;
    tokens.div_ceil(UNIT).max(1) as u64
}

/// Why a text has no row, to be told and kept: what is the text's own fault, and would be the same in any other run.
///
/// # Errors
/// Everything else, such as too little memory or a device that failed, ends the run: another one gives that text its row.
fn failure(id: &Value, error: &InferError) -> Result<String> {
    let why = format!("id {}: {}", id_field(id), item_detail(error));
    if error.is_of_item() { Ok(why) } else { Err(Failure::Failed(why)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_counts_as_several() {
        assert_eq!([0, 1, 512, 513, 8192].map(units), [1, 1, 1, 2, 16]);
    }

    #[test]
    fn only_what_is_wrong_with_a_text_is_kept() {
        let text = || "x".to_string();
        let kept = [
            InferError::input(3, "too long"),
            InferError::NonFiniteOutput { item: 3, stage: text() },
            InferError::TokenizerError { file: "tokenizer.json".into(), detail: text() },
        ];
        for error in kept {
            let why = failure(&"d7".into(), &error).expect("kept");
            assert!(why.starts_with("id d7: ") && !why.contains("input 3"), "{why}");
        }
        let ends = [
            InferError::OutOfMemory { what: "activations".to_string(), bytes: 1 << 40 },
            InferError::BackendError { backend: "cuda".to_string(), operation: text(), detail: text() },
            InferError::io("model.safetensors", std::io::ErrorKind::UnexpectedEof.into()),
            InferError::InvalidArgument(text()),
        ];
        for error in ends {
            let Err(Failure::Failed(why)) = failure(&"d7".into(), &error) else { panic!("{error} is kept") };
            assert_eq!(why, format!("id d7: {error}"));
        }
    }
}
