//! [`GenerationDefaults`]: what a model's folder says of generation.

use std::path::Path;

use serde_json::Value;

use super::sampling::SamplingParams;
use crate::error::Result;
use crate::modules::json::{JsonFile, Settings, incompatible};

/// What `generation_config.json` says, and `config.json` where that is silent.
///
/// Keys that are read: `eos_token_id` (a number or a list), `bos_token_id`, `do_sample`, `temperature`, `top_k`,
/// `top_p`, `min_p`, `repetition_penalty`, `max_new_tokens`, `stop_strings`. Without `do_sample` the choice is greedy.
/// An absent `top_k` leaves all tokens, where transformers would keep 50.
#[derive(Debug, Clone)]
pub struct GenerationDefaults {
    params: SamplingParams,
    /// The token before a text, if one is named.
    pub bos_id: Option<u32>,
    /// How many new tokens, if the folder says it.
    pub max_new_tokens: Option<usize>,
    /// The token after a text, as `tokenizer_config.json` names it.
    pub eos_token: Option<String>,
}

/// Keys that change which tokens come and that this version does not compute, with the values that change nothing.
const REFUSED: [(&str, &[f64]); 14] = [
    ("num_beams", &[1.0]),
    ("num_beam_groups", &[1.0]),
    ("penalty_alpha", &[0.0]),
    ("typical_p", &[1.0]),
    ("top_h", &[]),
    ("epsilon_cutoff", &[0.0]),
    ("eta_cutoff", &[0.0]),
    ("no_repeat_ngram_size", &[0.0]),
    ("encoder_repetition_penalty", &[1.0]),
    ("min_length", &[0.0]),
    ("min_new_tokens", &[0.0]),
    ("guidance_scale", &[1.0]),
    ("forced_bos_token_id", &[]),
    ("forced_eos_token_id", &[]),
];

/// The same for keys whose values are lists or objects: nothing but an empty one changes nothing.
const REFUSED_LISTS: [&str; 6] = [
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "exponential_decay_length_penalty",
    "force_words_ids",
];

impl GenerationDefaults {
    /// Reads the two files of a folder, one that is missing saying nothing; or the metadata of the GGUF file that the
    /// argument stands for.
    ///
    /// # Errors
    /// A file that is malformed, a value of another type or out of range, a key that changes which tokens come and is
    /// not supported ([`ModelIncompatible`](crate::InferError::ModelIncompatible)): beams, n-gram rules, forced or
    /// suppressed tokens, a minimum length.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        Self::of(&Settings::open(folder)?)
    }

    /// The same for settings that are open.
    pub(super) fn of(settings: &Settings) -> Result<Self> {
        let own = settings.read("generation_config.json")?;
        let config = settings.read("config.json")?;
        refuse(&own)?;
        let number = |key: &str, usual: f64| match own.get(key) {
            None => Ok(usual),
            Some(value) => value.as_f64().ok_or_else(|| own.wrong(key, "a number", value)),
        };
        let temperature = if own.flag("do_sample")?.unwrap_or(false) { number("temperature", 1.0)? } else { 0.0 };
        let stops = match ids(&own, "eos_token_id")? {
            None => ids(&config, "eos_token_id")?,
            found => found,
        };
        let bos = match ids(&own, "bos_token_id")? {
            None => ids(&config, "bos_token_id")?,
            found => found,
        };
        let params = SamplingParams::new()
            .temperature(temperature)
            .top_k(whole(&own, "top_k")?.unwrap_or(0))
            .top_p(number("top_p", 1.0)?)
            .min_p(number("min_p", 0.0)?)
            .repetition_penalty(number("repetition_penalty", 1.0)?)
            .stop_ids(stops.unwrap_or_default())
            .stop_texts(texts(&own, "stop_strings")?);
        params.check().map_err(|e| own.error(e.to_string()))?;
        let tokenizer = settings.read("tokenizer_config.json")?;
        let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_string);
        let eos_token = tokenizer.get("eos_token").and_then(text);
        let bos_id = bos.and_then(|ids| ids.first().copied());
        Ok(Self { params, bos_id, max_new_tokens: whole(&own, "max_new_tokens")?, eos_token })
    }

    /// The parameters, which the caller may change: seed 0, and where nothing names a stop id, none.
    pub fn params(&self) -> SamplingParams {
        self.params.clone()
    }
}

fn refuse(file: &JsonFile) -> Result<()> {
    for (key, neutral) in REFUSED {
        if let Some(value) = file.get(key)
            && !value.as_f64().is_some_and(|v| neutral.contains(&v))
        {
            let expected = neutral.first().map_or("none".to_string(), f64::to_string);
            return Err(incompatible(&file.file, key, &expected, &value.to_string()));
        }
    }
    for key in REFUSED_LISTS {
        let empty = |v: &Value| v.as_array().is_some_and(Vec::is_empty);
        if let Some(value) = file.get(key).filter(|v| !empty(v)) {
            return Err(incompatible(&file.file, key, "none", &value.to_string()));
        }
    }
    Ok(())
}

/// One id or a list of them.
fn ids(file: &JsonFile, key: &str) -> Result<Option<Vec<u32>>> {
    let Some(value) = file.get(key) else { return Ok(None) };
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::Array(list) => list.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    };
    ids.map(Some).ok_or_else(|| file.wrong(key, "a token id or a list of them", value))
}

fn whole(file: &JsonFile, key: &str) -> Result<Option<usize>> {
    let Some(value) = file.get(key) else { return Ok(None) };
    let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
    number.map(Some).ok_or_else(|| file.wrong(key, "a whole number", value))
}

fn texts(file: &JsonFile, key: &str) -> Result<Vec<String>> {
    let Some(value) = file.get(key) else { return Ok(Vec::new()) };
    let text = |v: &Value| v.as_str().map(str::to_string);
    let found = match value {
        Value::Array(list) => list.iter().map(text).collect(),
        one => text(one).map(|text| vec![text]),
    };
    found.ok_or_else(|| file.wrong(key, "a text or a list of them", value))
}
