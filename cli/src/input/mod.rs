//! Texts with their ids: from arguments, lines of text, JSON lines or the files of a folder. Records are read one at a
//! time and cut into pieces in windows, so that memory stays bounded.

mod folder;
#[cfg(feature = "functions")]
mod functions;
mod lines;
mod split;

use std::io::{IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::failure::{Failure, Result};
use folder::Folder;
use lines::Lines;
pub use split::{Amount, Pieces, Place, Split, Splitter};

/// Largest size of a record. A tokenizer takes a hundred times the memory of its text.
const LONGEST: usize = 32 << 20;

#[derive(clap::Args)]
pub struct InputArgs {
    /// Read texts from FILE, or from stdin with `-` (the default when no text is an argument): one text a line, empty
    /// lines included, with the line number from 1 as id; or JSON lines. Of a folder, the text files that git does not
    /// ignore, with their paths as ids
    #[arg(long, value_name = "FILE|FOLDER|-")]
    pub input: Option<PathBuf>,
    /// How --input is read. `auto`: a name that ends in .jsonl or .ndjson holds JSON lines, everything else and stdin
    /// holds plain text. JSON lines are {"id": ..., "text": ...}; an id is a string or a whole number and comes back
    /// unchanged; without one it is the line number from 1
    #[arg(long, value_enum, default_value_t = InputFormat::Auto)]
    pub input_format: InputFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    Auto,
    Text,
    Jsonl,
}

/// A text and its id, a JSON string or number.
#[derive(Debug)]
pub struct Item {
    pub id: Value,
    pub text: String,
}

/// An input that could not be read; the message names its line or file.
#[derive(Debug)]
pub struct Bad(pub String);

/// What came of a record.
pub type Found = std::result::Result<Item, Bad>;

/// Where records come from.
pub struct Records {
    source: Source,
    /// Bytes of the input, where they are known.
    pub total_bytes: Option<u64>,
    /// Bytes read so far.
    pub read_bytes: u64,
    /// Records read so far.
    pub read: u64,
    /// Over all that was read.
    hash: Sha256,
}

enum Source {
    Arguments(std::iter::Enumerate<std::vec::IntoIter<String>>),
    Lines(Lines),
    Folder(Box<Folder>),
}

/// What reading an input once tells of it.
pub struct Survey {
    pub digest: String,
    pub bytes: u64,
}

impl Records {
    /// From the texts of the command line if there are any, else from `args`. Of a folder, the files of `own`, real
    /// paths, are no input: the output may lie in it.
    pub fn open(texts: &[String], args: &InputArgs, own: &[PathBuf]) -> Result<Self> {
        let new = |source, total_bytes| Self { source, total_bytes, read_bytes: 0, read: 0, hash: Sha256::new() };
        if !texts.is_empty() {
            let texts = texts.to_vec();
            return Ok(new(Source::Arguments(texts.into_iter().enumerate()), None));
        }
        let path = args.file();
        if args.input.is_none() && stdin().is_terminal() {
            let why = "nothing to read: give texts, --input FILE or FOLDER, or pipe lines to stdin";
            return Err(Failure::Usage(why.into()));
        }
        if let Some(folder) = path.filter(|p| p.is_dir()) {
            return Ok(new(Source::Folder(Box::new(Folder::open(folder, own))), None));
        }
        let extension = path.and_then(Path::extension).is_some_and(|e| e == "jsonl" || e == "ndjson");
        let jsonl = args.input_format == InputFormat::Jsonl || (args.input_format == InputFormat::Auto && extension);
        let (lines, total_bytes) = Lines::open(path, jsonl)?;
        Ok(new(Source::Lines(lines), total_bytes))
    }

    /// Reads the whole input, if it can be read twice.
    pub fn survey(texts: &[String], args: &InputArgs, own: &[PathBuf]) -> Result<Option<Survey>> {
        if texts.is_empty() && args.file().is_none_or(|path| !path.is_file() && !path.is_dir()) {
            return Ok(None);
        }
        let mut records = Self::open(texts, args, own)?;
        while records.next()?.is_some() {}
        Ok(Some(Survey { digest: records.digest(), bytes: records.read_bytes }))
    }

    /// SHA-256 over all that was read so far, in hexadecimal digits.
    pub fn digest(&self) -> String {
        kin_infer::hex(&self.hash.clone().finalize())
    }

    pub fn is_folder(&self) -> bool {
        matches!(self.source, Source::Folder(_))
    }

    /// Files of a folder that hold no text.
    pub fn left_out(&self) -> usize {
        if let Source::Folder(folder) = &self.source { folder.left_out } else { 0 }
    }

    /// The next record; none at the end.
    pub fn next(&mut self) -> Result<Option<Found>> {
        let mut tee = Tee { hash: &mut self.hash, bytes: 0 };
        let record = match &mut self.source {
            Source::Arguments(texts) => texts.next().map(|(i, text)| {
                tee.framed(text.as_bytes());
                Ok(Item { id: i.to_string().into(), text })
            }),
            Source::Lines(lines) => lines.next(&mut tee)?,
            Source::Folder(folder) => folder.next(&mut tee),
        };
        self.read_bytes += tee.bytes;
        self.read += u64::from(record.is_some());
        Ok(record)
    }
}

impl InputArgs {
    /// The file or folder, if it is not stdin.
    pub fn file(&self) -> Option<&Path> {
        self.input.as_deref().filter(|p| *p != Path::new("-"))
    }
}

/// Hashes and counts what is read.
struct Tee<'a> {
    hash: &'a mut Sha256,
    bytes: u64,
}

impl Tee<'_> {
    fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// With its length before it, so that two in a row are not one.
    fn framed(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.update(bytes);
    }

    /// Reads to the end, holding no more than [`LONGEST`]: `None` if there was more.
    fn read(&mut self, mut reader: impl Read, start: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        let (mut held, mut whole) = (start.to_vec(), true);
        self.update(start);
        let mut block = vec![0; 1 << 16];
        loop {
            let len = reader.read(&mut block)?;
            if len == 0 {
                return Ok(whole.then_some(held));
            }
            self.update(&block[..len]);
            whole = whole && held.len() + len <= LONGEST;
            if whole {
                held.extend_from_slice(&block[..len]);
            } else {
                held = Vec::new();
            }
        }
    }
}

/// An id that survives the way through JSON unchanged.
pub fn checked_id(id: Value) -> std::result::Result<Value, String> {
    if id.is_string() || id.is_i64() || id.is_u64() {
        return Ok(id);
    }
    Err(format!("`id` is {id}; it has to be a string or a whole number of 64 bits"))
}

/// An id as one field of a line: a string without its quotes, control characters as spaces.
pub fn id_field(id: &Value) -> String {
    match id {
        Value::String(text) => field(text),
        other => other.to_string(),
    }
}

/// A text as one field of a line: control characters become spaces.
pub fn field(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn too_long() -> String {
    format!("longer than {} MiB", LONGEST >> 20)
}
