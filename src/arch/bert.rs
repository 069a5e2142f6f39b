//! BERT (arXiv 1810.04805), as `BertModel`, `BertForSequenceClassification` and `BertForMaskedLM` of Hugging Face
//! transformers compute it; with `position_embedding_type: "alibi"` bidirectional linear biases take the place of
//! learned positions.

use serde_json::{Value, json};

use super::keys::{positive, root_scale, unsupported};
use super::{
    AttentionSpec, EmbeddingSpec, FeedForwardSpec, HeadChoice, HeadSpec, LearnedPositions, ModelSpec, NormPlace,
    NormSpec, Numbering, ScorePositions, TensorTable,
};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{Activation, NormKind, PoolingMode};

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "gelu", "max_position_embeddings": 512})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = post_norm(c, "bert")?;
    match c.position_embedding_type.as_str() {
        "absolute" => {}
        "alibi" => {
            spec.embedding.positions = None;
            spec.attention.positions = ScorePositions::Alibi;
        }
        other => return Err(unsupported("position_embedding_type", format!("\"{other}\""), "absolute, alibi")),
    }
    spec.head = masked_lm_or(c, head, tanh_classifier(c)?)?;
    let mut t = TensorTable::new("bert", &["", "bert."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids", "embeddings.token_type_ids"]);
    embeddings(&mut t, &spec);
    layers(&mut t, &spec);
    let h = spec.hidden_size;
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.linear("head.dense", "pooler.dense", (h, h), true);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => masked_lm(&mut t, &spec),
        _ => {}
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        t.ignore(&["cls.*"]);
    }
    t.ignore(if matches!(spec.head, HeadSpec::Classifier { .. }) { &[] } else { &["pooler.*"] });
    Ok((spec, t))
}

/// The classifier of BERT's shape: first token, dense with tanh, linear.
pub(super) fn tanh_classifier(c: &BertConfig) -> Result<HeadSpec> {
    Ok(match c.classifier_labels()? {
        None => HeadSpec::None,
        Some(labels) => {
            HeadSpec::Classifier { labels, pooling: PoolingMode::Cls, activation: Activation::Tanh, norm: false }
        }
    })
}

/// The masked language model's head if it is asked for, else `other`.
pub(super) fn masked_lm_or(c: &BertConfig, head: HeadChoice, other: HeadSpec) -> Result<HeadSpec> {
    Ok(match head {
        HeadChoice::Configured | HeadChoice::Vectors => other,
        HeadChoice::MaskedLm => HeadSpec::MaskedLm { activation: c.activation()? },
    })
}

/// BERT's shape, which its descendants change in places: learned positions, post-norm LayerNorm, no head.
pub(super) fn post_norm(c: &BertConfig, family: &'static str) -> Result<ModelSpec> {
    c.encoder_only()?;
    let head_dim = c.whole_head_dim()?;
    let positions = positive("max_position_embeddings", c.max_position_embeddings)?;
    Ok(ModelSpec {
        family,
        hidden_size: c.hidden_size,
        embedding: EmbeddingSpec {
            vocab_size: positive("vocab_size", c.vocab_size)?,
            width: c.hidden_size,
            token_types: c.type_vocab_size,
            positions: Some(LearnedPositions { rows: positions, numbering: Numbering::Position }),
            scale: None,
            norm: Some(NormKind::LayerNorm),
            norm_projected: false,
        },
        norm: NormSpec { kind: NormKind::LayerNorm, eps: c.layer_norm_eps, place: NormPlace::Post },
        attention: AttentionSpec {
            heads: c.num_attention_heads,
            kv_heads: c.num_attention_heads,
            head_dim,
            scale: root_scale(head_dim, 1),
            positions: ScorePositions::None,
            qk_norm: None,
            causal: false,
            softcap: None,
        },
        feed_forward: FeedForwardSpec {
            intermediate_size: positive("intermediate_size", c.intermediate_size)?,
            activation: c.activation()?,
            gated: false,
        },
        layers: ModelSpec::plain_layers(c.layers()?),
        convolution: None,
        head: HeadSpec::None,
        max_tokens: positions,
        trained_tokens: positions,
    })
}

/// The rows of BERT's embeddings, for those that the spec has.
pub(super) fn embeddings(t: &mut TensorTable, s: &ModelSpec) {
    let (e, width) = (&s.embedding, s.embedding.width);
    t.add("embedding.word", "embeddings.word_embeddings.weight", &[e.vocab_size, width]);
    if e.token_types > 0 {
        t.add("embedding.type", "embeddings.token_type_embeddings.weight", &[e.token_types, width]);
    }
    if let Some(p) = e.positions {
        t.add("embedding.position", "embeddings.position_embeddings.weight", &[p.rows, width]);
    }
    t.norm("embedding.norm", "embeddings.LayerNorm", if e.norm_projected { s.hidden_size } else { width }, true);
}

/// The rows of BERT's layers.
pub(super) fn layers(t: &mut TensorTable, s: &ModelSpec) {
    let (h, inner) = (s.hidden_size, s.attention.heads * s.attention.head_dim);
    for l in 0..s.stored_layers() {
        for (part, name) in [("q", "query"), ("k", "key"), ("v", "value")] {
            let name = format!("encoder.layer.{l}.attention.self.{name}");
            t.linear(&format!("layer.{l}.{part}"), &name, (inner, h), true);
        }
        after_attention(t, s, l);
    }
}

/// The rows of layer `l` after its attention: output projection, feed-forward block and both norms.
pub(super) fn after_attention(t: &mut TensorTable, s: &ModelSpec, l: usize) {
    let (h, i, inner) = (s.hidden_size, s.feed_forward.intermediate_size, s.attention.heads * s.attention.head_dim);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("encoder.layer.{l}.{part}");
    t.linear(&ours("attn_out"), &file("attention.output.dense"), (h, inner), true);
    t.norm(&ours("attn_norm"), &file("attention.output.LayerNorm"), h, true);
    t.linear(&ours("ffn_up"), &file("intermediate.dense"), (i, h), true);
    t.linear(&ours("ffn_down"), &file("output.dense"), (h, i), true);
    t.norm(&ours("ffn_norm"), &file("output.LayerNorm"), h, true);
}

/// The rows of BERT's masked language model: transform and decoder, which shares the word embedding where the file has
/// no matrix of its own.
pub(super) fn masked_lm(t: &mut TensorTable, s: &ModelSpec) {
    let (h, width, vocab) = (s.hidden_size, s.embedding.width, s.embedding.vocab_size);
    t.bare_linear("head.dense", "cls.predictions.transform.dense", (width, h), true);
    t.bare_norm("head.norm", "cls.predictions.transform.LayerNorm", width, true);
    tied_decoder(t, s, "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight");
    // Both names mean one bias; where a checkpoint has two, the decoder's own is computed with.
    t.add("head.out.bias", "cls.predictions.decoder.bias", &[vocab]).bare().or_bare("cls.predictions.bias");
    t.ignore(&["cls.predictions.bias", "cls.seq_relationship.*"]);
}

/// A decoder [vocab, width]: the tensor `own` where the file has it, else the word embedding `tied` of the body.
pub(super) fn tied_decoder(t: &mut TensorTable, s: &ModelSpec, own: &str, tied: &str) {
    let shape = [s.embedding.vocab_size, s.embedding.width];
    t.add("head.out.weight", own, &shape).bare().or(tied);
}
