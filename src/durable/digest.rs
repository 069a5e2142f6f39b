//! Hashes of models and bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{InferError, Result};
use crate::hex::hex;
use crate::modules;

/// Extensions of the files a model is read from.
const READ: [&str; 5] = ["json", "txt", "model", "safetensors", "gguf"];

/// The first 128 bits of a finished SHA-256, in hexadecimal digits: enough against chance.
pub(super) fn short(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}

/// SHA-256, in hexadecimal digits, over the names and contents of the files a model is read from: a GGUF file, or the
/// configurations, vocabularies and weights in a folder, in the folders in it, and in those that its `modules.json`
/// names. Another name of the folder gives the same hash, another byte in it another.
///
/// # Errors
/// [`IoError`](InferError::IoError); [`ModelError`](InferError::ModelError) where `modules.json` is no list of modules.
pub fn model_digest(model: &Path) -> Result<String> {
    let mut files = BTreeMap::new();
    if model.is_dir() {
        for folder in folders(model)? {
            add_files(&model.join(&folder), &folder, &mut files)?;
        }
    } else {
        files.insert(String::new(), model.to_path_buf());
    }
    let mut all = Sha256::new();
    for (name, path) in files {
        let content = file_sha256(&path).map_err(|e| InferError::io(path, e))?;
        all.update((name.len() as u64).to_le_bytes());
        all.update(name.as_bytes());
        all.update(content);
    }
    Ok(hex(&all.finalize()))
}

/// The folders whose files are read, from the model's: itself, those in it, and those of its modules, wherever in it.
fn folders(model: &Path) -> Result<BTreeSet<String>> {
    let mut found: BTreeSet<String> = modules::folders(model)?.into_iter().collect();
    found.insert(String::new());
    for (name, path) in entries(model)? {
        if path.is_dir() {
            found.insert(name);
        }
    }
    Ok(found)
}

/// What is in a folder and not hidden, by name.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let io = |e| InferError::io(folder, e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            found.push((name, path));
        }
    }
    Ok(found)
}

/// Adds the files of a folder that may be read, by their names from the model's folder.
fn add_files(folder: &Path, prefix: &str, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let is_read = |path: &Path| {
        let extension = path.extension().and_then(|e| e.to_str());
        extension.is_some_and(|e| READ.iter().any(|known| e.eq_ignore_ascii_case(known)))
    };
    for (name, path) in entries(folder)? {
        if is_read(&path) && path.is_file() {
            let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            files.insert(name, path);
        }
    }
    Ok(())
}

fn file_sha256(path: &Path) -> std::io::Result<[u8; 32]> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut hash = Sha256::new();
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(hash.finalize().into());
        }
        hash.update(bytes);
        let len = bytes.len();
        reader.consume(len);
    }
}
