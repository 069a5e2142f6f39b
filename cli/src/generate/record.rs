//! What is printed of a sequence, and how long it all took.

use std::time::Duration;

use kin_infer::generate::{Generation, Logprobs};
use serde::Serialize;
use serde_json::{Value, json};

use crate::common::Compute;

/// One sequence's result.
#[derive(Serialize)]
pub struct Record {
    pub tokens: Vec<u32>,
    /// None without a tokenizer.
    pub text: Option<String>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Value>>,
}

impl Record {
    pub fn new(generation: Generation, has_text: bool, logprobs: bool) -> Self {
        let logprobs = logprobs.then(|| {
            let entry = |(token, l): (&u32, &Logprobs)| json!({"token": token, "logprob": l.chosen, "top": l.top});
            generation.tokens.iter().zip(&generation.logprobs).map(entry).collect()
        });
        Self {
            tokens: generation.tokens,
            text: has_text.then_some(generation.text),
            finish_reason: generation.finish.name(),
            logprobs,
        }
    }

    /// The text, or the ids where there is none.
    pub fn shown(&self) -> String {
        let ids = || self.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        self.text.clone().unwrap_or_else(ids)
    }
}

/// The line of `--format json`.
#[derive(Serialize)]
pub struct Sequences<'a> {
    sequences: Vec<Entry<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Made(&'a Record),
    Failed { error: &'a str },
}

impl<'a> Sequences<'a> {
    pub fn new(records: &'a [Result<Record, String>]) -> Self {
        let entry = |record: &'a Result<Record, String>| match record {
            Ok(record) => Entry::Made(record),
            Err(error) => Entry::Failed { error },
        };
        Self { sequences: records.iter().map(entry).collect() }
    }
}

/// Tokens and times. The first token of a sequence comes with its prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Tokens of prompts that were computed.
    pub prompt: usize,
    /// Tokens of prompts that a cache held.
    pub known: usize,
    pub prefill: Duration,
    /// New tokens, the first of each sequence included.
    pub made: usize,
    /// New tokens that a step of their own made.
    pub steps: usize,
    pub decode: Duration,
}

impl Timing {
    /// The summary on stderr, unless `--quiet`.
    pub fn tell(&self, compute: &Compute) {
        let rate = |n: usize, time: Duration| n as f64 / time.as_secs_f64().max(1e-9);
        let known = if self.known > 0 { format!(" ({} more were known)", self.known) } else { String::new() };
        let decode = match self.steps {
            0 => String::new(),
            steps => format!(", {:.1} tokens/s", rate(steps, self.decode)),
        };
        compute.note(&format!(
            "prompt: {} tokens{known} in {:.2} s, {:.1} tokens/s; new: {} tokens in {:.2} s{decode}",
            self.prompt,
            self.prefill.as_secs_f64(),
            rate(self.prompt, self.prefill),
            self.made,
            self.decode.as_secs_f64(),
        ));
    }
}
