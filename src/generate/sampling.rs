//! [`SamplingParams`]: how the next token is chosen, and when to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::random::Random;
use crate::error::{InferError, Result};

/// How the tokens of one sequence are chosen, and when to stop.
///
/// New parameters are greedy: the largest score, of equal ones the lowest id. With a temperature the token is drawn:
/// repetition penalty, temperature, top-k, top-p and min-p act on the scores in this order, as in transformers'
/// `generate`, in binary64, by the formulas of [`distribution`](Self::distribution).
///
/// The parameters hold the random generator. A token that is drawn takes one number of it, so a second call goes on
/// where the first ended; [`seed`](Self::seed), or a clone taken before, starts anew.
///
/// ```
/// use kin_infer::generate::SamplingParams;
/// let params = SamplingParams::new().temperature(0.8).top_p(0.95).seed(7).stop_ids([2]);
/// assert!(params.check().is_ok());
/// assert!(SamplingParams::new().temperature(f64::NAN).check().is_err());
/// ```
#[derive(Debug, Clone)]
pub struct SamplingParams {
    pub(super) temperature: f64,
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) min_p: f64,
    pub(super) repetition_penalty: f64,
    pub(super) stop_ids: Vec<u32>,
    pub(super) stop_texts: Vec<String>,
    pub(super) vocab_limit: Option<usize>,
    pub(super) logprobs: Option<usize>,
    pub(super) cancel: Option<Arc<AtomicBool>>,
    pub(super) random: Random,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop_ids: Vec::new(),
            stop_texts: Vec::new(),
            vocab_limit: None,
            logprobs: None,
            cancel: None,
            random: Random::new(0),
        }
    }
}

/// Bounds of the repetition penalty: beyond them products of scores could leave binary64.
const PENALTY_RANGE: (f64, f64) = (1e-6, 1e6);

impl SamplingParams {
    /// Greedy, without limits or stops, seed 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides the scores: below 1 likely tokens become likelier. 0 chooses the largest score and draws nothing.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Only the `top_k` largest scores stay, of equal ones those with the lowest ids; 0 leaves all.
    pub fn top_k(mut self, top_k: usize) -> Self {
        self.top_k = top_k;
        self
    }

    /// Only the likeliest tokens stay that are needed to reach the probability `top_p`; 1 leaves all, 0 the first.
    pub fn top_p(mut self, top_p: f64) -> Self {
        self.top_p = top_p;
        self
    }

    /// Only tokens stay whose probability is at least `min_p` times the largest; 0 leaves all.
    pub fn min_p(mut self, min_p: f64) -> Self {
        self.min_p = min_p;
        self
    }

    /// Divides positive scores of tokens that the prompt or the continuation holds, and multiplies negative ones
    /// (arXiv 1909.05858); 1 does nothing.
    pub fn repetition_penalty(mut self, penalty: f64) -> Self {
        self.repetition_penalty = penalty;
        self
    }

    /// Starts the random numbers of this seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.random = Random::new(seed);
        self
    }

    /// The ids that end a sequence.
    pub fn stop_token_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Generation ends with one of these tokens, which is the last of the result. Replaces those set before.
    pub fn stop_ids(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.stop_ids = ids.into_iter().collect();
        self
    }

    /// Generation ends where the text holds one of these; it is cut before it. Needs text:
    /// [`BertModel::generate`](crate::BertModel::generate), which knows ids alone, refuses them. Replaces those set
    /// before.
    pub fn stop_texts(mut self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stop_texts = texts.into_iter().map(Into::into).collect();
        self
    }

    /// Ids from here on are never chosen: embedding tables often have more rows than the tokenizer has tokens.
    pub fn vocab_limit(mut self, limit: usize) -> Self {
        self.vocab_limit = Some(limit);
        self
    }

    /// Asks for the log-probability of each token, and of the `n` likeliest at its place.
    pub fn logprobs(mut self, n: usize) -> Self {
        self.logprobs = Some(n);
        self
    }

    /// Generation ends soon after this flag is set, with the tokens it has. It is asked before each pass over the
    /// weights.
    pub fn cancel(mut self, flag: Arc<AtomicBool>) -> Self {
        self.cancel = Some(flag);
        self
    }

    /// Whether the largest score is chosen, so that nothing is drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Where nothing but the model's scores decides: the token is the largest of so many.
    pub(super) fn largest_among(&self) -> Option<usize> {
        let alone = self.is_greedy() && self.repetition_penalty == 1.0 && self.logprobs.is_none();
        alone.then(|| self.vocab_limit.unwrap_or(usize::MAX))
    }

    /// Whether the flag is set.
    pub(super) fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// # Errors
    /// [`InvalidArgument`](InferError::InvalidArgument) naming the parameter that is not a number or out of range: the
    /// temperature is 0 or above and finite, top-p and min-p are from 0 to 1, the penalty from 1e-6 to 1e6, the limit
    /// of the vocabulary is above 0, stop texts are not empty.
    pub fn check(&self) -> Result<()> {
        let (low, high) = PENALTY_RANGE;
        let limits = [
            ("temperature", self.temperature, 0.0, f64::MAX, "a number from 0"),
            ("top_p", self.top_p, 0.0, 1.0, "from 0 to 1"),
            ("min_p", self.min_p, 0.0, 1.0, "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty, low, high, "from 1e-6 to 1e6"),
        ];
        for (name, value, low, high, expected) in limits {
            if !(low..=high).contains(&value) {
                return Err(InferError::InvalidArgument(format!("`{name}` is {value}, expected {expected}")));
            }
        }
        if self.vocab_limit == Some(0) {
            return Err(InferError::InvalidArgument("`vocab_limit` is 0: it leaves no token".to_string()));
        }
        if self.stop_texts.iter().any(String::is_empty) {
            return Err(InferError::InvalidArgument("a stop text is empty: it would stop at once".to_string()));
        }
        Ok(())
    }
}
