//! From sequences to packed batches: the boundary at which ids, masks and lengths are checked.

mod plan;

use std::borrow::Cow;

pub use plan::BatchLimits;
pub(crate) use plan::plan;

use crate::arch::{ModelSpec, Numbering};
use crate::error::{InferError, Result};
use crate::gpu::Segments;

/// One sequence of tokens, without padding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types, one a token; empty means all 0.
    pub type_ids: Vec<u32>,
    /// The position of each token, ascending; empty means 0, 1, 2, ... Families that number tokens by their ids
    /// (RoBERTa, MPNet) take only distances from it.
    pub positions: Vec<u32>,
}

impl Sequence {
    /// Tokens of type 0 at positions 0, 1, 2, ...
    pub fn new(ids: Vec<u32>) -> Self {
        Self { ids, ..Self::default() }
    }

    /// The tokens of a padded row whose mask is not 0, each at the position it has in the row.
    ///
    /// # Errors
    /// When the lengths differ, or every token is masked.
    pub fn from_masked(item: usize, ids: &[u32], mask: &[u32], type_ids: Option<&[u32]>) -> Result<Self> {
        let differ = |what: &str, len: usize| {
            InferError::input(item, format!("{} token ids but {len} {what}; both need the same length", ids.len()))
        };
        if mask.len() != ids.len() {
            return Err(differ("mask values", mask.len()));
        }
        if let Some(types) = type_ids.filter(|t| t.len() != ids.len()) {
            return Err(differ("token types", types.len()));
        }
        let kept: Vec<usize> = (0..ids.len()).filter(|&i| mask[i] != 0).collect();
        if kept.is_empty() {
            return Err(InferError::input(item, format!("none of its {} tokens is unmasked", ids.len())));
        }
        Ok(Self {
            ids: kept.iter().map(|&i| ids[i]).collect(),
            type_ids: type_ids.map(|t| kept.iter().map(|&i| t[i]).collect()).unwrap_or_default(),
            positions: kept.iter().map(|&i| i as u32).collect(),
        })
    }

    /// Checks ids, types and positions against a model's limits.
    pub(crate) fn check(&self, item: usize, spec: &ModelSpec) -> Result<()> {
        let e = &spec.embedding;
        if self.ids.is_empty() {
            return Err(InferError::input(item, "it has no tokens"));
        }
        let above = |values: &[u32], limit: usize| values.iter().position(|v| *v as usize >= limit);
        let limits = [("token id", &self.ids, e.vocab_size), ("token type", &self.type_ids, e.token_types.max(1))];
        for (what, values, limit) in limits {
            if let Some(i) = above(values, limit) {
                return Err(InferError::input(item, format!("{what} {} at {i}; they are below {limit}", values[i])));
            }
        }
        for (what, values) in [("token types", &self.type_ids), ("positions", &self.positions)] {
            if !values.is_empty() && values.len() != self.ids.len() {
                return Err(InferError::input(item, format!("{} tokens but {} {what}", self.ids.len(), values.len())));
            }
        }
        if !self.positions.is_sorted_by(|a, b| a < b) {
            return Err(InferError::input(item, "its positions do not ascend"));
        }
        let last = match e.positions.map(|p| p.numbering) {
            Some(Numbering::AfterPadding(_)) => self.ids.len() - 1,
            _ => self.positions.last().map_or(self.ids.len() - 1, |p| *p as usize),
        };
        if last >= spec.max_tokens {
            let limit = spec.max_tokens;
            let detail = format!("its last token is at position {last}; this model has {limit} positions");
            return Err(InferError::input(item, detail));
        }
        Ok(())
    }
}

/// Sequences end to end: what the forward pass runs on.
#[derive(Debug)]
pub(crate) struct PackedBatch {
    pub ids: Vec<u32>,
    pub type_ids: Vec<u32>,
    pub positions: Vec<u32>,
    pub segments: Segments,
    /// The length of each sequence by which its rotation goes: one past its last position, or more where it goes on
    /// beyond this batch.
    pub lengths: Vec<usize>,
    /// The call's index of its first item, for reports.
    pub item: usize,
}

impl PackedBatch {
    pub fn new<'a>(sequences: impl Iterator<Item = &'a Sequence> + Clone) -> Self {
        let segments = Segments::from_lengths(sequences.clone().map(|s| s.ids.len()));
        let mut batch = Self {
            ids: Vec::new(),
            type_ids: Vec::new(),
            positions: Vec::new(),
            segments,
            lengths: Vec::new(),
            item: 0,
        };
        for s in sequences {
            let len = s.ids.len();
            batch.ids.extend_from_slice(&s.ids);
            batch.type_ids.extend_from_slice(&s.type_ids);
            batch.type_ids.resize(batch.ids.len(), 0);
            batch.positions.extend_from_slice(&s.positions);
            if s.positions.is_empty() {
                batch.positions.extend(0..len as u32);
            }
            batch.lengths.push(batch.positions.last().map_or(0, |p| *p as usize + 1));
        }
        batch
    }

    /// The sum of the squared lengths: what attention costs.
    pub fn area(&self) -> usize {
        self.segments.iter().map(|segment| segment.len() * segment.len()).sum()
    }

    /// The row of the position table that each token takes.
    pub fn position_rows(&self, numbering: Numbering) -> Cow<'_, [u32]> {
        let Numbering::AfterPadding(pad) = numbering else { return Cow::Borrowed(&self.positions) };
        let rows = self.segments.iter().flat_map(|segment| {
            self.ids[segment].iter().scan(pad, move |row, id| {
                let padding = *id == pad;
                *row += u32::from(!padding);
                Some(if padding { pad } else { *row })
            })
        });
        Cow::Owned(rows.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_ids_are_not_counted() {
        let sequences = [Sequence::new(vec![5, 1, 7, 1, 9]), Sequence::new(vec![1, 4])];
        let batch = PackedBatch::new(sequences.iter());
        assert_eq!(*batch.position_rows(Numbering::AfterPadding(1)), [2, 1, 3, 1, 4, 1, 2]);
        assert_eq!(*batch.position_rows(Numbering::Position), [0, 1, 2, 3, 4, 0, 1]);
    }

    #[test]
    fn masked_rows_keep_their_positions() {
        let s = Sequence::from_masked(0, &[9, 8, 7, 6], &[0, 1, 0, 1], Some(&[0, 1, 1, 0])).unwrap();
        assert_eq!(s, Sequence { ids: vec![8, 6], type_ids: vec![1, 0], positions: vec![1, 3] });
        let none = Sequence::from_masked(3, &[1], &[0], None).unwrap_err();
        assert!(none.to_string().contains("input 3: none of its 1 tokens"), "{none}");
        let differ = Sequence::from_masked(2, &[1, 2], &[1], None).unwrap_err();
        assert!(differ.to_string().contains("input 2: 2 token ids but 1 mask values"), "{differ}");
    }
}
