//! The elementary functions against float64.

use std::f64::consts::{PI, SQRT_2};

use kin_infer::cpu::{Kernels, available};
use kin_infer::gpu::Activation;
use rayon::prelude::*;

use super::definition::{class, scalar};

/// A function, its float64 reference, and the worst errors it is known to have over all finite inputs.
struct Function {
    name: &'static str,
    activation: Option<Activation>,
    reference: fn(f64) -> f64,
    /// In units of the last place of the exact result, where that result is 2^-118 or more.
    ulp: f64,
    /// Of the results below that.
    tiny: f64,
}

impl Function {
    fn apply(&self, kernels: &Kernels, x: &mut [f32]) {
        match self.activation {
            None => kernels.exp(x),
            Some(kind) => kernels.activation(kind, x),
        }
    }
}

const EXP: Function = Function { name: "exp", activation: None, reference: libm::exp, ulp: 1.1, tiny: 3e-43 };
const GELU_ERF: Function = Function {
    name: "gelu_erf",
    activation: Some(Activation::GeluErf),
    reference: |x| x * 0.5 * libm::erfc(-x / SQRT_2),
    ulp: 7.5,
    tiny: 1e-42,
};
const GELU_TANH: Function = Function {
    name: "gelu_tanh",
    activation: Some(Activation::GeluTanh),
    reference: |x| x / (1.0 + libm::exp(-2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x))),
    ulp: 180.0,
    tiny: 4e-41,
};
const SILU: Function = Function {
    name: "silu",
    activation: Some(Activation::Silu),
    reference: |x| x / (1.0 + libm::exp(-x)),
    ulp: 3.1,
    tiny: 4e-43,
};
const SIGMOID: Function = Function {
    name: "sigmoid",
    activation: Some(Activation::Sigmoid),
    reference: |x| 1.0 / (1.0 + libm::exp(-x)),
    ulp: 2.5,
    tiny: 3e-43,
};
const TANH: Function =
    Function { name: "tanh", activation: Some(Activation::Tanh), reference: libm::tanh, ulp: 1.4, tiny: 1e-45 };

const FUNCTIONS: [&Function; 6] = [&EXP, &GELU_ERF, &GELU_TANH, &SILU, &SIGMOID, &TANH];

/// Below it results are judged by their absolute error: near the denormals an ulp is a larger and larger part of them.
const TINY: f64 = 3.009265538105056e-36; // 2^-118

/// The distance of neighbouring f32 values at `x`.
fn ulp(x: f64) -> f64 {
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    libm::ldexp(1.0, exponent.clamp(-126, 127) - 23)
}

/// The largest errors seen, and where.
#[derive(Clone, Copy, Default)]
struct Worst {
    ulp: (f64, f32),
    tiny: (f64, f32),
    absolute: (f64, f32),
}

impl Worst {
    fn see(&mut self, f: &Function, x: f32, y: f32) {
        let exact = (f.reference)(f64::from(x));
        if exact.abs() >= f64::from(f32::MAX) + ulp(f64::from(f32::MAX)) / 2.0 {
            assert!(f64::from(y) == exact.signum() * f64::INFINITY, "{}({x:e}) = {y:e}, beyond f32", f.name);
            return;
        }
        // Next to the largest f32 an error of an ulp may overflow.
        let found =
            if y.is_infinite() { f64::from(f32::MAX.copysign(y)) + ulp(f64::from(f32::MAX)) } else { f64::from(y) };
        let error = (found - exact).abs();
        assert!(!error.is_nan(), "{}({x:e}) = {y:e}, not {exact:e}", f.name);
        let seen = if exact.abs() >= TINY { error / ulp(exact) } else { 0.0 };
        self.take(Self {
            ulp: (seen, x),
            tiny: (if exact.abs() < TINY { error } else { 0.0 }, x),
            // An absolute error says something where results are bounded; beyond 1 it is relative to the result.
            absolute: (error / exact.abs().max(1.0), x),
        });
    }

    fn take(&mut self, o: Self) {
        let larger = |a: (f64, f32), b: (f64, f32)| if b.0 > a.0 { b } else { a };
        *self = Self {
            ulp: larger(self.ulp, o.ulp),
            tiny: larger(self.tiny, o.tiny),
            absolute: larger(self.absolute, o.absolute),
        };
    }

    fn report(&self, f: &Function) {
        println!(
            "{}: worst {:.3} ulp at {:e}; {:.2e} at {:e} for results below 2^-118; {:.2e} at {:e}, of max(1, |result|)",
            f.name, self.ulp.0, self.ulp.1, self.tiny.0, self.tiny.1, self.absolute.0, self.absolute.1
        );
        assert!(self.ulp.0 <= f.ulp, "{}: {} ulp", f.name, self.ulp.0);
        assert!(self.tiny.0 <= f.tiny, "{}: {:e}", f.name, self.tiny.0);
    }
}

#[test]
fn within_the_bounds_on_a_dense_sample() {
    // Every 4099th bit pattern, and all around the seams.
    let seams = [0.625f32, 1.220_703_1e-4, 15.0, 88.722_84, 87.336_54, 88.0, 103.972_08, 105.0, 110.0, 9.3, 13.0];
    let around = seams.iter().flat_map(|s| (s.to_bits() - 300..s.to_bits() + 300).flat_map(|b| [b, b | 1 << 31]));
    let inputs: Vec<f32> = (0..=u32::MAX).step_by(4099).chain(around).map(f32::from_bits).collect();
    let inputs: Vec<f32> = inputs.into_iter().filter(|x| x.is_finite()).collect();
    for f in FUNCTIONS {
        let mut outputs = inputs.clone();
        f.apply(available()[0], &mut outputs);
        let mut worst = Worst::default();
        inputs.iter().zip(&outputs).for_each(|(x, y)| worst.see(f, *x, *y));
        worst.report(f);
    }
}

/// All 2^32 inputs: every instruction set gives the scalar kernel's bits, and the bounds hold.
fn exhaustive(f: &Function) {
    const CHUNK: u64 = 1 << 16;
    let chunk = |first: u64| {
        let x: Vec<f32> = (first..first + CHUNK).map(|b| f32::from_bits(b as u32)).collect();
        let mut defined = x.clone();
        f.apply(scalar(), &mut defined);
        for kernels in available() {
            let mut y = x.clone();
            f.apply(kernels, &mut y);
            let differs = (0..y.len()).find(|&i| class(y[i]) != class(defined[i]));
            assert!(differs.is_none(), "{} {} of {:?}", kernels.name(), f.name, differs.map(|i| x[i]));
        }
        let mut worst = Worst::default();
        x.iter().zip(&defined).filter(|(x, _)| x.is_finite()).for_each(|(x, y)| worst.see(f, *x, *y));
        worst
    };
    let merge = |mut a: Worst, b: Worst| {
        a.take(b);
        a
    };
    let worst = (0..1u64 << 16).into_par_iter().map(|i| chunk(i * CHUNK)).reduce(Worst::default, merge);
    worst.report(f);
}

macro_rules! exhaustive_tests {
    ($($name:ident = $function:expr;)*) => {
        $(#[test]
        #[ignore = "takes minutes: all 2^32 inputs"]
        fn $name() {
            exhaustive(&$function);
        })*
    };
}

exhaustive_tests! {
    exhaustive_exp = EXP;
    exhaustive_gelu_erf = GELU_ERF;
    exhaustive_gelu_tanh = GELU_TANH;
    exhaustive_silu = SILU;
    exhaustive_sigmoid = SIGMOID;
    exhaustive_tanh = TANH;
}

#[test]
fn fixture_values() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gelu.json")).unwrap();
    let fixture: serde_json::Value = serde_json::from_str(&text).unwrap();
    let column =
        |name: &str| -> Vec<f64> { fixture[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect() };
    let x: Vec<f32> = column("x").iter().map(|x| *x as f32).collect();
    for f in FUNCTIONS.iter().filter(|f| f.activation.is_some()) {
        let mut y = x.clone();
        f.apply(available()[0], &mut y);
        for ((x, y), exact) in x.iter().zip(&y).zip(column(f.name)) {
            let error = (f64::from(*y) - exact).abs();
            let bound = if exact.abs() < TINY { f.tiny } else { f.ulp * ulp(exact) };
            assert!(error <= bound, "{}({x}) = {y:e}, exactly {exact:e}", f.name);
        }
    }
}

/// Far from zero the functions are their limits, and never NaN.
#[test]
fn limits() {
    const INF: f32 = f32::INFINITY;
    let limits: [(&Function, [f32; 6]); 6] = [
        // at 11, 50, inf, -50 (NaN: not a limit yet), -200, -inf
        (&EXP, [f32::NAN, f32::NAN, INF, f32::NAN, 0.0, 0.0]),
        (&GELU_ERF, [11.0, 50.0, INF, -0.0, -0.0, -0.0]),
        (&GELU_TANH, [11.0, 50.0, INF, -0.0, -0.0, -0.0]),
        (&SILU, [f32::NAN, 50.0, INF, f32::NAN, -0.0, -0.0]),
        (&SIGMOID, [f32::NAN, 1.0, 1.0, f32::NAN, 0.0, 0.0]),
        (&TANH, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]),
    ];
    for kernels in available() {
        for (f, expected) in &limits {
            let mut y = [11.0, 50.0, INF, -50.0, -200.0, -INF];
            f.apply(kernels, &mut y);
            assert!(y.iter().all(|y| !y.is_nan()), "{} {}: {y:?}", kernels.name(), f.name);
            for (y, e) in y.iter().zip(expected).filter(|(_, e)| !e.is_nan()) {
                assert_eq!(y.to_bits(), e.to_bits(), "{} {}: {y:e}, not {e:e}", kernels.name(), f.name);
            }
        }
        let mut y = [-11.0];
        kernels.activation(Activation::GeluErf, &mut y);
        assert!(y[0] < 0.0 && y[0] > -1e-26, "{:e}", y[0]);
    }
}
