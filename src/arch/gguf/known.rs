//! Which keys of the metadata a family may have. What any other key asks for is not known to be computed: it is refused.

use super::config::Keys;
use super::{Family, LAYER, RMS, Rotation};
use crate::error::Result;

/// Keys of every family. The last ones say nothing of the computation: the rows of the embeddings, the names of labels and
/// the way of pooling, which `modules` reads.
const EVERY: [&str; 14] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.causal",
    RMS,
    LAYER,
    "vocab_size",
    "classifier.output_labels",
    "pooling_type",
];

/// Keys of families with rotary positions. `finetuned` says only whether the scaling was trained.
const ROTARY: [&str; 13] = [
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
];

/// Keys of mathematics that no family here has, with the value that asks for none of it.
const NEUTRAL: [(&str, f64); 24] = [
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("attention.shared_kv_layers", 0.0),
    ("attention.sliding_window", 0.0),
    ("attention.temperature_length", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("expert_count", 0.0),
    ("expert_feed_forward_length", 0.0),
    ("expert_group_count", 0.0),
    ("expert_group_used_count", 0.0),
    ("expert_shared_count", 0.0),
    ("expert_used_count", 0.0),
    ("final_logit_softcapping", 0.0),
    ("full_attention_interval", 0.0),
    ("interleave_moe_layer_step", 0.0),
    ("leading_dense_block_count", 0.0),
    ("moe_every_n_layers", 0.0),
    ("nextn_predict_layers", 0.0),
    ("rope.scaling.alpha", 0.0),
    ("attention.output_scale", 1.0),
    ("embedding_scale", 1.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
];

/// The key that says how rows of query and key projections lie, and how the converter lays out LLaMA's.
const LAYOUT: (&str, &str) = ("tensor_data_layout", "Meta AI original pth");

/// Refuses every key of the family's that is not known to be used or to change nothing.
pub(super) fn check(keys: &Keys, family: &Family) -> Result<()> {
    let prefix = keys.name("");
    for name in keys.file.keys() {
        let Some(key) = name.strip_prefix(&prefix) else { continue };
        let is_key = |known: &&str| match known.strip_suffix('*') {
            Some(stem) => key.starts_with(stem),
            None => key == *known,
        };
        let rotary = if family.rotation == Rotation::None { &[][..] } else { &ROTARY };
        if EVERY.iter().chain(rotary).chain(family.own_keys).any(is_key) {
            continue;
        }
        if key == LAYOUT.0 {
            let expected = if family.architecture == "llama" { LAYOUT.1 } else { "reference" };
            if keys.file.text(name)? != Some(expected) {
                return Err(keys.file.wrong(name, &format!("none, or \"{expected}\"")));
            }
            continue;
        }
        match NEUTRAL.iter().find(|(known, _)| *known == key) {
            Some((_, value)) => keys.refuse(key, *value)?,
            None => return Err(keys.file.wrong(name, "none: nothing is known of what it changes")),
        }
    }
    Ok(())
}
