//! What the integration tests share: fixtures, reference tensors, comparison.
#![allow(dead_code)] // each test binary uses its own part

pub mod outputs;

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Names of the fixture folders that start so, sorted.
pub fn fixtures(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixture("")).unwrap().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.retain(|n| n.starts_with(prefix));
    names.sort();
    names
}

/// Fixtures of mathematics that is refused: keys that the reference implementation knows and no published model uses.
pub const REFUSED: [(&str, &str); 3] = [
    ("deberta-talking", "talking_head"),
    ("gte-logn", "logn_attention_scale"),
    ("gte-logn-clip", "logn_attention_scale"),
];

const DECODERS: [&str; 6] = ["gpt2-", "llama-", "mistral-", "phi", "gemma", "qwen"];

/// Names of the fixtures that hold a checkpoint and its reference, sorted.
fn checkpoints() -> Vec<String> {
    let mut names = fixtures("");
    names.retain(|n| fixture(n).join("config.json").is_file() && fixture(n).join("expected.safetensors").is_file());
    names.retain(|n| !n.starts_with("st-") && REFUSED.iter().all(|(refused, _)| n != refused));
    names
}

/// Names of the encoders' fixtures, sorted.
pub fn encoders() -> Vec<String> {
    let mut names = checkpoints();
    names.retain(|n| DECODERS.iter().all(|d| !n.starts_with(d)));
    names
}

/// Names of the decoders' fixtures, sorted.
pub fn decoders() -> Vec<String> {
    let mut names = checkpoints();
    names.retain(|n| DECODERS.iter().any(|d| n.starts_with(d)));
    names
}

/// Whether what a test compares with is to be written anew: `KIN_INFER_UPDATE=1`.
pub fn update() -> bool {
    std::env::var("KIN_INFER_UPDATE").is_ok_and(|v| v == "1")
}

/// Says what a test did not run. Written past the capture of the test harness: a skip is seen also in a green run.
pub fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// all-MiniLM-L6-v2's folder; see [`real_model`].
pub fn minilm(test: &str) -> Option<PathBuf> {
    real_model(test, "all-MiniLM-L6-v2", "all-MiniLM-L6-v2/model.safetensors")
}

/// A real model under models/. Absent: says that `test` is skipped, or fails when `KIN_INFER_REQUIRE_MODEL` demands it.
pub fn real_model(test: &str, model: &str, weights: &str) -> Option<PathBuf> {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models");
    let path = models.join(model);
    if models.join(weights).is_file() {
        return Some(path);
    }
    let required = std::env::var("KIN_INFER_REQUIRE_MODEL").is_ok_and(|v| v == "1");
    assert!(!required, "KIN_INFER_REQUIRE_MODEL=1 and {} is absent: run scripts/fetch-models.sh", path.display());
    say(&format!("1 skipped: {test}: {} is absent; scripts/fetch-models.sh brings it", path.display()));
    None
}

/// A fixture's expected.safetensors.
pub struct Reference {
    bytes: Vec<u8>,
}

impl Reference {
    pub fn open(name: &str) -> Self {
        let path = fixture(name).join("expected.safetensors");
        Self { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    /// Every tensor's name.
    pub fn names(&self) -> Vec<String> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        tensors.names().into_iter().map(str::to_string).collect()
    }

    /// A floating-point tensor, if it is there.
    pub fn values(&self, name: &str) -> Option<Vec<f64>> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let t = tensors.tensor(name).ok()?;
        let bytes = t.data();
        Some(match t.dtype() {
            Dtype::F64 => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::F32 => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
            other => panic!("{name}: dtype {other:?}"),
        })
    }

    /// An I64 tensor as ids, if it is there.
    pub fn ids(&self, name: &str) -> Option<Vec<u32>> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let t = tensors.tensor(name).ok()?;
        assert_eq!(t.dtype(), Dtype::I64, "{name}");
        Some(t.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect())
    }

    /// A two-dimensional I64 tensor as rows, and its width.
    pub fn rows(&self, name: &str) -> (Vec<Vec<u32>>, usize) {
        let width = SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).unwrap().shape()[1];
        (self.ids(name).unwrap().chunks(width).map(<[u32]>::to_vec).collect(), width)
    }
}

/// Fails, naming the worst element, when an error passes `bound` times the largest expected magnitude.
pub fn assert_close(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let largest = expected.iter().fold(0f64, |a, e| a.max(e.abs()));
    let error = |i: usize| (f64::from(found[i]) - expected[i]).abs();
    let worst = (0..found.len()).max_by(|a, b| error(*a).total_cmp(&error(*b)));
    if let Some(i) = worst {
        assert!(
            error(i) <= bound * largest,
            "{what}: worst at {i}: found {}, expected {}, {:.2e} of the largest {largest}; allowed {bound:.0e}",
            found[i],
            expected[i],
            error(i) / largest
        );
    }
}
