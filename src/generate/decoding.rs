//! The loop that generates: prompts in, one pass over the weights for each further token of all sequences.

use rayon::prelude::*;

use super::cache::{CHUNK, KvCache};
use super::generation::{FinishReason, Generation, Token};
use super::row::{Row, Slot};
use super::sampling::SamplingParams;
use super::tail::Tail;
use crate::arch::HeadSpec;
use crate::batch::plan;
use crate::error::{InferError, Result};
use crate::model::BertModel;
use crate::tokenizer::TextTokenizer;

/// Sequences that are generated side by side: each gets the scores, and with its own parameters the tokens, that it
/// gets alone. [`advance`](Self::advance) is one step; a sequence that has ended, or failed, leaves the others alone.
pub struct Decoding<'a> {
    model: &'a BertModel,
    tokenizer: Option<&'a TextTokenizer>,
    rows: Vec<Row<'a>>,
}

impl<'a> Decoding<'a> {
    /// No sequences yet. With a tokenizer there will be text, and stop texts are heeded.
    pub fn new(model: &'a BertModel, tokenizer: Option<&'a TextTokenizer>) -> Self {
        Self { model, tokenizer, rows: Vec::new() }
    }

    /// Adds a sequence of at most `max_tokens` new tokens after a prompt.
    ///
    /// # Errors
    /// As [`BertModel::generate`]. The other sequences stay.
    pub fn add(&mut self, prompt: &[u32], max_tokens: usize, params: &'a mut SamplingParams) -> Result<()> {
        let cache = Slot::Own(Box::new(self.model.kv_cache()?));
        self.push(cache, prompt, max_tokens, params)
    }

    /// As [`add`](Self::add), with a cache whose tokens are used as far as they agree with the prompt. It then holds
    /// the prompt and the new tokens, without the last.
    pub fn add_cached(
        &mut self,
        cache: &'a mut KvCache,
        prompt: &[u32],
        max_tokens: usize,
        params: &'a mut SamplingParams,
    ) -> Result<()> {
        self.push(Slot::Lent(cache), prompt, max_tokens, params)
    }

    fn push(
        &mut self,
        mut cache: Slot<'a>,
        prompt: &[u32],
        max_tokens: usize,
        params: &'a mut SamplingParams,
    ) -> Result<()> {
        params.check()?;
        let item = self.rows.len();
        let window = check_prompt(self.model, prompt).map_err(|e| e.with_item(item))?;
        let (stop_ids, tail) = self.ends(prompt, params)?;
        // The last token runs again where all are known: its scores are not kept.
        let agree = cache.get().ids().iter().zip(&prompt[..prompt.len() - 1]).take_while(|(a, b)| a == b).count();
        self.model.truncate_cache(cache.get(), agree)?;
        let limit = match prompt.len().saturating_add(max_tokens) {
            end if end <= window => (end, FinishReason::Length),
            _ => (window, FinishReason::Window),
        };
        let mut row = Row::new(cache, params, prompt, limit);
        (row.stop_ids, row.tail) = (stop_ids, tail);
        row.end_at_limit()?;
        self.rows.push(row);
        Ok(())
    }

    /// The ids that end a sequence, and its text, which ends with the other stop texts.
    fn ends(&self, prompt: &[u32], params: &SamplingParams) -> Result<(Vec<u32>, Option<Tail<'a>>)> {
        let mut ids = params.stop_ids.clone();
        let Some(tokenizer) = self.tokenizer else {
            if params.stop_texts.is_empty() {
                return Ok((ids, None));
            }
            let detail = "stop texts need text, and this call knows token ids alone; use TextGenerator or stop ids";
            return Err(InferError::InvalidArgument(detail.to_string()));
        };
        let mut texts = Vec::new();
        for text in &params.stop_texts {
            // A special token has no text in which it could be found.
            match tokenizer.token_id(text) {
                Some(id) if tokenizer.decode(&[id], true)?.is_empty() => ids.push(id),
                _ => texts.push(text.clone()),
            }
        }
        Ok((ids, Some(Tail::new(tokenizer, prompt, texts)?)))
    }

    /// Sequences in all.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One more token for every sequence that has not ended; the first step also computes the prompts. Gives the
    /// number of tokens that came, 0 when all have ended.
    pub fn advance(&mut self) -> usize {
        let before = self.generated();
        let mut due = Vec::new();
        for i in 0..self.rows.len() {
            self.shorten(i);
            if self.rows[i].live() {
                due.push((i, self.rows[i].due()));
            }
        }
        let lengths: Vec<usize> = due.iter().map(|(_, due)| *due).collect();
        for group in plan(&lengths, self.model.limits()) {
            let mut group: Vec<usize> = group.into_iter().map(|g| due[g].0).collect();
            group.sort_unstable();
            self.step(&group);
        }
        self.generated() - before
    }

    /// New tokens of all sequences so far.
    pub fn generated(&self) -> usize {
        self.rows.iter().map(Row::generated).sum()
    }

    /// Why a sequence has ended, if it has.
    pub fn finish_reason(&self, sequence: usize) -> Option<&FinishReason> {
        self.rows.get(sequence)?.finish.as_ref()
    }

    /// The last new token of a sequence.
    pub(super) fn last(&mut self, sequence: usize) -> Option<Token> {
        self.rows.get_mut(sequence)?.last()
    }

    /// What a sequence failed with, once.
    pub(super) fn take_failure(&mut self, sequence: usize) -> Option<InferError> {
        self.rows.get_mut(sequence)?.failed.take()
    }

    /// Text of a sequence that no token brought: what was held back when it was cancelled.
    pub(super) fn take_text(&mut self, sequence: usize) -> String {
        self.rows.get_mut(sequence).map(Row::take_text).unwrap_or_default()
    }

    /// What was generated, in the order in which the sequences were added; one that has not ended counts as cancelled.
    pub fn finish(self) -> Vec<Result<Generation>> {
        self.rows.into_iter().map(Row::into_generation).collect()
    }

    /// Computes a long rest of a prompt by parts, until one is left, so that it can be cancelled in between.
    fn shorten(&mut self, i: usize) {
        let (model, row) = (self.model, &mut self.rows[i]);
        row.heed_cancel();
        while row.live() && row.due() > CHUNK {
            let done = row.cache.get().len();
            // A part whose length asks for other rotations would be computed again.
            if model.rotation_regime(done + CHUNK) != model.rotation_regime(row.ids.len()) {
                break;
            }
            let part = &row.ids[done..done + CHUNK];
            row.failed = model.extend(row.cache.get(), part).err().map(|e| e.with_item(i));
            row.heed_cancel();
        }
    }

    /// One pass for these sequences, ascending.
    fn step(&mut self, group: &[usize]) {
        let mut rows: Vec<(usize, &mut Row)> =
            self.rows.iter_mut().enumerate().filter(|(i, _)| group.binary_search(i).is_ok()).collect();
        rows.iter_mut().for_each(|(_, row)| row.heed_cancel());
        rows.retain(|(_, row)| row.live());
        if rows.is_empty() {
            return;
        }
        let among = rows[0].1.largest_among().filter(|n| rows.iter().all(|(_, r)| r.largest_among() == Some(*n)));
        let mut items: Vec<(&mut KvCache, &[u32])> = Vec::with_capacity(rows.len());
        for (_, row) in &mut rows {
            let done = row.cache.get().len();
            items.push((row.cache.get(), &row.ids[done..]));
        }
        if let Some(among) = among {
            let results = self.model.largest_all(&mut items, among);
            return settle(rows, results, |row, id| row.push(id));
        }
        let results = self.model.extend_all(&mut items);
        settle(rows, results, |row, scores| row.accept(&scores));
    }
}

/// Gives each sequence its result.
fn settle<T: Send>(
    rows: Vec<(usize, &mut Row)>,
    results: Vec<Result<T>>,
    accept: impl Fn(&mut Row, T) -> Result<()> + Sync,
) {
    rows.into_par_iter().zip(results).for_each(|((i, row), result)| {
        row.failed = result.and_then(|found| accept(row, found)).err().map(|e| e.with_item(i));
    });
}

/// The window of the model, where the prompt is one it can continue.
fn check_prompt(model: &BertModel, prompt: &[u32]) -> Result<usize> {
    let spec = model.spec();
    let window = spec.trained_tokens.min(spec.max_tokens);
    if !matches!(spec.head, HeadSpec::CausalLm { .. }) {
        let detail =
            format!("this `{}` has no scores of tokens: its checkpoint is that of the bare model", spec.family);
        return Err(InferError::InvalidArgument(detail));
    }
    if prompt.is_empty() {
        return Err(InferError::input(0, "the prompt has no tokens: there is nothing to continue"));
    }
    if prompt.len() > window {
        let detail = format!("the prompt has {} tokens; the model's window is {window}", prompt.len());
        return Err(InferError::input(0, detail));
    }
    if let Some(i) = prompt.iter().position(|id| *id as usize >= spec.embedding.vocab_size) {
        let limit = spec.embedding.vocab_size;
        return Err(InferError::input(0, format!("token id {} at {i}; they are below {limit}", prompt[i])));
    }
    Ok(window)
}
