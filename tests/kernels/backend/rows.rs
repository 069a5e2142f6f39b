//! Operations on rows: norms of slices, copies, neighbourhoods.

use kin_infer::gpu::{Buffer, Epilogue, GpuCompute, Norm, NormKind, Segments, Slices};
use safetensors::tensor::Dtype;

use super::composed::Composed;
use super::definition::{
    ACTIVATIONS, Random, activation, chain, each_backend, l2_normalize, layer_norm, rms_norm, same, tensor,
    with_threads,
};
use super::{stale, values};

/// Slices of a row, [first, count, width, stride]: whole rows, heads from a column on, several side by side, one value.
const SLICES: [[usize; 4]; 9] = [
    [0, 1, 33, 33],
    [0, 4, 16, 64],
    [0, 3, 16, 80],
    [48, 2, 16, 80],
    [5, 2, 33, 77],
    [0, 7, 1, 7],
    [3, 1, 1, 9],
    [2, 1, 768, 800],
    [64, 12, 64, 900],
];

#[test]
fn norms_of_slices() {
    let mut random = Random::new(1);
    for [first, count, width, stride] in SLICES {
        for rows in [1, 7, 300] {
            let x = random.vector(rows * stride, 2.0);
            let [gamma, beta] = [(); 2].map(|()| random.vector(width, 1.5));
            for (kind, beta) in
                [(NormKind::LayerNorm, None), (NormKind::LayerNorm, Some(&beta)), (NormKind::RmsNorm, None)]
            {
                let mut expected = x.clone();
                for row in expected.chunks_mut(stride) {
                    for slice in row[first..first + count * width].chunks_mut(width) {
                        let normed = match kind {
                            NormKind::LayerNorm => layer_norm(slice, &gamma, beta.map(Vec::as_slice), 1e-5),
                            NormKind::RmsNorm => rms_norm(slice, &gamma, 1e-5),
                        };
                        slice.copy_from_slice(&normed);
                    }
                }
                each_backend("norms of slices", |backend, c| {
                    for threads in [1, 2] {
                        let found = with_threads(threads, || {
                            let (mut x, gamma) = (c.upload(&x).unwrap(), c.upload(&gamma).unwrap());
                            let beta = beta.map(|b| c.upload(b).unwrap());
                            let norm = Norm { kind, gamma: &gamma, beta: beta.as_ref(), eps: 1e-5 };
                            c.norm(&mut x, Slices { first, count, stride }, norm).unwrap();
                            values(c, &x)
                        });
                        let slices = format!("{count} slices of {width} at {first} of {stride}, {rows} rows");
                        let case = || format!("{backend} {kind}, beta {}, {slices}", beta.is_some());
                        same(case, &found, &expected);
                    }
                });
            }
        }
    }
}

/// No slices, and slices without values, change nothing.
#[test]
fn no_slices() {
    let x = Random::new(2).vector(12, 1.0);
    each_backend("no slices", |backend, c| {
        for (count, width) in [(0, 4), (3, 0)] {
            let (mut out, gamma) = (c.upload(&x).unwrap(), c.upload(&vec![2.0; width]).unwrap());
            let norm = Norm { kind: NormKind::RmsNorm, gamma: &gamma, beta: None, eps: 1e-5 };
            c.norm(&mut out, Slices { first: 1, count, stride: 6 }, norm).unwrap();
            same(|| format!("{backend} {count} slices of {width}"), &values(c, &out), &x);
        }
    });
}

#[test]
fn copies_of_rows() {
    let mut random = Random::new(3);
    for (cols, rows) in [(1, 1), (5, 9), (33, 70), (768, 40)] {
        let mut x = random.vector(rows * cols, 1.0);
        (x[0], x[rows * cols - 1]) = (-0.0, f32::INFINITY);
        for (first, count) in [(0, rows), (0, 0), (rows, 0), (rows / 2, rows - rows / 2), (rows - 1, 1)] {
            each_backend("copy_rows", |backend, c| {
                for threads in [1, 2] {
                    let found = with_threads(threads, || {
                        let mut out = stale(c, count * cols);
                        c.copy_rows(&c.upload(&x).unwrap(), cols, first, &mut out).unwrap();
                        values(c, &out)
                    });
                    let case = || format!("{backend} {count} rows of {cols} from {first}");
                    same(case, &found, &x[first * cols..(first + count) * cols]);
                }
            });
        }
    }
}

/// Sequences and the positions of their rows.
pub struct Rows {
    pub name: &'static str,
    pub lengths: Vec<usize>,
    pub positions: Vec<u32>,
}

fn sequences() -> [Rows; 3] {
    let lengths = vec![3, 0, 1, 40, 2];
    let of = |position: fn(u32) -> u32| lengths.iter().flat_map(|len| (0..*len as u32).map(position)).collect();
    [
        Rows { name: "consecutive", positions: of(|i| i), lengths: lengths.clone() },
        Rows { name: "every seventh left out", positions: of(|i| i + i / 6), lengths: lengths.clone() },
        Rows {
            name: "gaps of 1, 2 and 5, from 9 on",
            positions: of(|i| 9 + i + i / 3 + i / 5 * 4),
            lengths: lengths.clone(),
        },
    ]
}

/// The row of `position + tap - taps / 2` in the sequence, else zeros.
pub fn unfolded(x: &[f32], cols: usize, rows: &Rows, taps: usize) -> Vec<f32> {
    let mut out = Vec::new();
    let mut first = 0;
    for len in &rows.lengths {
        let own = &rows.positions[first..first + len];
        for position in own {
            for tap in 0..taps {
                let wanted = i64::from(*position) + tap as i64 - (taps / 2) as i64;
                match own.iter().position(|p| i64::from(*p) == wanted) {
                    Some(at) => out.extend(&x[(first + at) * cols..][..cols]),
                    None => out.extend(vec![0.0; cols]),
                }
            }
        }
        first += len;
    }
    out
}

/// `unfold` against its definition, for several widths and taps.
pub fn check_unfold(rows: &Rows, seed: u64) {
    let mut random = Random::new(seed);
    for (cols, taps) in [1, 5, 32].into_iter().flat_map(|cols| [1, 2, 3, 5, 9].map(|taps| (cols, taps))) {
        let total = rows.positions.len();
        let x = random.vector(total * cols, 1.0);
        let expected = unfolded(&x, cols, rows, taps);
        each_backend("unfold", |backend, c| {
            for threads in [1, 2] {
                let found = with_threads(threads, || {
                    let segments = Segments::from_lengths(rows.lengths.iter().copied());
                    let (x, positions) = (c.upload(&x).unwrap(), c.upload_index(&rows.positions).unwrap());
                    let mut out = stale(c, total * taps * cols);
                    c.unfold(&x, cols, &segments, &positions, taps, &mut out).unwrap();
                    values(c, &out)
                });
                same(|| format!("{backend} {taps} taps of {cols}, {}", rows.name), &found, &expected);
            }
        });
    }
}

#[test]
fn neighbourhoods_of_rows() {
    sequences().iter().for_each(|rows| check_unfold(rows, 4));
}

/// A convolution is a linear layer over unfolded rows: one chain over tap after tap, each tap's features in order.
#[test]
fn a_convolution_is_unfold_and_a_linear_layer() {
    let (cols, out_cols, taps) = (210, 17, 3);
    let mut random = Random::new(5);
    let (weight, w) = tensor(&random.vector(out_cols * taps * cols, 0.3), &[out_cols, taps * cols], Dtype::F32);
    for rows in sequences() {
        let total = rows.positions.len();
        let x = random.vector(total * cols, 1.0);
        let wide = unfolded(&x, cols, &rows, taps);
        let element = |row: usize, o: usize| {
            let (a, b) = (&wide[row * taps * cols..], &w[o * taps * cols..]);
            chain(taps * cols, |i| a[i], |i| b[i])
        };
        let expected: Vec<f32> = (0..total * out_cols).map(|i| element(i / out_cols, i % out_cols)).collect();
        each_backend("convolution", |backend, c| {
            let segments = Segments::from_lengths(rows.lengths.iter().copied());
            let positions = c.upload_index(&rows.positions).unwrap();
            let (mut unfolded, mut out) = (stale(c, total * taps * cols), stale(c, total * out_cols));
            c.unfold(&c.upload(&x).unwrap(), cols, &segments, &positions, taps, &mut unfolded).unwrap();
            let weight = c.prepare_weight(std::slice::from_ref(&weight)).unwrap();
            c.matmul(&unfolded, total, &weight, Epilogue::NONE, &mut out).unwrap();
            same(|| format!("{backend} convolution, {}", rows.name), &values(c, &out), &expected);
        });
    }
}

/// Operations on each value, and unit rows, around the sizes of threadgroups.
#[test]
fn each_value_and_unit_rows() {
    let mut random = Random::new(6);
    for (rows, cols) in [(1, 1), (3, 85), (1, 256), (257, 1), (9, 33), (8, 64)] {
        let [mut x, y] = [(); 2].map(|()| random.vector(rows * cols, 2.0));
        (x[0], x[rows * cols - 1]) = (-0.0, f32::MIN_POSITIVE);
        let of = |f: &dyn Fn(usize) -> f32| (0..x.len()).map(f).collect::<Vec<f32>>();
        let sum = of(&|i| x[i] + y[i]);
        let product = of(&|i| x[i] * y[i]);
        let scaled = of(&|i| x[i] * 0.37);
        let unit: Vec<f32> = y.chunks(cols).flat_map(l2_normalize).collect();
        each_backend("each value", |backend, c| {
            let check = |what: &str, of: &[f32], run: &dyn Fn(&mut Buffer), expected: &[f32]| {
                let mut found = c.upload(of).unwrap();
                run(&mut found);
                same(|| format!("{backend} {what}, {rows} rows of {cols}"), &values(c, &found), expected);
            };
            let other = c.upload(&y).unwrap();
            check("add", &x, &|b| c.add(b, &other).unwrap(), &sum);
            check("mul", &x, &|b| c.mul(b, &other).unwrap(), &product);
            check("scale", &x, &|b| c.scale(b, 0.37).unwrap(), &scaled);
            check("l2_normalize", &y, &|b| c.l2_normalize(b, cols).unwrap(), &unit);
            for kind in ACTIVATIONS {
                let active = of(&|i| activation(kind, x[i]));
                check("activate", &x, &|b| c.activate(b, kind).unwrap(), &active);
            }
        });
    }
}

/// The first largest of each row, by its first `among` columns; none where any column holds a value that is not finite.
#[test]
fn arg_max_of_rows_is_the_first_largest() {
    let mut random = Random::new(11);
    for (cols, among) in [(1, 1), (5, 3), (255, 255), (256, 256), (257, 256), (1000, 999), (4133, 4133)] {
        // Below 0, many of them equal.
        let mut rows = vec![vec![0.0; cols]; 10];
        rows.iter_mut().flatten().for_each(|x| *x = (random.bits() % 7) as f32 - 9.0);
        rows[1] = (0..cols).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
        rows[2] = random.vector(cols, 30.0);
        rows[3][cols - 1] = f32::NAN;
        rows[4][0] = f32::INFINITY;
        rows[5][cols / 2] = f32::NEG_INFINITY;
        rows[6][among - 1] = 5.0;
        rows[7][cols - 1] = 5.0;
        rows[8].fill(f32::MIN);
        let expected: Vec<Option<u32>> = rows
            .iter()
            .map(|row| {
                let top = row[..among].iter().fold(f32::MIN, |top, x| if *x > top { *x } else { top });
                let first = row.iter().position(|x| *x == top).map(|at| at as u32);
                first.filter(|_| row.iter().all(|x| x.is_finite()))
            })
            .collect();
        assert_eq!(expected.iter().filter(|e| e.is_none()).count(), 3);
        assert_eq!((expected[1], expected[6], expected[8]), (Some(0), Some(among as u32 - 1), Some(0)));
        each_backend("arg_max", |backend, c| {
            let x = c.upload(&rows.concat()).unwrap();
            assert_eq!(c.arg_max(&x, cols, among).unwrap(), expected, "{backend}: {among} of {cols}");
            assert_eq!(
                Composed(c).arg_max(&x, cols, among).unwrap(),
                expected,
                "{backend}: {among} of {cols}, composed"
            );
        });
    }
}
