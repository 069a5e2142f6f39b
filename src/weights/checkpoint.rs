//! All tensors of a model: one safetensors file, the shards that an index names, or one GGUF file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::gguf::GgufFile;
use super::header::{self, Entry, MAX_HEADER, NameMap};
use super::mapping::Mapping;
use super::{Tensor, tensor_error};
use crate::error::{InferError, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// What says that a folder's weights are safetensors.
pub(super) const SAFETENSORS: [&str; 2] = [SINGLE, INDEX];
const PYTORCH: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// How to turn a PyTorch checkpoint into one that is read. Names and values stay as they are.
const CONVERT: &str = "python -c \"import torch, safetensors.torch as s; \
    w = torch.load('pytorch_model.bin', map_location='cpu', weights_only=True); \
    s.save_file({k: v.clone().contiguous() for k, v in w.items()}, 'model.safetensors')\"";

/// The tensors of a model, mapped from one file or from several.
///
/// ```no_run
/// # fn main() -> kin_infer::Result<()> {
/// use kin_infer::weights::Checkpoint;
///
/// let checkpoint = Checkpoint::open("models/all-MiniLM-L6-v2".as_ref())?;
/// let embeddings = checkpoint.tensor("embeddings.word_embeddings.weight")?;
/// let mut row = vec![0.0; embeddings.shape()[1]];
/// embeddings.read_f32(0, &mut row)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    /// The file that says which tensors there are: the only one, or the index.
    source: PathBuf,
    mappings: Vec<Arc<Mapping>>,
    tensors: BTreeMap<String, Tensor>,
    /// The metadata, where the tensors are a GGUF file's.
    gguf: Option<GgufFile>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: NameMap<String>,
}

impl Checkpoint {
    /// Opens the weights of a model folder: `model.safetensors`, or else `model.safetensors.index.json` and the shards
    /// it names, which lie in the same folder; or else the only GGUF file in it. A GGUF file can be named itself.
    ///
    /// # Errors
    /// [`ModelError`](InferError::ModelError) when there are no weights, a file is malformed or files contradict each
    /// other; [`TensorError`](InferError::TensorError) when one tensor is at fault; [`IoError`](InferError::IoError).
    pub fn open(folder: &Path) -> Result<Self> {
        if let Some(file) = GgufFile::find(folder)? {
            return Self::open_gguf(&file);
        }
        let metadata = fs::metadata(folder).map_err(|e| InferError::io(folder, e))?;
        if !metadata.is_dir() {
            return Err(InferError::model(folder, "expected a model folder, found a file"));
        }
        if exists(&folder.join(SINGLE))? {
            return Self::open_file(&folder.join(SINGLE));
        }
        if exists(&folder.join(INDEX))? {
            return Self::open_shards(folder);
        }
        let mut detail = format!("no weights: looked for {SINGLE}, {INDEX} and a GGUF file");
        for name in PYTORCH {
            if exists(&folder.join(name))? {
                detail += &format!("; there is {name}, but only safetensors is read. To convert: {CONVERT}");
                break;
            }
        }
        Err(InferError::model(folder, detail))
    }

    /// Opens one safetensors file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(path: &Path) -> Result<Self> {
        let mut checkpoint = Self::empty(path.to_owned());
        checkpoint.add(path)?;
        Ok(checkpoint)
    }

    /// Opens one GGUF file.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn open_gguf(path: &Path) -> Result<Self> {
        let gguf = GgufFile::open(path)?;
        let tensor = |entry: &Entry| (entry.name.clone(), Tensor::new(Arc::clone(gguf.mapping()), entry.clone()));
        let tensors = gguf.entries().iter().map(tensor).collect();
        Ok(Self { source: path.to_owned(), mappings: vec![Arc::clone(gguf.mapping())], tensors, gguf: Some(gguf) })
    }

    /// The metadata, where the tensors are a GGUF file's.
    pub fn gguf(&self) -> Option<&GgufFile> {
        self.gguf.as_ref()
    }

    fn open_shards(folder: &Path) -> Result<Self> {
        let index = folder.join(INDEX);
        let text = read_bounded(&index)?;
        let Index { weight_map: NameMap { pairs: map, .. } } =
            serde_json::from_slice(&text).map_err(|e| InferError::model(&index, format!("not a valid index: {e}")))?;

        let mut checkpoint = Self::empty(index.clone());
        let mut opened = BTreeSet::new();
        for (tensor, shard) in &map {
            if opened.contains(shard.as_str()) {
                continue;
            }
            if !is_file_name(shard) {
                return Err(tensor_error(&index, tensor, "the name of a file in the folder", format!("`{shard}`")));
            }
            let path = folder.join(shard);
            if !exists(&path)? {
                let found = format!("shard `{shard}`, which does not exist");
                return Err(tensor_error(&index, tensor, "a shard in the folder", found));
            }
            checkpoint.add(&path)?;
            opened.insert(shard.as_str());
        }
        checkpoint.check_index(&map)?;
        Ok(checkpoint)
    }

    fn empty(source: PathBuf) -> Self {
        Self { source, mappings: Vec::new(), tensors: BTreeMap::new(), gguf: None }
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let mapping = Arc::new(Mapping::open(path, "a safetensors file")?);
        for entry in header::read(path, mapping.bytes())? {
            if let Some(other) = self.tensors.get(&entry.name) {
                let found = format!("it in {} as well", other.file().display());
                return Err(tensor_error(path, &entry.name, "each tensor in one shard", found));
            }
            self.tensors.insert(entry.name.clone(), Tensor::new(Arc::clone(&mapping), entry));
        }
        self.mappings.push(mapping);
        Ok(())
    }

    /// Checks that the index and the shards name the same tensors in the same files.
    fn check_index(&self, map: &[(String, String)]) -> Result<()> {
        for (name, shard) in map {
            let found = match self.tensors.get(name) {
                Some(tensor) if tensor.file().file_name().is_some_and(|file| file == shard.as_str()) => continue,
                Some(tensor) => format!("it in {}", tensor.file().display()),
                None => "no such tensor in any shard".to_owned(),
            };
            return Err(tensor_error(&self.source, name, format!("the tensor in shard `{shard}`"), found));
        }
        let indexed: BTreeSet<&str> = map.iter().map(|(name, _)| name.as_str()).collect();
        match self.tensors.values().find(|tensor| !indexed.contains(tensor.name())) {
            Some(extra) => {
                let found = format!("a tensor that {INDEX} does not name");
                Err(tensor_error(extra.file(), extra.name(), "only tensors of the index", found))
            }
            None => Ok(()),
        }
    }

    /// The tensor of this name, of any dtype.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor of this name, which must exist and hold floats.
    ///
    /// # Errors
    /// [`TensorError`](InferError::TensorError).
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        let tensor = self.get(name).ok_or_else(|| {
            let found = format!("no such name among {} tensors", self.tensors.len());
            tensor_error(&self.source, name, "a tensor of this name", found)
        })?;
        tensor.dtype()?;
        Ok(tensor)
    }

    /// The names of all tensors of any dtype, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The files that hold the tensors.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.mappings.iter().map(|mapping| mapping.path())
    }

    /// Bytes of all tensors' data as it lies in the files.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// Tells the system that the mapped pages can be dropped from memory, once their values were copied elsewhere.
    /// Tensors stay valid: the next access reads the file again. Does nothing where the system has no such hint.
    pub fn release_pages(&self) {
        self.mappings.iter().for_each(|mapping| mapping.release_pages());
    }
}

/// Whether there is anything at `path`. A folder that may not be searched is an error, not an absence.
fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|e| InferError::io(path, e))
}

/// Whether `name` is one plain component on every system: no separator, drive, root, `.` or `..`.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.contains(['/', '\\', ':', '\0'])
}

/// The contents of a JSON file of at most the size that a header may have.
fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    let read = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        if fs::metadata(path)?.is_file() {
            File::open(path)?.take(MAX_HEADER + 1).read_to_end(&mut text)?;
        }
        Ok(text)
    };
    let text = read().map_err(|e| InferError::io(path, e))?;
    if text.len() as u64 > MAX_HEADER {
        return Err(InferError::model(path, format!("expected an index of at most {MAX_HEADER} bytes, found more")));
    }
    Ok(text)
}
