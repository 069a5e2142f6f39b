//! The model families, one file each: config keys in, a [`ModelSpec`] and a [`TensorTable`] out. No backend here.

mod albert;
mod bert;
mod deberta;
mod deberta_v2;
mod distilbert;
mod edit;
mod electra;
mod gemma;
pub(crate) mod gguf;
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

pub use edit::Role;
pub use relative::DistanceMap;
pub use rope::{LongFrequencies, LongerRope, RopeSpec};
pub use spec::{
    AttentionSpec, BucketSpec, ConvolutionSpec, DisentangledSpec, EmbeddingSpec, FeedForwardSpec, HeadSpec, LayerSpec,
    LearnedPositions, ModelSpec, NormPlace, NormSpec, Numbering, QkNorm, ScorePositions,
};
pub use table::{LoadReport, TensorTable, Tensors};

use serde_json::{Map, Value};

use crate::config::{BertConfig, ModelArchitecture};
use crate::error::{InferError, Result};
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
    described(config, head).map_err(|error| match error {
        InferError::ModelIncompatible { key, expected, found } => {
            let key = name_in_file(&config.model_type, &key, &config.extra).to_string();
            InferError::ModelIncompatible { key, expected, found }
        }
        other => other,
    })
}

fn described(config: &BertConfig, head: HeadChoice) -> Result<(ModelSpec, TensorTable)> {
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
    config.check()?;
    let (spec, mut table) = family(config, head)?;
    if matches!(spec.head, HeadSpec::MaskedLm { .. }) && !config.flag("tie_word_embeddings", true)? {
        table.untie("head.out.weight");
    }
    let written = |(name, _): &&(&'static str, _)| *name == config.model_type;
    table.model_type = ModelArchitecture::ALL.iter().find(written).map_or(table.family, |(name, _)| name);
    Ok((spec, table))
}

/// The names a family has for this crate's keys, and its values for those that are absent.
fn own_keys(model_type: &str) -> Option<(&'static [(&'static str, &'static str)], Value)> {
    let (_, architecture) = ModelArchitecture::ALL.iter().find(|(name, _)| *name == model_type)?;
    Some(match architecture {
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
    })
}

/// A family's own name of a key, where it has one.
pub(crate) fn own_name(model_type: &str, key: &str) -> Option<&'static str> {
    let (aliases, _) = own_keys(model_type)?;
    aliases.iter().find(|(_, ours)| *ours == key).map(|(theirs, _)| *theirs)
}

/// The name of a key in a configuration that may have the family's own.
pub(crate) fn name_in_file<'a>(model_type: &str, key: &'a str, map: &Map<String, Value>) -> &'a str {
    own_name(model_type, key).filter(|theirs| map.contains_key(*theirs)).unwrap_or(key)
}

/// Gives the keys of a config.json the names this crate uses, and the family's values for those that are absent.
pub(crate) fn normalise(model_type: &str, map: &mut Map<String, Value>) {
    let Some((aliases, defaults)) = own_keys(model_type) else { return };
    for (theirs, ours) in aliases {
        // The family's own key is the stronger, where both stand.
        if let Some(value) = map.get(*theirs).filter(|v| !v.is_null()).cloned() {
            map.insert((*ours).to_string(), value);
        }
    }
    if model_type == "modernbert" {
        modernbert::local_base(map);
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
