//! NumPy arrays with the ids beside them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Vectors;
use crate::failure::{Failure, Result};
use crate::npy;
use crate::output::with_suffix;
use crate::search::Best;

/// An array and its ids; for one vector a token also the offsets.
pub fn read_npy(mut reader: impl Read, path: &Path, best: &mut Best) -> Result<()> {
    let at = |why: String| Failure::Failed(format!("{}: {why}", path.display()));
    let (rows, cols) = npy::read_header(&mut reader).map_err(at)?;
    let (many, width) = match best.query() {
        Vectors::One(values) => (false, values.len()),
        Vectors::Many { dimension, .. } => (true, *dimension),
        Vectors::Sparse(_) => return Err(at("a dense array, but the model makes sparse vectors".to_string())),
    };
    if !many && with_suffix(path, ".offsets").exists() {
        return Err(at("one vector a token (FILE.offsets is beside it): --pooling none searches it".to_string()));
    }
    let document = |values, dimension| if many { Vectors::Many { values, dimension } } else { Vectors::One(values) };
    // The shape is the file's word: nothing is allocated by it before it is compared.
    if rows > 0 && cols != width {
        best.offer(&document(vec![0.0; cols.min(1 << 20)], cols), || Value::Null).map_err(at)?;
    }
    let offsets = if many { Some(read_offsets(path, rows)?) } else { None };
    let texts = offsets.as_ref().map_or(rows, |o| o.len() - 1);
    let mut ids = Ids::open(path)?;
    let (mut row, mut bytes) = (0, vec![0; width * 4]);
    for text in 0..texts {
        let end = offsets.as_ref().map_or(row + 1, |o| o[text + 1]);
        let mut values = Vec::with_capacity(width);
        for row in row..end {
            reader.read_exact(&mut bytes).map_err(|e| at(format!("row {row} of {rows}: {e}")))?;
            values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        let id = ids.next(text)?;
        best.offer(&document(values, width), || id).map_err(|why| at(format!("row {row}: {why}")))?;
        row = end;
    }
    ids.end(texts)
}

/// The ids beside an array, one a line.
struct Ids {
    path: PathBuf,
    lines: std::io::Lines<BufReader<File>>,
}

impl Ids {
    fn open(array: &Path) -> Result<Self> {
        let path = with_suffix(array, ".ids");
        let file = File::open(&path).map_err(|e| Failure::io(&path, &e))?;
        Ok(Self { path, lines: BufReader::new(file).lines() })
    }

    fn bad(&self, text: usize, why: &str) -> Failure {
        Failure::Failed(format!("{}: line {}: {why}", self.path.display(), text + 1))
    }

    fn next(&mut self, text: usize) -> Result<Value> {
        let line = self.lines.next().ok_or_else(|| self.bad(text, "missing; the array has more rows"))?;
        let line = line.map_err(|e| Failure::io(&self.path, &e))?;
        serde_json::from_str(&line).map_err(|e| self.bad(text, &e.to_string()))
    }

    fn end(mut self, texts: usize) -> Result<()> {
        match self.lines.next() {
            Some(_) => Err(self.bad(texts, &format!("one id too many; the array has {texts} rows"))),
            None => Ok(()),
        }
    }
}

/// Where each text's rows begin, and the number of rows at the end.
fn read_offsets(array: &Path, rows: usize) -> Result<Vec<usize>> {
    let path = with_suffix(array, ".offsets");
    let at = |why: String| Failure::Failed(format!("{}: {why}", path.display()));
    let file =
        std::fs::read(&path).map_err(|e| at(format!("{e}; `embed --pooling none` writes it beside the array")))?;
    let mut rest = file.as_slice();
    let len = npy::read_list_header(&mut rest).map_err(at)?;
    let numbers =
        rest.chunks_exact(8).map(|b| b.iter().rev().fold(0, |n: u64, byte| n << 8 | u64::from(*byte)) as usize);
    let offsets: Vec<usize> = numbers.collect();
    let whole = offsets.len() == len && rest.len() == len.saturating_mul(8);
    if !whole || offsets.first() != Some(&0) || offsets.last() != Some(&rows) || !offsets.is_sorted() {
        return Err(at(format!("expected {len} offsets that ascend from 0 to the {rows} rows of the array")));
    }
    Ok(offsets)
}
