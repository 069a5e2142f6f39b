//! The model families, one file each: config keys in, a [`ModelSpec`] and a [`TensorTable`] out. No backend here.

mod bert;
mod spec;
mod table;

pub use spec::{AttentionSpec, EmbeddingSpec, FeedForwardSpec, HeadSpec, ModelSpec, NormSpec, PositionSpec};
pub use table::{LoadReport, TensorTable, Tensors};

use crate::config::{BertConfig, ModelArchitecture};
use crate::error::{InferError, Result};
use crate::gpu::Activation;

/// The description of a configuration, and the tensors it needs.
///
/// # Errors
/// A configuration that contradicts itself or asks for mathematics this version does not have.
pub fn describe(config: &BertConfig) -> Result<(ModelSpec, TensorTable)> {
    match config.architecture()? {
        ModelArchitecture::Bert => bert::describe(config),
    }
}

fn unsupported(key: &str, found: impl ToString, expected: &str) -> InferError {
    InferError::ModelIncompatible { key: key.to_string(), expected: expected.to_string(), found: found.to_string() }
}

/// A size that has to be at least one.
fn positive(key: &str, value: usize) -> Result<usize> {
    if value == 0 { Err(unsupported(key, value, "at least 1")) } else { Ok(value) }
}

/// The activation a config key names; `gelu` is the erf form, `gelu_new` and its synonyms the tanh form.
fn activation(key: &str, name: &str) -> Result<Activation> {
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
