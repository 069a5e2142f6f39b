//! Whose tensors a checkpoint holds, by their names: what the message for a wrong `model_type` says.

use crate::weights::Checkpoint;

/// Parts of names that only one family's checkpoints have, the most particular first.
const MARKS: &[(&str, &str)] = &[
    ("albert_layer_groups.", "albert"),
    ("attention.self.in_proj.weight", "deberta"),
    ("attention.self.query_proj.weight", "deberta-v2"),
    ("SelfAttention.q.weight", "t5"),
    ("attention.q_lin.weight", "distilbert"),
    ("attention.attn.q.weight", "mpnet"),
    ("mlp.Wi.weight", "modernbert"),
    ("mlp.fc11.weight", "nomic_bert"),
    ("post_mlp_layernorm.weight", "nomic_bert"),
    ("mlp.up_gate_proj.weight", "new"),
    ("attn.c_attn.weight", "gpt2"),
    ("self_attn.qkv_proj.weight", "phi3"),
    ("self_attn.dense.weight", "phi"),
    ("roberta.encoder.layer.0.attention", "roberta"),
    ("electra.encoder.layer.0.attention", "electra"),
    ("attention.self.query.weight", "bert"),
    ("self_attn.q_proj.weight", "llama"),
];

/// The family whose names these are, if one is recognised.
pub(super) fn family_of(checkpoint: &Checkpoint) -> Option<&'static str> {
    let holds = |mark: &str| checkpoint.names().any(|name| name.contains(mark));
    MARKS.iter().find(|(mark, _)| holds(mark)).map(|(_, family)| *family)
}

/// Whether the names of a checkpoint recognised as `found` may be those of `family`: the names of some are the same.
pub(super) fn alike(found: &str, family: &str) -> bool {
    let same: &[&str] = match found {
        "bert" => &["roberta", "electra"],
        "nomic_bert" => &["new"],
        "llama" => &["gemma", "gemma2", "gemma3_text", "mistral", "qwen2", "qwen3"],
        _ => &[],
    };
    found == family || same.contains(&family)
}
