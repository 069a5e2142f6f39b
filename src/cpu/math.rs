//! exp and the activations, from IEEE add, multiply, divide and FMA alone, so that every ISA gives the same bits.
//!
//! Definitions, ranges and measured worst errors stand in docs/numerics.md; where a case of a definition cannot show in
//! a bit, it is left out here, and tests hold the functions to the definitions. NaN in gives NaN out.

use super::simd::{ROUND_MAGIC, Vector, exponent_magic};

/// p, n and `magic` + n with e^x = p * 2^n, p in 0.7..=1.42.
///
/// `magic` is [`ROUND_MAGIC`] or an integer above it: x * log2(e) is never midway between integers, so that the addend's
/// parity does not show in n.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn exp_parts<V: Vector>(x: V, magic: f32) -> (V, V, V) {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let magic = V::splat(magic);
        let sum = x.mul_add(V::splat(std::f32::consts::LOG2_E), magic);
        let n = sum.sub(magic);
        // ln 2 in two parts; the high one has 9 significant bits, so n * hi is exact.
        let r = n.mul_add(V::splat(-0.693_359_4), x);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let q = V::splat(0.001_390_130_7)
            .mul_add(r, V::splat(0.008_363_2))
            .mul_add(r, V::splat(0.041_666_854))
            .mul_add(r, V::splat(0.166_665_76))
            .mul_add(r, V::splat(0.5));
        (r.mul(r).mul_add(q, r).add(V::splat(1.0)), n, sum)
    }
}

/// e^x. Overflows to +inf above 88.72, underflows gradually to 0 below -87.3.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let x = V::greater(V::splat(-105.0), V::lesser(V::splat(89.5), x));
        let (p, n, _) = exp_parts(x, ROUND_MAGIC);
        p.scale_pow2(n)
    }
}

/// e^x for x in -86..=0, where results are normal; any value for other x, NaN for NaN.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn exp_normal<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let (p, n, sum) = exp_parts(x, exponent_magic(0));
        p.scale_down::<0>(n, sum)
    }
}

/// e^x for x in -130..=0; any value for other x, NaN for NaN.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn exp_negative<V: Vector>(x: V) -> V {
    const DOWN: u8 = 64;
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let (p, n, sum) = exp_parts(x, exponent_magic(DOWN));
        p.scale_down::<DOWN>(n, sum)
    }
}

/// e^x for x up to 0.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn exp_below<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe { exp_negative(V::greater(V::splat(-105.0), x)) }
}

/// Phi(-a) e^(a^2/2) over t = 1 / (1 + a/4), divided by t: ten coefficients, constant first, for a in 0..=15.
const NORMAL_TAIL: [f32; 10] = [
    0.099_749_364,
    0.099_465_99,
    0.095_723_17,
    0.071_084_7,
    0.089_170_2,
    0.008_242_47,
    0.033_588_25,
    0.047_932_79,
    -0.061_263_766,
    0.016_306_838,
];

/// x * Phi(x), the GELU of the paper (arXiv 1606.08415), accurate in relative terms also for large negative x.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn gelu_erf<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let a = V::lesser(V::splat(15.0), x.abs());
        let t = V::splat(1.0).div(a.mul_add(V::splat(0.25), V::splat(1.0)));
        let mut g = V::splat(NORMAL_TAIL[9]);
        for i in (0..9).rev() {
            g = g.mul_add(t, V::splat(NORMAL_TAIL[i]));
        }
        let g = g.mul(t);
        // -a^2 / 2 = high + low exactly; e^(high + low) = e^high (1 + low) to first order.
        let half = a.mul(V::splat(-0.5));
        let high = half.mul(a);
        let low = half.mul_add(a, high.neg());
        let e = exp_negative(high);
        let e = low.mul_add(e, e);
        let tail = e.mul(g);
        // x - x tail, and x tail for negative x: x is +-a, or the tail of 15 is +0.
        a.neg().mul_add(tail, V::greater(V::splat(-0.0), x))
    }
}

/// The tanh approximation of GELU, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x / (1 + e^(-2u)), for
/// negative x as x e^(2u) / (1 + e^(2u)): no cancellation, no overflow.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let c = V::lesser(V::splat(15.0), V::greater(V::splat(-15.0), x));
        let w = V::splat(-0.071_354_814).mul_add(c.mul(c), V::splat(-1.595_769));
        // -2|u| = |c| * w, kept as high + low.
        let a = c.abs();
        let high = a.mul(w);
        let low = a.mul_add(w, high.neg());
        let e = exp_below(high);
        let e = low.mul_add(e, e);
        // x is c, or e is +0.
        V::select_lt(x, V::splat(0.0), c.mul(e), x).div(e.add(V::splat(1.0)))
    }
}

/// 1 / (1 + e^-x), for negative x as e^x / (1 + e^x), which underflows gradually.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn sigmoid<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let e = exp_below(x.abs().neg());
        V::select_lt(x, V::splat(0.0), e, V::splat(1.0)).div(e.add(V::splat(1.0)))
    }
}

/// x * sigmoid(x) as x / (1 + e^-x), for negative x as x e^x / (1 + e^x); -0 below -110, where e^x is 0.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn silu<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let e = exp_below(x.abs().neg());
        let c = V::greater(V::splat(-110.0), x); // -infinity * 0 is NaN
        V::select_lt(x, V::splat(0.0), c.mul(e), x).div(e.add(V::splat(1.0)))
    }
}

/// tanh: x below 2^-13, an odd polynomial in x up to 0.625, 1 - 2 / (e^2a + 1) with the sign of x beyond.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn tanh<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let a = x.abs();
        let x2 = x.mul(x);
        // Taylor-like minimax in x^2 (Cephes tanhf's form).
        let p = V::splat(-0.005_704_988_7)
            .mul_add(x2, V::splat(0.020_639_088))
            .mul_add(x2, V::splat(-0.053_739_715))
            .mul_add(x2, V::splat(0.133_314_43))
            .mul_add(x2, V::splat(-0.333_332_8));
        let small = p.mul(x2).mul_add(x, x);
        let small = V::select_lt(a, V::splat(1.220_703_1e-4), x, small); // the sum above makes +0 of -0
        let e = exp(a.add(a));
        let large = V::splat(1.0).sub(V::splat(2.0).div(e.add(V::splat(1.0))));
        let large = V::select_lt(x, V::splat(0.0), V::splat(0.0).sub(large), large);
        V::select_lt(V::splat(0.625), a, large, small)
    }
}

/// max(x, 0), with NaN kept.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn relu<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe { V::select_lt(x, V::splat(0.0), V::splat(0.0), x) }
}
