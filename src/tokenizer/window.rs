//! How long an input may be, by what the folder says.

use std::path::Path;

use serde_json::Value;

use crate::error::Result;
use crate::modules::json::{Settings, sentence_config};

/// The longest input of a model, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Largest number of tokens, special tokens included.
    pub limit: usize,
    /// The file and key, for messages.
    pub source: String,
}

/// The limit that `sentence_bert_config.json` sets, or else `tokenizer_config.json`, and no more than the model's
/// configuration does (`config_limit`); `None` when none of them sets one. `model_max_length` above 1e9 means unset. As in
/// sentence-transformers, a `max_seq_length` stands in place of the tokenizer's limit, also where it is larger.
pub fn window(folder: &Path, config_limit: Option<usize>) -> Result<Option<Window>> {
    window_of(&Settings::open(folder)?, config_limit)
}

/// The same for settings that are open.
pub(crate) fn window_of(settings: &Settings, config_limit: Option<usize>) -> Result<Option<Window>> {
    let mut tokenizer = settings.read("tokenizer_config.json")?;
    if tokenizer.get("model_max_length").and_then(Value::as_f64).is_some_and(|length| length > 1e9) {
        tokenizer.map.remove("model_max_length");
    }
    let sentence = sentence_config(&settings.place)?;
    let mut limit = None;
    for (file, key) in [(&sentence, "max_seq_length"), (&tokenizer, "model_max_length")] {
        if let Some(tokens) = file.positive(key)? {
            let name = file.file.file_name().unwrap_or_default().to_string_lossy();
            limit.get_or_insert_with(|| Window { limit: tokens, source: format!("`{key}` of {name}") });
        }
    }
    let source = match settings.gguf {
        Some(_) => "the context length of the GGUF file",
        None => "the positions of config.json",
    };
    let positions = config_limit.map(|limit| Window { limit, source: source.to_owned() });
    Ok(limit.into_iter().chain(positions).min_by_key(|window| window.limit))
}
