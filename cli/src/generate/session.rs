//! A loaded model with the options of the call.

use std::time::Instant;

use kin_infer::generate::{
    Decoding, FinishReason, Generation, GenerationDefaults, KvCache, SamplingParams, TextGenerator,
};
use kin_infer::tokenizer::has_tokenizer;
use kin_infer::{BertConfig, BertModel, InferError, LoadOptions, WeightForm};

use super::record::{Record, Timing};
use super::{Args, Interrupt, Weights};
use crate::failure::{Failure, Result};

/// New tokens where neither the call nor the model's folder says how many.
const MAX_NEW_TOKENS: usize = 256;

enum Loaded {
    Text(Box<TextGenerator>),
    /// Without a tokenizer.
    Ids(Box<(BertModel, GenerationDefaults)>),
}

pub struct Session {
    loaded: Loaded,
    params: SamplingParams,
    max_new_tokens: usize,
    logprobs: bool,
}

impl Session {
    /// Loads the model; `bare` does without a tokenizer where the folder has none.
    pub fn open(args: &Args, bare: bool, interrupt: &Interrupt) -> Result<Self> {
        let folder = args.model.folder()?;
        let compute = args.compute.open()?;
        let weights = match args.weights {
            Weights::Stored => WeightForm::Stored,
            Weights::F32 => WeightForm::F32,
        };
        let options = LoadOptions { weights, ..LoadOptions::default() };
        let loaded = if bare && !has_tokenizer(&folder)? {
            let defaults = GenerationDefaults::from_folder(&folder)?;
            let config = BertConfig::from_folder(&folder)?;
            Loaded::Ids(Box::new((BertModel::load_with_options(&folder, config, compute, options)?, defaults)))
        } else {
            Loaded::Text(Box::new(TextGenerator::load_with_options(&folder, compute, options)?))
        };
        let (params, most) = match &loaded {
            Loaded::Text(generator) => (generator.params(), generator.defaults().max_new_tokens),
            Loaded::Ids(bare) => (bare.1.params(), bare.1.max_new_tokens),
        };
        let params = sampling(args, params)?.cancel(interrupt.flag());
        let max_new_tokens = args.max_new_tokens.or(most).unwrap_or(MAX_NEW_TOKENS);
        Ok(Self { loaded, params, max_new_tokens, logprobs: args.logprobs.is_some() })
    }

    pub fn model(&self) -> &BertModel {
        match &self.loaded {
            Loaded::Text(generator) => generator.model(),
            Loaded::Ids(bare) => &bare.0,
        }
    }

    /// The model as one of texts.
    pub fn text(&self) -> Result<&TextGenerator> {
        match &self.loaded {
            Loaded::Text(generator) => Ok(generator),
            Loaded::Ids(_) => Err(Failure::Failed("this model has no tokenizer".to_string())),
        }
    }

    fn decoding(&self) -> Decoding<'_> {
        match &self.loaded {
            Loaded::Text(generator) => generator.decoding(),
            Loaded::Ids(bare) => Decoding::new(&bare.0, None),
        }
    }

    /// Generates one sequence and hands its text on as it comes. What the cache holds of the prompt's beginning is not
    /// computed again.
    pub fn stream(
        &self,
        cache: &mut KvCache,
        prompt: &[u32],
        timing: &mut Timing,
        mut print: impl FnMut(&str) -> Result<()>,
    ) -> Result<Record> {
        let generator = self.text()?;
        let known = cache.ids().iter().zip(&prompt[..prompt.len().saturating_sub(1)]).take_while(|(a, b)| a == b);
        let known = known.count();
        let mut params = self.params.clone();
        let start = Instant::now();
        let mut stream = generator.stream_cached(cache, prompt, self.max_new_tokens, &mut params)?;
        let (mut tokens, mut text, mut logprobs, mut first) = (Vec::new(), String::new(), Vec::new(), None);
        for token in stream.by_ref() {
            let token = token?;
            first.get_or_insert_with(Instant::now);
            tokens.push(token.id);
            logprobs.extend(token.logprobs);
            if !token.text.is_empty() {
                print(&token.text)?;
                text.push_str(&token.text);
            }
        }
        let rest = stream.rest();
        print(&rest)?;
        text.push_str(&rest);
        let first = first.unwrap_or_else(Instant::now);
        (timing.known, timing.prompt) = (timing.known + known, timing.prompt + prompt.len() - known);
        (timing.prefill, timing.decode) = (timing.prefill + (first - start), timing.decode + first.elapsed());
        (timing.made, timing.steps) = (timing.made + tokens.len(), timing.steps + tokens.len().saturating_sub(1));
        let finish = stream.finish_reason().cloned().unwrap_or(FinishReason::Cancelled);
        Ok(Record::new(Generation { tokens, text, finish, logprobs }, true, self.logprobs))
    }

    /// Generates sequences side by side.
    pub fn batch(&self, prompts: &[Vec<u32>], timing: &mut Timing) -> Vec<std::result::Result<Record, InferError>> {
        let mut params = vec![self.params.clone(); prompts.len()];
        let mut decoding = self.decoding();
        let mut refused = Vec::new();
        for (prompt, params) in prompts.iter().zip(&mut params) {
            let added = decoding.add(prompt, self.max_new_tokens, params);
            timing.prompt += if added.is_ok() { prompt.len() } else { 0 };
            refused.push(added.err());
        }
        let start = Instant::now();
        let firsts = decoding.advance();
        timing.prefill += start.elapsed();
        let start = Instant::now();
        while decoding.advance() > 0 {}
        timing.decode += start.elapsed();
        timing.made += decoding.generated();
        timing.steps += decoding.generated() - firsts;
        let has_text = matches!(self.loaded, Loaded::Text(_));
        let mut done = decoding.finish().into_iter();
        let missing = || Err(InferError::input(0, "nothing came back"));
        let result = |refused: Option<InferError>| match refused {
            Some(e) => Err(e),
            None => done.next().unwrap_or_else(missing).map(|g| Record::new(g, has_text, self.logprobs)),
        };
        refused.into_iter().map(result).collect()
    }
}

/// The folder's parameters with what the call says.
fn sampling(args: &Args, mut params: SamplingParams) -> Result<SamplingParams> {
    let options = &args.sampling;
    if let Some(temperature) = options.temperature {
        params = params.temperature(temperature);
    }
    let given = [options.top_k.is_some(), options.top_p.is_some(), options.min_p.is_some()];
    if params.is_greedy() && given.contains(&true) {
        let why = "--top-k, --top-p and --min-p do nothing to a greedy choice: give --temperature";
        return Err(Failure::Usage(why.to_string()));
    }
    params = options.top_k.map_or(params.clone(), |k| params.top_k(k));
    params = options.top_p.map_or(params.clone(), |p| params.top_p(p));
    params = options.min_p.map_or(params.clone(), |p| params.min_p(p));
    params = options.repetition_penalty.map_or(params.clone(), |r| params.repetition_penalty(r));
    if !args.stop.is_empty() {
        params = params.stop_texts(args.stop.iter().cloned());
    }
    if args.ignore_eos {
        params = params.stop_ids([]);
    }
    if let Some(n) = args.logprobs {
        params = params.logprobs(n);
    }
    params = params.seed(options.seed);
    params.check().map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(params)
}
