//! Mistral (arXiv 2310.06825): LLaMA whose layers see a window of tokens back.

use serde_json::{Value, json};

use super::keys::unsupported;
use super::llama::{attention_rows, decoder, gated_rows, head_rows, norm_rows, table};
use super::{HeadChoice, ModelSpec, TensorTable};
use crate::config::BertConfig;
use crate::error::Result;

/// An absent window is of 4096 tokens, a null none.
pub(super) fn defaults() -> Value {
    json!({
        "layer_norm_eps": 1e-6, "type_vocab_size": 0, "hidden_act": "silu", "max_position_embeddings": 131072, "sliding_window": 4096
    })
}

pub(super) fn describe(c: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let mut spec = decoder(c, head, "mistral")?;
    let window = back(c)?;
    spec.layers.iter_mut().for_each(|l| l.window = window);
    let mut t = table(&spec, "mistral");
    for l in 0..spec.stored_layers() {
        attention_rows(&mut t, &spec, l, false, false);
        norm_rows(&mut t, &spec, l);
        gated_rows(&mut t, &spec, l, false);
    }
    head_rows(&mut t, c, &spec, false)?;
    Ok((spec, t))
}

/// `sliding_window` counts the token itself: how many others it sees before it.
pub(super) fn back(c: &BertConfig) -> Result<Option<u32>> {
    match c.size("sliding_window", usize::MAX)? {
        usize::MAX => Ok(None),
        0 => Err(unsupported("sliding_window", 0, "at least 1, or null")),
        _ if !c.flag("is_causal", true)? => {
            Err(unsupported("is_causal", false, "true where sliding_window is a number"))
        }
        n => Ok(Some(u32::try_from(n - 1).unwrap_or(u32::MAX))),
    }
}
