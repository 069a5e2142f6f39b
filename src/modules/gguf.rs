//! What the metadata of a GGUF file says beside the model: the way from token vectors to a text's vector, special tokens,
//! chat templates.

use std::path::Path;

use serde_json::{Map, Value, json};

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

/// The special tokens' keys of tokenizer_config.json, with those of the metadata.
const ROLES: [(&str, &str); 7] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// What a settings file would say: `file` is a name below a GGUF file's own.
pub(super) fn settings(file: &Path) -> Result<Option<Value>> {
    let Some((model, name)) = file.parent().zip(file.file_name().and_then(|n| n.to_str())) else { return Ok(None) };
    if !matches!(name, "tokenizer_config.json" | "generation_config.json") || model.is_dir() {
        return Ok(None);
    }
    let Some(path) = GgufFile::find(model)? else { return Ok(None) };
    let gguf = GgufFile::open(&path)?;
    let map = if name == "tokenizer_config.json" { tokenizer_config(&gguf)? } else { generation_config(&gguf)? };
    Ok(Some(Value::Object(map)))
}

fn tokenizer_config(gguf: &GgufFile) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    let tokens = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let kinds = gguf.numbers("tokenizer.ggml.token_type")?.unwrap_or_default();
    for (role, key) in ROLES {
        let Some(id) = gguf.size(key)? else { continue };
        let Some(token) = tokens.get(id) else {
            return Err(gguf.wrong(key, &format!("one of the ids of {} tokens", tokens.len())));
        };
        // A WordPiece vocabulary marks the beginnings of words, except in control tokens.
        let word = gguf.text("tokenizer.ggml.model")? == Some("bert") && kinds.get(id) != Some(&3.0);
        map.insert(role.into(), json!(if word { token.trim_start_matches('\u{2581}') } else { token }));
    }
    for (role, other) in [("cls_token", "bos_token"), ("sep_token", "eos_token")] {
        if let Some(token) = map.get(other).filter(|_| !map.contains_key(role)).cloned() {
            map.insert(role.into(), token);
        }
    }
    for key in ["add_bos_token", "add_eos_token"] {
        if let Some(flag) = gguf.flag(&format!("tokenizer.ggml.{key}"))? {
            map.insert(key.into(), json!(flag));
        }
    }
    if let Some(templates) = chat_templates(gguf)? {
        map.insert("chat_template".into(), templates);
    }
    Ok(map)
}

/// One template, or a list of named ones.
fn chat_templates(gguf: &GgufFile) -> Result<Option<Value>> {
    let key = "tokenizer.chat_template";
    let own = gguf.text(key)?;
    let names = gguf.texts("tokenizer.chat_templates")?.unwrap_or_default();
    if names.is_empty() {
        return Ok(own.map(|template| json!(template)));
    }
    let mut list: Vec<Value> = own.iter().map(|t| json!({"name": "default", "template": t})).collect();
    for name in names.iter().filter(|name| **name != "default") {
        let key = format!("{key}.{name}");
        let template = gguf.text(&key)?.ok_or_else(|| gguf.wrong(&key, "a template, for it is listed"))?;
        list.push(json!({"name": name, "template": template}));
    }
    Ok(Some(list.into()))
}

/// The tokens that end a text, a turn or a message, and the one that begins a text.
fn generation_config(gguf: &GgufFile) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    let id = |key: &str| gguf.size(&format!("tokenizer.ggml.{key}_token_id"));
    let mut ends: Vec<usize> = Vec::new();
    for key in ["eos", "eot", "eom"] {
        ends.extend(id(key)?.filter(|id| !ends.contains(id)));
    }
    if !ends.is_empty() {
        map.insert("eos_token_id".into(), json!(ends));
    }
    if let Some(bos) = id("bos")? {
        map.insert("bos_token_id".into(), json!(bos));
    }
    Ok(map)
}
