//! ModernBERT (arXiv 2412.13663): pre-norm, rotary positions with two bases, most layers seeing a window only, GeGLU.

use serde_json::{Map, Value, json};

use super::bert::{masked_lm_or, tied_decoder};
use super::keys::{activation, positive, root_scale, unsupported};
use super::rope::RopeSpec;
use super::rope_config::unscaled_base;
use super::{
    AttentionSpec, EmbeddingSpec, FeedForwardSpec, HeadChoice, HeadSpec, LayerSpec, ModelSpec, NormPlace, NormSpec,
    ScorePositions, TensorTable,
};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{NormKind, PoolingMode, RopeLayout};

pub(super) const ALIASES: &[(&str, &str)] = &[("hidden_activation", "hidden_act"), ("norm_eps", "layer_norm_eps")];

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-5, "type_vocab_size": 0, "hidden_act": "gelu", "max_position_embeddings": 8192})
}

/// The keys of each kind of layer's base, and the value of the first where it is absent.
const GLOBAL_BASE: &str = "global_rope_theta";
const LOCAL_BASE: &str = "local_rope_theta";
const DEFAULT_BASE: f64 = 160_000.0;

/// Index of each kind of layer's rotation.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    c.encoder_only()?;
    let head_dim = c.whole_head_dim()?;
    c.same_head_dim(head_dim)?;
    if !head_dim.is_multiple_of(2) {
        return Err(unsupported("num_attention_heads", c.num_attention_heads, "heads of an even number of features"));
    }
    let ropes = vec![
        rope(c, head_dim, "full_attention", GLOBAL_BASE, DEFAULT_BASE)?,
        rope(c, head_dim, "sliding_attention", LOCAL_BASE, 10_000.0)?,
    ];
    let hidden_size = c.hidden_size;
    let spec = ModelSpec {
        family: "modernbert",
        hidden_size,
        embedding: EmbeddingSpec {
            vocab_size: positive("vocab_size", c.vocab_size)?,
            width: hidden_size,
            token_types: 0,
            positions: None,
            scale: None,
            norm: Some(NormKind::LayerNorm),
            norm_projected: false,
        },
        norm: NormSpec { kind: NormKind::LayerNorm, eps: c.layer_norm_eps, place: NormPlace::Pre },
        attention: AttentionSpec {
            heads: c.num_attention_heads,
            kv_heads: c.num_attention_heads,
            head_dim,
            scale: root_scale(head_dim, 1),
            positions: ScorePositions::Rope(ropes),
            qk_norm: None,
            causal: false,
            softcap: None,
        },
        feed_forward: FeedForwardSpec {
            intermediate_size: positive("intermediate_size", c.intermediate_size)?,
            activation: c.activation()?,
            gated: true,
        },
        layers: layers(c)?,
        convolution: None,
        head: classifier_or(c, head)?,
        max_tokens: usize::MAX,
        trained_tokens: positive("max_position_embeddings", c.max_position_embeddings)?,
    };
    let table = table(c, &spec)?;
    Ok((spec, table))
}

fn classifier_or(c: &BertConfig, head: HeadChoice) -> Result<HeadSpec> {
    let activation = activation("classifier_activation", c.text("classifier_activation", "gelu")?)?;
    let classifier = match c.classifier_labels()? {
        None => HeadSpec::None,
        Some(labels) => {
            let pooling = match c.text("classifier_pooling", "cls")? {
                "cls" => PoolingMode::Cls,
                "mean" => PoolingMode::Mean,
                other => return Err(unsupported("classifier_pooling", format!("\"{other}\""), "cls, mean")),
            };
            HeadSpec::Classifier { labels, pooling, activation, norm: true }
        }
    };
    Ok(match masked_lm_or(c, head, classifier)? {
        HeadSpec::MaskedLm { .. } => HeadSpec::MaskedLm { activation },
        other => other,
    })
}

/// A `local_rope_theta` of null is the other layers' base.
pub(super) fn local_base(map: &mut Map<String, Value>) {
    let base = map.get(GLOBAL_BASE).filter(|base| !base.is_null()).cloned();
    if let Some(null @ Value::Null) = map.get_mut(LOCAL_BASE) {
        *null = base.unwrap_or_else(|| json!(DEFAULT_BASE));
    }
}

/// The rotation of one kind of layer: `rope_parameters` of that kind, else the older key.
fn rope(c: &BertConfig, head_dim: usize, kind: &str, old: &str, default: f64) -> Result<RopeSpec> {
    let own = unscaled_base(c, Some(kind))?;
    if let Some(scaling) = c.extra.get("rope_scaling") {
        return Err(unsupported("rope_scaling", scaling, "none"));
    }
    let base = own.map_or_else(|| c.number(old, default), Ok)?;
    if !(base.is_finite() && base > 0.0) {
        return Err(unsupported(old, base, "a positive number"));
    }
    Ok(RopeSpec::plain(head_dim, RopeLayout::Halves, base))
}

/// `layer_types`, else every `global_attn_every_n_layers`-th layer from the first sees everything. The others see
/// `local_attention` / 2 tokens either side.
fn layers(c: &BertConfig) -> Result<Vec<LayerSpec>> {
    let count = c.layers()?;
    let every = positive("global_attn_every_n_layers", c.size("global_attn_every_n_layers", 3)?)?;
    let reach = c.size("local_attention", 128)? / 2;
    let reach = u32::try_from(reach).map_err(|_| unsupported("local_attention", reach, "at most 2^32"))?;
    let other = c.size("sliding_window", reach as usize)?;
    if other != reach as usize {
        return Err(unsupported("sliding_window", other, &format!("half of local_attention, {reach}")));
    }
    if let Some(types) = c.extra.get("layer_types").filter(|t| t.as_array().is_none_or(|t| t.len() != count)) {
        return Err(unsupported("layer_types", types, "full_attention or sliding_attention for each layer"));
    }
    let global = |l: usize| match c.extra.get("layer_types") {
        None => Ok(l.is_multiple_of(every)),
        Some(types) => match types.get(l).and_then(Value::as_str) {
            Some("full_attention") => Ok(true),
            Some("sliding_attention") => Ok(false),
            _ => Err(unsupported("layer_types", types, "full_attention or sliding_attention for each layer")),
        },
    };
    let layer = |l: usize| {
        Ok(match global(l)? {
            true => LayerSpec { weights: l, window: None, rope: GLOBAL, scale: None },
            false => LayerSpec { weights: l, window: Some(reach), rope: LOCAL, scale: None },
        })
    };
    (0..count).map(layer).collect()
}

fn table(c: &BertConfig, s: &ModelSpec) -> Result<TensorTable> {
    let (h, i, vocab) = (s.hidden_size, s.feed_forward.intermediate_size, s.embedding.vocab_size);
    let norm_bias = c.flag("norm_bias", false)?;
    let (attention_bias, mlp_bias) = (c.flag("attention_bias", false)?, c.flag("mlp_bias", false)?);
    let head_bias = c.flag("classifier_bias", false)?;
    let mut t = TensorTable::new("modernbert", &["", "model."], "embeddings.tok_embeddings.weight");
    t.add("embedding.word", "embeddings.tok_embeddings.weight", &[vocab, h]);
    t.norm("embedding.norm", "embeddings.norm", h, norm_bias);
    for l in 0..s.stored_layers() {
        let ours = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("layers.{l}.{part}");
        if l > 0 {
            // The first layer reads the embeddings, which are normed.
            t.norm(&ours("attn_norm"), &file("attn_norm"), h, norm_bias);
        }
        t.linear(&ours("qkv"), &file("attn.Wqkv"), (3 * h, h), attention_bias);
        t.linear(&ours("attn_out"), &file("attn.Wo"), (h, h), attention_bias);
        t.norm(&ours("ffn_norm"), &file("mlp_norm"), h, norm_bias);
        t.part(&ours("ffn_gate"), &file("mlp.Wi"), (2 * i, h), 0..i, mlp_bias);
        t.part(&ours("ffn_up"), &file("mlp.Wi"), (2 * i, h), i..2 * i, mlp_bias);
        t.linear(&ours("ffn_down"), &file("mlp.Wo"), (h, i), mlp_bias);
    }
    t.norm("final_norm", "final_norm", h, norm_bias);
    match s.head {
        HeadSpec::Classifier { labels, .. } => {
            t.bare_linear("head.dense", "head.dense", (h, h), head_bias);
            t.bare_norm("head.norm", "head.norm", h, norm_bias);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            t.bare_linear("head.dense", "head.dense", (h, h), head_bias);
            t.bare_norm("head.norm", "head.norm", h, norm_bias);
            tied_decoder(&mut t, s, "decoder.weight", "embeddings.tok_embeddings.weight");
            if c.flag("decoder_bias", true)? {
                t.add("head.out.bias", "decoder.bias", &[vocab]).bare();
            }
        }
        _ => t.ignore(&["head.*", "decoder.*", "classifier.*"]),
    }
    Ok(t)
}
