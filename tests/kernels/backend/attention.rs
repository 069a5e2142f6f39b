//! Self-attention over whole sequences: fused, composed, from the contract, and in float64.

use super::batch::{Batch, Spread};
use super::definition::{each_backend, same};

#[test]
fn every_shape_of_heads() {
    for kv_heads in [4, 2, 1] {
        for head_dim in [1, 8, 32, 33] {
            for alibi in [false, true] {
                let batch = Batch::new(&[2, 0, 17, 1, 97, 15, 16, 0], (4, kv_heads, head_dim), 1);
                let batch = if alibi { batch.alibi() } else { batch };
                batch.check(&format!("4/{kv_heads} heads of {head_dim}, alibi {alibi}"));
            }
        }
    }
}

#[test]
fn long_sequences() {
    for (alibi, head_dim) in [(false, 32), (true, 33)] {
        let batch = Batch::new(&[130, 1, 600], (2, 1, head_dim), 2);
        let batch = if alibi { batch.alibi() } else { batch };
        batch.check(&format!("long, alibi {alibi}"));
    }
}

#[test]
fn no_rows_and_no_sequences() {
    for lengths in [&[][..], &[0], &[0, 0, 0]] {
        let batch = |seed| Batch::new(lengths, (4, 2, 8), seed);
        batch(3).alibi().check("of nothing");
        batch(3).distances(4).window(3, 3).check("of nothing, distances");
        batch(3).disentangled(4, true, true).softcap(5.0).check("of nothing, disentangled");
    }
}

/// A sequence that overflows becomes NaN and leaves the others alone.
#[test]
fn a_non_finite_sequence_stays_alone() {
    let mut batch = Batch::new(&[5, 7, 40], (4, 4, 8), 4);
    let defined = batch.defined().out;
    let row = 5 * 3 * batch.width();
    batch.packed[row..row + 32].fill(f32::INFINITY);
    each_backend("attention with a non-finite sequence", |backend, c| {
        let found = batch.run(c);
        let width = batch.width();
        same(|| format!("{backend} before"), &found[..5 * width], &defined[..5 * width]);
        assert!(found[5 * width..6 * width].iter().all(|v| v.is_nan()), "{backend}");
        same(|| format!("{backend} after"), &found[6 * width..], &defined[6 * width..]);
    });
}

/// c tanh(z / c): caps that bind, and one that does not.
#[test]
fn soft_caps() {
    for cap in [0.5, 5.0, 50.0] {
        for kv_heads in [4, 2, 1] {
            let batch = Batch::new(&[3, 70, 33], (4, kv_heads, 16), 5).softcap(cap);
            batch.clone().check(&format!("soft cap {cap}, 4/{kv_heads} heads"));
            batch.clone().alibi().check(&format!("soft cap {cap}, 4/{kv_heads} heads, alibi"));
            batch.clone().distances(20).check(&format!("soft cap {cap}, 4/{kv_heads} heads, distances"));
            batch.disentangled(20, true, true).check(&format!("soft cap {cap}, 4/{kv_heads} heads, disentangled"));
        }
    }
    Batch::new(&[600], (2, 1, 5), 6).spread(Spread::Consecutive).softcap(2.0).window(511, 0).check("soft cap, causal");
}

/// The scale is the shape's own: T5 has 1, others what their configuration says.
#[test]
fn scales() {
    for scale in [1.0, 0.125, 3.0] {
        let batch = Batch { scale, ..Batch::new(&[40, 3], (2, 2, 8), 7) };
        batch.clone().check(&format!("scale {scale}"));
        batch.distances(9).window(10, 2).check(&format!("scale {scale}, windowed"));
    }
}
