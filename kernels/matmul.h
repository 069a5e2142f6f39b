// Linear layers over f32, f16 and bf16 weights: out = act(x W^T + bias) * factor + residual.
//
//   x [rows, k]; bias [n]; factor, residual, out [rows, n], row-major.
//   W [n, k] in panels of 32 rows of W (columns of the result), zero-padded to whole panels: f32 [panel][k][32];
//   16-bit [panel][ceil(k / 2)][32] words, each of two neighbouring k, the lower in the low half.
//
// An element is a chain of fma over 512 ascending k from +0; the results of the chains are added in order. No padding
// enters a chain: fma(0, 0, -0) is +0.
#pragma once
#include "args.h"
#include "math.h"

// k of one chain.
#define CHAIN 512u

// A panel's values of one column (0..32) at k and k + 1; k is even. Beyond `depth` values of k: anything.
template <uint TYPE>
INLINE void weight_pair(DEVICE const uint* panel, uint column, uint k, uint depth, THREAD float& first, THREAD float& second) {
    if (TYPE == STORED_F32) {
        first = AS_FLOAT(panel[k * 32 + column]);
        second = k + 1 < depth ? AS_FLOAT(panel[(k + 1) * 32 + column]) : 0.0f;
    } else {
        const uint both = panel[(k >> 1) * 32 + column];
        first = TYPE == STORED_F16 ? widened_f16(both & 0xffffu) : widened_bf16(both & 0xffffu);
        second = TYPE == STORED_F16 ? widened_f16(both >> 16) : widened_bf16(both >> 16);
    }
}

// Words of a panel.
template <uint TYPE>
INLINE uint panel_words(uint k) { return (TYPE == STORED_F32 ? k : (k + 1) / 2) * 32; }

// What becomes of a chain's sum on the way out. at: the element's index; column: its column.
INLINE float finished(float c, DEVICE const float* bias, DEVICE const float* factor, DEVICE const float* residual, uint flags,
                      uint activation, uint at, uint column) {
    if (flags & MATMUL_BIAS) c = c + bias[column];
    c = activate(activation, c);
    if (flags & MATMUL_FACTOR) c = c * factor[at];
    if (flags & MATMUL_RESIDUAL) c = c + residual[at];
    return c;
}

// The products of one k of a tile in shared memory, added to a thread's elements.
template <uint R>
INLINE void add_products(PTR_SHARED const float* as, PTR_SHARED const float* bs, uint tx, uint ty, uint k,
                         THREAD float (&sum)[R][R]) {
    const uint WIDTH = R * 16 + 4;
    float av[R], bv[R];
    UNROLL for (uint i = 0; i < R; i++) {
        av[i] = as[k * WIDTH + i / 4 * 64 + ty * 4 + i % 4];
        bv[i] = bs[k * WIDTH + i / 4 * 64 + tx * 4 + i % 4];
    }
    UNROLL for (uint i = 0; i < R; i++) {
        UNROLL for (uint j = 0; j < R; j++) sum[i][j] = FMA(av[i], bv[j], sum[i][j]);
    }
}

// Adds the sums of a tile's chains to the elements of the result, or makes them of it, and starts new chains.
template <uint R>
INLINE void close_chains(THREAD float (&sum)[R][R], DEVICE float* out, bool first, uint rows, uint n, uint row0, uint column0) {
    UNROLL for (uint i = 0; i < R; i++) {
        const uint row = row0 + i / 4 * 64 + i % 4;
        DEVICE float* line = out + row * n + column0;
        UNROLL for (uint j = 0; j < R; j++) {
            const uint at = j / 4 * 64 + j % 4;
            if (row < rows && column0 + at < n) line[at] = first ? sum[i][j] : line[at] + sum[i][j];
            sum[i][j] = 0.0f;
        }
    }
}

// What becomes of a thread's R by R elements on the way out. It reads what it wrote itself.
template <uint R>
INLINE void finish_tile(DEVICE const float* bias, DEVICE const float* factor, DEVICE const float* residual, DEVICE float* out,
                        PARAM(MatmulArgs) p, uint row0, uint column0) {
    if (p.flags == 0 && p.activation == ACTIVATION_IDENTITY) return;
    for (uint i = 0; i < R; i++) {
        const uint row = row0 + i / 4 * 64 + i % 4;
        for (uint j = 0; j < R; j++) {
            const uint column = column0 + j / 4 * 64 + j % 4, at = row * p.n + column;
            if (row < p.rows && column < p.n)
                out[at] = finished(out[at], bias, factor, residual, p.flags, p.activation, at, column);
        }
    }
}

// One tile of T by T elements by 256 threads, 16 by 16, R by R elements each (T = 16 R), in groups of 4 by 4 that lie 64
// apart. Tiles of `1024 / T` k of x and W alternate between two halves of shared memory: while one is computed with,
// the next is on its way through registers. Sums of finished chains wait in `out`.
//
// as, bs: [2][1024 / T][T + 4] floats.
template <uint TYPE, uint R>
INLINE void matmul_tile(DEVICE const float* x, DEVICE const uint* w, DEVICE const float* bias, DEVICE const float* factor,
                        DEVICE const float* residual, DEVICE float* out, PARAM(MatmulArgs) p, uint3 tid, uint3 gid,
                        PTR_SHARED float* as, PTR_SHARED float* bs) {
    const uint T = R * 16, STEP = 1024 / T, WIDTH = T + 4, HALF = STEP * WIDTH;
    const uint t = tid.x, tx = t % 16, ty = t / 16;
    // What this thread brings: four k of one row of x, four of one column of W.
    const uint a_line = t / (STEP / 4), a_k = t % (STEP / 4) * 4, b_line = t % T, b_k = t / T * 4;
    const uint a_row = gid.x * T + a_line, b_column = gid.y * T + b_line;
    DEVICE const float* a = x + (a_row < p.rows ? a_row : 0) * p.k;
    DEVICE const uint* panel = w + (b_column < p.n ? b_column / 32 : 0) * panel_words<TYPE>(p.k);
    float sum[R][R];
    UNROLL for (uint i = 0; i < R; i++) {
        UNROLL for (uint j = 0; j < R; j++) sum[i][j] = 0.0f;
    }
    const uint steps = (p.k + STEP - 1) / STEP;
    for (uint step = 0; step <= steps; step++) {
        float a_next[4] = {0.0f, 0.0f, 0.0f, 0.0f}, b_next[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (step < steps) { // fetch this step's tile
            const uint k0 = step * STEP;
            UNROLL for (uint i = 0; i < 4; i++) {
                if (k0 + a_k + i < p.k) a_next[i] = a[k0 + a_k + i];
            }
            UNROLL for (uint i = 0; i < 4; i += 2) {
                if (k0 + b_k + i < p.k) weight_pair<TYPE>(panel, b_column % 32, k0 + b_k + i, p.k, b_next[i], b_next[i + 1]);
            }
        }
        if (step > 0) { // compute with the last one's
            PTR_SHARED const float* ar = as + (step - 1) % 2 * HALF;
            PTR_SHARED const float* br = bs + (step - 1) % 2 * HALF;
            const uint left = p.k - (step - 1) * STEP;
            if (left >= STEP) {
                UNROLL for (uint k = 0; k < STEP; k++) add_products<R>(ar, br, tx, ty, k, sum);
            } else {
                for (uint k = 0; k < left; k++) add_products<R>(ar, br, tx, ty, k, sum);
            }
        }
        const uint done = step * STEP; // k that are computed with
        if (step == steps || (done > 0 && done % CHAIN == 0))
            close_chains<R>(sum, out, done <= CHAIN, p.rows, p.n, gid.x * T + ty * 4, gid.y * T + tx * 4);
        if (step < steps) {
            PTR_SHARED float* ar = as + step % 2 * HALF;
            PTR_SHARED float* br = bs + step % 2 * HALF;
            UNROLL for (uint i = 0; i < 4; i++) {
                ar[(a_k + i) * WIDTH + a_line] = a_next[i];
                br[(b_k + i) * WIDTH + b_line] = b_next[i];
            }
            BARRIER();
        }
    }
    finish_tile<R>(bias, factor, residual, out, p, gid.x * T + ty * 4, gid.y * T + tx * 4);
}

// A few rows (decoding): a SIMD group takes a panel, a lane a column, one of p.slots SIMD groups each chain. R rows at a
// time share the weights that pass.
//
// Grid: x over panels, y over ceil(rows / R); threadgroups of 32 by slots, slots at most 8. part: [8][R][32] floats.
template <uint TYPE, uint R>
INLINE void matvec_panel(DEVICE const float* x, DEVICE const uint* w, DEVICE const float* bias, DEVICE const float* factor,
                         DEVICE const float* residual, DEVICE float* out, PARAM(MatmulArgs) p, uint3 tid, uint3 gid,
                         PTR_SHARED float* part) {
    const uint lane = tid.x, slot = tid.y, column = gid.x * 32 + lane, first = gid.y * R;
    DEVICE const uint* panel = w + gid.x * panel_words<TYPE>(p.k);
    const uint chains = (p.k + CHAIN - 1) / CHAIN;
    float total[R];
    UNROLL for (uint r = 0; r < R; r++) total[r] = 0.0f;
    for (uint base = 0; base < chains; base += p.slots) {
        const uint chain = base + slot;
        if (chain < chains) {
            const uint end = (chain + 1) * CHAIN < p.k ? (chain + 1) * CHAIN : p.k;
            float sum[R];
            UNROLL for (uint r = 0; r < R; r++) sum[r] = 0.0f;
            uint k = chain * CHAIN;
            for (; k + 16 <= end; k += 16) { // many weights on their way at once
                float v[16];
                UNROLL for (uint i = 0; i < 16; i += 2) weight_pair<TYPE>(panel, lane, k + i, p.k, v[i], v[i + 1]);
                UNROLL for (uint r = 0; r < R; r++) {
                    DEVICE const float* row = x + (first + r < p.rows ? first + r : first) * p.k + k;
                    UNROLL for (uint i = 0; i < 16; i++) sum[r] = FMA(row[i], v[i], sum[r]);
                }
            }
            for (; k < end; k += 2) {
                float low, high;
                weight_pair<TYPE>(panel, lane, k, p.k, low, high);
                UNROLL for (uint r = 0; r < R; r++) {
                    DEVICE const float* row = x + (first + r < p.rows ? first + r : first) * p.k + k;
                    sum[r] = FMA(row[0], low, sum[r]);
                    if (k + 1 < end) sum[r] = FMA(row[1], high, sum[r]);
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

#define MATMUL_OPERANDS                                                                                             \
    DEVICE const float *x ARG(0), DEVICE const uint *w ARG(1), DEVICE const float *bias ARG(2),                     \
        DEVICE const float *factor ARG(3), DEVICE const float *residual ARG(4), DEVICE float *out ARG(5),           \
        PARAM(MatmulArgs) p ARG(6) THREAD_PARAMS

// Grid: x over ceil(rows / T), y over ceil(n / T), threadgroups of 256; T is 64 or 128.
#define MATMUL_KERNELS(suffix, TYPE)                                                                                \
    KERNEL(256) matmul64_##suffix(MATMUL_OPERANDS) {                                                                \
        THREAD_IDS();                                                                                               \
        SHARED float as[2 * 16 * 68];                                                                               \
        SHARED float bs[2 * 16 * 68];                                                                               \
        matmul_tile<TYPE, 4>(x, w, bias, factor, residual, out, p, tid, gid, as, bs);                               \
    }                                                                                                               \
    KERNEL(256) matmul128_##suffix(MATMUL_OPERANDS) {                                                               \
        THREAD_IDS();                                                                                               \
        SHARED float as[2 * 8 * 132];                                                                               \
        SHARED float bs[2 * 8 * 132];                                                                               \
        matmul_tile<TYPE, 8>(x, w, bias, factor, residual, out, p, tid, gid, as, bs);                               \
    }                                                                                                               \
    KERNEL(256) matvec1_##suffix(MATMUL_OPERANDS) {                                                                 \
        THREAD_IDS();                                                                                               \
        SHARED float part[8 * 32];                                                                                  \
        matvec_panel<TYPE, 1>(x, w, bias, factor, residual, out, p, tid, gid, part);                                \
    }                                                                                                               \
    KERNEL(256) matvec4_##suffix(MATMUL_OPERANDS) {                                                                 \
        THREAD_IDS();                                                                                               \
        SHARED float part[8 * 4 * 32];                                                                              \
        matvec_panel<TYPE, 4>(x, w, bias, factor, residual, out, p, tid, gid, part);                                \
    }

MATMUL_KERNELS(f32, STORED_F32)
MATMUL_KERNELS(f16, STORED_F16)
MATMUL_KERNELS(bf16, STORED_BF16)
