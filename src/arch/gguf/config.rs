//! The metadata of a GGUF file, as the keys of a config.json.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Family, family_of, rope};
use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, GgufFile};

/// A file's metadata, under the keys of its architecture.
pub(super) struct Keys<'a> {
    pub checkpoint: &'a Checkpoint,
    pub file: &'a GgufFile,
    architecture: &'static str,
}

/// Larger sizes are no model's: products of three stay far from the end of a `usize`.
const LARGEST: usize = 1 << 31;

/// Most heads, and most features of one.
const MOST_HEADS: usize = 1 << 16;

impl<'a> Keys<'a> {
    /// The keys of `file`, which holds the tensors of `checkpoint`.
    pub fn new(checkpoint: &'a Checkpoint, file: &'a GgufFile, family: &Family) -> Self {
        Self { checkpoint, file, architecture: family.architecture }
    }

    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.file.number(&self.name(key))
    }

    /// A size, or the one size that an array holds for each layer.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let name = self.name(key);
        let Some(array) = self.file.get(&name).and_then(|v| v.as_array()) else { return self.file.size(&name) };
        let sizes: Option<Vec<usize>> = array.iter().map(|v| v.as_size()).collect();
        match sizes.as_deref() {
            Some([first, rest @ ..]) if rest.iter().all(|size| size == first) => Ok(Some(*first)),
            _ => Err(self.file.wrong(&name, "one size for all layers")),
        }
    }

    fn needed(&self, key: &str, most: usize) -> Result<usize> {
        let size = self.size(key)?.filter(|size| *size <= most);
        size.ok_or_else(|| self.file.wrong(&self.name(key), &format!("a whole number up to {most}")))
    }

    fn hidden(&self) -> Result<usize> {
        self.needed("embedding_length", LARGEST)
    }

    /// Query heads.
    pub fn heads(&self) -> Result<usize> {
        self.needed("attention.head_count", MOST_HEADS)
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> Result<usize> {
        let key = "attention.head_count_kv";
        if self.file.get(&self.name(key)).is_some() { self.needed(key, MOST_HEADS) } else { self.heads() }
    }

    /// Layers: no more than there are tensors.
    fn layers(&self) -> Result<usize> {
        self.needed("block_count", self.checkpoint.names().len())
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.checkpoint.get(tensor).is_some()
    }

    /// Rows of a matrix.
    fn rows(&self, tensor: &str) -> Option<usize> {
        self.checkpoint.get(tensor).and_then(|t| t.shape().first().copied())
    }

    /// Features of a head.
    pub fn head_dim(&self) -> Result<usize> {
        let key = "attention.key_length";
        let own = self.file.get(&self.name(key)).map(|_| self.needed(key, MOST_HEADS)).transpose()?;
        let dim = own.unwrap_or(self.hidden()?.checked_div(self.heads()?).unwrap_or(0));
        if self.size("attention.value_length")?.is_some_and(|values| values != dim) {
            let expected = format!("{dim}, the features of a key");
            return Err(self.file.wrong(&self.name("attention.value_length"), &expected));
        }
        Ok(dim)
    }

    /// Refuses a key that changes the mathematics, unless it has a value that does not.
    fn refuse(&self, key: &str, neutral: f64) -> Result<()> {
        let name = self.name(key);
        match self.file.get(&name) {
            None => Ok(()),
            Some(value) if value.as_number() == Some(neutral) => Ok(()),
            Some(_) => Err(self.file.wrong(&name, &format!("none, or {neutral}"))),
        }
    }
}

/// The configuration of the model in a GGUF file.
///
/// # Errors
/// An architecture that is not supported; a key that is missing, has a value of another type, or asks for mathematics
/// that this version does not have.
pub(crate) fn config(path: &Path) -> Result<Map<String, Value>> {
    let checkpoint = Checkpoint::open_gguf(path)?;
    let Some(file) = checkpoint.gguf() else { return Err(InferError::model(path, "no GGUF metadata")) };
    let family = family_of(file)?;
    let keys = Keys::new(&checkpoint, file, family);
    refuse_what_is_missing(&keys)?;
    let mut map = common(&keys, family)?;
    match family.model_type {
        "bert" => bert(&keys, &mut map)?,
        "nomic_bert" => nomic(&keys, &mut map)?,
        "t5" => t5(&keys, &mut map)?,
        "gpt2" => {}
        _ => decoder(&keys, family, &mut map)?,
    }
    if family.model_type == "t5" {
        // Its checkpoints may hold a decoder and its head, which are not used.
        map.remove("tie_word_embeddings");
    }
    Ok(map)
}

fn refuse_what_is_missing(keys: &Keys) -> Result<()> {
    for key in ["expert_count", "attention.max_alibi_bias", "attention.clamp_kqv", "full_attention_interval"] {
        keys.refuse(key, 0.0)?;
    }
    for key in ["logit_scale", "embedding_scale", "residual_scale", "attention.output_scale"] {
        keys.refuse(key, 1.0)?;
    }
    let split = "split.count";
    if keys.file.size(split)?.is_some_and(|count| count > 1) {
        return Err(keys.file.wrong(split, "a whole model in one file; llama-gguf-split --merge makes one of several"));
    }
    Ok(())
}

/// What every family has.
fn common(keys: &Keys, family: &Family) -> Result<Map<String, Value>> {
    let file = keys.file;
    let vocabulary = keys.rows("token_embd.weight");
    let Some(vocabulary) = vocabulary else {
        return Err(InferError::TensorError {
            file: file.path().to_path_buf(),
            tensor: "token_embd.weight".to_string(),
            expected: "the embeddings of the tokens".to_string(),
            found: "no such tensor".to_string(),
        });
    };
    let mut map = Map::new();
    let mut set = |key: &str, value: Value| map.insert(key.to_string(), value);
    set("model_type", json!(family.model_type));
    set("architectures", json!([family.class]));
    set("hidden_size", json!(keys.hidden()?));
    set("num_hidden_layers", json!(keys.layers()?));
    set("num_attention_heads", json!(keys.heads()?));
    set("intermediate_size", json!(keys.needed("feed_forward_length", LARGEST)?));
    set("vocab_size", json!(vocabulary));
    set("max_position_embeddings", json!(keys.needed("context_length", LARGEST)?));
    let eps = match keys.number("attention.layer_norm_rms_epsilon")? {
        Some(eps) => Some(eps),
        None => keys.number("attention.layer_norm_epsilon")?,
    };
    let eps = eps.ok_or_else(|| file.wrong(&keys.name("attention.layer_norm_rms_epsilon"), "a number"))?;
    set("layer_norm_eps", json!(eps));
    set("tie_word_embeddings", json!(!keys.has("output.weight")));
    Ok(map)
}

/// LLaMA's likes.
fn decoder(keys: &Keys, family: &Family, map: &mut Map<String, Value>) -> Result<()> {
    let dim = keys.head_dim()?;
    map.insert("head_dim".into(), json!(dim));
    map.insert("num_key_value_heads".into(), json!(keys.kv_heads()?));
    if keys.file.flag(&keys.name("attention.causal"))? == Some(false) {
        return Err(keys.file.wrong(&keys.name("attention.causal"), "true"));
    }
    map.insert("attention_bias".into(), json!(keys.has("blk.0.attn_q.bias")));
    map.insert("mlp_bias".into(), json!(keys.has("blk.0.ffn_up.bias")));
    rope::keys(keys, dim, map)?;
    let window = keys.size("attention.sliding_window")?.filter(|window| *window > 0);
    match family.model_type {
        "llama" if window.is_some() => {
            map.insert("model_type".into(), json!("mistral"));
            map.insert("sliding_window".into(), json!(window));
        }
        "qwen2" | "qwen3" => keys.refuse("attention.sliding_window", 0.0)?,
        "phi3" => {
            map.insert("sliding_window".into(), json!(window));
        }
        "gemma2" | "gemma3_text" => gemma(keys, family, window, map)?,
        _ => {}
    }
    Ok(())
}

/// The keys of Gemma 2 and 3, whose defaults llama.cpp knows by the model's size.
fn gemma(keys: &Keys, family: &Family, window: Option<usize>, map: &mut Map<String, Value>) -> Result<()> {
    let second = family.model_type == "gemma2";
    let layers = keys.layers()?;
    let whole = keys.hidden()?.checked_div(keys.heads()?).unwrap_or(0);
    // The 27B models scale by the features that a head would have without a key of its own.
    let largest = layers == if second { 46 } else { 62 };
    let scalar = match keys.number("attention.scale")? {
        Some(scale) => 1.0 / (scale * scale),
        None if largest => whole as f64,
        None => keys.head_dim()? as f64,
    };
    map.insert("query_pre_attn_scalar".into(), json!(scalar));
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        match keys.number(key)? {
            Some(0.0) => map.insert(key.into(), Value::Null),
            Some(cap) => map.insert(key.into(), json!(cap)),
            None => None,
        };
    }
    let window = if second { window.or(Some(4096)) } else { window };
    map.insert("sliding_window".into(), json!(window));
    if second {
        return Ok(());
    }
    let local = keys.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    map.insert("rope_local_base_freq".into(), json!(local));
    let slides = sliding_layers(keys, layers, window.is_some())?;
    let name = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    map.insert("layer_types".into(), json!(slides.iter().map(name).collect::<Vec<_>>()));
    Ok(())
}

/// Which layers of Gemma 3 see a window: all but each sixth, unless the file says otherwise.
fn sliding_layers(keys: &Keys, layers: usize, windows: bool) -> Result<Vec<bool>> {
    let name = keys.name("attention.sliding_window_pattern");
    let wrong = || keys.file.wrong(&name, "a number of layers, or a flag for each layer");
    if !windows {
        return Ok(vec![false; layers]);
    }
    let every = match keys.file.get(&name) {
        None => 6,
        Some(value) => match value.as_array() {
            Some(array) => {
                let flags: Option<Vec<bool>> = array.iter().map(|v| v.as_flag()).collect();
                return flags.filter(|flags| flags.len() == layers).ok_or_else(wrong);
            }
            None => value.as_size().filter(|every| *every > 0).ok_or_else(wrong)?,
        },
    };
    Ok((0..layers).map(|l| !(l + 1).is_multiple_of(every)).collect())
}

fn bert(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    map.insert("type_vocab_size".into(), json!(keys.rows("token_types.weight").unwrap_or(0)));
    if let Some(positions) = keys.rows("position_embd.weight") {
        map.insert("max_position_embeddings".into(), json!(positions));
    }
    refuse_causal(keys)?;
    if keys.has("cls.output.weight") {
        map.insert("architectures".into(), json!(["BertForSequenceClassification"]));
        map.insert("num_labels".into(), json!(keys.rows("cls.output.weight")));
    }
    Ok(())
}

fn nomic(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    map.insert("type_vocab_size".into(), json!(keys.rows("token_types.weight").unwrap_or(0)));
    map.insert("activation_function".into(), json!("swiglu"));
    map.insert("rotary_emb_base".into(), json!(keys.number("rope.freq_base")?.unwrap_or(10_000.0)));
    refuse_causal(keys)?;
    rope::refuse_scaling(keys)
}

fn refuse_causal(keys: &Keys) -> Result<()> {
    let name = keys.name("attention.causal");
    if keys.file.flag(&name)? == Some(true) { Err(keys.file.wrong(&name, "false")) } else { Ok(()) }
}

/// The encoder; gates are GELU's in its tanh form, and without gates it is ReLU.
fn t5(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    map.insert("d_kv".into(), json!(keys.head_dim()?));
    let gated = keys.has("enc.blk.0.ffn_gate.weight");
    map.insert("feed_forward_proj".into(), json!(if gated { "gated-gelu" } else { "relu" }));
    let buckets = keys.needed("attention.relative_buckets_count", LARGEST)?;
    map.insert("relative_attention_num_buckets".into(), json!(buckets));
    map.insert("relative_attention_max_distance".into(), json!(128));
    Ok(())
}
