// The kernels' macros for the CPU: a GPU thread is a fiber, all of a threadgroup on one thread of the process, with real
// barriers and exact exchanges among the 32 lanes of a SIMD group. Kernels whose threads never meet run without fibers.
//
// A threadgroup whose threads do not all arrive at the same barrier, or lanes at the same exchange, ends the process with
// a message: a GPU would hang or read garbage.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
#define EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMU_TSAN 1
#endif
#endif
// The emulator's own bookkeeping is no part of the kernel's memory.
#ifdef EMU_TSAN
#define EMU_QUIET __attribute__((no_sanitize("thread"), noinline))
#else
#define EMU_QUIET
#endif
// Sanitizers watch plain globals; without them each thread of the process has its own.
#if defined(EMU_TSAN) || defined(__SANITIZE_ADDRESS__)
#define EMU_LOCAL
#else
#define EMU_LOCAL __thread
#endif

typedef unsigned int uint;
typedef unsigned short ushort;
struct uint3 {
    uint x, y, z;
};

namespace emu {
enum Wait { RUNS, BARRIER, EXCHANGE, DONE };

struct Fiber {
    void* stack_pointer;
    uint3 tid;
    uint flat;
    Wait wait;
    int line;
    uint barriers, exchanges;
    uint32_t slots[2];
    char* stack;
    void* tsan;
};

// The fiber that runs, and its threadgroup.
extern __thread Fiber* current;
extern __thread uint3 group;

void wait_for_others(Wait kind, int line);
Fiber* lane_of_current(uint lane);

template <class T>
EMU_QUIET T exchange(T value, uint from, int line) {
    static_assert(sizeof(T) == 4, "lanes exchange 4 bytes");
    const uint parity = current->exchanges & 1;
    memcpy(&current->slots[parity], &value, 4);
    wait_for_others(EXCHANGE, line);
    T result = value; // beyond the last lane: the lane's own
    if (from < 32) memcpy(&result, &lane_of_current(from)->slots[parity], 4);
    return result;
}
} // namespace emu

#define KERNEL(threads) static void
#define KERNEL_EACH(threads) static void
#define DEVICE
#define SHARED static EMU_LOCAL
#define PTR_SHARED
#define THREAD
#define ARG(n)
#define PARAM(T) const T
#define INLINE static inline
#define THREAD_PARAMS
#define THREAD_IDS()                                                                                                \
    const uint3 tid = emu::current->tid, gid = emu::group;                                                          \
    const uint lane = emu::current->flat & 31u, simd = emu::current->flat >> 5;                                     \
    (void)tid, (void)gid, (void)lane, (void)simd
#define BARRIER() emu::wait_for_others(emu::BARRIER, __LINE__)
#define BARRIER_ALL() BARRIER()
#define SHUFFLE(v, l) emu::exchange(v, l, __LINE__)
#define SHUFFLE_DOWN(v, d) emu::exchange(v, (emu::current->flat & 31u) + (d), __LINE__)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define SQRT(x) __builtin_sqrtf(x)
namespace emu {
template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace emu
#define AS_FLOAT(x) emu::bits<float>(x)
#define AS_UINT(x) emu::bits<uint>(x)
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
