// Operations on each value of a buffer. Grid: ceil(count / 256) threadgroups of 256; a thread beyond the count does
// nothing.
#pragma once
#include "args.h"
#include "math.h"

// x[i] = act(x[i])
KERNEL_EACH(256) activate_values(DEVICE float* x ARG(0), PARAM(ActivateArgs) p ARG(1) THREAD_PARAMS) {
    THREAD_IDS();
    const uint i = gid.x * 256 + tid.x;
    if (i < p.count) x[i] = activate(p.activation, x[i]);
}

// x[i] = x[i] + y[i]
KERNEL_EACH(256) add_values(DEVICE float* x ARG(0), DEVICE const float* y ARG(1), PARAM(CountArgs) p ARG(2) THREAD_PARAMS) {
    THREAD_IDS();
    const uint i = gid.x * 256 + tid.x;
    if (i < p.count) x[i] = x[i] + y[i];
}

// x[i] = x[i] * y[i]
KERNEL_EACH(256) multiply_values(DEVICE float* x ARG(0), DEVICE const float* y ARG(1), PARAM(CountArgs) p ARG(2) THREAD_PARAMS) {
    THREAD_IDS();
    const uint i = gid.x * 256 + tid.x;
    if (i < p.count) x[i] = x[i] * y[i];
}

// x[i] = x[i] * factor
KERNEL_EACH(256) scale_values(DEVICE float* x ARG(0), PARAM(ScaleArgs) p ARG(1) THREAD_PARAMS) {
    THREAD_IDS();
    const uint i = gid.x * 256 + tid.x;
    if (i < p.count) x[i] = x[i] * p.factor;
}
