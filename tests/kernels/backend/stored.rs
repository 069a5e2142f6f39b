//! Attention over stored keys: the bits of causal attention over whole sequences, however the keys came.

use kin_infer::gpu::{Columns, GpuCompute, KvStore, Segments, StoredAttention};

use super::batch::{Batch, Spread};
use super::definition::{each_backend, on_every_backend, same};
use super::errors::{refused, zeros};
use super::{stale, values};

/// Stores sequence `i` of the batch's rows `rows` (counted from its first) and attends with them.
fn step(c: &dyn GpuCompute, batch: &Batch, items: &mut [(usize, &mut KvStore, std::ops::Range<usize>)]) -> Vec<f32> {
    let (width, stride) = (batch.width(), 3 * batch.width());
    let first = |i: usize| batch.lengths[..i].iter().sum::<usize>();
    let packed: Vec<f32> = items
        .iter()
        .flat_map(|(i, _, rows)| &batch.packed[(first(*i) + rows.start) * stride..(first(*i) + rows.end) * stride])
        .copied()
        .collect();
    let packed = c.upload(&packed).unwrap();
    let part = |first: usize| Columns { buffer: &packed, first, stride };
    let segments = Segments::from_lengths(items.iter().map(|(_, _, rows)| rows.len()));
    for ((_, store, _), rows) in items.iter_mut().zip(segments.iter()) {
        c.kv_append(store, part(width), part(2 * width), rows).unwrap();
    }
    let shape = StoredAttention {
        segments: &segments,
        heads: batch.heads,
        scale: batch.scale,
        behind: batch.window.behind,
        softcap: batch.softcap,
    };
    let stores: Vec<&KvStore> = items.iter().map(|(_, store, _)| &**store).collect();
    let mut out = stale(c, segments.total() * width);
    c.attend(part(0), &stores, &shape, &mut out).unwrap();
    if batch.window.behind != u32::MAX {
        for (_, store, _) in items {
            let (keep, len) = (store.len().saturating_sub(batch.window.behind as usize), store.len());
            c.kv_keep(store, keep.max(store.first()), len).unwrap();
        }
    }
    values(c, &out)
}

/// Each sequence in parts of the given sizes, the last ones repeated, both sequences in one call.
fn check(batch: &Batch, parts: &[usize], name: &str) {
    let expected = batch.defined().out;
    let width = batch.width();
    each_backend(&format!("stored keys {name}"), |backend, c| {
        let store = |_| c.kv_store(batch.kv_heads, batch.head_dim).unwrap();
        let mut stores: Vec<KvStore> = batch.lengths.iter().map(store).collect();
        let mut found: Vec<Vec<f32>> = vec![Vec::new(); stores.len()];
        let mut turn = 0;
        while stores.iter().zip(&batch.lengths).any(|(s, len)| s.len() < *len) {
            let size = parts[turn.min(parts.len() - 1)];
            let mut items: Vec<_> = stores
                .iter_mut()
                .enumerate()
                .filter(|(i, s)| s.len() < batch.lengths[*i])
                .map(|(i, s)| (s.len(), i, s))
                .map(|(len, i, s)| (i, s, len..batch.lengths[i].min(len + size)))
                .collect();
            let out = step(c, batch, &mut items);
            let mut at = 0;
            for (i, _, rows) in items {
                found[i].extend(&out[at..at + rows.len() * width]);
                at += rows.len() * width;
            }
            turn += 1;
        }
        same(|| format!("{backend} stored keys {name}, {parts:?}"), &found.concat(), &expected);
    });
}

#[test]
fn parts_of_every_size() {
    let batch = || Batch::new(&[70, 1, 131], (4, 2, 5), 31).spread(Spread::Consecutive).window(u32::MAX, 0);
    for parts in [&[200][..], &[1], &[3, 1], &[63, 1, 1, 40], &[64, 64, 1], &[33]] {
        check(&batch(), parts, "of three sequences");
        check(&batch().softcap(3.0), parts, "with a soft cap");
        check(&batch().window(20, 0), parts, "in a window");
    }
}

#[test]
fn heads_of_every_size() {
    for (kv_heads, head_dim) in [(4, 1), (2, 33), (1, 64), (1, 80)] {
        let batch = Batch::new(&[40, 9], (4, kv_heads, head_dim), 32).spread(Spread::Consecutive).window(u32::MAX, 0);
        check(&batch, &[17, 1], &format!("4/{kv_heads} heads of {head_dim}"));
    }
}

#[test]
fn long_sequences() {
    for behind in [u32::MAX, 600, 512] {
        let batch = Batch::new(&[1100], (2, 1, 8), 33).spread(Spread::Consecutive).window(behind, 0);
        check(&batch, &[500, 11, 1, 1, 300], &format!("of 1100 tokens, window {behind}"));
    }
}

/// A shared store goes its own way, and neither sees the other's later keys; a shortened one takes others.
#[test]
fn shared_and_shortened() {
    let batch = Batch::new(&[130, 130], (2, 1, 8), 34).spread(Spread::Consecutive).window(u32::MAX, 0);
    // The second sequence has the first's beginning.
    let (mut batch, stride) = (batch, 3 * 16);
    let beginning = batch.packed[..70 * stride].to_vec();
    batch.packed[130 * stride..200 * stride].copy_from_slice(&beginning);
    let expected = batch.defined().out;
    each_backend("shared stores", |backend, c| {
        let mut first = c.kv_store(1, 8).unwrap();
        step(c, &batch, &mut [(0, &mut first, 0..70)]);
        let mut second = c.kv_share(&first).unwrap();
        let one = step(c, &batch, &mut [(0, &mut first, 70..130)]);
        let two = step(c, &batch, &mut [(1, &mut second, 70..130)]);
        same(|| format!("{backend} the first"), &one, &expected[70 * 16..130 * 16]);
        same(|| format!("{backend} the second"), &two, &expected[200 * 16..]);
        // The first takes the second's tokens from the 70th on.
        c.kv_keep(&mut first, 0, 70).unwrap();
        let again = step(c, &batch, &mut [(1, &mut first, 70..130)]);
        same(|| format!("{backend} shortened"), &again, &expected[200 * 16..]);
        drop(first);
        let mut third = c.kv_share(&second).unwrap();
        c.kv_keep(&mut third, 0, 3).unwrap();
        let third = step(c, &batch, &mut [(0, &mut third, 3..70)]);
        same(|| format!("{backend} a third"), &third, &expected[3 * 16..70 * 16]);
    });
}

fn sizes_and_handles(c: &dyn GpuCompute) {
    refused(c.kv_store(0, 8), &["kv_store", "0 heads"]);
    refused(c.kv_store(2, 0), &["kv_store", "0 features"]);
    let mut store = c.kv_store(2, 8).unwrap();
    let buffer = zeros(c, 4 * 16);
    let view = Columns { buffer: &buffer, first: 0, stride: 16 };
    refused(c.kv_append(&mut store, view, view, 0..5), &["kv_append", "64", "80"]);
    refused(c.kv_append(&mut store, Columns { first: 1, ..view }, view, 0..4), &["kv_append", "a row"]);
    c.kv_append(&mut store, view, view, 0..4).unwrap();
    refused(c.kv_keep(&mut store, 0, 5), &["kv_keep"]);
    refused(c.kv_keep(&mut store, 3, 2), &["kv_keep"]);
    let segments = Segments::from_lengths([2]);
    let shape = StoredAttention { segments: &segments, heads: 4, scale: 1.0, behind: u32::MAX, softcap: None };
    let q = zeros(c, 2 * 32);
    let q = Columns { buffer: &q, first: 0, stride: 32 };
    let mut out = zeros(c, 2 * 32);
    c.attend(q, &[&store], &shape, &mut out).unwrap();
    refused(c.attend(q, &[], &shape, &mut out), &["attend", "0 stores for 1"]);
    refused(c.attend(q, &[&store], &StoredAttention { heads: 3, ..shape }, &mut out), &["attend", "3 query heads"]);
    refused(c.attend(q, &[&store], &shape, &mut zeros(c, 63)), &["attend", "output", "63", "64"]);
    refused(c.attend(Columns { stride: 31, ..q }, &[&store], &shape, &mut out), &["attend", "query"]);
    let (five, foreign) = (Segments::from_lengths([5]), KvStore::new(2, 8, ()));
    refused(c.attend(q, &[&store], &StoredAttention { segments: &five, ..shape }, &mut out), &["attend", "5 rows"]);
    let none = Segments::from_lengths([0]);
    refused(c.attend(q, &[&foreign], &StoredAttention { segments: &none, ..shape }, &mut out), &["another backend"]);
}

on_every_backend!(sizes_and_handles);
