//! What becomes of attention scores between the two products: disentangled terms, scale, cap, biases, windows, softmax.

use std::ops::Range;

use super::attention::dot_keys;
use super::memory::Scratch;
use super::simd::{PANEL, VIRTUAL_LANES};
use super::table::{Kernels, Matrix};
use crate::gpu::{Activation, KeyWindow};

/// What the kernels need of an `AttentionShape`, resolved to host slices.
pub(super) struct Shape<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    /// Position of each row of the batch, ascending within a sequence.
    pub positions: &'a [u32],
    pub bias: Bias<'a>,
    pub window: KeyWindow,
    pub softcap: Option<f32>,
}

/// `ScoreBias` over host slices.
pub(super) enum Bias<'a> {
    None,
    Alibi(&'a [f32]),
    Distance { table: &'a [f32], reach: usize },
    Disentangled { map: &'a [u32], reach: usize, keys: Option<&'a [f32]>, queries: Option<&'a [f32]> },
}

/// Scores of `queries` with the keys `seen`, both counted from the sequence's start; a row a query, `stride` apart.
pub(super) struct Block<'a> {
    pub queries: Range<usize>,
    pub seen: Range<usize>,
    pub stride: usize,
    pub scores: &'a mut [f32],
}

impl Block<'_> {
    /// Each query and its scores.
    fn rows(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        let keys = self.seen.len();
        self.queries.clone().zip(self.scores.chunks_mut(self.stride).map(move |row| &mut row[..keys]))
    }
}

/// from - to, limited to -reach..=reach and counted from -reach.
fn step(from: u32, to: u32, reach: usize) -> usize {
    let distance = (from.abs_diff(to) as usize).min(reach);
    if from < to { reach - distance } else { reach + distance }
}

impl Shape<'_> {
    /// The first column of the key and value head that serves `head`.
    pub fn kv_column(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads) * self.head_dim
    }

    /// The keys, counted from the segment's start, that one of its `queries` sees: a range, as positions ascend.
    pub fn seen(&self, segment: &Range<usize>, queries: &Range<usize>) -> Range<usize> {
        if self.window == KeyWindow::ALL {
            return 0..segment.len();
        }
        let positions = &self.positions[segment.clone()];
        let first = positions[queries.start].saturating_sub(self.window.behind);
        let last = positions[queries.end - 1].saturating_add(self.window.ahead);
        positions.partition_point(|p| *p < first)..positions.partition_point(|p| *p <= last)
    }

    /// What is added to the scaled scores of `query` (a row of the batch) with `keys` (rows of the batch), 0 for the
    /// first `hidden` of them.
    fn bias<'b>(
        &self,
        head: usize,
        query: usize,
        keys: Range<usize>,
        hidden: usize,
        out: &'b mut Vec<f32>,
    ) -> Option<&'b [f32]> {
        let at = self.positions[query];
        out.clear();
        match self.bias {
            Bias::None | Bias::Disentangled { .. } => return None,
            Bias::Alibi(slopes) => {
                out.extend(self.positions[keys].iter().map(|p| -(slopes[head] * p.abs_diff(at) as f32)));
            }
            Bias::Distance { table, reach } => {
                let table = &table[head * (2 * reach + 1)..];
                out.extend(self.positions[keys].iter().map(|p| table[step(*p, at, reach)]));
            }
        }
        out[..hidden].fill(0.0);
        Some(out)
    }

    /// Softmax of scores whose keys begin at a multiple of the virtual lanes. A key outside a query's window becomes +0,
    /// whatever it and its bias hold.
    pub fn softmax_rows(&self, kernels: &Kernels, head: usize, segment: &Range<usize>, mut block: Block) {
        if self.window == KeyWindow::ALL
            && self.softcap.is_none()
            && matches!(self.bias, Bias::None | Bias::Disentangled { .. })
        {
            return kernels.softmax_rows(block.scores, block.seen.len(), block.stride, self.scale);
        }
        let (mut bias, seen) = (Vec::new(), block.seen.clone());
        for (query, row) in block.rows() {
            let own = self.seen(segment, &(query..query + 1));
            // Softmax sums by lanes counted from key 0: leaving out whole groups of lanes changes nothing.
            let start = own.start / VIRTUAL_LANES * VIRTUAL_LANES;
            row[..start - seen.start].fill(0.0);
            row[own.end - seen.start..].fill(0.0);
            let (hidden, row) = (own.start - start, &mut row[start - seen.start..own.end - seen.start]);
            let query = segment.start + query;
            let bias = self.bias(head, query, segment.start + start..segment.start + own.end, hidden, &mut bias);
            let mut scale = self.scale;
            if let Some(cap) = self.softcap {
                row.iter_mut().for_each(|s| *s = *s * self.scale / cap);
                kernels.activation(Activation::Tanh, row);
                row.iter_mut().for_each(|s| *s *= cap);
                scale = 1.0;
            } else if hidden > 0 && scale == 0.0 {
                // 0 times an infinity is NaN; the products are exact, so that they may come first.
                row.iter_mut().for_each(|s| *s *= self.scale);
                scale = 1.0;
            }
            // What the scale makes -inf of.
            row[..hidden].fill(if scale < 0.0 { f32::INFINITY } else { f32::NEG_INFINITY });
            kernels.softmax(row, scale, bias);
            row[..hidden].fill(0.0); // in a row of NaN they would be NaN
        }
    }
}

/// The disentangled terms of one (sequence, head) pair.
#[derive(Default)]
pub(super) struct Terms {
    /// Row of the tables for the distance len - 1 - x, less `first`: the rows of query i are the `len` values from
    /// len - 1 - i on. Empty without disentangled terms.
    by_distance: Vec<u32>,
    /// Whether positions are consecutive, so that `by_distance` serves every query.
    consecutive: bool,
    /// The first table row in use, and how many are.
    first: usize,
    rows: usize,
    packed: Scratch,
    /// k_j . position_queries[m], [len, rows]
    by_key: Vec<f32>,
    /// q_i . position_keys[m], [queries, rows]
    by_query: Vec<f32>,
    looked_up: Vec<u32>,
}

impl Terms {
    /// What does not depend on the query block.
    pub fn prepare(&mut self, kernels: &Kernels, shape: &Shape, head: usize, segment: &Range<usize>, k: Matrix) {
        self.by_distance.clear();
        let Bias::Disentangled { map, reach, keys, queries } = shape.bias else { return };
        let (len, dim, width) = (segment.len(), shape.head_dim, shape.heads * shape.head_dim);
        let positions = &shape.positions[segment.clone()];
        let (low, high) = (positions[0], positions[len - 1]);
        self.consecutive = (high - low) as usize == len - 1;
        self.first = map[step(low, high, reach)] as usize;
        self.rows = map[step(high, low, reach)] as usize + 1 - self.first;
        let last = 2 * len - 1;
        let row = |x| map[step(len as u32 - 1, x, reach)] - self.first as u32;
        self.by_distance.extend((0..last as u32).map(row));
        let (first, rows) = (self.first, self.rows);
        let packed = self.packed.of_len(rows.next_multiple_of(PANEL) * dim);
        let pack = |t: &[f32], packed: &mut [f32]| {
            let table = Matrix { data: &t[first * width + head * dim..], stride: width };
            kernels.pack_columns(table, rows, dim, packed);
        };
        if let Some(t) = queries {
            pack(t, packed);
            self.by_key.resize(len * rows, 0.0);
            dot_keys(kernels, [len, rows, dim], k, packed, (&mut self.by_key, rows));
        }
        if let Some(t) = keys {
            pack(t, packed);
        }
    }

    /// Adds the terms to the scores of a block; `q` is its first query's row.
    pub fn add(&mut self, kernels: &Kernels, shape: &Shape, segment: &Range<usize>, q: Matrix, block: &mut Block) {
        let Bias::Disentangled { map, reach, keys, queries: by_key } = shape.bias else { return };
        if keys.is_some() {
            let (dim, rows, queries) = (shape.head_dim, self.rows, block.queries.len());
            self.by_query.resize(queries * rows, 0.0);
            let packed = self.packed.of_len(rows.next_multiple_of(PANEL) * dim);
            dot_keys(kernels, [queries, rows, dim], q, packed, (&mut self.by_query, rows));
        }
        let positions = &shape.positions[segment.clone()];
        let (first, seen) = (block.queries.start, block.seen.clone());
        for (query, row) in block.rows() {
            let r = query - first;
            let at: &[u32] = if self.consecutive {
                &self.by_distance[segment.len() - 1 - query..][seen.clone()]
            } else {
                let row = |p: &u32| map[step(positions[query], *p, reach)] - self.first as u32;
                self.looked_up.clear();
                self.looked_up.extend(positions[seen.clone()].iter().map(row));
                &self.looked_up
            };
            if keys.is_some() {
                let line = &self.by_query[r * self.rows..][..self.rows];
                row.iter_mut().zip(at).for_each(|(s, m)| *s += line[*m as usize]);
            }
            if by_key.is_some() {
                let lines = self.by_key[seen.start * self.rows..].chunks_exact(self.rows);
                row.iter_mut().zip(at).zip(lines).for_each(|((s, m), line)| *s += line[*m as usize]);
            }
        }
    }
}
