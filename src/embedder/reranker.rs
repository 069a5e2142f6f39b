//! [`Reranker`]: pairs of texts in, scores out.

use std::path::Path;
use std::sync::Arc;

use super::Prompt;
use super::text::{Counted, TextModel, each, values};
use crate::arch::HeadChoice;
use crate::batch::BatchLimits;
use crate::error::{InferError, Result};
use crate::gpu::{GpuCompute, Precision, create_compute};
use crate::model::{BertModel, LoadOptions};
use crate::modules::ModelFolder;
use crate::tokenizer::{TextTokenizer, Window};
use crate::watchdog::Run;

/// A cross-encoder: scores a query against documents, or classifies texts. A clone shares what was loaded.
#[derive(Clone)]
pub struct Reranker {
    text: TextModel,
    /// What stands before each query.
    prompt: String,
}

impl Reranker {
    /// Loads a folder onto the best backend.
    ///
    /// # Errors
    /// As [`Embedder::load`](crate::Embedder::load); and a model without a classification head.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with_compute(folder, create_compute()?)
    }

    /// Loads a folder onto a given backend.
    pub fn load_with_compute(folder: &Path, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::load_with(folder, compute, Precision::Exact)
    }

    /// As [`load_with_compute`](Self::load_with_compute), with a given precision of the transformer's layers.
    pub fn load_with(folder: &Path, compute: Arc<dyn GpuCompute>, precision: Precision) -> Result<Self> {
        let options = LoadOptions { head: HeadChoice::Configured, precision, ..LoadOptions::default() };
        let folder = ModelFolder::read(folder)?;
        let prompt = super::prompt_text(&folder, &Prompt::Default)?;
        let text = TextModel::load(&folder.transformer_dir, compute, options)?;
        if text.model.labels() == 0 {
            return Err(InferError::ModelIncompatible {
                key: "architectures".to_string(),
                expected: "a class ending in ForSequenceClassification: reranking needs a classification head".into(),
                found: format!("{:?}", text.model.config().architectures.clone().unwrap_or_default()),
            });
        }
        Ok(Self { text, prompt })
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

    /// The raw scores, `[labels]`, of the query, after the folder's default prompt, with each document. A pair too long for the window loses tokens from its
    /// longer text.
    pub fn score(&self, query: &str, documents: &[&str]) -> Vec<Result<Vec<f32>>> {
        values(self.run(query, documents, false))
    }

    /// As [`score`](Self::score), with each pair's number of tokens and whether it was cut.
    pub fn score_counted(&self, query: &str, documents: &[&str]) -> Vec<Result<Counted<Vec<f32>>>> {
        self.run(query, documents, true)
    }

    fn run(&self, query: &str, documents: &[&str], counted: bool) -> Vec<Result<Counted<Vec<f32>>>> {
        let query = format!("{}{query}", self.prompt);
        each(self.text.read_pairs(&query, documents, counted), |s| self.text.model.classify(s))
    }

    /// Longest pair in tokens, and what says so.
    pub fn window(&self) -> &Window {
        &self.text.window
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.text.tokenizer
    }

    /// Scores a pair has.
    pub fn labels(&self) -> usize {
        self.text.model.labels()
    }

    /// The transformer.
    pub fn model(&self) -> &BertModel {
        &self.text.model
    }
}
