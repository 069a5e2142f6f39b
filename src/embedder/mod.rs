//! [`Embedder`]: a sentence-transformers folder in, vectors out, one a text or one a token. [`SparseEmbedder`]: weights
//! of vocabulary entries out. [`Reranker`]: pairs of texts in, scores out.

mod reranker;
mod sparse;
mod text;
mod tokens;

use std::path::Path;
use std::sync::Arc;

pub use reranker::Reranker;
pub use sparse::{SparseEmbedder, SparseOptions, SparseVector};
pub use text::Counted;
pub use tokens::{TokenOptions, TokenVectors, max_sim};

use crate::arch::HeadChoice;
use crate::batch::BatchLimits;
use crate::error::{InferError, Result};
use crate::gpu::{GpuCompute, Precision, create_compute, create_compute_for};
use crate::model::{BertModel, LoadOptions};
use crate::modules::{ModelFolder, Module, Output, PoolingMode};
use crate::pooling::Pooler;
use crate::tokenizer::{TextTokenizer, Window};
use crate::watchdog::Run;
use text::{TextModel, each, values};
use tokens::LateTokens;

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

/// What a text is to a model that tells questions from what answers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// It does not say.
    #[default]
    Neither,
    /// A question.
    Query,
    /// What is looked through for answers.
    Document,
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
///
/// A clone shares what was loaded.
#[derive(Clone)]
pub struct Embedder {
    folder: Arc<ModelFolder>,
    text: TextModel,
    pooler: Arc<Pooler>,
    late: Arc<LateTokens>,
}

impl Embedder {
    /// Loads a folder onto the best backend.
    ///
    /// # Errors
    /// Whatever is missing, malformed or not supported in the folder, by file and key or tensor.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with_compute(folder, create_compute()?)
    }

    /// Loads a folder onto the best backend that has a precision.
    ///
    /// ```no_run
    /// # fn main() -> kin_infer::Result<()> {
    /// use kin_infer::{Embedder, Precision};
    /// let embedder = Embedder::load_with_precision("models/all-MiniLM-L6-v2".as_ref(), Precision::Int8)?;
    /// # Ok(()) }
    /// ```
    pub fn load_with_precision(folder: &Path, precision: Precision) -> Result<Self> {
        Self::from_folder_with(ModelFolder::read(folder)?, create_compute_for(precision)?, precision)
    }

    /// Loads a folder onto a given backend.
    pub fn load_with_compute(folder: &Path, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::from_folder(ModelFolder::read(folder)?, compute)
    }

    /// Loads what a folder's description names; [`ModelFolder::pool_with`] may have replaced its pooling.
    ///
    /// # Errors
    /// As [`load`](Self::load); and a folder of sparse vectors or of scores.
    pub fn from_folder(folder: ModelFolder, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::from_folder_with(folder, compute, Precision::Exact)
    }

    /// As [`from_folder`](Self::from_folder), with a given precision of the transformer's layers.
    pub fn from_folder_with(folder: ModelFolder, compute: Arc<dyn GpuCompute>, precision: Precision) -> Result<Self> {
        let other = match folder.output() {
            Output::Vector | Output::TokenVectors => None,
            Output::Sparse => Some("makes sparse vectors (SpladePooling): SparseEmbedder loads it"),
            Output::Scores => Some("makes scores, as a cross-encoder does: Reranker loads it"),
        };
        if let Some(why) = other {
            return Err(InferError::InvalidArgument(format!("{} {why}, not Embedder", folder.source())));
        }
        let options = LoadOptions { head: HeadChoice::Vectors, precision, ..LoadOptions::default() };
        let text = TextModel::load(&folder.transformer_dir, compute, options)?;
        let pooler = Pooler::load(&folder.modules, text.model.spec().hidden_size, text.model.compute())?;
        let late = LateTokens::new(&folder, &text.tokenizer)?;
        let (folder, pooler, late) = (Arc::new(folder), Arc::new(pooler), Arc::new(late));
        Ok(Self { folder, text, pooler, late })
    }

    /// The same model as part of a run: its calls tell the run where they are, and end with
    /// [`Cancelled`](InferError::Cancelled) once it is cancelled. Cloning copies no weights, so a call can have a run of
    /// its own: `model.clone().with_run(&run)`.
    pub fn with_run(self, run: &Run) -> Self {
        Self { text: self.text.with_run(run), ..self }
    }

    /// The same model with other limits of its batches than [`EmbeddingPlan::current`](crate::resource::EmbeddingPlan)
    /// gave it.
    pub fn with_limits(mut self, limits: BatchLimits) -> Self {
        self.text.model = self.text.model.with_limits(limits);
        self
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
        self.embed_query_with(text, None)
    }

    /// As [`embed_query`](Self::embed_query), of another length: see [`EmbedOptions::dimensions`].
    pub fn embed_query_with(&self, text: &str, dimensions: Option<usize>) -> Result<Vec<f32>> {
        let options = EmbedOptions { dimensions, ..self.options_for(Role::Query) };
        let mut vectors = self.embed_with(&[text], &options)?;
        vectors.pop().ok_or_else(|| InferError::input(0, "no vector came back"))
    }

    /// The vectors of documents, with the folder's `document` (or `passage`, `corpus`) prompt where it has one.
    pub fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        self.embed_documents_with(texts, None)
    }

    /// As [`embed_documents`](Self::embed_documents), of another length: see [`EmbedOptions::dimensions`].
    pub fn embed_documents_with(&self, texts: &[&str], dimensions: Option<usize>) -> Result<Vec<Vec<f32>>> {
        self.embed_with(texts, &EmbedOptions { dimensions, ..self.options_for(Role::Document) })
    }

    /// Options with the prompt of a role.
    pub fn options_for(&self, role: Role) -> EmbedOptions {
        EmbedOptions { prompt: role_prompt(&self.folder, role), dimensions: None }
    }

    /// The vector of each text or the reason why it has none; a text never affects its neighbours.
    ///
    /// # Errors
    /// Options the model cannot serve: an unknown prompt name, a length beyond the model's. A folder that makes one
    /// vector a token and none of the text.
    pub fn embed_each(&self, texts: &[&str], options: &EmbedOptions) -> Result<Vec<Result<Vec<f32>>>> {
        Ok(values(self.run(texts, options, false)?))
    }

    /// As [`embed_each`](Self::embed_each), with each text's number of tokens and whether it was cut.
    pub fn embed_each_counted(&self, texts: &[&str], options: &EmbedOptions) -> Result<Vec<Result<Counted<Vec<f32>>>>> {
        self.run(texts, options, true)
    }

    fn run(&self, texts: &[&str], options: &EmbedOptions, counted: bool) -> Result<Vec<Result<Counted<Vec<f32>>>>> {
        if !self.pooler.pools() {
            let why = "makes one vector a token and pools none of them: embed_tokens gives them";
            return Err(InferError::InvalidArgument(format!("{} {why}", self.folder.source())));
        }
        let prompt = prompt_text(&self.folder, &options.prompt)?;
        let dimensions = self.dimensions(options)?;
        let prompt_tokens = self.text.prompt_tokens(&prompt)?;
        let readings = self.text.read(texts, &prompt, self.text.window.limit, counted);
        let mut results = each(readings, |s| self.text.model.pooled(s, &self.pooler, prompt_tokens));
        if dimensions < self.pooler.dimension() {
            let kernels = crate::cpu::selected()?;
            for counted in results.iter_mut().flatten() {
                counted.value.truncate(dimensions);
                kernels.l2_normalize(&mut counted.value);
            }
        }
        Ok(results)
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
        &self.text.window
    }

    /// What the folder says of the steps after the transformer.
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// The transformer.
    pub fn model(&self) -> &BertModel {
        &self.text.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.text.tokenizer
    }

    /// What was assumed because the folder does not say it.
    pub fn assumptions(&self) -> Vec<String> {
        let words = match self.folder.modules.first() {
            _ if !self.folder.assumed_pooling => return Vec::new(),
            Some(Module::Pooling(p)) if p.modes == [PoolingMode::Mean] => {
                "token vectors are averaged and the mean is L2-normalised"
            }
            _ => "the pooled vector is L2-normalised",
        };
        vec![format!("no {}: {words}", self.folder.source())]
    }
}

/// The text a prompt stands for.
fn prompt_text(folder: &ModelFolder, prompt: &Prompt) -> Result<String> {
    let by_name = |name: &String| {
        folder.prompts.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = folder.prompts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            InferError::InvalidArgument(format!("this model has no prompt `{name}`; it has {known}"))
        })
    };
    match prompt {
        Prompt::None => Ok(String::new()),
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Named(name) => by_name(name),
        Prompt::Default => folder.default_prompt_name.as_ref().map_or(Ok(String::new()), by_name),
    }
}

/// The prompt of a role: the first of its names that the folder has, else the default one.
fn role_prompt(folder: &ModelFolder, role: Role) -> Prompt {
    let names: &[&str] = match role {
        Role::Neither => &[],
        Role::Query => &["query"],
        Role::Document => &["document", "passage", "corpus"],
    };
    let known = names.iter().find(|name| folder.prompts.contains_key(**name));
    known.map_or(Prompt::Default, |name| Prompt::Named((*name).to_string()))
}
