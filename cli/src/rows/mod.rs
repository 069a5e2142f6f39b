//! How what texts become is written: JSON lines, NumPy arrays with the ids beside them, or Parquet.

mod columns;
mod jsonl;
mod parquet;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::ValueEnum;
use kin_infer::durable::{DurableFiles, Part};
use kin_infer::embedder::Counted;
use serde_json::Value;

use crate::encoder::{Encoded, Kind};
use crate::failure::{Failure, Result};
use crate::npy;
use columns::{Column, columns};

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
    /// A Parquet table, a text a row: `id`, and `embedding`, a list of floats; one vector a token: `token_ids` and
    /// `embeddings`, a list of lists; sparse: `indices` and `values`. Ids are whole numbers if all are, else strings
    Parquet,
}

/// What a line says besides its vector.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extras {
    /// The number of tokens, and whether the text was cut.
    pub counts: bool,
    /// The vocabulary entries of sparse vectors.
    pub terms: bool,
}

/// How the rows of an output are laid out in its files.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub format: Format,
    pub kind: Kind,
    pub extras: Extras,
    /// Length of each vector.
    pub dimension: usize,
}

/// What the name of the offsets has after the array's.
const OFFSETS: &str = ".offsets";

/// The number 0 as offset of the first text.
const FIRST_OFFSET: [u8; 8] = 0i64.to_le_bytes();

/// What the names of an output's files have after the output's own, of whatever form it is.
const SUFFIXES: [&str; 7] = ["", ".ids", OFFSETS, ".values", ".lengths", ".numbers", ".counts"];

/// The names that the files of an output may have, by the output's own name; those in the making and the journal too.
pub fn names(output: &OsStr) -> Vec<OsString> {
    let with = |end: &str| {
        let mut name = output.to_owned();
        name.push(end);
        name
    };
    let files = SUFFIXES.into_iter().flat_map(|suffix| [with(suffix), with(&format!("{suffix}.partial"))]);
    files.chain([with(".journal")]).collect()
}

impl Layout {
    /// Refuses what a format cannot hold.
    pub fn check(&self, output: Option<&Path>) -> Result<()> {
        let usage = |why: &str| Err(Failure::Usage(why.to_string()));
        match self.format {
            Format::Jsonl => Ok(()),
            Format::Npy if self.kind == Kind::Sparse => usage(
                "sparse vectors have no npy form: use --format jsonl, or an --output that ends in .jsonl or .parquet",
            ),
            Format::Npy if self.extras.counts => usage("--counts needs --format jsonl or parquet"),
            Format::Parquet if self.extras.terms => usage("--terms needs --format jsonl"),
            Format::Npy if output.is_none() => usage("--format npy needs --output FILE"),
            Format::Parquet if output.is_none() => usage("--format parquet needs --output FILE"),
            Format::Npy | Format::Parquet => Ok(()),
        }
    }

    /// The files of the output.
    pub fn parts(&self) -> Vec<Part> {
        match self.format {
            Format::Jsonl => vec![Part::named("")],
            Format::Npy => {
                let mut parts = vec![Part::with_head("", npy::HEADER), Part::named(".ids")];
                if self.kind == Kind::Tokens {
                    parts.push(Part::with_head(OFFSETS, npy::HEADER + FIRST_OFFSET.len()));
                }
                parts
            }
            Format::Parquet => self.columns().iter().map(|c| Part::scratch(c.suffix())).collect(),
        }
    }

    fn columns(&self) -> Vec<Column> {
        columns(self.kind, self.extras.counts)
    }

    /// One text's bytes for each part; `term` names a token, `rows` is the number of rows of an array before it.
    fn encode(
        &self,
        id: &Value,
        row: &Counted<Encoded>,
        rows: usize,
        term: impl Fn(u32) -> String,
    ) -> Result<Vec<Vec<u8>>> {
        match self.format {
            Format::Jsonl => Ok(vec![self.line(id, row, term)?]),
            Format::Npy => {
                let values = row.value.floats();
                let mut parts = vec![bytes_of(values), json_line(id)?];
                if self.kind == Kind::Tokens {
                    let end = rows + values.len() / self.dimension.max(1);
                    parts.push((end as i64).to_le_bytes().to_vec());
                }
                Ok(parts)
            }
            Format::Parquet => self.columns().iter().map(|column| column.encode(id, row)).collect(),
        }
    }

    /// A line of JSON.
    pub fn line(&self, id: &Value, row: &Counted<Encoded>, term: impl Fn(u32) -> String) -> Result<Vec<u8>> {
        json_line(&jsonl::line(id, row, self.extras, self.dimension, term))
    }

    /// Appends one text to the files.
    pub fn append<B>(
        &self,
        files: &mut DurableFiles<B>,
        id: &Value,
        row: &Counted<Encoded>,
        term: impl Fn(u32) -> String,
    ) -> Result<()> {
        let parts = self.encode(id, row, self.array_rows(files), term)?;
        for (i, bytes) in parts.iter().enumerate() {
            files.append(i, bytes)?;
        }
        Ok(())
    }

    /// Rows of the array that is the first part.
    fn array_rows<B>(&self, files: &DurableFiles<B>) -> usize {
        files.appended(0) as usize / (4 * self.dimension.max(1))
    }

    /// Everything is committed: makes the output whole.
    pub fn finish<B>(&self, mut files: DurableFiles<B>, keep: bool) -> Result<()> {
        let heads = match self.format {
            Format::Jsonl => Vec::new(),
            Format::Npy => {
                let rows = self.array_rows(&files);
                let mut heads = vec![(0, npy::header(rows, self.dimension))];
                if self.kind == Kind::Tokens {
                    let texts = files.appended(2) as usize / FIRST_OFFSET.len();
                    heads.push((2, [npy::list_header(texts + 1), FIRST_OFFSET.to_vec()].concat()));
                } else {
                    // With it, an array is one of token vectors.
                    files.remove_at_end(OFFSETS);
                }
                heads
            }
            Format::Parquet => {
                let columns = self.columns();
                files.make(|file, readers| parquet::write(file, readers, &columns, self))?;
                Vec::new()
            }
        };
        Ok(files.finish(&heads, keep)?)
    }
}

fn json_line(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(|e| Failure::Failed(e.to_string()))?;
    line.push(b'\n');
    Ok(line)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
