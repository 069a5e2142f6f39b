//! A key outside a query's window never shows in its result, whatever the key, its value or its bias holds.

use kin_infer::gpu::GpuBackend;

use super::batch::{Batch, Distances, Spread};
use super::composed::Composed;
use super::definition::{each_backend, same, with_threads};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Behind, ahead: causal, one-sided, two-sided, itself alone.
const WINDOWS: [(u32, u32); 6] = [(u32::MAX, 0), (0, u32::MAX), (5, 0), (40, 3), (64, 64), (0, 0)];

/// Rows whose keys or values are bad: at both ends, and around the borders of lanes, query blocks and chains.
const ROWS: [usize; 12] = [0, 1, 31, 32, 50, 95, 96, 97, 150, 511, 512, 599];

/// Fused and composed, on 1 and 2 threads, as the contract has it.
fn check(batch: &Batch, name: &str) {
    let defined = batch.defined().out;
    let finite = |row: &[f32]| row.iter().all(|v| v.is_finite());
    let longest = batch.lengths.iter().max().unwrap();
    let untouched = defined.rchunks(batch.width()).take(*longest).filter(|row| finite(row)).count();
    assert!(untouched > 0, "{name}: every query sees what is not finite");
    each_backend(&format!("attention {name}"), |backend, compute| {
        let case = |what: &str| format!("{backend} attention {name}, {what}");
        // The emulated GPU has no threads of its own.
        let most = if compute.backend() == GpuBackend::Cpu { 2 } else { 1 };
        for threads in 1..=most {
            same(|| case("fused"), &with_threads(threads, || batch.run(compute)), &defined);
            same(|| case("composed"), &with_threads(threads, || batch.run(&Composed(compute))), &defined);
        }
    });
}

/// `part` 1 is the keys, 2 the values.
fn check_part(part: usize, what: &str) {
    for (behind, ahead) in WINDOWS {
        for (i, len) in [40, 97, 200, 600].into_iter().enumerate() {
            // A window as wide as the sequence leaves no query that does not see the row.
            if behind.min(ahead) > 0 && (behind + ahead) as usize >= len {
                continue;
            }
            let mut batch = Batch::new(&[3, len], (2, 1, 5), 1).spread(Spread::Consecutive).window(behind, ahead);
            let (first, width) = (3, batch.width());
            for (n, row) in ROWS.into_iter().enumerate().filter(|(n, row)| *row < len && (n + i) % 3 == 0) {
                // Where a window has one side only, some queries have to be left that do not see the row.
                if (behind == u32::MAX && row < len / 3) || (ahead == u32::MAX && row > 2 * len / 3) {
                    continue;
                }
                batch.packed[(first + row) * 3 * width + part * width..][..5].fill(BAD[n / 3 % 3]);
            }
            check(&batch, &format!("window {behind} {ahead} of {len} keys, {what}"));
        }
    }
}

#[test]
fn keys_outside_a_window() {
    check_part(1, "keys that are not finite");
}

#[test]
fn values_outside_a_window() {
    check_part(2, "values that are not finite");
}

/// Biases of distances that the window excludes.
#[test]
fn biases_outside_a_window() {
    for bad in BAD {
        let mut batch = Batch::new(&[7, 100], (2, 2, 5), 2).spread(Spread::Consecutive).distances(60).window(20, 10);
        let Distances::Table { values, reach } = &mut batch.bias else { unreachable!() };
        for (i, value) in values.iter_mut().enumerate() {
            let distance = (i % (2 * *reach + 1)) as i64 - *reach as i64;
            *value = if (-20..=10).contains(&distance) { *value } else { bad };
        }
        check(&batch, &format!("distances outside the window are {bad}"));
        let mut batch = Batch::new(&[7, 100], (2, 2, 5), 3).spread(Spread::Consecutive).disentangled(60, true, true);
        batch.window = kin_infer::gpu::KeyWindow { behind: 20, ahead: 10 };
        let width = batch.width();
        let Distances::Terms { map, reach, keys, queries } = &mut batch.bias else { unreachable!() };
        map.iter_mut().enumerate().for_each(|(i, row)| *row = i as u32);
        for table in [keys, queries].into_iter().flatten() {
            table.resize(map.len() * width, 0.0);
            for (i, row) in table.chunks_mut(width).enumerate() {
                // Counted from the key: the window's sides are the other way about.
                let distance = i as i64 - *reach as i64;
                if !(-10..=20).contains(&distance) {
                    row.fill(bad);
                }
            }
        }
        check(&batch, &format!("terms outside the window are {bad}"));
    }
}

/// A scale that is 0 or negative turns no excluded key into a visible one.
#[test]
fn scales_that_are_not_positive() {
    for scale in [0.0, -0.0, -0.5] {
        for alibi in [false, true] {
            let batch = Batch::new(&[40, 70], (2, 1, 5), 4).spread(Spread::Consecutive).window(7, 0);
            let batch = if alibi { batch.alibi() } else { batch };
            check(&Batch { scale, ..batch }, &format!("scale {scale}, alibi {alibi}"));
        }
    }
}

/// A query that is not finite has no weights inside its window, and +0 outside of it.
#[test]
fn a_query_that_is_not_finite() {
    let mut batch = Batch::new(&[50], (1, 1, 5), 5).spread(Spread::Consecutive).window(4, 4);
    batch.packed[45 * 3 * 5..][..5].fill(f32::NAN);
    let defined = batch.defined();
    each_backend("weights of a query that is not finite", |backend, c| {
        let found = batch.stages(c);
        same(|| format!("{backend} weights"), &found.weights, &defined.weights);
        same(|| format!("{backend} values"), &found.out, &defined.out);
    });
}
