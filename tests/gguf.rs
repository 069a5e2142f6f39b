//! GGUF files: models in them give the bits of the checkpoints they were made of, and files that are wrong are errors.

#[path = "gguf/hostile.rs"]
mod hostile;
#[path = "gguf/keys.rs"]
mod keys;
#[path = "gguf/models.rs"]
mod models;
#[path = "gguf/tokenizers.rs"]
mod tokenizers;
#[path = "gguf/vocabularies.rs"]
mod vocabularies;
#[path = "gguf/writer.rs"]
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A fresh folder, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("kin-infer-gguf-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
