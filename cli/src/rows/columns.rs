//! The columns of a table while it is written: one file each, joined when all rows are there.

use std::io::Read;

use kin_infer::embedder::Counted;
use serde_json::Value;

use super::{bytes_of, json_line};
use crate::encoder::{Encoded, Kind};
use crate::failure::Result;

/// A file with something of each text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The id, as a line of JSON.
    Ids,
    /// f32 values.
    Values,
    /// How many numbers the text has in `Numbers`.
    Lengths,
    /// Token ids, or indices of sparse values.
    Numbers,
    /// The number of tokens, and 1 if the text was cut.
    Counts,
}

/// The columns of a kind of output.
pub fn columns(kind: Kind, counts: bool) -> Vec<Column> {
    let mut columns = vec![Column::Ids, Column::Values];
    if kind != Kind::Vector {
        columns.extend([Column::Lengths, Column::Numbers]);
    }
    if counts {
        columns.push(Column::Counts);
    }
    columns
}

impl Column {
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Ids => ".ids",
            Self::Values => ".values",
            Self::Lengths => ".lengths",
            Self::Numbers => ".numbers",
            Self::Counts => ".counts",
        }
    }

    /// One text's bytes.
    pub fn encode(self, id: &Value, row: &Counted<Encoded>) -> Result<Vec<u8>> {
        let words = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Ok(match self {
            Self::Ids => json_line(id)?,
            Self::Values => bytes_of(row.value.floats()),
            Self::Lengths => words(&[row.value.numbers().len() as u32]),
            Self::Numbers => words(row.value.numbers()),
            Self::Counts => words(&[row.tokens as u32, u32::from(row.truncated)]),
        })
    }
}

/// The next `count` numbers of four bytes.
pub fn words<T>(reader: &mut impl Read, count: usize, word: fn([u8; 4]) -> T) -> std::io::Result<Vec<T>> {
    let mut bytes = vec![0; count * 4];
    reader.read_exact(&mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| word([b[0], b[1], b[2], b[3]])).collect())
}
