//! A tokenizer.json, and what tokenizer_config.json overrides in it.

use std::panic::catch_unwind;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::{NormalizerWrapper, PostProcessor, Tokenizer};

use super::family::{self, Vocabulary};
use super::special::Specials;
use super::template::Template;
use super::{failure, sentencepiece, wordpiece};
use crate::error::{InferError, Result};
use crate::modules::json::JsonFile;

/// The part of a tokenizer.json that is looked at before the crate reads the file.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    normalizer: Value,
}

/// Reads `file`, which is the folder's tokenizer.json.
pub(super) fn read(folder: &Path, file: &Path, config: &JsonFile) -> Result<Tokenizer> {
    let bytes = std::fs::read(file).map_err(|error| InferError::io(file, error))?;
    // The crate panics on some malformed files: broken JSON in its decoders, a template of unknown tokens, a character
    // map that points past its end.
    let outline: Outline = serde_json::from_slice(&bytes).map_err(|error| failure(file, error))?;
    if !sentencepiece::maps_are_sound(&outline.normalizer) {
        return Err(failure(file, "the precompiled character map is malformed"));
    }
    let loaded = catch_unwind(|| {
        let inner = Tokenizer::from_bytes(&bytes)?;
        if let Some(processor) = inner.get_post_processor() {
            let _ = processor.process(Default::default(), None, true);
            let _ = processor.process(Default::default(), Some(Default::default()), true);
        }
        Ok::<_, tokenizers::Error>(inner)
    });
    let loaded = loaded.map_err(|_| failure(file, "malformed: the tokenizers crate cannot work with it"))?;
    let mut inner = loaded.map_err(|error| failure(file, error))?;
    settle_bert(&mut inner, config)?;
    settle_ends(folder, &mut inner, config)?;
    Ok(inner)
}

/// The flags of a BERT class replace what tokenizer.json says about its normaliser.
fn settle_bert(inner: &mut Tokenizer, config: &JsonFile) -> Result<()> {
    let class = family::is_bert(config)?;
    if let Some(NormalizerWrapper::BertNormalizer(normalizer)) = inner.get_normalizer()
        && class != Some(false)
    {
        let mut normalizer = if class == Some(true) { BertNormalizer::default() } else { *normalizer };
        wordpiece::bert_flags(&mut normalizer, config)?;
        inner.with_normalizer(Some(normalizer));
    }
    Ok(())
}

/// `add_bos_token` and `add_eos_token` of a LLaMA or Gemma class replace the template of tokenizer.json.
fn settle_ends(folder: &Path, inner: &mut Tokenizer, config: &JsonFile) -> Result<()> {
    let Some(family) = config.text("tokenizer_class")?.and_then(family::of_class) else { return Ok(()) };
    let causal = matches!(family.template, Template::Causal { .. });
    let keys = ["add_bos_token", "add_eos_token"];
    if causal
        && matches!(family.vocabulary, Vocabulary::SentencePiece(_))
        && keys.iter().any(|key| config.get(key).is_some())
    {
        let specials = Specials::read(folder, config, family)?;
        let template = family.template.processor(config, &specials, inner)?;
        inner.with_post_processor(Some(template));
    }
    Ok(())
}
