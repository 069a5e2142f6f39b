//! GPT-2 (Radford et al., 2019): learned positions, pre-norm LayerNorm, projections stored [in, out].

use serde_json::{Value, json};

use super::bert::post_norm;
use super::edit::Edit;
use super::keys::root_scale;
use super::llama::{causal_head, head_rows};
use super::{HeadChoice, ModelSpec, NormPlace, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;

pub(super) const ALIASES: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_inner", "intermediate_size"),
    ("n_positions", "max_position_embeddings"),
    ("activation_function", "hidden_act"),
    ("layer_norm_epsilon", "layer_norm_eps"),
];

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-5, "type_vocab_size": 0, "hidden_act": "gelu_new", "max_position_embeddings": 1024,
        "intermediate_size": 0
    })
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut c = c.clone();
    if c.intermediate_size == 0 {
        c.intermediate_size = 4 * c.hidden_size;
    }
    c.refuse("is_causal", false, "true")?;
    let mut spec = post_norm(&c, "gpt2")?;
    spec.embedding.token_types = 0;
    spec.embedding.norm = None;
    spec.norm.place = NormPlace::Pre;
    spec.attention.causal = true;
    spec.head = causal_head(&c, head)?;
    let scaled = c.flag("scale_attn_weights", true)?;
    spec.attention.scale = if scaled { root_scale(spec.attention.head_dim, 1) } else { 1.0 };
    if c.flag("scale_attn_by_inverse_layer_idx", false)? {
        let root = if scaled { (spec.attention.head_dim as f64).sqrt() } else { 1.0 };
        let scale = |l: usize| (1.0 / (root * (l + 1) as f64)) as f32;
        spec.layers.iter_mut().enumerate().for_each(|(l, layer)| layer.scale = Some(scale(l)));
    }
    let mut t = TensorTable::new("gpt2", &["transformer.", ""], "wte.weight");
    t.ignore(&["*attn.bias", "*attn.masked_bias"]);
    let h = spec.hidden_size;
    t.add("embedding.word", "wte.weight", &[spec.embedding.vocab_size, h]);
    t.add("embedding.position", "wpe.weight", &[c.max_position_embeddings, h]);
    for l in 0..spec.stored_layers() {
        layer(&mut t, &spec, l);
    }
    t.norm("final_norm", "ln_f", h, true);
    head_rows(&mut t, &c, &spec, true)?;
    Ok((spec, t))
}

fn layer(t: &mut TensorTable, s: &ModelSpec, l: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let file = |part: &str| format!("h.{l}.{part}");
    let projections = [
        ("qkv", "attn.c_attn", 3 * h, h),
        ("attn_out", "attn.c_proj", h, h),
        ("ffn_up", "mlp.c_fc", i, h),
        ("ffn_down", "mlp.c_proj", h, i),
    ];
    for (part, name, n, k) in projections {
        let weight = t.add(format!("layer.{l}.{part}.weight"), format!("{}.weight", file(name)), &[k, n]);
        weight.edit(Edit::Transposed);
        t.add(format!("layer.{l}.{part}.bias"), format!("{}.bias", file(name)), &[n]);
    }
    t.norm(&format!("layer.{l}.attn_norm"), &file("ln_1"), h, true);
    t.norm(&format!("layer.{l}.ffn_norm"), &file("ln_2"), h, true);
}
