//! [`ModelMemory`]: what a model takes of memory, found without loading it.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EmbeddingPlan, Resolved, ResourcePlan, process_memory};
use crate::arch::{HeadChoice, HeadSpec, ModelSpec};
use crate::config::BertConfig;
use crate::cpu::{CpuCompute, Footprint};
use crate::error::Result;
use crate::gpu::{GpuCompute, Precision};
use crate::model::{BertModel, LoadOptions};
use crate::modules::{ModelFolder, Output, Task};
use crate::tokenizer::{TextTokenizer, window};

/// What a model takes of memory on the CPU, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelMemory {
    /// The process with the model's tokenizer.
    pub process: Resolved<u64>,
    /// The matrices of linear layers, packed.
    pub matrices: Resolved<u64>,
    /// Biases, norms, small tables.
    pub vectors: Resolved<u64>,
    /// Embedding tables: pages of the file, as far as their rows are looked up.
    pub tables: Resolved<u64>,
    /// Pages of the file that a matrix is packed from, while the model is loaded.
    pub loading: Resolved<u64>,
    /// Buffers of all batches that are computed side by side, or of the longest text, whichever is more.
    pub activations: Resolved<u64>,
    /// What all threads take beside: keys, values and scores of attention, rows quantised for a product.
    pub scratch: Resolved<u64>,
    /// Keys and values of a token that a decoder goes on from; none of an encoder.
    pub kv_bytes_per_token: Resolved<Option<u64>>,
    /// The most that the process takes while it loads the model and embeds with it.
    pub peak: Resolved<u64>,
    /// Whether that is within the plan; none where nothing is known to bound it.
    pub fits: Resolved<Option<bool>>,
}

/// What is allowed for what no account knows: pages of code that are not touched before the first text, texts, results.
const ALLOWANCE: u64 = 6 << 20;

/// The same for each thread: its stack, and what the allocator keeps of freed memory in the thread's own arena.
const THREAD_ALLOWANCE: u64 = 2 << 20;

fn allowance(plan: &EmbeddingPlan) -> u64 {
    ALLOWANCE + THREAD_ALLOWANCE * plan.threads.value as u64
}

/// A prompt's tokens that a decoder computes at once.
const PROMPT_PART: usize = 512;

/// Activations of a batch, and the scratch of each thread that computes it.
struct Need {
    activations: u64,
    scratch: u64,
}

/// What a batch of `tokens` needs in a model's forward pass, in texts of at most `longest`.
fn need(model: &BertModel, tokens: usize, longest: usize) -> Result<Need> {
    let longest = longest.clamp(1, tokens);
    let mut lengths = vec![longest; tokens / longest];
    lengths.extend(Some(tokens % longest).filter(|rest| *rest > 0));
    let account = model.dry_run(&lengths)?;
    Ok(Need { activations: account.activations as u64, scratch: account.scratch as u64 })
}

impl EmbeddingPlan {
    /// The plan with as many batches side by side, and if need be as small ones, as memory allows beside the model's
    /// bytes, `fixed`. Each batch has its activations, each thread its scratch, whichever batches it helps.
    pub(crate) fn within_memory(&self, fixed: u64, model: &BertModel) -> Result<Self> {
        /// No batch is made smaller.
        const LEAST: usize = 64;
        let mut plan = self.clone();
        let Some(cap) = self.memory_bytes.value else { return Ok(plan) };
        let (room, mut tokens) = (cap.saturating_sub(fixed), self.max_batch_tokens.value);
        let reason = "what the model leaves of the run's memory";
        plan.activation_bytes = Resolved::new(Some(room), reason).from("memory_bytes", cap).from("model_bytes", fixed);
        let (fitting, batch, scratch) = loop {
            let Need { activations, scratch } = need(model, tokens, model.spec().max_tokens)?;
            let (batch, scratch) = (activations.max(1), scratch * self.threads.value as u64);
            let left = room.saturating_sub(scratch);
            if left >= batch || tokens <= LEAST {
                break (usize::try_from(left / batch).unwrap_or(usize::MAX).max(1), batch, scratch);
            }
            tokens /= 2;
        };
        let because = |value: usize| {
            Resolved::new(value, "what memory allows beside the model")
                .from("memory_bytes", cap)
                .from("model_bytes", fixed)
                .from("batch_bytes", batch)
                .from("scratch_bytes", scratch)
        };
        if tokens < self.max_batch_tokens.value {
            plan.max_batch_tokens = because(tokens);
            plan.max_attention_area = because(tokens * tokens / 2);
        }
        if fitting < self.workers.value {
            plan.workers = because(fitting);
        }
        Ok(plan)
    }
}

impl ModelMemory {
    /// What the model in a folder takes when it is loaded in a precision and embeds by `plan`, which comes back as the
    /// model's: with its longest text, and within memory. The tokenizer is loaded, matrices are not.
    ///
    /// # Errors
    /// As [`BertModel::load_with_options`], but for weights that are not finite.
    pub fn of(folder: &Path, plan: &ResourcePlan, precision: Precision) -> Result<(Self, ResourcePlan)> {
        let about = ModelFolder::read(folder)?;
        let dir = &about.transformer_dir;
        let config = BertConfig::from_folder(dir)?;
        let limit = config.effective_max_seq_len();
        // A model without a tokenizer takes token ids.
        let tokenizer = TextTokenizer::from_folder(dir);
        let process = process_memory().resident.unwrap_or(0);
        drop(tokenizer);
        let found = window(dir, Some(limit))?;
        let (longest, source) = found.map_or((limit, "config.json".to_string()), |w| (w.limit, w.source));
        let footprint = Arc::new(Footprint::over(Arc::new(CpuCompute::new()?)));
        let compute: Arc<dyn GpuCompute> = footprint.clone();
        let options = LoadOptions { head: head(&about), precision, ..LoadOptions::default() };
        let model = BertModel::load_with_options(dir, config, compute, options)?;
        let loaded = footprint.account();

        let mut plan = plan.clone();
        plan.embedding.max_seq_len = Resolved::new(Some(longest), source).from("config_limit", limit);
        let kept = process + (loaded.matrices + loaded.vectors) as u64 + allowance(&plan.embedding);
        plan.embedding = plan.embedding.within_memory(kept + loaded.tables as u64, &model)?;
        let memory = Self::resolve(process, &loaded, model.spec(), longest, &plan.embedding, &model)?;
        Ok((memory, plan))
    }

    fn resolve(
        process: u64,
        loaded: &crate::cpu::Account,
        spec: &ModelSpec,
        longest: usize,
        plan: &EmbeddingPlan,
        model: &BertModel,
    ) -> Result<Self> {
        let (tokens, workers) = (plan.max_batch_tokens.value, plan.workers.value.min(plan.threads.value));
        let at_once = if matches!(spec.head, HeadSpec::CausalLm { .. }) { longest.min(PROMPT_PART) } else { longest };
        let (batch, alone) = (need(model, tokens, at_once)?, need(model, at_once, at_once)?);
        let side_by_side = batch.activations * workers as u64;
        let activations = if at_once > tokens { side_by_side.max(alone.activations) } else { side_by_side };
        let scratch = alone.scratch.max(batch.scratch);
        let threads = plan.threads.value as u64;
        let [matrices, vectors, tables, loading] =
            [loaded.matrices, loaded.vectors, loaded.tables, loaded.loading].map(|bytes| bytes as u64);
        let running = tables + activations + scratch * threads;
        let peak = process + matrices + vectors + running.max(loading) + allowance(plan);
        let cap = plan.memory_bytes.value;
        Ok(Self {
            process: Resolved::new(process, "this process and the tokenizer, as measured"),
            matrices: Resolved::new(matrices, "linear layers in panels, from the checkpoint's shapes and types"),
            vectors: Resolved::new(vectors, "biases, norms and small tables"),
            tables: Resolved::new(tables, "embedding rows are read from the file; the system can drop its pages"),
            loading: Resolved::new(loading, "the largest matrix as it lies in the file"),
            activations: Resolved::new(activations, "a forward pass that allocates and does not compute")
                .from("workers", workers)
                .from("batch_bytes", batch.activations)
                .from("longest_text", at_once)
                .from("longest_text_bytes", alone.activations),
            scratch: Resolved::new(scratch * threads, "scores of attention and quantised rows, a thread each")
                .from("threads", threads)
                .from("thread_bytes", scratch),
            kv_bytes_per_token: kv_bytes(spec),
            peak: Resolved::new(peak, "process, matrices and vectors, with what running or else loading takes")
                .from("running_bytes", running)
                .from("loading_bytes", loading)
                .from("allowance_bytes", allowance(plan)),
            fits: Resolved::new(cap.map(|cap| peak <= cap), "the peak against the plan's memory")
                .from("peak_bytes", peak)
                .from("memory_bytes", cap),
        })
    }
}

/// The head that a folder's use needs.
fn head(about: &ModelFolder) -> HeadChoice {
    match (about.output(), about.task) {
        (Output::Sparse, _) | (_, Task::FillMask) => HeadChoice::MaskedLm,
        (Output::Scores, _) => HeadChoice::Configured,
        _ if about.assumed_pooling => HeadChoice::Configured,
        _ => HeadChoice::Vectors,
    }
}

/// Bytes that the keys and values of a token take, all layers together.
fn kv_bytes(spec: &ModelSpec) -> Resolved<Option<u64>> {
    let attention = &spec.attention;
    let (heads, dim, layers) = (attention.kv_heads, attention.head_dim, spec.layers.len());
    // Values lie in panels of 16 features.
    let of_layer = heads * (dim + dim.next_multiple_of(16)) * 4;
    let bytes = attention.causal.then_some((of_layer * layers) as u64);
    let reason =
        if attention.causal { "stored keys and values, in blocks of 512 tokens" } else { "an encoder keeps none" };
    Resolved::new(bytes, reason).from("layers", layers).from("kv_heads", heads).from("head_dim", dim)
}
