// Linear layers over Q8_0 and Q4_0 weights, multiplied as integers with quantised activations.
//
//   W [n, k], k a multiple of 32, in panels of 32 rows of W (columns of the result), a column's integers in words of four:
//   Q8_0 [panel][block][8][32], word i of a block the values 4 i ..; Q4_0 [panel][block][4][32], the low halves of word
//   i's bytes the values 4 i .., plus 8, the high halves those 16 further; scales, binary16: [panel][block][32].
//   Activations: q [rows][k / 4] words of four, d [rows][k / 32].
//
// An element is a chain of fma over 16 ascending blocks, each adding its exact integer times the product of the scales.
#pragma once
#include "args.h"
#include "math.h"
#include "matmul.h"

// Blocks of one chain.
#define CHAIN_BLOCKS 16u

// Quantises blocks of 32 values of x, [blocks * 32]: q = rint(x * (127 / m)), d = m / 127, m the largest magnitude; d is
// NaN where m is not finite, 0 below 1e-30. Grid: ceil(blocks / 256) threadgroups of 256, a thread a block.
KERNEL_EACH(256) quantise_blocks(DEVICE const float* x ARG(0), DEVICE uint* q ARG(1), DEVICE float* d ARG(2),
                                 PARAM(CountArgs) p ARG(3) THREAD_PARAMS) {
    THREAD_IDS();
    const uint block = gid.x * 256 + tid.x;
    if (block >= p.count) return;
    DEVICE const float* values = x + block * 32;
    uint top = 0;
    for (uint i = 0; i < 32; i++) {
        const uint bits = AS_UINT(magnitude(values[i]));
        top = top < bits ? bits : top;
    }
    const float m = AS_FLOAT(top);
    const bool finite = top < 0x7f800000u, zero = !finite || m < 1e-30f;
    d[block] = !finite ? AS_FLOAT(0x7fc00000u) : zero ? 0.0f : m / 127.0f;
    const float inverse = zero ? 0.0f : 127.0f / m;
    for (uint word = 0; word < 8; word++) {
        uint four = 0;
        for (uint i = 0; i < 4; i++) {
            const uint rounded = AS_UINT(values[word * 4 + i] * inverse + 12582912.0f); // its low byte is the integer's
            four |= zero ? 0u : (rounded & 0xffu) << (8 * i);
        }
        q[block * 8 + word] = four;
    }
}

// The words of a block's values 4 i .. and, of a Q4_0 word, those 16 further.
INLINE uint low_values(uint word) { return ((word & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u; }
INLINE uint high_values(uint word) { return low_values(word >> 4); }

// Element `at` of binary16 values.
INLINE float scale_at(DEVICE const ushort* scales, uint at) { return widened_f16(scales[at]); }

// One tile of 64 by 64 elements by 256 threads, 16 by 16, 4 by 4 elements each, a block at a time; the buffers alternate
// as in matmul_tile. as, bs: [2][8][68] words; ad, bd: [2][64] scales.
template <uint TYPE>
INLINE void quantised_tile(DEVICE const uint* q, DEVICE const float* d, DEVICE const uint* w, DEVICE const ushort* scales,
                           DEVICE const float* bias, DEVICE const float* factor, DEVICE const float* residual,
                           DEVICE float* out, PARAM(MatmulArgs) p, uint3 tid, uint3 gid, PTR_SHARED uint* as,
                           PTR_SHARED uint* bs, PTR_SHARED float* ad, PTR_SHARED float* bd) {
    const uint WORDS = TYPE == STORED_Q8_0 ? 8 : 4;
    const uint t = tid.x, tx = t % 16, ty = t / 16, blocks = p.k / 32;
    // What this thread brings: two words of one row of x, two (of Q4_0 one, which makes two) of one column of W.
    const uint a_line = t / 4, a_word = t % 4 * 2, b_line = t % 64, b_word = t / 64;
    const uint a_row = gid.x * 64 + a_line < p.rows ? gid.x * 64 + a_line : 0;
    const uint b_panel = gid.y * 64 + b_line < p.n ? (gid.y * 64 + b_line) / 32 : 0;
    float sum[4][4];
    UNROLL for (uint i = 0; i < 4; i++) {
        UNROLL for (uint j = 0; j < 4; j++) sum[i][j] = 0.0f;
    }
    for (uint block = 0; block <= blocks; block++) {
        uint a_next[2] = {0, 0}, b_next[2] = {0, 0};
        float scale = 0.0f;
        if (block < blocks) {
            UNROLL for (uint i = 0; i < 2; i++) a_next[i] = q[(a_row * blocks + block) * 8 + a_word + i];
            DEVICE const uint* words = w + (b_panel * blocks + block) * WORDS * 32 + b_line % 32;
            b_next[0] = words[b_word * 32];
            b_next[1] = TYPE == STORED_Q8_0 ? words[(b_word + 4) * 32] : high_values(b_next[0]);
            if (TYPE == STORED_Q4_0) b_next[0] = low_values(b_next[0]);
            if (t < 64) {
                const uint row = gid.x * 64 + t < p.rows ? gid.x * 64 + t : 0;
                scale = d[row * blocks + block];
            } else if (t < 128) {
                scale = scale_at(scales, (b_panel * blocks + block) * 32 + b_line % 32);
            }
        }
        if (block > 0) {
            const uint turn = (block - 1) % 2;
            int products[4][4];
            UNROLL for (uint i = 0; i < 4; i++) {
                UNROLL for (uint j = 0; j < 4; j++) products[i][j] = 0;
            }
            for (uint word = 0; word < 8; word++) {
                uint av[4], bv[4];
                UNROLL for (uint i = 0; i < 4; i++) {
                    av[i] = as[(turn * 8 + word) * 68 + ty * 4 + i];
                    bv[i] = bs[(turn * 8 + word) * 68 + tx * 4 + i];
                }
                UNROLL for (uint i = 0; i < 4; i++) {
                    UNROLL for (uint j = 0; j < 4; j++) products[i][j] = DOT4(av[i], bv[j], products[i][j]);
                }
            }
            UNROLL for (uint i = 0; i < 4; i++) {
                UNROLL for (uint j = 0; j < 4; j++) {
                    const float both = bd[turn * 64 + tx * 4 + j] * ad[turn * 64 + ty * 4 + i];
                    sum[i][j] = FMA(float(products[i][j]), both, sum[i][j]);
                }
            }
        }
        if (block == blocks || (block > 0 && block % CHAIN_BLOCKS == 0))
            close_chains<4>(sum, out, block <= CHAIN_BLOCKS, p.rows, p.n, gid.x * 64 + ty * 4, gid.y * 64 + tx * 4);
        if (block < blocks) {
            const uint turn = block % 2;
            UNROLL for (uint i = 0; i < 2; i++) {
                as[(turn * 8 + a_word + i) * 68 + a_line] = a_next[i];
                bs[(turn * 8 + b_word + i * 4) * 68 + b_line] = b_next[i];
            }
            if (t < 64) ad[turn * 64 + t] = scale;
            else if (t < 128) bd[turn * 64 + t - 64] = scale;
            BARRIER();
        }
    }
    finish_tile<4>(bias, factor, residual, out, p, gid.x * 64 + ty * 4, gid.y * 64 + tx * 4);
}

// A few rows: as matvec_panel, a chain of 16 blocks for each of p.slots SIMD groups.
template <uint TYPE, uint R>
INLINE void quantised_panel(DEVICE const uint* q, DEVICE const float* d, DEVICE const uint* w, DEVICE const ushort* scales,
                            DEVICE const float* bias, DEVICE const float* factor, DEVICE const float* residual,
                            DEVICE float* out, PARAM(MatmulArgs) p, uint3 tid, uint3 gid, PTR_SHARED float* part) {
    const uint WORDS = TYPE == STORED_Q8_0 ? 8 : 4;
    const uint lane = tid.x, slot = tid.y, column = gid.x * 32 + lane, first = gid.y * R;
    const uint blocks = p.k / 32, chains = (blocks + CHAIN_BLOCKS - 1) / CHAIN_BLOCKS;
    float total[R];
    UNROLL for (uint r = 0; r < R; r++) total[r] = 0.0f;
    for (uint base = 0; base < chains; base += p.slots) {
        const uint chain = base + slot;
        if (chain < chains) {
            const uint end = (chain + 1) * CHAIN_BLOCKS < blocks ? (chain + 1) * CHAIN_BLOCKS : blocks;
            float sum[R];
            UNROLL for (uint r = 0; r < R; r++) sum[r] = 0.0f;
            for (uint block = chain * CHAIN_BLOCKS; block < end; block++) {
                DEVICE const uint* words = w + (gid.x * blocks + block) * WORDS * 32 + lane;
                uint four[8];
                UNROLL for (uint i = 0; i < WORDS; i++) {
                    const uint word = words[i * 32];
                    four[i] = TYPE == STORED_Q8_0 ? word : low_values(word);
                    if (TYPE == STORED_Q4_0) four[i + 4] = high_values(word);
                }
                const float scale = scale_at(scales, (gid.x * blocks + block) * 32 + lane);
                UNROLL for (uint r = 0; r < R; r++) {
                    const uint at = (first + r < p.rows ? first + r : first) * blocks + block;
                    int products = 0;
                    UNROLL for (uint i = 0; i < 8; i++) products = DOT4(q[at * 8 + i], four[i], products);
                    sum[r] = FMA(float(products), scale * d[at], sum[r]);
                }
            }
            UNROLL for (uint r = 0; r < R; r++) part[(slot * R + r) * 32 + lane] = sum[r];
        }
        BARRIER();
        if (slot == 0) {
            const uint there = chains - base < p.slots ? chains - base : p.slots;
            for (uint s = 0; s < there; s++) {
                UNROLL for (uint r = 0; r < R; r++) {
                    const float sum = part[(s * R + r) * 32 + lane];
                    total[r] = base + s == 0 ? sum : total[r] + sum;
                }
            }
        }
        BARRIER();
    }
    if (slot == 0 && column < p.n) {
        UNROLL for (uint r = 0; r < R; r++) {
            if (first + r < p.rows) out[(first + r) * p.n + column] = total[r];
        }
        for (uint r = first; r < first + R && r < p.rows; r++) {
            const uint at = r * p.n + column;
            out[at] = finished(out[at], bias, factor, residual, p.flags, p.activation, at, column);
        }
    }
}

#define QUANTISED_OPERANDS                                                                                          \
    DEVICE const uint *q ARG(0), DEVICE const float *d ARG(1), DEVICE const uint *w ARG(2),                         \
        DEVICE const ushort *scales ARG(3), DEVICE const float *bias ARG(4), DEVICE const float *factor ARG(5),     \
        DEVICE const float *residual ARG(6), DEVICE float *out ARG(7), PARAM(MatmulArgs) p ARG(8) THREAD_PARAMS

// Grids as those of the kernels in matmul.h, with tiles of 64.
#define QUANTISED_KERNELS(suffix, TYPE)                                                                             \
    KERNEL(256) matmul64_##suffix(QUANTISED_OPERANDS) {                                                             \
        THREAD_IDS();                                                                                               \
        SHARED uint as[2 * 8 * 68];                                                                                 \
        SHARED uint bs[2 * 8 * 68];                                                                                 \
        SHARED float ad[2 * 64];                                                                                    \
        SHARED float bd[2 * 64];                                                                                    \
        quantised_tile<TYPE>(q, d, w, scales, bias, factor, residual, out, p, tid, gid, as, bs, ad, bd);            \
    }                                                                                                               \
    KERNEL(256) matvec1_##suffix(QUANTISED_OPERANDS) {                                                              \
        THREAD_IDS();                                                                                               \
        SHARED float part[8 * 32];                                                                                  \
        quantised_panel<TYPE, 1>(q, d, w, scales, bias, factor, residual, out, p, tid, gid, part);                  \
    }                                                                                                               \
    KERNEL(256) matvec4_##suffix(QUANTISED_OPERANDS) {                                                              \
        THREAD_IDS();                                                                                               \
        SHARED float part[8 * 4 * 32];                                                                              \
        quantised_panel<TYPE, 4>(q, d, w, scales, bias, factor, residual, out, p, tid, gid, part);                  \
    }

QUANTISED_KERNELS(q8_0, STORED_Q8_0)
QUANTISED_KERNELS(q4_0, STORED_Q4_0)
