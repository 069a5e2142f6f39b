//! Stored keys and values, in blocks of 512 tokens that are never moved, and causal attention over them.
//!
//! A block holds its tokens as panels, ready for the product kernels: keys `[head][token / 16][feature][token % 16]`,
//! values `[head][feature / 16][token][feature % 16]`. 512 is where the chain over keys is cut, so that a block is one
//! chain. Blocks are shared between stores until one of them writes.

use std::ops::Range;
use std::sync::Arc;

use super::attention::View;
use super::cancel::Cancel;
use super::gemm::K_BLOCK;
use super::memory::{AlignedBuf, Scratch};
use super::packed::Output;
use super::scores::{self, Bias, Shape};
use super::simd::{PANEL, VIRTUAL_LANES};
use super::table::{Kernels, Matrix, Multiply};
use crate::error::{InferError, Result};
use crate::gpu::{KeyWindow, KvStore, StoredAttention};

/// Tokens of a block.
const BLOCK: usize = K_BLOCK;

/// Query rows whose scores are held at once.
const QUERY_BLOCK: usize = 96;

/// The blocks of one store; those whose tokens are forgotten are gone.
#[derive(Clone, Default)]
pub(super) struct Keys {
    blocks: Vec<Option<Arc<Block>>>,
}

struct Block {
    keys: AlignedBuf<f32>,
    values: AlignedBuf<f32>,
}

impl Block {
    fn new(kv_heads: usize, head_dim: usize) -> Result<Self> {
        Ok(Self {
            keys: AlignedBuf::zeroed(kv_heads * BLOCK * head_dim, "stored keys")?,
            values: AlignedBuf::zeroed(kv_heads * values_of_head(head_dim), "stored values")?,
        })
    }

    fn copy(&self) -> Result<Self> {
        let mut keys = AlignedBuf::zeroed(self.keys.len(), "stored keys")?;
        let mut values = AlignedBuf::zeroed(self.values.len(), "stored values")?;
        keys.copy_from_slice(&self.keys);
        values.copy_from_slice(&self.values);
        Ok(Self { keys, values })
    }

    fn put(&mut self, kv_heads: usize, dim: usize, at: usize, k: &[f32], v: &[f32]) {
        for head in 0..kv_heads {
            let panel = &mut self.keys[head * BLOCK * dim + at / PANEL * dim * PANEL..][..dim * PANEL];
            let (k, v) = (&k[head * dim..][..dim], &v[head * dim..][..dim]);
            for (line, value) in panel.chunks_exact_mut(PANEL).zip(k) {
                line[at % PANEL] = *value;
            }
            let values = &mut self.values[head * values_of_head(dim)..][..values_of_head(dim)];
            for (panel, part) in values.chunks_exact_mut(BLOCK * PANEL).zip(v.chunks(PANEL)) {
                panel[at * PANEL..][..part.len()].copy_from_slice(part);
            }
        }
    }
}

/// Values that one head of a block takes.
fn values_of_head(head_dim: usize) -> usize {
    head_dim.div_ceil(PANEL) * BLOCK * PANEL
}

/// Stores rows after the keys already there.
pub(super) fn append(store: &mut KvStore, k: View, v: View, rows: Range<usize>) -> Result<()> {
    let (heads, dim, first, mut len) = (store.kv_heads(), store.head_dim(), store.first(), store.len());
    let width = heads * dim;
    let keys = store.storage_mut::<Keys>()?;
    for row in rows {
        let (block, at) = (len / BLOCK, len % BLOCK);
        if block >= keys.blocks.len() {
            keys.blocks.push(Some(Arc::new(Block::new(heads, dim)?)));
        }
        let Some(slot) = keys.blocks[block].as_mut() else {
            return Err(InferError::InvalidArgument("kv_append: the block to write was forgotten".to_string()));
        };
        if Arc::get_mut(slot).is_none() {
            *slot = Arc::new(slot.copy()?);
        }
        if let Some(block) = Arc::get_mut(slot) {
            block.put(heads, dim, at, &k.at(row, 0).data[..width], &v.at(row, 0).data[..width]);
        }
        len += 1;
    }
    store.set_range(first, len);
    Ok(())
}

/// Drops the blocks that hold no key of `first..len`.
pub(super) fn keep(store: &mut KvStore, first: usize, len: usize) -> Result<()> {
    let keys = store.storage_mut::<Keys>()?;
    keys.blocks.truncate(len.div_ceil(BLOCK));
    keys.blocks.iter_mut().take(first / BLOCK).for_each(|b| *b = None);
    store.set_range(first, len);
    Ok(())
}

/// One sequence: its store, and its new rows in the batch.
pub(super) struct Sequence<'a> {
    keys: &'a Keys,
    len: usize,
    rows: Range<usize>,
    kv_heads: usize,
    head_dim: usize,
}

/// The sequences of a call.
pub(super) fn sequences<'a>(stores: &[&'a KvStore], s: &StoredAttention) -> Result<Vec<Sequence<'a>>> {
    let sequence = |(store, rows): (&&'a KvStore, Range<usize>)| {
        let (kv_heads, head_dim) = (store.kv_heads(), store.head_dim());
        Ok(Sequence { keys: store.storage::<Keys>()?, len: store.len(), rows, kv_heads, head_dim })
    };
    stores.iter().zip(s.segments.iter()).map(sequence).collect()
}

/// Causal attention of each sequence's new rows over its stored keys.
pub(super) fn attend(
    kernels: &Kernels,
    q: View,
    sequences: &[Sequence],
    s: &StoredAttention,
    out: &mut [f32],
    cancel: &Cancel,
) {
    let output = Output::new(out);
    let longest = sequences.iter().map(|s| s.len).max().unwrap_or(0);
    let positions: Vec<u32> = (0..longest as u32).collect();
    // One new token: the query heads of a key head are the rows of one product. Several: a head is a product.
    let tasks: Vec<(&Sequence, Range<usize>)> = sequences
        .iter()
        .flat_map(|sequence| {
            let group = if sequence.rows.len() == 1 { s.heads / sequence.kv_heads } else { 1 };
            (0..s.heads).step_by(group).map(move |head| (sequence, head..head + group))
        })
        .collect();
    let task = |i: usize| {
        let (sequence, heads): &(&Sequence, Range<usize>) = &tasks[i];
        let shape = Shape {
            heads: s.heads,
            kv_heads: sequence.kv_heads,
            head_dim: sequence.head_dim,
            scale: s.scale,
            positions: &positions[..sequence.len],
            bias: Bias::None,
            window: KeyWindow { behind: s.behind, ahead: 0 },
            softcap: s.softcap,
        };
        SCORES.with_borrow_mut(|scores| {
            for first in (0..sequence.rows.len()).step_by(QUERY_BLOCK) {
                if cancel.is_set() {
                    return;
                }
                let rows = first..sequence.rows.len().min(first + QUERY_BLOCK);
                // SAFETY: this task alone writes the columns of its heads in the rows of its sequence; `out` holds
                // them, as the caller checks.
                unsafe { block(kernels, &shape, sequence, heads.clone(), rows, q, output, scores) };
            }
        });
    };
    crate::fork::each(tasks.len(), task);
}

thread_local! {
    static SCORES: std::cell::RefCell<Scratch> = std::cell::RefCell::default();
}

/// The rows `rows` of a sequence (counted from its first new one): one head, or one row with several heads.
///
/// # Safety
/// The caller alone writes the heads' columns in these rows of `output`, which holds them.
#[allow(clippy::too_many_arguments)] // a block of queries and where it lies
unsafe fn block(
    kernels: &Kernels,
    shape: &Shape,
    sequence: &Sequence,
    heads: Range<usize>,
    rows: Range<usize>,
    q: View,
    output: Output,
    scores: &mut Scratch,
) {
    let (dim, width, whole) = (shape.head_dim, shape.heads * shape.head_dim, 0..sequence.len);
    let first = sequence.len - sequence.rows.len() + rows.start;
    let queries = first..first + rows.len();
    let seen = shape.seen(&whole, &queries);
    let seen = seen.start / VIRTUAL_LANES * VIRTUAL_LANES..seen.end;
    let row = sequence.rows.start + rows.start;
    let mut query = q.at(row, heads.start * dim);
    let (mut count, mut ldc) = (rows.len(), width);
    let heads_abreast = heads.len() > 1;
    if heads_abreast {
        (count, ldc, query.stride) = (heads.len(), dim, dim);
    }
    let stride = seen.len().next_multiple_of(PANEL);
    let scores = scores.of_len(count * stride);
    let kv_head = shape.kv_column(heads.start) / dim;
    let out = output.at(row * width + heads.start * dim);
    let parts = |keys: Range<usize>| {
        (keys.start / BLOCK..keys.end.div_ceil(BLOCK))
            .map(move |b| (b, keys.start.max(b * BLOCK)..keys.end.min((b + 1) * BLOCK)))
    };
    for (b, part) in parts(seen.clone()) {
        let Some(held) = &sequence.keys.blocks[b] else { unreachable!("block {b} of the window was forgotten") };
        let product = Multiply {
            rows: count,
            n: part.len(),
            k: 0..dim,
            a: query,
            b: &held.keys[kv_head * BLOCK * dim + part.start % BLOCK * dim..][..(BLOCK - part.start % BLOCK) * dim],
            panel_stride: dim * PANEL,
            c: scores[part.start - seen.start..].as_mut_ptr(),
            ldc: stride,
            accumulate: false,
        };
        // SAFETY: `scores` holds `count` rows, `stride` apart, and is this thread's.
        unsafe { kernels.multiply(&product) };
    }
    let per_head = if heads_abreast { stride } else { count * stride };
    for (head, scores) in heads.zip(scores.chunks_exact_mut(per_head)) {
        let block = scores::Block { queries: queries.clone(), seen: seen.clone(), stride, scores };
        shape.softmax_rows(kernels, head, &whole, block);
    }
    let weigh = |rows: Range<usize>, keys: Range<usize>| {
        let out = out.wrapping_add(rows.start * ldc);
        for r in 0..rows.len() {
            // SAFETY: forwarded.
            unsafe { std::slice::from_raw_parts_mut(out.add(r * ldc), dim).fill(0.0) };
        }
        for (b, part) in parts(keys) {
            let Some(held) = &sequence.keys.blocks[b] else { unreachable!("block {b} of the window was forgotten") };
            let values = &held.values[kv_head * values_of_head(dim)..][..values_of_head(dim)];
            let first = rows.start * stride + part.start - seen.start;
            let product = Multiply {
                rows: rows.len(),
                n: dim,
                k: part.clone(),
                a: Matrix { data: &scores[first..], stride },
                b: &values[part.start % BLOCK * PANEL..],
                panel_stride: BLOCK * PANEL,
                c: out,
                ldc,
                accumulate: true,
            };
            // SAFETY: forwarded.
            unsafe { kernels.multiply(&product) };
        }
    };
    weigh(0..count, seen.clone());
    for r in 0..count {
        let query = queries.start + if heads_abreast { 0 } else { r };
        let own = shape.seen(&whole, &(query..query + 1));
        // SAFETY: forwarded.
        let row = unsafe { std::slice::from_raw_parts(out.add(r * ldc), dim) };
        // +0 times an infinity is NaN: a key outside the window is then left out.
        if own != seen && row.iter().any(|v| v.is_nan()) {
            weigh(r..r + 1, own);
        }
    }
}
