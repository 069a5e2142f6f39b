//! Every set of integer kernels by name against a plain definition, bit for bit.

use super::super::cancel::Cancel;
use super::super::packed::{self, PackedMatrix, Product};
use super::super::{available, quant_tested};
use super::QuantKernels;
use super::kernel::{QBLOCK, QuantKind};
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
}

/// GGML blocks of n rows, and the integers and scales they stand for.
fn blocks(kind: QuantKind, n: usize, k: usize, random: &mut Random) -> (Vec<u8>, Vec<i32>, Vec<f32>) {
    let (mut bytes, mut values, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..n * k / QBLOCK {
        let scale = half::f16::from_f32(random.float() * 0.01);
        scales.push(scale.to_f32());
        bytes.extend(scale.to_bits().to_le_bytes());
        match kind {
            QuantKind::Q8 => {
                let q: Vec<i8> = (0..QBLOCK).map(|_| random.next() as i8).collect();
                bytes.extend(q.iter().map(|v| *v as u8));
                values.extend(q.iter().map(|v| i32::from(*v)));
            }
            QuantKind::Q4 => {
                let q: Vec<u8> = (0..QBLOCK).map(|_| random.next() as u8 & 15).collect();
                bytes.extend((0..16).map(|i| q[i] | q[i + 16] << 4));
                values.extend(q.iter().map(|v| i32::from(*v) - 8));
            }
        }
    }
    (bytes, values, scales)
}

/// The contract, element by element.
fn plain(x: &[f32], k: usize, values: &[i32], scales: &[f32], n: usize) -> Vec<f32> {
    let quantise = |block: &[f32]| {
        let top = block.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0);
        let m = f32::from_bits(top);
        if top >= 0x7f80_0000 {
            return (f32::NAN, vec![0; QBLOCK]);
        }
        if m < 1e-30 {
            return (0.0, vec![0; QBLOCK]);
        }
        let inverse = 127.0 / m;
        (m / 127.0, block.iter().map(|v| (v * inverse).round_ties_even() as i32).collect())
    };
    let mut out = Vec::new();
    for row in x.chunks(k) {
        let row: Vec<(f32, Vec<i32>)> = row.chunks(QBLOCK).map(quantise).collect();
        for j in 0..n {
            let mut c = None;
            for chain in (0..k / QBLOCK).collect::<Vec<_>>().chunks(16) {
                let mut acc = 0f32;
                for &b in chain {
                    let w = &values[j * k + b * QBLOCK..][..QBLOCK];
                    let sum: i32 = w.iter().zip(&row[b].1).map(|(w, a)| w * a).sum();
                    acc = (sum as f32).mul_add(scales[j * k / QBLOCK + b] * row[b].0, acc);
                }
                c = Some(c.map_or(acc, |c: f32| c + acc));
            }
            out.push(c.unwrap_or(0.0));
        }
    }
    out
}

fn found(
    kind: QuantKind,
    x: &[f32],
    (rows, n, k): (usize, usize, usize),
    bytes: &[u8],
    quant: &QuantKernels,
) -> Vec<f32> {
    let stored = bytes.len() / n;
    let weight = PackedMatrix::quantised(kind, n, k, |i| &bytes[i * stored..][..stored]).unwrap();
    let (bias, factor, residual, cancel) = (None, None, None, &Cancel::default());
    let p = Product { rows, a: x, weight: &weight, bias, activation: Activation::Identity, factor, residual, cancel };
    let mut c = vec![f32::NAN; rows * n];
    packed::run(available()[0], quant, &p, &mut c);
    c
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

#[test]
fn every_set_of_kernels_gives_the_definitions_bits() {
    let (mut random, sets) = (Random(7), quant_tested("blocks"));
    for kind in [QuantKind::Q8, QuantKind::Q4] {
        for rows in [1, 2, 3, 5, 6, 7, 8, 9, 13, 17, 33] {
            for (n, k) in [(1, 32), (16, 64), (17, 96), (33, 512), (48, 544), (50, 1120)] {
                let (bytes, values, scales) = blocks(kind, n, k, &mut random);
                let mut x: Vec<f32> = (0..rows * k).map(|_| random.float()).collect();
                x[..8].fill(0.0);
                if k > 64 {
                    x[32..64].fill(1e-38);
                }
                let expected = bits(&plain(&x, k, &values, &scales, n));
                for quant in &sets {
                    let c = found(kind, &x, (rows, n, k), &bytes, quant);
                    assert_eq!(bits(&c), expected, "{}: {kind:?}, {rows} rows, n {n}, k {k}", quant.name());
                }
            }
        }
    }
}

#[test]
fn a_value_that_is_not_finite_makes_its_row_nan() {
    let mut random = Random(3);
    let (n, k, rows) = (20, 64, 7);
    let (bytes, ..) = blocks(QuantKind::Q8, n, k, &mut random);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x: Vec<f32> = (0..rows * k).map(|_| random.float()).collect();
        x[k + 37] = bad;
        for quant in quant_tested("values that are not finite") {
            let c = found(QuantKind::Q8, &x, (rows, n, k), &bytes, quant);
            assert!(c[..n].iter().chain(&c[2 * n..]).all(|v| v.is_finite()), "{}", quant.name());
            assert!(c[n..2 * n].iter().all(|v| v.is_nan()), "{}", quant.name());
        }
    }
}
