//! The linear layer.

use kin_infer::InferError;
use kin_infer::gpu::{Activation, Buffer, Epilogue, GpuCompute, Weight};
use safetensors::tensor::Dtype;

use super::definition::{
    ACTIVATIONS, Random, each_backend, finish, on_every_backend, product, same, tensor, with_threads,
};

const DEPTHS: [usize; 14] = [0, 1, 2, 3, 7, 16, 31, 77, 384, 511, 512, 513, 1100, 1536];
const WIDTHS: [usize; 9] = [1, 15, 16, 17, 31, 33, 48, 77, 96];
const ROWS: [usize; 12] = [1, 2, 3, 5, 7, 8, 9, 16, 33, 191, 193, 200];
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// Every how-manyth of the shapes runs: prime to their counts, so that each size meets others of every kind.
const EVERY: usize = 11;

/// The operands of one layer.
struct Layer {
    shape: (usize, usize, usize),
    x: Vec<f32>,
    tensor: kin_infer::weights::Tensor,
    bias: Option<Vec<f32>>,
    activation: Activation,
    factor: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    expected: Vec<f32>,
}

impl Layer {
    /// `options`: bit 0 a bias, bit 1 a residual, bit 2 a factor.
    fn new(shape: (usize, usize, usize), dtype: Dtype, activation: Activation, options: usize, seed: u64) -> Self {
        let (rows, n, k) = shape;
        let mut random = Random::new(seed);
        let x = random.vector(rows * k, 1.5);
        let (tensor, w) = tensor(&random.vector(n * k, 0.3), &[n, k], dtype);
        let bias = (options & 1 != 0).then(|| random.vector(n, 1.0));
        let residual = (options & 2 != 0).then(|| random.vector(rows * n, 1.0));
        let factor = (options & 4 != 0).then(|| random.vector(rows * n, 1.5));
        let product = product(&x, &w, shape);
        let row = |r: usize| {
            let part = |v: &Option<Vec<f32>>| v.as_ref().map(|v| v[r * n..][..n].to_vec());
            let (factor, residual) = (part(&factor), part(&residual));
            finish(&product[r * n..][..n], bias.as_deref(), activation, factor.as_deref(), residual.as_deref())
        };
        let expected = (0..rows).flat_map(row).collect();
        Self { shape, x, tensor, bias, activation, factor, residual, expected }
    }

    fn prepare(&self, compute: &dyn GpuCompute) -> Weight {
        compute.prepare_weight(std::slice::from_ref(&self.tensor)).unwrap()
    }

    /// The output rows of `rows`, computed as one batch.
    fn run(&self, compute: &dyn GpuCompute, weight: &Weight, rows: std::ops::Range<usize>) -> Vec<f32> {
        let (_, n, k) = self.shape;
        let upload = |v: &[f32]| compute.upload(v).unwrap();
        let x = upload(&self.x[rows.start * k..rows.end * k]);
        let bias: Option<Buffer> = self.bias.as_deref().map(upload);
        let part = |v: &Option<Vec<f32>>| v.as_ref().map(|v| upload(&v[rows.start * n..rows.end * n]));
        let (factor, residual) = (part(&self.factor), part(&self.residual));
        let epilogue = Epilogue {
            bias: bias.as_ref(),
            activation: self.activation,
            factor: factor.as_ref(),
            residual: residual.as_ref(),
        };
        // What the buffer held before does not matter.
        let mut out = upload(&vec![f32::NAN; rows.len() * n]);
        compute.matmul(&x, rows.len(), weight, epilogue, &mut out).unwrap();
        let mut values = vec![0.0; rows.len() * n];
        compute.read(&out, &mut values).unwrap();
        values
    }

    fn check(&self, case: &str) {
        each_backend(case, |backend, compute| {
            let found = self.run(compute, &self.prepare(compute), 0..self.shape.0);
            same(|| format!("{backend} {case}"), &found, &self.expected);
        });
    }
}

#[test]
fn shapes() {
    let all = DEPTHS.iter().flat_map(|k| WIDTHS.iter().flat_map(move |n| ROWS.iter().map(move |rows| (*rows, *n, *k))));
    for (i, shape) in all.enumerate().filter(|(i, _)| i % EVERY == 0) {
        let dtype = DTYPES[i / EVERY % 3];
        let layer = Layer::new(shape, dtype, ACTIVATIONS[i % 7], i / 7 % 8, i as u64);
        layer.check(&format!("matmul {shape:?} {dtype:?}"));
    }
}

/// Every height and width of a register tile, its last column there or missing, over one chain and over two.
#[test]
fn tiles() {
    for (rows, panels, missing, k) in (1..=13).flat_map(|rows| {
        let widths = (1..=5).flat_map(|panels| [(panels, 0), (panels, 1)]);
        widths.flat_map(move |(panels, missing)| [37, 521].map(|k| (rows, panels, missing, k)))
    }) {
        let shape = (rows, 16 * panels - missing, k);
        let layer = Layer::new(shape, Dtype::F32, Activation::Identity, 0, (rows * panels) as u64);
        layer.check(&format!("tile {shape:?}"));
    }
}

#[test]
fn epilogues() {
    for activation in ACTIVATIONS {
        for options in 0..8 {
            for (dtype, k) in [(Dtype::F32, 31), (Dtype::F16, 520), (Dtype::BF16, 5)] {
                let layer = Layer::new((9, 49, k), dtype, activation, options, options as u64);
                layer.check(&format!("matmul {activation:?} {options} {dtype:?}"));
            }
        }
    }
}

#[test]
fn threads_and_batches_leave_the_bits_alone() {
    for (shape, dtype) in [
        ((1, 96, 1536), Dtype::F32),
        ((200, 96, 513), Dtype::F32),
        ((193, 16, 1100), Dtype::BF16),
        ((33, 77, 384), Dtype::F16),
        ((5, 400, 700), Dtype::F32),
        ((3, 200, 1100), Dtype::F16),
    ] {
        let layer = Layer::new(shape, dtype, Activation::GeluErf, 7, 9);
        each_backend("matmul with 1, 2, 3 and 7 threads", |backend, compute| {
            let weight = layer.prepare(compute);
            for threads in [1, 2, 3, 7] {
                let found = with_threads(threads, || layer.run(compute, &weight, 0..shape.0));
                let case = || format!("{backend} matmul {shape:?} {dtype:?}, {threads} threads");
                same(case, &found, &layer.expected);
            }
            for batch in [1, 4, 50] {
                let starts = (0..shape.0).step_by(batch);
                let found: Vec<f32> =
                    starts.flat_map(|r| layer.run(compute, &weight, r..shape.0.min(r + batch))).collect();
                same(|| format!("{backend} matmul {shape:?}, {batch} rows a call"), &found, &layer.expected);
            }
        });
    }
}

#[test]
fn stacked_weights_are_the_layers_side_by_side() {
    let mut random = Random::new(12);
    let (rows, k) = (7, 40);
    let x = random.vector(rows * k, 1.0);
    for dtypes in [[Dtype::F32; 3], [Dtype::F16; 3], [Dtype::BF16; 3], [Dtype::F16, Dtype::F32, Dtype::BF16]] {
        let parts: Vec<_> = [(5, dtypes[0]), (16, dtypes[1]), (30, dtypes[2])]
            .map(|(n, d)| tensor(&random.vector(n * k, 1.0), &[n, k], d))
            .into();
        let tensors: Vec<_> = parts.iter().map(|p| p.0.clone()).collect();
        let w: Vec<f32> = parts.iter().flat_map(|p| p.1.clone()).collect();
        each_backend("stacked weights", |backend, compute| {
            let weight = compute.prepare_weight(&tensors).unwrap();
            assert_eq!((weight.n(), weight.k()), (51, k));
            let (x, mut out) = (compute.upload(&x).unwrap(), compute.alloc(rows * 51).unwrap());
            compute.matmul(&x, rows, &weight, Epilogue::NONE, &mut out).unwrap();
            let mut found = vec![0.0; rows * 51];
            compute.read(&out, &mut found).unwrap();
            same(|| format!("{backend} {dtypes:?}"), &found, &product(&x_values(compute, &x), &w, (rows, 51, k)));
        });
    }
}

fn x_values(compute: &dyn GpuCompute, x: &Buffer) -> Vec<f32> {
    let mut values = vec![0.0; x.len()];
    compute.read(x, &mut values).unwrap();
    values
}

/// Activations may overflow; the rows that do not are untouched by those that do.
#[test]
fn non_finite_rows_stay_alone() {
    let (rows, n, k) = (9, 33, 20);
    let mut layer = Layer::new((rows, n, k), Dtype::F32, Activation::Identity, 1, 3);
    layer.x[2 * k + 3] = f32::NAN;
    layer.x[5 * k] = f32::INFINITY;
    layer.x[6 * k + 1] = f32::NEG_INFINITY;
    each_backend("non-finite rows", |backend, compute| {
        let found = layer.run(compute, &layer.prepare(compute), 0..rows);
        for r in 0..rows {
            let row = &found[r * n..][..n];
            match r {
                2 => assert!(row.iter().all(|v| v.is_nan())),
                5 | 6 => assert!(row.iter().all(|v| !v.is_finite())),
                _ => same(|| format!("{backend} row {r}"), row, &layer.expected[r * n..][..n]),
            }
        }
    });
}

fn weights_that_are_not_finite_are_refused(c: &dyn GpuCompute) {
    for dtype in DTYPES {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 20 * 6];
            values[17 * 6 + 4] = bad;
            let (tensor, _) = tensor(&values, &[20, 6], dtype);
            match c.prepare_weight(&[tensor]) {
                Err(InferError::TensorError { tensor, found, .. }) => {
                    assert_eq!(tensor, "t");
                    assert!(found.contains("[17, 4]"), "{found}");
                }
                Err(other) => panic!("{other}"),
                Ok(_) => panic!("{bad} was accepted as {dtype:?}"),
            }
        }
    }
}

on_every_backend!(weights_that_are_not_finite_are_refused);
