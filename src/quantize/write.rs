//! The new safetensors files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use rayon::prelude::*;
use serde_json::json;

use super::QuantizeProgress;
use super::files::{INDEX, SINGLE, write_through};
use super::plan::{Plan, Planned, PlannedFile};
use crate::error::{InferError, Result};
use crate::weights::{Checkpoint, Dtype, blocks};

/// Values that are held at once.
const CHUNK: usize = 1 << 22;

/// Values that one thread takes at a time; whole blocks of every type.
const PART: usize = 1 << 14;

/// Writes the plan's files into `folder`, under the names of the originals, and an index unless there is one file of the
/// name that goes without.
pub(super) fn write_all(
    plan: &Plan,
    checkpoint: &Checkpoint,
    folder: &Path,
    progress: &mut dyn FnMut(QuantizeProgress),
) -> Result<()> {
    let (mut done, total) = (0, checkpoint.total_bytes());
    let mut weight_map = BTreeMap::new();
    for file in &plan.files {
        let name = file.source.file_name().unwrap_or_default();
        let mut tell = |planned: &Planned| {
            progress(QuantizeProgress { tensor: planned.tensor.name(), done, total });
            done += planned.tensor.bytes().len() as u64;
        };
        write_file(file, &folder.join(name), &mut tell)?;
        let names = file.tensors.iter().map(|t| (t.tensor.name(), name.to_string_lossy()));
        weight_map.extend(names);
    }
    if weight_map.values().all(|name| name == SINGLE) {
        return Ok(());
    }
    let index = folder.join(INDEX);
    let fields = BTreeMap::from([("metadata", json!({"total_size": plan.bytes()})), ("weight_map", json!(weight_map))]);
    let text = serde_json::to_string_pretty(&fields).map_err(|e| InferError::model(&index, e.to_string()))?;
    write_through(&index, |file| file.write_all(text.as_bytes()))
}

fn write_file(file: &PlannedFile, path: &Path, tell: &mut dyn FnMut(&Planned)) -> Result<()> {
    let header = file.header()?;
    let mut failed = None;
    let written = write_through(path, |out| {
        out.write_all(&header)?;
        for planned in &file.tensors {
            tell(planned);
            match (planned.blocks, planned.quantised) {
                (Some(dtype), true) => {
                    if let Err(e) = write_blocks(planned, dtype, out) {
                        let stopped = std::io::Error::other(e.to_string());
                        failed = Some(e);
                        return Err(stopped);
                    }
                }
                _ => out.write_all(planned.tensor.bytes())?,
            }
        }
        Ok(())
    });
    match failed {
        Some(error) => Err(error),
        None => written,
    }
}

/// Quantises a tensor, chunk after chunk.
fn write_blocks(planned: &Planned, dtype: Dtype, out: &mut File) -> Result<()> {
    let mut tensor = planned.tensor.clone();
    if planned.transposed {
        let (n, k) = (planned.shape[0], planned.shape[1]);
        tensor = tensor.rearranged(&[n, k], |i| Some(i % k * n + i / k))?;
    }
    let mut values = vec![0.0; CHUNK.min(tensor.len())];
    let mut bytes = vec![0; values.len() / dtype.block_len() * dtype.size()];
    for first in (0..tensor.len()).step_by(CHUNK) {
        let values = &mut values[..CHUNK.min(tensor.len() - first)];
        let bytes = &mut bytes[..values.len() / dtype.block_len() * dtype.size()];
        let part_bytes = PART / dtype.block_len() * dtype.size();
        let parts = values.par_chunks_mut(PART).zip(bytes.par_chunks_mut(part_bytes)).enumerate();
        let results: Vec<Result<()>> = parts
            .map(|(part, (values, bytes))| {
                let first = first + part * PART;
                tensor.read_f32(first, values)?;
                match blocks::try_quantise(dtype, values, bytes)? {
                    None => Ok(()),
                    Some(i) => Err(refused(planned, first + i, values[i])),
                }
            })
            .collect();
        // The first of several failures, whichever thread met its own first.
        results.into_iter().collect::<Result<()>>()?;
        out.write_all(bytes).map_err(|e| InferError::io(tensor.file(), e))?;
    }
    Ok(())
}

/// The error for element `at` of the matrix of blocks.
fn refused(planned: &Planned, at: usize, value: f32) -> InferError {
    let (row, column) = (at / planned.shape[1], at % planned.shape[1]);
    let (row, column) = if planned.transposed { (column, row) } else { (row, column) };
    InferError::TensorError {
        file: planned.tensor.file().to_path_buf(),
        tensor: planned.tensor.name().to_string(),
        expected: "values that blocks can hold".to_string(),
        found: format!("at [{row}, {column}] {}", blocks::why_refused(value)),
    }
}
