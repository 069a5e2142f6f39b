//! `config.json`, and the architecture it names.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{InferError, Result};
use crate::weights::GgufFile;

/// The model families this version loads. Each has one file under `arch/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelArchitecture {
    /// Factorised embeddings and shared layers (arXiv 1909.11942).
    Albert,
    /// Post-norm encoder, learned positions or ALiBi (arXiv 1810.04805, 2108.12409); JinaBERT v2 under the same name.
    Bert,
    /// Disentangled attention (arXiv 2006.03654).
    Deberta,
    /// Versions 2 and 3 of it (arXiv 2111.09543).
    DebertaV2,
    /// BERT distilled (arXiv 1910.01108).
    DistilBert,
    /// Discriminators and generators (arXiv 2003.10555).
    Electra,
    /// Gemma (arXiv 2403.08295).
    Gemma,
    /// Gemma 2 (arXiv 2408.00118).
    Gemma2,
    /// The text model of Gemma 3, and EmbeddingGemma (arXiv 2503.19786).
    Gemma3,
    /// GPT-2 (Radford et al., 2019).
    Gpt2,
    /// GTE, whose `model_type` is "new" (arXiv 2407.19669).
    Gte,
    /// LLaMA and what has its shape (arXiv 2302.13971).
    Llama,
    /// Mistral (arXiv 2310.06825).
    Mistral,
    /// Alternating local and global attention (arXiv 2412.13663).
    ModernBert,
    /// Learned positions and relative biases (arXiv 2004.09297).
    Mpnet,
    /// Rotary positions and SwiGLU (arXiv 2402.01613).
    NomicBert,
    /// Phi (arXiv 2309.05463).
    Phi,
    /// Phi-3 (arXiv 2404.14219).
    Phi3,
    /// Qwen2 (arXiv 2407.10671).
    Qwen2,
    /// Qwen3 (arXiv 2505.09388).
    Qwen3,
    /// RoBERTa, XLM-RoBERTa and CamemBERT (arXiv 1907.11692).
    Roberta,
    /// The encoders of T5 and mT5 (arXiv 1910.10683).
    T5,
}

impl ModelArchitecture {
    /// Every `model_type`, with its family.
    pub const ALL: &[(&str, ModelArchitecture)] = &[
        ("albert", ModelArchitecture::Albert),
        ("bert", ModelArchitecture::Bert),
        ("camembert", ModelArchitecture::Roberta),
        ("deberta", ModelArchitecture::Deberta),
        ("deberta-v2", ModelArchitecture::DebertaV2),
        ("distilbert", ModelArchitecture::DistilBert),
        ("electra", ModelArchitecture::Electra),
        ("gemma", ModelArchitecture::Gemma),
        ("gemma2", ModelArchitecture::Gemma2),
        ("gemma3_text", ModelArchitecture::Gemma3),
        ("gpt2", ModelArchitecture::Gpt2),
        ("gte", ModelArchitecture::Gte),
        ("llama", ModelArchitecture::Llama),
        ("mistral", ModelArchitecture::Mistral),
        ("modernbert", ModelArchitecture::ModernBert),
        ("mpnet", ModelArchitecture::Mpnet),
        ("mt5", ModelArchitecture::T5),
        ("new", ModelArchitecture::Gte),
        ("nomic_bert", ModelArchitecture::NomicBert),
        ("phi", ModelArchitecture::Phi),
        ("phi3", ModelArchitecture::Phi3),
        ("qwen2", ModelArchitecture::Qwen2),
        ("qwen3", ModelArchitecture::Qwen3),
        ("roberta", ModelArchitecture::Roberta),
        ("t5", ModelArchitecture::T5),
        ("xlm-roberta", ModelArchitecture::Roberta),
    ];
}

/// The settings of a checkpoint, as its `config.json` states them. The name is history: it describes any family.
///
/// Keys that only one family knows are in [`extra`](Self::extra); the family's file under `arch/` reads them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BertConfig {
    /// Names the family.
    pub model_type: String,
    /// Class names of the reference implementation; they tell which head the checkpoint carries.
    #[serde(default)]
    pub architectures: Option<Vec<String>>,
    /// Features of a token vector.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Features inside the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of the token embedding.
    pub vocab_size: usize,
    /// Positions the model was made for.
    #[serde(default = "default_positions")]
    pub max_position_embeddings: usize,
    /// Rows of the token-type embedding.
    #[serde(default = "default_types")]
    pub type_vocab_size: usize,
    /// The activation of the feed-forward block.
    #[serde(default = "default_act")]
    pub hidden_act: String,
    /// Added to a variance before the square root.
    #[serde(default = "default_eps")]
    pub layer_norm_eps: f32,
    /// `absolute` (learned) or `alibi`.
    #[serde(default = "default_position_type")]
    pub position_embedding_type: String,
    /// Every other key.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

fn default_positions() -> usize {
    512
}
fn default_types() -> usize {
    2
}
fn default_act() -> String {
    "gelu".to_string()
}
fn default_eps() -> f32 {
    1e-12
}
fn default_position_type() -> String {
    "absolute".to_string()
}

impl BertConfig {
    /// Reads `config.json` of a folder, or the metadata of the GGUF file that the argument stands for
    /// ([`GgufFile::find`]).
    ///
    /// # Errors
    /// [`IoError`](InferError::IoError) when it cannot be read, [`ModelError`](InferError::ModelError) naming the key
    /// when one is missing or has the wrong type, or, in a GGUF file, when it asks for what is not computed.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        if let Some(file) = GgufFile::find(folder)? {
            let config = Self::from_json(&file, Value::Object(crate::arch::gguf::config(&file)?))?;
            crate::arch::describe(&config).map_err(|error| crate::arch::gguf::by_source(error, &file))?;
            return Ok(config);
        }
        let file = folder.join("config.json");
        let text = std::fs::read_to_string(&file).map_err(|e| InferError::io(&file, e))?;
        let value = serde_json::from_str(&text).map_err(|e| InferError::model(&file, e.to_string()))?;
        Self::from_json(&file, value)
    }

    fn from_json(file: &Path, mut value: Value) -> Result<Self> {
        let Some(map) = value.as_object_mut() else {
            return Err(InferError::model(file, "expected a JSON object"));
        };
        if !map.contains_key("model_type") {
            return Err(InferError::model(
                file,
                "`model_type` is missing; it names the model family, such as \"bert\"",
            ));
        }
        let Some(model_type) = map["model_type"].as_str().map(str::to_string) else {
            return Err(InferError::model(file, format!("`model_type` is {}, expected a text", map["model_type"])));
        };
        for key in SIZES.iter().chain(&OTHERS) {
            map.get(*key).is_some_and(Value::is_null).then(|| map.remove(*key));
        }
        crate::arch::normalise(&model_type, map);
        // A key set to null means none, where a family has a value for an absent one.
        map.retain(|_, v| !v.is_null());
        let wrong = wrong_key(&model_type, map);
        serde_json::from_value(value).map_err(|e| match architecture_of(&model_type) {
            Ok(_) => InferError::model(file, wrong.unwrap_or_else(|| e.to_string())),
            // An unknown family explains missing keys better than the keys do.
            Err(unknown) => unknown,
        })
    }

    /// The family `model_type` names.
    ///
    /// # Errors
    /// [`ModelIncompatible`](InferError::ModelIncompatible) when this version does not know it.
    pub fn architecture(&self) -> Result<ModelArchitecture> {
        architecture_of(&self.model_type)
    }

    /// The longest input the model was made for, in tokens with special tokens.
    pub fn effective_max_seq_len(&self) -> usize {
        crate::arch::describe(self).map_or(self.max_position_embeddings, |(spec, _)| spec.trained_tokens)
    }

    /// Labels of a sequence classifier: `num_labels`, else the size of `id2label`, else 2 as in the reference.
    pub fn num_labels(&self) -> usize {
        let listed = self.extra.get("id2label").and_then(Value::as_object).map(Map::len);
        let number = self.extra.get("num_labels").and_then(Value::as_u64).map(|n| n as usize);
        number.or(listed).unwrap_or(2)
    }

    /// Whether `architectures` names a class that ends so.
    pub(crate) fn is_for(&self, suffix: &str) -> bool {
        self.architectures.iter().flatten().any(|a| a.ends_with(suffix))
    }
}

/// Keys that have a field of their own; the first five every configuration has.
const SIZES: [&str; 7] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
];
const OTHERS: [&str; 4] = ["hidden_act", "position_embedding_type", "layer_norm_eps", "architectures"];

/// What is wrong with one of them, if something is, by its name in the file.
fn wrong_key(model_type: &str, map: &Map<String, Value>) -> Option<String> {
    let right = |key: &str, value: &Value| match key {
        "hidden_act" | "position_embedding_type" => (value.is_string(), "a text"),
        "layer_norm_eps" => (value.is_number(), "a number"),
        "architectures" => {
            (value.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "a list of class names")
        }
        _ => (value.is_u64(), "a whole number of at least 0"),
    };
    let wrong = |key: &&str| {
        let (name, value) = (crate::arch::name_in_file(model_type, key, map), map.get(*key)?);
        let (right, expected) = right(key, value);
        (!right).then(|| format!("`{name}` is {value}, expected {expected}"))
    };
    let missing = |key: &&str| match crate::arch::own_name(model_type, key) {
        Some(own) => format!("`{own}` or `{key}` is missing"),
        None => format!("`{key}` is missing"),
    };
    let absent = SIZES[..5].iter().find(|key| !map.contains_key(**key));
    SIZES.iter().chain(&OTHERS).find_map(wrong).or_else(|| absent.map(missing))
}

fn architecture_of(model_type: &str) -> Result<ModelArchitecture> {
    ModelArchitecture::ALL.iter().find(|(name, _)| *name == model_type).map(|(_, a)| *a).ok_or_else(|| {
        let known: Vec<_> = ModelArchitecture::ALL.iter().map(|(name, _)| *name).collect();
        InferError::ModelIncompatible {
            key: "model_type".to_string(),
            expected: known.join(", "),
            found: format!("\"{model_type}\""),
        }
    })
}
