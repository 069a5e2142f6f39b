//! [`BertModel::generate`] and its kin, and what they give.

use super::cache::KvCache;
use super::choice::Logprobs;
use super::decoding::Decoding;
use super::sampling::SamplingParams;
use crate::error::{InferError, Result};
use crate::model::BertModel;

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// With this one of the stop ids, its last token.
    StopToken(u32),
    /// The text held this stop text.
    StopText(String),
    /// It has as many new tokens as were asked for.
    Length,
    /// Prompt and new tokens fill the model's window.
    Window,
    /// The cancel flag was set.
    Cancelled,
}

impl FinishReason {
    /// The reason in one word, for JSON: `stop_token`, `stop_text`, `length`, `window` or `cancelled`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::StopToken(_) => "stop_token",
            Self::StopText(_) => "stop_text",
            Self::Length => "length",
            Self::Window => "window",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One new token of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that became certain with it, whole characters, possibly none; always none without a tokenizer.
    pub text: String,
    /// Log-probabilities at its place, where they were asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it is the last one, if it is.
    pub finish: Option<FinishReason>,
}

/// What was generated after a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The new tokens; a stop token is the last of them.
    pub tokens: Vec<u32>,
    /// What they add to the decoded prompt: without special tokens, and nothing from a stop token or stop text on.
    /// Empty without a tokenizer.
    pub text: String,
    /// Why there are no more.
    pub finish: FinishReason,
    /// Log-probabilities at the place of each token, where they were asked for; else none.
    pub logprobs: Vec<Logprobs>,
}

/// The tokens of one sequence, as they come: an iterator over [`Token`]. Dropping it ends the generation.
pub struct TokenIter<'a> {
    decoding: Decoding<'a>,
    failed: bool,
}

impl<'a> TokenIter<'a> {
    pub(super) fn new(decoding: Decoding<'a>) -> Self {
        Self { decoding, failed: false }
    }

    /// Why the sequence ended, if it did. It can end without a token: cancelled, or with a prompt that leaves no room.
    pub fn finish_reason(&self) -> Option<&FinishReason> {
        self.decoding.finish_reason(0)
    }

    /// Text that no token brought: what was held back when the sequence was cancelled.
    pub fn rest(&mut self) -> String {
        self.decoding.take_text(0)
    }
}

impl Iterator for TokenIter<'_> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let came = self.decoding.advance() > 0;
        if let Some(e) = self.decoding.take_failure(0) {
            self.failed = true;
            return Some(Err(e));
        }
        if came { self.decoding.last(0).map(Ok) } else { None }
    }
}

impl BertModel {
    /// At most `max_tokens` tokens after a prompt.
    ///
    /// The sequence ends with a stop id, after `max_tokens`, or where prompt and new tokens fill the window, the
    /// model's `trained_tokens`: a prompt as long as the window gets no token. Stop ids are those of the parameters;
    /// [`GenerationDefaults`](super::GenerationDefaults) reads a folder's.
    ///
    /// ```no_run
    /// # fn main() -> kin_infer::Result<()> {
    /// use kin_infer::generate::SamplingParams;
    /// # let folder = std::path::Path::new("model");
    /// let model = kin_infer::BertModel::load(folder, kin_infer::BertConfig::from_folder(folder)?)?;
    /// let mut params = SamplingParams::new().temperature(0.8).seed(1).stop_ids([2]);
    /// println!("{:?}", model.generate(&[1, 450, 1556], 32, &mut params)?.tokens);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A model that is no decoder or has no scores of tokens; parameters out of range; stop texts; a prompt of no
    /// tokens, longer than the window or with ids the vocabulary lacks; scores that are not finite; memory that cannot
    /// be had.
    pub fn generate(&self, prompt: &[u32], max_tokens: usize, params: &mut SamplingParams) -> Result<Generation> {
        let mut results = self.generate_all(&[prompt], max_tokens, std::slice::from_mut(params));
        results.pop().unwrap_or_else(|| Err(InferError::input(0, "nothing came back")))
    }

    /// As [`generate`](Self::generate), for prompts side by side, each with its own parameters: one pass over the
    /// weights makes a token of every sequence. Each gets the tokens it gets alone.
    pub fn generate_all(
        &self,
        prompts: &[&[u32]],
        max_tokens: usize,
        params: &mut [SamplingParams],
    ) -> Vec<Result<Generation>> {
        run_all(Decoding::new(self, None), prompts, max_tokens, params)
    }

    /// The tokens of [`generate`](Self::generate) as they come.
    ///
    /// # Errors
    /// As [`generate`](Self::generate); those of the computation come as an item, the last.
    pub fn stream<'a>(
        &'a self,
        prompt: &[u32],
        max_tokens: usize,
        params: &'a mut SamplingParams,
    ) -> Result<TokenIter<'a>> {
        let mut decoding = Decoding::new(self, None);
        decoding.add(prompt, max_tokens, params)?;
        Ok(TokenIter::new(decoding))
    }

    /// As [`stream`](Self::stream), with a cache that goes from call to call: what it holds of the prompt's beginning
    /// is not computed again. It then holds the prompt and the new tokens, without the last.
    pub fn stream_cached<'a>(
        &'a self,
        cache: &'a mut KvCache,
        prompt: &[u32],
        max_tokens: usize,
        params: &'a mut SamplingParams,
    ) -> Result<TokenIter<'a>> {
        let mut decoding = Decoding::new(self, None);
        decoding.add_cached(cache, prompt, max_tokens, params)?;
        Ok(TokenIter::new(decoding))
    }
}

/// Generates for every prompt, each with its own parameters; one that cannot be added has its own error.
pub(super) fn run_all<'a>(
    mut decoding: Decoding<'a>,
    prompts: &[&[u32]],
    max_tokens: usize,
    params: &'a mut [SamplingParams],
) -> Vec<Result<Generation>> {
    if prompts.len() != params.len() {
        let detail = format!("{} prompts but {} parameters", prompts.len(), params.len());
        return prompts.iter().map(|_| Err(InferError::InvalidArgument(detail.clone()))).collect();
    }
    let mut added = Vec::with_capacity(prompts.len());
    for (i, (prompt, params)) in prompts.iter().zip(params).enumerate() {
        added.push(decoding.add(prompt, max_tokens, params).map_err(|e| e.with_item(i)));
    }
    while decoding.advance() > 0 {}
    let mut done = decoding.finish().into_iter();
    let missing = || Err(InferError::input(0, "nothing came back"));
    let result = |(i, added): (usize, Result<()>)| {
        added.and_then(|()| done.next().unwrap_or_else(missing)).map_err(|e| e.with_item(i))
    };
    added.into_iter().enumerate().map(result).collect()
}
