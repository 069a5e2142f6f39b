//! What every text model has: a tokenizer, a transformer, a window; texts to sequences, each with its own fate.

use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use crate::batch::Sequence;
use crate::config::BertConfig;
use crate::error::{InferError, Result};
use crate::gpu::GpuCompute;
use crate::model::{BertModel, LoadOptions};
use crate::modules::json::Settings;
use crate::tokenizer::{Encoding, TextTokenizer, Window, window_of};
use crate::watchdog::{Phase, Run};

/// What came of a text, and how much of the text it stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted<T> {
    /// The vector, the token vectors, the scores.
    pub value: T,
    /// Tokens the model computed with: those of the prompt and the special tokens included.
    pub tokens: usize,
    /// The text had more tokens than the window: the rest took no part.
    pub truncated: bool,
}

impl<T> Counted<T> {
    /// The same counts with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Counted<U> {
        Counted { value: f(self.value), tokens: self.tokens, truncated: self.truncated }
    }
}

/// Takes the counts off.
pub(super) fn values<T>(counted: Vec<Result<Counted<T>>>) -> Vec<Result<T>> {
    counted.into_iter().map(|result| result.map(|c| c.value)).collect()
}

/// Tokenizer, transformer and window of a folder. A clone shares the tokenizer and the weights.
#[derive(Clone)]
pub(super) struct TextModel {
    pub model: BertModel,
    pub tokenizer: Arc<TextTokenizer>,
    pub window: Window,
    /// Whether the model is told a token's type: it has types, and `model_input_names` of tokenizer_config.json names them
    /// or is absent.
    typed: bool,
}

/// A text as the model gets it.
pub(super) struct Reading {
    pub sequence: Sequence,
    pub truncated: bool,
}

impl TextModel {
    /// Loads the transformer's folder.
    pub fn load(dir: &Path, compute: Arc<dyn GpuCompute>, options: LoadOptions) -> Result<Self> {
        let config = BertConfig::from_folder(dir)?;
        let settings = Settings::open(dir)?;
        let limit = config.effective_max_seq_len();
        let found = window_of(&settings, Some(limit))?;
        let window = found.unwrap_or(Window { limit, source: "config.json".to_string() });
        let tokenizer = || TextTokenizer::of(&settings);
        let inputs = settings.read("tokenizer_config.json")?.texts("model_input_names")?;
        let (model, tokenizer) = BertModel::load_beside(dir, config, compute, options, tokenizer)?;
        let named = inputs.is_none_or(|names| names.iter().any(|name| name == "token_type_ids"));
        let typed = named && model.spec().embedding.token_types > 0;
        Ok(Self { model, tokenizer: Arc::new(tokenizer), window, typed })
    }

    /// As part of a run.
    pub fn with_run(self, run: &Run) -> Self {
        Self { model: self.model.with_run(run), ..self }
    }

    /// Encodes `prompt` before each text to at most `limit` tokens. Whether a text was cut costs a second look at those
    /// that fill the window; without `counted` it is not asked.
    pub fn read(&self, texts: &[&str], prompt: &str, limit: usize, counted: bool) -> Vec<Result<Reading>> {
        let one = |text: &&str| {
            let whole = if prompt.is_empty() { None } else { Some(format!("{prompt}{text}")) };
            let text = whole.as_deref().unwrap_or(text);
            reading(|limit| self.tokenizer.encode(text, limit), limit, counted)
        };
        self.read_each(texts, one)
    }

    /// Calls `read` on each text, in parallel, until the run is cancelled.
    pub fn read_each(
        &self,
        texts: &[&str],
        read: impl Fn(&&str) -> Result<Reading> + Sync + Send,
    ) -> Vec<Result<Reading>> {
        let _span = tracing::debug_span!("tokenise", texts = texts.len()).entered();
        let run = self.model.run_state();
        run.enter(Phase::Tokenise);
        let one = |text| {
            run.check()?;
            let mut reading = read(text)?;
            if !self.typed {
                reading.sequence.type_ids.clear();
            }
            Ok(reading)
        };
        texts.par_iter().map(one).collect()
    }

    /// As [`read`](Self::read), for pairs of one query and each document.
    pub fn read_pairs(&self, query: &str, documents: &[&str], counted: bool) -> Vec<Result<Reading>> {
        let one = |document: &&str| {
            reading(|limit| self.tokenizer.encode_pair(query, document, limit), self.window.limit, counted)
        };
        self.read_each(documents, one)
    }

    /// How many tokens of each encoding are the prompt's. A prompt longer than the window is cut with the text; its last
    /// place is the closing special token's.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let longest = self.window.limit.saturating_sub(1);
        if prompt.is_empty() { Ok(0) } else { Ok(self.tokenizer.prefix_len(prompt)?.min(longest)) }
    }
}

/// What `encode` gives for a limit, and whether it would give more without it.
pub(super) fn reading(encode: impl Fn(usize) -> Result<Encoding>, limit: usize, counted: bool) -> Result<Reading> {
    let found = encode(limit)?;
    let full = counted && found.ids.len() >= limit;
    let truncated = full && encode(limit.saturating_add(1))?.ids.len() > limit;
    let sequence = Sequence { ids: found.ids, type_ids: found.type_ids, positions: Vec::new() };
    Ok(Reading { sequence, truncated })
}

/// Runs what could be read; each text keeps its own error.
pub(super) fn each<T>(
    readings: Vec<Result<Reading>>,
    run: impl FnOnce(&[Sequence]) -> Vec<Result<T>>,
) -> Vec<Result<Counted<T>>> {
    let mut sequences = Vec::with_capacity(readings.len());
    let read: Vec<Result<(usize, bool)>> = readings
        .into_iter()
        .map(|reading| {
            let Reading { sequence, truncated } = reading?;
            let tokens = sequence.ids.len();
            sequences.push(sequence);
            Ok((tokens, truncated))
        })
        .collect();
    let mut found = run(&sequences).into_iter();
    let lost = || Err(InferError::InvalidArgument("a text was lost on the way".to_string()));
    let finish = |(item, read): (usize, Result<(usize, bool)>)| {
        let counted = read.and_then(|(tokens, truncated)| {
            found.next().unwrap_or_else(lost).map(|value| Counted { value, tokens, truncated })
        });
        counted.map_err(|e| e.with_item(item))
    };
    read.into_iter().enumerate().map(finish).collect()
}
