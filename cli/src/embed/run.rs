//! A run: from records to rows that are on disk for good.

use std::time::{Duration, Instant};

use kin_infer::InferError;
use kin_infer::durable::{Conflict, Found, Locked, Resumed, model_digest};

use super::Args;
use super::deliver::{Batch, Delivery, Target};
use super::encode::Rows;
use crate::encoder::Plan;
use crate::failure::{Done, Failure, Result};
use crate::input::{Pieces, Records, Split, Splitter, Survey};
use crate::interrupt::Interrupt;
use crate::output::Sink;
use crate::progress::Progress;
use crate::rows::Layout;
use crate::talk;

/// Texts that are embedded at once: at first, at least, at most.
const WINDOW: (usize, usize, usize) = (64, 16, 512);
/// How long a window may take before it is made smaller; under a quarter of it, it is made larger.
const WINDOW_TIME: Duration = Duration::from_secs(2);
/// What is known of a run before its first text.
struct Start {
    split: Split,
    /// Of the input, if it could be read before.
    survey: Option<Survey>,
    /// What earlier sessions committed.
    earlier: Vec<Batch>,
}

pub fn run(mut args: Args) -> Result<Done> {
    talk::set_format(args.log_format);
    let texts = std::mem::take(&mut args.texts);
    let own: Vec<_> = args.file().into_iter().chain(args.cache.as_deref()).collect();
    let records = Records::open(&texts, &args.input, &own)?;
    let folder = args.model.folder()?;
    let plan = Plan::new(&folder, args.pooling)?;
    args.check(plan.kind)?;
    let mut layout = Layout { format: args.format(), kind: plan.kind, extras: args.extras(), dimension: 0 };
    layout.check(args.file())?;
    args.split.map(Split::cuts).transpose()?;
    let locked = lock(&args)?;
    let mut progress = Progress::new(&args.compute, locked.is_none());
    progress.phase("loading the model");
    let precision = args.precision.get();
    let encoder = plan.load(args.compute.open_for(precision)?, precision)?;
    let request = encoder.adapt(args.request());
    // Options the model cannot serve fail here, before any text.
    encoder.encode(&[], &request)?;
    encoder.notes(&request).iter().for_each(|note| progress.note(&format!("note: {note}")));
    let mut rows = Rows::new(encoder, request);
    layout.dimension = rows.dimension;
    let mut identity = Vec::new();
    if args.cache.is_some() || locked.is_some() {
        progress.phase("hashing the model");
        identity = model_identity(&args, &rows, model_digest(&folder)?);
    }
    if let Some(path) = &args.cache {
        rows.open_cache(path, identity.clone())?;
    }
    let split = args.split.unwrap_or(if records.is_folder() { Split::Lines } else { Split::None });
    let mut start = Start { split, survey: None, earlier: Vec::new() };
    let target = match locked {
        None => Target::Stdout(Sink::stdout()),
        Some(locked) => {
            progress.phase("reading the input");
            start.survey = Records::survey(&texts, &args.input, &own)?;
            identity.extend(run_identity(&args, &layout, &start));
            progress.phase("checking what is there");
            match begin(locked, &args, &identity, &layout, &mut start.earlier)? {
                Resumed::Unfinished(files) => Target::Files(files),
                Resumed::Finished => return Ok(finished(&start.earlier, &progress)),
            }
        }
    };
    let windows = WINDOW.0.min(args.checkpoint as usize);
    let out = Delivery::new(layout, target, progress, args.on_long);
    Run { args: &args, rows, out, windows }.all(records, start)
}

/// Takes the output, if it is a file, unless that loses what an unfinished run made.
fn lock(args: &Args) -> Result<Option<Locked>> {
    let Some(path) = args.file() else { return Ok(None) };
    let locked = Locked::lock(path)?;
    let no = |why: &str| Err(Failure::Failed(format!("{}: {why}", path.display())));
    match locked.found()? {
        Found::Unfinished { .. } if !args.resume && !args.restart => {
            no("an unfinished run is there; --resume goes on with it, --restart begins anew")
        }
        Found::Nothing if args.resume && path.exists() => {
            no("it is there, and no journal of its run: nothing to go on with; --restart replaces it")
        }
        _ => Ok(Some(locked)),
    }
}

/// Begins or goes on, as the arguments say; `earlier` gets what was committed before.
fn begin(
    locked: Locked,
    args: &Args,
    identity: &[(String, String)],
    layout: &Layout,
    earlier: &mut Vec<Batch>,
) -> Result<Resumed<Batch>> {
    if !args.resume {
        return Ok(Resumed::Unfinished(locked.start(identity, &layout.parts())?));
    }
    locked.resume(identity, &layout.parts(), |batch| earlier.push(batch)).map_err(explain)
}

/// A conflict, and what to do about it.
fn explain(error: InferError) -> Failure {
    let changed = matches!(&error, InferError::RunConflict { conflict, .. }
        if matches!(conflict, Conflict::Changed { .. } | Conflict::Lost { .. }));
    Failure::Failed(format!("{error}{}", if changed { "; --restart begins anew" } else { "" }))
}

/// An earlier run came to its end: its failures are told again.
fn finished(earlier: &[Batch], progress: &Progress) -> Done {
    let failed: Vec<&String> = earlier.iter().flat_map(|batch| &batch.failed).collect();
    failed.iter().for_each(|why| progress.error(why));
    let texts: usize = earlier.iter().map(|batch| batch.texts).sum();
    progress.note(&format!("note: finished by an earlier run, {texts} texts: nothing is left to do"));
    Done::with_failures(failed.len())
}

/// What a row depends on beside its text.
fn model_identity(args: &Args, rows: &Rows, model: String) -> Vec<(String, String)> {
    let request = &rows.request;
    let pairs = [
        ("precision", format!("{:?}", args.precision.get())),
        ("kin-infer", env!("CARGO_PKG_VERSION").to_string()),
        ("model", model),
        ("--pooling", format!("{:?}", args.pooling)),
        ("prompt", rows.encoder.prompt(request)),
        ("role", format!("{:?}", request.role)),
        ("--dimensions", format!("{:?}", request.dimensions)),
        ("--normalize", request.normalize.to_string()),
        ("--top-k", format!("{:?}", request.top)),
    ];
    pairs.map(|(name, value)| (name.to_string(), value)).into()
}

/// What an output depends on beside that.
fn run_identity(args: &Args, layout: &Layout, start: &Start) -> Vec<(String, String)> {
    let input = start.survey.as_ref().map_or("stdin".to_string(), |survey| survey.digest.clone());
    let pairs = [
        ("input", input),
        ("--input-format", format!("{:?}", args.input.input_format)),
        ("--split", format!("{:?}", start.split)),
        ("--split-tokens", format!("{:?}", args.split_tokens)),
        ("--on-long", format!("{:?}", args.on_long)),
        ("--format", format!("{:?}", layout.format)),
        ("--counts", layout.extras.counts.to_string()),
        ("--terms", layout.extras.terms.to_string()),
    ];
    pairs.map(|(name, value)| (name.to_string(), value)).into()
}

/// Reads, encodes and delivers.
struct Run<'a> {
    args: &'a Args,
    rows: Rows,
    out: Delivery,
    /// Texts of the next window.
    windows: usize,
}

impl Run<'_> {
    fn all(mut self, records: Records, start: Start) -> Result<Done> {
        let total_bytes = start.survey.as_ref().map_or(records.total_bytes, |survey| Some(survey.bytes));
        let mut pieces = Pieces::new(records, self.splitter(start.split)?);
        self.out.begin(&mut pieces, &start.earlier, total_bytes)?;
        // Of stdin, nobody knows when more comes: that nothing does is no sign of death.
        if start.survey.is_some() {
            self.rows.watched(&self.out.watch()?);
        }
        match self.windows(&mut pieces) {
            Err(Failure::Failed(why)) if self.out.durable => {
                let rest = "what was embedded so far is kept: the same command with --resume goes on";
                return Err(Failure::Failed(format!("{why}\n{rest}")));
            }
            other => other?,
        }
        if start.survey.is_some_and(|survey| survey.digest != pieces.records().digest()) {
            self.out.fail("the input changed while it was read; the vectors are those of what was read".to_string());
        }
        let left_out = pieces.records().left_out();
        if left_out > 0 {
            self.out.progress.note(&format!("note: {left_out} files hold no text and were left out"));
        }
        self.out.finish(self.args.resume || self.args.restart, self.rows.known)
    }

    fn splitter(&self, split: Split) -> Result<Option<Splitter>> {
        let cuts = split.cuts()?;
        if split == Split::None {
            return Ok(None);
        }
        let (encoder, request) = (self.rows.encoder.clone(), self.rows.request.clone());
        let window = encoder.window_of(&request).limit;
        let limit = self.args.split_tokens.map_or(window, |n| window.min(n as usize));
        Ok(Some(Splitter { count: Box::new(move |texts| encoder.lengths(texts, &request)), limit, cuts }))
    }

    fn windows(&mut self, pieces: &mut Pieces) -> Result<()> {
        let interrupt = if self.args.file().is_some() { Some(Interrupt::install()?) } else { None };
        interrupt.iter().for_each(Interrupt::begin);
        loop {
            let start = Instant::now();
            let window = pieces.window(self.windows)?;
            let interrupted = interrupt.as_ref().is_some_and(Interrupt::cancelled);
            // A pipe may end because its writer was interrupted too.
            if window.is_empty() && !interrupted {
                return self.out.commit(pieces);
            }
            self.window(window)?;
            self.pace(start.elapsed());
            if interrupted || self.out.is_due(self.args.checkpoint as usize) {
                self.out.commit(pieces)?;
            }
            if interrupted {
                return Err(Failure::Failed("interrupted".to_string()));
            }
        }
    }

    /// Encodes a window and delivers its rows.
    fn window(&mut self, window: Vec<crate::input::Found>) -> Result<()> {
        let mut items = Vec::with_capacity(window.len());
        for found in window {
            match found {
                Ok(item) => items.push(item),
                Err(bad) => self.out.fail(bad.0),
            }
        }
        let texts: Vec<&str> = items.iter().map(|item| item.text.as_str()).collect();
        self.rows.encode(&texts, |rows, i, row| self.out.deliver(&items[i], row, rows))
    }

    /// Windows small enough that something is to be seen, and large enough that all threads have work.
    fn pace(&mut self, took: Duration) {
        let (_, least, most) = WINDOW;
        if took > WINDOW_TIME {
            self.windows = (self.windows / 2).max(least);
        } else if took < WINDOW_TIME / 4 {
            self.windows = (self.windows * 2).min(most);
        }
        self.windows = self.windows.min(self.args.checkpoint as usize);
    }
}
