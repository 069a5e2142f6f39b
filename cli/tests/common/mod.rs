//! What the command line's tests share: running the binary, fixtures, reference values.
#![allow(dead_code)] // each test binary uses its own part

pub mod runs;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Largest error allowed, relative to the largest reference value.
const BOUND: f64 = 2e-5;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// An empty folder of this test's own.
pub fn scratch(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The binary, without the caller's own settings.
pub fn kin_infer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kin-infer"));
    for name in ["KIN_INFER_CPU_ISA", "KIN_INFER_FORCE_CPU", "KIN_RESOURCE_PROFILE", "HF_HOME", "HF_HUB_CACHE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        let code = output.status.code().expect("an exit code");
        Self { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Ended with `code`, or the test fails with what was said.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stderr: {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// Every line of stdout as JSON.
    pub fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
}

pub fn run(arguments: &[&str]) -> Ran {
    Ran::of(kin_infer().args(arguments).output().unwrap())
}

pub fn run_with_input(arguments: &[&str], input: &[u8]) -> Ran {
    let mut command = kin_infer();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Ran::of(child.wait_with_output().unwrap())
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    kin_infer::hex(&sha2::Sha256::digest(bytes))
}

pub fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// A floating-point tensor of a file, if it is there.
pub fn tensor(path: &Path, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let t = tensors.tensor(name).ok()?;
    let values = match t.dtype() {
        Dtype::F64 => t.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        Dtype::F32 => t.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect(),
        other => panic!("{name}: {other:?}"),
    };
    Some((t.shape().to_vec(), values))
}

/// A tensor of a fixture's expected.safetensors.
pub fn expected(name: &str, tensor_name: &str) -> Option<Vec<f64>> {
    tensor(&fixture(name).join("expected.safetensors"), tensor_name).map(|(_, values)| values)
}

/// Whether a fixture has references.
pub fn expected_file(name: &str) -> bool {
    fixture(name).join("expected.safetensors").is_file()
}

pub fn ids(name: &str, tensor_name: &str) -> Option<Vec<i64>> {
    let bytes = std::fs::read(fixture(name).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let t = tensors.tensor(tensor_name).ok()?;
    assert_eq!(t.dtype(), Dtype::I64);
    Some(t.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect())
}

pub fn assert_close(what: &str, found: impl IntoIterator<Item = f64>, expected: &[f64]) {
    let found: Vec<f64> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let largest = expected.iter().fold(0f64, |a, e| a.max(e.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= BOUND * largest, "{what}: value {i} is {f}, expected {e}");
    }
}

/// `bert-classifier-<labels>` with the part of st-tiny's tokenizer that its 101 token ids cover.
pub fn classifier(labels: usize, folder: &Path) {
    copy_folder(&fixture(&format!("bert-classifier-{labels}")), folder);
    let text = std::fs::read_to_string(fixture("st-tiny/tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| id.as_u64().unwrap() < 101);
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}
