//! Windows of keys: on every side of the borders that the kernels have, at 32 keys (lanes), 96 queries (blocks) and 512
//! keys (chains).

use super::batch::{Batch, Spread};

const SPREADS: [Spread; 3] = [Spread::Consecutive, Spread::Gapped, Spread::Wild];

/// Everything, nothing but itself, causal, the reverse, one-sided and two-sided.
const WINDOWS: [(u32, u32); 16] = [
    (0, 0),
    (1, 0),
    (0, 1),
    (3, 5),
    (31, 0),
    (32, 0),
    (33, 0),
    (0, 31),
    (0, 33),
    (32, 32),
    (64, 64),
    (100, 7),
    (u32::MAX, 0),
    (0, u32::MAX),
    (u32::MAX, 40),
    (u32::MAX, u32::MAX),
];

#[test]
fn every_window_and_spread() {
    for spread in SPREADS {
        for (behind, ahead) in WINDOWS {
            let batch = Batch::new(&[97, 1, 31, 32, 0, 33, 200], (2, 2, 5), 1).spread(spread).window(behind, ahead);
            batch.check(&format!("window {behind} {ahead}, {spread:?}"));
        }
    }
}

#[test]
fn heads_of_every_size() {
    for head_dim in [1, 5, 16, 33, 64] {
        for kv_heads in [4, 2, 1] {
            for (behind, ahead) in [(20, 20), (40, 0)] {
                let batch = Batch::new(&[70, 9, 110], (4, kv_heads, head_dim), 2).window(behind, ahead);
                batch.check(&format!("window {behind} {ahead}, 4/{kv_heads} heads of {head_dim}"));
            }
        }
    }
}

/// Lengths on either side of the chains' borders, windows that cross them and windows that end on them.
#[test]
fn borders_of_512_keys() {
    for len in [511, 512, 513, 600, 1023, 1025, 1100] {
        for (behind, ahead) in [(u32::MAX, 0), (64, 64), (511, 0), (512, 3), (0, 600)] {
            let batch = Batch::new(&[len], (1, 1, 5), len as u64).spread(Spread::Consecutive).window(behind, ahead);
            batch.check(&format!("window {behind} {ahead} of {len} keys"));
        }
    }
}

#[test]
fn long_gapped_sequences() {
    for spread in [Spread::Gapped, Spread::Wild] {
        for (behind, ahead) in [(300, 300), (2000, 0), (u32::MAX, u32::MAX)] {
            let batch = Batch::new(&[1100, 40], (2, 1, 16), 3).spread(spread).window(behind, ahead);
            batch.check(&format!("window {behind} {ahead}, long, {spread:?}"));
        }
    }
}

#[test]
fn linear_biases_in_a_window() {
    for spread in SPREADS {
        for (behind, ahead) in [(31, 0), (64, 64), (u32::MAX, 0), (600, 10)] {
            for kv_heads in [4, 1] {
                let batch = Batch::new(&[130, 2, 65], (4, kv_heads, 8), 4).alibi();
                let batch = batch.spread(spread).window(behind, ahead);
                batch.check(&format!("alibi, window {behind} {ahead}, 4/{kv_heads} heads, {spread:?}"));
            }
        }
    }
    let batch = Batch::new(&[1060], (2, 2, 5), 5).alibi().spread(Spread::Consecutive);
    batch.window(520, 0).check("alibi, window 520 0 of 1060 keys");
}

/// Positions at the end of their range: a window saturates there.
#[test]
fn the_last_positions_there_are() {
    for (behind, ahead) in [(2, 2), (u32::MAX, 0), (0, u32::MAX), (u32::MAX - 1, u32::MAX - 1)] {
        let mut batch = Batch::new(&[4, 4], (2, 1, 5), 6).window(behind, ahead);
        batch.positions = vec![0, 1, u32::MAX - 1, u32::MAX, u32::MAX - 3, u32::MAX - 2, u32::MAX - 1, u32::MAX];
        batch.check(&format!("window {behind} {ahead}, last positions"));
        batch.clone().distances(3).check(&format!("window {behind} {ahead}, last positions, distances"));
        batch.disentangled(3, true, true).check(&format!("window {behind} {ahead}, last positions, disentangled"));
    }
}
