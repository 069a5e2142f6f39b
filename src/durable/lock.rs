//! One run an output: the lock, and where an output's files lie.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, ErrorKind, Seek};
use std::path::{Path, PathBuf};

use super::journal::{Entry, Lines, Sealed};
use super::{Conflict, DurableFiles, Found, Identity, Part};
use crate::error::{InferError, Result};

/// An output that this process alone may write: its journal is open and locked. The system frees the lock with the
/// process, however that ends. Dropped without a run, it leaves nothing behind.
#[derive(Debug)]
pub struct Locked {
    paths: Paths,
    journal: Option<File>,
}

impl Locked {
    /// Takes an output, which may be there or not, finished or not.
    ///
    /// # Errors
    /// [`RunConflict`](InferError::RunConflict) when another run has it, when the target is no regular file or may not
    /// be written, or when a file that is no journal has a journal's name. [`IoError`](InferError::IoError) when the
    /// folder is not there, may not be written, or lies where files cannot be locked.
    pub fn lock(target: &Path) -> Result<Self> {
        let paths = Paths::of(target);
        if let Ok(there) = std::fs::metadata(&paths.target) {
            if !there.is_file() {
                return Err(paths.conflict(Conflict::NotAFile));
            }
            if there.permissions().readonly() {
                return Err(paths.conflict(Conflict::ReadOnly));
            }
        }
        let path = paths.journal();
        let io = |e| InferError::io(&path, e);
        let journal = loop {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(paths.conflict(Conflict::Locked)),
                Err(TryLockError::Error(e)) => return Err(io(e)),
            }
            // A run that ended this moment may have removed the file that is locked here.
            if still_there(&file, &path) {
                break file;
            }
        };
        let locked = Self { paths, journal: Some(journal) };
        locked.found()?;
        Ok(locked)
    }

    /// What the journal says.
    pub fn found(&self) -> Result<Found> {
        let Some(mut lines) = self.lines()? else { return Ok(Found::Nothing) };
        let mut batches = 0;
        while let Some(entry) = lines.next::<serde::de::IgnoredAny>().map_err(|e| self.io(e))? {
            match entry {
                Entry::Begun { .. } => {}
                Entry::Batch { .. } => batches += 1,
                // Between the last line and the last rename a run can be killed.
                Entry::Sealed(sealed) if self.lacks_names(&sealed) => return Ok(Found::Unfinished { batches }),
                Entry::Sealed(_) => return Ok(Found::Finished),
            }
        }
        Ok(if batches == 0 { Found::Nothing } else { Found::Unfinished { batches } })
    }

    /// Whether a finished file still lies under the name of one in the making.
    fn lacks_names(&self, sealed: &Sealed) -> bool {
        sealed.files.iter().any(|(suffix, _)| self.paths.partial(suffix).exists())
    }

    /// Begins anew. What an unfinished run left is lost; a finished output stays until the new one is whole.
    ///
    /// # Errors
    /// [`IoError`](InferError::IoError).
    pub fn start<B>(mut self, identity: &Identity, parts: &[Part]) -> Result<DurableFiles<B>> {
        self.remove_partials()?;
        let (paths, journal) = self.take()?;
        DurableFiles::create(paths, journal, identity, parts)
    }

    /// Removes the files in the making of the run whose journal is there.
    fn remove_partials(&self) -> Result<()> {
        let Some(mut lines) = self.lines()? else { return Ok(()) };
        if let Some(Entry::<()>::Begun { parts, .. }) = lines.next().map_err(|e| self.io(e))? {
            parts.iter().try_for_each(|suffix| remove(&self.paths.partial(suffix)))?;
        }
        Ok(())
    }

    /// The journal's lines from the first; none of a journal that was not begun.
    pub(super) fn lines(&self) -> Result<Option<Lines<BufReader<&File>>>> {
        let Some(mut file) = self.journal.as_ref() else { return Ok(None) };
        file.rewind().map_err(|e| self.io(e))?;
        Lines::new(BufReader::new(file)).map_err(|e| match e.kind() {
            ErrorKind::InvalidData => self.paths.conflict(Conflict::Foreign),
            _ => self.io(e),
        })
    }

    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The open journal, which the lock goes with.
    pub(super) fn take(&mut self) -> Result<(Paths, File)> {
        match self.journal.take() {
            Some(journal) => Ok((self.paths.clone(), journal)),
            None => Err(self.io(ErrorKind::NotFound.into())),
        }
    }

    fn io(&self, error: std::io::Error) -> InferError {
        InferError::io(self.paths.journal(), error)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.journal.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|m| m.len() == 0) {
            let _ = std::fs::remove_file(self.paths.journal());
        }
    }
}

/// Links to links that are followed, as many as Linux follows.
const MOST_LINKS: usize = 40;

/// Where an output's files lie.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub target: PathBuf,
}

impl Paths {
    /// A link stays a link: what it points to is the target.
    fn of(target: &Path) -> Self {
        let mut target = target.to_path_buf();
        for _ in 0..MOST_LINKS {
            if let Ok(whole) = target.canonicalize() {
                return Self { target: whole };
            }
            // A link to what is not there yet.
            let Ok(next) = std::fs::read_link(&target) else { break };
            target = target.parent().unwrap_or(Path::new("")).join(next);
        }
        Self { target }
    }

    pub fn journal(&self) -> PathBuf {
        self.with(".journal")
    }

    /// A part under its own name.
    pub fn whole(&self, suffix: &str) -> PathBuf {
        self.with(suffix)
    }

    /// A part in the making.
    pub fn partial(&self, suffix: &str) -> PathBuf {
        self.with(&format!("{suffix}.partial"))
    }

    pub fn conflict(&self, conflict: Conflict) -> InferError {
        InferError::RunConflict { target: self.target.clone(), conflict }
    }

    /// Makes what was created, renamed and removed in the folder durable.
    pub fn sync_folder(&self) -> Result<()> {
        let folder = self.target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_folder(folder).map_err(|e| InferError::io(folder, e))
    }

    fn with(&self, suffix: &str) -> PathBuf {
        let mut name = self.target.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    }
}

/// Removes a file that may be there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(InferError::io(path, e)),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Only Unix has folders to flush; elsewhere a rename is as durable as the file system makes it.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn still_there(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(not(unix))]
fn still_there(_: &File, path: &Path) -> bool {
    path.exists()
}
