// Operations on the rows of tokens: embedding lookup, rotation, neighbourhoods, stored keys, pooling. A thread takes a
// value (or a pair) of a row. Grid: x over ceil(rows / 4), y over ceil(columns / 64), threadgroups of 64 by 4; a thread
// beyond the rows or columns does nothing.
#pragma once
#include "args.h"
#include "math.h"

// How a table stores its values; Q8_0 and Q4_0 rows are blocks of 32 values as files have them (weights::blocks), each
// table's scales apart from its integers.

// Element i of 16-bit values packed in words.
INLINE uint half_word(DEVICE const uint* words, uint i) { return (words[i >> 1] >> ((i & 1u) * 16)) & 0xffffu; }

// Value `i` of a table, counted in row-major order; blocks of 32 are scale times integer, one rounding.
INLINE float table_value(DEVICE const uint* table, DEVICE const uint* scales, uint stored, uint i) {
    if (stored == STORED_F32) return AS_FLOAT(table[i]);
    if (stored == STORED_F16) return widened_f16(half_word(table, i));
    if (stored == STORED_BF16) return widened_bf16(half_word(table, i));
    const float scale = widened_f16(half_word(scales, i >> 5));
    if (stored == STORED_Q8_0) return scale * float(int(table[i >> 2] << (24 - (i & 3u) * 8)) >> 24);
    const uint at = i & 31u, nibbles = table[(i >> 5) * 4 + ((at & 15u) >> 2)] >> ((at & 3u) * 8);
    return scale * float(int((at < 16 ? nibbles : nibbles >> 4) & 15u) - 8);
}

// out[r] = table[ids[r]], or out[r] + table[ids[r]]. table: [any, cols]; ids: [rows]; out: [rows, cols].
KERNEL_EACH(256) gather_rows(DEVICE const uint* table ARG(0), DEVICE const uint* scales ARG(1), DEVICE const uint* ids ARG(2),
                             DEVICE float* out ARG(3), PARAM(GatherArgs) p ARG(4) THREAD_PARAMS) {
    THREAD_IDS();
    const uint col = gid.y * 64 + tid.x, row = gid.x * 4 + tid.y;
    if (col >= p.cols || row >= p.rows) return;
    const float value = table_value(table, scales, p.kind, ids[row] * p.cols + col);
    out[row * p.cols + col] = p.accumulate ? out[row * p.cols + col] + value : value;
}

// out[r] = x[sources[r]], or zeros where the source is 2^32 - 1. x: [any, cols]; out: [rows, cols].
KERNEL_EACH(256) unfold_rows(DEVICE const float* x ARG(0), DEVICE const uint* sources ARG(1), DEVICE float* out ARG(2),
                             PARAM(RowsArgs) p ARG(3) THREAD_PARAMS) {
    THREAD_IDS();
    const uint col = gid.y * 64 + tid.x, row = gid.x * 4 + tid.y;
    if (col >= p.width || row >= p.rows) return;
    const uint source = sources[row];
    out[row * p.width + col] = source == 0xffffffffu ? 0.0f : x[source * p.width + col];
}

// Rotates the pairs of each head, in place. x: [rows, stride], heads from column first; cos, sin: [positions, half];
// columns are heads * half pairs.
KERNEL_EACH(256) rotate_pairs(DEVICE float* x ARG(0), DEVICE const float* cos_table ARG(1), DEVICE const float* sin_table ARG(2),
                              DEVICE const uint* positions ARG(3), PARAM(RopeArgs) p ARG(4) THREAD_PARAMS) {
    THREAD_IDS();
    const uint pair = gid.y * 64 + tid.x, row = gid.x * 4 + tid.y;
    if (pair >= p.heads * p.half_dim || row >= p.rows) return;
    const uint i = pair % p.half_dim, at = positions[row] * p.half_dim + i;
    DEVICE float* head = x + row * p.stride + p.first + (pair / p.half_dim) * p.head_dim;
    DEVICE float* first = head + (p.interleaved ? 2 * i : i);
    DEVICE float* second = head + (p.interleaved ? 2 * i + 1 : i + p.half_dim);
    const float a = *first, b = *second, c = cos_table[at], s = sin_table[at];
    *first = a * c - b * s;
    *second = b * c + a * s;
}

// Stores rows of keys and values: row r of the view goes to slot slots[r] = block * 64 + place, [block][kv_head][64][dim].
// columns are kv_heads * dim.
KERNEL_EACH(256) store_keys(DEVICE const float* k ARG(0), DEVICE const float* v ARG(1), DEVICE const uint* slots ARG(2),
                            DEVICE float* keys ARG(3), DEVICE float* values ARG(4), PARAM(StoreArgs) p ARG(5) THREAD_PARAMS) {
    THREAD_IDS();
    const uint col = gid.y * 64 + tid.x, row = gid.x * 4 + tid.y;
    if (col >= p.kv_heads * p.head_dim || row >= p.rows) return;
    const uint slot = slots[row], head = col / p.head_dim, d = col % p.head_dim;
    const uint to = (((slot >> 6) * p.kv_heads + head) * 64 + (slot & 63u)) * p.head_dim + d;
    keys[to] = k[row * p.k_stride + p.k_first + col];
    values[to] = v[row * p.v_stride + p.v_first + col];
}

// Pools the rows offsets[s] + skip .. offsets[s + 1] of x [any, cols] into row s of out, [sequences, out_stride] from
// column out_first; a thread takes a feature and its tokens in order. rows counts the sequences.
KERNEL_EACH(256) pool_rows(DEVICE const float* x ARG(0), DEVICE const uint* offsets ARG(1), DEVICE float* out ARG(2),
                           PARAM(PoolArgs) p ARG(3) THREAD_PARAMS) {
    THREAD_IDS();
    const uint col = gid.y * 64 + tid.x, row = gid.x * 4 + tid.y;
    if (col >= p.cols || row >= p.rows) return;
    const uint begin = offsets[row] + p.skip, end = offsets[row + 1];
    DEVICE const float* column = x + col;
    const float count = float(end - begin);
    float pooled = 0.0f, weights = 0.0f;
    if (p.mode == POOL_CLS) {
        pooled = column[begin * p.cols];
    } else if (p.mode == POOL_LAST) {
        pooled = column[(end - 1) * p.cols];
    } else if (p.mode == POOL_MAX) {
        pooled = column[begin * p.cols];
        for (uint t = begin + 1; t < end; t++) {
            const float value = column[t * p.cols];
            pooled = value > pooled || value != value ? value : pooled;
        }
    } else if (p.mode == POOL_WEIGHTED_MEAN) {
        for (uint t = begin; t < end; t++) {
            const float weight = float(t - begin + p.skip + 1);
            weights = weights + weight;
            pooled = pooled + column[t * p.cols] * weight;
        }
        pooled = pooled / weights;
    } else {
        for (uint t = begin; t < end; t++) pooled = pooled + column[t * p.cols];
        pooled = pooled / (p.mode == POOL_MEAN ? count : SQRT(count));
    }
    out[row * p.out_stride + p.out_first + col] = pooled;
}
