//! The row kernels and the matrix product of every instruction set this CPU has, bit for bit against the numerics
//! contract, and the accuracy of the elementary functions.

#[path = "kernels/accuracy.rs"]
mod accuracy;
#[path = "kernels/definition.rs"]
mod definition;
mod devices;
mod emulated;
#[path = "kernels/functions.rs"]
mod functions;
#[path = "kernels/matmul.rs"]
mod matmul;
#[path = "kernels/quantised.rs"]
mod quantised;
#[path = "kernels/widened.rs"]
mod widened;

use definition::{ACTIVATIONS, Random, each_isa, same, scalar};
use kin_infer::cpu::{Finish, Kernels};
use kin_infer::gpu::Activation;

/// Zeros, denormals, the ends of the range, and the seams of the elementary functions.
const SPECIAL: [f32; 44] = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
    1.0,
    -1.0,
    0.625,
    0.625_000_1,
    -0.625,
    -0.625_000_1,
    1.220_703_1e-4,
    -1.220_703_1e-4,
    15.0,
    15.000_001,
    -15.0,
    -15.000_001,
    88.722_84,
    88.722_85,
    89.5,
    -87.336_54,
    -88.0,
    -88.8,
    -103.0,
    -103.972_08,
    -103.972_09,
    -105.0,
    -110.0,
    -111.0,
    0.346_573_6,
    -0.346_573_6,
    -13.0,
];

const LENGTHS: std::ops::RangeInclusive<usize> = 0..=3 * 32 + 1;

/// Rows of every kind the reductions meet, by name.
fn rows(len: usize, random: &mut Random) -> Vec<(&'static str, Vec<f32>)> {
    let plain = random.vector(len, 3.0);
    let with = |value: f32, random: &mut Random| {
        let mut row = random.vector(len, 3.0);
        if len > 0 {
            row[random.bits() as usize % len] = value;
        }
        row
    };
    vec![
        ("wide", (0..len).map(|_| random.unit() * 2f32.powi((random.bits() % 60) as i32 - 30)).collect()),
        ("denormal", random.vector(len, 1e-39)),
        ("huge", random.vector(len, 3e38)),
        ("zero", (0..len).map(|_| if random.bits().is_multiple_of(2) { 0.0 } else { -0.0 }).collect()),
        ("-0", vec![-0.0; len]),
        ("equal", vec![-1.7; len]),
        ("-inf", vec![f32::NEG_INFINITY; len]),
        ("one NaN", with(f32::NAN, random)),
        ("one inf", with(f32::INFINITY, random)),
        ("one -inf", with(f32::NEG_INFINITY, random)),
        ("special", (0..len).map(|_| SPECIAL[random.bits() as usize % SPECIAL.len()]).collect()),
        ("plain", plain),
    ]
}

/// Calls `check(case, row)` for each length and kind of row.
fn each_row(seed: u64, mut check: impl FnMut(&str, &[f32], &mut Random)) {
    let mut random = Random::new(seed);
    for len in LENGTHS.chain([384, 768, 1000]) {
        for (kind, row) in rows(len, &mut random) {
            check(&format!("{kind} row of {len}"), &row, &mut random);
        }
    }
}

/// What `kernel` makes of `x` from each alignment: the same, and nothing written around it.
fn in_place(case: impl Fn() -> String, x: &[f32], mut kernel: impl FnMut(&mut [f32])) -> Vec<f32> {
    let mut first = None;
    for offset in 0..4 {
        let mut memory = vec![7.25f32; x.len() + 24];
        memory[offset..][..x.len()].copy_from_slice(x);
        kernel(&mut memory[offset..][..x.len()]);
        let outside = memory[..offset].iter().chain(&memory[offset + x.len()..]);
        assert!(outside.copied().all(|v| v == 7.25), "{}: wrote outside of the row", case());
        let found = memory[offset..][..x.len()].to_vec();
        match &first {
            None => first = Some(found),
            Some(first) => same(|| format!("{}, moved by {offset}", case()), &found, first),
        }
    }
    first.unwrap_or_default()
}

/// A copy of `x` that starts `offset` values into its allocation.
fn moved(x: &[f32], offset: usize) -> Vec<f32> {
    [&vec![0.0; offset], x].concat()
}

fn check_map(test: &str, defined: impl Fn(&mut [f32]), kernel: impl Fn(&Kernels, &mut [f32])) {
    each_isa(test, |k| {
        let case = |row: &str| format!("{} {test}, {row}", k.name());
        each_row(1, |name, row, _| {
            let mut expected = row.to_vec();
            expected.chunks_mut(1).for_each(&defined);
            same(|| case(name), &in_place(|| case(name), row, |x| kernel(k, x)), &expected);
        });
        let mut expected = SPECIAL;
        expected.chunks_mut(1).for_each(&defined);
        same(|| case("specials"), &in_place(|| case("specials"), &SPECIAL, |x| kernel(k, x)), &expected);
    });
}

#[test]
fn exp_is_defined_value_by_value() {
    check_map("exp", |x| scalar().exp(x), |k, x| k.exp(x));
}

#[test]
fn activations_are_defined_value_by_value() {
    for kind in ACTIVATIONS {
        let name = format!("{kind:?}");
        check_map(&name, |x| x[0] = definition::activation(kind, x[0]), |k, x| k.activation(kind, x));
    }
}

#[test]
fn finish_adds_bias_activates_multiplies_adds_residual() {
    each_isa("finish", |k| {
        each_row(2, |name, row, random| {
            let [bias, residual, factor] = [(); 3].map(|()| random.vector(row.len(), 2.0));
            let activation = ACTIVATIONS[random.bits() as usize % 7];
            for options in 0..8 {
                let bias = (options & 1 != 0).then_some(&bias[..]);
                let residual = (options & 2 != 0).then_some(&residual[..]);
                let factor = (options & 4 != 0).then_some(&factor[..]);
                let case = || format!("{} finish {activation:?} {options}, {name}", k.name());
                let found = in_place(case, row, |x| k.finish(x, &Finish { bias, activation, factor, residual }));
                same(case, &found, &definition::finish(row, bias, activation, factor, residual));
            }
        });
    });
}

/// A factor that is not finite, or zero: multiplied like any other value.
#[test]
fn finish_multiplies_every_kind_of_factor() {
    each_isa("finish", |k| {
        each_row(9, |name, row, random| {
            let x = random.vector(row.len(), 2.0);
            let finish = Finish { bias: None, activation: Activation::Identity, factor: Some(row), residual: Some(&x) };
            let case = || format!("{} finish of factors, {name}", k.name());
            let expected: Vec<f32> = x.iter().zip(row).map(|(x, f)| x * f + x).collect();
            same(case, &in_place(case, &x, |x| k.finish(x, &finish)), &expected);
        });
    });
}

#[test]
fn add_and_mul_are_one_operation() {
    each_isa("add, mul", |k| {
        each_row(3, |name, row, random| {
            let mut other = random.vector(row.len(), 2.0);
            for y in &mut other {
                if random.bits() % 8 == 0 {
                    *y = SPECIAL[random.bits() as usize % SPECIAL.len()];
                }
            }
            let of = |f: fn(f32, f32) -> f32| row.iter().zip(&other).map(|(x, y)| f(*x, *y)).collect::<Vec<_>>();
            let case = || format!("{} add or mul, {name}", k.name());
            same(case, &in_place(case, row, |x| k.add(x, &other)), &of(|x, y| x + y));
            same(case, &in_place(case, row, |x| k.mul(x, &other)), &of(|x, y| x * y));
        });
    });
}

#[test]
fn dot_keeps_32_chains() {
    each_isa("dot", |k| {
        each_row(4, |name, row, random| {
            let other = random.vector(row.len(), 2.0);
            for offset in 0..4 {
                let (a, b) = (moved(row, offset), moved(&other, 3 - offset));
                let found = k.dot(&a[offset..], &b[3 - offset..]);
                same(|| format!("{} dot, {name}", k.name()), &[found], &[definition::dot(row, &other)]);
            }
        });
    });
}

#[test]
fn softmax_follows_the_contract() {
    each_isa("softmax", |k| {
        each_row(5, |name, row, random| {
            let bias = random.vector(row.len(), 2.0);
            for (scale, bias) in [(1.0, None), (0.176_776_7, None), (0.176_776_7, Some(&bias[..])), (-3.0, Some(row))] {
                let case = || format!("{} softmax * {scale}, {name}", k.name());
                let found = in_place(case, row, |x| k.softmax(x, scale, bias));
                same(case, &found, &definition::softmax(row, scale, bias));
            }
        });
        // A masked key weighs nothing; a row of -inf only has no weights to give.
        let mut x = [0.5, f32::NEG_INFINITY, 0.5];
        k.softmax(&mut x, 1.0, None);
        assert_eq!(x, [0.5, 0.0, 0.5], "{}", k.name());
        let mut x = [f32::NEG_INFINITY; 33];
        k.softmax(&mut x, 1.0, None);
        assert!(x.iter().all(|v| v.is_nan()), "{}: {x:?}", k.name());
    });
}

#[test]
fn softmax_of_many_rows_is_that_of_each() {
    const BETWEEN: f32 = 7.25;
    each_isa("softmax_rows", |k| {
        let mut random = Random::new(12);
        for len in LENGTHS.chain([384, 1000]) {
            let kinds: Vec<_> = (0..3).flat_map(|_| rows(len, &mut random)).collect();
            let stride = len + [1, 0, 5][len % 3] + usize::from(len == 0);
            for scale in [1.0, 0.176_776_7, 1e30, 1e-42, 0.0, -3.0, f32::NAN] {
                // Fewer rows than any register has lanes, and more than all have.
                for count in [len % 15 + 1, kinds.len()] {
                    let mut x = vec![BETWEEN; count * stride];
                    x.chunks_mut(stride).zip(&kinds).for_each(|(x, (_, row))| x[..len].copy_from_slice(row));
                    k.softmax_rows(&mut x, len, stride, scale);
                    for (r, (x, (kind, row))) in x.chunks(stride).zip(&kinds).enumerate() {
                        let case = || format!("{} softmax * {scale} of row {r} of {count}, {kind}, {len}", k.name());
                        same(case, &x[..len], &definition::softmax(row, scale, None));
                        assert!(x[len..].iter().all(|v| *v == BETWEEN), "{}: written between rows", case());
                    }
                }
            }
        }
    });
}

#[test]
fn layer_norm_follows_the_contract() {
    each_isa("layer_norm", |k| {
        each_row(6, |name, row, random| {
            let (gamma, beta) = (random.vector(row.len(), 2.0), random.vector(row.len(), 2.0));
            for (beta, eps) in [(None, 1e-12), (Some(&beta[..]), 1e-12), (Some(&beta[..]), 1e-5)] {
                let case = || format!("{} layer_norm {eps}, {name}", k.name());
                let found = in_place(case, row, |x| k.layer_norm(x, &gamma, beta, eps));
                same(case, &found, &definition::layer_norm(row, &gamma, beta, eps));
            }
        });
    });
}

#[test]
fn rms_norm_follows_the_contract() {
    each_isa("rms_norm", |k| {
        each_row(7, |name, row, random| {
            let gamma = random.vector(row.len(), 2.0);
            let case = || format!("{} rms_norm, {name}", k.name());
            let found = in_place(case, row, |x| k.rms_norm(x, &gamma, 1e-6));
            same(case, &found, &definition::rms_norm(row, &gamma, 1e-6));
        });
    });
}

#[test]
fn l2_normalize_follows_the_contract() {
    each_isa("l2_normalize", |k| {
        each_row(8, |name, row, _| {
            let case = || format!("{} l2_normalize, {name}", k.name());
            let found = in_place(case, row, |x| k.l2_normalize(x));
            same(case, &found, &definition::l2_normalize(row));
        });
        let mut zeros = [0.0, -0.0];
        k.l2_normalize(&mut zeros);
        same(|| "zeros stay".to_string(), &zeros, &[0.0, -0.0]);
    });
}

#[test]
fn signed_zero_and_nan() {
    each_isa("zero and NaN", |k| {
        for kind in ACTIVATIONS {
            let mut x = [0.0, -0.0, f32::NAN];
            k.activation(kind, &mut x);
            let expected = if kind == Activation::Sigmoid { [0.5, 0.5, f32::NAN] } else { [0.0, -0.0, f32::NAN] };
            same(|| format!("{} {kind:?}", k.name()), &x, &expected);
        }
        let mut x = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        k.exp(&mut x);
        same(|| format!("{} exp", k.name()), &x, &[1.0, 1.0, f32::NAN, f32::INFINITY, 0.0]);
    });
}
