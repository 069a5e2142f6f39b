// Attention over packed sequences, and over stored keys: scores, softmax, values. Keys j of a sequence are numbered from
// 0; head h uses key head h / (heads / kv_heads).
//
// A tile is up to 32 consecutive queries of a sequence; a launch takes many, of which `tiles` holds 8 words each:
//   ROW    the first query's row in q and in the output       QUERY   its number among the sequence's keys
//   COUNT  queries of the tile                                KEYS    key 0's row in k and v, or its place in `blocks`
//   LEN    keys of the sequence                               SCORES  where the tile's scores begin
//   STRIDE distance between two heads' scores
// The score of query i (from the tile's first), key j and head h lies at SCORES + h * STRIDE + i * LEN + j.
//
// Stored keys (p.flags & ATTENTION_STORED) lie in blocks of 64: key j of the block blocks[KEYS + j / 64] of
// [block][kv_head][64][dim]; their position is their number. Else key j is row KEYS + j of a matrix.
#pragma once
#include "args.h"
#include "rows.h"

// Where the vector of key j of a head begins; `first` and `stride` place it in a matrix.
INLINE uint key_at(DEVICE const uint* tile, DEVICE const uint* blocks, uint flags, uint kv_heads, uint dim, uint first,
                   uint stride, uint head, uint j) {
    if (flags & ATTENTION_STORED) return ((blocks[tile[TILE_KEYS] + (j >> 6)] * kv_heads + head) * 64 + (j & 63u)) * dim;
    return (tile[TILE_KEYS] + j) * stride + first + head * dim;
}

// How many of the ascending values are below `limit`.
INLINE uint below(DEVICE const uint* values, uint count, uint limit) {
    uint low = 0, high = count;
    while (low < high) {
        const uint middle = (low + high) / 2;
        if (values[middle] < limit) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The first key that query i of a tile sees, and one past the last. positions: of every row of the batch.
INLINE void seen_keys(DEVICE const uint* tile, DEVICE const uint* positions, uint flags, uint behind, uint ahead, uint i,
                      THREAD uint& first, THREAD uint& end) {
    const uint len = tile[TILE_LEN], query = tile[TILE_QUERY] + i;
    first = 0;
    end = len;
    if (flags & ATTENTION_STORED) {
        first = query > behind ? query - behind : 0;
        end = query + 1;
    } else if (behind != 0xffffffffu || ahead != 0xffffffffu) {
        DEVICE const uint* own = positions + tile[TILE_KEYS];
        const uint at = own[query], last = at > 0xffffffffu - ahead ? 0xffffffffu : at + ahead;
        first = below(own, len, at > behind ? at - behind : 0);
        end = last == 0xffffffffu ? len : below(own, len, last + 1);
    }
}

// The keys that any query of a tile sees: positions ascend.
INLINE void seen_by_tile(DEVICE const uint* tile, DEVICE const uint* positions, uint flags, uint behind, uint ahead,
                         THREAD uint& first, THREAD uint& end) {
    uint other;
    seen_keys(tile, positions, flags, behind, ahead, tile[TILE_COUNT] - 1, other, end);
    seen_keys(tile, positions, flags, behind, ahead, 0, first, other);
}

// The raw scores of 32 queries by 64 keys: the chain of q and k over the head's features, cut at 512.
//
// Grid: x over ceil(longest LEN / 64), y over tiles, z over heads (from p.head on); threadgroups of 256, 16 keys by 16
// queries, each thread 4 keys (16 apart) of 2 queries. With ATTENTION_WINDOW, keys that no query of the tile sees get no
// score. Query head h is the columns q_first + h / q_group * dim; key head h / k_group.
KERNEL(256) attention_scores(DEVICE const float* q ARG(0), DEVICE const float* k ARG(1), DEVICE const uint* tiles ARG(2),
                             DEVICE const uint* blocks ARG(3), DEVICE const uint* positions ARG(4), DEVICE float* scores ARG(5),
                             PARAM(ScoreArgs) p ARG(6) THREAD_PARAMS) {
    THREAD_IDS();
    SHARED float qs[16 * 33];
    SHARED float ks[16 * 65];
    DEVICE const uint* tile = tiles + gid.y * 8;
    const uint len = tile[TILE_LEN], count = tile[TILE_COUNT], key0 = gid.x * 64, head = p.head + gid.z;
    if (key0 >= len) return;
    if (p.flags & ATTENTION_WINDOW) {
        uint first, end;
        seen_by_tile(tile, positions, p.flags, p.behind, p.ahead, first, end);
        if (key0 >= end || key0 + 64 <= first) return;
    }
    const uint t = tid.x, tx = t % 16, ty = t / 16;
    float sum[2][4], total[2][4];
    UNROLL for (uint i = 0; i < 2; i++) {
        UNROLL for (uint j = 0; j < 4; j++) sum[i][j] = total[i][j] = 0.0f;
    }
    for (uint d0 = 0; d0 < p.dim; d0 += 16) {
        const uint left = p.dim - d0, depth = left < 16 ? left : 16;
        if (tx < depth) { // 16 lanes bring 16 features of a row
            UNROLL for (uint i = 0; i < 2; i++) {
                const uint row = ty + i * 16;
                if (row < count)
                    qs[tx * 33 + row] = q[(tile[TILE_ROW] + row) * p.q_stride + p.q_first + head / p.q_group * p.dim + d0 + tx];
            }
            UNROLL for (uint j = 0; j < 4; j++) {
                const uint row = ty + j * 16;
                if (key0 + row < len)
                    ks[tx * 65 + row] = k[key_at(tile, blocks, p.flags, p.kv_heads, p.dim, p.k_first, p.k_stride,
                                                 head / p.k_group, key0 + row) + d0 + tx];
            }
        }
        BARRIER();
        for (uint d = 0; d < depth; d++) {
            UNROLL for (uint i = 0; i < 2; i++) {
                UNROLL for (uint j = 0; j < 4; j++)
                    sum[i][j] = FMA(qs[d * 33 + ty * 2 + i], ks[d * 65 + tx + j * 16], sum[i][j]);
            }
        }
        BARRIER();
        const uint done = d0 + 16;
        if (done % 512 == 0 || done >= p.dim) {
            UNROLL for (uint i = 0; i < 2; i++) {
                UNROLL for (uint j = 0; j < 4; j++) {
                    total[i][j] = done <= 512 ? sum[i][j] : total[i][j] + sum[i][j];
                    sum[i][j] = 0.0f;
                }
            }
        }
    }
    DEVICE float* out = scores + tile[TILE_SCORES] + gid.z * tile[TILE_STRIDE];
    UNROLL for (uint i = 0; i < 2; i++) {
        UNROLL for (uint j = 0; j < 4; j++) {
            const uint query = ty * 2 + i, key = key0 + tx + j * 16;
            if (query < count && key < len) out[query * len + key] = total[i][j];
        }
    }
}

// Adds the disentangled terms: s[i][j] + by_query[i][m] + by_key[j][m], m the row of the distance of i and j.
//
//   by_query  the scores of the tile's queries with the position keys: SCORES etc. of the tile in `query_tiles`
//   by_key    the scores of the sequence's keys with the position queries, [heads][keys][rows], from key_base[gid.y] on
//
// Grid: x over ceil(longest LEN / 64), y over tiles, z over heads; threadgroups of 64 keys by 4 queries.
KERNEL_EACH(256) attention_terms(DEVICE float* scores ARG(0), DEVICE const uint* tiles ARG(1), DEVICE const uint* positions ARG(2),
                                 DEVICE const uint* map ARG(3), DEVICE const float* by_query ARG(4),
                                 DEVICE const uint* query_tiles ARG(5), DEVICE const float* by_key ARG(6),
                                 DEVICE const uint* key_base ARG(7), PARAM(TermArgs) p ARG(8) THREAD_PARAMS) {
    THREAD_IDS();
    DEVICE const uint* tile = tiles + gid.y * 8;
    const uint len = tile[TILE_LEN], key = gid.x * 64 + tid.x;
    if (key >= len) return;
    DEVICE const uint* own = positions + tile[TILE_KEYS];
    DEVICE float* out = scores + tile[TILE_SCORES] + gid.z * tile[TILE_STRIDE];
    for (uint i = tid.y; i < tile[TILE_COUNT]; i += 4) {
        const uint from = own[tile[TILE_QUERY] + i], to = own[key];
        const uint apart = from < to ? to - from : from - to, distance = apart < p.reach ? apart : p.reach;
        const uint row = map[from < to ? p.reach - distance : p.reach + distance];
        float score = out[i * len + key];
        if (p.flags & TERMS_BY_QUERY) {
            DEVICE const uint* other = query_tiles + gid.y * 8;
            score = score + by_query[other[TILE_SCORES] + gid.z * other[TILE_STRIDE] + i * p.rows + row];
        }
        if (p.flags & TERMS_BY_KEY) score = score + by_key[key_base[gid.y] + (gid.z * len + key) * p.rows + row];
        out[i * len + key] = score;
    }
}

// z: a score scaled, capped and biased. bias: slopes [heads], or [heads][2 reach + 1]; q_at, k_at: positions.
INLINE float scaled_score(float s, DEVICE const float* bias, PARAM(SoftmaxArgs) p, uint head, uint q_at, uint k_at) {
    const uint apart = q_at < k_at ? k_at - q_at : q_at - k_at;
    float added = 0.0f;
    if (p.bias == BIAS_ALIBI) {
        added = -(bias[head] * float(apart));
    } else if (p.bias == BIAS_DISTANCE) {
        const uint distance = apart < p.reach ? apart : p.reach;
        added = bias[head * (2 * p.reach + 1) + (k_at < q_at ? p.reach - distance : p.reach + distance)];
    }
    if (p.flags & SOFTMAX_CAPPED) {
        const float capped = hyperbolic_tangent((s * p.scale) / p.softcap) * p.softcap;
        return p.bias == BIAS_NONE ? capped : capped + added;
    }
    return p.bias == BIAS_NONE ? s * p.scale : FMA(s, p.scale, added);
}

// Softmax of each query's scores over the keys it sees, in place; key j is of lane j mod 32. With SOFTMAX_FILL the
// weights of the others become +0; else they are left alone.
//
// Grid: x over ceil(largest COUNT / 8), y over tiles, z over heads (from p.head on); threadgroups of 256, a SIMD group a query.
KERNEL(256) attention_softmax(DEVICE float* scores ARG(0), DEVICE const uint* tiles ARG(1), DEVICE const uint* positions ARG(2),
                              DEVICE const float* bias ARG(3), PARAM(SoftmaxArgs) p ARG(4) THREAD_PARAMS) {
    THREAD_IDS();
    DEVICE const uint* tile = tiles + gid.y * 8;
    const uint len = tile[TILE_LEN], i = gid.x * 8 + simd, head = p.head + gid.z;
    if (i >= tile[TILE_COUNT]) return;
    DEVICE float* row = scores + tile[TILE_SCORES] + gid.z * tile[TILE_STRIDE] + i * len;
    DEVICE const uint* own = positions + ((p.flags & ATTENTION_STORED) ? 0 : tile[TILE_KEYS]);
    uint seen, end;
    seen_keys(tile, positions, p.flags, p.behind, p.ahead, i, seen, end);
    const uint first = (seen & ~31u) + lane; // lanes are counted from key 0
    const uint q_at = p.bias == BIAS_NONE ? 0 : own[tile[TILE_QUERY] + i];
    float top = 0.0f - INFINITE;
    for (uint j = first; j < end; j += 32) {
        if (j < seen) continue;
        const float z = scaled_score(row[j], bias, p, head, q_at, p.bias == BIAS_NONE ? 0 : own[j]);
        row[j] = z;
        top = top < z ? z : top;
    }
    for (uint width = 16; width > 0; width >>= 1) {
        const float other = SHUFFLE_DOWN(top, width);
        top = top < other ? other : top;
    }
    top = SHUFFLE(top, 0);
    float sum = 0.0f;
    for (uint j = first; j < end; j += 32) {
        if (j < seen) continue;
        const float d = row[j] - top, e = d < -69.0f ? 0.0f : exponential(d);
        row[j] = e;
        sum = sum + e;
    }
    const float inverse = 1.0f / folded(sum);
    for (uint j = first; j < end; j += 32) {
        if (j >= seen) row[j] = row[j] * inverse;
    }
    if (p.flags & SOFTMAX_FILL) {
        for (uint j = lane; j < len; j += 32) {
            if (j < seen || j >= end) row[j] = 0.0f;
        }
    }
}

// out[i] = +0 + the chains of p[i][j] v[j] over the keys seen, cut at multiples of 512, for 32 queries by 64 features.
//
// Grid: x over ceil(dim / 64), y over tiles, z over heads (from p.head on); threadgroups of 256, 16 by 16: a thread has 4
// features (16 apart) of 2 queries. out: [rows, out_stride], head h at column h * dim.
KERNEL(256) attention_values(DEVICE const float* scores ARG(0), DEVICE const float* v ARG(1), DEVICE const uint* tiles ARG(2),
                             DEVICE const uint* blocks ARG(3), DEVICE const uint* positions ARG(4), DEVICE float* out ARG(5),
                             PARAM(ValueArgs) p ARG(6) THREAD_PARAMS) {
    THREAD_IDS();
    SHARED float ps[32 * 33];
    SHARED float vs[32 * 65];
    DEVICE const uint* tile = tiles + gid.y * 8;
    const uint len = tile[TILE_LEN], count = tile[TILE_COUNT], head = p.head + gid.z, feature0 = gid.x * 64;
    DEVICE const float* weights = scores + tile[TILE_SCORES] + gid.z * tile[TILE_STRIDE];
    const uint t = tid.x, tx = t % 16, ty = t / 16;
    uint seen_first[2], seen_end[2], first, end;
    UNROLL for (uint i = 0; i < 2; i++) {
        const uint query = ty * 2 + i < count ? ty * 2 + i : 0;
        seen_keys(tile, positions, p.flags, p.behind, p.ahead, query, seen_first[i], seen_end[i]);
    }
    seen_by_tile(tile, positions, p.flags, p.behind, p.ahead, first, end);
    float sum[2][4], total[2][4];
    UNROLL for (uint i = 0; i < 2; i++) {
        UNROLL for (uint j = 0; j < 4; j++) sum[i][j] = total[i][j] = 0.0f;
    }
    for (uint key0 = first & ~31u; key0 < end; key0 += 32) {
        const uint left = end - key0, depth = left < 32 ? left : 32;
        for (uint at = t; at < 32 * 32; at += 256) {
            const uint key = at % 32, query = at / 32;
            if (key < depth && query < count) ps[key * 33 + query] = weights[query * len + key0 + key];
        }
        for (uint at = t; at < 32 * 64; at += 256) {
            const uint key = at / 64, feature = at % 64;
            if (key < depth && feature0 + feature < p.dim)
                vs[key * 65 + feature] = v[key_at(tile, blocks, p.flags, p.kv_heads, p.dim, p.v_first, p.v_stride,
                                                  head / p.k_group, key0 + key) + feature0 + feature];
        }
        BARRIER();
        UNROLL for (uint i = 0; i < 2; i++) {
            for (uint key = 0; key < depth; key++) {
                if (key0 + key < seen_first[i] || key0 + key >= seen_end[i]) continue;
                const float weight = ps[key * 33 + ty * 2 + i];
                UNROLL for (uint j = 0; j < 4; j++) sum[i][j] = FMA(weight, vs[key * 65 + tx + j * 16], sum[i][j]);
            }
        }
        BARRIER();
        const uint done = key0 + 32;
        if (done % 512 == 0 || done >= end) {
            UNROLL for (uint i = 0; i < 2; i++) {
                UNROLL for (uint j = 0; j < 4; j++) {
                    total[i][j] = total[i][j] + sum[i][j];
                    sum[i][j] = 0.0f;
                }
            }
        }
    }
    UNROLL for (uint i = 0; i < 2; i++) {
        UNROLL for (uint j = 0; j < 4; j++) {
            const uint query = ty * 2 + i, feature = feature0 + tx + j * 16;
            if (query < count && feature < p.dim)
                out[(tile[TILE_ROW] + query) * p.out_stride + head * p.dim + feature] = total[i][j];
        }
    }
}

// attention_softmax for tiles of one query (decoding): a threadgroup a row, so that long rows are quick. The sum alone is
// left to one SIMD group, whose lanes are the contract's.
//
// Grid: x 1, y over tiles, z over heads (from p.head on); threadgroups of 256.
KERNEL(256) attention_softmax_one(DEVICE float* scores ARG(0), DEVICE const uint* tiles ARG(1), DEVICE const uint* positions ARG(2),
                                  DEVICE const float* bias ARG(3), PARAM(SoftmaxArgs) p ARG(4) THREAD_PARAMS) {
    THREAD_IDS();
    SHARED float tops[8];
    SHARED float inverse[1];
    DEVICE const uint* tile = tiles + gid.y * 8;
    const uint len = tile[TILE_LEN], head = p.head + gid.z;
    DEVICE float* row = scores + tile[TILE_SCORES] + gid.z * tile[TILE_STRIDE];
    DEVICE const uint* own = positions + ((p.flags & ATTENTION_STORED) ? 0 : tile[TILE_KEYS]);
    uint seen, end;
    seen_keys(tile, positions, p.flags, p.behind, p.ahead, 0, seen, end);
    const uint q_at = p.bias == BIAS_NONE ? 0 : own[tile[TILE_QUERY]];
    float top = 0.0f - INFINITE;
    for (uint j = seen + tid.x; j < end; j += 256) {
        const float z = scaled_score(row[j], bias, p, head, q_at, p.bias == BIAS_NONE ? 0 : own[j]);
        row[j] = z;
        top = top < z ? z : top;
    }
    for (uint width = 16; width > 0; width >>= 1) {
        const float other = SHUFFLE_DOWN(top, width);
        top = top < other ? other : top;
    }
    if (lane == 0) tops[simd] = top;
    BARRIER();
    top = tops[0];
    for (uint i = 1; i < 8; i++) top = top < tops[i] ? tops[i] : top;
    for (uint j = seen + tid.x; j < end; j += 256) { // each thread what it wrote
        const float d = row[j] - top;
        row[j] = d < -69.0f ? 0.0f : exponential(d);
    }
    BARRIER_ALL();
    if (simd == 0) {
        float sum = 0.0f;
        uint j = (seen & ~31u) + lane;
        if (j < seen) j += 32;
        for (; j < end; j += 32) sum = sum + row[j];
        sum = folded(sum);
        if (lane == 0) inverse[0] = 1.0f / sum;
    }
    BARRIER();
    for (uint j = seen + tid.x; j < end; j += 256) row[j] = row[j] * inverse[0];
    if (p.flags & SOFTMAX_FILL) {
        for (uint j = tid.x; j < len; j += 256) {
            if (j < seen || j >= end) row[j] = 0.0f;
        }
    }
}

// attention_values for tiles of one query (decoding): four chains at a time.
//
// Grid: x over ceil(dim / 64), y over tiles, z over heads (from p.head on); threadgroups of 64 features by 4 chains.
KERNEL(256) attention_values_one(DEVICE const float* scores ARG(0), DEVICE const float* v ARG(1), DEVICE const uint* tiles ARG(2),
                                 DEVICE const uint* blocks ARG(3), DEVICE const uint* positions ARG(4), DEVICE float* out ARG(5),
                                 PARAM(ValueArgs) p ARG(6) THREAD_PARAMS) {
    THREAD_IDS();
    SHARED float part[4 * 64];
    DEVICE const uint* tile = tiles + gid.y * 8;
    const uint head = p.head + gid.z, feature = gid.x * 64 + tid.x;
    DEVICE const float* weights = scores + tile[TILE_SCORES] + gid.z * tile[TILE_STRIDE];
    const uint step = (p.flags & ATTENTION_STORED) ? p.dim : p.v_stride;
    uint seen, end;
    seen_keys(tile, positions, p.flags, p.behind, p.ahead, 0, seen, end);
    float total = 0.0f;
    for (uint base = seen / 512; base * 512 < end; base += 4) {
        const uint chain = base + tid.y, last = (chain + 1) * 512 < end ? (chain + 1) * 512 : end;
        if (chain * 512 < end && feature < p.dim) {
            float sum = 0.0f;
            uint key = chain * 512 > seen ? chain * 512 : seen;
            while (key < last) { // up to the end of a block of stored keys
                const uint stop = (key | 63u) + 1 < last ? (key | 63u) + 1 : last;
                DEVICE const float* value = v + feature + key_at(tile, blocks, p.flags, p.kv_heads, p.dim, p.v_first,
                                                                 p.v_stride, head / p.k_group, key);
                for (; key < stop; key++, value += step) sum = FMA(weights[key], *value, sum);
            }
            part[tid.y * 64 + tid.x] = sum;
        }
        BARRIER();
        if (tid.y == 0 && feature < p.dim) {
            for (uint i = 0; i < 4 && (base + i) * 512 < end; i++) total = total + part[i * 64 + tid.x];
        }
        BARRIER();
    }
    if (tid.y == 0 && feature < p.dim) out[tile[TILE_ROW] * p.out_stride + head * p.dim + feature] = total;
}
