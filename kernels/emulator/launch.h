// Launches kernels: fibers, their scheduler, and the table of kernels by name. Included once, after the kernels.
#pragma once
#include "emu.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef EMU_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif

// Saves the callee's registers and the stack pointer, and goes on where `to` was saved.
extern "C" void emu_switch(void** save, void* to);
#if defined(__x86_64__)
#define EMU_SAVED 6
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
#elif defined(__aarch64__)
#define EMU_SAVED 20
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  sub sp, sp, #160
  stp d8, d9, [sp, #0]
  stp d10, d11, [sp, #16]
  stp d12, d13, [sp, #32]
  stp d14, d15, [sp, #48]
  stp x19, x20, [sp, #64]
  stp x21, x22, [sp, #80]
  stp x23, x24, [sp, #96]
  stp x25, x26, [sp, #112]
  stp x27, x28, [sp, #128]
  stp x29, x30, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp d8, d9, [sp, #0]
  ldp d10, d11, [sp, #16]
  ldp d12, d13, [sp, #32]
  ldp d14, d15, [sp, #48]
  ldp x19, x20, [sp, #64]
  ldp x21, x22, [sp, #80]
  ldp x23, x24, [sp, #96]
  ldp x25, x26, [sp, #112]
  ldp x27, x28, [sp, #128]
  ldp x29, x30, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch,.-emu_switch
)");
#endif

namespace emu {
__thread Fiber* current = nullptr;
__thread uint3 group;

typedef void (*Call)(void* const* buffers, const void* args);

// How far the threads of a SIMD group have come since they last went on together.
struct Meeting {
    uint waiting[4]; // by Wait
    int line;        // where the first of them waits
    bool elsewhere;  // whether another waits at another line
    bool blocked;    // at a barrier, or ended
};

struct Scheduler {
    std::vector<Fiber> fibers;
    Meeting meetings[32];
    uint3 threads = {0, 0, 0};
    std::vector<uint> order;
    void* main_pointer = nullptr;
    void* main_tsan = nullptr;
    Call call = nullptr;
    void* const* buffers = nullptr;
    const void* args = nullptr;
    const char* kernel = "";
    bool without_fibers = false;
    uint64_t random = 1;
    char start, end, barrier[2], exchange[32][2]; // what threads synchronise on, for the sanitizer
};
static __thread Scheduler* scheduler_of_thread = nullptr; // lives as long as the process
#define scheduler (*scheduler_of_thread)

[[noreturn]] static void diverged(const char* why) {
    fprintf(stderr, "kernel %s, threadgroup (%u, %u, %u): %s\n", scheduler.kernel, group.x, group.y, group.z, why);
    int shown = 0;
    for (const Fiber& f : scheduler.fibers)
        if (f.wait != RUNS && shown++ < 8)
            fprintf(stderr, "  thread %u: %s, line %d\n", f.flat,
                    f.wait == BARRIER ? "at a barrier" : f.wait == EXCHANGE ? "at an exchange" : "ended", f.line);
    abort();
}

EMU_QUIET static void to_main(Wait kind, int line) {
    Meeting& meeting = scheduler.meetings[current->flat >> 5];
    const uint before = meeting.waiting[BARRIER] + meeting.waiting[EXCHANGE] + meeting.waiting[DONE];
    meeting.elsewhere |= before > 0 && meeting.line != line;
    meeting.line = line;
    meeting.waiting[kind]++;
    current->wait = kind;
    current->line = line;
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(scheduler.main_tsan, 1);
#endif
    emu_switch(&current->stack_pointer, scheduler.main_pointer);
}

EMU_QUIET void wait_for_others(Wait kind, int line) {
    Fiber& me = *current;
    if (scheduler.without_fibers) diverged("a kernel declared by KERNEL_EACH has a barrier or an exchange");
    const uint parity = (kind == BARRIER ? me.barriers++ : me.exchanges++) & 1;
#ifdef EMU_TSAN
    char* key = kind == BARRIER ? &scheduler.barrier[parity] : &scheduler.exchange[me.flat >> 5][parity];
    __tsan_release(key);
    to_main(kind, line);
    __tsan_acquire(key);
#else
    (void)parity;
    to_main(kind, line);
#endif
}

EMU_QUIET Fiber* lane_of_current(uint lane) {
    const uint flat = (current->flat & ~31u) + lane;
    if (flat >= scheduler.order.size()) diverged("an exchange with a lane that the threadgroup lacks");
    return &scheduler.fibers[flat];
}

// A fiber lives on from one threadgroup to the next.
EMU_QUIET static void entry() {
    for (;;) {
#ifdef EMU_TSAN
        __tsan_acquire(&scheduler.start);
#endif
        scheduler.call(scheduler.buffers, scheduler.args);
#ifdef EMU_TSAN
        __tsan_release(&scheduler.end);
#endif
        to_main(DONE, 0);
    }
}

enum { STACK = 64 * 1024 };

EMU_QUIET static void make_fibers(uint count) {
    for (uint i = uint(scheduler.fibers.size()); i < count; i++) {
        Fiber f{};
        f.flat = i;
        f.stack = static_cast<char*>(aligned_alloc(64, STACK));
        // Tops of stacks are shifted: equal offsets would share the cache's sets.
        void** top = reinterpret_cast<void**>(f.stack + STACK - 4096 - i % 61 * 64);
#if defined(__x86_64__)
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(entry);
        for (int r = 0; r < EMU_SAVED; r++) *--top = nullptr;
#else
        for (int r = 0; r < EMU_SAVED; r++) *--top = nullptr;
        top[EMU_SAVED - 1] = reinterpret_cast<void*>(entry);
#endif
        f.stack_pointer = top;
#ifdef EMU_TSAN
        f.tsan = __tsan_create_fiber(0);
#endif
        scheduler.fibers.push_back(f);
    }
}

EMU_QUIET static void run_fiber(Fiber& f) {
    current = &f;
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(f.tsan, 1);
#endif
    emu_switch(&scheduler.main_pointer, f.stack_pointer);
}

// Whether a SIMD group whose lanes have all run is at an exchange, and goes on; else it is blocked.
EMU_QUIET static bool goes_on(uint group_index, uint lanes) {
    Meeting& m = scheduler.meetings[group_index];
    if (m.elsewhere) diverged("lanes of a SIMD group are at different places");
    const bool exchange = m.waiting[EXCHANGE] == lanes;
    m.blocked = !exchange;
    if (exchange) m = {};
    return exchange;
}

// Runs the threads to the next barrier, or to their ends. seed: 0 SIMD groups one by one, lanes in ascending order; 1 both
// in descending order; else all threads in a shuffled order, SIMD groups side by side through their exchanges.
EMU_QUIET static void run_to_barrier(uint count, uint seed) {
    const uint groups = (count + 31) / 32;
    for (uint g = 0; g < groups; g++) scheduler.meetings[g] = {};
    if (seed > 1) {
        std::vector<uint>& order = scheduler.order;
        for (uint i = count - 1; i > 0; i--) {
            scheduler.random = scheduler.random * 6364136223846793005u + 1442695040888963407u + seed;
            std::swap(order[i], order[(scheduler.random >> 32) * (i + 1) >> 32]);
        }
        for (bool on = true; on;) {
            for (uint i : order)
                if (!scheduler.meetings[i >> 5].blocked) run_fiber(scheduler.fibers[i]);
            on = false;
            for (uint g = 0; g < groups; g++)
                if (!scheduler.meetings[g].blocked) on |= goes_on(g, std::min(32u, count - g * 32));
        }
        return;
    }
    for (uint k = 0; k < groups; k++) {
        const uint g = seed == 1 ? groups - 1 - k : k, lanes = std::min(32u, count - g * 32);
        Fiber* fibers = &scheduler.fibers[g * 32];
        do {
            for (uint lane = 0; lane < lanes; lane++) run_fiber(fibers[seed == 1 ? lanes - 1 - lane : lane]);
        } while (goes_on(g, lanes));
    }
}

EMU_QUIET static void run_group(uint3 threads, uint seed) {
    Scheduler& s = scheduler;
    const uint count = threads.x * threads.y * threads.z, groups = (count + 31) / 32;
    if (threads.x != s.threads.x || threads.y != s.threads.y || threads.z != s.threads.z) {
        make_fibers(count);
        s.order.resize(count);
        s.threads = threads;
        for (uint i = 0; i < count; i++) {
            s.fibers[i].tid = {i % threads.x, i / threads.x % threads.y, i / (threads.x * threads.y)};
            s.order[i] = i;
        }
    }
    // Exchanges are counted from the threadgroup's start; barriers too.
    for (uint i = 0; i < count; i++) s.fibers[i].barriers = s.fibers[i].exchanges = 0;
#ifdef EMU_TSAN
    s.main_tsan = __tsan_get_current_fiber();
    __tsan_release(&s.start);
#endif
    for (;;) {
        run_to_barrier(count, seed);
        uint ended = 0, at_barrier = 0;
        for (uint g = 0; g < groups; g++) {
            ended += s.meetings[g].waiting[DONE];
            at_barrier += s.meetings[g].waiting[BARRIER];
            if (s.meetings[g].line != s.meetings[0].line && ended == 0) diverged("threads are at different barriers");
        }
        if (ended == count) break;
        if (at_barrier != count) diverged("some threads never arrive");
    }
#ifdef EMU_TSAN
    __tsan_acquire(&s.end);
#endif
}

EMU_QUIET static void run_each(uint3 threads, uint order) {
    Fiber thread{};
    current = &thread;
    const uint count = threads.x * threads.y * threads.z;
    for (uint i = 0; i < count; i++) {
        thread.flat = order == 1 ? count - 1 - i : i;
        const uint flat = thread.flat;
        thread.tid = {flat % threads.x, flat / threads.x % threads.y, flat / (threads.x * threads.y)};
        scheduler.call(scheduler.buffers, scheduler.args);
    }
}

struct Entry {
    const char* name;
    uint threads;
    bool each;
    uint buffers;
    size_t args;
    Call call;
};
extern const Entry entries[];

// Calls a kernel with buffers as its pointers and the bytes of its last parameter.
template <auto KERNEL_FUNCTION>
struct Caller;
template <class... P, void (*KERNEL_FUNCTION)(P...)>
struct Caller<KERNEL_FUNCTION> {
    static constexpr uint BUFFERS = sizeof...(P) - 1;
    template <size_t I>
    using Parameter = typename std::tuple_element<I, std::tuple<P...>>::type;
    typedef typename std::remove_const<Parameter<BUFFERS>>::type Args;
    template <size_t... I>
    static void with(void* const* buffers, const void* args, std::index_sequence<I...>) {
        Args p;
        memcpy(&p, args, sizeof p);
        KERNEL_FUNCTION(static_cast<Parameter<I>>(buffers[I])..., p);
    }
    static void call(void* const* buffers, const void* args) { with(buffers, args, std::make_index_sequence<BUFFERS>()); }
};
#define KERNEL_ENTRY(name, threads, each)                                                                           \
    {#name, threads, each, emu::Caller<name>::BUFFERS, sizeof(emu::Caller<name>::Args), emu::Caller<name>::call}
} // namespace emu

// What a launch that is refused gives: 1 no such kernel, 2 too many threads, 3 another number of buffers, 4 another size
// of arguments; 0 when it ran.
extern "C" int kin_infer_emulator_launch(const char* name, const uint* grid, const uint* threads, void* const* buffers,
                                         uint buffer_count, const void* args, size_t args_size, uint order) {
    const emu::Entry* entry = emu::entries;
    while (entry->name && strcmp(entry->name, name) != 0) entry++;
    if (!entry->name) return 1;
    const uint3 size = {threads[0], threads[1], threads[2]};
    if (size.x * size.y * size.z == 0 || size.x * size.y * size.z > entry->threads) return 2;
    if (entry->buffers != buffer_count) return 3;
    if (entry->args != args_size) return 4;
    if (!emu::scheduler_of_thread) emu::scheduler_of_thread = new emu::Scheduler;
    emu::Scheduler& s = *emu::scheduler_of_thread;
    s.call = entry->call;
    s.buffers = buffers;
    s.args = args;
    s.kernel = entry->name;
    s.without_fibers = entry->each;
    for (uint z = 0; z < grid[2]; z++)
        for (uint y = 0; y < grid[1]; y++)
            for (uint x = 0; x < grid[0]; x++) {
                emu::group = {x, y, z};
                if (order == 1) emu::group = {grid[0] - 1 - x, grid[1] - 1 - y, grid[2] - 1 - z};
                if (entry->each) emu::run_each(size, order);
                else emu::run_group(size, order);
            }
    return 0;
}

// The name of kernel i; null beyond the last.
extern "C" const char* kin_infer_emulator_kernel(uint i) { return emu::entries[i].name; }
