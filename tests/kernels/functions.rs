//! The elementary functions as docs/numerics.md writes them, operation by operation, and every kernel held to the bits.

use kin_infer::cpu::{Kernels, available};
use kin_infer::gpu::{Activation, AttentionShape, KeyWindow, ScoreBias, Segments};
use rayon::prelude::*;

use super::SPECIAL;
use super::definition::{ACTIVATIONS, class, each_backend};

/// Where the functions change their formula, besides [`SPECIAL`]: weights of softmax end, the argument of exp is limited
/// in GELU (erf) and in tanh.
const SEAMS: [f32; 3] = [69.0, 14.491_377, 44.75];

/// The seams with either sign, a step before and after them, and every 65 521st bit pattern: a prime, so that mantissas
/// are of all kinds.
fn inputs() -> Vec<f32> {
    let seams = SPECIAL.into_iter().chain(SEAMS).flat_map(|x| [x.next_down(), x, x.next_up()]).flat_map(|x| [x, -x]);
    seams.chain((0..=u32::MAX).step_by(65_521).map(f32::from_bits)).collect()
}

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

fn tanh(x: f32) -> f32 {
    let (a, s) = (x.abs(), x * x);
    let p = polynomial(s, &[0xbbba_f0ea, 0x3ca9_134e, 0xbd5c_1e2d, 0x3e08_8394, 0xbeaa_aa99]);
    let small = if a < 2f32.powi(-13) { x } else { (p * s).mul_add(x, x) };
    let large = 1.0 - 2.0 / (exp(a + a) + 1.0);
    let large = if x < 0.0 { 0.0 - large } else { large };
    if 0.625 < a { large } else { small }
}

fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

type Apply = fn(&Kernels, &mut [f32]);

type Definition = fn(f32) -> f32;

const FUNCTIONS: [(&str, Apply, Definition); 7] = [
    ("exp", |k, x| k.exp(x), exp),
    ("gelu_erf", |k, x| k.activation(Activation::GeluErf, x), gelu_erf),
    ("gelu_tanh", |k, x| k.activation(Activation::GeluTanh, x), gelu_tanh),
    ("sigmoid", |k, x| k.activation(Activation::Sigmoid, x), sigmoid),
    ("silu", |k, x| k.activation(Activation::Silu, x), silu),
    ("tanh", |k, x| k.activation(Activation::Tanh, x), tanh),
    ("relu", |k, x| k.activation(Activation::Relu, x), relu),
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

fn definition_of(activation: Activation) -> Definition {
    match activation {
        Activation::Identity => |x| x,
        Activation::Relu => relu,
        Activation::GeluErf => gelu_erf,
        Activation::GeluTanh => gelu_tanh,
        Activation::Silu => silu,
        Activation::Sigmoid => sigmoid,
        Activation::Tanh => tanh,
    }
}

/// The activations of every backend, a GPU's own text of the functions among them.
#[test]
fn the_activations_of_every_backend_are_their_definitions() {
    let x = inputs();
    for activation in ACTIVATIONS {
        let expected: Vec<f32> = x.iter().map(|x| definition_of(activation)(*x)).collect();
        each_backend("activations of every backend", |backend, c| {
            let mut y = c.upload(&x).unwrap();
            c.activate(&mut y, activation).unwrap();
            let mut found = vec![0.0; x.len()];
            c.read(&y, &mut found).unwrap();
            let differs = (0..x.len()).find(|&i| class(found[i]) != class(expected[i]));
            if let Some(i) = differs {
                panic!("{backend} {activation:?}({:e}): {:e} for {:e}", x[i], found[i], expected[i]);
            }
        });
    }
}

/// The exponential of every backend as softmax has it: of two keys, one scores 0, the other x <= 0.
#[test]
fn the_exponential_of_every_backend_is_its_definition() {
    let mut x: Vec<f32> = inputs().into_iter().filter(|x| *x <= 0.0).collect();
    x.truncate(x.len() / 2 * 2);
    let weights = |x: &f32| {
        let e = if *x < -69.0 { 0.0 } else { exp(*x) };
        let inverse = 1.0 / (1.0 + e);
        [inverse, e * inverse]
    };
    let expected: Vec<f32> = x.iter().flat_map(weights).collect();
    let scores: Vec<f32> = x.iter().flat_map(|x| [0.0, *x]).collect();
    // A head has two rows, of two keys each.
    let heads = x.len() / 2;
    each_backend("exponential of every backend", |backend, c| {
        let segments = Segments::from_lengths([2]);
        let positions = c.upload_index(&[0, 1]).unwrap();
        let shape = AttentionShape {
            segments: &segments,
            heads,
            kv_heads: heads,
            head_dim: 1,
            scale: 1.0,
            positions: &positions,
            bias: ScoreBias::None,
            window: KeyWindow::ALL,
            softcap: None,
        };
        let mut y = c.upload(&scores).unwrap();
        c.softmax(&mut y, &shape).unwrap();
        let mut found = vec![0.0; scores.len()];
        c.read(&y, &mut found).unwrap();
        let differs = (0..found.len()).find(|&i| class(found[i]) != class(expected[i]));
        if let Some(i) = differs {
            panic!("{backend} softmax of 0 and {:e}: {:e} for {:e}", x[i / 2], found[i], expected[i]);
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
