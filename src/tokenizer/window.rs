//! How long an input may be, by what the folder says.

use std::path::Path;

use serde_json::Value;

use crate::error::Result;
use crate::modules::json::{JsonFile, Settings};

/// The longest input of a model, and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Largest number of tokens, special tokens included.
    pub limit: usize,
    /// The file and key, for messages.
    pub source: String,
}

/// The smallest limit that `sentence_bert_config.json`, `tokenizer_config.json` or the model's configuration
/// (`config_limit`) sets; `None` when none of them does. `model_max_length` above 1e9 means unset.
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
    let mut limits = Vec::new();
    for (file, key) in [(&sentence, "max_seq_length"), (&tokenizer, "model_max_length")] {
        if let Some(limit) = file.positive(key)? {
            let name = file.file.file_name().unwrap_or_default().to_string_lossy();
            limits.push(Window { limit, source: format!("`{key}` of {name}") });
        }
    }
    let source = match settings.gguf {
        Some(_) => "the context length of the GGUF file",
        None => "the positions of config.json",
    };
    limits.extend(config_limit.map(|limit| Window { limit, source: source.to_owned() }));
    Ok(limits.into_iter().min_by_key(|window| window.limit))
}

/// The transformer's settings of sentence-transformers, under the first of its names that exists.
pub(super) fn sentence_config(folder: &Path) -> Result<JsonFile> {
    let names = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"];
    let files = names.map(|name| folder.join(format!("sentence_{name}_config.json")));
    let found = files.iter().find(|file| file.is_file()).unwrap_or(&files[0]);
    JsonFile::optional(found.clone())
}
