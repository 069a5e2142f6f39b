//! The journal's lines: each carries a hash of itself, so that a torn one is known.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::digest::short;

/// The first line: what the file is, and the version of its form.
pub(super) const MAGIC: &[u8] = b"kin-infer journal 1\n";

/// What a line says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry<B> {
    /// A run began: what its result depends on, and its files' suffixes.
    Begun { identity: Vec<(String, String)>, parts: Vec<String> },
    /// So many bytes of each part, with hashes, became durable.
    Batch { lengths: Vec<u64>, hashes: Vec<String>, batch: B },
    /// Everything is written.
    Sealed(Sealed),
}

/// What is left to do when everything is written; by suffixes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Sealed {
    /// The files of the output, with their lengths: they only lack their names.
    pub files: Vec<(String, u64)>,
    /// What they were made from, which goes.
    pub scratch: Vec<String>,
    /// Files of an earlier output, which go too.
    #[serde(default)]
    pub stale: Vec<String>,
}

/// A line, with its hash before it.
pub(super) fn line<B: Serialize>(entry: &Entry<B>) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(entry)?;
    Ok(format!("{} {json}\n", check(&json)).into_bytes())
}

/// Reads lines up to the first that is torn.
pub(super) struct Lines<R> {
    reader: R,
    /// Where the last whole line ended.
    pub end: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads the first line. `Ok(None)` where the run that wrote it did not come that far.
    ///
    /// # Errors
    /// [`InvalidData`](io::ErrorKind::InvalidData): the file is not a journal.
    pub fn new(mut reader: R) -> io::Result<Option<Self>> {
        let mut magic = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if magic == MAGIC {
            return Ok(Some(Self { reader, end: MAGIC.len() as u64 }));
        }
        // After a power cut the length of a file may be there before its bytes.
        if MAGIC.starts_with(&magic) || (magic.iter().all(|b| *b == 0) && zeros_alone(&mut reader)?) {
            return Ok(None);
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// The next entry; `None` at the end and at what is torn.
    pub fn next<B: DeserializeOwned>(&mut self) -> io::Result<Option<Entry<B>>> {
        let mut bytes = Vec::new();
        self.reader.read_until(b'\n', &mut bytes)?;
        let entry = parse(&bytes);
        if entry.is_some() {
            self.end += bytes.len() as u64;
        }
        Ok(entry)
    }
}

/// Whether nothing but zero bytes is left.
fn zeros_alone(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() || bytes.iter().any(|b| *b != 0) {
            return Ok(bytes.is_empty());
        }
        let len = bytes.len();
        reader.consume(len);
    }
}

fn parse<B: DeserializeOwned>(line: &[u8]) -> Option<Entry<B>> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (hash, json) = text.split_once(' ')?;
    if hash == check(json) { serde_json::from_str(json).ok() } else { None }
}

fn check(json: &str) -> String {
    short(Sha256::new_with_prefix(json))
}

/// Writes the whole of a new journal: its magic and its first entry.
pub(super) fn begin(file: &mut impl Write, identity: &super::Identity, parts: &[super::Part]) -> io::Result<()> {
    let parts = parts.iter().map(|p| p.suffix.to_string()).collect();
    let entry: Entry<()> = Entry::Begun { identity: identity.to_vec(), parts };
    file.write_all(&[MAGIC, &line(&entry)?].concat())
}
