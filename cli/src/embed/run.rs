//! A run: from records to rows that are on disk for good.

use std::path::Path;
use std::time::{Duration, Instant};

use kin_infer::InferError;
use kin_infer::durable::{Conflict, Found as Journal, Locked, Resumed, model_digest};
use kin_infer::resource::ResourcePlan;
use kin_infer::watchdog::Run as Watched;

use super::deliver::{Batch, COMMIT, Delivery, Target};
use super::encode::Rows;
use super::pace::Pace;
use super::{Args, own};
use crate::encoder::Plan;
use crate::failure::{Done, Failure, Result};
use crate::input::{Bad, Found, Pieces, Records, Split, Splitter, Survey};
use crate::interrupt::Interrupt;
use crate::output::Sink;
use crate::progress::Progress;
use crate::rows::Layout;
use crate::talk;

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
    let resources = args.compute.plan()?;
    let texts = std::mem::take(&mut args.texts);
    let own = own::files(&args)?;
    let records = Records::open(&texts, &args.input, &own)?;
    let folder = args.model.folder()?;
    let plan = Plan::new(&folder, args.pooling)?;
    args.check(plan.kind)?;
    let mut layout = Layout { format: args.format(), kind: plan.kind, extras: args.extras(), dimension: 0 };
    layout.check(args.file())?;
    args.split.map(Split::cuts).transpose()?;
    let split = args.split.unwrap_or(if records.is_folder() { Split::Lines } else { Split::None });
    if split == Split::None && args.split_tokens.is_some() {
        return Err(Failure::Usage("--split-tokens needs --split: texts are not cut into pieces".into()));
    }
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
                Resumed::Finished => {
                    if start.survey.is_none() {
                        compare(records, &args, start.earlier.last())?;
                    }
                    return Ok(finished(&start.earlier, &progress));
                }
            }
        }
    };
    let out = Delivery::new(layout, target, progress, args.on_long);
    Run { args: &args, rows, out, resources }.all(records, start)
}

/// Takes the output, if it is a file, unless that loses what an unfinished run made.
fn lock(args: &Args) -> Result<Option<Locked>> {
    let Some(path) = args.file() else {
        let options = [(args.resume, "--resume"), (args.restart, "--restart")];
        let asked = options.into_iter().find_map(|(asked, option)| asked.then_some(option));
        let refused = |option| Failure::Usage(format!("{option} needs --output FILE: nothing is kept of stdout"));
        return asked.map_or(Ok(None), |option| Err(refused(option)));
    };
    let locked = Locked::lock(path)?;
    let no = |why: &str| Err(Failure::Failed(format!("{}: {why}", path.display())));
    match locked.found()? {
        Journal::Unfinished { .. } if !args.resume && !args.restart => {
            no("an unfinished run is there; --resume goes on with it, --restart begins anew")
        }
        Journal::Nothing if args.resume && path.exists() => {
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

/// Reads an input that could not be read before, and refuses another one than that of the finished run.
fn compare(mut records: Records, args: &Args, last: Option<&Batch>) -> Result<()> {
    while records.next()?.is_some() {}
    let (recorded, found) = (last.map(|batch| batch.place.input.clone()).unwrap_or_default(), records.digest());
    if recorded == found {
        return Ok(());
    }
    let target = args.file().unwrap_or(Path::new("-")).to_path_buf();
    let conflict = Conflict::Changed { what: "input".to_string(), recorded, found };
    Err(explain(InferError::RunConflict { target, conflict }))
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
        ("arithmetic", rows.encoder.arithmetic()),
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
    resources: ResourcePlan,
}

impl Run<'_> {
    fn all(mut self, records: Records, start: Start) -> Result<Done> {
        let total_bytes = start.survey.as_ref().map_or(records.total_bytes, |survey| Some(survey.bytes));
        let mut pieces = Pieces::new(records, self.splitter(start.split)?);
        self.out.begin(&mut pieces, &start.earlier, total_bytes)?;
        // Of stdin, nobody knows when more comes: that nothing does is no sign of death.
        let watched = start.survey.is_some();
        let run = if watched { self.out.watch(self.resources.watchdog.config()) } else { Watched::new() };
        run.set_planned_bytes(self.resources.embedding.memory_bytes.value.unwrap_or(0));
        self.rows.in_run(&run, start.earlier.iter().map(|batch| batch.texts + batch.failed.len()).sum());
        // A run into stdout keeps nothing that Ctrl-C could cost.
        let interrupt = if self.args.file().is_some() { Some(Interrupt::install()?) } else { None };
        if let Some(interrupt) = &interrupt {
            interrupt.sets(run.cancel_flag())?;
            interrupt.begin();
        }
        let ended = self.windows(&mut pieces, interrupt.as_ref());
        interrupt.iter().for_each(Interrupt::end);
        ended.map_err(|failure| resumable(self.out.durable, failure))?;
        if start.survey.is_some_and(|survey| survey.digest != pieces.records().digest()) {
            self.out.fail("the input changed while it was read; the vectors are those of what was read".to_string());
        }
        let left_out = pieces.records().left_out();
        if left_out > 0 {
            self.out.progress.note(&format!("note: {left_out} files hold no text and were left out"));
        }
        let durable = self.out.durable;
        let done = self.out.finish(self.args.resume || self.args.restart, self.rows.known);
        done.map_err(|failure| resumable(durable, failure))
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

    fn windows(&mut self, pieces: &mut Pieces, interrupt: Option<&Interrupt>) -> Result<()> {
        // Several commits lie in any time over which the watchdog takes the rate.
        let floor = Duration::try_from_secs_f64(self.resources.watchdog.floor_window_secs.value);
        let time = floor.map_or(COMMIT, |floor| COMMIT.min(floor / 8));
        let checkpoint = self.args.checkpoint as usize;
        let (mut pace, weight) = (Pace::new(time), self.rows.weight());
        let interrupted = || interrupt.is_some_and(Interrupt::cancelled);
        loop {
            let (before, pending) = (pieces.place(), self.out.pending());
            let window = pieces.window(pace.amount(checkpoint - pending), &weight)?;
            let last = window.is_empty();
            let (start, computed) = (Instant::now(), self.rows.computed);
            if !self.window(window)? {
                // Rows of this window may be in the files already; those before it are whole.
                if self.out.pending() == pending {
                    self.out.commit(before)?;
                }
                return Err(if interrupted() {
                    interruption()
                } else {
                    Failure::Failed("ended by the watchdog".into())
                });
            }
            pace.took(start.elapsed(), self.rows.computed - computed);
            if last || interrupted() || self.out.is_due(time, checkpoint) {
                self.out.commit(pieces.place())?;
            }
            // A pipe may end because its writer was interrupted too.
            if interrupted() {
                return Err(interruption());
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Encodes a window and delivers its rows; `false` where the run was cancelled before all were there.
    fn window(&mut self, window: Vec<Found>) -> Result<bool> {
        let (mut items, mut bad) = (Vec::with_capacity(window.len()), Vec::new());
        for found in window {
            match found {
                Ok(item) => items.push(item),
                Err(Bad(why)) => bad.push(why),
            }
        }
        let texts: Vec<&str> = items.iter().map(|item| item.text.as_str()).collect();
        let whole = self.rows.encode(&texts, |rows, i, row| self.out.deliver(&items[i], row, rows))?;
        if whole {
            bad.into_iter().for_each(|why| self.out.fail(why));
        }
        Ok(whole)
    }
}

fn interruption() -> Failure {
    Failure::Interrupted("interrupted".to_string())
}

/// A failure, and what to do about it where what was committed is kept.
fn resumable(durable: bool, failure: Failure) -> Failure {
    let with_rest = |why| format!("{why}\nwhat was embedded so far is kept: the same command with --resume goes on");
    match failure {
        Failure::Failed(why) if durable => Failure::Failed(with_rest(why)),
        Failure::Interrupted(why) if durable => Failure::Interrupted(with_rest(why)),
        other => other,
    }
}
