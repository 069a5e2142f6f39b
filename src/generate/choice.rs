//! From the scores of the next token to a token. docs/generation.md and docs/numerics.md state the order.

use std::cmp::Ordering;

use super::sampling::SamplingParams;
use crate::error::{InferError, Result};

/// Log-probabilities at one place, natural, of the model's scores before anything changes them.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f64,
    /// The likeliest tokens, likeliest first, of equal ones the lowest id first.
    pub top: Vec<(u32, f64)>,
}

/// A token that may be drawn: z = (score - largest score) / temperature, and its weight exp(z).
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    z: f64,
    weight: f64,
}

/// Larger values first, of equal ones the lower id.
fn rank(a: (f64, u32), b: (f64, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    rank((a.z, a.id), (b.z, b.id))
}

impl SamplingParams {
    /// The tokens that may follow and their probabilities, ids ascending. `scores` are the model's, one an id;
    /// `context` are the ids so far, prompt included.
    ///
    /// ```text
    /// s[i] = scores[i] in binary64, for the ids i below the limit of the vocabulary
    /// s[i] = s[i] < 0 ? s[i] * penalty : s[i] / penalty       for ids of the context
    /// greedy: the id of the largest s, of equal ones the lowest
    /// z[i] = (s[i] - largest s) / temperature
    /// top-k  the k ids stay that come first by descending z, then ascending id
    /// w[i] = exp(z[i])
    /// top-p  in the same order an id stays while the w before it, added in that order, are less than
    ///        top_p * (the sum of all w that stayed so far, ids ascending); the first always stays
    /// min-p  an id stays where w[i] >= min_p
    /// p[i] = w[i] / (the sum of the w that stayed, ids ascending)
    /// ```
    ///
    /// Parameters that do nothing (penalty 1, top-k 0 or at least the vocabulary, top-p 1) are passed over.
    ///
    /// # Errors
    /// Parameters out of range ([`check`](Self::check)), no scores, a score that is not finite.
    pub fn distribution(&self, scores: &[f32], context: &[u32]) -> Result<Vec<(u32, f64)>> {
        let values = self.values(scores, context)?;
        if self.is_greedy() {
            return Ok(vec![(largest(&values), 1.0)]);
        }
        let candidates = self.candidates(&values);
        let total: f64 = candidates.iter().fold(0.0, |sum, c| sum + c.weight);
        Ok(candidates.iter().map(|c| (c.id, c.weight / total)).collect())
    }

    /// The next token. With a temperature it takes one number u of the generator: the token is the first, ids
    /// ascending, at which the weights of [`distribution`](Self::distribution), added up, pass u times their sum.
    ///
    /// # Errors
    /// As [`distribution`](Self::distribution).
    pub fn choose(&mut self, scores: &[f32], context: &[u32]) -> Result<u32> {
        let values = self.values(scores, context)?;
        if self.is_greedy() {
            return Ok(largest(&values));
        }
        let candidates = self.candidates(&values);
        let total: f64 = candidates.iter().fold(0.0, |sum, c| sum + c.weight);
        let target = self.random.uniform() * total;
        let mut sum = 0.0;
        let drawn = candidates.iter().find(|c| {
            sum += c.weight;
            sum > target
        });
        // The sum ends at the total, and the target is below it: one is always found.
        Ok(drawn.or(candidates.last()).map_or(0, |c| c.id))
    }

    /// The scores of the ids that can be chosen, penalised.
    fn values(&self, scores: &[f32], context: &[u32]) -> Result<Vec<f64>> {
        self.check()?;
        if let Some(i) = scores.iter().position(|s| !s.is_finite()) {
            let detail = format!("the score of token {i} is {}, expected a finite number", scores[i]);
            return Err(InferError::InvalidArgument(detail));
        }
        if scores.is_empty() {
            return Err(InferError::InvalidArgument("there are no scores to choose a token from".to_string()));
        }
        let limit = self.vocab_limit.unwrap_or(usize::MAX).min(scores.len());
        let mut values: Vec<f64> = scores[..limit].iter().map(|s| f64::from(*s)).collect();
        if self.repetition_penalty != 1.0 {
            let mut seen = vec![false; limit];
            for id in context.iter().map(|id| *id as usize).filter(|id| *id < limit) {
                if !std::mem::replace(&mut seen[id], true) {
                    let s = values[id];
                    values[id] = if s < 0.0 { s * self.repetition_penalty } else { s / self.repetition_penalty };
                }
            }
        }
        Ok(values)
    }

    /// What may be drawn, ids ascending.
    fn candidates(&self, values: &[f64]) -> Vec<Candidate> {
        let top = values[largest(values) as usize];
        let z = |s: &f64| (s - top) / self.temperature;
        let entry = |(id, s): (usize, &f64)| Candidate { id: id as u32, z: z(s), weight: 0.0 };
        let mut candidates: Vec<Candidate> = values.iter().enumerate().map(entry).collect();
        if self.top_k > 0 && self.top_k < candidates.len() {
            candidates.select_nth_unstable_by(self.top_k - 1, by_rank);
            candidates.truncate(self.top_k);
            candidates.sort_unstable_by_key(|c| c.id);
        }
        candidates.iter_mut().for_each(|c| c.weight = libm::exp(c.z));
        if self.top_p < 1.0 {
            keep_top_p(&mut candidates, self.top_p);
        }
        candidates.retain(|c| c.weight >= self.min_p);
        candidates
    }
}

/// Keeps the first by rank that reach the probability together. Ranks are found piece by piece: mostly few are needed.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f64) {
    let total = candidates.iter().fold(0.0, |sum, c| sum + c.weight);
    let (mut before, mut ranked) = (0.0, 0);
    let kept = 'found: loop {
        let end = (ranked * 4).max(64).min(candidates.len());
        let rest = &mut candidates[ranked..];
        if end - ranked < rest.len() {
            rest.select_nth_unstable_by(end - ranked, by_rank);
        }
        candidates[ranked..end].sort_unstable_by(by_rank);
        for (i, c) in candidates[ranked..end].iter().enumerate() {
            if ranked + i > 0 && before >= top_p * total {
                break 'found ranked + i;
            }
            before += c.weight;
        }
        if end == candidates.len() {
            break end;
        }
        ranked = end;
    };
    candidates.truncate(kept);
    candidates.sort_unstable_by_key(|c| c.id);
}

/// Id of the largest value, the lowest of equal ones.
fn largest(values: &[f64]) -> u32 {
    let first_of_larger = |best: usize, i: usize| if values[i] > values[best] { i } else { best };
    (0..values.len()).fold(0, first_of_larger) as u32
}

/// The log-probability of `chosen` and the `n` largest of the ids below `limit`:
/// (x[i] - largest) - log(sum of exp(x[j] - largest)), in binary64 over all scores, ids ascending.
pub(super) fn logprobs(scores: &[f32], chosen: u32, n: usize, limit: usize) -> Logprobs {
    let top = scores.iter().fold(f64::NEG_INFINITY, |top, s| if f64::from(*s) > top { f64::from(*s) } else { top });
    let sum = scores.iter().fold(0.0, |sum, s| sum + libm::exp(f64::from(*s) - top));
    let scale = libm::log(sum);
    let of = |id: u32| (f64::from(scores[id as usize]) - top) - scale;
    let by_score = |a: &u32, b: &u32| rank((scores[*a as usize].into(), *a), (scores[*b as usize].into(), *b));
    let mut ids: Vec<u32> = (0..scores.len().min(limit) as u32).collect();
    if n < ids.len() {
        ids.select_nth_unstable_by(n, by_score);
        ids.truncate(n);
    }
    ids.sort_unstable_by(by_score);
    Logprobs { chosen: of(chosen), top: ids.into_iter().map(|id| (id, of(id))).collect() }
}
