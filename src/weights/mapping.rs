//! A file mapped into memory, read-only.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{InferError, Result};

/// Linux keeps a file's cached pages in pieces of up to a huge page, at multiples of their size in the file, and maps a
/// whole piece when one byte of it is read.
const PIECE: usize = 2 << 20;

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

    /// What may be mapped once all of these bytes were read.
    pub(super) fn mapped_with(&self, bytes: Range<usize>) -> Range<usize> {
        let len = self.map.len();
        let end = bytes.end.checked_next_multiple_of(PIECE).unwrap_or(len).min(len);
        (bytes.start / PIECE * PIECE).min(end)..end
    }

    /// As [`release_pages`](Self::release_pages), for the pages that were mapped with these bytes.
    pub(super) fn release_range(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        {
            let bytes = self.mapped_with(bytes);
            let range = (bytes.start, bytes.len());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_maps_whole_pieces_of_the_file() {
        let file = std::env::temp_dir().join(format!("kin-infer-mapping-{}", std::process::id()));
        let len = 2 * PIECE + 5;
        fs::write(&file, vec![7; len]).unwrap();
        let mapping = Mapping::open(&file, "a file").unwrap();
        fs::remove_file(&file).unwrap();
        for (read, mapped) in [
            (0..1, 0..PIECE),
            (PIECE - 1..PIECE + 1, 0..2 * PIECE),
            (PIECE..2 * PIECE, PIECE..2 * PIECE),
            (len - 1..len, 2 * PIECE..len),
            (usize::MAX - 1..usize::MAX, len..len),
        ] {
            assert_eq!(mapping.mapped_with(read.clone()), mapped, "{read:?}");
            mapping.release_range(read);
            assert!(mapping.bytes().iter().all(|byte| *byte == 7));
        }
    }
}
