//! The elementary functions as docs/numerics.md writes them, operation by operation, and every kernel held to the bits.

use kin_infer::cpu::{Kernels, available};
use kin_infer::gpu::Activation;
use rayon::prelude::*;

use super::definition::class;

const MAGIC: f32 = 12_582_912.0;

fn c(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// Horner's rule, from the highest coefficient.
fn polynomial(r: f32, coefficients: &[u32]) -> f32 {
    coefficients[1..].iter().fold(c(coefficients[0]), |p, k| p.mul_add(r, c(*k)))
}

fn pow2(k: f32) -> f32 {
    if k.is_nan() { k } else { f32::from_bits(((k as i32 + 127) as u32) << 23) }
}

fn exp(x: f32) -> f32 {
    let x = if x < -105.0 { -105.0 } else { x };
    let x = if 89.5 < x { 89.5 } else { x };
    let n = x.mul_add(c(0x3fb8_aa3b), MAGIC) - MAGIC;
    let r = n.mul_add(c(0xbf31_8000), x);
    let r = n.mul_add(c(0x395e_8083), r);
    let q = polynomial(r, &[0x3ab6_350c, 0x3c09_05ce, 0x3d2a_aadd, 0x3e2a_aa6e, 0x3f00_0000]);
    let p = (r * r).mul_add(q, r) + 1.0;
    let h = (n * 0.5 + MAGIC) - MAGIC;
    (p * pow2(h)) * pow2(n - h)
}

fn gelu_erf(x: f32) -> f32 {
    const TAIL: [u32; 10] = [
        0x3c85_95eb,
        0xbd7a_efb7,
        0x3d44_552c,
        0x3d09_93d5,
        0x3c07_0b6d,
        0x3db6_9ede,
        0x3d91_94db,
        0x3dc4_0a82,
        0x3dcb_b4d3,
        0x3dcc_4965,
    ];
    let a = x.abs();
    let a = if 15.0 < a { 15.0 } else { a };
    let t = 1.0 / a.mul_add(0.25, 1.0);
    let g = polynomial(t, &TAIL) * t;
    let high = a * a;
    let low = a.mul_add(a, 0.0 - high);
    let e = exp(high * -0.5);
    let e = (low * -0.5).mul_add(e, e);
    let tail = e * g;
    match () {
        () if x > 15.0 => x,
        () if x > 0.0 => (0.0 - x).mul_add(tail, x),
        () if x < -15.0 => -0.0,
        () => x * tail,
    }
}

fn gelu_tanh(x: f32) -> f32 {
    let k = if x < -15.0 { -15.0 } else { x };
    let k = if 15.0 < k { 15.0 } else { k };
    let w = c(0xbd92_2279).mul_add(k * k, c(0xbfcc_4229));
    let high = k.abs() * w;
    let low = k.abs().mul_add(w, 0.0 - high);
    let e = exp(high);
    let e = low.mul_add(e, e);
    let y = if x < 0.0 { k * e } else { k } / (e + 1.0);
    match () {
        () if x < -15.0 => -0.0,
        () if x > 15.0 => x,
        () => y,
    }
}

fn sigmoid(x: f32) -> f32 {
    let e = exp(0.0 - x.abs());
    if x < 0.0 { e / (e + 1.0) } else { 1.0 / (e + 1.0) }
}

fn silu(x: f32) -> f32 {
    let e = exp(0.0 - x.abs());
    match () {
        () if x < -110.0 => -0.0,
        () if x < 0.0 => (x * e) / (e + 1.0),
        () => x / (e + 1.0),
    }
}

type Apply = fn(&Kernels, &mut [f32]);

type Definition = fn(f32) -> f32;

const FUNCTIONS: [(&str, Apply, Definition); 5] = [
    ("exp", |k, x| k.exp(x), exp),
    ("gelu_erf", |k, x| k.activation(Activation::GeluErf, x), gelu_erf),
    ("gelu_tanh", |k, x| k.activation(Activation::GeluTanh, x), gelu_tanh),
    ("sigmoid", |k, x| k.activation(Activation::Sigmoid, x), sigmoid),
    ("silu", |k, x| k.activation(Activation::Silu, x), silu),
];

/// Every `step`-th bit pattern through every kernel and the definition.
fn check(step: u64) {
    const CHUNK: u64 = 1 << 14;
    (0..(1u64 << 32).div_ceil(step * CHUNK)).into_par_iter().for_each(|chunk| {
        let bits = (chunk * CHUNK..(chunk + 1) * CHUNK).map(|i| i * step).filter(|b| *b < 1 << 32);
        let x: Vec<f32> = bits.map(|b| f32::from_bits(b as u32)).collect();
        for (name, apply, definition) in FUNCTIONS {
            let expected: Vec<f32> = x.iter().map(|x| definition(*x)).collect();
            for kernels in available() {
                let mut y = x.clone();
                apply(kernels, &mut y);
                let differs = (0..y.len()).find(|&i| class(y[i]) != class(expected[i]));
                if let Some(i) = differs {
                    panic!("{} {name}({:e}): {:e} for {:e}", kernels.name(), x[i], y[i], expected[i]);
                }
            }
        }
    });
}

#[test]
fn the_functions_are_their_definitions() {
    check(4099);
}

#[test]
#[ignore = "takes minutes: all 2^32 inputs"]
fn the_functions_are_their_definitions_everywhere() {
    check(1);
}
