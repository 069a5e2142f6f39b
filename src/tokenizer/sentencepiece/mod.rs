//! Tokenizers from SentencePiece files: pieces and scores become a Unigram or BPE model of the `tokenizers` crate, the
//! file's own rules for text become its normalisers.
//!
//! Ids equal those of `transformers`' converters. Where a file asks for something that these pass over (byte fallback
//! of a Unigram model, spaces that count, no space before the text), the file is followed, as SentencePiece does.

mod charsmap;
mod merges;
mod model;
mod text;
mod vocabulary;
mod wire;

use std::collections::HashSet;
use std::path::Path;

use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

pub(super) use self::charsmap::maps_are_sound;
use self::model::{Kind, SpmModel};
use super::failure;
use super::family::Layout;
use super::special::Specials;
use crate::error::Result;
use crate::modules::json::JsonFile;

/// Pieces in the order of their ids, each with its score.
type Scored = Vec<(String, f64)>;

/// The tokenizer of a `.model` file, without template, and the tokens that the file itself declares.
pub(super) fn read(
    file: &Path,
    layout: Layout,
    config: &JsonFile,
    specials: &Specials,
) -> Result<(Tokenizer, Vec<AddedToken>)> {
    let spm = SpmModel::read(file)?;
    refuse_what_is_not_done(&spm).map_err(|detail| failure(file, detail))?;
    let extra_ids = if layout == Layout::T5 { vocabulary::extra_ids(config)? } else { 0 };
    of_model(&spm, file, layout, extra_ids, config, specials)
}

/// The same for a model that is read already.
fn of_model(
    spm: &SpmModel,
    file: &Path,
    layout: Layout,
    extra_ids: usize,
    config: &JsonFile,
    specials: &Specials,
) -> Result<(Tokenizer, Vec<AddedToken>)> {
    let vocab = vocabulary::of_layout(spm, layout, extra_ids, specials).map_err(|detail| failure(file, detail))?;
    if let Some(token) = repeated(&vocab) {
        return Err(failure(file, format!("the piece `{token}` stands twice in the vocabulary")));
    }
    let text = text::Rules::new(spm, layout, config)?;
    let own = own_tokens(spm, layout, extra_ids);
    let unk = vocabulary::unk_id(spm, layout);
    let model =
        build(vocab, unk, spm.trainer.model_type, text.byte_fallback).map_err(|detail| failure(file, detail))?;
    let mut inner = Tokenizer::new(model);
    text.apply(spm, &mut inner).map_err(|detail| failure(file, detail))?;
    let own = own.into_iter().filter(|token| inner.token_to_id(&token.content).is_some()).collect();
    Ok((inner, own))
}

/// A SentencePiece model's parts, from a file of another kind.
pub(super) struct Parts<'a> {
    /// Tokens in the order of their ids, with scores, and kinds numbered as in SentencePiece files.
    pub(super) pieces: Vec<(&'a str, f32, u64)>,
    /// Unigram, or BPE with pieces for bytes.
    pub(super) unigram: bool,
    pub(super) charsmap: Vec<u8>,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
}

/// The tokenizer of a vocabulary whose ids are the model's already, without template, and the tokens that it declares.
pub(super) fn of_parts(
    parts: Parts,
    file: &Path,
    config: &JsonFile,
    specials: &Specials,
) -> Result<(Tokenizer, Vec<AddedToken>)> {
    let unigram = parts.unigram;
    let spm = SpmModel::of_parts(parts).map_err(|detail| failure(file, detail))?;
    of_model(&spm, file, if unigram { Layout::T5 } else { Layout::Llama }, 0, config, specials)
}

fn refuse_what_is_not_done(spm: &SpmModel) -> std::result::Result<(), String> {
    if !matches!(spm.trainer.model_type, UNIGRAM | BYTE_PAIRS) {
        return Err(format!("`model_type` is {}, supported: 1 (Unigram), 2 (BPE)", spm.trainer.model_type));
    }
    if spm.trainer.whitespace_as_suffix {
        return Err("`treat_whitespace_as_suffix` true is not supported".to_owned());
    }
    if !spm.normalizer.escape_whitespaces {
        return Err("`escape_whitespaces` false is not supported".to_owned());
    }
    Ok(())
}

const UNIGRAM: u64 = 1;
const BYTE_PAIRS: u64 = 2;

fn repeated(vocab: &Scored) -> Option<&str> {
    let mut seen = HashSet::with_capacity(vocab.len());
    vocab.iter().map(|(token, _)| token.as_str()).find(|token| !seen.insert(*token))
}

fn build(vocab: Scored, unk: usize, model_type: u64, byte_fallback: bool) -> std::result::Result<ModelWrapper, String> {
    if model_type == UNIGRAM {
        let model = Unigram::from(vocab, Some(unk), byte_fallback);
        return model.map(ModelWrapper::from).map_err(|error| error.to_string());
    }
    let merges = merges::by_score(&vocab)?;
    let unk = vocab[unk].0.clone();
    let ids: tokenizers::models::bpe::Vocab = vocab.into_iter().map(|(token, _)| token).zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(ids, merges).unk_token(unk).fuse_unk(true);
    model.byte_fallback(byte_fallback).build().map(ModelWrapper::from).map_err(|error| error.to_string())
}

/// Control pieces are special tokens, user-defined ones are found whole in a text; T5's sentinels are special too.
fn own_tokens(spm: &SpmModel, layout: Layout, extra_ids: usize) -> Vec<AddedToken> {
    let turns = |text: &str| layout == Layout::Gemma && ["<start_of_turn>", "<end_of_turn>"].contains(&text);
    let declared = spm.pieces.iter().filter_map(|piece| match piece.kind {
        Kind::Control => Some((piece.text.clone(), true)),
        Kind::UserDefined => Some((piece.text.clone(), turns(&piece.text))),
        _ => None,
    });
    let sentinels = (0..extra_ids).map(|index| (vocabulary::sentinel(index), true));
    let token = |(text, special)| AddedToken::from(text, special).normalized(false);
    declared.chain(sentinels).map(token).collect()
}
