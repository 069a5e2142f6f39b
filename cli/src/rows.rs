//! How what texts become is written: JSON lines, or NumPy arrays with the ids beside them.

use std::path::Path;

use clap::ValueEnum;
use kin_infer::embedder::Counted;
use serde::Serialize;
use serde_json::Value;

use crate::encoder::{Encoded, Kind};
use crate::failure::{Failure, Result};
use crate::npy;
use crate::output::{Sink, with_suffix};

/// How vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object a line: {"id": ..., "embedding": [...]}; one vector a token: {"id": ..., "token_ids": [...],
    /// "tokens": [...], "embeddings": [[...], ...]}; sparse: {"id": ..., "indices": [...], "values": [...]}, indices
    /// ascending
    Jsonl,
    /// A float32 array [texts, dimensions] for numpy.load, and the ids in FILE.ids, one a line. One vector a token: an
    /// array [tokens of all texts, dimensions], and FILE.offsets, an int64 array [texts + 1]: text i has the rows
    /// offsets[i] to offsets[i + 1]. Not for sparse vectors
    Npy,
}

/// What a line says besides its vector.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extras {
    /// The number of tokens, and whether the text was cut.
    pub counts: bool,
    /// The vocabulary entries of sparse vectors.
    pub terms: bool,
}

/// A line of output.
#[derive(Serialize)]
struct Line<'a> {
    id: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<Vec<&'a [f32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indices: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    terms: Option<Vec<String>>,
}

/// Writes what texts become, with their ids.
pub struct RowWriter {
    target: Target,
    extras: Extras,
    /// Length of each vector.
    dimension: usize,
}

enum Target {
    Jsonl(Sink),
    Npy { array: Sink, ids: Sink, offsets: Option<Sink>, texts: usize, rows: usize },
}

impl RowWriter {
    /// Opens `output`, or stdout where it is absent or `-`.
    pub fn open(format: Format, output: Option<&Path>, kind: Kind, extras: Extras) -> Result<Self> {
        let usage = |why: &str| Err(Failure::Usage(why.to_string()));
        let target = match (format, output.filter(|p| *p != Path::new("-"))) {
            (Format::Jsonl, None) => Target::Jsonl(Sink::stdout()),
            (Format::Jsonl, Some(path)) => Target::Jsonl(Sink::file(path)?),
            (Format::Npy, _) if kind == Kind::Sparse => {
                return usage(
                    "sparse vectors have no npy form: use --format jsonl, or an --output that ends in .jsonl",
                );
            }
            (Format::Npy, _) if extras.counts => return usage("--counts needs --format jsonl"),
            (Format::Npy, None) => return usage("--format npy needs --output FILE"),
            (Format::Npy, Some(path)) => {
                let mut array = Sink::file(path)?;
                array.put(&npy::header(0, 0))?;
                let ids = Sink::file(&with_suffix(path, ".ids"))?;
                let offsets = if kind == Kind::Tokens { Some(offsets_file(path)?) } else { None };
                Target::Npy { array, ids, offsets, texts: 0, rows: 0 }
            }
        };
        Ok(Self { target, extras, dimension: 0 })
    }

    /// Says how long each vector is.
    pub fn set_dimension(&mut self, dimension: usize) {
        self.dimension = dimension;
    }

    /// One text's row; `term` names a token.
    pub fn write(&mut self, id: &Value, row: &Counted<Encoded>, term: impl Fn(u32) -> String) -> Result<()> {
        match &mut self.target {
            Target::Jsonl(sink) => sink.json(&line(id, row, self.extras, self.dimension, term)),
            Target::Npy { array, ids, offsets, texts, rows } => {
                let values = match &row.value {
                    Encoded::Vector(values) => values,
                    Encoded::Tokens(tokens) => &tokens.vectors,
                    Encoded::Sparse(_) => return Err(Failure::Failed("sparse vectors have no npy form".to_string())),
                };
                *texts += 1;
                *rows += values.len() / self.dimension.max(1);
                ids.json(id)?;
                if let Some(offsets) = offsets {
                    offsets.put(&(*rows as i64).to_le_bytes())?;
                }
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                array.put(&bytes)
            }
        }
    }

    /// A window is complete: a reader of stdout sees it now.
    pub fn flush(&mut self) -> Result<()> {
        match &mut self.target {
            Target::Jsonl(sink) => sink.flush(),
            Target::Npy { .. } => Ok(()),
        }
    }

    pub fn commit(self) -> Result<()> {
        match self.target {
            Target::Jsonl(sink) => sink.commit(),
            Target::Npy { mut array, ids, offsets, texts, rows } => {
                array.rewrite_start(&npy::header(rows, self.dimension))?;
                if let Some(mut offsets) = offsets {
                    offsets.rewrite_start(&npy::list_header(texts + 1))?;
                    offsets.commit()?;
                }
                ids.commit()?;
                array.commit()
            }
        }
    }
}

/// The file of offsets, which begins with the first text's.
fn offsets_file(array: &Path) -> Result<Sink> {
    let mut sink = Sink::file(&with_suffix(array, ".offsets"))?;
    sink.put(&npy::list_header(0))?;
    sink.put(&0i64.to_le_bytes())?;
    Ok(sink)
}

fn line<'a>(
    id: &'a Value,
    row: &'a Counted<Encoded>,
    extras: Extras,
    dimension: usize,
    term: impl Fn(u32) -> String,
) -> Line<'a> {
    let names = |ids: &[u32]| ids.iter().map(|id| term(*id)).collect::<Vec<_>>();
    let mut line = Line {
        id,
        token_count: extras.counts.then_some(row.tokens),
        truncated: extras.counts.then_some(row.truncated),
        embedding: None,
        token_ids: None,
        tokens: None,
        embeddings: None,
        indices: None,
        values: None,
        terms: None,
    };
    match &row.value {
        Encoded::Vector(vector) => line.embedding = Some(vector),
        Encoded::Tokens(tokens) => {
            line.token_ids = Some(&tokens.ids);
            line.tokens = Some(names(&tokens.ids));
            line.embeddings = Some(tokens.vectors.chunks_exact(dimension).collect());
        }
        Encoded::Sparse(vector) => {
            line.indices = Some(&vector.indices);
            line.values = Some(&vector.values);
            line.terms = extras.terms.then(|| names(&vector.indices));
        }
    }
    line
}
