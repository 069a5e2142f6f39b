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
//! models were trained.

mod config;
mod names;
mod rope;

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
}

const PRE: &[(&str, &str)] = &[("attn_norm", "attn_norm"), ("ffn_norm", "ffn_norm")];
const POST: &[(&str, &str)] = &[("attn_norm", "attn_output_norm"), ("ffn_norm", "layer_output_norm")];
const BOTH: &[(&str, &str)] = &[
    ("attn_norm", "attn_norm"),
    ("attn_out_norm", "post_attention_norm"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_out_norm", "post_ffw_norm"),
];

const fn family(architecture: &'static str, model_type: &'static str, class: &'static str) -> Family {
    Family { architecture, model_type, class, blocks: "blk.", norms: PRE }
}

static FAMILIES: [Family; 13] = [
    family("llama", "llama", "LlamaForCausalLM"),
    family("qwen2", "qwen2", "Qwen2ForCausalLM"),
    family("qwen3", "qwen3", "Qwen3ForCausalLM"),
    family("gemma", "gemma", "GemmaForCausalLM"),
    Family { norms: BOTH, ..family("gemma2", "gemma2", "Gemma2ForCausalLM") },
    Family { norms: BOTH, ..family("gemma3", "gemma3_text", "Gemma3ForCausalLM") },
    family("phi2", "phi", "PhiForCausalLM"),
    family("phi3", "phi3", "Phi3ForCausalLM"),
    family("gpt2", "gpt2", "GPT2LMHeadModel"),
    Family { norms: POST, ..family("bert", "bert", "BertModel") },
    Family { norms: POST, ..family("nomic-bert", "nomic_bert", "NomicBertModel") },
    Family { blocks: "enc.blk.", ..family("t5encoder", "t5", "T5EncoderModel") },
    Family { blocks: "enc.blk.", ..family("t5", "t5", "T5EncoderModel") },
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
