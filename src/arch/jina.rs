//! JinaBERT (arXiv 2310.19923; jina-embeddings-v2, jina-reranker-v1): BERT with symmetric linear biases and a gated
//! feed-forward block. A second generation (v2-base-code) norms queries and keys, and gates with the other half.

use serde_json::Value;

use super::bert::{embeddings, layers, masked_lm, masked_lm_or, post_norm, tanh_classifier};
use super::keys::unsupported;
use super::{HeadChoice, HeadSpec, ModelSpec, QkNorm, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::{Activation, NormKind};
use crate::weights::Checkpoint;

/// Whether a configuration of `model_type` "bert" is one of these.
pub(super) fn is_jina(c: &BertConfig) -> bool {
    let class = c.architectures.iter().flatten().any(|a| a.starts_with("JinaBert"));
    class || c.extra.contains_key("feed_forward_type")
}

/// What only the checkpoint tells: which generation it is of.
pub(super) fn complete(c: &mut BertConfig, checkpoint: &Checkpoint) {
    let normed = checkpoint.names().any(|n| n.ends_with("attention.self.layer_norm_q.weight"));
    c.extra.insert("use_qk_norm".to_string(), Value::Bool(normed));
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    if c.position_embedding_type != "alibi" {
        return Err(unsupported("position_embedding_type", format!("\"{}\"", c.position_embedding_type), "alibi"));
    }
    let second = c.flag("use_qk_norm", false)?;
    let mut spec = post_norm(c, "bert")?;
    spec.embedding.positions = None;
    spec.attention.positions = ScorePositions::Alibi;
    spec.max_tokens = usize::MAX;
    let kind = c.text("feed_forward_type", "original")?;
    let gate = match kind {
        "geglu" => Some(Activation::GeluErf),
        "reglu" => Some(Activation::Relu),
        "original" => None,
        other => return Err(unsupported("feed_forward_type", format!("\"{other}\""), "original, geglu, reglu")),
    };
    spec.feed_forward.gated = gate.is_some();
    spec.feed_forward.activation = gate.unwrap_or(spec.feed_forward.activation);
    if second {
        spec.attention.qk_norm = Some(QkNorm { kind: NormKind::LayerNorm, eps: c.layer_norm_eps, per_head: false });
    }
    spec.head = masked_lm_or(c, head, tanh_classifier(c)?)?;

    let mut t = TensorTable::new("bert", &["", "bert."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids", "embeddings.token_type_ids"]);
    embeddings(&mut t, &spec);
    let h = spec.hidden_size;
    layers(&mut t, &spec);
    // Attention is BERT's; the block after it has its own names, and norms may.
    t.rows.retain(|r| !["ffn_up", "ffn_down", "ffn_norm"].iter().any(|part| r.internal.contains(part)));
    for l in 0..spec.stored_layers() {
        feed_forward(&mut t, &spec, second, l);
        if second {
            let file = |part: &str| format!("encoder.layer.{l}.{part}");
            t.rows.retain(|r| !r.internal.starts_with(&format!("layer.{l}.attn_norm.")));
            // The attention block keeps BERT's norm, and the layer adds its input and a norm of its own.
            t.norm(&format!("layer.{l}.attn_inner_norm"), &file("attention.output.LayerNorm"), h, true);
            t.norm(&format!("layer.{l}.attn_norm"), &file("layer_norm_1"), h, true);
            t.norm(&format!("layer.{l}.q_norm"), &file("attention.self.layer_norm_q"), h, true);
            t.norm(&format!("layer.{l}.k_norm"), &file("attention.self.layer_norm_k"), h, true);
        }
    }
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.linear("head.dense", "pooler.dense", (h, h), true);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            masked_lm(&mut t, &spec);
            t.ignore(&["pooler.*"]);
        }
        _ => t.ignore(&["pooler.*", "cls.*"]),
    }
    Ok((spec, t))
}

/// The first generation activates the first half of its gated projection, the second generation the second half.
fn feed_forward(t: &mut TensorTable, s: &ModelSpec, second: bool, l: usize) {
    let (h, i) = (s.hidden_size, s.feed_forward.intermediate_size);
    let ours = |part: &str| format!("layer.{l}.{part}");
    let file = |part: &str| format!("encoder.layer.{l}.{part}");
    let (down, norm) = match (second, s.feed_forward.gated) {
        (true, _) => ("mlp.down_layer", "layer_norm_2"),
        (false, true) => ("mlp.wo", "mlp.layernorm"),
        (false, false) => ("output.dense", "output.LayerNorm"),
    };
    if s.feed_forward.gated {
        let (name, gate, up) =
            if second { ("mlp.up_gated_layer", i..2 * i, 0..i) } else { ("mlp.gated_layers", 0..i, i..2 * i) };
        t.part(&ours("ffn_gate"), &file(name), (2 * i, h), gate, false);
        t.part(&ours("ffn_up"), &file(name), (2 * i, h), up, false);
    } else if second {
        t.linear(&ours("ffn_up"), &file("mlp.up_layer"), (i, h), false);
    } else {
        t.linear(&ours("ffn_up"), &file("intermediate.dense"), (i, h), true);
    }
    t.linear(&ours("ffn_down"), &file(down), (h, i), true);
    t.norm(&ours("ffn_norm"), &file(norm), h, true);
}
