//! Row operations, written once over [`Vector`]: elementwise maps, reductions and norms.
//!
//! Reductions keep [`VIRTUAL_LANES`] partial sums: element i goes to lane i mod 32, in ascending order, the row padded
//! with +0 to a multiple of 32; lanes are then folded by halving. The register width does not show in the result.
//!
//! # Safety
//! Every function here asks the same of its caller: the CPU has V's instruction set, pointers are valid for the values
//! touched, and operands have the lengths that the safe methods of [`Kernels`](super::table::Kernels) assert.

use super::math;
use super::simd::{VIRTUAL_LANES, Vector};
use super::table::Finish;
use crate::gpu::Activation;

/// Evaluates `$body` for each register-sized piece `$n` long of `0..$len`, at `$i`: n is LANES but for the last piece.
///
/// A macro and not a function of a closure, here and below: a closure is compiled as a function of its own, without the
/// instruction set of the kernel around it, and its vector operations could become calls.
macro_rules! pieces {
    ($v:ty, $len:expr, |$i:ident, $n:ident| $body:expr) => {{
        let (len, mut at) = ($len, 0);
        while at + <$v>::LANES <= len {
            let ($i, $n) = (at, <$v>::LANES);
            $body;
            at += <$v>::LANES;
        }
        if at < len {
            let ($i, $n) = (at, len - at);
            $body;
        }
    }};
}

#[inline(always)]
pub(super) unsafe fn load<V: Vector>(p: *const f32, n: usize) -> V {
    // SAFETY: the caller vouches for `n` values at `p`.
    unsafe { if n == V::LANES { V::load(p) } else { V::load_part(p, n) } }
}

#[inline(always)]
pub(super) unsafe fn store<V: Vector>(v: V, p: *mut f32, n: usize) {
    // SAFETY: the caller vouches for `n` values at `p`.
    unsafe { if n == V::LANES { v.store(p) } else { v.store_part(p, n) } }
}

/// The first `n` lanes, the others of `rest`.
#[inline(always)]
pub(super) unsafe fn first<V: Vector>(v: V, n: usize, rest: V) -> V {
    // SAFETY: forwarded.
    unsafe { if n == V::LANES { v } else { v.first(n, rest) } }
}

/// Sum over `0..$len` of `$term`, which is `$acc` plus (or FMA) the n values at i; padding lanes add +0: the register whose
/// fold it is. Used inside `unsafe`, for the vector operations.
macro_rules! partial_sums {
    ($v:ty, $len:expr, |$acc:ident, $i:ident, $n:ident| $term:expr) => {{
        let (len, mut at) = ($len, 0);
        // As long as the one-lane instance needs.
        let mut acc = [<$v>::splat(0.0); VIRTUAL_LANES];
        let registers = VIRTUAL_LANES / <$v>::LANES;
        while at + VIRTUAL_LANES <= len {
            for (r, a) in acc.iter_mut().enumerate().take(registers) {
                let ($acc, $i, $n) = (*a, at + r * <$v>::LANES, <$v>::LANES);
                *a = $term;
            }
            at += VIRTUAL_LANES;
        }
        if at < len {
            // Every lane sees the padding, also where a whole register is padding: -0 + 0 is +0.
            for a in acc.iter_mut().take(registers) {
                let ($acc, $i, $n) = (*a, at, len.saturating_sub(at).min(<$v>::LANES));
                *a = $term;
                at += <$v>::LANES;
            }
        }
        let mut width = registers / 2;
        while width > 0 {
            for r in 0..width {
                acc[r] = acc[r].add(acc[r + width]);
            }
            width /= 2;
        }
        acc[0]
    }};
}

/// The sum of [`partial_sums`].
macro_rules! reduce {
    ($($what:tt)*) => { partial_sums!($($what)*).fold() };
}

pub(super) use {partial_sums, pieces};

#[inline(always)]
unsafe fn activate<V: Vector>(kind: Activation, x: V) -> V {
    // SAFETY: forwarded from the callers' contract.
    unsafe {
        match kind {
            Activation::Identity => x,
            Activation::Relu => math::relu(x),
            Activation::GeluErf => math::gelu_erf(x),
            Activation::GeluTanh => math::gelu_tanh(x),
            Activation::Silu => math::silu(x),
            Activation::Sigmoid => math::sigmoid(x),
            Activation::Tanh => math::tanh(x),
        }
    }
}

/// x[i] = f(x[i]).
#[inline(always)]
pub(crate) unsafe fn activation<V: Vector>(kind: Activation, x: &mut [f32]) {
    let p = x.as_mut_ptr();
    // The match on `kind` stays outside the loop: one loop per function.
    macro_rules! each {
        ($f:path) => {
            // SAFETY: pieces stay inside `x`.
            pieces!(V, x.len(), |i, n| unsafe { store($f(load::<V>(p.add(i), n)), p.add(i), n) })
        };
    }
    match kind {
        Activation::Identity => {}
        Activation::Relu => each!(math::relu),
        Activation::GeluErf => each!(math::gelu_erf),
        Activation::GeluTanh => each!(math::gelu_tanh),
        Activation::Silu => each!(math::silu),
        Activation::Sigmoid => each!(math::sigmoid),
        Activation::Tanh => each!(math::tanh),
    }
}

/// x[i] = e^x[i].
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    // SAFETY: pieces stay inside `x`.
    pieces!(V, x.len(), |i, n| unsafe { store(math::exp(load::<V>(p.add(i), n)), p.add(i), n) });
}

/// What a linear layer does to its result on the way out: act(c + bias) * factor + residual, each optional.
#[inline(always)]
pub(crate) unsafe fn finish<V: Vector>(c: &mut [f32], f: &Finish) {
    let p = c.as_mut_ptr();
    // SAFETY: the caller gives every operand the length of `c`.
    pieces!(V, c.len(), |i, n| unsafe {
        let mut x = load::<V>(p.add(i), n);
        if let Some(b) = f.bias {
            x = x.add(load(b.as_ptr().add(i), n));
        }
        x = activate(f.activation, x);
        if let Some(m) = f.factor {
            x = x.mul(load(m.as_ptr().add(i), n));
        }
        if let Some(r) = f.residual {
            x = x.add(load(r.as_ptr().add(i), n));
        }
        store(x, p.add(i), n);
    });
}

/// x[i] = x[i] + y[i].
#[inline(always)]
pub(crate) unsafe fn add<V: Vector>(x: &mut [f32], y: &[f32]) {
    let p = x.as_mut_ptr();
    // SAFETY: the caller gives both the same length.
    pieces!(V, x.len(), |i, n| unsafe { store(load::<V>(p.add(i), n).add(load(y.as_ptr().add(i), n)), p.add(i), n) });
}

/// x[i] = x[i] * y[i].
#[inline(always)]
pub(crate) unsafe fn mul<V: Vector>(x: &mut [f32], y: &[f32]) {
    let p = x.as_mut_ptr();
    // SAFETY: the caller gives both the same length.
    pieces!(V, x.len(), |i, n| unsafe { store(load::<V>(p.add(i), n).mul(load(y.as_ptr().add(i), n)), p.add(i), n) });
}

/// Sum of a[i] * b[i], one FMA chain per virtual lane.
#[inline(always)]
pub(crate) unsafe fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
    let (pa, pb) = (a.as_ptr(), b.as_ptr());
    // SAFETY: the caller gives both the same length.
    unsafe {
        reduce!(V, a.len(), |acc, i, n| load::<V>(pa.wrapping_add(i), n).mul_add(load(pb.wrapping_add(i), n), acc))
    }
}

/// d = x - mean; y = fma(d * (1 / sqrt(mean(d^2) + eps)), gamma, beta).
#[inline(always)]
pub(crate) unsafe fn layer_norm<V: Vector>(x: &mut [f32], gamma: &[f32], beta: Option<&[f32]>, eps: f32) {
    let (p, len) = (x.as_mut_ptr(), x.len());
    // SAFETY: the caller gives `gamma` and `beta` the length of `x`.
    unsafe {
        let mean = reduce!(V, len, |acc, i, n| acc.add(load(p.wrapping_add(i), n))) / len as f32;
        let mean = V::splat(mean);
        let squares = reduce!(V, len, |acc, i, n| {
            let d = load::<V>(p.wrapping_add(i), n).sub(mean);
            store(d, p.wrapping_add(i), n);
            let d = first(d, n, V::splat(0.0));
            d.mul_add(d, acc)
        });
        let inverse = inverse_root(squares / len as f32 + eps);
        scale_rows::<V>(x, inverse, gamma, beta);
    }
}

/// y = x * (1 / sqrt(mean(x^2) + eps)) * gamma.
#[inline(always)]
pub(crate) unsafe fn rms_norm<V: Vector>(x: &mut [f32], gamma: &[f32], eps: f32) {
    // SAFETY: the caller gives `gamma` the length of `x`.
    unsafe {
        let inverse = inverse_root(dot::<V>(x, x) / x.len() as f32 + eps);
        scale_rows::<V>(x, inverse, gamma, None);
    }
}

/// 1 / sqrt(x); NaN where a sum of squares has overflowed, so that the row is reported and not silently made 0.
#[inline(always)]
fn inverse_root(x: f32) -> f32 {
    if x == f32::INFINITY { f32::NAN } else { 1.0 / x.sqrt() }
}

#[inline(always)]
unsafe fn scale_rows<V: Vector>(x: &mut [f32], inverse: f32, gamma: &[f32], beta: Option<&[f32]>) {
    let p = x.as_mut_ptr();
    // SAFETY: the caller gives `gamma` and `beta` the length of `x`.
    unsafe {
        let inverse = V::splat(inverse);
        pieces!(V, x.len(), |i, n| {
            let v = load::<V>(p.add(i), n).mul(inverse);
            let g = load::<V>(gamma.as_ptr().add(i), n);
            let y = match beta {
                Some(b) => v.mul_add(g, load(b.as_ptr().add(i), n)),
                None => v.mul(g),
            };
            store(y, p.add(i), n);
        });
    }
}

/// x = x / max(|x|, 1e-12), |x| the Euclidean norm.
#[inline(always)]
pub(crate) unsafe fn l2_normalize<V: Vector>(x: &mut [f32]) {
    let p = x.as_mut_ptr();
    // SAFETY: pieces stay inside `x`.
    unsafe {
        let norm = dot::<V>(x, x).sqrt();
        // An overflowed sum of squares would make the row 0: it becomes NaN, which is reported.
        let norm = if norm == f32::INFINITY { f32::NAN } else { norm };
        let norm = V::splat(if norm < 1e-12 { 1e-12 } else { norm });
        pieces!(V, x.len(), |i, n| store(load::<V>(p.add(i), n).div(norm), p.add(i), n));
    }
}
