//! exp and the activations, from IEEE add, multiply, divide and FMA alone, so that every ISA gives the same bits.
//!
//! Coefficients, ranges and measured worst errors stand in docs/numerics.md. NaN in gives NaN out.

use super::simd::Vector;

/// 1.5 * 2^23: adding and subtracting it rounds to an integer, ties to even.
const ROUND_MAGIC: f32 = 12_582_912.0;

/// e^x. Overflows to +inf above 88.72, underflows gradually to 0 below -87.3.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: forwarded from this function's contract.
    unsafe {
        let x = V::select_lt(x, V::splat(-105.0), V::splat(-105.0), x);
        let x = V::select_lt(V::splat(89.5), x, V::splat(89.5), x);
        let magic = V::splat(ROUND_MAGIC);
        let n = x.mul_add(V::splat(std::f32::consts::LOG2_E), magic).sub(magic);
        // ln 2 in two parts; the high one has 9 significant bits, so n * hi is exact.
        let r = n.mul_add(V::splat(-0.693_359_4), x);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let q = V::splat(0.001_390_130_7)
            .mul_add(r, V::splat(0.008_363_2))
            .mul_add(r, V::splat(0.041_666_854))
            .mul_add(r, V::splat(0.166_665_76))
            .mul_add(r, V::splat(0.5));
        let p = r.mul(r).mul_add(q, r).add(V::splat(1.0));
        // 2^n in two factors, each a normal number, so that only the last multiplication rounds.
        let half = n.mul(V::splat(0.5)).add(magic).sub(magic);
        p.mul(half.pow2()).mul(n.sub(half).pow2())
    }
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
        let a = x.abs();
        let a = V::select_lt(V::splat(15.0), a, V::splat(15.0), a);
        let t = V::splat(1.0).div(a.mul_add(V::splat(0.25), V::splat(1.0)));
        let mut g = V::splat(NORMAL_TAIL[9]);
        for i in (0..9).rev() {
            g = g.mul_add(t, V::splat(NORMAL_TAIL[i]));
        }
        let g = g.mul(t);
        // a^2 = high + low exactly; e^(high + low) = e^high (1 + low) to first order.
        let high = a.mul(a);
        let low = a.mul_add(a, V::splat(0.0).sub(high));
        let e = exp(high.mul(V::splat(-0.5)));
        let e = low.mul(V::splat(-0.5)).mul_add(e, e);
        let tail = e.mul(g);
        let product = x.mul(tail);
        let negative = V::select_lt(x, V::splat(-15.0), V::splat(-0.0), product);
        let positive = V::splat(0.0).sub(x).mul_add(tail, x);
        let positive = V::select_lt(x, V::splat(15.0), positive, x); // infinity * 0 is NaN
        V::select_lt(V::splat(0.0), x, positive, negative)
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
        let c = V::select_lt(x, V::splat(-15.0), V::splat(-15.0), x);
        let c = V::select_lt(V::splat(15.0), c, V::splat(15.0), c);
        let w = V::splat(-0.071_354_814).mul_add(c.mul(c), V::splat(-1.595_769));
        // -2|u| = |c| * w, kept as high + low.
        let a = c.abs();
        let high = a.mul(w);
        let low = a.mul_add(w, V::splat(0.0).sub(high));
        let e = exp(high);
        let e = low.mul_add(e, e);
        let y = V::select_lt(x, V::splat(0.0), c.mul(e), c).div(e.add(V::splat(1.0)));
        let y = V::select_lt(x, V::splat(-15.0), V::splat(-0.0), y);
        V::select_lt(V::splat(15.0), x, x, y)
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
        let e = exp(V::splat(0.0).sub(x.abs()));
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
        let e = exp(V::splat(0.0).sub(x.abs()));
        let y = V::select_lt(x, V::splat(0.0), x.mul(e), x).div(e.add(V::splat(1.0)));
        V::select_lt(x, V::splat(-110.0), V::splat(-0.0), y) // -infinity * 0 is NaN
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
