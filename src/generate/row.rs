//! One sequence of a [`Decoding`](super::Decoding): what it holds, and what a step does to it.

use super::cache::KvCache;
use super::choice::{Logprobs, logprobs};
use super::generation::{FinishReason, Generation, Token};
use super::sampling::SamplingParams;
use super::tail::Tail;
use crate::error::{InferError, Result};

/// A cache that the sequence brings, or one of the caller's.
pub(super) enum Slot<'a> {
    Own(Box<KvCache>),
    Lent(&'a mut KvCache),
}

impl Slot<'_> {
    pub(super) fn get(&mut self) -> &mut KvCache {
        match self {
            Self::Own(cache) => cache,
            Self::Lent(cache) => cache,
        }
    }
}

/// One sequence.
pub(super) struct Row<'a> {
    pub(super) cache: Slot<'a>,
    params: &'a mut SamplingParams,
    /// Prompt and new tokens.
    pub(super) ids: Vec<u32>,
    prompt: usize,
    /// Length at which the sequence ends for the reason beside it.
    limit: (usize, FinishReason),
    /// Stop ids of the parameters, and stop texts that are special tokens.
    pub(super) stop_ids: Vec<u32>,
    pub(super) tail: Option<Tail<'a>>,
    logprobs: Vec<Logprobs>,
    pub(super) finish: Option<FinishReason>,
    pub(super) failed: Option<InferError>,
}

impl<'a> Row<'a> {
    pub(super) fn new(
        cache: Slot<'a>,
        params: &'a mut SamplingParams,
        prompt: &[u32],
        limit: (usize, FinishReason),
    ) -> Self {
        Self {
            cache,
            params,
            ids: prompt.to_vec(),
            prompt: prompt.len(),
            limit,
            stop_ids: Vec::new(),
            tail: None,
            logprobs: Vec::new(),
            finish: None,
            failed: None,
        }
    }

    pub(super) fn live(&self) -> bool {
        self.finish.is_none() && self.failed.is_none()
    }

    /// Tokens that the next pass has to compute.
    pub(super) fn due(&mut self) -> usize {
        let done = self.cache.get().len();
        self.ids.len() - done
    }

    /// Ends the sequence if the caller wants it to.
    pub(super) fn heed_cancel(&mut self) {
        if self.live() && self.params.cancelled() {
            self.failed = self.end(FinishReason::Cancelled).err();
        }
    }

    /// Ends the sequence; text that was held back until now can hold a stop text.
    fn end(&mut self, reason: FinishReason) -> Result<()> {
        let stop = self.tail.as_mut().map_or(Ok(None), Tail::finish)?;
        self.finish = Some(stop.map_or(reason, FinishReason::StopText));
        Ok(())
    }

    /// Chooses the next token by its scores.
    pub(super) fn accept(&mut self, scores: &[f32]) -> Result<()> {
        let id = self.params.choose(scores, &self.ids)?;
        if let Some(n) = self.params.logprobs {
            self.logprobs.push(logprobs(scores, id, n, self.params.vocab_limit.unwrap_or(usize::MAX)));
        }
        self.push(id)
    }

    /// The next token is the one of the largest of so many scores, where nothing else decides.
    pub(super) fn largest_among(&self) -> Option<usize> {
        self.params.largest_among()
    }

    /// Adds the next token.
    pub(super) fn push(&mut self, id: u32) -> Result<()> {
        self.ids.push(id);
        if self.stop_ids.contains(&id) {
            return self.end(FinishReason::StopToken(id));
        }
        if let Some(stop) = self.tail.as_mut().map_or(Ok(None), |tail| tail.push(id))? {
            return self.end(FinishReason::StopText(stop));
        }
        self.end_at_limit()
    }

    /// Ends the sequence if it is as long as it may be.
    pub(super) fn end_at_limit(&mut self) -> Result<()> {
        if self.ids.len() < self.limit.0 { Ok(()) } else { self.end(self.limit.1.clone()) }
    }

    /// New tokens so far.
    pub(super) fn generated(&self) -> usize {
        self.ids.len() - self.prompt
    }

    pub(super) fn take_text(&mut self) -> String {
        self.tail.as_mut().map(Tail::take).unwrap_or_default()
    }

    /// The newest token, with the text that came since the last call.
    pub(super) fn last(&mut self) -> Option<Token> {
        let id = self.ids[self.prompt..].last().copied()?;
        let (text, logprobs) = (self.take_text(), self.logprobs.last().cloned());
        Some(Token { id, text, logprobs, finish: self.finish.clone() })
    }

    pub(super) fn into_generation(mut self) -> Result<Generation> {
        if let Some(e) = self.failed {
            return Err(e);
        }
        if self.finish.is_none() {
            self.end(FinishReason::Cancelled)?;
        }
        let finish = self.finish.unwrap_or(FinishReason::Cancelled);
        let text = self.tail.map(Tail::into_text).unwrap_or_default();
        Ok(Generation { tokens: self.ids.split_off(self.prompt), text, finish, logprobs: self.logprobs })
    }
}
