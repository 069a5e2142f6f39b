//! nomic-embed (arXiv 2402.01613): post-norm, rotary positions, gated feed-forward block, few biases. The hub's
//! checkpoints have GPT-style keys and fused projections; transformers writes keys and names of its own.

use serde_json::{Value, json};

use super::bert::{embeddings, post_norm, tanh_classifier};
use super::keys::{activation, positive, unsupported};
use super::rope::{LongFrequencies, LongerRope, RopeSpec};
use super::rope_config::unscaled_base;
use super::{FeedForwardSpec, HeadChoice, HeadSpec, ModelSpec, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{Activation, RopeLayout};
use crate::weights::Checkpoint;

pub(super) const ALIASES: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_inner", "intermediate_size"),
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
];

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "silu", "max_position_embeddings": 2048,
        "intermediate_size": 0
    })
}

/// What only the checkpoint tells: whose names it has, and the width of the feed-forward block, which the hub's code
/// rounds up.
pub(super) fn complete(c: &mut BertConfig, checkpoint: &Checkpoint) {
    let rows = |suffix: &str| {
        let name = checkpoint.names().find(|n| n.ends_with(suffix))?;
        checkpoint.get(name)?.shape().first().copied()
    };
    let own_names = rows("layers.0.mlp.gate_proj.weight").is_some();
    c.extra.insert("own_names".to_string(), Value::Bool(own_names));
    let asked = if c.intermediate_size > 0 { c.intermediate_size } else { 8 * c.hidden_size / 3 };
    if let Some(found) = rows("layers.0.mlp.fc11.weight").filter(|r| *r == asked.next_multiple_of(256)) {
        c.intermediate_size = found;
    }
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    refuse_what_is_missing(c, head)?;
    let gpt_keys = c.extra.contains_key("n_embd");
    let mut spec = post_norm(c, "nomic_bert")?;
    let multiple = positive("pad_vocab_size_multiple", c.size("pad_vocab_size_multiple", 1)?)?;
    spec.embedding.vocab_size = spec.embedding.vocab_size.next_multiple_of(multiple);
    spec.feed_forward = feed_forward(c, gpt_keys)?;
    let rotary_dim = spec.attention.head_dim as f64 * c.number("rotary_emb_fraction", 1.0)?;
    if rotary_dim > 0.0 {
        spec.embedding.positions = None;
        spec.attention.positions = ScorePositions::Rope(vec![rope(c, rotary_dim, spec.attention.head_dim)?]);
        spec.max_tokens = usize::MAX;
    }
    spec.head = tanh_classifier(c)?;
    let biases = Biases {
        attention: c.flag("qkv_proj_bias", false)?,
        up: c.flag("mlp_fc1_bias", false)?,
        down: c.flag("mlp_fc2_bias", false)?,
    };
    let mut t = TensorTable::new("nomic_bert", &["", "bert.", "nomic_bert."], "embeddings.word_embeddings.weight");
    t.ignore(&["cls.*", "embeddings.position_ids"]);
    embeddings(&mut t, &spec);
    for row in t.rows.iter_mut().filter(|r| r.internal.starts_with("embedding.norm")) {
        let part = row.internal.trim_start_matches("embedding.norm.").to_string();
        row.or(format!("emb_ln.{part}"));
    }
    let own_names = c.flag("own_names", false)?;
    for l in 0..spec.stored_layers() {
        if own_names { layer_of_transformers(&mut t, &spec, l) } else { layer(&mut t, &spec, &biases, l) }
    }
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.linear("head.dense", "pooler.dense", (spec.hidden_size, spec.hidden_size), true);
            t.bare_linear("head.out", "classifier", (labels, spec.hidden_size), true);
        }
        _ => t.ignore(&["pooler.*"]),
    }
    Ok((spec, t))
}

fn refuse_what_is_missing(c: &BertConfig, head: HeadChoice) -> Result<()> {
    if head == HeadChoice::MaskedLm {
        return Err(unsupported("model_type", "\"nomic_bert\"", "a family whose masked language model is implemented"));
    }
    for key in ["prenorm", "parallel_block", "use_rms_norm", "causal", "scale_attn_by_inverse_layer_idx"] {
        c.refuse(key, true, "false")?;
    }
    c.refuse("scale_attn_weights", false, "true")?;
    c.same_head_dim(c.whole_head_dim()?)?;
    for key in ["rope_scaling", "rotary_emb_scale_base", "num_experts", "num_heads_kv", "rotary_head_dim"] {
        match c.extra.get(key) {
            None | Some(Value::Bool(false)) => {}
            Some(v) if v.as_f64() == Some(0.0) => {}
            Some(v) => return Err(unsupported(key, v, "none")),
        }
    }
    Ok(())
}

fn feed_forward(c: &BertConfig, gpt_keys: bool) -> Result<FeedForwardSpec> {
    let (activation, gated) = match c.text("activation_function", "")? {
        "" if gpt_keys => (Activation::GeluErf, false),
        "" => (activation("hidden_act", &c.hidden_act)?, true),
        "swiglu" => (Activation::Silu, true),
        "geglu" => (Activation::GeluErf, true),
        "glu" => (Activation::Sigmoid, true),
        "gelu" => (Activation::GeluErf, false),
        other => return Err(unsupported("activation_function", format!("\"{other}\""), "swiglu, geglu, glu, gelu")),
    };
    let default = if gated { (8 * c.hidden_size / 3).next_multiple_of(256) } else { 4 * c.hidden_size };
    let intermediate_size = if c.intermediate_size > 0 { c.intermediate_size } else { default };
    Ok(FeedForwardSpec { intermediate_size: positive("n_inner", intermediate_size)?, activation, gated })
}

fn rope(c: &BertConfig, rotary_dim: f64, head_dim: usize) -> Result<RopeSpec> {
    let dim = rotary_dim as usize;
    if dim as f64 != rotary_dim || !dim.is_multiple_of(2) || dim > head_dim {
        let expected = format!("a fraction that leaves an even number of the {head_dim} features of a head");
        return Err(unsupported("rotary_emb_fraction", c.number("rotary_emb_fraction", 1.0)?, &expected));
    }
    let stated = unscaled_base(c, None)?;
    let hub_keys = c.extra.contains_key("n_embd") || c.extra.contains_key("rotary_emb_base");
    let base = match stated.filter(|_| !c.extra.contains_key("rotary_emb_base")) {
        Some(base) => base,
        None if hub_keys => c.number("rotary_emb_base", 10000.0)?,
        None => c.number("rope_theta", 1000.0)?,
    };
    if !(base.is_finite() && base > 0.0) {
        return Err(unsupported("rotary_emb_base", base, "a positive number"));
    }
    let interleaved = c.flag("rotary_emb_interleaved", false)?;
    let mut rope = RopeSpec::plain(dim, if interleaved { RopeLayout::Interleaved } else { RopeLayout::Halves }, base);
    let factor = c.number("rotary_scaling_factor", 0.0)?;
    if factor != 0.0 {
        let trained = positive("max_trained_positions", c.size("max_trained_positions", 2048)?)?;
        if factor < 1.0 || dim < 4 {
            return Err(unsupported("rotary_scaling_factor", factor, "at least 1, with 4 or more rotated features"));
        }
        rope.longer = Some(LongerRope { trained, frequencies: LongFrequencies::DynamicNtk { factor } });
    }
    Ok(rope)
}

struct Biases {
    attention: bool,
    up: bool,
    down: bool,
}

fn layer(t: &mut TensorTable, s: &ModelSpec, b: &Biases, l: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("encoder.layers.{l}.{part}");
    t.linear(&ours("qkv"), &file("attn.Wqkv"), (3 * h, h), b.attention);
    t.linear(&ours("attn_out"), &file("attn.out_proj"), (h, h), b.attention);
    t.norm(&ours("attn_norm"), &file("norm1"), h, true);
    if s.feed_forward.gated {
        t.linear(&ours("ffn_up"), &file("mlp.fc11"), (i, h), b.up);
        t.linear(&ours("ffn_gate"), &file("mlp.fc12"), (i, h), b.up);
    } else {
        t.linear(&ours("ffn_up"), &file("mlp.fc1"), (i, h), b.up);
    }
    t.linear(&ours("ffn_down"), &file("mlp.fc2"), (h, i), b.down);
    t.norm(&ours("ffn_norm"), &file("norm2"), h, true);
}

/// The names of the class in transformers.
fn layer_of_transformers(t: &mut TensorTable, s: &ModelSpec, l: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("layers.{l}.{part}");
    for (part, name) in [("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("attn_out", "o_proj")] {
        t.linear(&ours(part), &file(&format!("self_attn.{name}")), (h, h), false);
    }
    t.norm(&ours("attn_norm"), &file("post_attention_layernorm"), h, true);
    t.linear(&ours("ffn_gate"), &file("mlp.gate_proj"), (i, h), false);
    t.linear(&ours("ffn_up"), &file("mlp.up_proj"), (i, h), false);
    t.linear(&ours("ffn_down"), &file("mlp.down_proj"), (h, i), false);
    t.norm(&ours("ffn_norm"), &file("post_mlp_layernorm"), h, true);
}
