#!/usr/bin/env bash
# Writes kernels/ptx/kernels.ptx, the GPU kernels as CUDA devices load them, from kernels/*.h with clang 19: no CUDA
# toolkit is needed. The same sources and compiler give the same bytes; the head of the file names both.
#
# sm_70 is the least that is supported; the driver compiles the PTX for the device at hand, whichever it is.
#
# usage: tools/build_ptx.sh [OUTPUT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C
output=${1:-kernels/ptx/kernels.ptx}
clang=${CLANG:-clang++-19}
options=(-x cuda --cuda-device-only --cuda-gpu-arch=sm_70 --cuda-feature=+ptx63 -nocudainc -nocudalib -std=c++17 -O3
    -ffp-contract=off -Wall -Wextra -Werror -Wno-pass-failed)

if ! version=$("$clang" -dumpversion 2>/dev/null) || [[ $version != 19.* ]]; then
    echo "build_ptx: clang++-19 is needed (CLANG names it); on Debian 12: apt-get install clang-19" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in kernels/*.h; do
    echo "#include \"$(basename "$file")\""
done >"$work/kernels.cu"
"$clang" "${options[@]}" -I kernels -S "$work/kernels.cu" -o "$work/kernels.ptx"
{
    echo "// Written by tools/build_ptx.sh from kernels/*.h."
    echo "// compiler: clang $version ${options[*]}"
    echo "// sources: $(sha256sum kernels/*.h | sha256sum | cut -d ' ' -f 1)"
    cat "$work/kernels.ptx"
} >"$work/whole.ptx"
mkdir -p "$(dirname "$output")"
cp "$work/whole.ptx" "$output"
echo "build_ptx: $output, $(grep -c '^\.visible \.entry' "$output") kernels, clang $version" >&2
