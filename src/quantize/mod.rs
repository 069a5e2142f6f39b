//! A model folder whose linear weights are blocks of 8 or 4 bits a value, made of one whose weights are floats.
//!
//! [`quantize_folder`] writes a complete folder beside the original: settings, vocabularies and modules as they are, the
//! weights of linear layers in [`Dtype::Q8_0`] or [`Dtype::Q4_0`] ([`blocks`](crate::weights::blocks) has the formulas),
//! and everything else in the type it had: norms, biases, what a text's vector passes after the transformer, and
//! matrices whose rows are no whole number of blocks. docs/formats.md describes the files. Which tensors are linear
//! weights is what the family's tensor table says; a matrix that the model stores transposed is turned, so that blocks lie
//! along the sums.
//!
//! The bytes depend on nothing but the source and the options: not on the machine, the threads or the time.

mod files;
mod plan;
mod write;

use std::path::Path;

use crate::arch::{HeadChoice, complete, describe_with};
use crate::config::BertConfig;
use crate::error::{InferError, Result};
use crate::modules::ModelFolder;
use crate::weights::{Checkpoint, Dtype, GgufFile};

use plan::Plan;

/// How a folder is quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// The type of the blocks: [`Dtype::Q8_0`] or [`Dtype::Q4_0`].
    pub dtype: Dtype,
    /// Whether embedding tables become blocks too. A table that also is a language model's head counts as an embedding.
    pub embeddings: bool,
}

/// What a call of [`quantize_folder`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuantizeReport {
    /// Tensors that became blocks, sorted.
    pub quantised: Vec<String>,
    /// Tensors that stay as they were, sorted.
    pub kept: Vec<String>,
    /// Linear weights, and embeddings if they were asked for, that stay because their rows are no whole number of blocks.
    pub uneven: Vec<String>,
    /// Bytes of the tensors before.
    pub bytes_before: u64,
    /// Bytes of the tensors after.
    pub bytes_after: u64,
    /// Files of the source that the new folder does not have: weights for other programs.
    pub left_out: Vec<String>,
}

/// How far a call of [`quantize_folder`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizeProgress<'a> {
    /// The tensor that is being written.
    pub tensor: &'a str,
    /// Bytes of the source's tensors that are done.
    pub done: u64,
    /// Bytes of all of the source's tensors.
    pub total: u64,
}

/// Writes a quantised copy of the model in `source` to the folder `output`, and tells `progress` of it.
///
/// The copy is made under a temporary name beside `output`, written through to the disk, and renamed when it is whole; an
/// error leaves nothing behind.
///
/// ```no_run
/// # fn main() -> kin_infer::Result<()> {
/// use kin_infer::quantize::{QuantizeOptions, quantize_folder};
/// use kin_infer::weights::Dtype;
///
/// let options = QuantizeOptions { dtype: Dtype::Q8_0, embeddings: false };
/// quantize_folder("models/minilm".as_ref(), "models/minilm-q8".as_ref(), &options, &mut |_| {})?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`InvalidArgument`](InferError::InvalidArgument) when `output` exists and is not an empty folder, the type is another
/// or no linear weight of the model fits its blocks; [`TensorError`](InferError::TensorError) when a weight is not finite
/// or too large for a block; and what loading the model says.
pub fn quantize_folder(
    source: &Path,
    output: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(QuantizeProgress),
) -> Result<QuantizeReport> {
    if !matches!(options.dtype, Dtype::Q8_0 | Dtype::Q4_0) {
        return Err(InferError::InvalidArgument(format!("quantize: Q8_0 and Q4_0 are written, not {}", options.dtype)));
    }
    files::check_output(output)?;
    files::check_outside(source, output)?;
    if let Some(file) = GgufFile::find(source)? {
        let detail = "a GGUF file, expected safetensors: llama.cpp's own tools quantise GGUF files";
        return Err(InferError::model(file, detail));
    }
    let transformer = ModelFolder::read(source)?.transformer_dir;
    let checkpoint = Checkpoint::open(&transformer)?;
    let plan = plan(&transformer, &checkpoint, options)?;
    let copies = files::to_copy(source, &transformer, &checkpoint)?;
    let inside = transformer.strip_prefix(source).unwrap_or(Path::new(""));

    let folder = files::PendingFolder::new(output)?;
    files::copy(source, folder.path(), &copies.files)?;
    let weights = folder.path().join(inside);
    files::create_folders(&weights)?;
    write::write_all(&plan, &checkpoint, &weights, progress)?;
    folder.commit()?;
    Ok(QuantizeReport { left_out: copies.left_out, bytes_before: checkpoint.total_bytes(), ..plan.report() })
}

/// What becomes of each tensor, by the tables of every head that the checkpoint can be loaded with.
fn plan(transformer: &Path, checkpoint: &Checkpoint, options: &QuantizeOptions) -> Result<Plan> {
    let mut config = BertConfig::from_folder(transformer)?;
    complete(&mut config, checkpoint)?;
    let (_, table) = describe_with(&config, HeadChoice::Configured)?;
    let mut roles = table.resolve(checkpoint)?.roles;
    // Few checkpoints have this head; those that have may be loaded with it.
    let masked = describe_with(&config, HeadChoice::MaskedLm).and_then(|(_, table)| table.resolve(checkpoint));
    for (name, role) in masked.map(|tensors| tensors.roles).unwrap_or_default() {
        let known = roles.entry(name).or_insert(role);
        *known = role.max(*known);
    }
    let plan = Plan::new(checkpoint, &roles, options)?;
    if plan.report().quantised.is_empty() {
        let detail = format!("quantize: no weight of {} fits blocks of {}", transformer.display(), options.dtype);
        return Err(InferError::InvalidArgument(detail));
    }
    Ok(plan)
}
