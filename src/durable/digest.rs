//! Hashes of models and bytes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{InferError, Result};

/// Extensions of the files a model is read from.
const READ: [&str; 5] = ["json", "txt", "model", "safetensors", "gguf"];

/// The first 128 bits of a finished SHA-256, in hexadecimal digits: enough against chance.
pub(super) fn short(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}

/// Bytes in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// SHA-256, in hexadecimal digits, over the names and contents of the files a model is read from: a GGUF file, or the
/// configurations, vocabularies and weights in a folder and in the folders of its modules. Another name of the folder
/// gives the same hash, another byte in it another.
///
/// # Errors
/// [`IoError`](InferError::IoError).
pub fn model_digest(model: &Path) -> Result<String> {
    let mut files = Vec::new();
    if model.is_dir() {
        collect(model, String::new(), 1, &mut files)?;
        files.sort();
    } else {
        files.push((String::new(), model.to_path_buf()));
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

/// The files of a folder and of its folders, `depth` deep, with their names from the first.
fn collect(folder: &Path, prefix: String, depth: usize, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(|e| InferError::io(folder, e))? {
        let path = entry.map_err(|e| InferError::io(folder, e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let known = path.extension().and_then(|e| e.to_str()).is_some_and(|e| READ.contains(&e));
        if path.is_dir() && depth > 0 {
            collect(&path, format!("{prefix}{name}/"), depth - 1, files)?;
        } else if known && path.is_file() {
            files.push((format!("{prefix}{name}"), path));
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
