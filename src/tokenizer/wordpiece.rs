//! BERT's WordPiece, from vocab.txt.

use std::path::Path;

use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{Model, Tokenizer};

use super::failure;
use super::special::{Role, Specials};
use crate::error::{InferError, Result};
use crate::modules::json::JsonFile;

/// The tokenizer of a vocab.txt, without special tokens and template.
pub(super) fn read(file: &Path, config: &JsonFile, specials: &Specials) -> Result<Tokenizer> {
    if config.flag("do_basic_tokenize")? == Some(false) || config.get("never_split").is_some() {
        let keys = "`do_basic_tokenize` false and `never_split` are";
        return Err(failure(&config.file, format!("{keys} not supported without tokenizer.json")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| InferError::io(file, error))?;
    of_tokens(text.lines().map(str::to_owned), file, config, specials)
}

/// The same for the lines of such a file.
pub(super) fn of_tokens(
    tokens: impl Iterator<Item = String>,
    file: &Path,
    config: &JsonFile,
    specials: &Specials,
) -> Result<Tokenizer> {
    // The crate's own reader would trim tokens. The last of equal lines counts.
    let mut vocab = WordPiece::read_bytes(b"").map_err(|error| failure(file, error))?;
    vocab.extend(tokens.zip(0..));
    let unk = specials.role(Role::Unk).unwrap_or_default();
    let model = WordPiece::builder().vocab(vocab).unk_token(unk.to_owned()).max_input_chars_per_word(100).build();
    let model = model.map_err(|error| failure(file, error))?;
    if model.token_to_id(unk).is_none() {
        return Err(failure(file, format!("the special token `{unk}` is missing")));
    }
    let mut inner = Tokenizer::new(model);
    let mut normalizer = BertNormalizer::default();
    bert_flags(&mut normalizer, config)?;
    inner.with_normalizer(Some(normalizer));
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(WordPieceDecoder::default()));
    Ok(inner)
}

/// What tokenizer_config.json says about the normaliser.
pub(super) fn bert_flags(normalizer: &mut BertNormalizer, config: &JsonFile) -> Result<()> {
    normalizer.lowercase = config.flag("do_lower_case")?.unwrap_or(normalizer.lowercase);
    normalizer.strip_accents = config.flag("strip_accents")?.or(normalizer.strip_accents);
    normalizer.handle_chinese_chars = config.flag("tokenize_chinese_chars")?.unwrap_or(normalizer.handle_chinese_chars);
    Ok(())
}
