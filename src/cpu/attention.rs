//! Self-attention over packed sequences, one (sequence, head) pair a task.
//!
//! ```text
//! s_ij = q_i . k_j (+ disentangled terms)      GEMM elements: chains over head_dim
//! p_ij = softmax_j(fma(s_ij, scale, b_ij))     over the keys of i's window; +0 for the others
//! o_i  = +0 + sum_j p_ij v_j                   the chain over keys, cut at multiples of 512
//! ```
//! A key outside the window weighs +0, which changes no sum of finite values: such keys are left out where whole groups
//! of them are, and where a value is not finite.

use std::ops::Range;

use super::cancel::Cancel;
use super::memory::Scratch;
use super::packed::Output;
use super::scores::{Block, Shape, Terms};
use super::simd::{PANEL, VIRTUAL_LANES};
use super::table::{Kernels, Matrix, Multiply};

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

/// Products of `a` [rows, dim] with keys in panels `[key / 16][feature][key % 16]`, into rows of `n` values, `stride` apart.
pub(super) fn dot_keys(
    kernels: &Kernels,
    [rows, n, dim]: [usize; 3],
    a: Matrix,
    keys: &[f32],
    (out, stride): (&mut [f32], usize),
) {
    assert!(stride >= n && out.len() >= rows * stride, "dot_keys: the output is {} long", out.len());
    let product = Multiply {
        rows,
        n,
        k: 0..dim,
        a,
        b: keys,
        panel_stride: dim * PANEL,
        c: out.as_mut_ptr(),
        ldc: stride,
        accumulate: false,
    };
    // SAFETY: `out` holds the rows and is borrowed exclusively.
    unsafe { kernels.multiply(&product) }
}

/// `out[i] = +0 + sum_j p[i][j] v_j` over the keys `keys` of a sequence of `len`, `out` being rows `ldc` apart.
///
/// # Safety
/// This thread alone writes the `dim` columns at `out` of each row.
#[allow(clippy::too_many_arguments)] // the shape of a matrix product
unsafe fn weigh_values(
    kernels: &Kernels,
    rows: usize,
    dim: usize,
    len: usize,
    keys: Range<usize>,
    p: Matrix,
    values: &[f32],
    (out, ldc): (*mut f32, usize),
) {
    // SAFETY: forwarded.
    unsafe {
        for r in 0..rows {
            std::slice::from_raw_parts_mut(out.add(r * ldc), dim).fill(0.0);
        }
        kernels.multiply(&Multiply {
            rows,
            n: dim,
            k: keys.clone(),
            a: p,
            b: &values[keys.start * PANEL..],
            panel_stride: len * PANEL,
            c: out,
            ldc,
            accumulate: true,
        });
    }
}

/// What the scores of `queries` with the keys `seen` became, a row a query.
struct Weights<'a> {
    queries: Range<usize>,
    seen: Range<usize>,
    matrix: Matrix<'a>,
}

/// The values of the queries weighed, a key outside a query's window being no term: the product
/// over all keys `seen`, and a row that came out NaN once more over its own, for +0 times an infinity is NaN.
///
/// # Safety
/// As [`weigh_values`].
unsafe fn weigh_seen(
    kernels: &Kernels,
    shape: &Shape,
    segment: &Range<usize>,
    weights: &Weights,
    values: &[f32],
    (out, ldc): (*mut f32, usize),
) {
    let (len, dim, stride) = (segment.len(), shape.head_dim, weights.matrix.stride);
    let (queries, seen) = (&weights.queries, &weights.seen);
    // SAFETY: forwarded.
    unsafe {
        weigh_values(kernels, queries.len(), dim, len, seen.clone(), weights.matrix, values, (out, ldc));
        for (r, query) in queries.clone().enumerate() {
            let own = shape.seen(segment, &(query..query + 1));
            let row = std::slice::from_raw_parts(out.add(r * ldc), dim);
            if own != *seen && row.iter().any(|v| v.is_nan()) {
                let data = &weights.matrix.data[r * stride + own.start - seen.start..];
                let own_weights = Matrix { data, stride };
                weigh_values(kernels, 1, dim, len, own, own_weights, values, (out.add(r * ldc), ldc));
            }
        }
    }
}

/// What a thread keeps between its tasks.
#[derive(Default)]
struct Buffers {
    keys: Scratch,
    values: Scratch,
    scores: Scratch,
    terms: Terms,
}

/// Query rows whose scores, `stride` apart, are held at once: as many as stay in the first cache beside a group of panels.
fn query_rows(stride: usize) -> usize {
    /// Values of a block; rows at least and at most.
    const VALUES: usize = 6 << 10;
    const ROWS: [usize; 2] = [24, 96];
    (VALUES / stride.max(1)).clamp(ROWS[0], ROWS[1]) / ROWS[0] * ROWS[0]
}

/// Bytes that a thread's scratch takes for sequences of `len` tokens; `relative` is the number of relative positions, 0
/// where scores have no disentangled terms.
pub(super) fn scratch_bytes(len: usize, head_dim: usize, relative: usize) -> usize {
    let padded = |n: usize| n.next_multiple_of(PANEL);
    let queries = query_rows(padded(len)).min(len);
    let attention = padded(len) * head_dim + padded(head_dim) * len + queries * padded(len);
    let rows = relative.min(2 * len);
    let terms = rows * (len + queries) + padded(rows) * head_dim + if relative > 0 { 2 * len } else { 0 };
    (attention + terms) * 4
}

thread_local! {
    static BUFFERS: std::cell::RefCell<Buffers> = std::cell::RefCell::default();
}

/// The scores of one head: `out` [len, len] for the rows of `segment`.
pub(super) fn head_scores(
    kernels: &Kernels,
    shape: &Shape,
    head: usize,
    segment: &Range<usize>,
    (q, k): (View, View),
    out: &mut [f32],
) {
    let (len, dim) = (segment.len(), shape.head_dim);
    let (q, k) = (q.at(segment.start, head * dim), k.at(segment.start, shape.kv_column(head)));
    BUFFERS.with_borrow_mut(|s| {
        let keys = s.keys.of_len(len.next_multiple_of(PANEL) * dim);
        kernels.pack_columns(k, len, dim, keys);
        dot_keys(kernels, [len, len, dim], q, keys, (out, len));
        s.terms.prepare(kernels, shape, head, segment, k);
        s.terms.add(kernels, shape, segment, q, &mut Block { queries: 0..len, seen: 0..len, stride: len, scores: out });
    });
}

/// The values of one head weighed by `p` [len, len], into `out` at the segment's first row and the head's column.
pub(super) fn head_values(
    kernels: &Kernels,
    shape: &Shape,
    head: usize,
    segment: &Range<usize>,
    (p, v): (&[f32], View),
    out: &mut [f32],
) {
    let (len, dim, width) = (segment.len(), shape.head_dim, shape.heads * shape.head_dim);
    assert!(out.len() >= (len - 1) * width + dim, "head_values: the output is {} long", out.len());
    BUFFERS.with_borrow_mut(|s| {
        let values = s.values.of_len(dim.next_multiple_of(PANEL) * len);
        kernels.pack_rows(v.at(segment.start, shape.kv_column(head)), len, dim, values);
        let weights = Weights { queries: 0..len, seen: 0..len, matrix: Matrix { data: p, stride: len } };
        // SAFETY: `out` is borrowed exclusively and holds the rows.
        unsafe { weigh_seen(kernels, shape, segment, &weights, values, (out.as_mut_ptr(), width)) };
    });
}

/// The fused operation: attention of every sequence and head into `out`, [rows, heads * head_dim].
pub(super) fn run(
    kernels: &Kernels,
    shape: &Shape,
    segments: &[Range<usize>],
    views: (View, View, View),
    out: &mut [f32],
    cancel: &Cancel,
) {
    let width = shape.heads * shape.head_dim;
    assert!(out.len() >= segments.last().map_or(0, |r| r.end) * width, "attention: output length");
    let output = Output::new(out);
    let task = |i: usize| {
        let (segment, head) = (&segments[i / shape.heads], i % shape.heads);
        if !segment.is_empty() {
            // SAFETY: this task alone writes the columns of its head in the rows of its sequence, which lie inside
            // `out` by the assertion above.
            BUFFERS.with_borrow_mut(|s| unsafe { one_head(kernels, shape, head, segment, views, output, s, cancel) });
        }
    };
    crate::fork::each(segments.len() * shape.heads, task);
}

/// # Safety
/// The caller alone writes the head's columns in the segment's rows of `output`, which holds them.
#[allow(clippy::too_many_arguments)] // one task of the operation, and where it lies
unsafe fn one_head(
    kernels: &Kernels,
    shape: &Shape,
    head: usize,
    segment: &Range<usize>,
    (q, k, v): (View, View, View),
    output: Output,
    s: &mut Buffers,
    cancel: &Cancel,
) {
    let (len, dim, width) = (segment.len(), shape.head_dim, shape.heads * shape.head_dim);
    let column = shape.kv_column(head);
    let keys = k.at(segment.start, column);
    let packed_keys = s.keys.of_len(len.next_multiple_of(PANEL) * dim);
    let values = s.values.of_len(dim.next_multiple_of(PANEL) * len);
    kernels.pack_columns(keys, len, dim, packed_keys);
    kernels.pack_rows(v.at(segment.start, column), len, dim, values);
    s.terms.prepare(kernels, shape, head, segment, keys);
    let step = query_rows(len.next_multiple_of(PANEL));
    for first in (0..len).step_by(step) {
        if cancel.is_set() {
            return;
        }
        let queries = first..len.min(first + step);
        let out = output.at((segment.start + first) * width + head * dim);
        for (row, line) in (0..queries.len()).flat_map(|row| (0..dim).step_by(PANEL).map(move |line| (row, line))) {
            super::prefetch_write(out.wrapping_add(row * width + line));
        }
        let seen = shape.seen(segment, &queries);
        let seen = seen.start / VIRTUAL_LANES * VIRTUAL_LANES..seen.end;
        // Whole panels: the columns after the last key are written, and not read.
        let (rows, stride) = (queries.len(), seen.len().next_multiple_of(PANEL));
        let query = q.at(segment.start + first, head * dim);
        let scores = s.scores.of_len(rows * stride);
        dot_keys(kernels, [rows, stride, dim], query, &packed_keys[seen.start * dim..], (scores, stride));
        let mut block = Block { queries: queries.clone(), seen: seen.clone(), stride, scores };
        s.terms.add(kernels, shape, segment, query, &mut block);
        shape.softmax_rows(kernels, head, segment, block);
        let weights = Weights { queries, seen, matrix: Matrix { data: scores, stride } };
        // SAFETY: forwarded.
        unsafe { weigh_seen(kernels, shape, segment, &weights, values, (out, width)) };
    }
}
