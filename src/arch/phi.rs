//! Phi (arXiv 2309.05463) with its blocks side by side, and Phi-3 (2404.14219) with fused projections and LongRoPE.

use serde_json::{Value, json};

use super::llama::{decoder, head_rows, norm_rows, table};
use super::mistral::back;
use super::rope_config::{self, RopeKeys};
use super::{HeadChoice, HeadSpec, ModelSpec, NormPlace, QkNorm, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::NormKind;

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-5, "type_vocab_size": 0, "hidden_act": "gelu_new", "max_position_embeddings": 2048})
}

pub(super) fn defaults_3() -> Value {
    json!({"layer_norm_eps": 1e-5, "type_vocab_size": 0, "hidden_act": "silu", "max_position_embeddings": 4096})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = decoder(c, head, "phi")?;
    spec.norm.kind = NormKind::LayerNorm;
    spec.norm.place = NormPlace::Parallel;
    spec.feed_forward.gated = false;
    let dim = spec.attention.head_dim;
    let keys = RopeKeys { head_dim: dim, default_theta: 10_000.0, default_partial: 0.5, layer_type: None };
    spec.attention.positions = ScorePositions::Rope(vec![rope_config::read(c, &keys)?]);
    let qk_norm = c.flag("qk_layernorm", false)?;
    if qk_norm {
        spec.attention.qk_norm = Some(QkNorm { kind: NormKind::LayerNorm, eps: c.layer_norm_eps, per_head: true });
    }
    let (h, i) = (spec.hidden_size, spec.feed_forward.intermediate_size);
    let (q, kv) = (spec.attention.heads * dim, spec.attention.kv_heads * dim);
    let mut t = TensorTable::new("phi", &["model.", ""], "embed_tokens.weight");
    t.ignore(&["*rotary_emb.inv_freq"]);
    t.add("embedding.word", "embed_tokens.weight", &[spec.embedding.vocab_size, h]);
    t.norm("final_norm", "final_layernorm", h, true);
    for l in 0..spec.stored_layers() {
        let ours = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("layers.{l}.{part}");
        for (part, name, rows) in [("q", "q_proj", q), ("k", "k_proj", kv), ("v", "v_proj", kv)] {
            t.linear(&ours(part), &file(&format!("self_attn.{name}")), (rows, h), true);
        }
        t.linear(&ours("attn_out"), &file("self_attn.dense"), (h, q), true);
        // One norm serves both blocks.
        t.norm(&ours("attn_norm"), &file("input_layernorm"), h, true);
        if qk_norm {
            t.norm(&ours("q_norm"), &file("self_attn.q_layernorm"), dim, true);
            t.norm(&ours("k_norm"), &file("self_attn.k_layernorm"), dim, true);
        }
        t.linear(&ours("ffn_up"), &file("mlp.fc1"), (i, h), true);
        t.linear(&ours("ffn_down"), &file("mlp.fc2"), (h, i), true);
    }
    head_rows(&mut t, c, &spec, false)?;
    if matches!(spec.head, HeadSpec::CausalLm { .. }) {
        t.add("head.out.bias", "lm_head.bias", &[spec.embedding.vocab_size]).bare();
    }
    Ok((spec, t))
}

pub(super) fn describe_3(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = decoder(c, head, "phi3")?;
    let window = back(c)?;
    spec.layers.iter_mut().for_each(|l| l.window = window);
    let (h, i, dim) = (spec.hidden_size, spec.feed_forward.intermediate_size, spec.attention.head_dim);
    let (q, kv) = (spec.attention.heads * dim, spec.attention.kv_heads * dim);
    let mut t = table(&spec, "phi3");
    for l in 0..spec.stored_layers() {
        let ours = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("layers.{l}.{part}");
        t.linear(&ours("qkv"), &file("self_attn.qkv_proj"), (q + 2 * kv, h), false);
        t.linear(&ours("attn_out"), &file("self_attn.o_proj"), (h, q), false);
        norm_rows(&mut t, &spec, l);
        t.part(&ours("ffn_gate"), &file("mlp.gate_up_proj"), (2 * i, h), 0..i, false);
        t.part(&ours("ffn_up"), &file("mlp.gate_up_proj"), (2 * i, h), i..2 * i, false);
        t.linear(&ours("ffn_down"), &file("mlp.down_proj"), (h, i), false);
    }
    head_rows(&mut t, c, &spec, false)?;
    Ok((spec, t))
}
