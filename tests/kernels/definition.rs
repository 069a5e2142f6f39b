//! The numerics contract (docs/numerics.md) written down a second time, as plainly as it can be, for tests to compare
//! with bit for bit; and what the comparisons share.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};
use kin_infer::cpu::{self, CpuCompute, Kernels};
use kin_infer::gpu::{Activation, GpuCompute};
use kin_infer::weights::{self, Checkpoint, Tensor};
use safetensors::tensor::{Dtype, TensorView};

use crate::{devices, emulated};

/// The instruction sets with kernels on this architecture.
pub const POSSIBLE: &[&str] = if cfg!(target_arch = "x86_64") {
    &["scalar", "avx2", "avx512"]
} else if cfg!(target_arch = "aarch64") {
    &["scalar", "neon"]
} else {
    &["scalar"]
};

pub const ACTIVATIONS: [Activation; 7] = [
    Activation::Identity,
    Activation::Relu,
    Activation::GeluErf,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::Sigmoid,
    Activation::Tanh,
];

pub fn scalar() -> &'static Kernels {
    cpu::by_name("scalar").unwrap()
}

/// Runs `check` with the kernels of each instruction set by name, and prints which ones the CPU lacks.
pub fn each_isa(test: &str, mut check: impl FnMut(&'static Kernels)) {
    let names: Vec<_> = cpu::available().iter().map(|k| k.name()).collect();
    assert!(names.iter().all(|name| POSSIBLE.contains(name)), "{names:?} has names that the tests do not know");
    let (ran, skipped): (Vec<&str>, Vec<&str>) = POSSIBLE.iter().partition(|name| names.contains(name));
    for name in &ran {
        check(cpu::by_name(name).unwrap());
    }
    if !skipped.is_empty() {
        use std::io::Write;
        // Past the harness' capture: a skip is seen also in a green run.
        let _ = writeln!(
            std::io::stderr(),
            "{test}: ran {}, {} skipped: {}",
            ran.join(" "),
            skipped.len(),
            skipped.join(" ")
        );
    }
}

/// Runs `check` with the CPU backend on each instruction set, and with the GPU backend over the emulated device, where
/// this build has it: each time in another order of threads, and with small or large tiles; and over this machine's GPUs.
#[track_caller]
pub fn each_backend(test: &str, mut check: impl FnMut(&str, &dyn GpuCompute)) {
    each_isa(test, |kernels| check(kernels.name(), &CpuCompute::with_kernels(kernels)));
    if emulated::available(test) {
        let turn = turn(test, std::panic::Location::caller());
        let (order, units) = (emulated::ORDERS[turn % 3], if turn.is_multiple_of(2) { 1 } else { 64 });
        check(&format!("GPU, {order:?}, {units} units"), &emulated::backend(order, units));
    }
    for gpu in devices::gpus(test) {
        check(&gpu.name, &*gpu.compute);
    }
}

/// A number for each call from one place with one name, the same in every run, whatever other tests run beside: it begins
/// with the name's, and goes up by one.
fn turn(test: &str, caller: &'static std::panic::Location) -> usize {
    type Calls = BTreeMap<(String, u32), usize>;
    static CALLS: Mutex<Calls> = Mutex::new(Calls::new());
    let mut calls = CALLS.lock().unwrap();
    let count = calls.entry((test.to_string(), caller.line())).or_default();
    *count += 1;
    test.bytes().map(usize::from).sum::<usize>() + *count
}

/// Tests of these functions on the CPU backend, and on the GPU backend over the emulated device and this machine's GPUs.
macro_rules! on_every_backend {
    ($($name:ident),+) => {
        mod on_the_cpu {
            $(#[test]
            fn $name() {
                super::$name(&kin_infer::cpu::CpuCompute::new().unwrap());
            })+
        }

        mod on_the_gpu {
            $(#[test]
            fn $name() {
                let test = concat!(module_path!(), "::", stringify!($name));
                if crate::emulated::available(test) {
                    super::$name(&crate::emulated::backend(crate::emulated::Order::Ascending, 64));
                }
                for gpu in crate::devices::gpus(test) {
                    super::$name(&*gpu.compute);
                }
            })+
        }
    };
}
pub(crate) use on_every_backend;

/// The bits of a value; all NaN are one.
pub fn class(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

#[track_caller]
pub fn same(case: impl Fn() -> String, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{}: length", case());
    if let Some(i) = (0..found.len()).find(|&i| class(found[i]) != class(expected[i])) {
        let (f, e) = (found[i], expected[i]);
        panic!("{}: [{i}] is {f:e} ({:08x}), defined as {e:e} ({:08x})", case(), f.to_bits(), e.to_bits());
    }
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1, with 23 significant bits.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub fn vector(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * scale).collect()
    }
}

/// Element i goes to lane i mod 32, in ascending order, padding included; lane i then takes lane i + 16, 8, 4, 2, 1.
fn lanes(len: usize, mut term: impl FnMut(f32, Option<usize>) -> f32) -> f32 {
    let mut lanes = [0f32; 32];
    for i in 0..len.next_multiple_of(32) {
        lanes[i % 32] = term(lanes[i % 32], (i < len).then_some(i));
    }
    for width in [16, 8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

pub fn sum(x: &[f32]) -> f32 {
    lanes(x.len(), |acc, i| acc + i.map_or(0.0, |i| x[i]))
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    lanes(a.len(), |acc, i| i.map_or(0.0, |i| a[i]).mul_add(i.map_or(0.0, |i| b[i]), acc))
}

pub fn activation(kind: Activation, x: f32) -> f32 {
    let mut one = [x];
    match kind {
        Activation::Identity => {}
        Activation::Relu => one[0] = if x < 0.0 { 0.0 } else { x },
        kind => scalar().activation(kind, &mut one),
    }
    one[0]
}

/// act(x + bias) * factor + residual: three roundings, each operand optional.
pub fn finish(
    x: &[f32],
    bias: Option<&[f32]>,
    kind: Activation,
    factor: Option<&[f32]>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let value = |i: usize| {
        let biased = bias.map_or(x[i], |b| x[i] + b[i]);
        let active = activation(kind, biased);
        let product = factor.map_or(active, |f| active * f[i]);
        residual.map_or(product, |r| product + r[i])
    };
    (0..x.len()).map(value).collect()
}

/// e^(z - top); +0 below e^-69.
pub fn weights(z: &[f32], top: f32) -> Vec<f32> {
    let mut e: Vec<f32> = z.iter().map(|z| z - top).collect();
    scalar().exp(&mut e);
    e.iter_mut().zip(z).filter(|(_, z)| **z - top < -69.0).for_each(|(e, _)| *e = 0.0);
    e
}

pub fn softmax(x: &[f32], scale: f32, bias: Option<&[f32]>) -> Vec<f32> {
    let z: Vec<f32> = (0..x.len()).map(|i| bias.map_or(x[i] * scale, |b| x[i].mul_add(scale, b[i]))).collect();
    let top = z.iter().fold(f32::NEG_INFINITY, |top, &z| if top < z { z } else { top });
    let e = weights(&z, top);
    let inverse = 1.0 / sum(&e);
    e.iter().map(|e| e * inverse).collect()
}

pub fn layer_norm(x: &[f32], gamma: &[f32], beta: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mean = sum(x) / x.len() as f32;
    let d: Vec<f32> = x.iter().map(|x| x - mean).collect();
    let inverse = inverse_root(dot(&d, &d) / x.len() as f32 + eps);
    let value = |i: usize| beta.map_or(d[i] * inverse * gamma[i], |b| (d[i] * inverse).mul_add(gamma[i], b[i]));
    (0..x.len()).map(value).collect()
}

pub fn rms_norm(x: &[f32], gamma: &[f32], eps: f32) -> Vec<f32> {
    let inverse = inverse_root(dot(x, x) / x.len() as f32 + eps);
    x.iter().zip(gamma).map(|(x, g)| x * inverse * g).collect()
}

pub fn l2_normalize(x: &[f32]) -> Vec<f32> {
    let norm = dot(x, x).sqrt();
    let norm = if norm == f32::INFINITY { f32::NAN } else { norm };
    let norm = if norm < 1e-12 { 1e-12 } else { norm };
    x.iter().map(|x| x / norm).collect()
}

/// One output element of a product: blocks of 512, each one FMA chain from +0, added in order.
pub fn chain(len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let block = |k0: usize| (k0..len.min(k0 + 512)).fold(0f32, |chain, k| a(k).mul_add(b(k), chain));
    let mut result = block(0);
    for k0 in (512..len).step_by(512) {
        result += block(k0);
    }
    result
}

/// x[rows, k] w[n, k]^T.
pub fn product(x: &[f32], w: &[f32], (rows, n, k): (usize, usize, usize)) -> Vec<f32> {
    let element = |at: usize| {
        let (row, column) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
        chain(k, |k| row[k], |k| column[k])
    };
    (0..rows * n).map(element).collect()
}

/// The integers and scales of Q8_0 or Q4_0 blocks, as their bytes say.
fn integers(bytes: &[u8], kind: weights::Dtype) -> (Vec<i32>, Vec<f32>) {
    let (mut integers, mut scales) = (Vec::new(), Vec::new());
    for block in bytes.chunks(kind.size()) {
        scales.push(f16::from_le_bytes([block[0], block[1]]).to_f32());
        match kind {
            weights::Dtype::Q8_0 => integers.extend(block[2..].iter().map(|b| i32::from(*b as i8))),
            _ => integers.extend((0..32).map(|i| i32::from(block[2 + i % 16] >> (i / 16 * 4) & 15) - 8)),
        }
    }
    (integers, scales)
}

/// A block of activations as integers, and their scale.
fn quantised(x: &[f32]) -> (Vec<i32>, f32) {
    let m = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap());
    match m {
        m if !m.is_finite() => (vec![0; 32], f32::NAN),
        m if m < 1e-30 => (vec![0; 32], 0.0),
        m => (x.iter().map(|v| (v * (127.0 / m)).round_ties_even() as i32).collect(), m / 127.0),
    }
}

/// x[rows, k] W^T over the blocks of W [n, k].
pub fn quantised_product(x: &[f32], w: &[u8], kind: weights::Dtype, (rows, n, k): (usize, usize, usize)) -> Vec<f32> {
    let (w, e) = integers(w, kind);
    let x: Vec<(Vec<i32>, f32)> = x.chunks(32).map(quantised).collect();
    let blocks = k / 32;
    let element = |at: usize| {
        let (row, column) = (at / n * blocks, at % n * blocks);
        let term = |chain: f32, b: usize| {
            let (q, d) = &x[row + b];
            let s: i32 = q.iter().zip(&w[(column + b) * 32..]).map(|(q, w)| q * w).sum();
            (s as f32).mul_add(e[column + b] * d, chain)
        };
        let chain = |first: usize| (first..blocks.min(first + 16)).fold(0f32, term);
        (16..blocks).step_by(16).fold(chain(0), |c, first| c + chain(first))
    };
    (0..rows * n).map(element).collect()
}

/// A folder for checkpoint files, removed when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tensor of these bytes.
fn written(bytes: &[u8], shape: &[usize], dtype: Dtype, metadata: Option<HashMap<String, String>>) -> Tensor {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("kin-infer-kernels-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = Folder(std::env::temp_dir().join(unique));
    std::fs::create_dir(&folder.0).unwrap();
    let file = folder.0.join("t.safetensors");
    let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    safetensors::serialize_to_file(BTreeMap::from([("t", view)]), metadata, Path::new(&file)).unwrap();
    Checkpoint::open_file(&file).unwrap().tensor("t").unwrap().clone()
}

/// A matrix of these values in blocks, and the blocks.
pub fn block_tensor(values: &[f32], [n, k]: [usize; 2], kind: weights::Dtype) -> (Tensor, Vec<u8>) {
    let mut bytes = vec![0; n * k / 32 * kind.size()];
    weights::blocks::quantise(kind, values, &mut bytes).unwrap();
    (blocks_as_tensor(&bytes, [n, k], kind), bytes)
}

/// A matrix of these blocks.
pub fn blocks_as_tensor(bytes: &[u8], [n, k]: [usize; 2], kind: weights::Dtype) -> Tensor {
    let blocks = format!(r#"{{"t": {{"dtype": "{kind}", "shape": [{n}, {k}]}}}}"#);
    let metadata = HashMap::from([("kin_infer.blocks".to_string(), blocks)]);
    written(bytes, &[bytes.len()], Dtype::U8, Some(metadata))
}

/// A tensor of these values, rounded to `dtype`, and the values it then holds.
pub fn tensor(values: &[f32], shape: &[usize], dtype: Dtype) -> (Tensor, Vec<f32>) {
    let (bytes, held): (Vec<u8>, Vec<f32>) = match dtype {
        Dtype::F32 => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
        Dtype::F16 => {
            let halves: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
            (halves.iter().flat_map(|h| h.to_le_bytes()).collect(), halves.iter().map(|h| h.to_f32()).collect())
        }
        Dtype::BF16 => {
            let halves: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
            (halves.iter().flat_map(|h| h.to_le_bytes()).collect(), halves.iter().map(|h| h.to_f32()).collect())
        }
        other => panic!("{other:?}"),
    };
    (written(&bytes, shape, dtype, None), held)
}

/// Runs `f` with this many threads in the current pool.
pub fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

/// An overflowed sum of squares makes the row NaN.
fn inverse_root(x: f32) -> f32 {
    if x == f32::INFINITY { f32::NAN } else { 1.0 / x.sqrt() }
}
