//! DeBERTa (arXiv 2006.03654): scores between contents and relative positions, fused projections head by head.

use serde_json::{Value, json};

use super::bert::{after_attention, embeddings, masked_lm, post_norm};
use super::edit::Edit;
use super::keys::{MOST_DISTANCES, activation, positive, root_scale, unsupported};
use super::{DisentangledSpec, HeadChoice, HeadSpec, ModelSpec, ScorePositions, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::PoolingMode;
use crate::weights::Checkpoint;

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-7, "type_vocab_size": 0, "hidden_act": "gelu", "max_position_embeddings": 512})
}

/// Which terms `pos_att_type` lists, and how many entries it has.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub content_to_position: bool,
    pub position_to_content: bool,
    pub listed: usize,
}

impl Terms {
    /// From a list, or a text with `|` between entries.
    pub fn read(c: &BertConfig) -> Result<Self> {
        let key = "pos_att_type";
        let wrong = |found: &Value| unsupported(key, found, "a list of c2p and p2c");
        let entries: Vec<String> = match c.extra.get(key) {
            None => Vec::new(),
            Some(Value::String(text)) => text.to_lowercase().split('|').map(|e| e.trim().to_string()).collect(),
            Some(Value::Array(list)) => {
                list.iter().map(|e| e.as_str().map(str::to_string).ok_or_else(|| wrong(e))).collect::<Result<_>>()?
            }
            Some(other) => return Err(wrong(other)),
        };
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        if let Some(other) = entries.iter().find(|e| !["c2p", "p2c", ""].contains(e)) {
            return Err(unsupported(key, format!("\"{other}\""), "c2p, p2c"));
        }
        Ok(Self {
            content_to_position: entries.contains(&"c2p"),
            position_to_content: entries.contains(&"p2c"),
            listed: entries.len(),
        })
    }
}

/// What both versions share: embeddings, the head, the limits. Scores are set by the caller.
pub(super) fn body(c: &BertConfig, head: HeadChoice, family: &'static str) -> Result<ModelSpec> {
    let mut spec = post_norm(c, family)?;
    spec.embedding.width = positive("embedding_size", c.size("embedding_size", spec.hidden_size)?)?;
    spec.embedding.norm_projected = true;
    if !c.flag("position_biased_input", true)? {
        spec.embedding.positions = None;
        spec.max_tokens = usize::MAX;
    }
    spec.head = match (head, c.classifier_labels()?) {
        (HeadChoice::MaskedLm, _) => HeadSpec::MaskedLm { activation: c.activation()? },
        (_, None) => HeadSpec::None,
        (_, Some(labels)) => {
            let pooled = c.size("pooler_hidden_size", spec.hidden_size)?;
            if pooled != spec.hidden_size {
                return Err(unsupported("pooler_hidden_size", pooled, &format!("hidden_size, {}", spec.hidden_size)));
            }
            let activation = activation("pooler_hidden_act", c.text("pooler_hidden_act", "gelu")?)?;
            HeadSpec::Classifier { labels, pooling: PoolingMode::Cls, activation, norm: false }
        }
    };
    Ok(spec)
}

/// What only the checkpoint tells: which of two layouts the masked language model's head has. A key `legacy` exists,
/// and its default belongs to the library that reads it.
pub(super) fn complete(c: &mut BertConfig, checkpoint: &Checkpoint) {
    let new = checkpoint.names().any(|n| n == "lm_predictions.lm_head.dense.weight");
    c.extra.insert("legacy".to_string(), Value::Bool(!new));
}

/// `max_relative_positions`, which falls back on `max_position_embeddings`.
pub(super) fn max_relative_positions(c: &BertConfig) -> Result<usize> {
    let key = "max_relative_positions";
    let (key, distances) = match c.integer(key, -1)? {
        n if n < 1 => ("max_position_embeddings", c.max_position_embeddings),
        n => (key, n as usize),
    };
    match distances > MOST_DISTANCES {
        true => Err(unsupported(key, distances, &format!("at most {MOST_DISTANCES}"))),
        false => Ok(distances),
    }
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    c.refuse("talking_head", true, "false")?;
    let mut spec = body(c, head, "deberta")?;
    let terms = Terms::read(c)?;
    spec.attention.scale = root_scale(spec.attention.head_dim, 1 + terms.listed);
    if c.flag("relative_attention", false)? {
        spec.attention.positions = ScorePositions::Disentangled(DisentangledSpec {
            span: max_relative_positions(c)?,
            log_buckets_to: None,
            content_to_position: terms.content_to_position,
            position_to_content: terms.position_to_content,
            shared_projections: false,
            normed: false,
        });
    }
    let mut t = TensorTable::new("deberta", &["", "deberta."], "embeddings.word_embeddings.weight");
    body_rows(&mut t, &spec, c.flag("legacy", true)?);
    let (h, heads) = (spec.hidden_size, spec.attention.heads);
    for l in 0..spec.stored_layers() {
        let file = |part: &str| format!("encoder.layer.{l}.attention.self.{part}");
        for (part, name) in ["q", "k", "v"].into_iter().enumerate() {
            let edit = Edit::PartOfHeads { heads, part, of: 3 };
            t.add(format!("layer.{l}.{name}.weight"), file("in_proj.weight"), &[3 * h, h]).edit(edit);
        }
        t.add(format!("layer.{l}.q.bias"), file("q_bias"), &[h]);
        t.add(format!("layer.{l}.v.bias"), file("v_bias"), &[h]);
        if let ScorePositions::Disentangled(d) = spec.attention.positions {
            if d.content_to_position {
                t.linear(&format!("layer.{l}.position_key"), &file("pos_proj"), (h, h), false);
            }
            if d.position_to_content {
                t.linear(&format!("layer.{l}.position_query"), &file("pos_q_proj"), (h, h), true);
            }
        }
        after_attention(&mut t, &spec, l);
    }
    Ok((spec, t))
}

/// The rows outside the layers.
pub(super) fn body_rows(t: &mut TensorTable, spec: &ModelSpec, legacy: bool) {
    let h = spec.hidden_size;
    t.ignore(&["embeddings.position_ids"]);
    if spec.embedding.positions.is_none() {
        t.ignore(&["embeddings.position_embeddings.weight"]);
    }
    embeddings(t, spec);
    if spec.embedding.width != h {
        t.linear("embedding.projection", "embeddings.embed_proj", (h, spec.embedding.width), false);
    }
    if let ScorePositions::Disentangled(d) = spec.attention.positions {
        t.add("relative", "encoder.rel_embeddings.weight", &[2 * d.span, h]);
        if d.normed {
            t.norm("relative_norm", "encoder.LayerNorm", h, true);
        }
    }
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.bare_linear("head.dense", "pooler.dense", (h, h), true);
            t.bare_linear("head.out", "classifier", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } if legacy => masked_lm(t, spec),
        HeadSpec::MaskedLm { .. } => {
            let name = "lm_predictions.lm_head";
            t.bare_linear("head.dense", &format!("{name}.dense"), (h, h), true);
            t.bare_norm("head.norm", &format!("{name}.LayerNorm"), h, true);
            t.add("head.out.weight", "embeddings.word_embeddings.weight", &[spec.embedding.vocab_size, h]);
            t.add("head.out.bias", format!("{name}.bias"), &[spec.embedding.vocab_size]).bare();
            t.ignore(&["pooler.*", "cls.*", "mask_predictions.*"]);
        }
        _ => t.ignore(&["pooler.*"]),
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        // Both layouts of the masked language model's head, and the replaced-token detector of version 3.
        t.ignore(&["cls.*", "lm_predictions.*", "mask_predictions.*"]);
    }
}
