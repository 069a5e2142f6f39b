//! What happens to a tensor between its file and the model, and what the model does with it.

use std::ops::Range;

use crate::error::Result;
use crate::weights::Tensor;

/// What is done to a tensor on the way from the file to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Edit {
    /// Nothing.
    None,
    /// These rows of it.
    Rows(Range<usize>),
    /// Rows lie head by head, `of` parts in each head: part `part` of every head, [heads * dim, k].
    PartOfHeads { heads: usize, part: usize, of: usize },
    /// These rows of it, which lie so that each head's first half and its second alternate; they come apart.
    HalvesApart { heads: usize, rows: Range<usize> },
    /// A matrix stored [in, out].
    Transposed,
    /// 1 + each value.
    PlusOne,
    /// A convolution's kernel [out, in / groups, taps] as a matrix over unfolded rows, [out, taps * in].
    Unfolded { groups: usize },
}

impl Edit {
    pub fn apply(&self, t: &Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(t.clone()),
            Self::Rows(rows) => t.rows(rows.clone()),
            Self::PartOfHeads { heads, part, of } => {
                let rows = t.shape()[0];
                let dim = rows / heads / of;
                t.rows_rearranged(heads * dim, |row| (row / dim * of + part) * dim + row % dim)
            }
            Self::HalvesApart { heads, rows } => {
                let dim = rows.len() / (*heads).max(1);
                t.rows_rearranged(rows.len(), |row| {
                    let (head, at) = (row / dim, row % dim);
                    rows.start + head * dim + at % (dim / 2) * 2 + at / (dim / 2)
                })
            }
            Self::Transposed => {
                let (k, n) = (t.shape()[0], t.shape()[1]);
                t.rearranged(&[n, k], |i| Some(i % k * n + i / k))
            }
            Self::PlusOne => t.mapped(|v| v + 1.0),
            Self::Unfolded { groups } => {
                let (out, within, taps) = (t.shape()[0], t.shape()[1], t.shape()[2]);
                let input = within * groups;
                t.rearranged(&[out, taps * input], |i| {
                    let (o, tap, from) = (i / (taps * input), i / input % taps, i % input);
                    let group = o / (out / groups);
                    (from / within == group).then(|| (o * within + from % within) * taps + tap)
                })
            }
        }
    }
}

/// What a model does with a tensor of its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It is read whole, as binary32: norms, biases, small tables, kernels of convolutions.
    Values,
    /// Inputs are multiplied with its rows.
    Linear,
    /// As `Linear`, with its columns.
    LinearTransposed,
    /// Rows of it are looked up; a language model that ties its head multiplies with them too.
    Table,
}
