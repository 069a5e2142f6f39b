//! Attention over operands that contradict each other: errors before anything is computed, never a panic.

use kin_infer::gpu::{
    AttentionShape, Buffer, Columns, Disentangled, GpuCompute, IndexBuffer, KeyWindow, ScoreBias, Segments,
};

use super::definition::on_every_backend;
use super::errors::{refused, zeros};
use super::values;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 8;
/// Two sequences, of 2 and 3 tokens.
const ROWS: usize = 5;
const WIDTH: usize = HEADS * DIM;
const KV_WIDTH: usize = KV_HEADS * DIM;

/// Calls `f` with a shape that has nothing wrong.
fn plain<T>(c: &dyn GpuCompute, f: impl FnOnce(&AttentionShape) -> T) -> T {
    let segments = Segments::from_lengths([2, 3]);
    let positions = c.upload_index(&[0, 1, 0, 1, 2]).unwrap();
    f(&AttentionShape {
        segments: &segments,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        scale: 1.0,
        positions: &positions,
        bias: ScoreBias::None,
        window: KeyWindow::ALL,
        softcap: None,
    })
}

/// The fused operation and each primitive over operands that fit refuse the shape, all with these words.
#[track_caller]
fn refused_by_all(c: &dyn GpuCompute, shape: &AttentionShape, parts: &[&str]) {
    let (q, kv) = (zeros(c, ROWS * WIDTH), zeros(c, ROWS * KV_WIDTH));
    let q = Columns { buffer: &q, first: 0, stride: WIDTH };
    let kv = Columns { buffer: &kv, first: 0, stride: KV_WIDTH };
    let (mut scores, mut out) = (zeros(c, shape.score_len()), zeros(c, ROWS * WIDTH));
    refused(c.attention(q, kv, kv, shape, &mut out), parts);
    refused(c.attention_scores(q, kv, shape, &mut scores), parts);
    refused(c.softmax(&mut scores, shape), parts);
    refused(c.attention_values(&scores, kv, shape, &mut out), parts);
}

fn accepted(c: &dyn GpuCompute, shape: &AttentionShape) {
    let (q, kv) = (zeros(c, ROWS * WIDTH), zeros(c, ROWS * KV_WIDTH));
    let q = Columns { buffer: &q, first: 0, stride: WIDTH };
    let kv = Columns { buffer: &kv, first: 0, stride: KV_WIDTH };
    c.attention(q, kv, kv, shape, &mut zeros(c, ROWS * WIDTH)).unwrap();
}

fn heads_views_and_buffers(c: &dyn GpuCompute) {
    plain(c, |plain| {
        let (q, kv) = (zeros(c, 5 * 32), zeros(c, 5 * 16));
        let q_view = Columns { buffer: &q, first: 0, stride: 32 };
        let kv_view = Columns { buffer: &kv, first: 0, stride: 16 };
        let run = |shape: &AttentionShape, q, k, v, out: usize| c.attention(q, k, v, shape, &mut zeros(c, out));
        run(plain, q_view, kv_view, kv_view, 5 * 32).unwrap();
        refused(run(plain, q_view, kv_view, kv_view, 5 * 32 - 1), &["attention", "output"]);
        for kv_heads in [0, 3, 5, 8] {
            refused(run(&AttentionShape { kv_heads, ..*plain }, q_view, kv_view, kv_view, 5 * 32), &["heads"]);
        }
        let short = zeros(c, 5 * 16 - 1);
        let short = Columns { buffer: &short, ..kv_view };
        refused(run(plain, q_view, short, kv_view, 5 * 32), &["the key", "79", "80"]);
        refused(run(plain, q_view, kv_view, short, 5 * 32), &["the value"]);
        refused(run(plain, Columns { first: 1, ..q_view }, kv_view, kv_view, 5 * 32), &["the query", "width"]);
        refused(run(plain, q_view, Columns { stride: 15, ..kv_view }, kv_view, 5 * 32), &["the key", "width"]);
        // The primitives check on their own.
        let scores = plain.score_len();
        assert_eq!(scores, 4 * (4 + 9));
        refused(c.attention_scores(q_view, kv_view, plain, &mut zeros(c, scores - 1)), &["score buffer"]);
        refused(c.attention_scores(q_view, short, plain, &mut zeros(c, scores)), &["the key"]);
        refused(c.softmax(&mut zeros(c, scores - 1), plain), &["score buffer"]);
        refused(c.attention_values(&zeros(c, scores - 1), kv_view, plain, &mut zeros(c, 5 * 32)), &["score buffer"]);
        refused(c.attention_values(&zeros(c, scores), short, plain, &mut zeros(c, 5 * 32)), &["the value"]);
        refused(c.attention_values(&zeros(c, scores), kv_view, plain, &mut zeros(c, 5 * 32 - 1)), &["output"]);
    });
}

fn positions(c: &dyn GpuCompute) {
    plain(c, |plain| {
        let index = |positions: &[u32]| c.upload_index(positions).unwrap();
        // Sequences may overlap; the first position may be any.
        for good in [&[7, 9, 3, 4, 90][..], &[0, u32::MAX, 0, 1, 2], &[0, 1, 0, 1, 2, 0, 0]] {
            accepted(c, &AttentionShape { positions: &index(good), ..*plain });
        }
        let short = index(&[0, 1, 0, 1]);
        refused_by_all(c, &AttentionShape { positions: &short, ..*plain }, &["attention", "positions", "4", "5"]);
        for bad in [[0, 0, 0, 1, 2], [1, 0, 0, 1, 2], [0, 1, 0, 2, 2], [0, 1, 2, 1, 0], [0, 1, 0, 5, 4]] {
            refused_by_all(c, &AttentionShape { positions: &index(&bad), ..*plain }, &["positions", "ascend"]);
        }
    });
}

fn biases_by_distance(c: &dyn GpuCompute) {
    plain(c, |plain| {
        let slopes = [HEADS, HEADS - 1].map(|len| zeros(c, len));
        accepted(c, &AttentionShape { bias: ScoreBias::Alibi { slopes: &slopes[0] }, ..*plain });
        let bad = AttentionShape { bias: ScoreBias::Alibi { slopes: &slopes[1] }, ..*plain };
        refused_by_all(c, &bad, &["attention", "slopes", "3", "4"]);
        let tables = [HEADS * 7, HEADS * 7 - 1].map(|len| zeros(c, len));
        let of = |table, reach| AttentionShape { bias: ScoreBias::Distance { table, reach }, ..*plain };
        accepted(c, &of(&tables[0], 3));
        accepted(c, &of(&tables[1], 2));
        refused_by_all(c, &of(&tables[1], 3), &["attention", "distance table", "27", "28"]);
        refused_by_all(c, &of(&tables[0], 4), &["attention", "distance table", "28", "36"]);
        for reach in [usize::MAX, usize::MAX / 2, usize::MAX / 2 - 1, usize::MAX / 4] {
            refused_by_all(c, &of(&tables[0], reach), &["attention", "distance table"]);
        }
    });
}

fn disentangled_terms(c: &dyn GpuCompute) {
    plain(c, |plain| {
        let index = |rows: &[u32]| c.upload_index(rows).unwrap();
        let map = index(&[0, 1, 1, 3, 3, 4, 5]);
        let descending = [[0, 1, 1, 0, 3, 4, 5], [5, 4, 3, 2, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0]].map(|rows| index(&rows));
        let beyond = index(&[0, 1, 1, 3, 3, 4, u32::MAX]);
        let [good, short] = [6 * WIDTH, 6 * WIDTH - 1].map(|len| zeros(c, len));
        let of = |map, reach, position_keys, position_queries| AttentionShape {
            bias: ScoreBias::Disentangled(Disentangled { map, reach, position_keys, position_queries }),
            ..*plain
        };
        accepted(c, &of(&map, 3, Some(&good), Some(&good)));
        accepted(c, &of(&map, 2, Some(&good), None));
        accepted(c, &of(&map, 3, None, None));
        let table = &["attention", "position table", "191", "192"];
        refused_by_all(c, &of(&map, 3, Some(&short), Some(&good)), table);
        refused_by_all(c, &of(&map, 3, Some(&good), Some(&short)), table);
        refused_by_all(c, &of(&map, 3, None, Some(&short)), table);
        refused_by_all(c, &of(&map, 4, Some(&good), None), &["attention", "map", "7", "9"]);
        for reach in [usize::MAX, usize::MAX / 2] {
            refused_by_all(c, &of(&map, reach, Some(&good), None), &["attention", "map"]);
        }
        for map in &descending {
            refused_by_all(c, &of(map, 3, Some(&good), Some(&good)), &["attention", "map", "descends"]);
            refused_by_all(c, &of(map, 3, None, None), &["attention", "map", "descends"]);
        }
        // A row number beyond every table.
        refused_by_all(c, &of(&beyond, 3, Some(&good), None), &["attention", "position table"]);
    });
}

/// Handles that another backend made.
fn foreign_handles(c: &dyn GpuCompute) {
    let (foreign, index) = (Buffer::new(ROWS * WIDTH, ()), IndexBuffer::new(ROWS, 1, ()));
    let what = &["another backend"];
    plain(c, |plain| {
        let good = zeros(c, ROWS * WIDTH);
        let view = |buffer| Columns { buffer, first: 0, stride: WIDTH };
        let run = |q, k, v| c.attention(view(q), view(k), view(v), plain, &mut zeros(c, ROWS * WIDTH));
        refused(run(&foreign, &good, &good), what);
        refused(run(&good, &foreign, &good), what);
        refused(run(&good, &good, &foreign), what);
        let mut out = Buffer::new(ROWS * WIDTH, ());
        refused(c.attention(view(&good), view(&good), view(&good), plain, &mut out), what);
        assert_eq!(values(c, &good), [0.0; ROWS * WIDTH]);

        refused_by_all(c, &AttentionShape { positions: &index, ..*plain }, what);
        refused_by_all(c, &AttentionShape { bias: ScoreBias::Alibi { slopes: &foreign }, ..*plain }, what);
        refused_by_all(c, &AttentionShape { bias: ScoreBias::Distance { table: &foreign, reach: 1 }, ..*plain }, what);
        let map = c.upload_index(&[0, 1, 1, 3, 3]).unwrap();
        let of = |map, position_keys, position_queries| AttentionShape {
            bias: ScoreBias::Disentangled(Disentangled { map, reach: 2, position_keys, position_queries }),
            ..*plain
        };
        refused_by_all(c, &of(&index, Some(&good), Some(&good)), what);
        refused_by_all(c, &of(&map, Some(&foreign), None), what);
        refused_by_all(c, &of(&map, None, Some(&foreign)), what);
    });
}

on_every_backend!(heads_views_and_buffers, positions, biases_by_distance, disentangled_terms, foreign_handles);
