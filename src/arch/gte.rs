//! GTE (arXiv 2407.19669; gte-*-v1.5, gte-multilingual, snowflake-arctic-embed-m-v2): `model_type` "new", or "gte" for
//! the copies of its code; post-norm, rotary positions with a fixed NTK rescaling, gated feed-forward block.

use serde_json::{Value, json};

use super::bert::{embeddings, masked_lm_or, post_norm, tanh_classifier, tied_decoder};
use super::keys::unsupported;
use super::rope::{RopeSpec, frequencies};
use super::rope_config::unscaled_base;
use super::{HeadChoice, HeadSpec, ModelSpec, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{NormKind, RopeLayout};
use crate::weights::Checkpoint;

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-12, "type_vocab_size": 0, "hidden_act": "gelu", "max_position_embeddings": 8192,
        "position_embedding_type": "rope"
    })
}

/// What only the checkpoint tells: whether it has the names of the class in transformers.
pub(super) fn complete(c: &mut BertConfig, checkpoint: &Checkpoint) {
    let own_names = checkpoint.names().any(|n| n.ends_with("layers.0.mlp.gate_proj.weight"));
    c.extra.insert("own_names".to_string(), Value::Bool(own_names));
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    c.refuse("logn_attention_scale", true, "false")?;
    let mut spec = post_norm(c, "new")?;
    match c.position_embedding_type.as_str() {
        "absolute" => {}
        "rope" => {
            spec.embedding.positions = None;
            spec.attention.positions = ScorePositions::Rope(vec![rope(c, spec.attention.head_dim)?]);
            spec.max_tokens = usize::MAX;
        }
        other => return Err(unsupported("position_embedding_type", format!("\"{other}\""), "rope, absolute")),
    }
    spec.norm.kind = match c.text("layer_norm_type", "layer_norm")? {
        "layer_norm" => NormKind::LayerNorm,
        "rms_norm" => NormKind::RmsNorm,
        other => return Err(unsupported("layer_norm_type", format!("\"{other}\""), "layer_norm, rms_norm")),
    };
    spec.feed_forward.gated = true;
    spec.head = masked_lm_or(c, head, tanh_classifier(c)?)?;
    let mut t = TensorTable::new("new", &["", "new.", "gte."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids"]);
    embeddings(&mut t, &spec);
    let (packed, own_names) = (c.flag("pack_qkv", true)?, c.flag("own_names", false)?);
    for l in 0..spec.stored_layers() {
        if own_names { layer_of_transformers(&mut t, &spec, l) } else { layer(&mut t, &spec, packed, l) }
    }
    head_rows(&mut t, &spec);
    if c.is_for("ForTokenClassification") {
        t.ignore(&["classifier.*"]); // a head over tokens; gte-multilingual-base carries one beside its vectors
    }
    Ok((spec, t))
}

fn head_rows(t: &mut TensorTable, spec: &ModelSpec) {
    let (h, vocab) = (spec.hidden_size, spec.embedding.vocab_size);
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.linear("head.dense", "pooler.dense", (h, h), true);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            t.bare_linear("head.dense", "lm_head.dense", (h, h), true);
            t.bare_norm("head.norm", "lm_head.norm", h, true);
            tied_decoder(t, spec, "lm_head.decoder.weight", "embeddings.word_embeddings.weight");
            t.add("head.out.bias", "lm_head.decoder.bias", &[vocab]).bare();
            t.ignore(&["pooler.*"]);
        }
        _ => t.ignore(&["pooler.*"]),
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        t.ignore(&["lm_head.*"]);
    }
}

fn rope(c: &BertConfig, head_dim: usize) -> Result<RopeSpec> {
    if !head_dim.is_multiple_of(2) {
        return Err(unsupported("num_attention_heads", c.num_attention_heads, "heads of an even number of features"));
    }
    c.same_head_dim(head_dim)?;
    let stated = unscaled_base(c, None)?;
    if stated.is_none() && c.model_type == "gte" && !c.extra.contains_key("rope_theta") {
        // One code's default is 10000, the other's 160000.
        return Err(unsupported("rope_theta", "absent", "a positive number"));
    }
    let base = stated.map_or_else(|| c.number("rope_theta", 10000.0), Ok)?;
    if !(base.is_finite() && base > 0.0) {
        return Err(unsupported("rope_theta", base, "a positive number"));
    }
    let mut rope = RopeSpec::plain(head_dim, RopeLayout::Halves, base);
    let Some(scaling) = c.extra.get("rope_scaling") else { return Ok(rope) };
    let number = |key: &str| scaling.get(key).filter(|v| !v.is_null()).map(|v| v.as_f64().unwrap_or(f64::NAN));
    let kind = scaling.get("type").and_then(Value::as_str).unwrap_or_default();
    let factor = number("factor").unwrap_or(f64::NAN);
    if kind != "ntk" || !(factor.is_finite() && factor >= 1.0) || number("mixed_b").is_some_and(f64::is_nan) {
        return Err(unsupported("rope_scaling", scaling, "type ntk with a factor of at least 1"));
    }
    if factor > 1.0 {
        rescale(&mut rope, factor, number("mixed_b"));
    }
    Ok(rope)
}

/// Fixed NTK: the base times the factor, then every frequency / factor^(2 / dim). Mixed NTK: the frequency of pair
/// i = 1, 2, ... / factor^((i / (dim / 2))^mixed_b).
fn rescale(rope: &mut RopeSpec, factor: f64, mixed: Option<f64>) {
    let dim = rope.rotary_dim;
    match mixed {
        None => {
            let down = libm::pow(factor, 2.0 / dim as f64) as f32;
            rope.frequencies = frequencies(rope.base * factor, dim).iter().map(|f| f / down).collect();
            rope.rescaled = format!("NTK {factor}");
        }
        Some(b) => {
            let rise = libm::log(factor) / libm::pow(dim as f64 / 2.0, b);
            let down = |i: usize| libm::exp(rise * libm::pow((i + 1) as f64, b)) as f32;
            rope.frequencies.iter_mut().enumerate().for_each(|(i, f)| *f /= down(i));
            rope.rescaled = format!("mixed NTK {factor}, {b}");
        }
    }
}

fn layer(t: &mut TensorTable, s: &ModelSpec, packed: bool, l: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("encoder.layer.{l}.{part}");
    if packed {
        t.linear(&ours("qkv"), &file("attention.qkv_proj"), (3 * h, h), true);
    } else {
        for part in ["q", "k", "v"] {
            t.linear(&ours(part), &file(&format!("attention.{part}_proj")), (h, h), true);
        }
    }
    let norm_bias = s.norm.kind == NormKind::LayerNorm;
    t.linear(&ours("attn_out"), &file("attention.o_proj"), (h, h), true);
    t.norm(&ours("attn_norm"), &file("attn_ln"), h, norm_bias);
    t.part(&ours("ffn_up"), &file("mlp.up_gate_proj"), (2 * i, h), 0..i, false);
    t.part(&ours("ffn_gate"), &file("mlp.up_gate_proj"), (2 * i, h), i..2 * i, false);
    t.linear(&ours("ffn_down"), &file("mlp.down_proj"), (h, i), true);
    t.norm(&ours("ffn_norm"), &file("mlp_ln"), h, norm_bias);
}

/// The names of the class in transformers.
fn layer_of_transformers(t: &mut TensorTable, s: &ModelSpec, l: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("layers.{l}.{part}");
    for (part, name) in [("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("attn_out", "o_proj")] {
        t.linear(&ours(part), &file(&format!("self_attn.{name}")), (h, h), true);
    }
    t.norm(&ours("attn_norm"), &file("post_attention_layernorm"), h, true);
    t.linear(&ours("ffn_gate"), &file("mlp.gate_proj"), (i, h), false);
    t.linear(&ours("ffn_up"), &file("mlp.up_proj"), (i, h), false);
    t.linear(&ours("ffn_down"), &file("mlp.down_proj"), (h, i), true);
    t.norm(&ours("ffn_norm"), &file("post_mlp_layernorm"), h, true);
}
