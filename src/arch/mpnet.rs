//! MPNet (arXiv 2004.09297): BERT's layers, positions counted after the padding id, and T5's relative bias on top.

use serde_json::{Value, json};

use super::bert::{embeddings, masked_lm_or, post_norm, tanh_classifier};
use super::keys::unsupported;
use super::roberta::{head_rows, number_after_padding};
use super::{BucketSpec, HeadChoice, HeadSpec, ModelSpec, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::Activation;

/// The reference counts distances in these buckets whatever `relative_attention_num_buckets` says.
const BUCKETS: BucketSpec = BucketSpec { buckets: 32, max_distance: 128 };

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-12, "type_vocab_size": 0, "hidden_act": "gelu", "max_position_embeddings": 512})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = post_norm(c, "mpnet")?;
    spec.embedding.token_types = 0;
    // The reference fixes the padding id.
    number_after_padding(&mut spec, 1)?;
    let rows = c.size("relative_attention_num_buckets", BUCKETS.buckets)?;
    if rows < BUCKETS.buckets {
        return Err(unsupported("relative_attention_num_buckets", rows, "32 or more: the reference counts in 32"));
    }
    spec.attention.positions = ScorePositions::Buckets(BUCKETS);
    // The head's function is GELU whatever `hidden_act` says.
    spec.head = match masked_lm_or(c, head, tanh_classifier(c)?)? {
        HeadSpec::MaskedLm { .. } => HeadSpec::MaskedLm { activation: Activation::GeluErf },
        other => other,
    };
    let (h, i, heads) = (spec.hidden_size, spec.feed_forward.intermediate_size, spec.attention.heads);
    let mut t = TensorTable::new("mpnet", &["", "mpnet."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids", "pooler.*"]);
    embeddings(&mut t, &spec);
    t.add("buckets", "encoder.relative_attention_bias.weight", &[rows, heads]);
    for l in 0..spec.stored_layers() {
        let ours = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("encoder.layer.{l}.{part}");
        for (part, name) in [("q", "q"), ("k", "k"), ("v", "v"), ("attn_out", "o")] {
            t.linear(&ours(part), &file(&format!("attention.attn.{name}")), (h, h), true);
        }
        t.norm(&ours("attn_norm"), &file("attention.LayerNorm"), h, true);
        t.linear(&ours("ffn_up"), &file("intermediate.dense"), (i, h), true);
        t.linear(&ours("ffn_down"), &file("output.dense"), (h, i), true);
        t.norm(&ours("ffn_norm"), &file("output.LayerNorm"), h, true);
    }
    head_rows(&mut t, &spec);
    Ok((spec, t))
}
