// What a device can do at most, for benchmarks to compare with.
#pragma once
#include "args.h"

// 16 chains of 8 * count fma in each thread, in registers; out[thread] is their sum.
// Grid: any number of threadgroups of 256. out: a value a thread.
KERNEL_EACH(256) measure_fma(DEVICE float* out ARG(0), PARAM(CountArgs) p ARG(1) THREAD_PARAMS) {
    THREAD_IDS();
    const uint at = gid.x * 256 + tid.x;
    const float factor = 1.0f / float(p.count + 1), term = float(at); // not known to the compiler
    float chain[16];
    UNROLL for (uint i = 0; i < 16; i++) chain[i] = float(i);
    for (uint step = 0; step < p.count; step++) {
        UNROLL for (uint turn = 0; turn < 8; turn++) {
            UNROLL for (uint i = 0; i < 16; i++) chain[i] = FMA(chain[i], factor, term);
        }
    }
    float sum = 0.0f;
    UNROLL for (uint i = 0; i < 16; i++) sum = sum + chain[i];
    out[at] = sum;
}
