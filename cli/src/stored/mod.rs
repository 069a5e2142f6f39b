//! The vectors that `embed` wrote, read back one text at a time.

mod arrays;
mod table;

use std::io::BufRead;

use kin_infer::embedder::SparseVector;
use serde::Deserialize;
use serde_json::Value;

use crate::input::checked_id;
use crate::search::Best;
pub use arrays::read_npy;
pub use table::read_parquet;

/// What a text became.
pub enum Vectors {
    /// One vector.
    One(Vec<f32>),
    /// One vector a token, one after the other.
    Many { values: Vec<f32>, dimension: usize },
    /// A sparse vector.
    Sparse(SparseVector),
}

impl Vectors {
    /// For messages: what a file holds.
    pub fn words(&self) -> &'static str {
        match self {
            Self::One(_) => "one vector a text (\"embedding\")",
            Self::Many { .. } => "one vector a token (\"embeddings\")",
            Self::Sparse(_) => "sparse vectors (\"indices\" and \"values\")",
        }
    }
}

#[derive(Deserialize)]
struct Line {
    id: Value,
    embedding: Option<Vec<f32>>,
    embeddings: Option<Vec<Vec<f32>>>,
    indices: Option<Vec<u32>>,
    values: Option<Vec<f32>>,
}

impl Line {
    fn vectors(self) -> std::result::Result<(Value, Vectors), String> {
        let id = checked_id(self.id)?;
        let vectors = match (self.embedding, self.embeddings, self.indices, self.values) {
            (Some(values), None, None, None) => Vectors::One(values),
            (None, Some(rows), None, None) => {
                let dimension = rows.first().map_or(0, Vec::len);
                if rows.iter().any(|row| row.len() != dimension || row.is_empty()) {
                    return Err("`embeddings` of different lengths".to_string());
                }
                Vectors::Many { values: rows.concat(), dimension }
            }
            (None, None, Some(indices), Some(values)) => {
                if indices.len() != values.len() {
                    return Err(format!("{} `indices` but {} `values`", indices.len(), values.len()));
                }
                if !indices.is_sorted_by(|a, b| a < b) {
                    return Err("`indices` that do not ascend".to_string());
                }
                Vectors::Sparse(SparseVector { indices, values })
            }
            _ => {
                return Err(
                    "expected `embedding`, or `embeddings`, or `indices` and `values`, as `embed` writes".into()
                );
            }
        };
        Ok((id, vectors))
    }
}

pub fn read_jsonl(reader: impl BufRead, best: &mut Best) -> std::result::Result<(), String> {
    for (i, line) in reader.lines().enumerate() {
        let at = |why: String| format!("line {}: {why}", i + 1);
        let line = line.map_err(|e| at(e.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let parsed: Line = serde_json::from_str(&line)
            .map_err(|e| at(format!("expected {{\"id\": ..., \"embedding\": [...]}}: {e}")))?;
        let (id, vectors) = parsed.vectors().map_err(at)?;
        best.offer(&vectors, || id).map_err(at)?;
    }
    Ok(())
}
