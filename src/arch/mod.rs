//! The model families, one file each: config keys in, a [`ModelSpec`] and a [`TensorTable`] out. No backend here.

mod albert;
mod bert;
mod deberta;
mod deberta_v2;
mod distilbert;
mod electra;
mod gemma;
mod gpt2;
mod gte;
mod jina;
mod keys;
mod llama;
mod mistral;
mod modernbert;
mod mpnet;
mod nomic;
mod phi;
mod qwen;
mod recognise;
mod relative;
mod roberta;
mod rope;
mod rope_config;
mod spec;
mod t5;
mod table;
mod words;

pub use relative::DistanceMap;
pub use rope::{LongFrequencies, LongerRope, RopeSpec};
pub use spec::{
    AttentionSpec, BucketSpec, ConvolutionSpec, DisentangledSpec, EmbeddingSpec, FeedForwardSpec, HeadSpec, LayerSpec,
    LearnedPositions, ModelSpec, NormPlace, NormSpec, Numbering, QkNorm, ScorePositions,
};
pub use table::{LoadReport, TensorTable, Tensors};

use crate::config::{BertConfig, ModelArchitecture};
use crate::error::Result;
use crate::weights::Checkpoint;

/// Which head a model is loaded with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadChoice {
    /// The sequence classifier, or the next token's scores, where `architectures` names them; else none: token vectors.
    #[default]
    Configured,
    /// The masked language model's, which scores every vocabulary entry for each token.
    MaskedLm,
    /// As `Configured`, but without a decoder's scores of the next token: what makes vectors needs none.
    Vectors,
}

/// The description of a configuration, and the tensors it needs.
///
/// # Errors
/// A configuration that contradicts itself or asks for mathematics this version does not have.
pub fn describe(config: &BertConfig) -> Result<(ModelSpec, TensorTable)> {
    describe_with(config, HeadChoice::Configured)
}

/// As [`describe`], with a given head.
///
/// # Errors
/// As [`describe`]; and a family that has no such head.
pub fn describe_with(config: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
    let family = match config.architecture()? {
        ModelArchitecture::Albert => albert::describe,
        ModelArchitecture::Bert if jina::is_jina(config) => jina::describe,
        ModelArchitecture::Bert => bert::describe,
        ModelArchitecture::Deberta => deberta::describe,
        ModelArchitecture::DebertaV2 => deberta_v2::describe,
        ModelArchitecture::DistilBert => distilbert::describe,
        ModelArchitecture::Electra => electra::describe,
        ModelArchitecture::Gemma => gemma::describe_1,
        ModelArchitecture::Gemma2 => gemma::describe_2,
        ModelArchitecture::Gemma3 => gemma::describe_3,
        ModelArchitecture::Gpt2 => gpt2::describe,
        ModelArchitecture::Gte => gte::describe,
        ModelArchitecture::Llama => llama::describe,
        ModelArchitecture::Mistral => mistral::describe,
        ModelArchitecture::ModernBert => modernbert::describe,
        ModelArchitecture::Mpnet => mpnet::describe,
        ModelArchitecture::NomicBert => nomic::describe,
        ModelArchitecture::Phi => phi::describe,
        ModelArchitecture::Phi3 => phi::describe_3,
        ModelArchitecture::Qwen2 => qwen::describe_2,
        ModelArchitecture::Qwen3 => qwen::describe_3,
        ModelArchitecture::Roberta => roberta::describe,
        ModelArchitecture::T5 => t5::describe,
    };
    family(config, head)
}

/// Gives the keys of a config.json the names this crate uses, and the family's values for those that are absent.
pub(crate) fn normalise(model_type: &str, map: &mut serde_json::Map<String, serde_json::Value>) {
    let Some((_, architecture)) = ModelArchitecture::ALL.iter().find(|(name, _)| *name == model_type) else { return };
    let (aliases, defaults): (&[(&str, &str)], serde_json::Value) = match architecture {
        ModelArchitecture::Albert => (&[], albert::defaults()),
        ModelArchitecture::Bert => (&[], bert::defaults()),
        ModelArchitecture::Deberta | ModelArchitecture::DebertaV2 => (&[], deberta::defaults()),
        ModelArchitecture::DistilBert => (distilbert::ALIASES, distilbert::defaults()),
        ModelArchitecture::Electra => (&[], electra::defaults()),
        ModelArchitecture::Gemma => (gemma::ALIASES, gemma::defaults()),
        ModelArchitecture::Gemma2 => (gemma::ALIASES, gemma::defaults_2()),
        ModelArchitecture::Gemma3 => (gemma::ALIASES, gemma::defaults()),
        ModelArchitecture::Gpt2 => (gpt2::ALIASES, gpt2::defaults()),
        ModelArchitecture::Gte => (&[], gte::defaults()),
        ModelArchitecture::Llama => (llama::ALIASES, llama::defaults()),
        ModelArchitecture::Mistral => (llama::ALIASES, mistral::defaults()),
        ModelArchitecture::ModernBert => (modernbert::ALIASES, modernbert::defaults()),
        ModelArchitecture::Mpnet => (&[], mpnet::defaults()),
        ModelArchitecture::NomicBert => (nomic::ALIASES, nomic::defaults()),
        ModelArchitecture::Phi => (&[], phi::defaults()),
        ModelArchitecture::Phi3 => (llama::ALIASES, phi::defaults_3()),
        ModelArchitecture::Qwen2 | ModelArchitecture::Qwen3 => (llama::ALIASES, qwen::defaults()),
        ModelArchitecture::Roberta => (&[], roberta::defaults()),
        ModelArchitecture::T5 => (t5::ALIASES, t5::defaults()),
    };
    for (theirs, ours) in aliases {
        // The family's own key is the stronger, where both stand.
        if let Some(value) = map.get(*theirs).filter(|v| !v.is_null()).cloned() {
            map.insert((*ours).to_string(), value);
        }
    }
    for (key, value) in defaults.as_object().into_iter().flatten() {
        map.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// Adds to a configuration what only its checkpoint tells.
pub(crate) fn complete(config: &mut BertConfig, checkpoint: &Checkpoint) -> Result<()> {
    match config.architecture()? {
        ModelArchitecture::Bert if jina::is_jina(config) => jina::complete(config, checkpoint),
        ModelArchitecture::Deberta | ModelArchitecture::DebertaV2 => deberta::complete(config, checkpoint),
        ModelArchitecture::NomicBert => nomic::complete(config, checkpoint),
        ModelArchitecture::Gte => gte::complete(config, checkpoint),
        _ => {}
    }
    Ok(())
}
