//! RoBERTa (arXiv 1907.11692), XLM-RoBERTa (1911.02116) and CamemBERT (1911.03894): BERT's layers, positions counted
//! after the padding id, and a head of their own.

use serde_json::{Value, json};

use super::bert::{embeddings, layers, masked_lm_or, post_norm, tanh_classifier, tied_decoder};
use super::keys::unsupported;
use super::{HeadChoice, HeadSpec, LearnedPositions, ModelSpec, Numbering, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;
use crate::gpu::Activation;

pub(super) fn defaults() -> Value {
    json!({"layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_act": "gelu", "max_position_embeddings": 512})
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = post_norm(c, "roberta")?;
    if c.position_embedding_type != "absolute" {
        return Err(unsupported("position_embedding_type", format!("\"{}\"", c.position_embedding_type), "absolute"));
    }
    number_after_padding(&mut spec, c.size("pad_token_id", 1)?)?;
    // The head's function is GELU whatever `hidden_act` says.
    spec.head = match masked_lm_or(c, head, tanh_classifier(c)?)? {
        HeadSpec::MaskedLm { .. } => HeadSpec::MaskedLm { activation: Activation::GeluErf },
        other => other,
    };
    let mut t = TensorTable::new("roberta", &["", "roberta."], "embeddings.word_embeddings.weight");
    t.ignore(&["embeddings.position_ids", "embeddings.token_type_ids", "pooler.*"]);
    embeddings(&mut t, &spec);
    layers(&mut t, &spec);
    head_rows(&mut t, &spec);
    Ok((spec, t))
}

/// Positions from `pad` + 1 on: the rows up to it are no token's own.
pub(super) fn number_after_padding(spec: &mut ModelSpec, pad: usize) -> Result<()> {
    let rows = spec.trained_tokens;
    let id = u32::try_from(pad).ok().filter(|_| pad + 1 < rows);
    let Some(id) = id else {
        return Err(unsupported("pad_token_id", pad, &format!("below max_position_embeddings - 1, {}", rows - 1)));
    };
    spec.embedding.positions = Some(LearnedPositions { rows, numbering: Numbering::AfterPadding(id) });
    spec.max_tokens = rows - pad - 1;
    spec.trained_tokens = spec.max_tokens;
    Ok(())
}

/// RobertaClassificationHead or RobertaLMHead, whichever the spec has; the other is ignored.
pub(super) fn head_rows(t: &mut TensorTable, spec: &ModelSpec) {
    let (h, vocab) = (spec.hidden_size, spec.embedding.vocab_size);
    match spec.head {
        HeadSpec::Classifier { labels, .. } => {
            t.bare_linear("head.dense", "classifier.dense", (h, h), true);
            t.bare_linear("head.out", "classifier.out_proj", (labels, h), true);
        }
        HeadSpec::MaskedLm { .. } => {
            t.bare_linear("head.dense", "lm_head.dense", (h, h), true);
            t.bare_norm("head.norm", "lm_head.layer_norm", h, true);
            tied_decoder(t, spec, "lm_head.decoder.weight", "embeddings.word_embeddings.weight");
            t.add("head.out.bias", "lm_head.decoder.bias", &[vocab]).bare().or_bare("lm_head.bias");
            t.ignore(&["lm_head.bias"]);
        }
        _ => {}
    }
    if !matches!(spec.head, HeadSpec::MaskedLm { .. }) {
        t.ignore(&["lm_head.*"]);
    }
}
