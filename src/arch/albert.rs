//! ALBERT (arXiv 1909.11942): narrow embeddings projected up, and few stored layers that run many times.

use serde_json::{Value, json};

use super::bert::{embeddings, masked_lm_or, post_norm, tanh_classifier, tied_decoder};
use super::keys::{MOST_LAYERS, positive, unsupported};
use super::{HeadChoice, HeadSpec, LayerSpec, ModelSpec, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;

pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "gelu_new", "max_position_embeddings": 512,
        "embedding_size": 128
    })
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = post_norm(c, "albert")?;
    if c.position_embedding_type != "absolute" {
        return Err(unsupported("position_embedding_type", format!("\"{}\"", c.position_embedding_type), "absolute"));
    }
    spec.embedding.width = positive("embedding_size", c.size("embedding_size", 128)?)?;
    let layers = c.layers()?;
    let groups = positive("num_hidden_groups", c.size("num_hidden_groups", 1)?)?;
    let inner = positive("inner_group_num", c.size("inner_group_num", 1)?)?;
    if groups > layers || layers.checked_mul(inner).is_none_or(|n| n > MOST_LAYERS) {
        let expected = format!("at most num_hidden_layers, {layers}, and a sensible inner_group_num, not {inner}");
        return Err(unsupported("num_hidden_groups", groups, &expected));
    }
    // Layer l runs group floor(l / (layers / groups)), in binary64 as the reference has it.
    let group = |l: usize| (l as f64 / (layers as f64 / groups as f64)) as usize;
    let runs = (0..layers).flat_map(|l| (0..inner).map(move |i| group(l) * inner + i));
    spec.layers = runs.map(|weights| LayerSpec { weights, window: None, rope: 0, scale: None }).collect();
    spec.head = masked_lm_or(c, head, tanh_classifier(c)?)?;

    let mut t = TensorTable::new("albert", &["", "albert."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids", "embeddings.token_type_ids", "sop_classifier.*"]);
    let (h, width) = (spec.hidden_size, spec.embedding.width);
    embeddings(&mut t, &spec);
    t.linear("embedding.projection", "encoder.embedding_hidden_mapping_in", (h, width), true);
    for weights in 0..spec.stored_layers() {
        layer(&mut t, &spec, weights, weights / inner, weights % inner);
    }
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.linear("head.dense", "pooler", (h, h), true);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            t.bare_linear("head.dense", "predictions.dense", (width, h), true);
            t.bare_norm("head.norm", "predictions.LayerNorm", width, true);
            tied_decoder(&mut t, &spec, "predictions.decoder.weight", "embeddings.word_embeddings.weight");
            let bias = t.add("head.out.bias", "predictions.decoder.bias", &[spec.embedding.vocab_size]);
            bias.bare().or_bare("predictions.bias");
            t.ignore(&["predictions.bias"]);
        }
        _ => {}
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        t.ignore(&["predictions.*"]);
    }
    t.ignore(if matches!(spec.head, HeadSpec::Classifier { .. }) { &[] } else { &["pooler.*"] });
    Ok((spec, t))
}

/// Stored layer `l`: inner layer `inner` of group `group`.
fn layer(t: &mut TensorTable, s: &ModelSpec, l: usize, group: usize, inner: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("encoder.albert_layer_groups.{group}.albert_layers.{inner}.{part}");
    for (part, name) in [("q", "query"), ("k", "key"), ("v", "value"), ("attn_out", "dense")] {
        t.linear(&ours(part), &file(&format!("attention.{name}")), (h, h), true);
    }
    t.norm(&ours("attn_norm"), &file("attention.LayerNorm"), h, true);
    t.linear(&ours("ffn_up"), &file("ffn"), (i, h), true);
    t.linear(&ours("ffn_down"), &file("ffn_output"), (h, i), true);
    t.norm(&ours("ffn_norm"), &file("full_layer_layer_norm"), h, true);
}
