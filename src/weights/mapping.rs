//! A file mapped into memory, read-only.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{InferError, Result};

/// A mapped file and its path. Never empty.
#[derive(Debug)]
pub(super) struct Mapping {
    path: PathBuf,
    map: Mmap,
}

impl Mapping {
    /// Maps the regular file at `path`, which ought to be `expected`; symbolic links are followed.
    pub(super) fn open(path: &Path, expected: &str) -> Result<Self> {
        // The kind is known before the open, which would wait forever on a named pipe.
        let metadata = fs::metadata(path).map_err(|e| InferError::io(path, e))?;
        if !metadata.is_file() {
            return Err(InferError::model(path, format!("expected {expected}, found a folder or a special file")));
        }
        if metadata.len() == 0 {
            return Err(InferError::model(path, format!("expected {expected}, found an empty file (0 bytes)")));
        }
        let file = File::open(path).map_err(|e| InferError::io(path, e))?;
        // SAFETY: the mapping is read-only and private to this type, which hands out shared slices that borrow from it,
        // so it outlives them. That no one changes or truncates the file meanwhile is the documented contract of the
        // module.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| InferError::io(path, e))?;
        Ok(Self { path: path.to_owned(), map })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Lets the system drop the mapped pages; the next access reads the file again.
    pub(super) fn release_pages(&self) {
        self.release_range(0..self.map.len());
    }

    /// As [`release_pages`](Self::release_pages), for the pages that hold these bytes.
    pub(super) fn release_range(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        {
            let range = (bytes.start.min(self.map.len()), bytes.end.min(self.map.len()).saturating_sub(bytes.start));
            // SAFETY: the range lies in the mapping, which is backed by the file and was never written, so a dropped page
            // comes back with the same bytes, and slices that borrow from the mapping stay valid.
            let outcome =
                unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.0, range.1) };
            // A hint: where the system declines it, the pages stay and nothing else changes.
            drop(outcome);
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }
}
