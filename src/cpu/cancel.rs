//! [`Cancel`]: the flag that operations poll between tiles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{InferError, Result};

/// A flag that is set once, or none. An operation that sees it set leaves the rest of its output as it is, and then has
/// to fail by [`check`](Self::check).
#[derive(Clone, Default)]
pub(super) struct Cancel(Option<Arc<AtomicBool>>);

impl Cancel {
    pub fn polling(flag: &Arc<AtomicBool>) -> Self {
        Self(Some(Arc::clone(flag)))
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// The end of an operation.
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(InferError::Cancelled) } else { Ok(()) }
    }
}
