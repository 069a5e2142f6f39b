//! The files of a run: appended to, committed, finished.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Take, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::digest::short;
use super::journal::{self, Entry, Sealed};
use super::lock::{Paths, remove};
use super::recover::seal;
use super::{Conflict, Identity, Part};
use crate::error::{InferError, Result};

/// The files of a run that is not finished. Dropped before anything was committed, it leaves nothing; dropped later, it
/// leaves what [`Locked::resume`](super::Locked::resume) goes on with. `B` is what the caller records of each batch:
/// its place in the input, above all.
#[derive(Debug)]
pub struct DurableFiles<B> {
    paths: Paths,
    journal: File,
    parts: Vec<Appended>,
    /// Length of the file that [`make`](Self::make) made.
    made: Option<u64>,
    /// Something is committed, or it is finished: what is on disk stays.
    stays: bool,
    /// A write failed: nobody knows what of it is on disk, so nothing may follow it.
    torn: bool,
    /// Suffixes of files that go when the output gets its names.
    stale: Vec<String>,
    record: PhantomData<fn(&B)>,
}

/// A part in the making.
#[derive(Debug)]
pub(super) struct Appended {
    pub part: Part,
    pub path: PathBuf,
    pub writer: BufWriter<File>,
    /// Bytes that are committed, the head among them.
    pub committed: u64,
    /// Bytes appended since, and their hash.
    pub appended: u64,
    pub hash: Sha256,
}

impl Appended {
    /// Opens a part that has `committed` durable bytes, and cuts off what follows them.
    pub fn open(paths: &Paths, part: Part, committed: u64) -> Result<Self> {
        let path = paths.partial(part.suffix);
        let open = || {
            let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            file.set_len(committed)?;
            file.seek(SeekFrom::End(0))?;
            Ok(BufWriter::with_capacity(1 << 16, file))
        };
        let writer = open().map_err(|e| InferError::io(&path, e))?;
        Ok(Self { part, path, writer, committed, appended: 0, hash: Sha256::new() })
    }

    fn attempt<T>(&mut self, act: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<T>) -> Result<T> {
        act(&mut self.writer).map_err(|e| InferError::io(&self.path, e))
    }
}

impl<B> DurableFiles<B> {
    pub(super) fn create(paths: Paths, journal: File, identity: &Identity, parts: &[Part]) -> Result<Self> {
        let mut this = Self::resumed(paths, journal, Vec::new(), false);
        this.journal_write(|journal| {
            journal.set_len(0)?;
            journal.rewind()?;
            journal::begin(journal, identity, parts)
        })?;
        for part in parts {
            // From a run whose journal is lost, there may be a longer one.
            remove(&this.paths.partial(part.suffix))?;
            this.parts.push(Appended::open(&this.paths, *part, part.head as u64)?);
        }
        this.paths.sync_folder()?;
        Ok(this)
    }

    /// The files of a run that had committed something. The journal stands at its end.
    pub(super) fn resumed(paths: Paths, journal: File, parts: Vec<Appended>, stays: bool) -> Self {
        Self { paths, journal, parts, made: None, stays, torn: false, stale: Vec::new(), record: PhantomData }
    }

    /// Does what writes, unless an earlier write failed; a failure is the last thing that is done.
    fn writing<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.torn {
            return Err(self.paths.conflict(Conflict::Torn));
        }
        let done = act(self);
        self.torn = done.is_err();
        done
    }

    /// Appends to a part, by its place in the list the run began with.
    ///
    /// # Errors
    /// [`IoError`](InferError::IoError): the disk is full, or the system's limit on a file is reached. What was
    /// committed stays, and nothing can be added any more ([`Conflict::Torn`]): a later run goes on.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn append(&mut self, part: usize, bytes: &[u8]) -> Result<()> {
        self.writing(|this| {
            let part = &mut this.parts[part];
            part.hash.update(bytes);
            part.appended += bytes.len() as u64;
            part.attempt(|writer| writer.write_all(bytes))
        })
    }

    /// The output that is written.
    pub fn target(&self) -> &Path {
        &self.paths.target
    }

    /// Bytes of a part that were appended in all sessions, committed or not, without its head.
    pub fn appended(&self, part: usize) -> u64 {
        let part = &self.parts[part];
        part.committed + part.appended - part.part.head as u64
    }

    /// Makes what was appended durable, with what the caller says of it. When this returns, neither the end of the
    /// process nor of the system's power takes it back.
    ///
    /// # Errors
    /// As [`append`](Self::append). What was appended since the last commit is then not durable.
    pub fn commit(&mut self, batch: &B) -> Result<()>
    where
        B: Serialize,
    {
        self.writing(|this| {
            let (mut lengths, mut hashes) = (Vec::new(), Vec::new());
            for part in &mut this.parts {
                if part.appended > 0 {
                    part.attempt(|writer| writer.flush().and_then(|()| writer.get_ref().sync_data()))?;
                }
                lengths.push(part.appended);
                hashes.push(short(std::mem::take(&mut part.hash)));
            }
            let line = journal::line(&Entry::Batch { lengths, hashes, batch });
            this.journal_write(|journal| journal.write_all(&line?))?;
            for part in &mut this.parts {
                part.committed += std::mem::take(&mut part.appended);
            }
            this.stays = true;
            Ok(())
        })
    }

    /// Makes the output, `<target>` itself, from what was committed to the scratch parts: `write` gets a file and a
    /// reader for each part. It may have to be made again in a later session, so it has to depend on nothing else.
    ///
    /// # Errors
    /// Those of `write`, and of the system.
    pub fn make(&mut self, write: impl FnOnce(&File, Vec<Take<BufReader<File>>>) -> Result<()>) -> Result<()> {
        let mut readers = Vec::new();
        self.writing(|this| this.parts.iter_mut().try_for_each(|part| part.attempt(|writer| writer.flush())))?;
        for part in &self.parts {
            let open = || {
                let mut file = File::open(&part.path)?;
                file.seek(SeekFrom::Start(part.part.head as u64))?;
                let len = part.committed - part.part.head as u64;
                Ok(BufReader::with_capacity(1 << 16, file).take(len))
            };
            readers.push(open().map_err(|e| InferError::io(&part.path, e))?);
        }
        let path = self.paths.partial("");
        let io = |e| InferError::io(&path, e);
        let file = File::create(&path).map_err(io)?;
        write(&file, readers)?;
        file.sync_all().map_err(io)?;
        self.made = Some(file.metadata().map_err(io)?.len());
        Ok(())
    }

    /// Gives the files their names. `heads` are the first bytes of parts, by their places; what was appended after the
    /// last commit is left out. With `keep`, the journal stays beside the output, so that a later run with the same
    /// identity finds it finished.
    ///
    /// # Errors
    /// [`InvalidArgument`](InferError::InvalidArgument) for a head of another length than its part was declared with;
    /// [`IoError`](InferError::IoError).
    pub fn finish(mut self, heads: &[(usize, Vec<u8>)], keep: bool) -> Result<()> {
        self.stays = true;
        self.writing(|this| this.end(heads))?;
        if !keep {
            remove(&self.paths.journal())?;
            self.paths.sync_folder()?;
        }
        Ok(())
    }

    /// Has `<target><suffix>` removed when the files get their names: what an earlier output of another form left, and
    /// a reader would take for part of this one.
    pub fn remove_at_end(&mut self, suffix: &str) {
        self.stale.push(suffix.to_string());
    }

    fn end(&mut self, heads: &[(usize, Vec<u8>)]) -> Result<()> {
        for (part, head) in heads {
            let part = &mut self.parts[*part];
            if head.len() != part.part.head {
                let message = format!("a head of {} bytes for a part with {}", head.len(), part.part.head);
                return Err(InferError::InvalidArgument(message));
            }
            part.attempt(|writer| {
                writer.flush()?;
                let file = writer.get_mut();
                file.rewind()?;
                file.write_all(head)
            })?;
        }
        let (mut files, mut scratch) = (Vec::new(), Vec::new());
        for part in &mut self.parts {
            if part.part.scratch {
                scratch.push(part.part.suffix.to_string());
                continue;
            }
            let committed = part.committed;
            part.attempt(|writer| {
                writer.flush()?;
                writer.get_ref().set_len(committed)?;
                writer.get_ref().sync_all()
            })?;
            files.push((part.part.suffix.to_string(), committed));
        }
        files.extend(self.made.map(|len| (String::new(), len)));
        self.paths.sync_folder()?;
        let sealed = Sealed { files, scratch, stale: std::mem::take(&mut self.stale) };
        let line = journal::line(&Entry::<()>::Sealed(sealed.clone()));
        self.journal_write(|journal| journal.write_all(&line?))?;
        // Windows renames no open file.
        self.parts.clear();
        seal(&self.paths, &sealed)
    }

    fn journal_write(&mut self, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
        let written = write(&mut self.journal).and_then(|()| self.journal.sync_data());
        written.map_err(|e| InferError::io(self.paths.journal(), e))
    }
}

impl<B> Drop for DurableFiles<B> {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        for part in self.parts.drain(..) {
            let path = part.path.clone();
            drop(part);
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_file(self.paths.journal());
    }
}
