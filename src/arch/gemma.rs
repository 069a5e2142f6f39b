//! Gemma (arXiv 2403.08295), Gemma 2 (2408.00118) and the text model of Gemma 3 (2503.19786), EmbeddingGemma included:
//! norms that multiply by 1 + weight, scaled embeddings, tanh GELU gates; from Gemma 2 on norms after blocks too,
//! windows in some layers, capped scores.

use serde_json::{Value, json};

use super::edit::Edit;
use super::keys::{positive, unsupported};
use super::llama::{attention_rows, decoder, gated_rows, head_rows, table};
use super::mistral::back;
use super::qwen::sliding;
use super::rope_config::{self, RopeKeys};
use super::{HeadChoice, HeadSpec, ModelSpec, NormPlace, QkNorm, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{Activation, NormKind};

pub(super) const ALIASES: &[(&str, &str)] = &[("rms_norm_eps", "layer_norm_eps"), ("hidden_activation", "hidden_act")];

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-6, "type_vocab_size": 0, "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "head_dim": 256, "sliding_window": 4096
    })
}

/// An absent key means a cap, a null none.
pub(super) fn defaults_2() -> Value {
    let mut keys = defaults();
    keys["attn_logit_softcapping"] = json!(50.0);
    keys["final_logit_softcapping"] = json!(30.0);
    keys
}

pub(super) fn describe_1(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    c.refuse("use_bidirectional_attention", true, "false")?;
    let mut spec = scaled(c, head, "gemma")?;
    if c.hidden_act == "gelu" {
        // The released configurations say gelu and mean its tanh form.
        spec.feed_forward.activation = Activation::GeluTanh;
    }
    let mut t = table(&spec, "gemma");
    let bias = c.flag("attention_bias", false)?;
    for l in 0..spec.stored_layers() {
        attention_rows(&mut t, &spec, l, bias, bias);
        super::llama::norm_rows(&mut t, &spec, l);
        gated_rows(&mut t, &spec, l, false);
    }
    finish(&mut t, c, &spec)?;
    Ok((spec, t))
}

pub(super) fn describe_2(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    c.refuse("use_bidirectional_attention", true, "false")?;
    let mut spec = capped(c, head, "gemma2")?;
    let window = back(c)?;
    for (l, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match c.extra.get("layer_types") {
            None => l.is_multiple_of(2),
            Some(types) => sliding(types, l)?,
        };
        layer.window = window.filter(|_| slides);
    }
    let t = rows_with_four_norms(c, &spec)?;
    Ok((spec, t))
}

pub(super) fn describe_3(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = capped(c, head, "gemma3_text")?;
    // The reference reads the key and applies no cap.
    spec.attention.softcap = None;
    let kind = |layer_type, default_theta| RopeKeys {
        head_dim: spec.attention.head_dim,
        default_theta,
        default_partial: 1.0,
        layer_type: Some(layer_type),
    };
    let global = rope_config::read(c, &kind("full_attention", 1_000_000.0))?;
    // The older keys scale the global rotation alone, and have another key for the local base.
    let mut local = c.clone();
    local.extra.remove("rope_scaling");
    local.extra.remove("rope_theta");
    let local = rope_config::read(&local, &kind("sliding_attention", c.number("rope_local_base_freq", 10_000.0)?))?;
    spec.attention.positions = ScorePositions::Rope(vec![global, local]);
    spec.attention.qk_norm = Some(QkNorm { kind: NormKind::RmsNorm, eps: c.layer_norm_eps, per_head: true });
    spec.attention.causal &= !c.flag("use_bidirectional_attention", false)?;
    let mut window = back(c)?;
    if !spec.attention.causal {
        // Half of the window either side.
        window = window.map(|back| back.div_ceil(2));
    }
    let pattern = c.size("sliding_window_pattern", 6)?;
    let pattern = positive("sliding_window_pattern", c.size("_sliding_window_pattern", pattern)?)?;
    for (l, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match c.extra.get("layer_types") {
            None => !(l + 1).is_multiple_of(pattern),
            Some(types) => sliding(types, l)?,
        };
        layer.window = window.filter(|_| slides);
        layer.rope = usize::from(slides);
    }
    let mut t = rows_with_four_norms(c, &spec)?;
    for l in 0..spec.stored_layers() {
        for part in ["q_norm", "k_norm"] {
            let name = format!("layers.{l}.self_attn.{part}");
            t.norm(&format!("layer.{l}.{part}"), &name, spec.attention.head_dim, false);
        }
    }
    add_one_to_norms(&mut t);
    Ok((spec, t))
}

/// LLaMA's shape with embeddings times the root of hidden_size.
fn scaled(c: &BertConfig, head: HeadChoice, family: &'static str) -> Result<ModelSpec> {
    let mut spec = decoder(c, head, family)?;
    spec.embedding.scale = Some((spec.hidden_size as f64).sqrt() as f32);
    Ok(spec)
}

/// Gemma 2's additions: the scale of `query_pre_attn_scalar`, norms after blocks, caps of scores and logits.
fn capped(c: &BertConfig, head: HeadChoice, family: &'static str) -> Result<ModelSpec> {
    let mut spec = scaled(c, head, family)?;
    spec.norm.place = NormPlace::Both;
    let scalar = c.number("query_pre_attn_scalar", 256.0)?;
    if !(scalar.is_finite() && scalar > 0.0) {
        return Err(unsupported("query_pre_attn_scalar", scalar, "a positive number"));
    }
    spec.attention.scale = (1.0 / scalar.sqrt()) as f32;
    let cap = |key: &str| match c.extra.get(key) {
        None => Ok(None),
        Some(v) => match v.as_f64().filter(|cap| cap.is_finite() && *cap > 0.0) {
            Some(cap) => Ok(Some(cap as f32)),
            None => Err(unsupported(key, v, "a positive number or null")),
        },
    };
    spec.attention.softcap = cap("attn_logit_softcapping")?;
    let final_cap = cap("final_logit_softcapping")?;
    if let HeadSpec::CausalLm { softcap } = &mut spec.head {
        *softcap = final_cap;
    }
    Ok(spec)
}

fn rows_with_four_norms(c: &BertConfig, spec: &ModelSpec) -> Result<TensorTable> {
    let mut t = table(spec, spec.family);
    let bias = c.flag("attention_bias", false)?;
    for l in 0..spec.stored_layers() {
        attention_rows(&mut t, spec, l, bias, bias);
        gated_rows(&mut t, spec, l, false);
        let norms = [
            ("attn_norm", "input_layernorm"),
            ("attn_out_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("ffn_out_norm", "post_feedforward_layernorm"),
        ];
        for (part, name) in norms {
            t.norm(&format!("layer.{l}.{part}"), &format!("layers.{l}.{name}"), spec.hidden_size, false);
        }
    }
    finish(&mut t, c, spec)?;
    Ok(t)
}

fn finish(t: &mut TensorTable, c: &BertConfig, spec: &ModelSpec) -> Result<()> {
    head_rows(t, c, spec, true)?;
    add_one_to_norms(t);
    Ok(())
}

/// Every norm multiplies by 1 + weight.
fn add_one_to_norms(t: &mut TensorTable) {
    for row in t.rows.iter_mut().filter(|r| r.internal.ends_with("norm.weight")) {
        row.edit = Edit::PlusOne;
    }
}
