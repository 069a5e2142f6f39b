//! `modules.json`: the transformer and the modules after it, one entry each.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::configs::{Level, dense, level, pooling, splade, task};
use super::json::{JsonFile, incompatible, read_value};
use super::{LayerNormSpec, Module, PoolingSpec, Task, TokenFilter};
use crate::error::{InferError, Result};
use crate::gpu::PoolingMode;

const SUPPORTED: &str = "Transformer first, then Pooling, Dense, LayerNorm, Normalize, Dropout; \
                         or Dense, MultiVectorMask and Normalize of token vectors; \
                         or MLMTransformer (Transformer with `transformer_task` fill-mask), then SpladePooling";

/// What modules.json says.
pub(super) struct Listed {
    pub transformer_dir: PathBuf,
    pub task: Task,
    pub modules: Vec<Module>,
}

impl Listed {
    /// What is assumed of a folder without the file.
    pub fn assumed(folder: &Path) -> Self {
        let mean = PoolingSpec { modes: vec![PoolingMode::Mean], include_prompt: true, dimension: None };
        let modules = vec![Module::Pooling(mean), Module::Normalize];
        Self { transformer_dir: folder.to_path_buf(), task: Task::Features, modules }
    }
}

/// Length of the vector a module takes, where its file states it.
pub(super) fn input_width(module: &Module) -> Option<usize> {
    match module {
        Module::Dense(dense) => Some(dense.in_features),
        Module::LayerNorm(norm) => Some(norm.dimension),
        Module::Pooling(pooling) => pooling.dimension,
        Module::Normalize | Module::TokenFilter(_) | Module::Splade(_) => None,
    }
}

/// Length of the vector a module gives when it takes one of length `width`, where the files state it.
fn output_width(module: &Module, width: Option<usize>) -> Option<usize> {
    match module {
        Module::Pooling(pooling) => pooling.dimension.or(width)?.checked_mul(pooling.modes.len()),
        Module::Dense(dense) => Some(dense.out_features),
        Module::LayerNorm(norm) => Some(norm.dimension),
        Module::Normalize | Module::TokenFilter(_) => width,
        Module::Splade(_) => None,
    }
}

/// An entry of the list.
struct Entry<'a> {
    file: &'a Path,
    index: usize,
    /// The class as the file names it, and without its package.
    class: String,
    name: String,
    path: String,
    dir: PathBuf,
}

impl<'a> Entry<'a> {
    fn read(folder: &Path, file: &'a Path, index: usize, value: &Value) -> Result<Self> {
        let error = |detail: String| InferError::model(file, format!("[{index}]{detail}"));
        let map = value.as_object().ok_or_else(|| error(" is not an object".to_string()))?;
        let entry = JsonFile { file: file.to_path_buf(), map: map.clone() };
        let class = entry.text("type")?.ok_or_else(|| error(": `type` is missing".to_string()))?;
        let path = entry.text("path")?.ok_or_else(|| error(": `path` is missing".to_string()))?;
        if !is_inside(path) {
            return Err(error(format!(": `path` is `{path}`, expected a folder inside the model folder")));
        }
        // A class of another package is the model's own Python code, whatever it is called; PyLate's Dense is the same.
        let name = match class.rsplit_once('.') {
            _ if class == "pylate.models.Dense.Dense" => "Dense",
            Some((package, name)) if package.split('.').next() == Some("sentence_transformers") => name,
            _ => {
                let supported = "classes of sentence_transformers; a model's own Python code cannot run";
                return Err(incompatible(file, &format!("[{index}].type"), supported, class));
            }
        };
        let (class, name, path) = (class.to_owned(), name.to_owned(), path.to_owned());
        Ok(Self { dir: folder.join(&path), file, index, class, name, path })
    }

    fn unsupported(&self, supported: &str) -> InferError {
        incompatible(self.file, &format!("[{}].type", self.index), supported, &self.class)
    }

    fn error(&self, detail: &str) -> InferError {
        InferError::model(self.file, format!("[{}]: {detail}", self.index))
    }

    /// The folder of the transformer, and its task.
    fn transformer(&self) -> Result<(PathBuf, Task)> {
        if !matches!(self.name.as_str(), "Transformer" | "MLMTransformer") {
            return Err(self.unsupported(SUPPORTED));
        }
        if !self.dir.is_dir() {
            return Err(self.error(&format!("there is no folder `{}`", self.path)));
        }
        let usual = if self.name == "MLMTransformer" { Task::FillMask } else { Task::Features };
        Ok((self.dir.clone(), task(&self.dir, usual)?))
    }
}

/// Whether a path leads nowhere but into the folder it starts from.
fn is_inside(path: &str) -> bool {
    let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    !path.contains('\\') && Path::new(path).components().all(inside)
}

/// The folders of the modules that a folder's `modules.json` lists, as far as they are there: paths from the folder,
/// whose parts `/` divides. What the entries mean is not looked at.
///
/// # Errors
/// A file that is no JSON.
pub(crate) fn folders(folder: &Path) -> Result<Vec<String>> {
    let list = read_value(&folder.join("modules.json"))?;
    let entries = list.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let paths = entries.iter().filter_map(|entry| entry.get("path")?.as_str());
    let there = paths.filter(|path| is_inside(path) && folder.join(path).is_dir());
    let parts = |path: &str| path.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/");
    Ok(there.map(parts).collect())
}

/// What of the list was read before an entry.
struct Before<'a> {
    task: Task,
    modules: &'a [Module],
    /// Dense layers that do not say what they work on work on token vectors.
    late: bool,
}

impl Before<'_> {
    fn has(&self, fits: fn(&Module) -> bool) -> bool {
        self.modules.iter().any(fits)
    }

    /// The module of an entry; `None` for one that does nothing.
    fn module(&self, entry: &Entry) -> Result<Option<Module>> {
        let pooled = self.has(|m| matches!(m, Module::Pooling(_)));
        let config = || JsonFile::required(entry.dir.join("config.json"));
        if self.has(|m| matches!(m, Module::Splade(_))) {
            return Err(entry.unsupported("no module after SpladePooling"));
        }
        Ok(Some(match entry.name.as_str() {
            "Dropout" => return Ok(None),
            "SpladePooling" if !self.modules.is_empty() || self.task != Task::FillMask => {
                return Err(entry.unsupported("SpladePooling right after an MLMTransformer"));
            }
            "SpladePooling" => Module::Splade(splade(&config()?)?),
            _ if self.task == Task::FillMask => {
                return Err(entry.unsupported("SpladePooling alone after scores of the vocabulary"));
            }
            _ if self.task == Task::Classification => {
                return Err(entry.unsupported("no module after a sequence classifier"));
            }
            "Pooling" if pooled => return Err(entry.unsupported("one Pooling, before every other module")),
            "Pooling" if self.has(|m| matches!(m, Module::TokenFilter(_))) => {
                return Err(entry.unsupported("no Pooling of what MultiVectorMask leaves"));
            }
            "Pooling" => Module::Pooling(pooling(&config()?)?),
            "MultiVectorMask" if !pooled => Module::TokenFilter(TokenFilter::read(&config()?)?),
            "LayerNorm" if pooled => {
                let dimension = config()?.must("dimension")?;
                Module::LayerNorm(LayerNormSpec { dimension, dir: entry.dir.clone() })
            }
            "Dense" | "Normalize" => {
                let config =
                    if entry.name == "Dense" { config()? } else { JsonFile::optional(entry.dir.join("config.json"))? };
                let usual = if self.late && entry.name == "Dense" { Level::Tokens } else { Level::Text };
                match level(&config, usual, pooled)? {
                    Level::Text if !pooled => return Err(entry.unsupported(BETWEEN)),
                    _ if entry.name == "Dense" => Module::Dense(dense(&config, &entry.dir)?),
                    _ => Module::Normalize,
                }
            }
            "LayerNorm" => return Err(entry.unsupported(BETWEEN)),
            _ => return Err(entry.unsupported(SUPPORTED)),
        }))
    }
}

const BETWEEN: &str = "Pooling between Transformer and the other modules";

/// Reads the list; `about` is config_sentence_transformers.json.
pub(super) fn read(folder: &Path, file: &Path, list: &Value, about: &JsonFile) -> Result<Listed> {
    let list = list.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| InferError::model(file, "expected a non-empty list of modules"))?;
    let kind = about.text("model_type")?;
    let late = matches!(kind, Some("MultiVectorEncoder" | "ColBERT"));
    let (transformer_dir, task) = Entry::read(folder, file, 0, &list[0])?.transformer()?;
    let mut modules = Vec::new();
    // Length of the vector after the modules so far, where the files state it.
    let mut width = None;
    for (index, value) in list.iter().enumerate().skip(1) {
        let entry = Entry::read(folder, file, index, value)?;
        let Some(module) = (Before { task, modules: &modules, late }).module(&entry)? else { continue };
        if let Some((given, takes)) = width.zip(input_width(&module)).filter(|(given, takes)| given != takes) {
            let path = &entry.path;
            return Err(entry.error(&format!("`{path}` takes {takes} values, the modules before it give {given}")));
        }
        width = output_width(&module, width);
        modules.push(module);
    }
    if kind == Some("ColBERT") {
        // PyLate lists the transformer and the projection only; what its code did besides is known.
        modules.extend([Module::TokenFilter(TokenFilter::of_pylate(about)?), Module::Normalize]);
    }
    let lacks = |what: &str| InferError::model(file, format!("no {what} module follows the Transformer"));
    match task {
        Task::FillMask if modules.is_empty() => Err(lacks("SpladePooling")),
        Task::Features if modules.is_empty() => Err(lacks("Pooling")),
        _ => Ok(Listed { transformer_dir, task, modules }),
    }
}
