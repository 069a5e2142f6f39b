//! GGUF files, versions 2 and 3: metadata and tensors in one file, as ggml's
//! [docs/gguf.md](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) describes them.
//!
//! A file is mapped, and everything that its header claims is checked when it is opened: numbers of things against the
//! bytes that are left for them, texts and arrays against the file's end, tensors against their types, each other and the
//! file's end. Nothing is allocated by a number that was not checked. Values are read where they lie.

mod cursor;
mod tensors;
mod value;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use value::{Array, Value};

use super::header::Entry;
use super::mapping::Mapping;
use crate::error::{InferError, Result};
use cursor::{Cursor, Step};
use value::Kind;

/// How a file ends that is one of these.
const EXTENSION: &str = "gguf";

/// Where data begins, unless the metadata says otherwise.
const ALIGNMENT: usize = 32;

/// Bytes of the shortest entry of the metadata: an empty key, a type and a flag.
const SHORTEST_PAIR: usize = 8 + 4 + 1;

/// A GGUF file's metadata, and where its tensors lie.
///
/// ```no_run
/// # fn main() -> kin_infer::Result<()> {
/// use kin_infer::weights::GgufFile;
///
/// let file = GgufFile::open("models/minilm.gguf".as_ref())?;
/// println!("{:?} of {:?}", file.text("general.name")?, file.architecture()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GgufFile {
    mapping: Arc<Mapping>,
    version: u32,
    metadata: BTreeMap<String, (Kind, usize)>,
    tensors: Vec<Entry>,
}

impl GgufFile {
    /// The GGUF file that a model argument stands for: the file itself, or the only one in a folder without safetensors
    /// weights. None where the argument is something else.
    ///
    /// # Errors
    /// A folder with several of them.
    pub fn find(model: &Path) -> Result<Option<PathBuf>> {
        let is_gguf = |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(EXTENSION));
        if !model.is_dir() {
            return Ok((is_gguf(model) && model.is_file()).then(|| model.to_owned()));
        }
        if super::checkpoint::SAFETENSORS.iter().any(|name| model.join(name).exists()) {
            return Ok(None);
        }
        let entries = fs::read_dir(model).map_err(|e| InferError::io(model, e))?;
        let mut found: Vec<PathBuf> =
            entries.flatten().map(|e| e.path()).filter(|p| is_gguf(p) && p.is_file()).collect();
        found.sort();
        if found.len() > 1 {
            let names: Vec<_> = found.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
            let detail = format!("several GGUF files: {}; give the path of one of them as the model", names.join(", "));
            return Err(InferError::model(model, detail));
        }
        Ok(found.pop())
    }

    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// [`ModelError`](InferError::ModelError) when it is no GGUF file of version 2 or 3 or its header is malformed,
    /// [`TensorError`](InferError::TensorError) when one tensor is at fault, [`IoError`](InferError::IoError).
    pub fn open(path: &Path) -> Result<Self> {
        let mapping = Arc::new(Mapping::open(path, "a GGUF file")?);
        let malformed = |why: String| InferError::model(path, format!("the header is not valid: {why}"));
        let mut cursor = Cursor::new(mapping.bytes(), 0);
        let version = version(&mut cursor).map_err(|why| InferError::model(path, why))?;
        let tensors = cursor.count("tensors", tensors::SHORTEST).map_err(malformed)?;
        let pairs = cursor.count("metadata entries", SHORTEST_PAIR).map_err(malformed)?;
        let metadata = metadata(&mut cursor, pairs).map_err(malformed)?;
        let mut file = Self { mapping: Arc::clone(&mapping), version, metadata, tensors: Vec::new() };
        let alignment = file.alignment()?;
        file.tensors = tensors::read(path, mapping.bytes(), &mut cursor, tensors, alignment)?;
        Ok(file)
    }

    fn alignment(&self) -> Result<usize> {
        match self.size("general.alignment")? {
            None => Ok(ALIGNMENT),
            Some(n) if n.is_power_of_two() && n <= 1 << 20 => Ok(n),
            Some(_) => Err(self.wrong("general.alignment", "a power of two up to 2^20")),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.mapping.path()
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The keys of the metadata, sorted.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let (kind, at) = self.metadata.get(key)?;
        Value::read(*kind, &mut Cursor::new(self.mapping.bytes(), *at))
    }

    /// What kind of model it is: `general.architecture`.
    ///
    /// # Errors
    /// When the file does not say, or something other than a text.
    pub fn architecture(&self) -> Result<&str> {
        let key = "general.architecture";
        self.text(key)?.ok_or_else(|| InferError::model(self.path(), format!("the metadata key `{key}` is missing")))
    }

    /// The text of a key, if there is one.
    ///
    /// # Errors
    /// When the value is something else, or not UTF-8.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a text", |v| v.as_text())
    }

    /// The size of a key: a whole number of at least 0.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number of at least 0", |v| v.as_size())
    }

    /// The number of a key.
    ///
    /// # Errors
    /// When the value is something else, or not finite.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |v| v.as_number().filter(|n| n.is_finite()))
    }

    /// The flag of a key.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |v| v.as_flag())
    }

    /// The texts of a key.
    ///
    /// # Errors
    /// When the value is something else, or a text is not UTF-8.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.list(key, "an array of texts", |v| v.as_text())
    }

    /// The numbers of a key.
    ///
    /// # Errors
    /// When the value is something else.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.list(key, "an array of numbers", |v| v.as_number())
    }

    fn list<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        self.typed(key, expected, |v| v.as_array()?.iter().map(read).collect())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, expected)),
        }
    }

    /// An error about the value of a key.
    pub(crate) fn wrong(&self, key: &str, expected: &str) -> InferError {
        let found = self.get(key).map_or("absent".to_string(), |v| v.in_words());
        InferError::model(self.path(), format!("the metadata key `{key}` is {found}, expected {expected}"))
    }

    /// The shape of a tensor, outermost dimension first.
    pub fn shape(&self, tensor: &str) -> Option<&[usize]> {
        self.tensors.iter().find(|t| t.name == tensor).map(|t| t.shape.as_slice())
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.tensors
    }
}

/// Reads magic and version.
fn version(cursor: &mut Cursor) -> Step<u32> {
    if cursor.take(4).ok() != Some(b"GGUF") {
        return Err("not a GGUF file: it does not begin with `GGUF`".to_owned());
    }
    match cursor.u32()? {
        version @ (2 | 3) => Ok(version),
        1 => Err("GGUF version 1, expected 2 or 3; ggml's tools bring it up to date".to_owned()),
        other if other.swap_bytes() <= 3 => Err("a big-endian GGUF file; only little-endian ones are read".to_owned()),
        other => Err(format!("GGUF version {other}, expected 2 or 3")),
    }
}

/// Where each value lies.
fn metadata(cursor: &mut Cursor, pairs: usize) -> Step<BTreeMap<String, (Kind, usize)>> {
    let mut metadata = BTreeMap::new();
    for _ in 0..pairs {
        let key = cursor.name("metadata key")?;
        let kind = cursor.kind().map_err(|why| format!("metadata key `{key}`: {why}"))?;
        match metadata.entry(key.to_owned()) {
            Slot::Occupied(_) => return Err(format!("the metadata key `{key}` stands twice")),
            Slot::Vacant(slot) => slot.insert((kind, cursor.at)),
        };
        cursor.skip(kind).map_err(|why| format!("metadata key `{key}`: {why}"))?;
    }
    Ok(metadata)
}
