//! [`Embedder`]: a sentence-transformers folder in, vectors out. [`Reranker`]: pairs of texts in, scores out.

use std::path::Path;
use std::sync::Arc;

use crate::batch::Sequence;
use crate::config::BertConfig;
use crate::error::{InferError, Result};
use crate::gpu::{GpuCompute, create_compute};
use crate::model::BertModel;
use crate::modules::{ModelFolder, Module};
use crate::pooling::Pooler;
use crate::tokenizer::{Encoding, TextTokenizer, Window, window};

/// What is put before each text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Prompt {
    /// The folder's default prompt, if it names one.
    #[default]
    Default,
    /// Nothing.
    None,
    /// A prompt of the folder, by name: `query`, `document`, ...
    Named(String),
    /// This text.
    Text(String),
}

/// How texts are embedded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EmbedOptions {
    /// What is put before each text.
    pub prompt: Prompt,
    /// Length of the vectors (Matryoshka): the leading values, normalised again. `None` keeps the model's length.
    pub dimensions: Option<usize>,
}

/// An embedding model: tokenizer, transformer, pooling and what follows it.
///
/// ```no_run
/// # fn main() -> kin_infer::Result<()> {
/// let embedder = kin_infer::Embedder::load(std::path::Path::new("models/all-MiniLM-L6-v2"))?;
/// let vectors = embedder.embed(&["fn main() {}", "the entry point of a program"])?;
/// let similarity = kin_infer::dot_product(&vectors[0], &vectors[1]);
/// # Ok(()) }
/// ```
pub struct Embedder {
    folder: ModelFolder,
    model: BertModel,
    tokenizer: TextTokenizer,
    window: Window,
    pooler: Pooler,
}

/// The parts every text model has.
fn load_text_model(dir: &Path, compute: Arc<dyn GpuCompute>) -> Result<(BertModel, TextTokenizer, Window)> {
    let config = BertConfig::from_folder(dir)?;
    let tokenizer = TextTokenizer::from_folder(dir)?;
    let limit = config.effective_max_seq_len();
    let found = window(dir, Some(limit))?;
    let window = found.unwrap_or(Window { limit, source: "config.json".to_string() });
    Ok((BertModel::load_with_compute(dir, config, compute)?, tokenizer, window))
}

impl Embedder {
    /// Loads a folder onto the best backend.
    ///
    /// # Errors
    /// Whatever is missing, malformed or not supported in the folder, by file and key or tensor.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with_compute(folder, create_compute()?)
    }

    /// Loads a folder onto a given backend.
    pub fn load_with_compute(folder: &Path, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        let description = ModelFolder::read(folder)?;
        let (model, tokenizer, window) = load_text_model(&description.transformer_dir, compute)?;
        let pooler = Pooler::load(&description.modules, model.spec().hidden_size, model.compute())?;
        Ok(Self { folder: description, model, tokenizer, window, pooler })
    }

    /// The vectors of texts, in their order.
    ///
    /// # Errors
    /// The first text that fails.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        self.embed_with(texts, &EmbedOptions::default())
    }

    /// As [`embed`](Self::embed), with a prompt or another length.
    pub fn embed_with(&self, texts: &[&str], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        self.embed_each(texts, options)?.into_iter().collect()
    }

    /// The vector of a question, with the folder's `query` prompt where it has one.
    pub fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        let mut vectors = self.embed_with(&[text], &self.role("query"))?;
        vectors.pop().ok_or_else(|| InferError::input(0, "no vector came back"))
    }

    /// The vectors of documents, with the folder's `document` (or `passage`) prompt where it has one.
    pub fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let name = if self.folder.prompts.contains_key("document") { "document" } else { "passage" };
        self.embed_with(texts, &self.role(name))
    }

    fn role(&self, name: &str) -> EmbedOptions {
        let known = self.folder.prompts.contains_key(name);
        let prompt = if known { Prompt::Named(name.to_string()) } else { Prompt::Default };
        EmbedOptions { prompt, dimensions: None }
    }

    /// The vector of each text or the reason why it has none; a text never affects its neighbours.
    ///
    /// # Errors
    /// Options the model cannot serve: an unknown prompt name, a length beyond the model's.
    pub fn embed_each(&self, texts: &[&str], options: &EmbedOptions) -> Result<Vec<Result<Vec<f32>>>> {
        let prompt = self.prompt_text(&options.prompt)?;
        let dimensions = self.dimensions(options)?;
        // A prompt longer than the window is cut with the text; its last place is the closing special token's.
        let longest = self.window.limit.saturating_sub(1);
        let prompt_tokens = if prompt.is_empty() { 0 } else { self.tokenizer.prefix_len(&prompt)?.min(longest) };
        let prefixed: Vec<String>;
        let inputs: Vec<&str> = if prompt.is_empty() {
            texts.to_vec()
        } else {
            prefixed = texts.iter().map(|t| format!("{prompt}{t}")).collect();
            prefixed.iter().map(String::as_str).collect()
        };
        let encodings = self.tokenizer.encode_batch(&inputs, self.window.limit);
        let mut results = embed_sequences(encodings, |s| self.model.pooled(s, &self.pooler, prompt_tokens));
        if dimensions < self.pooler.dimension() {
            let kernels = crate::cpu::selected()?;
            for vector in results.iter_mut().flatten() {
                vector.truncate(dimensions);
                kernels.l2_normalize(vector);
            }
        }
        Ok(results)
    }

    /// The vector of each token of each text, [len, hidden_size]: what a late-interaction model scores.
    pub fn embed_tokens(&self, texts: &[&str]) -> Vec<Result<Vec<f32>>> {
        let encodings = self.tokenizer.encode_batch(texts, self.window.limit);
        embed_sequences(encodings, |s| self.model.encode(s).into_iter().map(|r| r.map(|e| e.hidden)).collect())
    }

    fn prompt_text(&self, prompt: &Prompt) -> Result<String> {
        let by_name = |name: &String| {
            self.folder.prompts.get(name).cloned().ok_or_else(|| {
                let known: Vec<_> = self.folder.prompts.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
                InferError::InvalidArgument(format!("this model has no prompt `{name}`; it has {known}"))
            })
        };
        match prompt {
            Prompt::None => Ok(String::new()),
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::Named(name) => by_name(name),
            Prompt::Default => self.folder.default_prompt_name.as_ref().map_or(Ok(String::new()), by_name),
        }
    }

    fn dimensions(&self, options: &EmbedOptions) -> Result<usize> {
        let whole = self.pooler.dimension();
        let wanted = options.dimensions.or(self.folder.truncate_dim.map(|d| d.min(whole))).unwrap_or(whole);
        if wanted == 0 || wanted > whole {
            return Err(InferError::InvalidArgument(format!("{wanted} dimensions asked for; the model has {whole}")));
        }
        Ok(wanted)
    }

    /// Length of a vector.
    pub fn dimension(&self) -> usize {
        self.folder.truncate_dim.unwrap_or(usize::MAX).min(self.pooler.dimension())
    }

    /// Longest input in tokens, and what says so. Longer texts are cut at the end, their special tokens kept.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// What the folder says of the steps after the transformer.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The transformer.
    pub fn model(&self) -> &BertModel {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// What was assumed because the folder does not say it.
    pub fn assumptions(&self) -> Vec<String> {
        if self.folder.assumed_pooling {
            let pooled = matches!(self.folder.modules.first(), Some(Module::Pooling(_)));
            debug_assert!(pooled, "an assumed pooling is a pooling");
            return vec!["no modules.json: token vectors are averaged and the mean is L2-normalised".to_string()];
        }
        Vec::new()
    }
}

/// Runs what could be encoded; each text keeps its own error.
fn embed_sequences(
    encodings: Vec<Result<Encoding>>,
    run: impl FnOnce(&[Sequence]) -> Vec<Result<Vec<f32>>>,
) -> Vec<Result<Vec<f32>>> {
    let mut results: Vec<Option<InferError>> = Vec::with_capacity(encodings.len());
    let mut sequences = Vec::with_capacity(encodings.len());
    for (i, encoding) in encodings.into_iter().enumerate() {
        results.push(encoding.map_err(|e| e.with_item(i)).map(|e| sequences.push((i, sequence(e)))).err());
    }
    let (items, sequences): (Vec<usize>, Vec<Sequence>) = sequences.into_iter().unzip();
    let mut vectors = run(&sequences).into_iter().zip(items);
    results
        .into_iter()
        .map(|failed| match failed {
            Some(e) => Err(e),
            None => match vectors.next() {
                Some((vector, item)) => vector.map_err(|e| e.with_item(item)),
                None => Err(InferError::InvalidArgument("a text was lost on the way".to_string())),
            },
        })
        .collect()
}

fn sequence(e: Encoding) -> Sequence {
    Sequence { ids: e.ids, type_ids: e.type_ids, positions: Vec::new() }
}

/// A cross-encoder: scores a query against documents, or classifies texts.
pub struct Reranker {
    model: BertModel,
    tokenizer: TextTokenizer,
    window: Window,
}

impl Reranker {
    /// Loads a folder onto the best backend.
    ///
    /// # Errors
    /// As [`Embedder::load`]; and a model without a classification head.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with_compute(folder, create_compute()?)
    }

    /// Loads a folder onto a given backend.
    pub fn load_with_compute(folder: &Path, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        let (model, tokenizer, window) = load_text_model(folder, compute)?;
        if model.labels() == 0 {
            return Err(InferError::ModelIncompatible {
                key: "architectures".to_string(),
                expected: "a class ending in ForSequenceClassification: reranking needs a classification head".into(),
                found: format!("{:?}", model.config().architectures.clone().unwrap_or_default()),
            });
        }
        Ok(Self { model, tokenizer, window })
    }

    /// The raw scores, `[labels]`, of the query with each document. A pair too long for the window loses tokens from its
    /// longer text.
    pub fn score(&self, query: &str, documents: &[&str]) -> Vec<Result<Vec<f32>>> {
        use rayon::prelude::*;
        let pair = |d: &&str| self.tokenizer.encode_pair(query, d, self.window.limit);
        let encodings: Vec<_> = documents.par_iter().map(pair).collect();
        embed_sequences(encodings, |s| self.model.classify(s))
    }

    /// Longest pair in tokens, and what says so.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Scores a pair has.
    pub fn labels(&self) -> usize {
        self.model.labels()
    }

    /// The transformer.
    pub fn model(&self) -> &BertModel {
        &self.model
    }
}
