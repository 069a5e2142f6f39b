#!/usr/bin/env bash
# Runs the GPU kernels on the CPU under sanitizers: AddressSanitizer and UndefinedBehaviorSanitizer (reads and writes
# outside of buffers), ThreadSanitizer (threads of a threadgroup that race). Needs g++ 10 or newer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Small launches of every kernel, as the tests of operations make them.
KIN_INFER_REQUIRE_EMULATOR=1 KIN_INFER_RECORD_LAUNCHES=$work \
    cargo test -p kin-infer --locked --quiet --test kernels --test backend_ops --test device -- \
    matmul quantised rows stored attention heads pool gather rope linear each_value fma >/dev/null

# replay NAME FLAGS...: builds the kernels with these flags and runs, of each kernel, the launches of the fewest threads.
replay() {
    local name=$1
    shift
    g++ -std=c++17 -O1 -g1 -ffp-contract=off -Wno-unknown-pragmas -Ikernels -Ikernels/emulator "$@" \
        "$work/kernels.cpp" kernels/emulator/replay.cpp -o "$work/replay-$name"
    echo "--- $name"
    local start=$SECONDS
    "$work/replay-$name" --smallest 40 "$work"/*.launches
    echo "$((SECONDS - start)) s"
}

replay plain -fsanitize=undefined -fno-sanitize-recover=undefined
ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 replay address -fsanitize=address
TSAN_OPTIONS=halt_on_error=1 replay thread -fsanitize=thread
