//! Tables of distances and disentangled terms: reaches smaller and larger than the sequences, gapped positions, windows.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use kin_infer::gpu::DeviceCompute;

use super::batch::{Batch, Spread};
use crate::emulated::{self, Emulated, Order};

const SPREADS: [Spread; 3] = [Spread::Consecutive, Spread::Gapped, Spread::Wild];

/// Which terms there are: content to position, position to content, both.
const TERMS: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

#[test]
fn distance_tables() {
    for spread in SPREADS {
        for reach in [0, 1, 7, 32, 400, 3000] {
            for kv_heads in [4, 2, 1] {
                let batch = Batch::new(&[97, 1, 0, 34], (4, kv_heads, 5), 1).distances(reach).spread(spread);
                let batch = Batch { scale: 1.0, ..batch };
                batch.check(&format!("distances to {reach}, 4/{kv_heads} heads, {spread:?}"));
            }
        }
    }
}

#[test]
fn distance_tables_in_windows() {
    for spread in SPREADS {
        for (behind, ahead) in [(0, 0), (31, 0), (40, 40), (u32::MAX, 0)] {
            for reach in [7, 500] {
                let batch = Batch::new(&[130, 33], (2, 1, 16), 2).distances(reach).spread(spread);
                let name = format!("distances to {reach}, window {behind} {ahead}, {spread:?}");
                batch.window(behind, ahead).check(&name);
            }
        }
    }
}

#[test]
fn disentangled_terms() {
    for spread in SPREADS {
        for reach in [1, 7, 33, 400] {
            for (c2p, p2c) in TERMS {
                let batch = Batch::new(&[97, 1, 0, 34, 2], (2, 2, 8), 3).disentangled(reach, c2p, p2c).spread(spread);
                batch.check(&format!("disentangled {c2p} {p2c} to {reach}, {spread:?}"));
            }
        }
    }
}

#[test]
fn disentangled_terms_of_every_shape_of_heads() {
    for head_dim in [1, 5, 16, 33, 64] {
        for kv_heads in [4, 2, 1] {
            for (c2p, p2c) in TERMS {
                let batch = Batch::new(&[40, 3], (4, kv_heads, head_dim), 4).disentangled(12, c2p, p2c);
                batch.check(&format!("disentangled {c2p} {p2c}, 4/{kv_heads} heads of {head_dim}"));
            }
        }
    }
}

#[test]
fn disentangled_terms_in_windows() {
    for spread in SPREADS {
        for (behind, ahead) in [(0, 0), (31, 0), (40, 40), (u32::MAX, 0)] {
            for (c2p, p2c) in TERMS {
                let batch = Batch::new(&[130, 33], (2, 1, 8), 5).disentangled(50, c2p, p2c).spread(spread);
                let name = format!("disentangled {c2p} {p2c}, window {behind} {ahead}, {spread:?}");
                batch.window(behind, ahead).check(&name);
            }
        }
    }
}

/// Neither operand: the raw score is the content's alone.
#[test]
fn disentangled_without_terms() {
    Batch::new(&[40, 3], (2, 1, 8), 6).disentangled(9, false, false).check("disentangled, no terms");
}

/// All distances on one row of the tables, and one row a distance.
#[test]
fn maps_of_one_row_and_of_every_row() {
    for spread in SPREADS {
        let mut batch = Batch::new(&[60, 20], (2, 2, 5), 7).disentangled(10, true, true).spread(spread);
        let super::batch::Distances::Terms { map, keys, queries, .. } = &mut batch.bias else { unreachable!() };
        let rows = 2 * 10 + 1;
        for table in [keys, queries].into_iter().flatten() {
            table.resize(rows * 2 * 5, 0.5);
        }
        map.iter_mut().for_each(|row| *row = 4);
        batch.check(&format!("disentangled, one row, {spread:?}"));
        let super::batch::Distances::Terms { map, .. } = &mut batch.bias else { unreachable!() };
        map.iter_mut().enumerate().for_each(|(i, row)| *row = i as u32);
        batch.check(&format!("disentangled, every row, {spread:?}"));
    }
}

#[test]
fn long_sequences() {
    for spread in [Spread::Consecutive, Spread::Gapped] {
        let batch = || Batch::new(&[1100], (1, 1, 5), 8);
        batch().distances(128).spread(spread).check(&format!("distances, long, {spread:?}"));
        let terms = batch().disentangled(256, true, true).spread(spread);
        terms.clone().check(&format!("disentangled, long, {spread:?}"));
        terms.window(600, 30).check(&format!("disentangled, long, window 600 30, {spread:?}"));
    }
}

/// The products of a sequence's keys with the position queries take one launch, however many parts its scores are cut into.
#[test]
fn keys_meet_the_position_queries_once() {
    if !emulated::available("keys_meet_the_position_queries_once") {
        return;
    }
    let launches = |position_to_content: bool| {
        let device = Arc::new(Emulated::new(Order::Ascending, 1)); // its cache holds 2048 scores
        let batch = Batch::new(&[128, 40, 40], (2, 2, 8), 9).disentangled(12, false, position_to_content);
        batch.run(&DeviceCompute::new(Arc::clone(&device) as _));
        device.launches.load(SeqCst)
    };
    // Scores, terms, softmax and values of 8 + 3 + 3 parts, and the products of 3 sequences.
    assert_eq!((launches(false), launches(true)), (4 * 14, 4 * 14 + 3));
}
