//! Every failure of the library is an [`InferError`]: match on the variant and its fields, show the message.

use std::path::PathBuf;

use crate::durable::Conflict;

/// Result of the library's fallible functions.
pub type Result<T> = std::result::Result<T, InferError>;

/// What went wrong, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// A file of the model folder is missing, malformed or contradicts another.
    #[error("{}: {detail}", file.display())]
    ModelError {
        /// The file at fault.
        file: PathBuf,
        /// What was expected and what was found.
        detail: String,
    },
    /// A tensor is missing, has another shape or dtype than its architecture demands, or holds a bad value.
    #[error("{}: tensor `{tensor}`: expected {expected}, found {found}", file.display())]
    TensorError {
        /// The checkpoint file.
        file: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// What the architecture asks for.
        expected: String,
        /// What the file holds.
        found: String,
    },
    /// The configuration asks for something this version does not compute; running it anyway would be wrong.
    #[error("config.json: `{key}` is {found}, supported: {expected}")]
    ModelIncompatible {
        /// The configuration key.
        key: String,
        /// What is supported.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// The tokenizer could not be built or refused the text.
    #[error("{}: tokenizer: {detail}", file.display())]
    TokenizerError {
        /// The tokenizer's file.
        file: PathBuf,
        /// The cause.
        detail: String,
    },
    /// The operating system refused to read or write a file.
    #[error("{}: {source}", path.display())]
    IoError {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// One item of the input cannot be processed; `item` is its index in the call.
    #[error("input {item}: {detail}")]
    InputError {
        /// Index of the item in the call.
        item: usize,
        /// What is wrong with it, with the index and the limit that applies.
        detail: String,
    },
    /// An argument of the call contradicts the model or another argument.
    #[error("{0}")]
    InvalidArgument(String),
    /// An output that a durable run cannot begin, or go on with.
    #[error("{}: {conflict}", target.display())]
    RunConflict {
        /// The output.
        target: PathBuf,
        /// What stands against it.
        conflict: Conflict,
    },
    /// Memory could not be had. A smaller batch or a shorter text needs less.
    #[error("out of memory: {what} needs {bytes} bytes; use a smaller batch or shorter texts")]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// The compute backend failed.
    #[error("{backend} backend: {operation}: {detail}")]
    BackendError {
        /// Which backend.
        backend: String,
        /// The operation that failed.
        operation: String,
        /// The cause.
        detail: String,
    },
    /// A result holds NaN or an infinity: the weights or the input drive the model out of range.
    #[error("input {item}: non-finite value first seen after {stage}; the checkpoint overflows in this precision")]
    NonFiniteOutput {
        /// Index of the item in the call.
        item: usize,
        /// Where it first appeared: `embeddings`, `layer 3`, `pooling`.
        stage: String,
    },
    /// The run was asked to end ([`Run::cancel`](crate::watchdog::Run::cancel)); nothing of it is wrong.
    #[error("cancelled")]
    Cancelled,
}

impl InferError {
    /// A [`ModelError`](Self::ModelError) about `file`.
    pub fn model(file: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::ModelError { file: file.into(), detail: detail.into() }
    }

    /// An [`IoError`](Self::IoError) about `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::IoError { path: path.into(), source }
    }

    /// An [`InputError`](Self::InputError) about item `item`.
    pub fn input(item: usize, detail: impl Into<String>) -> Self {
        Self::InputError { item, detail: detail.into() }
    }

    /// Whether the fault is the item's: it fails so wherever and whenever it is tried. Every other error is of the
    /// machine, the model or the call, and says nothing of the item.
    pub fn is_of_item(&self) -> bool {
        matches!(self, Self::InputError { .. } | Self::TokenizerError { .. } | Self::NonFiniteOutput { .. })
    }

    /// The same error, counted from another first item: a sub-batch reports positions of the whole call.
    pub(crate) fn with_item(self, index: usize) -> Self {
        match self {
            Self::InputError { detail, .. } => Self::InputError { item: index, detail },
            Self::NonFiniteOutput { stage, .. } => Self::NonFiniteOutput { item: index, stage },
            other => other,
        }
    }
}
