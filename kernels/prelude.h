// One kernel source for three readers: Metal Shading Language (__METAL_VERSION__), CUDA C++ (clang -x cuda, without any
// header) and the tests' emulator on the CPU (emulator/emu.h). Kernels are written in what the three share, through
// these macros:
//
//   KERNEL(threads) name(buffers..., PARAM(Args) p ARG(n) THREAD_PARAMS) { THREAD_IDS(); ... }
//   KERNEL_EACH(threads)     the same, for a kernel whose threads never meet: no BARRIER, no SHUFFLE
//   DEVICE, SHARED           address spaces: SHARED declares an array of the threadgroup at the top of a kernel, and
//   PTR_SHARED               is how a function takes a pointer into it
//   tid, gid                 the thread in its threadgroup, the threadgroup in the grid (uint3)
//   lane, simd               the thread in its SIMD group of 32, and which one; threads are numbered x first, then y
//   BARRIER()                every thread of the threadgroup arrives, and sees what the others wrote to SHARED
//   BARRIER_ALL()            the same, for what they wrote to DEVICE memory too
//   SHUFFLE(v, l), SHUFFLE_DOWN(v, d)   the value of lane l, or of the lane d further; all 32 lanes take part
//   FMA, SQRT, AS_FLOAT, AS_UINT        a * b + c rounded once; the correctly rounded root; a value's bits
//   DOT4(a, b, c)            c plus the products of four signed bytes with four
//   UNROLL                   before a loop of a constant number of steps
//
// + - * / round to nearest, each on its own: a compiler of these sources neither contracts nor reorders (Metal: fast math
// off; CUDA: -ffp-contract=off, no flush to zero).
#pragma once
#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#pragma STDC FP_CONTRACT OFF
using namespace metal;
#define KERNEL(threads) [[max_total_threads_per_threadgroup(threads)]] kernel void
#define KERNEL_EACH(threads) KERNEL(threads)
#define DEVICE device
#define SHARED threadgroup
#define PTR_SHARED threadgroup
#define THREAD thread
#define ARG(n) [[buffer(n)]]
#define PARAM(T) constant T&
#define INLINE static inline
#define THREAD_PARAMS                                                                                               \
    , uint3 tid [[thread_position_in_threadgroup]], uint3 gid [[threadgroup_position_in_grid]],                    \
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]
#define THREAD_IDS() ((void)tid, (void)gid, (void)lane, (void)simd)
#define BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define BARRIER_ALL() (threadgroup_barrier(mem_flags::mem_device), threadgroup_barrier(mem_flags::mem_threadgroup))
#define SHUFFLE(v, l) simd_shuffle(v, ushort(l))
#define SHUFFLE_DOWN(v, d) simd_shuffle_down(v, ushort(d))
#define FMA(a, b, c) fma(a, b, c)
#define SQRT(x) precise::sqrt(x)
#define AS_FLOAT(x) as_type<float>(x)
#define AS_UINT(x) as_type<uint>(x)
#define UNROLL _Pragma("unroll")
#elif defined(__CUDA__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
typedef unsigned int uint;
typedef unsigned short ushort;
struct uint3 {
    uint x, y, z;
};
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads) void
#define KERNEL_EACH(threads) KERNEL(threads)
#define DEVICE
#define SHARED __shared__
#define PTR_SHARED
#define THREAD
#define ARG(n)
#define PARAM(T) const T
#define INLINE static __device__ inline __attribute__((always_inline))
#define THREAD_PARAMS
#define THREAD_IDS()                                                                                                \
    const uint3 tid = {uint(__nvvm_read_ptx_sreg_tid_x()), uint(__nvvm_read_ptx_sreg_tid_y()),                      \
                       uint(__nvvm_read_ptx_sreg_tid_z())};                                                         \
    const uint3 gid = {uint(__nvvm_read_ptx_sreg_ctaid_x()), uint(__nvvm_read_ptx_sreg_ctaid_y()),                  \
                       uint(__nvvm_read_ptx_sreg_ctaid_z())};                                                       \
    const uint flat_ = tid.x + uint(__nvvm_read_ptx_sreg_ntid_x()) *                                                \
                                   (tid.y + uint(__nvvm_read_ptx_sreg_ntid_y()) * tid.z);                           \
    const uint lane = flat_ & 31u, simd = flat_ >> 5;                                                               \
    (void)tid, (void)gid, (void)lane, (void)simd
#define BARRIER() __nvvm_bar_sync(0)
#define BARRIER_ALL() __nvvm_bar_sync(0)
#define SHUFFLE(v, l) __nvvm_shfl_sync_idx_f32(0xffffffffu, v, int(l), 0x1f)
#define SHUFFLE_DOWN(v, d) __nvvm_shfl_sync_down_f32(0xffffffffu, v, int(d), 0x1f)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define SQRT(x) __nvvm_sqrt_rn_f(x)
#define AS_FLOAT(x) __builtin_bit_cast(float, x)
#define AS_UINT(x) __builtin_bit_cast(uint, x)
#define UNROLL _Pragma("unroll")
#else
#include "emu.h"
#endif
