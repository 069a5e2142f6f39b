//! The encoder of T5 (arXiv 1910.10683) and mT5 (2010.11934): pre-norm RMSNorm, no biases, scores that are not scaled,
//! one relative bias for all layers. A decoder in the checkpoint is ignored.

use serde_json::{Value, json};

use super::keys::{MOST_DISTANCES, activation, positive, unsupported};
use super::{
    AttentionSpec, BucketSpec, EmbeddingSpec, FeedForwardSpec, HeadChoice, HeadSpec, ModelSpec, NormPlace, NormSpec,
    ScorePositions, TensorTable,
};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::NormKind;

pub(super) const ALIASES: &[(&str, &str)] = &[
    ("d_model", "hidden_size"),
    ("num_layers", "num_hidden_layers"),
    ("num_heads", "num_attention_heads"),
    ("d_ff", "intermediate_size"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("n_positions", "max_position_embeddings"),
];

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-6, "type_vocab_size": 0, "max_position_embeddings": 512})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    if head == HeadChoice::MaskedLm {
        return Err(unsupported("model_type", "\"t5\"", "a family with a masked language model"));
    }
    c.encoder_only()?;
    if c.classifier_labels()?.is_some() {
        let expected = "an encoder's class: T5's classifier reads the decoder's output";
        return Err(unsupported("architectures", format!("{:?}", c.architectures), expected));
    }
    let (hidden, heads) = (positive("d_model", c.hidden_size)?, positive("num_heads", c.num_attention_heads)?);
    let head_dim = positive("d_kv", c.size("d_kv", 64)?)?;
    let buckets = buckets(c)?;
    let feed_forward = feed_forward(c)?;
    let spec = ModelSpec {
        family: "t5",
        hidden_size: hidden,
        embedding: EmbeddingSpec {
            vocab_size: positive("vocab_size", c.vocab_size)?,
            width: hidden,
            token_types: 0,
            positions: None,
            scale: None,
            norm: None,
            norm_projected: false,
        },
        norm: NormSpec { kind: NormKind::RmsNorm, eps: c.layer_norm_eps, place: NormPlace::Pre },
        attention: AttentionSpec {
            heads,
            kv_heads: heads,
            head_dim,
            scale: 1.0,
            positions: ScorePositions::Buckets(buckets),
            qk_norm: None,
            causal: false,
            softcap: None,
        },
        feed_forward,
        layers: ModelSpec::plain_layers(c.layers()?),
        convolution: None,
        head: HeadSpec::None,
        max_tokens: usize::MAX,
        trained_tokens: positive("n_positions", c.max_position_embeddings)?,
    };
    let table = table(&spec, buckets);
    Ok((spec, table))
}

fn buckets(c: &BertConfig) -> Result<BucketSpec> {
    let buckets = c.size("relative_attention_num_buckets", 32)?;
    let max_distance = c.size("relative_attention_max_distance", 128)?;
    if !(4..=MOST_DISTANCES).contains(&buckets) {
        return Err(unsupported("relative_attention_num_buckets", buckets, &format!("4 to {MOST_DISTANCES}")));
    }
    if max_distance <= buckets / 4 || max_distance > MOST_DISTANCES {
        let quarter = "a quarter of relative_attention_num_buckets";
        let expected = format!("more than {}, {quarter}, and at most {MOST_DISTANCES}", buckets / 4);
        return Err(unsupported("relative_attention_max_distance", max_distance, &expected));
    }
    Ok(BucketSpec { buckets, max_distance })
}

/// `feed_forward_proj` is a function's name, or gated- and a function's name; gated-gelu means the tanh form. The keys
/// that newer configurations derive from it are stronger.
fn feed_forward(c: &BertConfig) -> Result<FeedForwardSpec> {
    let key = "feed_forward_proj";
    let name = c.text(key, if c.model_type == "mt5" { "gated-gelu" } else { "relu" })?;
    let (gated, function) = match name.strip_prefix("gated-") {
        Some("gelu") => (true, "gelu_new"),
        Some(function) => (true, function),
        None => (false, name),
    };
    let activation = match c.extra.get("dense_act_fn") {
        None => activation(key, function)?,
        Some(_) => activation("dense_act_fn", c.text("dense_act_fn", function)?)?,
    };
    let gated = c.flag("is_gated_act", gated)?;
    Ok(FeedForwardSpec { intermediate_size: positive("d_ff", c.intermediate_size)?, activation, gated })
}

fn table(s: &ModelSpec, buckets: BucketSpec) -> TensorTable {
    let (h, i, heads) = (s.hidden_size, s.feed_forward.intermediate_size, s.attention.heads);
    let inner = heads * s.attention.head_dim;
    let mut t = TensorTable::new("t5", &["", "transformer."], "encoder.block.0.layer.0.SelfAttention.q.weight");
    t.ignore(&["decoder.*", "lm_head.weight", "encoder.embed_tokens.weight", "shared.weight"]);
    let word = t.add("embedding.word", "shared.weight", &[s.embedding.vocab_size, h]);
    word.or("encoder.embed_tokens.weight");
    let bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    t.add("buckets", bias, &[buckets.buckets, heads]);
    for l in 0..s.stored_layers() {
        let ours = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("encoder.block.{l}.layer.{part}");
        for part in ["q", "k", "v"] {
            t.linear(&ours(part), &file(&format!("0.SelfAttention.{part}")), (inner, h), false);
        }
        t.linear(&ours("attn_out"), &file("0.SelfAttention.o"), (h, inner), false);
        t.norm(&ours("attn_norm"), &file("0.layer_norm"), h, false);
        if s.feed_forward.gated {
            t.linear(&ours("ffn_gate"), &file("1.DenseReluDense.wi_0"), (i, h), false);
            t.linear(&ours("ffn_up"), &file("1.DenseReluDense.wi_1"), (i, h), false);
        } else {
            t.linear(&ours("ffn_up"), &file("1.DenseReluDense.wi"), (i, h), false);
        }
        t.linear(&ours("ffn_down"), &file("1.DenseReluDense.wo"), (h, i), false);
        t.norm(&ours("ffn_norm"), &file("1.layer_norm"), h, false);
    }
    t.norm("final_norm", "encoder.final_layer_norm", h, false);
    t
}
