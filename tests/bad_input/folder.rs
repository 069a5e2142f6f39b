//! A model folder to spoil.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kin_infer::arch::HeadChoice;
use kin_infer::cpu::CpuCompute;
use kin_infer::{BertConfig, BertModel, InferError, Result};
use serde_json::Value;

use crate::common::fixture;

/// A copy of a fixture in a folder of its own, removed at the end.
pub struct Copy(pub PathBuf);

impl Copy {
    pub fn new(of: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("kin-infer-{}-{of}-{count}", std::process::id()));
        copy_folder(&fixture(of), &folder);
        Self(folder)
    }

    pub fn config(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.0.join("config.json")).unwrap()).unwrap()
    }

    pub fn write_config(&self, config: &Value) {
        std::fs::write(self.0.join("config.json"), config.to_string()).unwrap();
    }

    /// Sets a key; null removes it.
    pub fn edit_config(&self, key: &str, value: Value) {
        let mut config = self.config();
        match value {
            Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value,
        }
        self.write_config(&config);
    }

    pub fn load(&self) -> Result<BertModel> {
        self.load_with(HeadChoice::Configured)
    }

    pub fn load_with(&self, head: HeadChoice) -> Result<BertModel> {
        let config = BertConfig::from_folder(&self.0)?;
        BertModel::load_with_head(&self.0, config, Arc::new(CpuCompute::new()?), head)
    }

    /// The error of loading it, which is about the configuration or a tensor.
    #[track_caller]
    pub fn refused(&self, case: &str) -> InferError {
        typed(self.load(), case)
    }
}

/// The error of a load, which is about the configuration or a tensor.
#[track_caller]
pub fn typed(result: Result<BertModel>, case: &str) -> InferError {
    let error = match result {
        Ok(_) => panic!("{case} loads"),
        Err(error) => error,
    };
    let kinds = ["ModelError", "ModelIncompatible", "TensorError"];
    assert!(kinds.iter().any(|kind| format!("{error:?}").starts_with(kind)), "{case}: {error:?}");
    error
}

/// Asserts that a text holds each of the words.
#[track_caller]
pub fn says(text: impl std::fmt::Display, words: &[&str], case: &str) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{case}: `{text}` lacks `{word}`");
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else if entry.file_name() != "expected.safetensors" {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
