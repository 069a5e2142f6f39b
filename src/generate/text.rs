//! [`TextGenerator`]: a model's folder in, text out.

use std::path::Path;
use std::sync::Arc;

use super::cache::KvCache;
use super::chat::{ChatOptions, ChatTemplate, Messages};
use super::decoding::Decoding;
use super::defaults::GenerationDefaults;
use super::generation::{Generation, TokenIter, run_all};
use super::sampling::SamplingParams;
use crate::config::BertConfig;
use crate::error::{InferError, Result};
use crate::gpu::{GpuCompute, create_compute};
use crate::model::{BertModel, LoadOptions};
use crate::modules::json::Settings;
use crate::tokenizer::TextTokenizer;

/// A decoder with its tokenizer, its chat templates and the defaults of its folder.
///
/// ```no_run
/// # fn main() -> kin_infer::Result<()> {
/// use kin_infer::generate::{ChatOptions, Messages, TextGenerator};
/// let generator = TextGenerator::load(std::path::Path::new("model"))?;
/// let mut params = generator.params().temperature(0.7).seed(1);
/// println!("{}", generator.generate("fn main() {", 64, &mut params)?.text);
///
/// let mut messages = Messages::new();
/// messages.push("user", "What is a gasket?");
/// let prompt = generator.chat_prompt(&messages, &ChatOptions::new())?;
/// for token in generator.stream(&prompt, 256, &mut params)? {
///     print!("{}", token?.text);
/// }
/// # Ok(()) }
/// ```
pub struct TextGenerator {
    model: BertModel,
    tokenizer: TextTokenizer,
    defaults: GenerationDefaults,
    chat: Option<ChatTemplate>,
    /// The special tokens that the tokenizer puts before a text.
    head: Vec<u32>,
    /// Number of those that it puts after it.
    tail: usize,
}

impl TextGenerator {
    /// Loads a folder onto the best backend.
    ///
    /// # Errors
    /// Whatever is missing, malformed or not supported in the folder, by file and key or tensor.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_with_compute(folder, create_compute()?)
    }

    /// Loads a folder onto a given backend.
    pub fn load_with_compute(folder: &Path, compute: Arc<dyn GpuCompute>) -> Result<Self> {
        Self::load_with_options(folder, compute, LoadOptions::default())
    }

    /// As [`load_with_compute`](Self::load_with_compute), with a precision and a form of weights.
    ///
    /// # Errors
    /// As [`load`](Self::load) and [`BertModel::load_with_options`].
    pub fn load_with_options(folder: &Path, compute: Arc<dyn GpuCompute>, options: LoadOptions) -> Result<Self> {
        let settings = Settings::open(folder)?;
        let config = BertConfig::from_folder(folder)?;
        let (defaults, chat) = (GenerationDefaults::of(&settings)?, ChatTemplate::of(&settings)?);
        let tokenizer = || TextTokenizer::of(&settings);
        let (model, tokenizer) = BertModel::load_beside(folder, config, compute, options, tokenizer)?;
        let (bare, short) = (tokenizer.encode("", usize::MAX)?.ids, tokenizer.encode("a", usize::MAX)?.ids);
        let special = tokenizer.num_special_tokens();
        let agree = bare.iter().zip(&short).take_while(|(a, b)| a == b).count().min(special);
        let head = bare[..agree].to_vec();
        Ok(Self { model, tokenizer, defaults, chat, head, tail: special - agree })
    }

    /// The folder's parameters ([`GenerationDefaults`]): no id is chosen that the tokenizer lacks, and generation ends
    /// with the ids of `generation_config.json`, of `config.json`, or else the tokenizer's `eos_token`.
    pub fn params(&self) -> SamplingParams {
        let params = self.defaults.params().vocab_limit(self.tokenizer.vocab_size());
        if !params.stop_ids.is_empty() {
            return params;
        }
        let eos = self.defaults.eos_token.as_ref().and_then(|token| self.tokenizer.token_id(token));
        params.stop_ids(eos)
    }

    /// The ids of a prompt: the tokenizer's special tokens before it once, also where the text begins with them, and
    /// none after it. An empty prompt is the beginning of a text: the folder's `bos_token_id`.
    ///
    /// # Errors
    /// A text the tokenizer refuses; an empty one where no token begins a text.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode(prompt, usize::MAX)?.ids;
        ids.truncate(ids.len() - self.tail.min(ids.len()));
        if !self.head.is_empty() && ids.get(self.head.len()..).is_some_and(|rest| rest.starts_with(&self.head)) {
            ids.drain(..self.head.len());
        }
        if ids.is_empty() {
            ids.extend(self.defaults.bos_id);
        }
        if ids.is_empty() {
            let detail = "the prompt is empty, and neither the tokenizer nor `bos_token_id` begins a text";
            return Err(InferError::input(0, detail));
        }
        Ok(ids)
    }

    /// The ids of a conversation in the model's chat template, with one beginning token whether the template or the
    /// tokenizer writes it.
    ///
    /// # Errors
    /// A folder without a chat template; as [`ChatTemplate::render`] and [`encode`](Self::encode).
    pub fn chat_prompt(&self, messages: &Messages, options: &ChatOptions) -> Result<Vec<u32>> {
        let none = "this model has no chat template: chat_template.jinja, `chat_template` of tokenizer_config.json, or \
                    `tokenizer.chat_template` in the metadata of a GGUF file";
        let template = self.chat.as_ref().ok_or_else(|| InferError::InvalidArgument(none.to_string()))?;
        self.encode(&template.render(messages, options)?)
    }

    /// At most `max_tokens` tokens after a prompt, and their text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode) and [`BertModel::generate`]; stop texts are heeded.
    pub fn generate(&self, prompt: &str, max_tokens: usize, params: &mut SamplingParams) -> Result<Generation> {
        let mut results = self.generate_all(&[&self.encode(prompt)?], max_tokens, std::slice::from_mut(params));
        results.pop().unwrap_or_else(|| Err(InferError::input(0, "nothing came back")))
    }

    /// As [`generate`](Self::generate), for encoded prompts side by side, each with its own parameters: each gets the
    /// tokens it gets alone.
    pub fn generate_all(
        &self,
        prompts: &[&[u32]],
        max_tokens: usize,
        params: &mut [SamplingParams],
    ) -> Vec<Result<Generation>> {
        run_all(self.decoding(), prompts, max_tokens, params)
    }

    /// Tokens and text of an encoded prompt as they come.
    ///
    /// # Errors
    /// As [`generate`](Self::generate); those of the computation come as an item, the last.
    pub fn stream<'a>(
        &'a self,
        prompt: &[u32],
        max_tokens: usize,
        params: &'a mut SamplingParams,
    ) -> Result<TokenIter<'a>> {
        let mut decoding = self.decoding();
        decoding.add(prompt, max_tokens, params)?;
        Ok(TokenIter::new(decoding))
    }

    /// As [`stream`](Self::stream), with a cache that goes from call to call, as in a conversation: what it holds of
    /// the prompt's beginning is not computed again.
    pub fn stream_cached<'a>(
        &'a self,
        cache: &'a mut KvCache,
        prompt: &[u32],
        max_tokens: usize,
        params: &'a mut SamplingParams,
    ) -> Result<TokenIter<'a>> {
        let mut decoding = self.decoding();
        decoding.add_cached(cache, prompt, max_tokens, params)?;
        Ok(TokenIter::new(decoding))
    }

    /// No sequences yet, for callers that step themselves.
    pub fn decoding(&self) -> Decoding<'_> {
        Decoding::new(&self.model, Some(&self.tokenizer))
    }

    /// The transformer.
    pub fn model(&self) -> &BertModel {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// What the folder says of generation.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// The chat templates, if the folder has any.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }
}
