//! ELECTRA (arXiv 2003.10555): BERT's layers over embeddings that may be narrower, projected up after their norm.

use serde_json::{Value, json};

use super::bert::{embeddings, layers, post_norm, tied_decoder};
use super::keys::{positive, unsupported};
use super::{HeadChoice, HeadSpec, ModelSpec, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{Activation, PoolingMode};

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "gelu", "max_position_embeddings": 512,
        "embedding_size": 128
    })
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = post_norm(c, "electra")?;
    if c.position_embedding_type != "absolute" {
        return Err(unsupported("position_embedding_type", format!("\"{}\"", c.position_embedding_type), "absolute"));
    }
    let (h, width) = (spec.hidden_size, positive("embedding_size", c.size("embedding_size", 128)?)?);
    spec.embedding.width = width;
    // Both heads use GELU whatever `hidden_act` says.
    spec.head = match (head, c.classifier_labels()?) {
        (HeadChoice::MaskedLm, _) => HeadSpec::MaskedLm { activation: Activation::GeluErf },
        (_, None) => HeadSpec::None,
        (_, Some(labels)) => {
            HeadSpec::Classifier { labels, pooling: PoolingMode::Cls, activation: Activation::GeluErf, norm: false }
        }
    };
    let mut t = TensorTable::new("electra", &["", "electra."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids", "embeddings.token_type_ids", "discriminator_predictions.*"]);
    embeddings(&mut t, &spec);
    if width != h {
        t.linear("embedding.projection", "embeddings_project", (h, width), true);
    }
    layers(&mut t, &spec);
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.bare_linear("head.dense", "classifier.dense", (h, h), true);
            t.bare_linear("head.out", "classifier.out_proj", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            t.bare_linear("head.dense", "generator_predictions.dense", (width, h), true);
            t.bare_norm("head.norm", "generator_predictions.LayerNorm", width, true);
            tied_decoder(&mut t, &spec, "generator_lm_head.weight", "embeddings.word_embeddings.weight");
            t.add("head.out.bias", "generator_lm_head.bias", &[spec.embedding.vocab_size]).bare();
        }
        _ => {}
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        t.ignore(&["generator_predictions.*", "generator_lm_head.*"]);
    }
    Ok((spec, t))
}
