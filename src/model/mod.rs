//! [`BertModel`]: a loaded model of any family, and what it computes from token ids.

mod forward;
mod head;
mod positions;
mod weights;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use forward::Observer;
pub use head::SparsePooling;

use crate::arch::{HeadChoice, HeadSpec, LoadReport, ModelSpec, complete, describe_with};
use crate::batch::{BatchLimits, PackedBatch, Sequence, plan};
use crate::config::BertConfig;
use crate::cpu::{Account, CpuCompute, Footprint};
use crate::error::{InferError, Result};
use crate::fork;
use crate::gpu::{Buffer, GpuBackend, GpuCompute, KvStore, PoolingMode, Precision, create_compute};
use crate::pooling::{Pooler, Step};
use crate::resource::{EmbeddingPlan, process_memory};
use crate::watchdog::{Phase, Run};
use crate::weights::Checkpoint;
use rayon::prelude::*;
use weights::Weights;

/// A loaded model of any family; the name is history. A clone shares the weights.
#[derive(Clone)]
pub struct BertModel {
    config: Arc<BertConfig>,
    spec: Arc<ModelSpec>,
    weights: Arc<Weights>,
    report: Arc<LoadReport>,
    precision: Precision,
    compute: Arc<dyn GpuCompute>,
    limits: BatchLimits,
    run: Run,
}

/// How a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Which head.
    pub head: HeadChoice,
    /// How precisely its layers are computed.
    pub precision: Precision,
    /// What its linear layers make of weights in blocks.
    pub weights: WeightForm,
}

/// What linear layers make of weights that the checkpoint has in blocks of 8 or 4 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightForm {
    /// Q8_0 and Q4_0 are multiplied as integers, the layers' inputs being rounded to 8 bits beside them: fast. Other blocks
    /// are multiplied as the f32 values that they stand for.
    #[default]
    Stored,
    /// All blocks are multiplied as the f32 values that they stand for: nothing is rounded that the file did not round.
    F32,
}

/// What [`BertModel::encode`] gives for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// The last layer's token vectors, [len, hidden_size].
    pub hidden: Vec<f32>,
    /// A sequence classifier's scores, `[labels]`, before any sigmoid or softmax; empty for other models.
    pub labels: Vec<f32>,
}

impl BertModel {
    /// Loads the checkpoint of a folder onto the best backend ([`create_compute`]).
    ///
    /// # Errors
    /// A configuration this version does not compute; a checkpoint that is malformed, lacks a tensor, holds one of
    /// another shape or one that nothing asks for, or a weight that is not finite.
    pub fn load(folder: &Path, config: BertConfig) -> Result<Self> {
        Self::load_with_compute(folder, config, create_compute()?)
    }

    /// As [`load`](Self::load), on the CPU when `force_cpu` is set.
    pub fn load_with_backend(folder: &Path, config: BertConfig, force_cpu: bool) -> Result<Self> {
        let compute = if force_cpu { Arc::new(CpuCompute::new()?) } else { create_compute()? };
        Self::load_with_compute(folder, config, compute)
    }

    /// As [`load`](Self::load), on a given backend.
    pub fn load_with_compute(folder: &Path, config: BertConfig, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::load_with_head(folder, config, compute, HeadChoice::Configured)
    }

    /// As [`load_with_compute`](Self::load_with_compute), with a given head.
    ///
    /// # Errors
    /// As [`load`](Self::load); and a family or checkpoint without that head.
    pub fn load_with_head(
        folder: &Path,
        config: BertConfig,
        compute: Arc<dyn GpuCompute>,
        head: HeadChoice,
    ) -> Result<Self> {
        Self::load_with_options(folder, config, compute, LoadOptions { head, ..LoadOptions::default() })
    }

    /// As [`load_with_compute`](Self::load_with_compute), with a given head, precision and form of weights.
    /// [`create_compute_for`](crate::gpu::create_compute_for) makes a backend that has the precision.
    ///
    /// # Errors
    /// As [`load_with_head`](Self::load_with_head); and a backend without that precision.
    pub fn load_with_options(
        folder: &Path,
        config: BertConfig,
        compute: Arc<dyn GpuCompute>,
        options: LoadOptions,
    ) -> Result<Self> {
        Ok(Self::load_beside(folder, config, compute, options, || Ok(()))?.0)
    }

    /// As [`load_with_options`](Self::load_with_options), while a thread of the pool reads with `beside` what else a folder
    /// holds. Where both fail, the error is that of `beside`. Batches are fitted to memory when both are there.
    pub(crate) fn load_beside<T: Send>(
        folder: &Path,
        config: BertConfig,
        compute: Arc<dyn GpuCompute>,
        options: LoadOptions,
        beside: impl FnOnce() -> Result<T> + Send,
    ) -> Result<(Self, T)> {
        let plan = EmbeddingPlan::current()?.on(compute.backend());
        let mut other = None;
        let model = rayon::in_place_scope(|scope| {
            scope.spawn(|_| other = Some(beside()));
            Self::load_weights(folder, config, compute, options, plan.limits())
        });
        let other = other.expect("the scope waits for what it spawns")?;
        let mut model = model?;
        if model.backend() == GpuBackend::Cpu {
            model.limits = {
                let used = process_memory().resident.unwrap_or(model.weight_bytes() as u64);
                plan.within_memory(used, &model)?.limits()
            };
        }
        Ok((model, other))
    }

    fn load_weights(
        folder: &Path,
        mut config: BertConfig,
        compute: Arc<dyn GpuCompute>,
        options: LoadOptions,
        limits: BatchLimits,
    ) -> Result<Self> {
        let LoadOptions { head, precision, weights: form } = options;
        let describe = |config: &BertConfig| {
            describe_with(config, head).map_err(|error| crate::arch::gguf::by_source(error, folder))
        };
        // A configuration that is refused needs no checkpoint to say so.
        describe(&config)?;
        let _span = tracing::debug_span!("load", folder = %folder.display()).entered();
        let checkpoint = Checkpoint::open(folder)?;
        complete(&mut config, &checkpoint)?;
        let (spec, table) = describe(&config)?;
        let mut tensors = table.resolve(&checkpoint)?;
        if form == WeightForm::F32 {
            tensors.widen_blocks();
        }
        let weights = rayon::scope(|_| Weights::load(&spec, &tensors, &*compute, precision))?;
        // The packed copies are what is computed with; pages of the file that are needed again are read again.
        checkpoint.release_pages();
        let peak = || process_memory().peak;
        let bytes = tensors.report.bytes;
        tracing::debug!(family = spec.family, layers = spec.layers.len(), bytes, peak = peak(), "model loaded");
        Ok(Self {
            config: Arc::new(config),
            spec: Arc::new(spec),
            weights: Arc::new(weights),
            report: Arc::new(tensors.report),
            precision,
            compute,
            limits,
            run: Run::new(),
        })
    }

    /// The memory that a forward pass of sequences of these lengths takes, from a pass that computes nothing.
    pub(crate) fn dry_run(&self, lengths: &[usize]) -> Result<Account> {
        let footprint = Arc::new(Footprint::over(Arc::clone(&self.compute)));
        self.run_on(footprint.clone(), lengths)?;
        Ok(footprint.account())
    }

    /// A forward pass of sequences of these lengths on another backend, for what it does there.
    pub(crate) fn run_on(&self, compute: Arc<dyn GpuCompute>, lengths: &[usize]) -> Result<()> {
        let model = Self { compute, run: Run::new(), ..self.clone() };
        let sequences: Vec<Sequence> = lengths.iter().map(|len| Sequence::new(vec![0; *len])).collect();
        let pass = || model.hidden(&PackedBatch::new(sequences.iter()), None).map(drop);
        // Nobody's work: it shows no spans.
        tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), pass)
    }

    /// The same model with other limits of its batches than [`EmbeddingPlan::current`] gave it.
    pub fn with_limits(self, limits: BatchLimits) -> Self {
        Self { limits, ..self }
    }

    /// The same model as part of a run: calls tell the run where they are, and end with
    /// [`Cancelled`](InferError::Cancelled) once it is cancelled, at the next layer or, where the backend polls too, the
    /// next tile. `model.clone().with_run(&run)` cancels one call and leaves others alone.
    pub fn with_run(self, run: &Run) -> Self {
        let compute = self.compute.cancellable(&run.cancel_flag()).unwrap_or(self.compute);
        Self { compute, run: run.clone(), ..self }
    }

    /// What batches go by.
    pub fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    /// The run that calls tell where they are.
    pub(crate) fn run_state(&self) -> &Run {
        &self.run
    }

    /// The backend that computes.
    pub fn backend(&self) -> GpuBackend {
        self.compute.backend()
    }

    /// How precisely the layers are computed.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The compute backend.
    pub fn compute(&self) -> &dyn GpuCompute {
        &*self.compute
    }

    /// The configuration the model was loaded with.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// What the model computes.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Which tensors of the checkpoint are used and which ignored.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// Bytes of the prepared matrices. Embedding tables stay in the mapped file.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes
    }

    /// One mean-pooled, L2-normalised vector for each row of ids. Positions whose mask is 0 do not exist: the others
    /// keep the position they have in the row. Rows may differ in length.
    ///
    /// # Errors
    /// The first item that fails, by its index: ids and masks of different lengths, a fully masked row, an id, type or
    /// position beyond the model's limits, a result that is not finite. [`Embedder::embed_each`](crate::Embedder)
    /// gives every item its own result.
    pub fn forward(&self, ids: &[Vec<u32>], masks: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let sequences = masked_rows(ids, masks, None)?;
        let steps = [Step::Pool { mode: vec![PoolingMode::Mean], include_prompt: true }, Step::Normalize];
        let pooler = Pooler::new(steps.into(), self.spec.hidden_size);
        self.pooled(&sequences, &pooler, 0).into_iter().collect()
    }

    /// The same as [`forward`](Self::forward), which plans its batches by tokens itself; kept for its callers.
    pub fn forward_batched(&self, ids: &[Vec<u32>], masks: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        self.forward(ids, masks)
    }

    /// The scores of a sequence classifier, item after item: one an item for a reranker, `labels` an item in general.
    /// `type_ids` tell the two texts of a pair apart.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); and when the model has no classification head.
    pub fn forward_cross_encoder_batched(
        &self,
        ids: &[Vec<u32>],
        masks: &[Vec<u32>],
        type_ids: &[Vec<u32>],
    ) -> Result<Vec<f32>> {
        let sequences = masked_rows(ids, masks, Some(type_ids))?;
        self.classify(&sequences).into_iter().collect::<Result<Vec<_>>>().map(|labels| labels.concat())
    }

    /// Labels of the classification head, 0 without one.
    pub fn labels(&self) -> usize {
        match self.spec.head {
            HeadSpec::Classifier { labels, .. } => labels,
            _ => 0,
        }
    }

    /// The scores of each sequence, `[labels]`, from the classification head.
    pub fn classify(&self, sequences: &[Sequence]) -> Vec<Result<Vec<f32>>> {
        if self.labels() == 0 {
            let message = "this model has no classification head: `architectures` in config.json names none, or its \
                           GGUF file has no tensor `cls.output.weight`";
            return sequences.iter().map(|_| Err(InferError::InvalidArgument(message.to_string()))).collect();
        }
        let split = |batch: &PackedBatch| vec![self.labels(); batch.segments.len()];
        self.run(sequences, &|batch, hidden| self.read(&self.class_scores(batch, hidden)?, &split(batch)))
    }

    /// Token vectors, and the scores of a classification head, of each sequence.
    pub fn encode(&self, sequences: &[Sequence]) -> Vec<Result<Encoded>> {
        let results = self.run(sequences, &|batch, hidden| {
            let lengths: Vec<_> = batch.segments.iter().map(|r| r.len() * self.spec.hidden_size).collect();
            let mut rows = self.read(hidden, &lengths)?;
            if self.labels() > 0 {
                let scores = self.class_scores(batch, hidden)?;
                let labels = self.read(&scores, &vec![self.labels(); batch.segments.len()])?;
                rows.iter_mut().zip(labels).for_each(|(row, labels)| row.extend(labels));
            }
            Ok(rows)
        });
        let split = |(result, s): (Result<Vec<f32>>, &Sequence)| {
            let mut hidden = result?;
            let labels = hidden.split_off(s.ids.len() * self.spec.hidden_size);
            Ok(Encoded { hidden, labels })
        };
        results.into_iter().zip(sequences).map(split).collect()
    }

    /// The scores of every vocabulary entry for each token of each sequence, [len, vocab_size]: a decoder's for the token
    /// after it, a masked language model's (loaded with [`HeadChoice::MaskedLm`]) for the token in its place. They take
    /// len * vocab_size * 4 bytes.
    pub fn token_scores(&self, sequences: &[Sequence]) -> Vec<Result<Vec<f32>>> {
        self.run(sequences, &|batch, hidden| {
            let scores = self.head()?.token_scores(&*self.compute, &self.spec, hidden, batch.ids.len())?;
            let lengths: Vec<_> = batch.segments.iter().map(|r| r.len() * self.spec.embedding.vocab_size).collect();
            self.read(&scores, &lengths)
        })
    }

    /// Which rotation the keys of a sequence of this length have.
    pub(crate) fn rotation_regime(&self, len: usize) -> Vec<usize> {
        self.weights.positions.regime(len)
    }

    /// Runs the next tokens of sequences whose earlier keys are stored: `parts` are their positions and ids, `lengths`
    /// the sequences' whole lengths, by which rotations go. Gives what `next` makes of the scores of the tokens after the
    /// parts, [parts, vocab_size]; nothing without it.
    pub(crate) fn run_stored<T: Send>(
        &self,
        parts: &[(Range<usize>, Vec<u32>)],
        lengths: &[usize],
        stores: &mut [&mut Vec<KvStore>],
        next: Option<&Next<T>>,
    ) -> Result<Vec<T>> {
        let sequence = |(range, ids): &(Range<usize>, Vec<u32>)| Sequence {
            ids: ids.clone(),
            positions: range.clone().map(|p| p as u32).collect(),
            type_ids: Vec::new(),
        };
        let sequences: Vec<Sequence> = parts.iter().map(sequence).collect();
        sequences.iter().enumerate().try_for_each(|(i, s)| s.check(i, &self.spec))?;
        let mut batch = PackedBatch::new(sequences.iter());
        batch.lengths = lengths.to_vec();
        fork::team(in_span(|| {
            let hidden = self.run_layers(&batch, Some(stores), None)?;
            let Some(next) = next else { return Ok(Vec::new()) };
            let (rows, width) = (batch.segments.len(), self.spec.hidden_size);
            let mut last = self.compute.alloc(rows * width)?;
            self.compute.pool(&hidden, width, &batch.segments, 0, PoolingMode::LastToken, (&mut last, 0, width))?;
            next(&self.head()?.token_scores(&*self.compute, &self.spec, &last, rows)?)
        }))
    }

    /// The sparse vector of each sequence (SPLADE), `[vocab_size]`: for each vocabulary entry the largest
    /// log(1 + relu(score)) over the tokens. The model was loaded with [`HeadChoice::MaskedLm`].
    pub fn sparse(&self, sequences: &[Sequence], pooling: SparsePooling) -> Vec<Result<Vec<f32>>> {
        self.run(sequences, &|batch, hidden| {
            self.head()?.sparse(&*self.compute, &self.spec, hidden, &batch.segments, pooling)
        })
    }

    /// The vector `pooler` makes of each sequence; `prompt` tokens at the start of each are a prompt.
    pub fn pooled(&self, sequences: &[Sequence], pooler: &Pooler, prompt: usize) -> Vec<Result<Vec<f32>>> {
        let widths = |batch: &PackedBatch| vec![pooler.dimension(); batch.segments.len()];
        self.run(sequences, &|batch, hidden| {
            let vectors = pooler.run(&*self.compute, hidden, &batch.segments, prompt)?;
            self.read(&vectors, &widths(batch))
        })
    }

    /// The forward pass of one sequence, with every named intermediate shown to `observer`.
    pub fn observe(&self, sequence: &Sequence, observer: &mut Observer) -> Result<()> {
        sequence.check(0, &self.spec)?;
        self.hidden(&PackedBatch::new(std::iter::once(sequence)), Some(observer)).map(drop)
    }

    /// Checks, plans and runs batches; `finish` turns a batch's token vectors into one row of values a sequence.
    fn run(&self, sequences: &[Sequence], finish: &Finish) -> Vec<Result<Vec<f32>>> {
        let mut results: Vec<Option<Result<Vec<f32>>>> =
            sequences.iter().enumerate().map(|(i, s)| s.check(i, &self.spec).err().map(Err)).collect();
        let good: Vec<usize> = (0..sequences.len()).filter(|&i| results[i].is_none()).collect();
        let lengths: Vec<usize> = good.iter().map(|&i| sequences[i].ids.len()).collect();
        self.run.enter(Phase::Plan);
        let batches: Vec<Vec<usize>> = plan(&lengths, &self.limits)
            .into_iter()
            .map(|batch| batch.into_iter().map(|i| good[i]).collect())
            .collect();
        for (item, result) in self.run_batches(sequences, &batches, finish) {
            results[item] = Some(result);
        }
        let unplanned = |i| Err(InferError::input(i, "no batch held it"));
        results.into_iter().enumerate().map(|(i, r)| r.unwrap_or_else(|| unplanned(i))).collect()
    }

    /// Runs batches in about their order: side by side, but one that is over the limits, a long sequence, alone with
    /// all threads in it.
    fn run_batches(&self, sequences: &[Sequence], batches: &[Vec<usize>], finish: &Finish) -> Vec<Row> {
        let tokens = |batch: &Vec<usize>| batch.iter().map(|&i| sequences[i].ids.len()).sum::<usize>();
        let alone = |batch: &Vec<usize>| tokens(batch) > self.limits.tokens;
        let groups = batches.chunk_by(|a, b| !alone(a) && !alone(b));
        let run = in_span(|| groups.flat_map(|group| self.run_group(sequences, group, finish)).collect());
        rayon::scope(|_| run())
    }

    /// Runs batches side by side: each worker takes the next one that nobody has. So no more batches hold activations at
    /// once than there are workers, however threads help each other. Batches side by side need no joint between
    /// operations; a single one is split inside each.
    fn run_group(&self, sequences: &[Sequence], batches: &[Vec<usize>], finish: &Finish) -> Vec<Row> {
        if let [items] = batches {
            return fork::team(|| self.run_items(sequences, items, finish));
        }
        let next = AtomicUsize::new(0);
        let span = tracing::Span::current();
        let worker = |_| {
            let _span = span.enter();
            let mut done = Vec::new();
            while let Some(items) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.extend(self.run_items(sequences, items, finish));
            }
            done
        };
        let workers = self.limits.workers.min(rayon::current_num_threads()).min(batches.len()).max(1);
        let rows: Vec<Vec<Row>> = (0..workers).into_par_iter().with_max_len(1).map(worker).collect();
        rows.into_iter().flatten().collect()
    }

    /// The results of one batch; what the batch as a whole cannot have, each of its items alone may.
    fn run_items(&self, sequences: &[Sequence], items: &[usize], finish: &Finish) -> Vec<Row> {
        let done = |item: usize, row: Result<Vec<f32>>| {
            let row = row.and_then(|row| self.finite(&sequences[item], row));
            (item, row.map_err(|e| e.with_item(item)))
        };
        match self.run_batch(sequences, items, finish) {
            Ok(rows) => items.iter().zip(rows).map(|(item, row)| done(*item, Ok(row))).collect(),
            Err(e) if items.len() == 1 => vec![done(items[0], Err(e))],
            Err(e) if self.shared(&e).is_some() => {
                items.iter().filter_map(|item| Some(done(*item, Err(self.shared(&e)?)))).collect()
            }
            Err(_) => items.iter().flat_map(|item| self.run_items(sequences, &[*item], finish)).collect(),
        }
    }

    /// The error of each item of a batch, where each alone would not be tried.
    fn shared(&self, error: &InferError) -> Option<InferError> {
        match error {
            InferError::Cancelled => Some(InferError::Cancelled),
            InferError::OutOfMemory { what, bytes } if !self.limits.retry => {
                Some(InferError::OutOfMemory { what: what.clone(), bytes: *bytes })
            }
            _ => None,
        }
    }

    fn run_batch(&self, sequences: &[Sequence], items: &[usize], finish: &Finish) -> Result<Vec<Vec<f32>>> {
        let mut batch = PackedBatch::new(items.iter().map(|&i| &sequences[i]));
        batch.item = items.iter().copied().min().unwrap_or(0);
        self.check_room(batch.ids.len())?;
        let (texts, tokens, area) = (items.len(), batch.ids.len(), batch.area());
        let span = tracing::debug_span!("forward", texts, tokens, area, peak = tracing::field::Empty).entered();
        let hidden = self.hidden(&batch, None)?;
        self.run.enter_item(Phase::Pool, batch.item, None);
        let rows = tracing::debug_span!("pool").in_scope(|| finish(&batch, &hidden))?;
        if !span.is_disabled() {
            span.record("peak", process_memory().peak);
        }
        Ok(rows)
    }

    /// Whether the activations of a batch longer than the limit fit what the plan leaves them.
    fn check_room(&self, tokens: usize) -> Result<()> {
        let Some(room) = self.limits.room.filter(|_| tokens > self.limits.tokens) else { return Ok(()) };
        let need = self.dry_run(&[tokens])?;
        let bytes = need.activations + need.scratch * rayon::current_num_threads();
        if bytes <= room {
            return Ok(());
        }
        let what = format!("a text of {tokens} tokens, for which the plan leaves {room} bytes (kin-infer plan),");
        Err(InferError::OutOfMemory { what, bytes })
    }

    fn head(&self) -> Result<&head::Head> {
        let absent = || InferError::InvalidArgument("the model was loaded without a head".to_string());
        self.weights.head.as_ref().ok_or_else(absent)
    }

    fn class_scores(&self, batch: &PackedBatch, hidden: &Buffer) -> Result<Buffer> {
        self.head()?.classify(&*self.compute, &self.spec, hidden, &batch.segments)
    }

    /// Reads a buffer and cuts it into rows of the given lengths.
    pub(crate) fn read(&self, buffer: &Buffer, lengths: &[usize]) -> Result<Vec<Vec<f32>>> {
        let mut all = crate::gpu::zeros(lengths.iter().sum(), "results")?;
        self.compute.read(buffer, &mut all)?;
        let mut rest = all.as_slice();
        Ok(lengths
            .iter()
            .map(|len| {
                let (row, tail) = rest.split_at(*len);
                rest = tail;
                row.to_vec()
            })
            .collect())
    }

    /// The row, or an error that says where its first non-finite value arose.
    fn finite(&self, sequence: &Sequence, row: Vec<f32>) -> Result<Vec<f32>> {
        if row.iter().all(|v| v.is_finite()) {
            return Ok(row);
        }
        let mut stage = None;
        self.observe(sequence, &mut |name, buffer| {
            if stage.is_none() {
                let mut values = vec![0.0; buffer.len()];
                self.compute.read(buffer, &mut values)?;
                stage = values.iter().any(|v| !v.is_finite()).then(|| name.to_string());
            }
            Ok(())
        })?;
        Err(InferError::NonFiniteOutput { item: 0, stage: stage.unwrap_or_else(|| "pooling".to_string()) })
    }
}

/// An item's index in the call, and what came of it.
type Row = (usize, Result<Vec<f32>>);

/// Turns the token vectors of a batch into one row of values a sequence.
type Finish<'a> = dyn Fn(&PackedBatch, &Buffer) -> Result<Vec<Vec<f32>>> + Sync + 'a;

/// What is made of the scores of next tokens, [sequences, vocab_size]: a value for each sequence.
pub(crate) type Next<'a, T> = dyn Fn(&Buffer) -> Result<Vec<T>> + Sync + 'a;

fn masked_rows(ids: &[Vec<u32>], masks: &[Vec<u32>], types: Option<&[Vec<u32>]>) -> Result<Vec<Sequence>> {
    let others = [Some(("masks", masks.len())), types.map(|t| ("rows of token types", t.len()))];
    for (what, len) in others.into_iter().flatten() {
        if len != ids.len() {
            return Err(InferError::InvalidArgument(format!("{} rows of ids but {len} {what}", ids.len())));
        }
    }
    let row = |i: usize| Sequence::from_masked(i, &ids[i], &masks[i], types.map(|t| t[i].as_slice()));
    (0..ids.len()).map(row).collect()
}

/// `f` in the caller's tracing span, whichever thread runs it.
fn in_span<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = tracing::Span::current();
    move || span.in_scope(f)
}
