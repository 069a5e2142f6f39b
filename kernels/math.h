// exp and the activations, from IEEE operations alone: the definitions of docs/numerics.md, "Elementary functions".
// Constants are written as their bits. NaN gives NaN.
#pragma once
#include "args.h"

// 2^k for an integer-valued k in -126..127.
INLINE float pow2(float k) { return AS_FLOAT(AS_UINT(k + 12583039.0f) << 23); }

INLINE float magnitude(float x) { return AS_FLOAT(AS_UINT(x) & 0x7fffffffu); }

INLINE float exponential(float x) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding and subtracting it rounds to an integer
    x = x < -105.0f ? -105.0f : x;
    x = 89.5f < x ? 89.5f : x;
    const float n = FMA(x, AS_FLOAT(0x3fb8aa3bu), magic) - magic;
    float r = FMA(n, AS_FLOAT(0xbf318000u), x);
    r = FMA(n, AS_FLOAT(0x395e8083u), r);
    float q = AS_FLOAT(0x3ab6350cu);
    q = FMA(q, r, AS_FLOAT(0x3c0905ceu));
    q = FMA(q, r, AS_FLOAT(0x3d2aaaddu));
    q = FMA(q, r, AS_FLOAT(0x3e2aaa6eu));
    q = FMA(q, r, 0.5f);
    const float p = FMA(r * r, q, r) + 1.0f;
    const float h = (n * 0.5f + magic) - magic;
    return (p * pow2(h)) * pow2(n - h);
}

INLINE float gelu_erf(float x) {
    float a = magnitude(x);
    a = 15.0f < a ? 15.0f : a;
    const float t = 1.0f / FMA(a, 0.25f, 1.0f);
    float g = AS_FLOAT(0x3c8595ebu);
    g = FMA(g, t, AS_FLOAT(0xbd7aefb7u));
    g = FMA(g, t, AS_FLOAT(0x3d44552cu));
    g = FMA(g, t, AS_FLOAT(0x3d0993d5u));
    g = FMA(g, t, AS_FLOAT(0x3c070b6du));
    g = FMA(g, t, AS_FLOAT(0x3db69edeu));
    g = FMA(g, t, AS_FLOAT(0x3d9194dbu));
    g = FMA(g, t, AS_FLOAT(0x3dc40a82u));
    g = FMA(g, t, AS_FLOAT(0x3dcbb4d3u));
    g = FMA(g, t, AS_FLOAT(0x3dcc4965u));
    g = g * t;
    const float high = a * a, low = FMA(a, a, 0.0f - high);
    float e = exponential(high * -0.5f);
    e = FMA(low * -0.5f, e, e);
    const float tail = e * g;
    const float negative = x < -15.0f ? -0.0f : x * tail;
    const float positive = x < 15.0f ? FMA(0.0f - x, tail, x) : x;
    return 0.0f < x ? positive : negative;
}

INLINE float gelu_tanh(float x) {
    float c = x < -15.0f ? -15.0f : x;
    c = 15.0f < c ? 15.0f : c;
    const float w = FMA(AS_FLOAT(0xbd922279u), c * c, AS_FLOAT(0xbfcc4229u));
    const float a = magnitude(c), high = a * w, low = FMA(a, w, 0.0f - high);
    float e = exponential(high);
    e = FMA(low, e, e);
    const float y = (x < 0.0f ? c * e : c) / (e + 1.0f);
    return 15.0f < x ? x : x < -15.0f ? -0.0f : y;
}

INLINE float sigmoid(float x) {
    const float e = exponential(0.0f - magnitude(x));
    return (x < 0.0f ? e : 1.0f) / (e + 1.0f);
}

INLINE float silu(float x) {
    const float e = exponential(0.0f - magnitude(x));
    return x < -110.0f ? -0.0f : (x < 0.0f ? x * e : x) / (e + 1.0f);
}

INLINE float hyperbolic_tangent(float x) {
    const float a = magnitude(x), s = x * x;
    float p = AS_FLOAT(0xbbbaf0eau);
    p = FMA(p, s, AS_FLOAT(0x3ca9134eu));
    p = FMA(p, s, AS_FLOAT(0xbd5c1e2du));
    p = FMA(p, s, AS_FLOAT(0x3e088394u));
    p = FMA(p, s, AS_FLOAT(0xbeaaaa99u));
    float small = FMA(p * s, x, x);
    small = a < AS_FLOAT(0x39000000u) ? x : small; // 2^-13
    float large = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
    large = x < 0.0f ? 0.0f - large : large;
    return 0.625f < a ? large : small;
}

INLINE float activate(uint kind, float x) {
    switch (kind) {
        case ACTIVATION_RELU: return x < 0.0f ? 0.0f : x;
        case ACTIVATION_GELU_ERF: return gelu_erf(x);
        case ACTIVATION_GELU_TANH: return gelu_tanh(x);
        case ACTIVATION_SILU: return silu(x);
        case ACTIVATION_SIGMOID: return sigmoid(x);
        case ACTIVATION_TANH: return hyperbolic_tangent(x);
        default: return x;
    }
}

// A binary16 widened, exactly.
INLINE float widened_f16(uint bits) {
#if defined(__METAL_VERSION__)
    return float(as_type<half>(ushort(bits)));
#elif defined(__CUDA__)
    float wide;
    __asm__("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(ushort(bits)));
    return wide;
#else
    const uint sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
    const float scaled = AS_FLOAT(rest) * 0x1p112f; // the exponents' biases are 112 apart
    return AS_FLOAT(sign | ((bits & 0x7c00u) == 0x7c00u ? rest | 0x7f800000u : AS_UINT(scaled)));
#endif
}

// A bfloat16 widened, exactly.
INLINE float widened_bf16(uint bits) { return AS_FLOAT(bits << 16); }

// c plus the products of the four signed bytes of a with those of b.
INLINE int DOT4(uint a, uint b, int c) {
#if defined(__CUDA__)
    int sum;
    __asm__("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
#else
    UNROLL for (uint i = 0; i < 32; i += 8) c += (int(a << (24 - i)) >> 24) * (int(b << (24 - i)) >> 24);
    return c;
#endif
}
