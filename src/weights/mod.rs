//! Model weights on disk: a [`Checkpoint`] is one safetensors file, or several with an index, mapped into memory;
//! a [`Tensor`] is a named, typed range of it.
//!
//! Everything a header claims is checked against the file when the checkpoint is opened: a tensor that can be had lies
//! inside its file and holds exactly the bytes that its shape and dtype ask for.
//!
//! The files are mapped, not read. They must not be changed or truncated while a checkpoint or one of its tensors is
//! alive: a truncated mapping ends the process with a bus error, and changed bytes make wrong weights.

mod checkpoint;
mod header;
mod mapping;
mod tensor;

use std::fmt;
use std::path::Path;

pub use checkpoint::Checkpoint;
pub use tensor::Tensor;

use crate::error::InferError;

/// The element types whose values can be read. Each widens to f32 exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
        })
    }
}

fn tensor_error(file: &Path, tensor: &str, expected: impl Into<String>, found: impl Into<String>) -> InferError {
    InferError::TensorError {
        file: file.to_owned(),
        tensor: tensor.to_owned(),
        expected: expected.into(),
        found: found.into(),
    }
}
