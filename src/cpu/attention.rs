//! Self-attention over packed sequences, one (sequence, head) pair a task.
//!
//! ```text
//! s_ij = q_i . k_j                       one GEMM element: the chain over head_dim
//! p_ij = softmax_j(fma(s_ij, scale, b_ij))
//! o_i  = sum_j p_ij v_j                  one GEMM element: the chain over keys, cut at 512
//! ```

use std::ops::Range;

use rayon::prelude::*;

use super::packed::Output;
use super::simd::PANEL;
use super::table::{Kernels, Matrix};

/// Query rows whose scores are held at once.
const QUERY_BLOCK: usize = 96;

/// Columns `first..` of a row-major matrix `stride` wide.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub data: &'a [f32],
    pub first: usize,
    pub stride: usize,
}

impl<'a> View<'a> {
    /// From row `row`, column `column` of the view.
    pub fn at(&self, row: usize, column: usize) -> Matrix<'a> {
        Matrix { data: &self.data[row * self.stride + self.first + column..], stride: self.stride }
    }
}

/// What the kernels need of an `AttentionShape`, resolved to host slices.
pub(super) struct Shape<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f32,
    /// Slope of each head and position of each row.
    pub alibi: Option<(&'a [f32], &'a [u32])>,
}

impl Shape<'_> {
    /// The first column of the key and value head that serves `head`.
    pub fn kv_column(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads) * self.head_dim
    }

    /// -slope * |i - j| for query row `query` against the rows `keys`; `None` without ALiBi.
    fn bias<'b>(&self, head: usize, query: usize, keys: &Range<usize>, out: &'b mut Vec<f32>) -> Option<&'b [f32]> {
        let (slopes, positions) = self.alibi?;
        let (slope, at) = (slopes[head], positions[query]);
        out.clear();
        out.extend(positions[keys.clone()].iter().map(|p| -(slope * p.abs_diff(at) as f32)));
        Some(out)
    }
}

/// Panels of K^T: `[key / 16][feature][key % 16]`, missing keys zero.
pub(super) fn pack_keys(k: Matrix, keys: usize, head_dim: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(keys.div_ceil(PANEL) * head_dim * PANEL, 0.0);
    for (p, panel) in out.chunks_exact_mut(head_dim * PANEL).enumerate() {
        for j in 0..PANEL.min(keys - p * PANEL) {
            let row = &k.data[(p * PANEL + j) * k.stride..][..head_dim];
            for (line, value) in panel.chunks_exact_mut(PANEL).zip(row) {
                line[j] = *value;
            }
        }
    }
}

/// Panels of V: `[feature / 16][key][feature % 16]`, missing features zero.
pub(super) fn pack_values(v: Matrix, keys: usize, head_dim: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(head_dim.div_ceil(PANEL) * keys * PANEL, 0.0);
    for (p, panel) in out.chunks_exact_mut(keys * PANEL).enumerate() {
        let width = PANEL.min(head_dim - p * PANEL);
        for (j, line) in panel.chunks_exact_mut(PANEL).enumerate() {
            line[..width].copy_from_slice(&v.data[j * v.stride + p * PANEL..][..width]);
        }
    }
}

/// Softmax of the score rows `queries` (rows of the batch) against `keys`; `scores` is [queries, keys].
pub(super) fn softmax_rows(
    kernels: &Kernels,
    shape: &Shape,
    head: usize,
    queries: Range<usize>,
    keys: &Range<usize>,
    scores: &mut [f32],
) {
    let mut bias = Vec::new();
    for (row, query) in scores.chunks_exact_mut(keys.len()).zip(queries) {
        kernels.softmax(row, shape.scale, shape.bias(head, query, keys, &mut bias));
    }
}

#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::default();
}

/// The fused operation: attention of every sequence and head into `out`, [rows, heads * head_dim].
pub(super) fn run(
    kernels: &Kernels,
    shape: &Shape,
    segments: &[Range<usize>],
    (q, k, v): (View, View, View),
    out: &mut [f32],
) {
    let width = shape.heads * shape.head_dim;
    assert!(out.len() >= segments.last().map_or(0, |r| r.end) * width, "attention: output length");
    let output = Output::new(out);
    let task = |i: usize| {
        let (segment, head) = (&segments[i / shape.heads], i % shape.heads);
        if segment.is_empty() {
            return;
        }
        SCRATCH.with_borrow_mut(|s| {
            let (len, dim) = (segment.len(), shape.head_dim);
            pack_keys(k.at(segment.start, shape.kv_column(head)), len, dim, &mut s.keys);
            pack_values(v.at(segment.start, shape.kv_column(head)), len, dim, &mut s.values);
            for first in (0..len).step_by(QUERY_BLOCK) {
                let rows = QUERY_BLOCK.min(len - first);
                let query = segment.start + first;
                s.scores.resize(rows * len, 0.0);
                kernels.multiply(rows, dim, len, q.at(query, head * dim), &s.keys, &mut s.scores, len);
                softmax_rows(kernels, shape, head, query..query + rows, segment, &mut s.scores[..rows * len]);
                let probabilities = Matrix { data: &s.scores, stride: len };
                // SAFETY: this task alone writes the columns of its head in the rows of its sequence, which lie
                // inside `out` by the assertion above.
                unsafe {
                    let c = output.at(query * width + head * dim);
                    kernels.multiply_raw(rows, len, dim, probabilities, &s.values, c, width);
                }
            }
        });
    };
    let tasks = segments.len() * shape.heads;
    if rayon::current_num_threads() == 1 {
        (0..tasks).for_each(task);
    } else {
        (0..tasks).into_par_iter().for_each(task);
    }
}
