//! Output files of a long run that a kill, a full disk or a power cut at any moment leaves fit to go on with.
//!
//! [`DurableFiles`] is a set of append-only files with a journal beside them. What is appended counts from the
//! [`commit`](DurableFiles::commit) after it: the files are on disk before the journal says so, and the journal before
//! `commit` returns. A later run finds the journal, cuts off whatever was not committed, and goes on; the files get
//! their names when they are whole. [`RowCache`] keeps what texts became, by the hash of all that decides it.
//!
//! ```
//! use kin_infer::durable::{Locked, Part, Resumed};
//!
//! # fn main() -> kin_infer::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("durable-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! # let target = folder.join("squares.txt");
//! // What the result depends on: a run of anything else is not gone on with.
//! let identity = [("count".to_string(), "1000".to_string())];
//! let mut next = 0u64;
//! let resumed = Locked::lock(&target)?.resume(&identity, &[Part::named("")], |end: u64| next = end)?;
//! if let Resumed::Unfinished(mut files) = resumed {
//!     while next < 1000 {
//!         let end = next + 100;
//!         for n in next..end {
//!             files.append(0, format!("{}\n", n * n).as_bytes())?;
//!         }
//!         files.commit(&end)?; // from here on these lines are not lost
//!         next = end;
//!     }
//!     files.finish(&[], false)?;
//! }
//! assert_eq!(std::fs::read_to_string(&target).unwrap().lines().last(), Some("998001"));
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(()) }
//! ```
//!
//! docs/operations.md states what is guaranteed and how.

mod cache;
mod digest;
mod files;
mod journal;
mod lock;
mod recover;

pub use cache::{RowCache, RowKey};
pub use digest::model_digest;
pub use files::DurableFiles;
pub use lock::Locked;
pub use recover::Resumed;

/// What the result of a run depends on, each by a name: hashes of the model and the input, options, versions.
pub type Identity = [(String, String)];

/// A file of an output, `<target><suffix>`. While it is written it is `<target><suffix>.partial`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// What its name has after the target's.
    pub suffix: &'static str,
    /// Bytes at its start that are written at the end: a header with a length in it.
    pub head: usize,
    /// It is not part of the output: [`DurableFiles::make`] makes the output from it, then it is removed.
    pub scratch: bool,
}

impl Part {
    /// A file without a header.
    pub const fn named(suffix: &'static str) -> Self {
        Self { suffix, head: 0, scratch: false }
    }

    /// A file whose first `head` bytes are written at the end.
    pub const fn with_head(suffix: &'static str, head: usize) -> Self {
        Self { suffix, head, scratch: false }
    }

    /// A file that the output is made from.
    pub const fn scratch(suffix: &'static str) -> Self {
        Self { suffix, head: 0, scratch: true }
    }
}

/// What a journal says of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// No run that committed anything.
    Nothing,
    /// A run that did not come to its end, or whose finished files do not all have their names yet.
    Unfinished {
        /// Its commits.
        batches: usize,
    },
    /// A run that did, and kept its journal.
    Finished,
}

/// Why a run cannot begin an output, or go on with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Conflict {
    /// Another process is at it.
    #[error("another run is writing it; wait for its end, or choose another output")]
    Locked,
    /// The target is a folder, a device, a pipe.
    #[error("not a regular file; an output replaces files only")]
    NotAFile,
    /// The target is a file that nobody may write.
    #[error("it is there and read-only; an output does not replace what is protected")]
    ReadOnly,
    /// The file with a journal's name is something else.
    #[error("the file of that name with `.journal` after it is not the journal of a run; move it away")]
    Foreign,
    /// An earlier write of this run failed, so that nobody knows what of it is on disk.
    #[error("an earlier write to it failed; what was committed is kept, and another run goes on from there")]
    Torn,
    /// The target is to be a [`RowCache`].
    #[error("it is no file of rows that a run made; move it away, or name another")]
    NotRows,
    /// The run would give another result than the one whose journal is there.
    #[error("its run was begun with another {what}: `{recorded}` then, `{found}` now")]
    Changed {
        /// The name in the [`Identity`].
        what: String,
        /// Its value in the journal.
        recorded: String,
        /// Its value now.
        found: String,
    },
    /// The journal says that the output is finished, but it is not as it was then.
    #[error("its run has finished, but {file} {now} (it had {bytes} bytes)")]
    Lost {
        /// The file at fault.
        file: String,
        /// What is with it.
        now: &'static str,
        /// Its length when the run finished.
        bytes: u64,
    },
}
