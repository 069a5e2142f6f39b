//! Reading the keys that only some families know, with errors that name key and value.

use serde_json::{Map, Value};

use crate::config::BertConfig;
use crate::error::{InferError, Result};
use crate::gpu::Activation;

pub(super) fn unsupported(key: &str, found: impl ToString, expected: &str) -> InferError {
    InferError::ModelIncompatible { key: key.to_string(), expected: expected.to_string(), found: found.to_string() }
}

/// A size that has to be at least one.
pub(super) fn positive(key: &str, value: usize) -> Result<usize> {
    if value == 0 { Err(unsupported(key, value, "at least 1")) } else { Ok(value) }
}

/// Layers beyond any model that was ever trained: a larger number is a mistake, and would take memory to describe.
pub(super) const MOST_LAYERS: usize = 4096;

/// Features beyond any model that was ever trained; products of two such sizes are still numbers.
const MOST_FEATURES: usize = 1 << 20;

/// Distances beyond which no model tells them apart; a map of them takes memory.
pub(super) const MOST_DISTANCES: usize = 1 << 16;

/// The activation a config key names; `gelu` is the erf form, `gelu_new` and its synonyms the tanh form.
pub(super) fn activation(key: &str, name: &str) -> Result<Activation> {
    Ok(match name {
        "gelu" | "gelu_python" => Activation::GeluErf,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_python_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        "tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        "linear" => Activation::Identity,
        other => {
            let known = "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, silu, swish, tanh, sigmoid, linear";
            return Err(unsupported(key, format!("\"{other}\""), known));
        }
    })
}

impl BertConfig {
    /// A true or false.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.extra.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(unsupported(key, other, "true or false")),
        }
    }

    /// A whole number that may be negative.
    pub(super) fn integer(&self, key: &str, default: i64) -> Result<i64> {
        match self.extra.get(key) {
            None => Ok(default),
            Some(v) => v.as_i64().ok_or_else(|| unsupported(key, v, "a whole number")),
        }
    }

    /// A size.
    pub(super) fn size(&self, key: &str, default: usize) -> Result<usize> {
        match self.extra.get(key) {
            None => Ok(default),
            Some(v) => {
                let size = v.as_u64().and_then(|n| usize::try_from(n).ok());
                size.ok_or_else(|| unsupported(key, v, "a whole number of at least 0"))
            }
        }
    }

    /// A number.
    pub(super) fn number(&self, key: &str, default: f64) -> Result<f64> {
        match self.extra.get(key) {
            None => Ok(default),
            Some(v) => v.as_f64().ok_or_else(|| unsupported(key, v, "a number")),
        }
    }

    /// A text.
    pub(super) fn text<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        match self.extra.get(key) {
            None => Ok(default),
            Some(v) => v.as_str().ok_or_else(|| unsupported(key, v, "a text")),
        }
    }

    /// Refuses a flag that changes the mathematics in a way this version does not have.
    pub(super) fn refuse(&self, key: &str, value: bool, expected: &str) -> Result<()> {
        if self.flag(key, !value)? == value { Err(unsupported(key, value, expected)) } else { Ok(()) }
    }

    /// An encoder of its own, and no decoder built from one.
    pub(super) fn encoder_only(&self) -> Result<()> {
        self.refuse("is_decoder", true, "false: this family runs as an encoder")?;
        self.refuse("add_cross_attention", true, "false: this family runs as an encoder")
    }

    /// What holds for every family: sizes that can be, and nothing that no family has.
    pub(super) fn check(&self) -> Result<()> {
        let most = |key: &str, size: usize, most: usize| match size > most {
            true => Err(unsupported(key, size, &format!("at most {most}"))),
            false => Ok(()),
        };
        most("hidden_size", self.hidden_size, MOST_FEATURES)?;
        most("intermediate_size", self.intermediate_size, MOST_FEATURES)?;
        most("num_attention_heads", self.num_attention_heads, MOST_FEATURES)?;
        for key in ["embedding_size", "head_dim", "attention_head_size", "d_kv", "num_key_value_heads"] {
            most(key, self.size(key, 0)?, MOST_FEATURES)?;
        }
        let rows = u32::MAX as usize;
        most("vocab_size", self.vocab_size, rows)?;
        most("type_vocab_size", self.type_vocab_size, rows)?;
        most("max_position_embeddings", self.max_position_embeddings, rows)?;
        if !(self.layer_norm_eps.is_finite() && self.layer_norm_eps >= 0.0) {
            return Err(unsupported("layer_norm_eps", self.layer_norm_eps, "a number of at least 0"));
        }
        let empty = |v: &Value| v.as_object().is_some_and(Map::is_empty);
        for (key, expected) in [("quantization_config", "none"), ("pruned_heads", "{}")] {
            if let Some(found) = self.extra.get(key).filter(|v| !empty(v)) {
                return Err(unsupported(key, found, expected));
            }
        }
        Ok(())
    }

    /// `head_dim`, where it stands, says what the other keys say.
    pub(super) fn same_head_dim(&self, head_dim: usize) -> Result<()> {
        match self.size("head_dim", head_dim)? {
            own if own == head_dim => Ok(()),
            own => Err(unsupported("head_dim", own, &format!("hidden_size / num_attention_heads, {head_dim}"))),
        }
    }

    /// `num_hidden_layers`, checked.
    pub(super) fn layers(&self) -> Result<usize> {
        let layers = positive("num_hidden_layers", self.num_hidden_layers)?;
        if layers > MOST_LAYERS {
            return Err(unsupported("num_hidden_layers", layers, &format!("at most {MOST_LAYERS}")));
        }
        Ok(layers)
    }

    /// hidden_size / num_attention_heads, which has to be whole.
    pub(super) fn whole_head_dim(&self) -> Result<usize> {
        let heads = positive("num_attention_heads", self.num_attention_heads)?;
        let hidden = positive("hidden_size", self.hidden_size)?;
        if !hidden.is_multiple_of(heads) {
            return Err(unsupported("hidden_size", hidden, &format!("a multiple of num_attention_heads, {heads}")));
        }
        Ok(hidden / heads)
    }

    /// `hidden_act`, as a function.
    pub(super) fn activation(&self) -> Result<Activation> {
        activation("hidden_act", &self.hidden_act)
    }

    /// Labels, where `architectures` names a sequence classifier.
    pub(super) fn classifier_labels(&self) -> Result<Option<usize>> {
        if !self.is_for("ForSequenceClassification") {
            return Ok(None);
        }
        let number = self.extra.get("num_labels").map(|_| self.size("num_labels", 0)).transpose()?;
        let listed = match self.extra.get("id2label") {
            None => None,
            Some(Value::Object(labels)) => Some(labels.len()),
            Some(other) => return Err(unsupported("id2label", other, "an object")),
        };
        match (number, listed) {
            (Some(number), Some(listed)) if number != listed => {
                Err(unsupported("num_labels", number, &format!("as many as id2label has, {listed}")))
            }
            _ => positive("num_labels", self.num_labels()).map(Some),
        }
    }
}

/// 1 / sqrt(head_dim * factor), computed in binary64 and rounded.
pub(super) fn root_scale(head_dim: usize, factor: usize) -> f32 {
    (1.0 / ((head_dim * factor) as f64).sqrt()) as f32
}
