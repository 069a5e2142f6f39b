//! What texts became, by the hash of all that decides it: what is known is not computed again.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Conflict, Identity};
use crate::error::{InferError, Result};

/// What a file of rows begins with.
const MAGIC: &[u8; 16] = b"kin-infer rows 1";
/// Before each row: its length (u32), its key, the start of its hash.
const HEAD: usize = 4 + 32 + CHECK;
const CHECK: usize = 8;

/// The name of a row: SHA-256 over the text and everything else the row depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowKey([u8; 32]);

impl RowKey {
    /// The key of `text` where all else is as `identity` says: the model's hash, the prompt, the options.
    pub fn new(identity: &Identity, text: &str) -> Self {
        let mut hash = Sha256::new();
        let pairs = identity.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        for word in pairs.chain([text]) {
            hash.update((word.len() as u64).to_le_bytes());
            hash.update(word);
        }
        Self(hash.finalize().into())
    }
}

/// A file of rows that only grows. One process at a time has it. Its index takes about 60 bytes of memory a row; the
/// rows stay in the file. A row that is not as it was written counts as absent.
#[derive(Debug)]
pub struct RowCache {
    path: PathBuf,
    file: File,
    /// Where each row lies.
    index: HashMap<RowKey, (u64, u32)>,
    /// Bytes in the file.
    len: u64,
    /// Rows that are not in the file yet; they follow `len`.
    pending: Vec<u8>,
}

impl RowCache {
    /// Opens a file of rows, or makes one. What a killed process left half written at its end is cut off.
    ///
    /// # Errors
    /// [`RunConflict`](InferError::RunConflict) when another process has it, or when it is something else;
    /// [`IoError`](InferError::IoError).
    pub fn open(path: &Path) -> Result<Self> {
        let io = |e| InferError::io(path, e);
        let conflict = |conflict| InferError::RunConflict { target: path.to_path_buf(), conflict };
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(conflict(Conflict::Locked)),
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
        let mut this = Self { path: path.to_path_buf(), file, index: HashMap::new(), len: 0, pending: Vec::new() };
        if !this.read_index().map_err(io)? {
            return Err(conflict(Conflict::NotRows));
        }
        Ok(this)
    }

    /// Reads where the rows lie; `false` if the file is something else.
    fn read_index(&mut self) -> std::io::Result<bool> {
        let total = self.file.metadata()?.len();
        let mut reader = BufReader::new(&self.file);
        let mut magic = Vec::new();
        (&mut reader).take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if magic != MAGIC {
            let torn = total < MAGIC.len() as u64 && MAGIC.starts_with(&magic);
            if torn {
                self.file.set_len(0)?;
                self.pending.extend_from_slice(MAGIC);
            }
            return Ok(torn);
        }
        self.len = MAGIC.len() as u64;
        let mut head = [0; HEAD];
        while total - self.len >= HEAD as u64 {
            reader.read_exact(&mut head)?;
            let (len, key) = parse_head(&head);
            let end = self.len + HEAD as u64 + u64::from(len);
            if end > total {
                break;
            }
            self.index.insert(key, (self.len, len));
            reader.seek_relative(len.into())?;
            self.len = end;
        }
        self.file.set_len(self.len)?;
        Ok(true)
    }

    /// Rows it has.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The row of a key, if it is there and whole.
    ///
    /// # Errors
    /// [`IoError`](InferError::IoError).
    pub fn get(&mut self, key: &RowKey) -> Result<Option<Vec<u8>>> {
        let Some(&(start, len)) = self.index.get(key) else { return Ok(None) };
        let size = HEAD + len as usize;
        let bytes = match start.checked_sub(self.len) {
            Some(at) => self.pending[at as usize..][..size].to_vec(),
            None => {
                let mut bytes = vec![0; size];
                let read = self.file.seek(SeekFrom::Start(start)).and_then(|_| self.file.read_exact(&mut bytes));
                match read {
                    Err(e) if e.kind() != ErrorKind::UnexpectedEof => return Err(InferError::io(&self.path, e)),
                    Err(_) => return Ok(None),
                    Ok(()) => bytes,
                }
            }
        };
        let (head, row) = bytes.split_at(HEAD);
        let whole = head == self::head(key, row);
        Ok(whole.then(|| row.to_vec()))
    }

    /// Adds a row, which takes the place of one with its key. A row of 4 GiB or more is left out.
    pub fn put(&mut self, key: RowKey, row: &[u8]) {
        let Ok(len) = u32::try_from(row.len()) else { return };
        self.index.insert(key, (self.len + self.pending.len() as u64, len));
        self.pending.extend_from_slice(&head(&key, row));
        self.pending.extend_from_slice(row);
    }

    /// Writes the rows that were added since. They need not be durable: a lost row is computed again.
    ///
    /// # Errors
    /// [`IoError`](InferError::IoError).
    pub fn flush(&mut self) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(self.len)).and_then(|_| self.file.write_all(&self.pending));
        written.map_err(|e| InferError::io(&self.path, e))?;
        self.len += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

fn head(key: &RowKey, row: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&(row.len() as u32).to_le_bytes());
    head[4..36].copy_from_slice(&key.0);
    head[36..].copy_from_slice(&Sha256::digest(row)[..CHECK]);
    head
}

fn parse_head(head: &[u8; HEAD]) -> (u32, RowKey) {
    let (mut len, mut key) = ([0; 4], [0; 32]);
    len.copy_from_slice(&head[..4]);
    key.copy_from_slice(&head[4..36]);
    (u32::from_le_bytes(len), RowKey(key))
}
