//! DistilBERT (arXiv 1910.01108): BERT's layers under other names, no token types.

use serde_json::{Value, json};

use super::bert::{masked_lm_or, post_norm, tied_decoder};
use super::{HeadChoice, HeadSpec, ModelSpec, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{Activation, PoolingMode};

pub(super) const ALIASES: &[(&str, &str)] = &[
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "hidden_act"),
];

pub(super) fn defaults() -> Value {
    // The reference fixes the norms' eps; no key sets it.
    json!({"layer_norm_eps": 1e-12, "type_vocab_size": 0, "hidden_act": "gelu", "max_position_embeddings": 512})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = post_norm(c, "distilbert")?;
    spec.embedding.token_types = 0;
    spec.norm.eps = 1e-12;
    let classifier = match c.classifier_labels()? {
        None => HeadSpec::None,
        Some(labels) => {
            HeadSpec::Classifier { labels, pooling: PoolingMode::Cls, activation: Activation::Relu, norm: false }
        }
    };
    spec.head = masked_lm_or(c, head, classifier)?;
    let mut t = TensorTable::new("distilbert", &["", "distilbert."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids"]);
    super::bert::embeddings(&mut t, &spec);
    let (h, i, vocab) = (spec.hidden_size, spec.feed_forward.intermediate_size, spec.embedding.vocab_size);
    for l in 0..spec.stored_layers() {
        let ours = |part: &str| format!("layer.{l}.{part}");
        let file = |part: &str| format!("transformer.layer.{l}.{part}");
        for (part, name) in [("q", "q_lin"), ("k", "k_lin"), ("v", "v_lin"), ("attn_out", "out_lin")] {
            t.linear(&ours(part), &file(&format!("attention.{name}")), (h, h), true);
        }
        t.norm(&ours("attn_norm"), &file("sa_layer_norm"), h, true);
        t.linear(&ours("ffn_up"), &file("ffn.lin1"), (i, h), true);
        t.linear(&ours("ffn_down"), &file("ffn.lin2"), (h, i), true);
        t.norm(&ours("ffn_norm"), &file("output_layer_norm"), h, true);
    }
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.bare_linear("head.dense", "pre_classifier", (h, h), true);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            t.bare_linear("head.dense", "vocab_transform", (h, h), true);
            t.bare_norm("head.norm", "vocab_layer_norm", h, true);
            tied_decoder(&mut t, &spec, "vocab_projector.weight", "embeddings.word_embeddings.weight");
            t.add("head.out.bias", "vocab_projector.bias", &[vocab]).bare();
        }
        _ => {}
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        t.ignore(&["vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"]);
    }
    Ok((spec, t))
}
