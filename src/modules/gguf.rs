//! What the metadata of a GGUF file says beside the model: the way from token vectors to a text's vector, special tokens,
//! chat templates.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::list::Listed;
use super::{LateInteraction, ModelFolder, Module, PoolingMode, PoolingSpec, Task};
use crate::error::Result;
use crate::weights::GgufFile;
use crate::weights::gguf::Value;

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
pub(crate) const ROLES: [(&str, &str); 7] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// Control tokens, and those of the user, in `tokenizer.ggml.token_type`.
pub(crate) const CONTROL: u64 = 3;
pub(crate) const OF_USER: u64 = 4;

/// The type of each of `count` tokens: 1 normal, 2 unknown, 3 control, 4 of the user, 5 unused, 6 a byte.
pub(crate) fn kinds(gguf: &GgufFile, count: usize) -> Result<Vec<u64>> {
    let key = "tokenizer.ggml.token_type";
    let Some(value) = gguf.get(key) else { return Ok(vec![1; count]) };
    let wrong = || gguf.wrong(key, &format!("a type from 1 to 6 for each of {count} tokens"));
    let kind = |v: Value<'_>| v.as_size().map(|kind| kind as u64).filter(|kind| (1..=6).contains(kind));
    let kinds: Option<Vec<u64>> = value.as_array().ok_or_else(wrong)?.iter().map(kind).collect();
    kinds.filter(|kinds| kinds.len() == count).ok_or_else(wrong)
}

/// A token of a WordPiece vocabulary as in a vocab.txt: the converter marks beginnings of words instead of what continues
/// one, and leaves control tokens as they are.
pub(crate) fn word_piece(token: &str, kind: u64) -> String {
    match token.strip_prefix('\u{2581}') {
        _ if kind == CONTROL => token.to_string(),
        Some(word) => word.to_string(),
        None => format!("##{token}"),
    }
}

/// What the settings file of this name would say.
pub(super) fn settings(gguf: &GgufFile, name: &str) -> Result<Map<String, Json>> {
    match name {
        "tokenizer_config.json" => tokenizer_config(gguf),
        "generation_config.json" => generation_config(gguf),
        _ => Ok(Map::new()),
    }
}

fn tokenizer_config(gguf: &GgufFile) -> Result<Map<String, Json>> {
    let mut map = Map::new();
    let tokens = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let kinds = kinds(gguf, tokens.len())?;
    let words = gguf.text("tokenizer.ggml.model")? == Some("bert");
    for (role, key) in ROLES {
        let Some(id) = gguf.size(key)? else { continue };
        let Some((token, kind)) = tokens.get(id).zip(kinds.get(id)) else {
            return Err(gguf.wrong(key, &format!("one of the ids of {} tokens", tokens.len())));
        };
        map.insert(role.into(), if words { json!(word_piece(token, *kind)) } else { json!(token) });
    }
    for (role, other) in [("cls_token", "bos_token"), ("sep_token", "eos_token")] {
        if let Some(token) = map.get(other).filter(|_| !map.contains_key(role)).cloned() {
            map.insert(role.into(), token);
        }
    }
    if words {
        // A WordPiece vocabulary has no tokens but those that the file names: null is none.
        for (role, _) in ROLES {
            map.entry(role).or_insert(Json::Null);
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
fn chat_templates(gguf: &GgufFile) -> Result<Option<Json>> {
    let key = "tokenizer.chat_template";
    let own = gguf.text(key)?;
    let names = gguf.texts("tokenizer.chat_templates")?.unwrap_or_default();
    if names.is_empty() {
        return Ok(own.map(|template| json!(template)));
    }
    let mut list: Vec<Json> = own.iter().map(|t| json!({"name": "default", "template": t})).collect();
    for name in names.iter().filter(|name| **name != "default") {
        let key = format!("{key}.{name}");
        let template = gguf.text(&key)?.ok_or_else(|| gguf.wrong(&key, "a template, for it is listed"))?;
        list.push(json!({"name": name, "template": template}));
    }
    Ok(Some(list.into()))
}

/// Texts of tokens that end a turn or a message. Files of before `eot_token_id` name none: there llama.cpp knows them by
/// their text, and so does this version, of control tokens and those of the user.
const ENDS: [&str; 9] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
];

/// The tokens that end a text, a turn or a message, and the one that begins a text.
fn generation_config(gguf: &GgufFile) -> Result<Map<String, Json>> {
    let mut map = Map::new();
    let id = |key: &str| gguf.size(&format!("tokenizer.ggml.{key}_token_id"));
    let suppressed = "tokenizer.ggml.suppress_tokens";
    if gguf.numbers(suppressed)?.is_some_and(|ids| !ids.is_empty()) {
        return Err(gguf.wrong(suppressed, "none"));
    }
    let mut ends: Vec<usize> = Vec::new();
    for key in ["eos", "eot", "eom"] {
        ends.extend(id(key)?.filter(|id| !ends.contains(id)));
    }
    if id("eot")?.is_none() {
        let tokens = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let kinds = kinds(gguf, tokens.len())?;
        let whole = |id: &usize| matches!(kinds[*id], CONTROL | OF_USER) && ENDS.contains(&tokens[*id]);
        let found: Vec<usize> = (0..tokens.len()).filter(|id| whole(id) && !ends.contains(id)).collect();
        ends.extend(found);
    }
    if !ends.is_empty() {
        map.insert("eos_token_id".into(), json!(ends));
    }
    if let Some(bos) = id("bos")? {
        map.insert("bos_token_id".into(), json!(bos));
    }
    Ok(map)
}
