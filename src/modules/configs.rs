//! The `config.json` of each kind of module.

use std::path::Path;

use serde_json::Value;

use super::json::{JsonFile, incompatible};
use super::{DenseSpec, PoolingSpec, SparsePooling, Task};
use crate::error::Result;
use crate::gpu::{Activation, PoolingMode};

/// The old booleans with the names that replace them, in the order in which their vectors are concatenated.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", "cls", PoolingMode::Cls),
    ("pooling_mode_max_tokens", "max", PoolingMode::Max),
    ("pooling_mode_mean_tokens", "mean", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", "weightedmean", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", PoolingMode::LastToken),
];

const ACTIVATIONS: [(&str, Activation); 6] = [
    ("Identity", Activation::Identity),
    ("Tanh", Activation::Tanh),
    ("ReLU", Activation::Relu),
    ("GELU", Activation::GeluErf),
    ("Sigmoid", Activation::Sigmoid),
    ("SiLU", Activation::Silu),
];

/// What a transformer's settings say it is used for; `usual` where they say nothing.
pub(super) fn task(transformer_dir: &Path, usual: Task) -> Result<Task> {
    let config = super::json::sentence_config(transformer_dir)?;
    check_arguments(&config)?;
    Ok(match config.text("transformer_task")? {
        None => usual,
        Some("feature-extraction") => Task::Features,
        Some("fill-mask") => Task::FillMask,
        Some("sequence-classification") => Task::Classification,
        Some(other) => {
            let known = "feature-extraction, fill-mask, sequence-classification";
            return Err(incompatible(&config.file, "transformer_task", known, other));
        }
    })
}

/// Arguments that sentence-transformers hands on to what loads a model, under the names of all its versions; those that
/// say how and not what is computed.
const ARGUMENTS: [(&[&str], &[&str]); 3] = [
    (
        &["model_args", "model_kwargs"],
        &[
            "add_pooling_layer",
            "attn_implementation",
            "device_map",
            "dtype",
            "low_cpu_mem_usage",
            "torch_dtype",
            "trust_remote_code",
            "use_safetensors",
        ],
    ),
    (&["tokenizer_args", "processor_kwargs"], &["fix_mistral_regex", "padding_side", "trust_remote_code", "use_fast"]),
    (
        &["config_args", "config_kwargs"],
        &["trust_remote_code", "unpad_inputs", "use_cache", "use_memory_efficient_attention"],
    ),
];

/// Refuses arguments that change what is computed: they stand in place of what `config.json` or the tokenizer's files say.
fn check_arguments(config: &JsonFile) -> Result<()> {
    for (names, harmless) in ARGUMENTS {
        for name in names {
            let Some(found) = config.get(name) else { continue };
            let arguments = found.as_object().ok_or_else(|| config.wrong(name, "an object", found))?;
            let other = arguments.iter().find(|(key, value)| !value.is_null() && !harmless.contains(&key.as_str()));
            if let Some((key, value)) = other {
                let key = format!("{name}.{key}");
                return Err(incompatible(
                    &config.file,
                    &key,
                    "absent: it belongs in the model's own files",
                    &value.to_string(),
                ));
            }
        }
    }
    Ok(())
}

pub(super) fn pooling(config: &JsonFile) -> Result<PoolingSpec> {
    let known = MODES.map(|(_, name, _)| name).join(", ");
    let mode = |found: &Value| {
        let name =
            found.as_str().ok_or_else(|| config.wrong("pooling_mode", "a mode name or a list of them", found))?;
        let mode = MODES.iter().find(|mode| mode.1 == name);
        mode.map(|mode| mode.2).ok_or_else(|| incompatible(&config.file, "pooling_mode", &known, name))
    };
    // Where both forms stand, the old booleans say nothing.
    let modes = match config.get("pooling_mode") {
        Some(Value::Array(list)) => list.iter().map(mode).collect::<Result<Vec<_>>>()?,
        Some(found) => vec![mode(found)?],
        None => old_modes(config)?,
    };
    if modes.is_empty() {
        return Err(config.error(format!("no pooling mode: expected `pooling_mode` with one of {known}")));
    }
    let dimension = match config.positive("embedding_dimension")? {
        Some(size) => Some(size),
        None => config.positive("word_embedding_dimension")?,
    };
    Ok(PoolingSpec { modes, include_prompt: config.flag("include_prompt")?.unwrap_or(true), dimension })
}

/// The modes that booleans turn on.
fn old_modes(config: &JsonFile) -> Result<Vec<PoolingMode>> {
    let strange = config.map.iter().find(|(key, value)| {
        key.starts_with("pooling_mode_") && **value != false && MODES.iter().all(|mode| mode.0 != key.as_str())
    });
    if let Some((key, value)) = strange {
        return Err(incompatible(&config.file, key, &MODES.map(|mode| mode.0).join(", "), &value.to_string()));
    }
    let mut modes = Vec::new();
    for (key, _, mode) in MODES {
        if config.flag(key)?.unwrap_or(false) {
            modes.push(mode);
        }
    }
    Ok(modes)
}

pub(super) fn dense(config: &JsonFile, dir: &Path) -> Result<DenseSpec> {
    if config.flag("use_residual")?.unwrap_or(false) {
        return Err(incompatible(&config.file, "use_residual", "false", "true"));
    }
    // The default of sentence-transformers.
    let path = config.text("activation_function")?.unwrap_or("torch.nn.modules.activation.Tanh");
    let name = path.strip_prefix("torch.nn.").map(|rest| rest.rsplit('.').next().unwrap_or(rest));
    let activation = ACTIVATIONS.iter().find(|activation| Some(activation.0) == name).ok_or_else(|| {
        let names = ACTIVATIONS.map(|activation| activation.0).join(", ");
        incompatible(&config.file, "activation_function", &format!("{names} of torch.nn"), path)
    })?;
    Ok(DenseSpec {
        in_features: config.must("in_features")?,
        out_features: config.must("out_features")?,
        bias: config.flag("bias")?.unwrap_or(true),
        activation: activation.1,
        dir: dir.to_path_buf(),
    })
}

pub(super) fn splade(config: &JsonFile) -> Result<SparsePooling> {
    let one_of = |key: &str, known: [&str; 2]| match config.text(key)?.unwrap_or(known[0]) {
        found if found == known[0] => Ok(false),
        found if found == known[1] => Ok(true),
        found => Err(incompatible(&config.file, key, &known.join(", "), found)),
    };
    Ok(SparsePooling {
        sum: one_of("pooling_strategy", ["max", "sum"])?,
        twice: one_of("activation_function", ["relu", "log1p_relu"])?,
    })
}

/// What a module works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The vector of each token.
    Tokens,
    /// The vector of the text.
    Text,
}

/// What a module works on by its config: the same comes in and goes out, and it is what the modules before it give.
pub(super) fn level(config: &JsonFile, usual: Level, pooled: bool) -> Result<Level> {
    let input = match config.text("module_input_name")? {
        None => usual,
        Some("token_embeddings") if !pooled => Level::Tokens,
        Some("sentence_embedding") => Level::Text,
        Some(other) => {
            let known =
                if pooled { "sentence_embedding after Pooling" } else { "sentence_embedding, token_embeddings" };
            return Err(incompatible(&config.file, "module_input_name", known, other));
        }
    };
    let same = if input == Level::Tokens { "token_embeddings" } else { "sentence_embedding" };
    match config.text("module_output_name")?.filter(|name| *name != same) {
        Some(other) => Err(incompatible(&config.file, "module_output_name", &format!("{same}, its input"), other)),
        None => Ok(input),
    }
}
