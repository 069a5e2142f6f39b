//! What the metadata of a GGUF file says of the way from token vectors to a text's vector.

use std::path::Path;

use super::list::Listed;
use super::{LateInteraction, ModelFolder, Module, PoolingMode, PoolingSpec, Task};
use crate::error::Result;
use crate::weights::GgufFile;

/// By `<architecture>.pooling_type`. Vectors are normalised, as llama.cpp does unless it is told otherwise. Without the
/// key, as without modules.json, mean pooling is assumed.
pub(super) fn read(file: &Path) -> Result<ModelFolder> {
    let gguf = GgufFile::open(file)?;
    let key = format!("{}.pooling_type", gguf.architecture()?);
    let kind = gguf.size(&key)?;
    let assumed = Listed::assumed(file);
    let pooled = |mode| {
        let spec = PoolingSpec { modes: vec![mode], include_prompt: true, dimension: None };
        vec![Module::Pooling(spec), Module::Normalize]
    };
    let (task, modules) = match kind {
        None => (Task::Features, assumed.modules),
        Some(0) => (Task::Features, Vec::new()),
        Some(1) => (Task::Features, pooled(PoolingMode::Mean)),
        Some(2) => (Task::Features, pooled(PoolingMode::Cls)),
        Some(3) => (Task::Features, pooled(PoolingMode::LastToken)),
        Some(4) => (Task::Classification, Vec::new()),
        Some(_) => return Err(gguf.wrong(&key, "0 (none), 1 (mean), 2 (first), 3 (last) or 4 (scores)")),
    };
    Ok(ModelFolder {
        transformer_dir: file.to_path_buf(),
        task,
        modules,
        late: LateInteraction::default(),
        prompts: Default::default(),
        default_prompt_name: None,
        truncate_dim: None,
        max_active_dims: None,
        similarity: None,
        assumed_pooling: kind.is_none(),
    })
}
