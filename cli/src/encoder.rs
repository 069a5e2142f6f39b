//! What `--model` and `--pooling` choose together: one vector a text, one a token, or a sparse one.

use std::path::Path;
use std::sync::Arc;

use kin_infer::embedder::{Counted, Role, SparseEmbedder, SparseOptions, SparseVector, TokenOptions, TokenVectors};
use kin_infer::gpu::GpuCompute;
use kin_infer::modules::{ModelFolder, Output};
use kin_infer::tokenizer::{TextTokenizer, Window};
use kin_infer::watchdog::Run;
use kin_infer::{EmbedOptions, Embedder, Precision, Prompt};

use crate::common::Pooling;
use crate::failure::{Failure, Result};

/// What a text becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Vector,
    Tokens,
    Sparse,
}

impl Kind {
    /// For messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Vector => "one vector a text",
            Self::Tokens => "one vector a token",
            Self::Sparse => "sparse vectors",
        }
    }
}

/// A folder's description with what is to be made of texts.
pub struct Plan {
    pub kind: Kind,
    folder: ModelFolder,
}

/// A loaded model. A clone shares what was loaded.
#[derive(Clone)]
pub struct Encoder {
    model: Model,
    kind: Kind,
}

#[derive(Clone)]
enum Model {
    Dense(Embedder),
    Sparse(SparseEmbedder),
}

/// What came of a text.
pub enum Encoded {
    Vector(Vec<f32>),
    Tokens(TokenVectors),
    Sparse(SparseVector),
}

impl Encoded {
    /// The values of the vector or vectors, one after the other.
    pub fn floats(&self) -> &[f32] {
        match self {
            Self::Vector(values) => values,
            Self::Tokens(tokens) => &tokens.vectors,
            Self::Sparse(vector) => &vector.values,
        }
    }

    /// What the values belong to: ids of tokens, indices of a sparse vector.
    pub fn numbers(&self) -> &[u32] {
        match self {
            Self::Vector(_) => &[],
            Self::Tokens(tokens) => &tokens.ids,
            Self::Sparse(vector) => &vector.indices,
        }
    }
}

/// How texts are encoded. Options that a kind of output does not know are refused before.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub prompt: Prompt,
    pub role: Role,
    pub dimensions: Option<usize>,
    pub normalize: bool,
    pub top: Option<usize>,
}

impl Plan {
    pub fn new(folder: &Path, pooling: Option<Pooling>) -> Result<Self> {
        let mut folder = ModelFolder::read(folder)?;
        let output = folder.output();
        let no = |why: &str| Err(Failure::Failed(why.to_string()));
        let kind = match (pooling, output) {
            (None, Output::Scores) => return no("a cross-encoder's folder: `kin-infer rerank` runs it"),
            (Some(Pooling::Splade), _) | (None, Output::Sparse) => Kind::Sparse,
            (Some(_), Output::Sparse) => {
                return no("this folder makes sparse vectors: --pooling splade, or none given");
            }
            (Some(Pooling::None), _) | (None, Output::TokenVectors) => Kind::Tokens,
            (None, Output::Vector) => Kind::Vector,
            (Some(mode), _) => {
                let modes: Vec<_> = mode.mode().into_iter().collect();
                folder.pool_with(&modes).map_err(|e| Failure::Failed(format!("--pooling: {e}")))?;
                Kind::Vector
            }
        };
        Ok(Self { kind, folder })
    }

    pub fn load(self, compute: Arc<dyn GpuCompute>, precision: Precision) -> Result<Encoder> {
        let kind = self.kind;
        let model = match kind {
            Kind::Sparse => Model::Sparse(SparseEmbedder::from_folder_with(self.folder, compute, precision)?),
            Kind::Vector | Kind::Tokens => Model::Dense(Embedder::from_folder_with(self.folder, compute, precision)?),
        };
        Ok(Encoder { model, kind })
    }
}

impl Encoder {
    /// As part of a run: tells it where it is, and ends when it is cancelled.
    pub fn with_run(self, run: &Run) -> Self {
        let model = match self.model {
            Model::Dense(model) => Model::Dense(model.with_run(run)),
            Model::Sparse(model) => Model::Sparse(model.with_run(run)),
        };
        Self { model, ..self }
    }

    /// What each text becomes, or why it does not.
    pub fn encode(&self, texts: &[&str], request: &Request) -> Result<Found<Encoded>> {
        let Request { prompt, role, dimensions, normalize, top } = request.clone();
        Ok(match &self.model {
            Model::Sparse(model) => {
                let found = model.embed_each_counted(texts, &SparseOptions { prompt, top })?;
                wrap(found, Encoded::Sparse)
            }
            Model::Dense(model) if self.kind == Kind::Tokens => {
                let found = model.embed_tokens_with(texts, &TokenOptions { prompt, role, normalize })?;
                wrap(found, Encoded::Tokens)
            }
            Model::Dense(model) => {
                let mut found = model.embed_each_counted(texts, &EmbedOptions { prompt, dimensions })?;
                if normalize {
                    let kernels = kin_infer::cpu::selected()?;
                    found.iter_mut().flatten().for_each(|counted| kernels.l2_normalize(&mut counted.value));
                }
                wrap(found, Encoded::Vector)
            }
        })
    }

    /// The request as the model knows it: where a role is all that a prompt's name says, its text may be absent.
    pub fn adapt(&self, mut request: Request) -> Request {
        let known = |name: &String| self.folder().prompts.contains_key(name);
        if let Prompt::Named(name) = &request.prompt
            && self.is_late()
            && request.role != Role::Neither
            && !known(name)
        {
            request.prompt = match &self.model {
                Model::Dense(model) => model.token_options_for(request.role).prompt,
                Model::Sparse(model) => model.options_for(request.role).prompt,
            };
        }
        request
    }

    /// A folder made for late interaction.
    fn is_late(&self) -> bool {
        self.folder().output() == Output::TokenVectors
    }

    /// What a user should know before the vectors come.
    pub fn notes(&self, request: &Request) -> Vec<String> {
        let mut notes = self.assumptions();
        if self.is_late() && request.role == Role::Neither {
            notes.push("this model tells queries from documents: --prompt query, --prompt document".to_string());
        }
        notes
    }

    /// The request for a question.
    pub fn query(&self) -> Request {
        let prompt = match &self.model {
            Model::Dense(model) => model.options_for(Role::Query).prompt,
            Model::Sparse(model) => model.options_for(Role::Query).prompt,
        };
        Request { prompt, role: Role::Query, ..Request::default() }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Which arithmetic the values are of: `exact`, the contract's bits, whichever device computes them; else what
    /// computes them in its own way.
    pub fn arithmetic(&self) -> String {
        let compute = match &self.model {
            Model::Dense(model) => model.model().compute(),
            Model::Sparse(model) => model.model().compute(),
        };
        if compute.is_exact() { "exact".to_string() } else { compute.device().detail }
    }

    /// Length of each vector.
    pub fn dimension(&self) -> usize {
        match &self.model {
            Model::Dense(model) if self.kind == Kind::Tokens => model.token_dimension(),
            Model::Dense(model) => model.dimension(),
            Model::Sparse(model) => model.dimension(),
        }
    }

    pub fn folder(&self) -> &ModelFolder {
        match &self.model {
            Model::Dense(model) => model.folder(),
            Model::Sparse(model) => model.folder(),
        }
    }

    /// The longest text of a request, and what says so.
    pub fn window_of(&self, request: &Request) -> Window {
        match &self.model {
            Model::Dense(model) if self.kind == Kind::Tokens => model.token_window(request.role),
            Model::Dense(model) => model.window().clone(),
            Model::Sparse(model) => model.window().clone(),
        }
    }

    /// What is put before each text.
    pub fn prompt(&self, request: &Request) -> String {
        let folder = self.folder();
        let named = |name: &String| folder.prompts.get(name).cloned().unwrap_or_default();
        match &request.prompt {
            Prompt::None => String::new(),
            Prompt::Text(text) => text.clone(),
            Prompt::Named(name) => named(name),
            Prompt::Default => folder.default_prompt_name.as_ref().map(named).unwrap_or_default(),
        }
    }

    /// How many tokens each text has for the model, prompt and special tokens included, were there no window. What
    /// cannot be encoded counts as 0.
    pub fn lengths(&self, texts: &[&str], request: &Request) -> Vec<usize> {
        let prompt = self.prompt(request);
        let texts: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        // A folder for late interaction may mark what is a query and what a document by one token more.
        let mark = usize::from(self.is_late());
        let found = self.tokenizer().encode_batch(&texts, usize::MAX);
        found.into_iter().map(|encoding| encoding.map_or(0, |e| e.ids.len() + mark)).collect()
    }

    fn tokenizer(&self) -> &TextTokenizer {
        match &self.model {
            Model::Dense(model) => model.tokenizer(),
            Model::Sparse(model) => model.tokenizer(),
        }
    }

    /// A vocabulary entry as text.
    pub fn term(&self, id: u32) -> String {
        self.tokenizer().token(id).unwrap_or_default()
    }

    /// What was assumed because the folder does not say it.
    pub fn assumptions(&self) -> Vec<String> {
        match &self.model {
            Model::Dense(_) if self.kind == Kind::Tokens => Vec::new(),
            Model::Dense(model) => model.assumptions(),
            Model::Sparse(model) => model.assumptions(),
        }
    }
}

type Found<T> = Vec<kin_infer::Result<Counted<T>>>;

fn wrap<T>(found: Found<T>, as_kind: fn(T) -> Encoded) -> Found<Encoded> {
    found.into_iter().map(|result| result.map(|counted| counted.map(as_kind))).collect()
}
