//! How near the vectors of smaller weights and of faster arithmetic come to those of f32: shared by the test and by
//! `cargo run --release --example accuracy`.

use std::error::Error;
use std::path::{Path, PathBuf};

use kin_infer::quantize::{QuantizeOptions, quantize_folder};
use kin_infer::weights::{Checkpoint, Dtype};
use kin_infer::{Embedder, Precision};
use safetensors::tensor::{Dtype as FileDtype, TensorView, serialize_to_file};

/// What is compared with f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every tensor rounded to binary16.
    F16,
    /// What `kin-infer quantize` writes.
    Q8_0,
    Q4_0,
    /// The f32 checkpoint with `--precision int8`.
    Int8,
}

/// Each kind with its name.
pub const KINDS: [(Kind, &str); 4] =
    [(Kind::F16, "f16"), (Kind::Q8_0, "q8_0"), (Kind::Q4_0, "q4_0"), (Kind::Int8, "int8")];

/// Lines of a snippet.
const LINES: usize = 24;

/// `count` pieces of this repository's source, spread evenly over it.
pub fn snippets(count: usize) -> std::io::Result<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["benches", "cli/src", "cli/tests", "src", "tests", "tools"] {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file)?;
        let lines: Vec<&str> = text.lines().collect();
        all.extend(lines.chunks(LINES).filter(|part| part.len() > LINES / 2).map(|part| part.join("\n")));
    }
    Ok((0..count).map(|i| all[i * all.len() / count].clone()).collect())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("tests/fixtures") {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "py") {
            files.push(path);
        }
    }
    Ok(())
}

/// Loads a folder's model as a kind; what has to be written for that goes into `scratch`.
pub fn load(kind: Kind, model: &Path, scratch: &Path) -> Result<Embedder, Box<dyn Error>> {
    let copy = scratch.join(format!("{kind:?}"));
    let quantise = |dtype| {
        quantize_folder(model, &copy, &QuantizeOptions { dtype, embeddings: false }, &mut |_| {})?;
        Embedder::load(&copy)
    };
    Ok(match kind {
        Kind::Int8 => Embedder::load_with_precision(model, Precision::Int8)?,
        Kind::Q8_0 => quantise(Dtype::Q8_0)?,
        Kind::Q4_0 => quantise(Dtype::Q4_0)?,
        Kind::F16 => {
            write_f16(model, &copy)?;
            Embedder::load(&copy)?
        }
    })
}

/// A copy of a folder whose tensors are binary16.
fn write_f16(model: &Path, copy: &Path) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(model)? {
        let (path, target) = (entry.as_ref().map(|e| e.path()), entry.as_ref().map(|e| copy.join(e.file_name())));
        let (Ok(path), Ok(target)) = (path, target) else { continue };
        std::fs::create_dir_all(copy)?;
        if path.is_dir() {
            write_f16(&path, &target)?;
        } else if path.file_name().is_some_and(|name| name == "model.safetensors") {
            let checkpoint = Checkpoint::open_file(&path)?;
            let mut tensors = Vec::new();
            for name in checkpoint.names() {
                // position_ids are integers, which no model reads.
                let Some(tensor) = checkpoint.get(name).filter(|t| t.dtype().is_ok()) else { continue };
                let bytes = tensor.to_f32()?.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
                tensors.push((name.to_string(), tensor.shape().to_vec(), bytes));
            }
            let views = tensors.iter().map(|(name, shape, bytes): &(String, Vec<usize>, Vec<u8>)| {
                Ok((name, TensorView::new(FileDtype::F16, shape.clone(), bytes)?))
            });
            let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
            serialize_to_file(views, None, &target)?;
        } else {
            std::fs::copy(path, target)?;
        }
    }
    Ok(())
}

/// How near vectors are to those of f32.
pub struct Agreement {
    pub mean: f64,
    pub smallest: f64,
    /// Mean share of the ten nearest other texts of each text that f32 finds too.
    pub overlap: f64,
}

/// Compares the vectors of the same texts.
pub fn agreement(reference: &[Vec<f32>], found: &[Vec<f32>]) -> Agreement {
    let cosines: Vec<f64> = reference.iter().zip(found).map(|(a, b)| cosine(a, b)).collect();
    let shared = |i: usize| {
        let (expected, found) = (nearest(reference, i), nearest(found, i));
        found.iter().filter(|j| expected.contains(j)).count() as f64 / NEAREST as f64
    };
    let count = reference.len() as f64;
    Agreement {
        mean: cosines.iter().sum::<f64>() / count,
        smallest: cosines.iter().copied().fold(1.0, f64::min),
        overlap: (0..reference.len()).map(shared).sum::<f64>() / count,
    }
}

const NEAREST: usize = 10;

fn nearest(vectors: &[Vec<f32>], of: usize) -> Vec<usize> {
    let mut others: Vec<(f64, usize)> =
        (0..vectors.len()).filter(|i| *i != of).map(|i| (cosine(&vectors[of], &vectors[i]), i)).collect();
    others.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    others.into_iter().take(NEAREST).map(|(_, i)| i).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
