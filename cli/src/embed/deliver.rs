//! Where rows go: to stdout, or into files, batch by batch for good.

use std::time::{Duration, Instant};

use kin_infer::InferError;
use kin_infer::durable::{Conflict, DurableFiles};
use kin_infer::embedder::Counted;
use kin_infer::watchdog::{EmbedConfig, EmbedWatchdog, Phase, Run as Watched};
use serde::{Deserialize, Serialize};

use super::OnLong;
use super::encode::Rows;
use crate::encoder::Encoded;
use crate::failure::{Done, Failure, Result, item_detail};
use crate::input::{Item, Pieces, Place, id_field};
use crate::output::Sink;
use crate::progress::{Count, Cut, Progress};
use crate::rows::Layout;

/// Between two commits at most.
const COMMIT: Duration = Duration::from_secs(1);

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
        Self { layout, target, progress, on_long, cut, failed: 0, batch, committed, durable, watchdog }
    }

    /// Has a watchdog look at what is committed from here on, by the environment's rules.
    pub fn watch(&mut self) -> Result<Watched> {
        // What is committed is on disk already: there is nothing to flush.
        let watchdog = EmbedWatchdog::start(EmbedConfig::from_env()?, |_| ());
        let run = watchdog.run();
        self.watchdog = Some(watchdog);
        Ok(run)
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
    }

    /// Writes a text's row, or tells why there is none.
    pub fn deliver(&mut self, item: &Item, row: &kin_infer::Result<Counted<Encoded>>, rows: &Rows) -> Result<()> {
        let row = match row {
            Ok(row) => row,
            Err(InferError::Cancelled) => return Err(Failure::Failed("ended by the watchdog".to_string())),
            Err(e) => {
                self.fail(format!("id {}: {}", id_field(&item.id), item_detail(e)));
                return Ok(());
            }
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
        self.batch.tokens += row.tokens;
        let term = |id| rows.encoder.term(id);
        match &mut self.target {
            Target::Stdout(sink) => sink.put(&self.layout.line(&item.id, row, term)?),
            Target::Files(files) => self.layout.append(files, &item.id, row, term),
        }
    }

    /// Whether a commit is due: a second after the last, or after so many texts. A reader of stdout sees all at once.
    pub fn is_due(&self, texts: usize) -> bool {
        matches!(self.target, Target::Stdout(_))
            || self.batch.texts + self.batch.failed.len() >= texts
            || self.committed.elapsed() >= COMMIT
    }

    /// What was delivered so far counts from here on.
    pub fn commit(&mut self, pieces: &Pieces) -> Result<()> {
        self.committed = Instant::now();
        let mut batch = std::mem::take(&mut self.batch);
        match &mut self.target {
            Target::Stdout(sink) => sink.flush()?,
            Target::Files(files) => {
                batch.place = pieces.place();
                let watchdog = self.watchdog.as_ref();
                watchdog.iter().for_each(|w| w.run().enter(Phase::Write));
                files.commit(&batch)?;
                watchdog.iter().for_each(|w| w.bump((batch.texts + batch.failed.len()) as u64));
                self.durable = true;
            }
        }
        self.progress.advance(batch.texts, batch.tokens, pieces.records().read_bytes);
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
