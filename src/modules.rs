//! What a sentence-transformers folder says about the way from token vectors to what a text becomes, without weights.
//!
//! [`ModelFolder::read`] reads `modules.json`, each module's `config.json` and `config_sentence_transformers.json`.
//! What it does not know it refuses by name: a skipped module would give other vectors in silence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{InferError, Result};
use crate::gpu::Activation;
pub use crate::gpu::PoolingMode;
pub use crate::model::SparsePooling;
use crate::weights::GgufFile;

mod configs;
pub(crate) mod gguf;
pub(crate) mod json;
mod late;
mod list;

use json::{JsonFile, read_value};
pub use late::{Expansion, LateInteraction, TokenFilter};
pub(crate) use list::folders;

/// A sentence-transformers folder: where the transformer is and what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFolder {
    /// Holds the transformer's `config.json`, weights and tokenizer; often the folder itself.
    pub transformer_dir: PathBuf,
    /// Which head the transformer is used with.
    pub task: Task,
    /// What follows the transformer, in order. Modules before a [`Module::Pooling`] work on token vectors; without one,
    /// all do. Dropout does nothing at inference and is left out.
    pub modules: Vec<Module>,
    /// Lengths and marks of queries and documents, for models that score token vectors.
    pub late: LateInteraction,
    /// Texts to put before an input, by name (`query`, `document`, ...).
    pub prompts: BTreeMap<String, String>,
    /// The key of `prompts` that is used when the caller names none.
    pub default_prompt_name: Option<String>,
    /// Length to which vectors are cut (after all modules), if the folder asks for one.
    pub truncate_dim: Option<usize>,
    /// Largest number of values a sparse vector keeps, if the folder asks for one.
    pub max_active_dims: Option<usize>,
    /// The similarity function the model is made for: `cosine`, `dot`, `euclidean`, `manhattan`, `maxsim`.
    pub similarity: Option<String>,
    /// No `modules.json`: mean pooling and L2 normalisation are our assumption.
    pub assumed_pooling: bool,
}

/// Which head a folder uses its transformer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// None: token vectors.
    #[default]
    Features,
    /// The masked language model's: scores of every vocabulary entry for each token.
    FillMask,
    /// The sequence classifier's: a cross-encoder.
    Classification,
}

/// What a folder makes of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// One vector: [`Embedder::embed`](crate::Embedder::embed).
    Vector,
    /// One vector a token: [`Embedder::embed_tokens`](crate::Embedder::embed_tokens).
    TokenVectors,
    /// A weight for each of a few vocabulary entries: [`SparseEmbedder`](crate::embedder::SparseEmbedder).
    Sparse,
    /// Scores: [`Reranker`](crate::Reranker).
    Scores,
}

/// One step after the transformer.
#[derive(Debug, Clone, PartialEq)]
pub enum Module {
    /// Token vectors to one vector.
    Pooling(PoolingSpec),
    /// A linear layer with an activation.
    Dense(DenseSpec),
    /// LayerNorm over the vector.
    LayerNorm(LayerNormSpec),
    /// L2 normalisation.
    Normalize,
    /// Leaves out the vectors of some tokens.
    TokenFilter(TokenFilter),
    /// Scores of a masked language model to one sparse vector.
    Splade(SparsePooling),
}

/// How token vectors become one vector.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingSpec {
    /// One or more modes; their vectors are concatenated in this order.
    pub modes: Vec<PoolingMode>,
    /// False: the prompt's tokens take no part in pooling.
    pub include_prompt: bool,
    /// Length of a token vector as the file states it.
    pub dimension: Option<usize>,
}

/// A linear layer: `linear.weight` `[out, in]` and `linear.bias` `[out]` of `dir/model.safetensors`.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseSpec {
    /// Holds the module's weights.
    pub dir: PathBuf,
    /// Length of the vector that comes in.
    pub in_features: usize,
    /// Length of the vector that goes out.
    pub out_features: usize,
    /// Whether `linear.bias` exists.
    pub bias: bool,
    /// Applied to the result.
    pub activation: Activation,
}

/// LayerNorm: `norm.weight` and `norm.bias` of `dir/model.safetensors`, epsilon 1e-5.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNormSpec {
    /// Holds the module's weights.
    pub dir: PathBuf,
    /// Length of the vector.
    pub dimension: usize,
}

impl ModelFolder {
    /// Reads what `folder` says. Without `modules.json`: mean pooling and L2 normalisation are assumed. A GGUF file, or
    /// a folder that stands for one ([`GgufFile::find`]), says how to pool in its metadata.
    ///
    /// # Errors
    /// A file that is malformed, and a module or setting that is not supported, by file and key.
    pub fn read(folder: &Path) -> Result<Self> {
        if let Some(file) = GgufFile::find(folder)? {
            return gguf::read(&file);
        }
        if !folder.is_dir() {
            return Err(InferError::model(folder, "no such folder"));
        }
        let about = JsonFile::optional(folder.join("config_sentence_transformers.json"))?;
        let list_file = folder.join("modules.json");
        let listed = read_value(&list_file)?.map(|list| list::read(folder, &list_file, &list, &about)).transpose()?;
        let assumed_pooling = listed.is_none();
        let list::Listed { transformer_dir, task, modules } = listed.unwrap_or_else(|| list::Listed::assumed(folder));
        let (prompts, default_prompt_name) = read_prompts(&about)?;
        let late = LateInteraction::read(&transformer_dir, &about)?;
        let read = Self {
            transformer_dir,
            task,
            modules,
            late,
            prompts,
            default_prompt_name,
            truncate_dim: about.positive("truncate_dim")?,
            max_active_dims: about.positive("max_active_dims")?,
            similarity: about.text("similarity_fn_name")?.map(str::to_owned),
            assumed_pooling,
        };
        if read.output() != Output::TokenVectors && read.late != LateInteraction::default() {
            let key = "query_length, document_length, query_expansion";
            let found = "set in a folder that does not make one vector a token";
            let file = read.transformer_dir.join("sentence_bert_config.json");
            return Err(json::incompatible(&file, key, "absent", found));
        }
        Ok(read)
    }

    /// What says how vectors are made of texts, for messages.
    pub fn source(&self) -> &'static str {
        if self.transformer_dir.is_file() { "`pooling_type` of the GGUF file" } else { "modules.json" }
    }

    /// What the folder makes of a text.
    pub fn output(&self) -> Output {
        let has = |fits: fn(&Module) -> bool| self.modules.iter().any(fits);
        match self.task {
            Task::Classification => Output::Scores,
            _ if has(|m| matches!(m, Module::Splade(_))) => Output::Sparse,
            _ if has(|m| matches!(m, Module::Pooling(_))) => Output::Vector,
            _ => Output::TokenVectors,
        }
    }

    pub(crate) fn token_filters(&self) -> impl Iterator<Item = &TokenFilter> {
        self.modules.iter().filter_map(|m| if let Module::TokenFilter(filter) = m { Some(filter) } else { None })
    }

    /// Replaces the folder's pooling by `modes`, whose vectors are concatenated; every other module stays.
    ///
    /// # Errors
    /// No modes; a folder without a pooling to replace; a following module that takes a vector of another length than
    /// the pooling then gives.
    pub fn pool_with(&mut self, modes: &[PoolingMode]) -> Result<()> {
        if modes.is_empty() {
            return Err(InferError::InvalidArgument("a pooling needs at least one mode".to_string()));
        }
        let made = match self.output() {
            Output::Vector => "one vector a text",
            Output::TokenVectors => "one vector a token",
            Output::Sparse => "sparse vectors",
            Output::Scores => "scores",
        };
        let first = self.modules.iter().position(|m| matches!(m, Module::Pooling(_)));
        let Some(Module::Pooling(pooling)) = first.map(|i| &mut self.modules[i]) else {
            let why = format!("{} makes {made}: it has no pooling to replace", self.source());
            return Err(InferError::InvalidArgument(why));
        };
        pooling.modes = modes.to_vec();
        let given = pooling.dimension.map(|d| d * modes.len());
        let next = first.and_then(|i| self.modules[i + 1..].iter().find_map(list::input_width));
        match given.zip(next) {
            Some((given, takes)) if given != takes => Err(InferError::InvalidArgument(format!(
                "{} mode(s) of pooling give {given} values, the module after it takes {takes}",
                modes.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// The texts by name, and the name of the default one.
fn read_prompts(about: &JsonFile) -> Result<(BTreeMap<String, String>, Option<String>)> {
    let mut prompts = BTreeMap::new();
    if let Some(found) = about.get("prompts") {
        let map = found.as_object().ok_or_else(|| about.wrong("prompts", "an object of texts", found))?;
        for (name, text) in map.iter().filter(|(_, text)| !text.is_null()) {
            let words = text.as_str().ok_or_else(|| about.wrong(&format!("prompts.{name}"), "a text", text))?;
            prompts.insert(name.clone(), words.to_owned());
        }
    }
    // PyLate's marks stand before the prompts of the same role.
    for (key, name) in [("query_prefix", "query"), ("document_prefix", "document")] {
        if let Some(mark) = about.text(key)? {
            let prompt = prompts.get(name).map_or("", String::as_str);
            let whole = format!("{mark}{}", prompt.strip_prefix(mark).unwrap_or(prompt));
            prompts.insert(name.to_owned(), whole);
        }
    }
    let default = about.text("default_prompt_name")?.map(str::to_owned);
    if let Some(name) = default.as_ref().filter(|name| !prompts.contains_key(*name)) {
        return Err(about.error(format!("`default_prompt_name` is `{name}`, which `prompts` does not hold")));
    }
    Ok((prompts, default))
}
