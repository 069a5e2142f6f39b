//! BERT (arXiv 1810.04805), as `BertModel` and `BertForSequenceClassification` of Hugging Face transformers compute it;
//! with `position_embedding_type: "alibi"` the bidirectional linear biases of JinaBERT take the place of learned
//! positions.

use serde_json::Value;

use super::{
    AttentionSpec, EmbeddingSpec, FeedForwardSpec, HeadSpec, ModelSpec, NormSpec, PositionSpec, TensorTable,
    activation, positive, unsupported,
};
use crate::config::BertConfig;
use crate::error::Result;

pub(super) fn describe(config: &BertConfig) -> Result<(ModelSpec, TensorTable)> {
    let spec = spec(config)?;
    let table = table(&spec);
    Ok((spec, table))
}

fn spec(c: &BertConfig) -> Result<ModelSpec> {
    for key in ["is_decoder", "add_cross_attention"] {
        if c.extra.get(key) == Some(&Value::Bool(true)) {
            return Err(unsupported(key, true, "false: BERT runs as an encoder"));
        }
    }
    let heads = positive("num_attention_heads", c.num_attention_heads)?;
    let hidden_size = positive("hidden_size", c.hidden_size)?;
    if !hidden_size.is_multiple_of(heads) {
        return Err(unsupported("hidden_size", hidden_size, &format!("a multiple of num_attention_heads, {heads}")));
    }
    let positions = match c.position_embedding_type.as_str() {
        "absolute" => PositionSpec::Learned,
        "alibi" => PositionSpec::Alibi,
        other => return Err(unsupported("position_embedding_type", format!("\"{other}\""), "absolute, alibi")),
    };
    let head_dim = hidden_size / heads;
    let classifier = c.is_for("ForSequenceClassification");
    Ok(ModelSpec {
        family: "bert",
        hidden_size,
        layers: positive("num_hidden_layers", c.num_hidden_layers)?,
        embedding: EmbeddingSpec {
            vocab_size: positive("vocab_size", c.vocab_size)?,
            token_types: positive("type_vocab_size", c.type_vocab_size)?,
            positions,
            max_positions: positive("max_position_embeddings", c.max_position_embeddings)?,
        },
        norm: NormSpec { eps: c.layer_norm_eps },
        attention: AttentionSpec { heads, head_dim, scale: (1.0 / (head_dim as f64).sqrt()) as f32 },
        feed_forward: FeedForwardSpec {
            intermediate_size: positive("intermediate_size", c.intermediate_size)?,
            activation: activation("hidden_act", &c.hidden_act)?,
        },
        head: if classifier { HeadSpec::Classifier { labels: c.num_labels() } } else { HeadSpec::None },
    })
}

fn table(s: &ModelSpec) -> TensorTable {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let mut t = TensorTable {
        prefixes: &["", "bert."],
        anchor: "embeddings.word_embeddings.weight",
        rows: Vec::new(),
        ignored: vec!["embeddings.position_ids", "embeddings.token_type_ids", "cls.*"],
    };
    t.add("embedding.word", "embeddings.word_embeddings.weight", &[s.embedding.vocab_size, h]);
    t.add("embedding.type", "embeddings.token_type_embeddings.weight", &[s.embedding.token_types, h]);
    if s.embedding.positions == PositionSpec::Learned {
        t.add("embedding.position", "embeddings.position_embeddings.weight", &[s.embedding.max_positions, h]);
    }
    t.add_norm("embedding.norm", "embeddings.LayerNorm", h);
    for l in 0..s.layers {
        let layer = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("encoder.layer.{l}.{part}");
        for (part, name) in [("q", "query"), ("k", "key"), ("v", "value")] {
            t.add_linear(&layer(part), &file(&format!("attention.self.{name}")), h, h);
        }
        t.add_linear(&layer("attn_out"), &file("attention.output.dense"), h, h);
        t.add_norm(&layer("attn_norm"), &file("attention.output.LayerNorm"), h);
        t.add_linear(&layer("ffn_up"), &file("intermediate.dense"), i, h);
        t.add_linear(&layer("ffn_down"), &file("output.dense"), h, i);
        t.add_norm(&layer("ffn_norm"), &file("output.LayerNorm"), h);
    }
    match s.head {
        HeadSpec::Classifier { labels } => {
            t.add_linear("pooler", "pooler.dense", h, h);
            t.add_linear("classifier", "classifier", labels, h);
            t.last_without_prefix(2);
        }
        HeadSpec::None => t.ignored.push("pooler.*"),
    }
    t
}
