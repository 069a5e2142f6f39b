#!/usr/bin/env bash
# What can be checked of the GPU kernels where there is no GPU, on Debian 12 amd64 as root:
#
# - the committed PTX is, byte for byte, what clang 19 makes of the sources;
# - NVIDIA's assembler takes it for each architecture, within the 32 KiB of shared memory that Metal has too, and with no
#   more than 16 bytes of spilled registers in matrix products and attention: it trades a register or two for one more
#   threadgroup a multiprocessor;
# - the text that Metal compiles is well-formed for clang's C++ for OpenCL front end, which stands in for Metal's.
#
# Installs what is absent: clang-19 by apt-get, ptxas from PyPI into target/gpu-check.
#
# usage: scripts/ci-gpu-check.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang++-19 >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends clang-19
fi
site=target/gpu-check/nvcc-12.9.86
ptxas=$site/nvidia/cuda_nvcc/bin/ptxas
if [ ! -f "$ptxas" ]; then
    python3 -m pip install -q --no-deps --target "$site" nvidia-cuda-nvcc-cu12==12.9.86
fi
chmod +x "$ptxas"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "--- PTX"
tools/build_ptx.sh "$work/kernels.ptx"
if ! cmp kernels/ptx/kernels.ptx "$work/kernels.ptx"; then
    echo "ci-gpu-check: kernels/ptx/kernels.ptx is not what the sources give: run tools/build_ptx.sh" >&2
    exit 1
fi

# One line a kernel: name, registers, bytes of shared memory, bytes of spill stores and loads.
usage() {
    awk -v OFS='\t' '
        /Compiling entry function/ { split($0, quoted, "\047"); name = quoted[2] }
        /bytes spill stores/ {
            match($0, /[0-9]+ bytes spill stores/); stores = substr($0, RSTART, RLENGTH) + 0
            match($0, /[0-9]+ bytes spill loads/); loads = substr($0, RSTART, RLENGTH) + 0
        }
        /: Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
            shared = 0
            if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
            print name, registers, shared, stores + loads
        }'
}

expected=$(grep -c '^\.visible \.entry' kernels/ptx/kernels.ptx)
archs=(70 75 80 90)
for arch in "${archs[@]}"; do
    "$ptxas" -v -arch="sm_$arch" kernels/ptx/kernels.ptx -o "$work/$arch.cubin" 2>&1 | usage |
        sort >"$work/$arch.usage" &
done
wait
failed=0
for arch in "${archs[@]}"; do
    echo "--- sm_$arch: kernel, registers, bytes of shared memory, bytes spilled"
    cat "$work/$arch.usage"
    if [ "$(wc -l <"$work/$arch.usage")" != "$expected" ]; then
        echo "ci-gpu-check: ptxas did not assemble all $expected kernels for sm_$arch" >&2
        failed=1
    fi
    if ! awk '/^(matmul|matvec|attention)/ && $4 > 16 { print "spills: " $0; bad = 1 }
        $3 > 32768 { print "more than 32 KiB of shared memory: " $0; bad = 1 }
        END { exit bad }' "$work/$arch.usage" >&2; then
        failed=1
    fi
done

echo "--- Metal"
{
    echo '#define __METAL_VERSION__ 300'
    # As src/gpu/kernels.rs joins them.
    for file in $(grep -oE 'kernels/[a-z_]+\.h"\)' src/gpu/kernels.rs | tr -d '")'); do
        grep -vE '^#include "|^#pragma once' "$file"
    done
} >"$work/kernels.metal"
clang-19 -x clcpp -cl-std=clc++2021 -Xclang -cl-ext=-all,+cl_khr_fp16 -Xclang -finclude-default-header \
    -I tools/fake_metal -Wall -Wextra -Wno-unknown-attributes -Wno-ignored-attributes -Wno-pass-failed -fsyntax-only \
    "$work/kernels.metal"
echo "$(grep -c '^KERNEL' "$work/kernels.metal") kernel definitions accepted"
exit "$failed"
