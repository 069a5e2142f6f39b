//! Going on with what a journal says.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::digest::short;
use super::files::Appended;
use super::journal::{Entry, Sealed};
use super::lock::{Paths, remove};
use super::{Conflict, DurableFiles, Identity, Locked, Part};
use crate::error::{InferError, Result};

/// What [`Locked::resume`] came to.
#[derive(Debug)]
pub enum Resumed<B> {
    /// A run to go on with, or, where there was none, its beginning.
    Unfinished(DurableFiles<B>),
    /// The output is whole.
    Finished,
}

impl Locked {
    /// Goes on with the run whose journal is there; begins one where there is none. `each` gets what was recorded of
    /// each batch, in order. The batches' bytes are read and compared with their hashes: from the first that is not
    /// as it was, everything is cut off, to be made again.
    ///
    /// # Errors
    /// [`RunConflict`](InferError::RunConflict) when the journal's identity is another, or its output is finished and
    /// gone; [`IoError`](InferError::IoError).
    pub fn resume<B: DeserializeOwned>(
        mut self,
        identity: &Identity,
        parts: &[Part],
        mut each: impl FnMut(B),
    ) -> Result<Resumed<B>> {
        let io = |paths: &Paths, e| InferError::io(paths.journal(), e);
        let Some(Survey { identity: recorded, sealed }) = self.survey()? else {
            return self.start(identity, parts).map(Resumed::Unfinished);
        };
        self.compare(&recorded, identity)?;
        let paths = self.paths().clone();
        let mut checks = if sealed.is_some() { Vec::new() } else { Check::open_all(&paths, parts)? };
        let mut any = false;
        let mut end = 0;
        let Some(mut lines) = self.lines()? else { return self.start(identity, parts).map(Resumed::Unfinished) };
        while let Some(entry) = lines.next().map_err(|e| io(&paths, e))? {
            if let Entry::Batch { lengths, hashes, batch } = entry {
                if !Check::batch(&mut checks, &lengths, &hashes)? {
                    break;
                }
                each(batch);
                any = true;
            }
            end = lines.end;
        }
        if let Some(sealed) = sealed {
            seal(&paths, &sealed)?;
            return Ok(Resumed::Finished);
        }
        let open = |check: &Check| Appended::open(&paths, check.part, check.verified);
        let appended = checks.iter().map(open).collect::<Result<Vec<_>>>()?;
        let (paths, mut journal) = self.take()?;
        let cut = journal.set_len(end).and_then(|()| journal.seek(SeekFrom::End(0)));
        cut.and_then(|_| journal.sync_data()).map_err(|e| io(&paths, e))?;
        paths.sync_folder()?;
        Ok(Resumed::Unfinished(DurableFiles::resumed(paths, journal, appended, any)))
    }

    /// The identity in the journal, and what it says of the finished files.
    fn survey(&self) -> Result<Option<Survey>> {
        let io = |e| InferError::io(self.paths().journal(), e);
        let Some(mut lines) = self.lines()? else { return Ok(None) };
        let Some(Entry::<serde::de::IgnoredAny>::Begun { identity, .. }) = lines.next().map_err(io)? else {
            return Ok(None);
        };
        let mut sealed = None;
        while let Some(entry) = lines.next::<serde::de::IgnoredAny>().map_err(io)? {
            if let Entry::Sealed(found) = entry {
                sealed = Some(found);
            }
        }
        Ok(Some(Survey { identity, sealed }))
    }

    fn compare(&self, recorded: &Identity, now: &Identity) -> Result<()> {
        let value = |identity: &Identity, name: &str| {
            identity.iter().find(|(n, _)| n == name).map_or("nothing".to_string(), |(_, value)| value.clone())
        };
        let names = now.iter().chain(recorded).map(|(name, _)| name);
        for name in names {
            let (recorded, found) = (value(recorded, name), value(now, name));
            if recorded != found {
                return Err(self.paths().conflict(Conflict::Changed { what: name.clone(), recorded, found }));
            }
        }
        Ok(())
    }
}

/// What a journal says as a whole.
struct Survey {
    identity: Vec<(String, String)>,
    sealed: Option<Sealed>,
}

/// Reads a part along with the journal.
struct Check {
    part: Part,
    /// Absent where the part is not there.
    file: Option<(PathBuf, File)>,
    /// Bytes that are as the journal says, the head among them.
    verified: u64,
}

impl Check {
    fn open_all(paths: &Paths, parts: &[Part]) -> Result<Vec<Self>> {
        let open = |part: &Part| {
            let path = paths.partial(part.suffix);
            let head = part.head as u64;
            let opened = File::open(&path).and_then(|mut file| file.seek(SeekFrom::Start(head)).map(|_| file));
            let file = match opened {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
                Ok(file) => Some((path, file)),
                Err(e) => return Err(InferError::io(path, e)),
            };
            Ok(Self { part: *part, file, verified: head })
        };
        parts.iter().map(open).collect()
    }

    /// Whether the next bytes of every part have the lengths and hashes of a batch; if so they are verified. Without
    /// parts there is nothing to say against it.
    fn batch(checks: &mut [Self], lengths: &[u64], hashes: &[String]) -> Result<bool> {
        if checks.is_empty() {
            return Ok(true);
        }
        if checks.len() != lengths.len() || checks.len() != hashes.len() {
            return Ok(false);
        }
        let mut whole = true;
        for ((check, len), hash) in checks.iter_mut().zip(lengths).zip(hashes) {
            whole = whole && check.hash(*len)?.is_some_and(|found| found == *hash);
        }
        if whole {
            checks.iter_mut().zip(lengths).for_each(|(check, len)| check.verified += len);
        }
        Ok(whole)
    }

    /// The hash of the next `len` bytes; none where there are fewer. Bytes that cannot be read now may be as they were.
    fn hash(&mut self, len: u64) -> Result<Option<String>> {
        let mut hash = Sha256::new();
        if len > 0 {
            let Some((path, file)) = &mut self.file else { return Ok(None) };
            let read = std::io::copy(&mut file.take(len), &mut hash).map_err(|e| InferError::io(&*path, e))?;
            if read < len {
                return Ok(None);
            }
        }
        Ok(Some(short(hash)))
    }
}

/// Gives finished files their names, and removes what they were made from and what is stale. It may have been done
/// before, in part or wholly.
pub(super) fn seal(paths: &Paths, sealed: &Sealed) -> Result<()> {
    for (suffix, bytes) in &sealed.files {
        let (partial, whole) = (paths.partial(suffix), paths.whole(suffix));
        if partial.exists() {
            std::fs::rename(&partial, &whole).map_err(|e| InferError::io(&whole, e))?;
            continue;
        }
        let now = match std::fs::metadata(&whole) {
            Err(_) => "is not there any more",
            Ok(there) if there.len() != *bytes => "has another length",
            Ok(_) => continue,
        };
        let file = whole.display().to_string();
        return Err(paths.conflict(Conflict::Lost { file, now, bytes: *bytes }));
    }
    sealed.stale.iter().try_for_each(|suffix| remove(&paths.whole(suffix)))?;
    paths.sync_folder()?;
    sealed.scratch.iter().try_for_each(|suffix| remove(&paths.partial(suffix)))
}
