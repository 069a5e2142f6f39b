//! LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783) and its likes: pre-norm RMSNorm, rotary positions, grouped queries,
//! SwiGLU. Mistral, Qwen and Gemma change it in places.

use serde_json::{Value, json};

use super::keys::{positive, root_scale, unsupported};
use super::rope_config::{self, RopeKeys};
use super::{
    AttentionSpec, EmbeddingSpec, FeedForwardSpec, HeadChoice, HeadSpec, LongFrequencies, ModelSpec, NormPlace,
    NormSpec, ScorePositions, TensorTable,
};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::NormKind;

pub(super) const ALIASES: &[(&str, &str)] = &[("rms_norm_eps", "layer_norm_eps")];

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-6, "type_vocab_size": 0, "hidden_act": "silu", "max_position_embeddings": 2048})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    c.refuse("rope_interleaved", true, "false")?;
    let spec = decoder(c, head, "llama")?;
    let mut t = table(&spec, "llama");
    let (attention, mlp) = (c.flag("attention_bias", false)?, c.flag("mlp_bias", false)?);
    for l in 0..spec.stored_layers() {
        attention_rows(&mut t, &spec, l, attention, attention);
        norm_rows(&mut t, &spec, l);
        gated_rows(&mut t, &spec, l, mlp);
    }
    head_rows(&mut t, c, &spec, false)?;
    Ok((spec, t))
}

/// LLaMA's shape, which its likes change in places.
pub(super) fn decoder(c: &BertConfig, head: HeadChoice, family: &'static str) -> Result<ModelSpec> {
    c.refuse("add_cross_attention", true, "false")?;
    let (hidden_size, heads) = (positive("hidden_size", c.hidden_size)?, c.num_attention_heads);
    let (heads, kv_heads) = heads_of(c, heads)?;
    let head_dim = match c.size("head_dim", 0)? {
        0 => c.whole_head_dim()?,
        own => own,
    };
    let rope = RopeKeys { head_dim, default_theta: 10_000.0, default_partial: 1.0, layer_type: None };
    let rope = rope_config::read(c, &rope)?;
    let trained = positive("max_position_embeddings", c.max_position_embeddings)?;
    // A dynamic stretch carries a model so much further.
    let stretch = match rope.longer.as_ref().map(|l| &l.frequencies) {
        Some(LongFrequencies::DynamicNtk { factor }) => *factor,
        _ => 1.0,
    };
    let positions = ScorePositions::Rope(vec![rope]);
    Ok(ModelSpec {
        family,
        hidden_size,
        embedding: EmbeddingSpec {
            vocab_size: positive("vocab_size", c.vocab_size)?,
            width: hidden_size,
            token_types: 0,
            positions: None,
            scale: None,
            norm: None,
            norm_projected: false,
        },
        norm: NormSpec { kind: NormKind::RmsNorm, eps: c.layer_norm_eps, place: NormPlace::Pre },
        attention: AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            scale: root_scale(head_dim, 1),
            positions,
            qk_norm: None,
            causal: c.flag("is_causal", true)?,
            softcap: None,
        },
        feed_forward: FeedForwardSpec {
            intermediate_size: positive("intermediate_size", c.intermediate_size)?,
            activation: c.activation()?,
            gated: true,
        },
        layers: ModelSpec::plain_layers(c.layers()?),
        convolution: None,
        head: causal_head(c, head)?,
        max_tokens: usize::MAX,
        trained_tokens: (trained as f64 * stretch) as usize,
    })
}

/// Query heads, and key and value heads, which have to divide them.
pub(super) fn heads_of(c: &BertConfig, heads: usize) -> Result<(usize, usize)> {
    let heads = positive("num_attention_heads", heads)?;
    let kv_heads = positive("num_key_value_heads", c.size("num_key_value_heads", heads)?)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(unsupported(
            "num_key_value_heads",
            kv_heads,
            &format!("a divisor of num_attention_heads, {heads}"),
        ));
    }
    Ok((heads, kv_heads))
}

/// The next token's scores, where `architectures` names a language model and they are asked for.
pub(super) fn causal_head(c: &BertConfig, head: HeadChoice) -> Result<HeadSpec> {
    if head == HeadChoice::MaskedLm {
        return Err(unsupported(
            "model_type",
            format!("\"{}\"", c.model_type),
            "a family with a masked language model",
        ));
    }
    for class in ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"] {
        if c.is_for(class) {
            return Err(unsupported(
                "architectures",
                format!("{:?}", c.architectures),
                "ForCausalLM, or the bare model",
            ));
        }
    }
    let language = c.is_for("ForCausalLM") || c.is_for("LMHeadModel");
    Ok(match head {
        HeadChoice::Configured if language => HeadSpec::CausalLm { softcap: None },
        _ => HeadSpec::None,
    })
}

/// A table with the embedding and the final norm, under LLaMA's names.
pub(super) fn table(s: &ModelSpec, family: &'static str) -> TensorTable {
    let mut t = TensorTable::new(family, &["model.", ""], "embed_tokens.weight");
    t.ignore(&["*rotary_emb.inv_freq"]);
    t.add("embedding.word", "embed_tokens.weight", &[s.embedding.vocab_size, s.hidden_size]);
    t.norm("final_norm", "norm", s.hidden_size, false);
    t
}

/// Query, key, value and output projections of layer `l`.
pub(super) fn attention_rows(t: &mut TensorTable, s: &ModelSpec, l: usize, qkv_bias: bool, out_bias: bool) {
    let (h, dim) = (s.hidden_size, s.attention.head_dim);
    let (q, kv) = (s.attention.heads * dim, s.attention.kv_heads * dim);
    let file = |part: &str| format!("layers.{l}.self_attn.{part}");
    for (part, name, rows) in [("q", "q_proj", q), ("k", "k_proj", kv), ("v", "v_proj", kv)] {
        t.linear(&format!("layer.{l}.{part}"), &file(name), (rows, h), qkv_bias);
    }
    t.linear(&format!("layer.{l}.attn_out"), &file("o_proj"), (h, q), out_bias);
}

/// The norms before attention and before the feed-forward block.
pub(super) fn norm_rows(t: &mut TensorTable, s: &ModelSpec, l: usize) {
    t.norm(&format!("layer.{l}.attn_norm"), &format!("layers.{l}.input_layernorm"), s.hidden_size, false);
    t.norm(&format!("layer.{l}.ffn_norm"), &format!("layers.{l}.post_attention_layernorm"), s.hidden_size, false);
}

/// Gate, up and down projections of layer `l`.
pub(super) fn gated_rows(t: &mut TensorTable, s: &ModelSpec, l: usize, bias: bool) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let file = |part: &str| format!("layers.{l}.mlp.{part}");
    t.linear(&format!("layer.{l}.ffn_gate"), &file("gate_proj"), (i, h), bias);
    t.linear(&format!("layer.{l}.ffn_up"), &file("up_proj"), (i, h), bias);
    t.linear(&format!("layer.{l}.ffn_down"), &file("down_proj"), (h, i), bias);
}

/// The next token's scores: the embedding where the configuration ties it, else a matrix of their own.
pub(super) fn head_rows(t: &mut TensorTable, c: &BertConfig, s: &ModelSpec, tied: bool) -> Result<()> {
    let shape = [s.embedding.vocab_size, s.hidden_size];
    let tied = c.flag("tie_word_embeddings", tied)?;
    match s.head {
        HeadSpec::CausalLm { .. } if tied => {
            let name = t.anchor;
            t.add("head.out.weight", name, &shape);
            t.ignore(&["lm_head.weight"]);
        }
        HeadSpec::CausalLm { .. } => {
            t.add("head.out.weight", "lm_head.weight", &shape).bare();
        }
        _ => t.ignore(&["lm_head.*"]),
    }
    Ok(())
}
