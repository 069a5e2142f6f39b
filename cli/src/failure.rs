//! How a command ends.

use std::path::Path;

use kin_infer::InferError;

/// Result of the command line's functions.
pub type Result<T> = std::result::Result<T, Failure>;

/// A command that came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Everything was delivered.
    Whole,
    /// Some inputs failed and were reported; the others were delivered.
    InPart,
}

impl Done {
    /// By the number of inputs that failed.
    pub fn with_failures(failed: usize) -> Self {
        if failed == 0 { Self::Whole } else { Self::InPart }
    }
}

/// A command that stopped.
#[derive(Debug)]
pub enum Failure {
    /// The arguments contradict each other: exit code 2.
    Usage(String),
    /// Exit code 1.
    Failed(String),
    /// Ctrl-C ended it: exit code 130.
    Interrupted(String),
    /// The reader of stdout has gone, as `head` does: nobody is left to tell.
    ClosedPipe,
}

impl Failure {
    /// What the system said about a file.
    pub fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("{}: {error}", path.display()))
    }
}

impl From<InferError> for Failure {
    fn from(error: InferError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Why an item failed, without its position in the call: the caller names the item itself.
pub fn item_detail(error: &InferError) -> String {
    match error {
        InferError::InputError { detail, .. } => detail.clone(),
        InferError::NonFiniteOutput { stage, .. } => {
            format!("non-finite value first seen after {stage}; the checkpoint overflows in this precision")
        }
        other => other.to_string(),
    }
}
