//! [`SparseEmbedder`]: texts in, weights of vocabulary entries out (SPLADE, arXiv 2109.10086).

use std::path::Path;
use std::sync::Arc;

use super::text::{Counted, TextModel, each, values};
use super::{Prompt, Role, prompt_text, role_prompt};
use crate::arch::HeadChoice;
use crate::batch::BatchLimits;
use crate::error::{InferError, Result};
use crate::gpu::{GpuCompute, Precision, create_compute};
use crate::model::{BertModel, LoadOptions, SparsePooling};
use crate::modules::{ModelFolder, Module};
use crate::tokenizer::{TextTokenizer, Window};
use crate::watchdog::Run;
use crate::weights::Checkpoint;

/// A vector most of whose values are zero: the others, with their places.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SparseVector {
    /// Places of the values, ascending: ids of vocabulary entries.
    pub indices: Vec<u32>,
    /// The values, none of them zero.
    pub values: Vec<f32>,
}

impl SparseVector {
    /// The values of `dense` that are not zero.
    pub fn from_dense(dense: &[f32]) -> Self {
        let (indices, values) = (0u32..).zip(dense).filter(|(_, v)| **v != 0.0).map(|(i, v)| (i, *v)).unzip();
        Self { indices, values }
    }

    /// Number of values that are not zero.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether every value is zero.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Keeps the `count` values of largest magnitude; of equal ones, those with the lower index.
    pub fn keep_largest(&mut self, count: usize) {
        if count >= self.len() {
            return;
        }
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|a, b| self.values[*b].abs().total_cmp(&self.values[*a].abs()));
        order.truncate(count);
        order.sort_unstable();
        self.indices = order.iter().map(|&i| self.indices[i]).collect();
        self.values = order.iter().map(|&i| self.values[i]).collect();
    }

    /// The sum of `a_i b_i` over the indices both have, ascending, each product and each sum rounded: the same bits
    /// everywhere.
    pub fn dot(&self, other: &Self) -> f32 {
        let (mut i, mut j, mut sum) = (0, 0, 0f32);
        while i < self.len() && j < other.len() {
            match self.indices[i].cmp(&other.indices[j]) {
                std::cmp::Ordering::Less => i += 1,
                std::cmp::Ordering::Greater => j += 1,
                std::cmp::Ordering::Equal => {
                    sum += self.values[i] * other.values[j];
                    (i, j) = (i + 1, j + 1);
                }
            }
        }
        sum
    }
}

/// How texts become sparse vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SparseOptions {
    /// What is put before each text.
    pub prompt: Prompt,
    /// Keep so many of the largest values. `None` keeps what the folder says, and all where it says nothing.
    pub top: Option<usize>,
}

/// A sparse embedding model: tokenizer, transformer, masked language model's head, SPLADE pooling. For vocabulary entry
/// v and the scores `s_tv` of a text's tokens t, the value is `max_t log(1 + relu(s_tv))`, or what the folder's
/// SpladePooling says instead.
///
/// ```no_run
/// # fn main() -> kin_infer::Result<()> {
/// let model = kin_infer::embedder::SparseEmbedder::load(std::path::Path::new("models/splade"))?;
/// let documents = model.embed_documents(&["bread is baked", "the sky is blue"])?;
/// let score = model.embed_query("how to bake")?.dot(&documents[0]);
/// # Ok(()) }
/// ```
///
/// A clone shares what was loaded.
#[derive(Clone)]
pub struct SparseEmbedder {
    folder: Arc<ModelFolder>,
    text: TextModel,
    pooling: SparsePooling,
}

/// Values of dense vectors that are held before they become sparse.
const HELD_VALUES: usize = 1 << 23;

impl SparseEmbedder {
    /// Loads a folder onto the best backend: one whose modules.json lists SpladePooling, or any checkpoint of a masked
    /// language model, for which `max_t log(1 + relu(s_tv))` is assumed.
    ///
    /// # Errors
    /// Whatever is missing, malformed or not supported in the folder, by file and key or tensor. A checkpoint without
    /// the head is a [`TensorError`](InferError::TensorError) that names the head's first tensor, a family without one
    /// a [`ModelIncompatible`](InferError::ModelIncompatible).
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with_compute(folder, create_compute()?)
    }

    /// Loads a folder onto a given backend.
    pub fn load_with_compute(folder: &Path, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::from_folder(ModelFolder::read(folder)?, compute)
    }

    /// Loads what a folder's description names.
    pub fn from_folder(folder: ModelFolder, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::from_folder_with(folder, compute, Precision::Exact)
    }

    /// As [`from_folder`](Self::from_folder), with a given precision of the transformer's layers.
    pub fn from_folder_with(folder: ModelFolder, compute: Arc<dyn GpuCompute>, precision: Precision) -> Result<Self> {
        let dir = &folder.transformer_dir;
        let options = LoadOptions { head: HeadChoice::MaskedLm, precision, ..LoadOptions::default() };
        let text = TextModel::load(dir, compute, options).map_err(|e| explain(dir, e))?;
        let pooling = folder.modules.iter().find_map(|m| if let Module::Splade(p) = m { Some(*p) } else { None });
        let pooling = pooling.unwrap_or_default();
        Ok(Self { folder: Arc::new(folder), text, pooling })
    }

    /// As [`Embedder::with_run`](crate::Embedder::with_run).
    pub fn with_run(self, run: &Run) -> Self {
        Self { text: self.text.with_run(run), ..self }
    }

    /// As [`Embedder::with_limits`](crate::Embedder::with_limits).
    pub fn with_limits(mut self, limits: BatchLimits) -> Self {
        self.text.model = self.text.model.with_limits(limits);
        self
    }

    /// The vectors of texts, in their order.
    ///
    /// # Errors
    /// The first text that fails.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<SparseVector>> {
        self.embed_with(texts, &SparseOptions::default())
    }

    /// As [`embed`](Self::embed), with a prompt or fewer values.
    pub fn embed_with(&self, texts: &[&str], options: &SparseOptions) -> Result<Vec<SparseVector>> {
        self.embed_each(texts, options)?.into_iter().collect()
    }

    /// The vector of a question, with the folder's `query` prompt where it has one.
    pub fn embed_query(&self, text: &str) -> Result<SparseVector> {
        let mut vectors = self.embed_with(&[text], &self.options_for(Role::Query))?;
        vectors.pop().ok_or_else(|| InferError::input(0, "no vector came back"))
    }

    /// The vectors of documents, with the folder's `document` (or `passage`, `corpus`) prompt where it has one.
    pub fn embed_documents(&self, texts: &[&str]) -> Result<Vec<SparseVector>> {
        self.embed_with(texts, &self.options_for(Role::Document))
    }

    /// Options with the prompt of a role.
    pub fn options_for(&self, role: Role) -> SparseOptions {
        SparseOptions { prompt: role_prompt(&self.folder, role), top: None }
    }

    /// The vector of each text or the reason why it has none; a text never affects its neighbours.
    ///
    /// # Errors
    /// Options the model cannot serve: an unknown prompt name, no values at all.
    pub fn embed_each(&self, texts: &[&str], options: &SparseOptions) -> Result<Vec<Result<SparseVector>>> {
        Ok(values(self.run(texts, options, false)?))
    }

    /// As [`embed_each`](Self::embed_each), with each text's number of tokens and whether it was cut.
    pub fn embed_each_counted(
        &self,
        texts: &[&str],
        options: &SparseOptions,
    ) -> Result<Vec<Result<Counted<SparseVector>>>> {
        self.run(texts, options, true)
    }

    fn run(
        &self,
        texts: &[&str],
        options: &SparseOptions,
        counted: bool,
    ) -> Result<Vec<Result<Counted<SparseVector>>>> {
        let prompt = prompt_text(&self.folder, &options.prompt)?;
        let top = options.top.or(self.folder.max_active_dims).unwrap_or(usize::MAX);
        if top == 0 {
            return Err(InferError::InvalidArgument("a vector of 0 values was asked for".to_string()));
        }
        let readings = self.text.read(texts, &prompt, self.text.window.limit, counted);
        Ok(each(readings, |sequences| {
            let sparse = |dense: Vec<f32>| {
                let mut vector = SparseVector::from_dense(&dense);
                vector.keep_largest(top);
                vector
            };
            let at_once = (HELD_VALUES / self.dimension().max(1)).max(1);
            let some = |chunk| self.text.model.sparse(chunk, self.pooling).into_iter().map(|r| r.map(sparse));
            // Each chunk's dense vectors are gone before the next chunk's come.
            sequences.chunks(at_once).flat_map(|chunk| some(chunk).collect::<Vec<_>>()).collect()
        }))
    }

    /// Length of a vector, zeros included: the size of the vocabulary.
    pub fn dimension(&self) -> usize {
        self.text.model.spec().embedding.vocab_size
    }

    /// The vocabulary entry of an index.
    pub fn term(&self, index: u32) -> Option<String> {
        self.text.tokenizer.token(index)
    }

    /// How scores become values.
    pub fn pooling(&self) -> SparsePooling {
        self.pooling
    }

    /// Longest input in tokens, and what says so.
    pub fn window(&self) -> &Window {
        &self.text.window
    }

    /// What the folder says of the steps after the transformer.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The transformer with its head.
    pub fn model(&self) -> &BertModel {
        &self.text.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.text.tokenizer
    }

    /// What was assumed because the folder does not say it.
    pub fn assumptions(&self) -> Vec<String> {
        let said = self.folder.modules.iter().any(|m| matches!(m, Module::Splade(_)));
        let rule = "no SpladePooling in modules.json: the largest log(1 + relu(score)) over the tokens is taken";
        if said { Vec::new() } else { vec![rule.to_string()] }
    }
}

/// Says of a tensor that is not in the checkpoint what it was needed for.
fn explain(dir: &Path, error: InferError) -> InferError {
    match error {
        InferError::TensorError { file, tensor, expected, found }
            if Checkpoint::open(dir).is_ok_and(|c| c.get(&tensor).is_none()) =>
        {
            let expected = format!("{expected}: sparse vectors need the head of a masked language model");
            InferError::TensorError { file, tensor, expected, found }
        }
        other => other,
    }
}
