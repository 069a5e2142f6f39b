//! The small JSON files of a model folder, read key by key, with errors that name file and key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::gguf;
use crate::error::{InferError, Result};
use crate::weights::GgufFile;

/// Where a model's settings stand: in files of its folder, or in the metadata of its GGUF file.
pub(crate) struct Settings {
    /// The folder, or the GGUF file.
    pub(crate) place: PathBuf,
    /// The file's metadata.
    pub(crate) gguf: Option<GgufFile>,
}

impl Settings {
    /// The settings of the folder or GGUF file that `model` stands for ([`GgufFile::find`]).
    pub(crate) fn open(model: &Path) -> Result<Self> {
        let gguf = GgufFile::find(model)?.map(|file| GgufFile::open(&file)).transpose()?;
        let place = gguf.as_ref().map_or(model, GgufFile::path).to_path_buf();
        Ok(Self { place, gguf })
    }

    /// What the folder's file of this name says, or the metadata in its place; empty where that is nothing.
    pub(crate) fn read(&self, name: &str) -> Result<JsonFile> {
        match &self.gguf {
            None => JsonFile::optional(self.place.join(name)),
            Some(gguf) => Ok(JsonFile { file: self.place.clone(), map: gguf::settings(gguf, name)? }),
        }
    }
}

/// A JSON object with the file it stands in. A key that is absent or null reads as `None`.
#[derive(Debug)]
pub(crate) struct JsonFile {
    /// For messages.
    pub(crate) file: PathBuf,
    /// The object.
    pub(crate) map: Map<String, Value>,
}

impl JsonFile {
    /// The object in `file`; empty when there is no such file.
    pub(crate) fn optional(file: PathBuf) -> Result<Self> {
        match read_value(&file)? {
            None => Ok(Self { file, map: Map::new() }),
            Some(Value::Object(map)) => Ok(Self { file, map }),
            Some(_) => Err(InferError::model(file, "expected a JSON object")),
        }
    }

    /// The object in `file`, which must exist.
    pub(crate) fn required(file: PathBuf) -> Result<Self> {
        match read_value(&file)? {
            None => Err(InferError::model(file, "the file is missing")),
            Some(Value::Object(map)) => Ok(Self { file, map }),
            Some(_) => Err(InferError::model(file, "expected a JSON object")),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>> {
        let text = |found: &'_ Value| self.wrong(key, "a text", found);
        self.get(key).map(|found| found.as_str().ok_or_else(|| text(found))).transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let flag = |found: &Value| self.wrong(key, "true or false", found);
        self.get(key).map(|found| found.as_bool().ok_or_else(|| flag(found))).transpose()
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let list = found.as_array().and_then(|list| list.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        list.map(Some).ok_or_else(|| self.wrong(key, "a list of texts", found))
    }

    /// A whole number above 0 that fits a `u32`; written as a float it counts when it is whole.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<usize>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let number = found.as_f64().filter(|number| number.fract() == 0.0);
        match number.filter(|number| (1.0..=f64::from(u32::MAX)).contains(number)) {
            Some(number) => Ok(Some(number as usize)),
            None => Err(self.wrong(key, "a whole number above 0", found)),
        }
    }

    /// As [`positive`](Self::positive), for a key that must stand in the file.
    pub(crate) fn must(&self, key: &str) -> Result<usize> {
        self.positive(key)?.ok_or_else(|| self.error(format!("`{key}` is missing")))
    }

    /// An error about this file.
    pub(crate) fn error(&self, detail: impl Into<String>) -> InferError {
        InferError::model(&self.file, detail)
    }

    /// An error about the value of `key`.
    pub(crate) fn wrong(&self, key: &str, expected: &str, found: &Value) -> InferError {
        self.error(format!("`{key}` is {found}, expected {expected}"))
    }
}

/// The value in a JSON file; `None` when there is no such file.
pub(crate) fn read_value(file: &Path) -> Result<Option<Value>> {
    match std::fs::read(file) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(InferError::model(file, format!("not valid JSON: {error}"))),
        },
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(InferError::io(file, error)),
    }
}

/// The transformer's settings of sentence-transformers, under the first of its names that exists.
pub(crate) fn sentence_config(folder: &Path) -> Result<JsonFile> {
    let names = ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"];
    let files = names.map(|name| folder.join(format!("sentence_{name}_config.json")));
    let found = files.iter().find(|file| file.is_file()).unwrap_or(&files[0]);
    JsonFile::optional(found.clone())
}

/// A [`ModelIncompatible`](InferError::ModelIncompatible) whose key carries the folder and the file it stands in:
/// the error's text begins with `config.json:` whatever the file.
pub(crate) fn incompatible(file: &Path, key: &str, expected: &str, found: &str) -> InferError {
    let mut parts: Vec<_> = file.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
    parts.reverse();
    let (expected, found) = (expected.to_owned(), found.to_owned());
    InferError::ModelIncompatible { key: format!("{}: {key}", parts.join("/")), expected, found }
}
