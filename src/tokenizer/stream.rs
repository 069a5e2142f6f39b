//! Ids to text while they are being generated.

use tokenizers::DecoderWrapper;

use super::{TextTokenizer, failure};
use crate::error::Result;

/// Text from ids that come one by one. What [`push`](Self::push) and [`finish`](Self::finish) return, put together, is
/// what [`TextTokenizer::decode`] makes of all the ids.
///
/// Text is held back while later ids can change it: the first bytes of a character, a run of byte tokens (which are
/// replaced together when they are not UTF-8), a replacement character at the end.
pub struct TokenStream<'a> {
    tokenizer: &'a TextTokenizer,
    skip_special: bool,
    /// The ids of the text returned last: a token's text depends on whether another stands before it.
    context: Vec<u32>,
    /// The ids whose text has not been returned.
    pending: Vec<u32>,
    byte_tokens: bool,
}

impl<'a> TokenStream<'a> {
    pub(super) fn new(tokenizer: &'a TextTokenizer, skip_special: bool) -> Self {
        let byte_tokens = tokenizer.inner.get_decoder().is_some_and(reads_byte_tokens);
        Self { tokenizer, skip_special, context: Vec::new(), pending: Vec::new(), byte_tokens }
    }

    /// The text that is certain now, if the id brought any. Ids without a token bring none.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        let Some(token) = self.tokenizer.token(id) else { return Ok(None) };
        if self.skip_special && self.tokenizer.special_ids.contains(&id) {
            return Ok(None);
        }
        self.pending.push(id);
        if self.byte_tokens && is_byte(&token) {
            return Ok(None);
        }
        let text = self.fresh()?;
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(None);
        }
        self.context = std::mem::take(&mut self.pending);
        Ok(Some(text))
    }

    /// The text still held back, when no id follows.
    pub fn finish(self) -> Result<Option<String>> {
        Ok(Some(self.fresh()?).filter(|text| !text.is_empty()))
    }

    /// The text of the pending ids after the context.
    fn fresh(&self) -> Result<String> {
        let decode = |ids: &[u32]| self.tokenizer.decode(ids, self.skip_special);
        let before = decode(&self.context)?;
        let whole = decode(&[&self.context[..], &self.pending].concat())?;
        let changed =
            || failure(&self.tokenizer.file, "its decoder changes earlier text: it cannot be used in a stream");
        whole.strip_prefix(&before).map(str::to_owned).ok_or_else(changed)
    }
}

impl std::fmt::Debug for TokenStream<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TokenStream").field("pending", &self.pending).finish_non_exhaustive()
    }
}

fn reads_byte_tokens(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteFallback(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(reads_byte_tokens),
        _ => false,
    }
}

/// Whether a token is one byte, written `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}
