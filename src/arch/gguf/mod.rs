//! Models in GGUF files: their metadata as a configuration, and their tensors under the names of the tables.
//!
//! The files are made by llama.cpp's converter, which renames tensors and changes some of them:
//!
//! - `llama`: the rows of query and key projections are permuted, head by head, for rotations of neighbouring features;
//!   the permutation is undone, so that a file gives the bits of the checkpoint it was made of;
//! - `gemma`, `gemma2`, `gemma3`: norms hold 1 + weight;
//! - `gpt2`: projections are [out, in];
//! - positions of RoBERTa and its likes begin at row 0, and the model is a `bert`;
//! - factors of rotary frequencies are tensors.
//!
//! Keys that a file lacks have the values that llama.cpp gives them, except that `bert` has the erf form of GELU, as the
//! models were trained. Keys that no family reads are refused, for they may change the mathematics.

mod config;
mod decoders;
mod known;
mod names;
mod rope;

use std::path::Path;

pub(crate) use config::config;
pub(super) use names::renamed;

use crate::error::{InferError, Result};
use crate::weights::GgufFile;

/// What tells one architecture from another.
struct Family {
    /// `general.architecture`.
    architecture: &'static str,
    /// The family of this crate.
    model_type: &'static str,
    /// The class of transformers.
    class: &'static str,
    /// What stands before the names of layers.
    blocks: &'static str,
    /// Names of the norms of a layer, by the table's.
    norms: &'static [(&'static str, &'static str)],
    /// Which key has the norms' epsilon.
    eps: &'static str,
    rotation: Rotation,
    /// Tensors that factors of rotary frequencies may stand in.
    factors: &'static [&'static str],
    /// Keys that not every family has.
    own_keys: &'static [&'static str],
}

/// Which features of a head are rotated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rotation {
    None,
    Whole,
    /// As many as `rope.dimension_count` says.
    Part,
}

const PRE: &[(&str, &str)] = &[("attn_norm", "attn_norm"), ("ffn_norm", "ffn_norm")];
const POST: &[(&str, &str)] = &[("attn_norm", "attn_output_norm"), ("ffn_norm", "layer_output_norm")];
const BOTH: &[(&str, &str)] = &[
    ("attn_norm", "attn_norm"),
    ("attn_out_norm", "post_attention_norm"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_out_norm", "post_ffw_norm"),
];

const RMS: &str = "attention.layer_norm_rms_epsilon";
const LAYER: &str = "attention.layer_norm_epsilon";

/// A decoder with rotary positions and RMSNorm before its blocks.
const fn decoder(architecture: &'static str, model_type: &'static str, class: &'static str) -> Family {
    Family {
        architecture,
        model_type,
        class,
        blocks: "blk.",
        norms: PRE,
        eps: RMS,
        rotation: Rotation::Whole,
        factors: &[],
        own_keys: &[],
    }
}

/// A model with LayerNorm and without rotary positions.
const fn plain(architecture: &'static str, model_type: &'static str, class: &'static str) -> Family {
    Family { eps: LAYER, rotation: Rotation::None, ..decoder(architecture, model_type, class) }
}

/// The encoder of T5.
const fn t5(architecture: &'static str) -> Family {
    Family {
        blocks: "enc.blk.",
        eps: RMS,
        own_keys: &["attention.relative_buckets_count", "decoder_block_count", "decoder_start_token_id"],
        ..plain(architecture, "t5", "T5EncoderModel")
    }
}

static FAMILIES: [Family; 13] = [
    Family {
        factors: &rope::FACTORS,
        own_keys: &["attention.sliding_window"],
        ..decoder("llama", "llama", "LlamaForCausalLM")
    },
    decoder("qwen2", "qwen2", "Qwen2ForCausalLM"),
    decoder("qwen3", "qwen3", "Qwen3ForCausalLM"),
    decoder("gemma", "gemma", "GemmaForCausalLM"),
    Family {
        norms: BOTH,
        own_keys: &[
            "attention.scale",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ],
        ..decoder("gemma2", "gemma2", "Gemma2ForCausalLM")
    },
    Family {
        norms: BOTH,
        // The last two are the image encoder's, which is in a file of its own.
        own_keys: &[
            "attention.scale",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "final_logit_softcapping",
            "rope.freq_base_swa",
            "mm.tokens_per_image",
            "vision.*",
        ],
        ..decoder("gemma3", "gemma3_text", "Gemma3ForCausalLM")
    },
    Family { eps: LAYER, rotation: Rotation::Part, ..decoder("phi2", "phi", "PhiForCausalLM") },
    Family {
        rotation: Rotation::Part,
        factors: &[rope::SHORT, rope::LONG],
        own_keys: &["attention.sliding_window"],
        ..decoder("phi3", "phi3", "Phi3ForCausalLM")
    },
    plain("gpt2", "gpt2", "GPT2LMHeadModel"),
    Family { norms: POST, ..plain("bert", "bert", "BertModel") },
    Family { norms: POST, rotation: Rotation::Whole, ..plain("nomic-bert", "nomic_bert", "NomicBertModel") },
    t5("t5encoder"),
    t5("t5"),
];

/// The family of a file.
fn family_of(file: &GgufFile) -> Result<&'static Family> {
    let architecture = file.architecture()?;
    FAMILIES.iter().find(|family| family.architecture == architecture).ok_or_else(|| {
        let known: Vec<_> = FAMILIES.iter().map(|family| family.architecture).collect();
        let detail = format!("`general.architecture` is \"{architecture}\", supported: {}", known.join(", "));
        InferError::model(file.path(), detail)
    })
}

/// Keys of a configuration, with those of the metadata that they come from.
const SOURCES: [(&str, &str); 19] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("d_kv", "attention.key_length"),
    ("intermediate_size", "feed_forward_length"),
    ("n_inner", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rotary_emb_base", "rope.freq_base"),
    ("partial_rotary_factor", "rope.dimension_count"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("sliding_window", "attention.sliding_window"),
    ("layer_types", "attention.sliding_window_pattern"),
    ("query_pre_attn_scalar", "attention.scale"),
    ("relative_attention_num_buckets", "attention.relative_buckets_count"),
];

/// An error about a configuration that was read from the GGUF file that `model` stands for, by the key of its metadata;
/// any other error as it is.
pub(crate) fn by_source(error: InferError, model: &Path) -> InferError {
    let Ok(Some(path)) = GgufFile::find(model) else { return error };
    let (InferError::ModelIncompatible { key, expected, found }, Ok(file)) = (&error, GgufFile::open(&path)) else {
        return error;
    };
    let architecture = file.architecture().unwrap_or_default();
    let of_file = |key: &str| format!("{architecture}.{key}");
    let source = match key.as_str() {
        "model_type" | "architectures" => "general.architecture".to_string(),
        key => match SOURCES.iter().find(|(ours, _)| *ours == key) {
            Some((_, source)) => of_file(source),
            None => of_file(&key.replace("rope_scaling", "rope.scaling")),
        },
    };
    InferError::model(path, format!("the metadata key `{source}` is {found}, expected {expected}"))
}
