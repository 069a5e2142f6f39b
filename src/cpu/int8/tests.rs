//! Every set of integer kernels by name against a plain definition, bit for bit.

use super::super::cancel::Cancel;
use super::super::packed::{self, PackedMatrix, Product};
use super::super::{available, quant_tested};
use super::kernel::MAX_K;
use crate::gpu::Activation;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn float(&mut self) -> f32 {
        (self.next() as f32 / 2f32.powi(30) - 1.0) * 2f32.powi(self.next() as i32 % 7 - 3)
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Quantised weights of a column and their scale.
fn plain_weights(w: &[f32]) -> (Vec<i64>, f32) {
    let m = w.iter().fold(0f32, |m, w| m.max(w.abs()));
    if m < 1e-30 {
        return (vec![0; w.len()], 0.0);
    }
    let inverse = 127.0 / m;
    (w.iter().map(|w| (w * inverse).round_ties_even() as i64).collect(), m / 127.0)
}

/// Quantised values of a row less its zero point, and its scale.
fn plain_row(x: &[f32]) -> (Vec<i64>, f32) {
    let none = |d: f32| (vec![0; x.len()], d);
    if x.iter().any(|v| !v.is_finite()) {
        return none(f32::NAN);
    }
    let (low, high) = x.iter().fold((0f32, 0f32), |(l, h), v| (l.min(*v), h.max(*v)));
    let range = high - low;
    if !range.is_finite() {
        return none(f32::NAN);
    }
    if range < 1e-30 {
        return none(0.0);
    }
    let inverse = 254.0 / range;
    let zero = f64::from(-low * inverse).round_ties_even();
    let q = |v: &f32| {
        let q = (f64::from(v * inverse) + zero).round_ties_even();
        assert!((0.0..=255.0).contains(&q), "{q}");
        (q - zero) as i64
    };
    (x.iter().map(q).collect(), range / 254.0)
}

/// The contract, element by element.
fn plain(x: &[f32], w: &[f32], n: usize, k: usize) -> Vec<f32> {
    let columns: Vec<_> = (0..n).map(|j| plain_weights(&w[j * k..][..k])).collect();
    let of_row = |row: &[f32]| {
        let (q, d) = plain_row(row);
        let value = |(p, e): &(Vec<i64>, f32)| {
            let sum: i64 = q.iter().zip(p).map(|(q, p)| q * p).sum();
            i32::try_from(sum).unwrap() as f32 * (d * e)
        };
        columns.iter().map(value).collect::<Vec<_>>()
    };
    x.chunks(k).flat_map(of_row).collect()
}

/// The product by every set of kernels, each checked against the contract.
fn check(what: &str, x: &[f32], w: &[f32], (rows, n, k): (usize, usize, usize)) -> Vec<f32> {
    let weight = PackedMatrix::int8_of(n, k, w).unwrap();
    let expected = plain(x, w, n, k);
    for quant in quant_tested(what) {
        let (bias, factor, residual) = (None, None, None);
        let p = Product {
            rows,
            a: x,
            weight: &weight,
            bias,
            activation: Activation::Identity,
            factor,
            residual,
            cancel: &Cancel::default(),
        };
        let mut c = vec![7.0; rows * n];
        packed::run(available()[0], quant, &p, &mut c);
        let at = bits(&c).iter().zip(bits(&expected)).position(|(a, b)| *a != b);
        let shape = format!("{}: {what}, {rows} rows, n {n}, k {k}", quant.name());
        assert!(at.is_none(), "{shape}: element {at:?} is {:?}, not {:?}", at.map(|i| c[i]), at.map(|i| expected[i]));
    }
    expected
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

#[test]
fn every_set_of_kernels_gives_the_definitions_bits() {
    let mut random = Random(7);
    for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 50] {
        for (n, k) in [(1, 1), (3, 5), (16, 8), (17, 31), (33, 64), (48, 384), (50, 77), (64, 1030), (130, 12)] {
            let (mut x, mut w) = (random.floats(rows * k), random.floats(n * k));
            check("random", &x, &w, (rows, n, k));
            // A row on one side of zero, one on the other, one of zeros, one of next to nothing.
            for (r, row) in x.chunks_mut(k).enumerate() {
                let side = |v: &mut f32| match r % 4 {
                    0 => *v = v.abs() + 3.0,
                    1 => *v = -v.abs(),
                    2 => *v = 0.0,
                    _ => *v *= 1e-32,
                };
                row.iter_mut().for_each(side);
            }
            w[..k].fill(0.0);
            check("one side", &x, &w, (rows, n, k));
        }
    }
}

/// Every value at an end of its range: the largest sums, and the pairs of products that 16 bits hold just so.
#[test]
fn extremes_are_exact() {
    for k in [4, 8, 48, 1024, 16_384] {
        for signs in 0..16u32 {
            let sign = |on: bool| if on { 1.0f32 } else { -1.0 };
            let x: Vec<f32> = (0..5 * k).map(|i| sign(signs >> (i % 2) & 1 == 0) * 3.0).collect();
            let w: Vec<f32> = (0..17 * k).map(|i| sign(signs >> (2 + i % 2) & 1 == 0) * 0.5).collect();
            let c = check("ends", &x, &w, (5, 17, k));
            let exact: f32 = x[..k].iter().zip(&w[..k]).map(|(x, w)| x * w).sum();
            assert!((c[0] - exact).abs() <= exact.abs() * 0.005, "k {k}: {} for {exact}", c[0]);
        }
    }
}

#[test]
fn the_longest_rows_do_not_overflow() {
    let k = MAX_K;
    for (x, w) in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0)] {
        for rows in [1, 4] {
            let (x, w) = (vec![x; rows * k], vec![w; 2 * k]);
            let sum = check("longest", &x, &w, (rows, 2, k))[0];
            assert!((sum.abs() / k as f32 - 1.0).abs() < 1e-3, "{sum}");
        }
    }
    assert!(255 * 127 * (MAX_K as i64 + 1) > i64::from(i32::MAX));
}

/// Ties are rounded to even also where the zero point is odd.
#[test]
fn ties_round_to_even() {
    // range 254: every value is its own integer. Half of one is a tie.
    for low in [-101.0f32, -100.0, 0.0] {
        let mut x = vec![low, low + 254.0];
        x.extend((0..14).map(|i| i as f32 + 0.5 + low));
        let k = x.len();
        let mut w = vec![0.0; k * k];
        (0..k).for_each(|j| w[j * k + j] = 127.0);
        let c = check("ties", &x, &w, (1, k, k));
        for (found, x) in c.iter().zip(&x) {
            assert_eq!(*found, ((x - low).round_ties_even() + low) * 127.0, "{x}");
        }
    }
}

#[test]
fn a_value_that_is_not_finite_makes_its_row_nan() {
    let mut random = Random(3);
    let (n, k, rows) = (20, 67, 5);
    let w = random.floats(n * k);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 37, k - 1] {
            let mut x = random.floats(rows * k);
            x[k + at] = bad;
            let c = check("not finite", &x, &w, (rows, n, k));
            assert!(c[..n].iter().chain(&c[2 * n..]).all(|v| v.is_finite()));
            assert!(c[n..2 * n].iter().all(|v| v.is_nan()));
        }
    }
    // The range of finite values may overflow.
    let mut x = random.floats(k);
    (x[1], x[2]) = (f32::MAX, f32::MIN);
    assert!(check("range", &x, &w, (1, n, k)).iter().all(|v| v.is_nan()));
}

/// Threads and batch mates do not show, nor does the epilogue's order.
#[test]
fn rows_are_the_same_in_any_company() {
    let mut random = Random(11);
    let (rows, n, k) = (70, 200, 130);
    let (x, w) = (random.floats(rows * k), random.floats(n * k));
    let (bias, factor, residual) = (random.floats(n), random.floats(rows * n), random.floats(rows * n));
    let weight = PackedMatrix::int8_of(n, k, &w).unwrap();
    let mut expected = plain(&x, &w, n, k);
    for (i, c) in expected.iter_mut().enumerate() {
        *c += bias[i % n];
        *c = if *c < 0.0 { 0.0 } else { *c };
        *c *= factor[i];
        *c += residual[i];
    }
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for quant in quant_tested("rows in company") {
            for (first, count) in [(0, rows), (3, 1), (5, 60)] {
                let part = first * n..(first + count) * n;
                let p = Product {
                    rows: count,
                    a: &x[first * k..(first + count) * k],
                    weight: &weight,
                    bias: Some(&bias),
                    activation: Activation::Relu,
                    factor: Some(&factor[part.clone()]),
                    residual: Some(&residual[part.clone()]),
                    cancel: &Cancel::default(),
                };
                let mut c = vec![f32::NAN; count * n];
                pool.install(|| packed::run(available()[0], quant, &p, &mut c));
                assert_eq!(bits(&c), bits(&expected[part]), "{}: {threads} threads, rows {first}", quant.name());
            }
        }
    }
}
