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
use super::packed::Output;
use super::scores::{Shape, Terms};
use super::simd::{PANEL, VIRTUAL_LANES};
use super::table::{Kernels, Matrix, Multiply};

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
fn pack_values(v: Matrix, keys: usize, head_dim: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(head_dim.div_ceil(PANEL) * keys * PANEL, 0.0);
    for (p, panel) in out.chunks_exact_mut(keys * PANEL).enumerate() {
        let width = PANEL.min(head_dim - p * PANEL);
        for (j, line) in panel.chunks_exact_mut(PANEL).enumerate() {
            line[..width].copy_from_slice(&v.data[j * v.stride + p * PANEL..][..width]);
        }
    }
}

/// Products `a[rows, dim] . keys` into `scores` [rows, n], for keys packed by [`pack_keys`].
pub(super) fn dot_keys(kernels: &Kernels, rows: usize, dim: usize, n: usize, a: Matrix, keys: &[f32], out: &mut [f32]) {
    assert!(out.len() >= rows * n, "dot_keys: the output is {} long", out.len());
    let product = Multiply {
        rows,
        n,
        k: 0..dim,
        a,
        b: keys,
        panel_stride: dim * PANEL,
        c: out.as_mut_ptr(),
        ldc: n,
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

/// The values of `queries` weighed by `p` [queries, seen], a key outside a query's window being no term: the product
/// over all keys `seen`, and a row that came out NaN once more over its own, for +0 times an infinity is NaN.
///
/// # Safety
/// As [`weigh_values`].
#[allow(clippy::too_many_arguments)] // the shape of a matrix product
unsafe fn weigh_seen(
    kernels: &Kernels,
    shape: &Shape,
    segment: &Range<usize>,
    queries: Range<usize>,
    seen: Range<usize>,
    p: &[f32],
    values: &[f32],
    (out, ldc): (*mut f32, usize),
) {
    let (len, dim, stride) = (segment.len(), shape.head_dim, seen.len());
    // SAFETY: forwarded.
    unsafe {
        let whole = Matrix { data: p, stride };
        weigh_values(kernels, queries.len(), dim, len, seen.clone(), whole, values, (out, ldc));
        for (r, query) in queries.enumerate() {
            let own = shape.seen(segment, &(query..query + 1));
            let row = std::slice::from_raw_parts(out.add(r * ldc), dim);
            if own != seen && row.iter().any(|v| v.is_nan()) {
                let own_weights = Matrix { data: &p[r * stride + own.start - seen.start..], stride };
                weigh_values(kernels, 1, dim, len, own, own_weights, values, (out.add(r * ldc), ldc));
            }
        }
    }
}

#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    terms: Terms,
}

/// Bytes that a thread's scratch takes for sequences of `len` tokens; `relative` is the number of relative positions, 0
/// where scores have no disentangled terms.
pub(super) fn scratch_bytes(len: usize, head_dim: usize, relative: usize) -> usize {
    let padded = |n: usize| n.next_multiple_of(PANEL);
    let attention = padded(len) * head_dim + padded(head_dim) * len + QUERY_BLOCK.min(len) * padded(len);
    let rows = relative.min(2 * len);
    let terms = rows * (len + QUERY_BLOCK) + padded(rows) * head_dim + if relative > 0 { 2 * len } else { 0 };
    (attention + terms) * 4
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::default();
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
    SCRATCH.with_borrow_mut(|s| {
        pack_keys(k, len, dim, &mut s.keys);
        dot_keys(kernels, len, dim, len, q, &s.keys, out);
        s.terms.prepare(kernels, shape, head, segment, k);
        s.terms.add(kernels, shape, segment, 0..len, 0..len, q, out);
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
    SCRATCH.with_borrow_mut(|s| {
        pack_values(v.at(segment.start, shape.kv_column(head)), len, dim, &mut s.values);
        // SAFETY: `out` is borrowed exclusively and holds the rows.
        unsafe { weigh_seen(kernels, shape, segment, 0..len, 0..len, p, &s.values, (out.as_mut_ptr(), width)) };
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
            SCRATCH.with_borrow_mut(|s| unsafe { one_head(kernels, shape, head, segment, views, output, s, cancel) });
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
    s: &mut Scratch,
    cancel: &Cancel,
) {
    let (len, dim, width) = (segment.len(), shape.head_dim, shape.heads * shape.head_dim);
    let column = shape.kv_column(head);
    let keys = k.at(segment.start, column);
    pack_keys(keys, len, dim, &mut s.keys);
    pack_values(v.at(segment.start, column), len, dim, &mut s.values);
    s.terms.prepare(kernels, shape, head, segment, keys);
    for first in (0..len).step_by(QUERY_BLOCK) {
        if cancel.is_set() {
            return;
        }
        let queries = first..len.min(first + QUERY_BLOCK);
        let rows = queries.len();
        let seen = shape.seen(segment, &queries);
        let seen = seen.start / VIRTUAL_LANES * VIRTUAL_LANES..seen.end;
        s.scores.resize(rows * seen.len(), 0.0);
        let query = q.at(segment.start + first, head * dim);
        let packed = &s.keys[seen.start * dim..];
        dot_keys(kernels, rows, dim, seen.len(), query, packed, &mut s.scores);
        s.terms.add(kernels, shape, segment, queries.clone(), seen.clone(), query, &mut s.scores);
        shape.softmax_rows(kernels, head, segment, queries.clone(), seen.clone(), &mut s.scores);
        let out = output.at((segment.start + first) * width + head * dim);
        // SAFETY: forwarded.
        unsafe { weigh_seen(kernels, shape, segment, queries, seen, &s.scores, &s.values, (out, width)) };
    }
}
