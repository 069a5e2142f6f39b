//! Where data goes: stdout, or a file that appears under its name only when it is whole.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Stdout, Write, stdout};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// How results for people or programs are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Fields separated by tabs, one result a line
    Text,
    /// One JSON object a line
    Json,
}

/// `<target>.partial`, renamed to the target by [`commit`](Self::commit), removed when dropped before.
pub struct PendingFile {
    target: PathBuf,
    partial: PathBuf,
    committed: bool,
}

impl PendingFile {
    pub fn new(target: &Path) -> Result<Self> {
        // A link stays a link: what it points to is replaced.
        let target = target.canonicalize().unwrap_or_else(|_| target.to_path_buf());
        if target.exists() && !target.is_file() {
            return Err(Failure::Failed(format!(
                "{}: not a regular file; --output replaces files only",
                target.display()
            )));
        }
        Ok(Self { partial: with_suffix(&target, ".partial"), target, committed: false })
    }

    pub fn partial(&self) -> &Path {
        &self.partial
    }

    pub fn commit(mut self) -> Result<()> {
        std::fs::rename(&self.partial, &self.target).map_err(|e| Failure::io(&self.target, &e))?;
        self.committed = true;
        Ok(())
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// The path of a file without links and dots, whether the file is there or not; its folder has to be.
pub fn real_path(path: &Path) -> PathBuf {
    let of_folder = || {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(of_folder).unwrap_or_else(|| path.to_path_buf())
}

/// `path` with `suffix` after its whole name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Stdout, or a file in the making.
pub enum Sink {
    Stdout(BufWriter<Stdout>),
    File(BufWriter<File>, PendingFile),
}

impl Sink {
    pub fn stdout() -> Self {
        Self::Stdout(BufWriter::new(stdout()))
    }

    pub fn file(target: &Path) -> Result<Self> {
        let pending = PendingFile::new(target)?;
        let file = File::create(pending.partial()).map_err(|e| Failure::io(pending.partial(), &e))?;
        Ok(Self::File(BufWriter::new(file), pending))
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.attempt(|out| out.write_all(bytes))
    }

    /// A JSON value and the end of its line.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value).map_err(|e| Failure::Failed(e.to_string()))?;
        line.push(b'\n');
        self.put(&line)
    }

    /// A text and the end of its line.
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.put(format!("{text}\n").as_bytes())
    }

    pub fn flush(&mut self) -> Result<()> {
        self.attempt(|out| out.flush())
    }

    /// Everything is written: the file gets its name.
    pub fn commit(mut self) -> Result<()> {
        self.flush()?;
        match self {
            Self::Stdout(_) => Ok(()),
            Self::File(writer, pending) => {
                writer.get_ref().sync_all().map_err(|e| Failure::io(pending.partial(), &e))?;
                drop(writer);
                pending.commit()
            }
        }
    }

    pub fn rewrite_start(&mut self, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        if let Self::File(writer, pending) = self {
            let at_start = writer.seek(SeekFrom::Start(0)).and_then(|_| writer.write_all(bytes));
            at_start.map_err(|e| Failure::io(pending.partial(), &e))?;
        }
        Ok(())
    }

    fn attempt(&mut self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        match self {
            Self::Stdout(out) => write(out).map_err(|e| match e.kind() {
                ErrorKind::BrokenPipe => Failure::ClosedPipe,
                _ => Failure::io(Path::new("stdout"), &e),
            }),
            Self::File(out, pending) => write(out).map_err(|e| Failure::io(pending.partial(), &e)),
        }
    }
}
