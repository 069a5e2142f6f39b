// Reductions of rows: norms. A SIMD group takes a row; its 32 lanes are the contract's 32 partial sums, and the fold by
// halving is SHUFFLE_DOWN by 16, 8, 4, 2, 1.
#pragma once
#include "args.h"
#include "math.h"

#define NOT_A_NUMBER AS_FLOAT(0x7fc00000u)
#define INFINITE AS_FLOAT(0x7f800000u)

// The fold of the lanes' partial sums, given to every lane.
INLINE float folded(float partial) {
    for (uint width = 16; width > 0; width >>= 1) partial = partial + SHUFFLE_DOWN(partial, width);
    return SHUFFLE(partial, 0);
}

// 1 / sqrt(x); NaN where a sum of squares has overflowed.
INLINE float inverse_root(float x) { return x == INFINITE ? NOT_A_NUMBER : 1.0f / SQRT(x); }

// LayerNorm or RMSNorm of `rows * count` slices, in place: slice s is count-wise the s % count-th of row s / count,
// `width` values from column first + (s % count) * width of a matrix `stride` wide.
// Grid: ceil(rows * count / 8) threadgroups of 256, a SIMD group a slice. gamma, beta: [width].
KERNEL(256) norm_slices(DEVICE float* x ARG(0), DEVICE const float* gamma ARG(1), DEVICE const float* beta ARG(2),
                        PARAM(NormArgs) p ARG(3) THREAD_PARAMS) {
    THREAD_IDS();
    const uint slice = gid.x * 8 + simd;
    if (slice >= p.slices) return;
    DEVICE float* row = x + (slice / p.count) * p.stride + p.first + (slice % p.count) * p.width;
    const float n = float(p.width);
    float mean = 0.0f;
    if (p.layer_norm) {
        for (uint i = lane; i < p.width; i += 32) mean = mean + row[i];
        mean = folded(mean) / n;
    }
    float squares = 0.0f;
    for (uint i = lane; i < p.width; i += 32) {
        const float d = p.layer_norm ? row[i] - mean : row[i];
        squares = FMA(d, d, squares);
    }
    const float r = inverse_root(folded(squares) / n + p.eps);
    for (uint i = lane; i < p.width; i += 32) {
        const float d = (p.layer_norm ? row[i] - mean : row[i]) * r;
        row[i] = p.has_beta ? FMA(d, gamma[i], beta[i]) : d * gamma[i];
    }
}

// Each of `rows` rows of `width` values divided by max(its Euclidean norm, 1e-12), in place.
// Grid: ceil(rows / 8) threadgroups of 256, a SIMD group a row.
KERNEL(256) l2_normalize_rows(DEVICE float* x ARG(0), PARAM(RowsArgs) p ARG(1) THREAD_PARAMS) {
    THREAD_IDS();
    const uint index = gid.x * 8 + simd;
    if (index >= p.rows) return;
    DEVICE float* row = x + index * p.width;
    float squares = 0.0f;
    for (uint i = lane; i < p.width; i += 32) squares = FMA(row[i], row[i], squares);
    float norm = SQRT(folded(squares));
    norm = norm == INFINITE ? NOT_A_NUMBER : norm;
    norm = norm < 1e-12f ? 1e-12f : norm;
    for (uint i = lane; i < p.width; i += 32) row[i] = row[i] / norm;
}

// Of each row of x [rows, cols], the first of its first `among` columns that holds their largest value; 2^32 - 1 where a
// value of the row is NaN or infinite. out: [rows]. Grid: rows threadgroups of 256.
KERNEL(256) arg_max_rows(DEVICE const float* x ARG(0), DEVICE uint* out ARG(1), PARAM(ArgMaxArgs) p ARG(2) THREAD_PARAMS) {
    THREAD_IDS();
    SHARED float tops[256];
    SHARED uint places[256];
    const uint none = 0xfffffffeu, not_finite = 0xffffffffu, t = tid.x;
    DEVICE const float* row = x + gid.x * p.cols;
    float top = 0.0f;
    uint place = none;
    for (uint i = t; i < p.cols; i += 256) {
        const float value = row[i];
        if ((AS_UINT(value) & 0x7fffffffu) >= 0x7f800000u) {
            place = not_finite;
        } else if (i < p.among && (place == none || (place != not_finite && top < value))) {
            top = value;
            place = i;
        }
    }
    tops[t] = top;
    places[t] = place;
    for (uint width = 128; width > 0; width >>= 1) {
        BARRIER();
        if (t >= width) continue;
        const uint mine = places[t], other = places[t + width];
        const float a = tops[t], b = tops[t + width];
        if (mine == not_finite || other == none) continue;
        if (other == not_finite || mine == none || a < b || (a == b && other < mine)) {
            places[t] = other;
            tops[t] = b;
        }
    }
    if (t == 0) out[gid.x] = places[0];
}
