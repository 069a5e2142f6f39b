//! The linear layer over weights in blocks, and the lookup in tables of blocks.

use kin_infer::gpu::{Activation, Epilogue};
use kin_infer::weights::{Dtype, blocks};

use super::definition::{Random, block_tensor, each_backend, finish, quantised_product, same};

const KINDS: [Dtype; 2] = [Dtype::Q8_0, Dtype::Q4_0];

/// A few rows and many, panels and tiles whole and cut, one chain and several.
#[test]
fn shapes() {
    let mut random = Random::new(21);
    for kind in KINDS {
        for (rows, n, k) in [
            (1, 1, 32),
            (1, 33, 1120),
            (1, 150, 1120),
            (2, 70, 544),
            (7, 5, 4640),
            (8, 64, 64),
            (9, 65, 96),
            (64, 64, 512),
            (70, 130, 1056),
            (3, 4, 0),
            (20, 4, 0),
        ] {
            let mut x = random.vector(rows * k, 2.0);
            if k > 32 {
                x[..32].fill(1e-38); // too small to be divided by
                x[32..40].fill(-0.0);
            }
            let (weight, bytes) = block_tensor(&random.vector(n * k, 0.4), [n, k], kind);
            let [bias, factor, residual] = [n, rows * n, rows * n].map(|len| random.vector(len, 1.0));
            let product = quantised_product(&x, &bytes, kind, (rows, n, k));
            let row = |r: usize| {
                let of = |v: &[f32]| v[r * n..][..n].to_vec();
                let (factor, residual) = (of(&factor), of(&residual));
                finish(&of(&product), Some(&bias), Activation::GeluErf, Some(&factor), Some(&residual))
            };
            let expected: Vec<f32> = (0..rows).flat_map(row).collect();
            each_backend("quantised", |backend, c| {
                let weight = c.prepare_weight(std::slice::from_ref(&weight)).unwrap();
                let [x, bias, factor, residual] = [&x, &bias, &factor, &residual].map(|v| c.upload(v).unwrap());
                let whole = Epilogue {
                    bias: Some(&bias),
                    activation: Activation::GeluErf,
                    factor: Some(&factor),
                    residual: Some(&residual),
                };
                for (epilogue, expected) in [(Epilogue::NONE, &product), (whole, &expected)] {
                    let mut out = c.upload(&vec![f32::NAN; rows * n]).unwrap();
                    c.matmul(&x, rows, &weight, epilogue, &mut out).unwrap();
                    let mut found = vec![0.0; rows * n];
                    c.read(&out, &mut found).unwrap();
                    same(|| format!("{backend} {kind} {rows} {n} {k}"), &found, expected);
                }
            });
        }
    }
}

/// A value that is not finite makes its row NaN, and no other.
#[test]
fn a_row_that_is_not_finite() {
    let (rows, n, k) = (9, 40, 64);
    let mut random = Random::new(22);
    for kind in KINDS {
        let (weight, bytes) = block_tensor(&random.vector(n * k, 0.4), [n, k], kind);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.vector(rows * k, 2.0);
            x[4 * k + 37] = bad;
            let expected = quantised_product(&x, &bytes, kind, (rows, n, k));
            assert!(expected[4 * n..5 * n].iter().all(|v| v.is_nan()));
            each_backend("quantised", |backend, c| {
                let weight = c.prepare_weight(std::slice::from_ref(&weight)).unwrap();
                let mut out = c.alloc(rows * n).unwrap();
                c.matmul(&c.upload(&x).unwrap(), rows, &weight, Epilogue::NONE, &mut out).unwrap();
                let mut found = vec![0.0; rows * n];
                c.read(&out, &mut found).unwrap();
                same(|| format!("{backend} {kind} {bad}"), &found, &expected);
            });
        }
    }
}

#[test]
fn tables_of_blocks() {
    let (rows, cols) = (7, 96);
    let mut random = Random::new(23);
    let ids = [3, 0, 6, 6, 1];
    for kind in KINDS {
        let (table, bytes) = block_tensor(&random.vector(rows * cols, 1.0), [rows, cols], kind);
        let mut values = vec![0.0; rows * cols];
        blocks::dequantise(kind, &bytes, &mut values).unwrap();
        let expected: Vec<f32> = ids.iter().flat_map(|id| &values[*id as usize * cols..][..cols]).copied().collect();
        let twice: Vec<f32> = expected.iter().map(|v| v + v).collect();
        each_backend("tables of blocks", |backend, c| {
            let (table, ids) = (c.prepare_table(&table).unwrap(), c.upload_index(&ids).unwrap());
            let mut out = c.alloc(expected.len()).unwrap();
            for (accumulate, expected) in [(false, &expected), (true, &twice)] {
                c.gather(&table, &ids, accumulate, &mut out).unwrap();
                let mut found = vec![0.0; expected.len()];
                c.read(&out, &mut found).unwrap();
                same(|| format!("{backend} {kind}, accumulate {accumulate}"), &found, expected);
            }
        });
    }
}
