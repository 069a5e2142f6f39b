//! Qwen2 (arXiv 2407.10671) and Qwen3 (2505.09388): LLaMA with biased queries, keys and values, or with their norms, and
//! a window in the layers from `max_window_layers` on where the configuration asks for one.

use serde_json::{Value, json};

use super::keys::unsupported;
use super::llama::{attention_rows, decoder, gated_rows, head_rows, norm_rows, table};
use super::mistral::back;
use super::{HeadChoice, ModelSpec, QkNorm, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::NormKind;

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-6, "type_vocab_size": 0, "hidden_act": "silu", "max_position_embeddings": 32768, "sliding_window": 4096
    })
}

pub(super) fn describe_2(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = decoder(c, head, "qwen2")?;
    windows(c, &mut spec)?;
    let t = rows(c, &spec, true, false)?;
    Ok((spec, t))
}

pub(super) fn describe_3(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = decoder(c, head, "qwen3")?;
    windows(c, &mut spec)?;
    spec.attention.qk_norm = Some(QkNorm { kind: NormKind::RmsNorm, eps: c.layer_norm_eps, per_head: true });
    let bias = c.flag("attention_bias", false)?;
    let mut t = rows(c, &spec, bias, bias)?;
    for l in 0..spec.stored_layers() {
        for (part, name) in [("q_norm", "q_norm"), ("k_norm", "k_norm")] {
            let name = format!("layers.{l}.self_attn.{name}");
            t.norm(&format!("layer.{l}.{part}"), &name, spec.attention.head_dim, false);
        }
    }
    Ok((spec, t))
}

fn rows(c: &BertConfig, spec: &ModelSpec, qkv_bias: bool, out_bias: bool) -> Result<TensorTable> {
    let mut t = table(spec, spec.family);
    for l in 0..spec.stored_layers() {
        attention_rows(&mut t, spec, l, qkv_bias, out_bias);
        norm_rows(&mut t, spec, l);
        gated_rows(&mut t, spec, l, false);
    }
    head_rows(&mut t, c, spec, false)?;
    Ok(t)
}

/// Which layers see a window: those that `layer_types` names, else those from `max_window_layers` on.
fn windows(c: &BertConfig, spec: &mut ModelSpec) -> Result<()> {
    let window = if c.flag("use_sliding_window", false)? { back(c)? } else { None };
    let first = c.size("max_window_layers", 28)?;
    let types = c.extra.get("layer_types");
    for (l, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match types {
            None => l >= first,
            Some(types) => sliding(types, l)?,
        };
        layer.window = window.filter(|_| slides);
    }
    Ok(())
}

/// Whether `layer_types` says that layer `l` sees a window.
pub(super) fn sliding(types: &Value, l: usize) -> Result<bool> {
    match types.get(l).and_then(Value::as_str) {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(unsupported("layer_types", types, "full_attention or sliding_attention for each layer")),
    }
}
