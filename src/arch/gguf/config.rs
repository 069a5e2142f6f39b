//! The metadata of a GGUF file, as the keys of a config.json.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Family, LAYER, RMS, decoders, family_of, known, rope};
use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, GgufFile};

/// A file's metadata, under the keys of its architecture.
pub(super) struct Keys<'a> {
    pub checkpoint: &'a Checkpoint,
    pub file: &'a GgufFile,
    architecture: &'static str,
}

/// Larger sizes are no model's. What is computed with is checked against lower limits when a family describes itself.
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

    /// Whether the file has the key.
    pub fn stands(&self, key: &str) -> bool {
        self.file.get(&self.name(key)).is_some()
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.file.number(&self.name(key))
    }

    /// A number above 0 that a binary32 holds.
    pub fn positive(&self, key: &str) -> Result<Option<f64>> {
        let number = self.number(key)?;
        let range = f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX);
        match number.is_none_or(|n| range.contains(&n)) {
            true => Ok(number),
            false => Err(self.file.wrong(&self.name(key), "a positive number")),
        }
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
        let size = self.size(key)?.filter(|size| (1..=most).contains(size));
        size.ok_or_else(|| self.file.wrong(&self.name(key), &format!("a whole number from 1 to {most}")))
    }

    pub fn hidden(&self) -> Result<usize> {
        self.needed("embedding_length", LARGEST)
    }

    /// Query heads.
    pub fn heads(&self) -> Result<usize> {
        self.needed("attention.head_count", MOST_HEADS)
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> Result<usize> {
        let key = "attention.head_count_kv";
        if self.stands(key) { self.needed(key, MOST_HEADS) } else { self.heads() }
    }

    /// Layers: no more than there are tensors.
    pub fn layers(&self) -> Result<usize> {
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
        let dim = if self.stands(key) { self.needed(key, MOST_HEADS)? } else { self.hidden()? / self.heads()? };
        self.must_be("attention.value_length", dim, "the features of a key")?;
        Ok(dim)
    }

    /// Refuses another size than one that follows from others.
    fn must_be(&self, key: &str, size: usize, why: &str) -> Result<()> {
        match self.size(key)? {
            Some(other) if other != size => Err(self.file.wrong(&self.name(key), &format!("{size}, {why}"))),
            _ => Ok(()),
        }
    }

    /// Heads of queries, keys and values alike, which share the features of a token.
    fn plain_heads(&self) -> Result<()> {
        self.must_be("attention.head_count_kv", self.heads()?, "as many as heads of queries")?;
        self.must_be("attention.key_length", self.hidden()? / self.heads()?, "the features of a token over the heads")?;
        self.head_dim().map(drop)
    }

    /// Refuses a key that changes the mathematics, unless it has a value that does not.
    pub fn refuse(&self, key: &str, neutral: f64) -> Result<()> {
        self.refuse_but(key, &[neutral])
    }

    /// The same for several such values.
    pub fn refuse_but(&self, key: &str, neutral: &[f64]) -> Result<()> {
        let name = self.name(key);
        let Some(value) = self.file.get(&name) else { return Ok(()) };
        if value.as_number().is_some_and(|number| neutral.contains(&number)) {
            return Ok(());
        }
        let values: String = neutral.iter().map(|value| format!(", or {value}")).collect();
        Err(self.file.wrong(&name, &format!("none{values}")))
    }

    /// Refuses a file that says whether tokens see later ones, unless it says the same.
    pub fn causal(&self, causal: bool) -> Result<()> {
        let name = self.name("attention.causal");
        match self.file.flag(&name)? {
            Some(flag) if flag != causal => Err(self.file.wrong(&name, &causal.to_string())),
            _ => Ok(()),
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
    let split = "split.count";
    if file.size(split)?.is_some_and(|count| count > 1) {
        return Err(file.wrong(split, "a whole model in one file; llama-gguf-split --merge makes one of several"));
    }
    known::check(&keys, family)?;
    let mut map = common(&keys, family)?;
    match family.model_type {
        "bert" => bert(&keys, &mut map)?,
        "nomic_bert" => nomic(&keys, family, &mut map)?,
        "t5" => t5(&keys, &mut map)?,
        "gpt2" => keys.plain_heads().and_then(|()| keys.causal(true))?,
        _ => decoders::keys(&keys, family, &mut map)?,
    }
    Ok(map)
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
    set("layer_norm_eps", json!(eps(keys, family)?));
    if family.model_type != "t5" {
        // T5's files may hold a decoder and its head, which are not used.
        set("tie_word_embeddings", json!(!keys.has("output.weight")));
    }
    Ok(map)
}

/// What norms add to a variance. A file that has the other kind's key too says the same there.
fn eps(keys: &Keys, family: &Family) -> Result<f64> {
    let own = keys.name(family.eps);
    let eps = keys.number(family.eps)?.filter(|eps| (0.0..1.0).contains(eps));
    let eps = eps.ok_or_else(|| keys.file.wrong(&own, "a number of at least 0 and below 1"))?;
    let other = if family.eps == RMS { LAYER } else { RMS };
    keys.refuse_but(other, &[eps]).map(|()| eps)
}

fn bert(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    keys.plain_heads()?;
    keys.causal(false)?;
    map.insert("type_vocab_size".into(), json!(keys.rows("token_types.weight").unwrap_or(0)));
    if let Some(positions) = keys.rows("position_embd.weight") {
        map.insert("max_position_embeddings".into(), json!(positions));
    }
    if keys.has("cls.output.weight") {
        map.insert("architectures".into(), json!(["BertForSequenceClassification"]));
        map.insert("num_labels".into(), json!(keys.rows("cls.output.weight")));
    }
    Ok(())
}

fn nomic(keys: &Keys, family: &Family, map: &mut Map<String, Value>) -> Result<()> {
    keys.plain_heads()?;
    keys.causal(false)?;
    map.insert("type_vocab_size".into(), json!(keys.rows("token_types.weight").unwrap_or(0)));
    map.insert("activation_function".into(), json!("swiglu"));
    map.insert("rotary_emb_base".into(), json!(keys.positive("rope.freq_base")?.unwrap_or(10_000.0)));
    rope::rotated(keys, family, keys.head_dim()?)?;
    rope::refuse_scaling(keys)
}

/// The encoder; gates are GELU's in its tanh form, and without gates it is ReLU.
fn t5(keys: &Keys, map: &mut Map<String, Value>) -> Result<()> {
    keys.must_be("attention.head_count_kv", keys.heads()?, "as many as heads of queries")?;
    keys.causal(false)?;
    map.insert("d_kv".into(), json!(keys.head_dim()?));
    let gated = keys.has("enc.blk.0.ffn_gate.weight");
    map.insert("feed_forward_proj".into(), json!(if gated { "gated-gelu" } else { "relu" }));
    let buckets = keys.needed("attention.relative_buckets_count", LARGEST)?;
    map.insert("relative_attention_num_buckets".into(), json!(buckets));
    map.insert("relative_attention_max_distance".into(), json!(128));
    Ok(())
}
