//! What a sentence-transformers folder says about the way from token vectors to a text's vector, without weights.
//!
//! [`ModelFolder::read`] reads `modules.json`, each module's `config.json` and `config_sentence_transformers.json`.
//! What it does not know it refuses by name: a skipped module would give other vectors in silence.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::error::{InferError, Result};
use crate::gpu::Activation;
pub use crate::gpu::PoolingMode;

pub(crate) mod json;
use json::{JsonFile, incompatible, read_value};

/// A sentence-transformers folder: where the transformer is and what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFolder {
    /// Holds the transformer's `config.json`, weights and tokenizer; often the folder itself.
    pub transformer_dir: PathBuf,
    /// What follows the transformer, in order: one pooling first. Dropout does nothing at inference and is left out.
    pub modules: Vec<Module>,
    /// Texts to put before an input, by name (`query`, `document`, ...).
    pub prompts: BTreeMap<String, String>,
    /// The key of `prompts` that is used when the caller names none.
    pub default_prompt_name: Option<String>,
    /// Length to which vectors are cut (after all modules), if the folder asks for one.
    pub truncate_dim: Option<usize>,
    /// The similarity function the model is made for: `cosine`, `dot`, `euclidean`, `manhattan`.
    pub similarity: Option<String>,
    /// No `modules.json`: mean pooling and L2 normalisation are our assumption.
    pub assumed_pooling: bool,
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

/// The old booleans with the names that replace them, in the order in which their vectors are concatenated.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", "cls", PoolingMode::Cls),
    ("pooling_mode_max_tokens", "max", PoolingMode::Max),
    ("pooling_mode_mean_tokens", "mean", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", "weightedmean", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", PoolingMode::LastToken),
];

const ACTIVATIONS: [(&str, Activation); 6] = [
    ("Identity", Activation::Identity),
    ("Tanh", Activation::Tanh),
    ("ReLU", Activation::Relu),
    ("GELU", Activation::GeluErf),
    ("Sigmoid", Activation::Sigmoid),
    ("SiLU", Activation::Silu),
];

const SUPPORTED: &str = "Transformer first, then Pooling, Dense, LayerNorm, Normalize, Dropout";

impl ModelFolder {
    /// Reads what `folder` says. Without `modules.json`: mean pooling and L2 normalisation are assumed.
    pub fn read(folder: &Path) -> Result<Self> {
        if !folder.is_dir() {
            return Err(InferError::model(folder, "no such folder"));
        }
        let list_file = folder.join("modules.json");
        let (transformer_dir, modules, assumed_pooling) = match read_value(&list_file)? {
            Some(list) => {
                let (dir, modules) = read_modules(folder, &list_file, &list)?;
                (dir, modules, false)
            }
            None => {
                let mean = PoolingSpec { modes: vec![PoolingMode::Mean], include_prompt: true, dimension: None };
                (folder.to_path_buf(), vec![Module::Pooling(mean), Module::Normalize], true)
            }
        };
        let about = JsonFile::optional(folder.join("config_sentence_transformers.json"))?;
        let mut prompts = BTreeMap::new();
        if let Some(found) = about.get("prompts") {
            let map = found.as_object().ok_or_else(|| about.wrong("prompts", "an object of texts", found))?;
            for (name, text) in map.iter().filter(|(_, text)| !text.is_null()) {
                let text_str = text.as_str().ok_or_else(|| about.wrong(&format!("prompts.{name}"), "a text", text))?;
                prompts.insert(name.clone(), text_str.to_owned());
            }
        }
        let default_prompt_name = about.text("default_prompt_name")?.map(str::to_owned);
        if let Some(name) = default_prompt_name.as_ref().filter(|name| !prompts.contains_key(*name)) {
            return Err(about.error(format!("`default_prompt_name` is `{name}`, which `prompts` does not hold")));
        }
        Ok(Self {
            transformer_dir,
            modules,
            prompts,
            default_prompt_name,
            truncate_dim: about.positive("truncate_dim")?,
            similarity: about.text("similarity_fn_name")?.map(str::to_owned),
            assumed_pooling,
        })
    }
}

fn read_modules(folder: &Path, file: &Path, list: &Value) -> Result<(PathBuf, Vec<Module>)> {
    let list = list.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| InferError::model(file, "expected a non-empty list of modules"))?;
    let mut transformer_dir = None;
    let mut modules: Vec<Module> = Vec::new();
    // Length of the vector after the modules so far, where the files state it.
    let mut width: Option<usize> = None;
    for (index, entry) in list.iter().enumerate() {
        let entry = entry.as_object().ok_or_else(|| InferError::model(file, format!("[{index}] is not an object")))?;
        let entry = JsonFile { file: file.to_path_buf(), map: entry.clone() };
        let class = entry.text("type")?.ok_or_else(|| entry.error(format!("[{index}]: `type` is missing")))?;
        let path = entry.text("path")?.ok_or_else(|| entry.error(format!("[{index}]: `path` is missing")))?;
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if path.contains('\\') || !Path::new(path).components().all(inside) {
            return Err(
                entry.error(format!("[{index}]: `path` is `{path}`, expected a folder inside the model folder"))
            );
        }
        let dir = folder.join(path);
        let unsupported = |supported: &str| incompatible(file, &format!("[{index}].type"), supported, class);
        // A class of another package is the model's own Python code, whatever it is called.
        let name = match class.rsplit_once('.') {
            Some((package, name)) if package.split('.').next() == Some("sentence_transformers") => name,
            _ => return Err(unsupported("classes of sentence_transformers; a model's own Python code cannot run")),
        };
        if transformer_dir.is_none() {
            if name != "Transformer" {
                return Err(unsupported(SUPPORTED));
            }
            if !dir.is_dir() {
                return Err(entry.error(format!("[{index}]: there is no folder `{path}`")));
            }
            transformer_dir = Some(dir);
            continue;
        }
        let module = match name {
            "Pooling" if modules.is_empty() => Module::Pooling(read_pooling(dir.join("config.json"))?),
            "Dropout" => continue,
            "Pooling" => return Err(unsupported("one Pooling, before every other module")),
            "Dense" | "LayerNorm" | "Normalize" if modules.is_empty() => {
                return Err(unsupported("Pooling between Transformer and the other modules"));
            }
            "Dense" => Module::Dense(read_dense(dir)?),
            "LayerNorm" => {
                let config = JsonFile::required(dir.join("config.json"))?;
                Module::LayerNorm(LayerNormSpec { dimension: config.must("dimension")?, dir })
            }
            "Normalize" => {
                pooled_only(&JsonFile::optional(dir.join("config.json"))?)?;
                Module::Normalize
            }
            _ => return Err(unsupported(SUPPORTED)),
        };
        let takes = match &module {
            Module::Dense(dense) => Some(dense.in_features),
            Module::LayerNorm(norm) => Some(norm.dimension),
            _ => None,
        };
        if let (Some(given), Some(takes)) = (width, takes)
            && given != takes
        {
            let detail = format!("[{index}]: `{path}` takes {takes} values, the modules before it give {given}");
            return Err(entry.error(detail));
        }
        width = match &module {
            Module::Pooling(pooling) => pooling.dimension.and_then(|size| size.checked_mul(pooling.modes.len())),
            Module::Dense(dense) => Some(dense.out_features),
            Module::LayerNorm(norm) => Some(norm.dimension),
            Module::Normalize => width,
        };
        modules.push(module);
    }
    match transformer_dir {
        Some(dir) if !modules.is_empty() => Ok((dir, modules)),
        _ => Err(InferError::model(file, "no Pooling module follows the Transformer")),
    }
}

fn read_pooling(file: PathBuf) -> Result<PoolingSpec> {
    let config = JsonFile::required(file)?;
    let known = MODES.map(|(_, name, _)| name).join(", ");
    let mode = |found: &Value| {
        let name =
            found.as_str().ok_or_else(|| config.wrong("pooling_mode", "a mode name or a list of them", found))?;
        let mode = MODES.iter().find(|mode| mode.1 == name);
        mode.map(|mode| mode.2).ok_or_else(|| incompatible(&config.file, "pooling_mode", &known, name))
    };
    // Where both forms stand, the old booleans say nothing.
    let modes = match config.get("pooling_mode") {
        Some(Value::Array(list)) => list.iter().map(mode).collect::<Result<Vec<_>>>()?,
        Some(found) => vec![mode(found)?],
        None => {
            let strange = config.map.iter().find(|(key, value)| {
                key.starts_with("pooling_mode_") && **value != false && MODES.iter().all(|mode| mode.0 != key.as_str())
            });
            if let Some((key, value)) = strange {
                return Err(incompatible(&config.file, key, &MODES.map(|mode| mode.0).join(", "), &value.to_string()));
            }
            let mut modes = Vec::new();
            for (key, _, mode) in MODES {
                if config.flag(key)?.unwrap_or(false) {
                    modes.push(mode);
                }
            }
            modes
        }
    };
    if modes.is_empty() {
        return Err(config.error(format!("no pooling mode: expected `pooling_mode` with one of {known}")));
    }
    let dimension = match config.positive("embedding_dimension")? {
        Some(size) => Some(size),
        None => config.positive("word_embedding_dimension")?,
    };
    Ok(PoolingSpec { modes, include_prompt: config.flag("include_prompt")?.unwrap_or(true), dimension })
}

fn read_dense(dir: PathBuf) -> Result<DenseSpec> {
    let config = JsonFile::required(dir.join("config.json"))?;
    pooled_only(&config)?;
    if config.flag("use_residual")?.unwrap_or(false) {
        return Err(incompatible(&config.file, "use_residual", "false", "true"));
    }
    // The default of sentence-transformers.
    let path = config.text("activation_function")?.unwrap_or("torch.nn.modules.activation.Tanh");
    let name = path.strip_prefix("torch.nn.").map(|rest| rest.rsplit('.').next().unwrap_or(rest));
    let activation = ACTIVATIONS.iter().find(|activation| Some(activation.0) == name).ok_or_else(|| {
        let names = ACTIVATIONS.map(|activation| activation.0).join(", ");
        incompatible(&config.file, "activation_function", &format!("{names} of torch.nn"), path)
    })?;
    Ok(DenseSpec {
        in_features: config.must("in_features")?,
        out_features: config.must("out_features")?,
        bias: config.flag("bias")?.unwrap_or(true),
        activation: activation.1,
        dir,
    })
}

/// Refuses a module that works on token vectors or writes beside the text's vector.
fn pooled_only(config: &JsonFile) -> Result<()> {
    for key in ["module_input_name", "module_output_name"] {
        if let Some(found) = config.text(key)?.filter(|name| *name != "sentence_embedding") {
            return Err(incompatible(&config.file, key, "sentence_embedding", found));
        }
    }
    Ok(())
}
