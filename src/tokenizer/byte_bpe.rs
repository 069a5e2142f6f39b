//! Byte-level BPE, from vocab.json and merges.txt.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as SplitRule, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use super::failure;
use super::family::Split;
use crate::error::{InferError, Result};
use crate::modules::json::JsonFile;

/// Contractions, words with the sign before them, digits one by one, signs with the line ends after them, spaces.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// As [`QWEN2`], with up to three digits together.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The tokenizer of a vocab.json and the merges.txt beside it, without special tokens and template.
pub(super) fn read(file: &Path, split: Split, config: &JsonFile) -> Result<Tokenizer> {
    let merges = file.with_file_name("merges.txt");
    let (vocab, pairs) = (read_vocabulary(file)?, read_merges(&merges)?);
    of_vocabulary(vocab, pairs, split, config).map_err(|detail| failure(&merges, detail))
}

/// The same for ids and merges that are read already.
pub(super) fn of_vocabulary(
    vocab: Vocab,
    merges: Vec<(String, String)>,
    split: Split,
    config: &JsonFile,
) -> std::result::Result<Tokenizer, String> {
    let prefix = config.flag("add_prefix_space").map_err(|error| error.to_string())?.unwrap_or(false);
    let model = BPE::builder().ignore_merges(split == Split::Llama3);
    let model = model.vocab_and_merges(vocab, merges).build();
    let mut inner = Tokenizer::new(model.map_err(|error| error.to_string())?);
    let pattern = match split {
        Split::Gpt2 | Split::Digits => None,
        Split::Qwen2 => Some(QWEN2),
        Split::Llama3 | Split::Dbrx => Some(LLAMA3),
    };
    let bytes = ByteLevel::new(prefix, true, pattern.is_none());
    match pattern {
        None if split == Split::Digits => {
            let steps: Vec<PreTokenizerWrapper> = vec![Digits::new(true).into(), bytes.into()];
            inner.with_pre_tokenizer(Some(Sequence::new(steps)))
        }
        None => inner.with_pre_tokenizer(Some(bytes)),
        Some(pattern) => {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let rule = SplitRule::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let rule = rule.map_err(|error| error.to_string())?;
            let steps: Vec<PreTokenizerWrapper> = vec![rule.into(), bytes.into()];
            inner.with_pre_tokenizer(Some(Sequence::new(steps)))
        }
    };
    if split == Split::Qwen2 {
        inner.with_normalizer(Some(NFC));
    }
    inner.with_decoder(Some(ByteLevel::default()));
    Ok(inner)
}

/// Ids by token; every id once.
fn read_vocabulary(file: &Path) -> Result<Vocab> {
    let json = JsonFile::required(file.to_path_buf()).map_err(|error| match error {
        InferError::ModelError { file, detail } => failure(&file, detail),
        other => other,
    })?;
    let mut seen = HashSet::with_capacity(json.map.len());
    let entry = |(token, value): (&String, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| failure(file, format!("`{token}` has the id {value}, expected a whole number")))?;
        if !seen.insert(id) {
            return Err(failure(file, format!("two tokens have the id {id}")));
        }
        Ok((token.clone(), id))
    };
    json.map.iter().map(entry).collect()
}

/// Pairs in the order of their rank. Blank lines and the version line do not count.
fn read_merges(file: &Path) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(file).map_err(|error| InferError::io(file, error))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with("#version"));
    let wrong = |number| failure(file, format!("line {}: expected two tokens with a space between", number + 1));
    lines.map(|(number, line)| merge(line).ok_or_else(|| wrong(number))).collect()
}

/// Two tokens with a space between.
pub(super) fn merge(line: &str) -> Option<(String, String)> {
    let (a, b) = line.split_once(' ')?;
    (!a.is_empty() && !b.is_empty() && !b.contains(' ')).then(|| (a.to_owned(), b.to_owned()))
}
