//! Model weights on disk: a [`Checkpoint`] is one safetensors file, or several with an index, or one GGUF file, mapped
//! into memory; a [`Tensor`] is a named, typed range of it.
//!
//! Everything a header claims is checked against the file when the checkpoint is opened: a tensor that can be had lies
//! inside its file and holds exactly the bytes that its shape and dtype ask for.
//!
//! The files are mapped, not read. They must not be changed or truncated while a checkpoint or one of its tensors is
//! alive: a truncated mapping ends the process with a bus error, and changed bytes make wrong weights.

pub mod blocks;
mod checkpoint;
mod dtype;
pub mod gguf;
mod header;
mod mapping;
mod tensor;

use std::path::Path;

pub use checkpoint::Checkpoint;
pub use dtype::Dtype;
pub use gguf::GgufFile;
pub use tensor::Tensor;

use crate::error::InferError;

fn tensor_error(file: &Path, tensor: &str, expected: impl Into<String>, found: impl Into<String>) -> InferError {
    InferError::TensorError {
        file: file.to_owned(),
        tensor: tensor.to_owned(),
        expected: expected.into(),
        found: found.into(),
    }
}
